package detect

import (
	_ "embed"
	"strings"
	"sync"
)

//go:embed names.txt
var namesText string

const (
	given   = 1 << iota // a given name
	family              // a family name
	word                // a word of English, too
	title               // Mr, Dr
	notName             // never one: machines, projects, months
	organ               // what ends the name of a company or a place
	street              // what a street's name ends with
	road                // what a street's name begins with
)

// lexicon is what capitalised words are known to be. It is read once from what is linked in.
var lexicon = sync.OnceValue(func() map[string]uint8 {
	out := make(map[string]uint8, 16<<10)
	flags := uint8(0)
	for line := range strings.Lines(namesText) {
		line = strings.TrimSpace(line)
		if head, ok := strings.CutPrefix(line, "# "); ok {
			flags = 0
			for _, f := range strings.Fields(head) {
				flags |= map[string]uint8{"given": given, "family": family, "word": word}[f]
			}
			continue
		}
		for name := range strings.FieldsSeq(line) {
			out[name] |= flags
		}
	}
	put := func(list string, flag uint8, alone bool) {
		for w := range strings.FieldsSeq(list) {
			if alone {
				out[w] = flag
			} else {
				out[w] |= flag
			}
		}
	}
	put("Mr Mrs Ms Mx Miss Dr Prof Professor Sir Madam Mister Herr Frau Mme Monsieur Señor Señora", title, true)
	put(`January February March April May June July August September October November December Monday Tuesday Wednesday Thursday Friday Saturday Sunday
		Ada Ampere Blackwell Claude Darwin Debian Falcon Fedora Gemini Gemma Gloo Grace Hopper Jenkins Julia Kepler Lora Lovelace Llama Maxwell Mistral
		Pascal Phi Prometheus Python Ray Ruby Rust Tesla Turing Ubuntu Volta Vulkan Xeon Loki Sentry Kafka Redis Apollo Athena Atlas Aurora Jasper Jira
		India China Israel Ireland Holland Jordan Chad Georgia Kenya Cuba Paris London Berlin Texas Virginia Carolina Dakota Florida Montana Sydney Houston
		Dallas Lincoln Jackson Madison Austin Phoenix Orlando Charlotte Victoria Alexandria Santiago Asia America Africa Europe The This That These Those
		There Then They You Your What When Where Why How Our His Her She Its See Not No Yes Ok And But For From With Please Thanks Thank Hello Dear Best
		All World Everyone Everybody Folks Friends Sirs Customer Customers User Users Admin Administrator Support Guys Ladies Gentlemen Again
		Error Info Warning Debug Trace Fatal Critical Notice Started Starting Stopped Stopping Loading Loaded Failed Using Model Server Client Token Tokens
		Request Response Error Exception Process Service Worker Engine Cache Memory Device Driver Kernel Total Max Min Avg Internet English Spanish`, notName, true)
	put(`Inc Inc. LLC Ltd Corp Corporation Company Co Group GmbH AG SA BV NV Plc University College School Institute Hospital Bank Hotel Airport Station
		County City River Lake Mountain Island Islands Park Bay Beach Valley Museum Church Center Centre Foundation Association Club Team Server Service
		Systems Technologies Technology Software Labs Media Holdings Partners Industries Motors Airlines International`, organ, true)
	put(`Street St Avenue Ave Road Rd Boulevard Blvd Lane Ln Drive Dr Court Ct Place Pl Square Sq Terrace Ter Way Highway Hwy Parkway Pkwy Circle Cir Trail
		Trl Alley Crescent Cres Close Grove Row Walk Mews Pike Loop Plaza Esplanade Quay Gardens Hill Route Expressway Causeway Turnpike Freeway Path Crossing`, street, false)
	put(`Rue Via Viale Calle Rua Avenida Piazza Plaza Plaça Corso Chemin Allée Impasse Boulevard Avenue Quai Strada Ulica Ul Camino Carrer Carrera Paseo
		Praça Travessa Largo Vicolo Jalan`, road, false)
	return out
})

// capitalised is a word and where it ends.
type capitalised struct {
	from, to int
	flags    uint8
	// initial: an initial stands before it.
	initial bool
	// known: the word is in the lexicon.
	known bool
}

const maxNameWord = 24

// wordAt reads the word that begins at a place: letters, and ' and - between them.
func (s *scan) wordAt(from int) capitalised {
	to := from
	for to < len(s.text) && to-from <= maxNameWord {
		c := s.text[to]
		if is(c, isLower|isUpper) || (c == '\'' || c == '-') && to > from && is(s.at(to+1), isLower|isUpper) && (s.at(to+1) != 's' || is(s.at(to+2), isWord)) {
			to++
			continue
		}
		break
	}
	flags, known := lexicon()[s.text[from:to]]
	return capitalised{from: from, to: to, flags: flags, known: known}
}

// initial is where an initial ends that begins at a place, or 0.
func (s *scan) initial(at int) int {
	if is(s.at(at), isUpper) && s.at(at+1) == '.' {
		return at + 2
	}
	return 0
}

// particles are small words within a name.
var particles = []string{"van der ", "van den ", "van de ", "van ", "von ", "de la ", "de los ", "de ", "del ", "della ", "der ", "den ", "di ", "da ", "dos ", "bin ", "al-", "el-", "la ", "le ", "ter ", "ten "}

// nextName reads the word of a name behind one that ends at a place. What lies between may be an initial and a particle.
func (s *scan) nextName(at int) (next capitalised, ok bool) {
	if s.at(at) != ' ' {
		return capitalised{}, false
	}
	at++
	begin := at
	if end := s.initial(at); end > 0 && s.at(end) == ' ' {
		at = end + 1
	} else if is(s.at(at), isUpper) && s.at(at+1) == ' ' && is(s.at(at+2), isUpper) {
		at += 2
	}
	initial := at > begin
	for _, p := range particles {
		if strings.HasPrefix(s.text[at:], p) {
			at += len(p)
			break
		}
	}
	if kinds[s.at(at)] != kindUpper {
		return capitalised{}, false
	}
	next = s.wordAt(at)
	next.initial = initial
	return next, s.nameLike(next)
}

// nameLike reports whether a capitalised word can be a part of a name: it is no abbreviation and no word that is known to be none.
func (s *scan) nameLike(w capitalised) bool {
	if w.flags&(notName|organ|title) != 0 || w.to-w.from < 2 || w.to-w.from > maxNameWord || is(s.at(w.to), isDigit) || s.at(w.to) == '_' || s.at(w.to) == '(' {
		return false
	}
	lower := false
	for i := w.from + 1; i < w.to; i++ {
		c := s.text[i]
		lower = lower || is(c, isLower)
		// McDonald, O'Brien and Anne-Marie are names; vLLM's classes are not.
		if is(c, isUpper) && is(s.text[i-1], isLower) && i-w.from > 3 {
			return false
		}
	}
	return lower
}

// introducing are words after which somebody's name follows, in small letters.
var introducing = map[string]uint8{
	"dear": 2, "hi": 2, "hello": 2, "hey": 2, "i'm": 2, "named": 2, "is": 1, "am": 1, "called": 1, "mrs.": 2, "mr.": 2, "ms.": 2, "dr.": 2, "prof.": 2,
	"regards,": 2, "sincerely,": 2, "cheers,": 2, "thanks,": 2,
}

// introduced reports whether the words before a place say that a name follows.
func (s *scan) introduced(from int) bool {
	end := from
	for end > 0 && from-end < 3 && (s.text[end-1] == ' ' || s.text[end-1] == '\n') {
		end--
	}
	if end == from {
		return false
	}
	begin := end
	for begin > 0 && end-begin < 12 && s.text[begin-1] != ' ' && s.text[begin-1] != '\n' {
		begin--
	}
	var lower [12]byte
	n := copy(lower[:], s.text[begin:end])
	for i := range n {
		if is(lower[i], isUpper) {
			lower[i] |= 0x20
		}
	}
	switch introducing[string(lower[:n])] {
	case 2:
		return true
	case 1:
		before := strings.ToLower(s.text[max(0, begin-12):begin])
		return strings.HasSuffix(before, "name ") || strings.HasSuffix(before, "i ") && string(lower[:n]) == "am"
	}
	// "Name: ", "Full name: "
	if n > 0 && s.text[end-1] == ':' {
		for _, key := range []string{"full name:", "first name:", "last name:", "surname:", "customer name:", "patient name:", "contact name:", "given name:", "family name:"} {
			if end >= len(key) && strings.EqualFold(s.text[end-len(key):end], key) {
				return true
			}
		}
	}
	return false
}

var common = func() map[string]bool {
	return wordSet("the a an to is my you i he she was of and in for with that have has it we our please are will on at from his her me your this can by would be not as who what")
}()

// prose reports whether people's words stand around a place: some of the small words of a sentence on the same line, which is no
// program's.
func (s *scan) prose(from, to int) bool {
	begin, end := max(0, from-120), min(len(s.text), to+120)
	if i := strings.LastIndexByte(s.text[begin:from], '\n'); i >= 0 {
		begin += i + 1
	}
	if i := strings.IndexByte(s.text[to:end], '\n'); i >= 0 {
		end = to + i
	}
	n := 0
	for i := begin; i < end; i++ {
		if !is(s.text[i], isLower|isUpper) {
			if c := s.text[i]; c == '=' || c == '{' {
				return false
			}
			continue
		}
		j := i
		for j < end && is(s.text[j], isLower|isUpper) {
			j++
		}
		if j-i <= 6 {
			var lower [6]byte
			copy(lower[:], s.text[i:j])
			lower[0] |= 0x20
			if common[string(lower[:j-i])] {
				if n++; n >= 2 {
					return true
				}
			}
		}
		i = j
	}
	return false
}

// capital looks at a word that begins with a capital.
func (s *scan) capital(from int) {
	w := s.wordAt(from)
	s.namesTo = w.to
	if s.place(w) || s.monthFirst(w) {
		return
	}
	if w.flags&title != 0 {
		s.titled(w)
		return
	}
	if !s.nameLike(w) {
		return
	}
	introduced := s.introduced(from)
	if !introduced && w.known && w.flags&given == 0 {
		return
	}
	first := w
	var parts []capitalised
	for len(parts) < 3 {
		next, ok := s.nextName(w.to)
		if !ok {
			if next.flags&organ != 0 {
				return
			}
			break
		}
		parts, w = append(parts, next), next
	}
	confidence, why := s.sure(first, parts, introduced)
	if confidence > 0 {
		s.namesTo = w.to
		s.add(from, w.to, Person, confidence, why)
	}
}

// sure is how sure it is that words are a person's name, and why; 0: it is none.
func (s *scan) sure(first capitalised, parts []capitalised, introduced bool) (int, string) {
	plain := first.flags&word == 0
	if len(parts) > 0 {
		last := parts[len(parts)-1]
		switch {
		case first.flags&given != 0 && plain && last.flags&family != 0:
			return 85, "a given name and a family name"
		case first.flags&given != 0 && plain && last.flags&street == 0:
			return 75, "a given name, and another word with a capital"
		case first.flags&given != 0 && last.flags&family != 0 && last.flags&word == 0:
			return 75, "a given name and a family name"
		case introduced:
			return 75, "the words before it introduce a name"
		case first.flags&given != 0 && last.initial:
			return 75, "a given name, an initial and another word"
		case first.flags&given != 0 && last.flags&(family|given) != 0 && s.prose(first.from, last.to) && !s.beginsSentence(first.from):
			return 55, "a given name and a family name, both words as well"
		case !first.known && last.flags&family != 0 && last.flags&word == 0 && !s.beginsSentence(first.from) && s.prose(first.from, last.to):
			return 55, "an unknown word with a capital, and a family name"
		}
		return 0, ""
	}
	switch {
	case introduced && first.flags&(given|family) != 0:
		return 80, "a name, and the words before it introduce one"
	case introduced:
		return 60, "the words before it introduce a name"
	case first.flags&given != 0 && plain && s.prose(first.from, first.to):
		return 60, "a given name in a sentence"
	}
	return 0, ""
}

// titled looks at what follows a title.
func (s *scan) titled(w capitalised) {
	at := w.to
	if s.at(at) == '.' {
		at++
	}
	if s.at(at) != ' ' {
		return
	}
	from := at + 1
	to := 0
	for range 3 {
		next, ok := s.nextName(at)
		if !ok {
			break
		}
		at, to = next.to, next.to
	}
	if to > 0 {
		s.namesTo = to
		s.add(from, to, Person, 90, "a title before it")
	}
}

// beginsSentence reports whether a place begins a text, a line or a sentence.
func (s *scan) beginsSentence(from int) bool {
	i := from
	for i > 0 && s.text[i-1] == ' ' {
		i--
	}
	return i == 0 || strings.IndexByte(".!?:\n\"'([", s.text[i-1]) >= 0
}
