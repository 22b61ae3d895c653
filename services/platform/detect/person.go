package detect

import "strings"

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

// common are small words of sentences that people write.
var common = wordSet(`the a an to is my you i he she was of and in for with that have has it we our please are will on at from his her me your this can by would be not as who what
	they them him us were had do does did could should when where how why if then than there here so up out about into just like know get go see think no yes but or one all
	been more some very much too many two any only also even now ever never back down home day today love want need make made take took come came give said says ask asked
	tell told born lives`)

// People's words stand around a name that nobody knows: who somebody is, and what he does that programs do not.
var (
	peopleBefore = wordSet(`friend brother sister mother father wife husband son daughter uncle aunt cousin nephew niece colleague boss neighbor neighbour actor actress singer
		poet artist composer painter president senator governor mayor king queen lawyer sergeant detective`)
	peopleAfter = wordSet(`said replied thinks thought lives lived died married marries loves loved smiled laughed sings sang starred`)
)

// neighbour reports whether such a word stands before a place, or behind another.
func (s *scan) neighbour(from, to int) bool {
	end := s.trimBack(from)
	begin := end
	for begin > 0 && end-begin < 12 && is(s.text[begin-1], isLower) {
		begin--
	}
	if end == from-1 && !is(s.at(begin-1), isWord) && peopleBefore[s.text[begin:end]] {
		return true
	}
	if s.at(to) != ' ' {
		return false
	}
	end = to + 1
	for end < len(s.text) && end-to < 12 && is(s.text[end], isLower) {
		end++
	}
	return peopleAfter[s.text[to+1:end]] && !is(s.at(end), isWord)
}

// foreign reports whether a word has letters that English has not.
func (s *scan) foreign(w capitalised) bool {
	for i := w.from; i < w.to; i++ {
		if c := s.text[i]; c >= 0xc3 && c <= 0xc8 {
			return w.to-w.from > 4
		}
	}
	return false
}

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
	last := first
	if len(parts) > 0 {
		last = parts[len(parts)-1]
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
		}
		if !s.prose(first.from, last.to) {
			return 0, ""
		}
		begins := s.beginsSentence(first.from)
		switch {
		case first.flags&given != 0 && last.flags&(family|given) != 0 && !begins:
			return 55, "a given name and a family name, both words as well"
		case first.flags&(family|word) == family && last.flags&(family|given) != 0 && last.flags&word == 0:
			return 60, "two family names in a sentence"
		case !first.known && last.flags&family != 0 && last.flags&word == 0 && !begins:
			return 55, "an unknown word with a capital, and a family name"
		case !first.known && !last.known && (s.foreign(first) || s.foreign(last)):
			return 55, "two words with capitals, and letters that English has not"
		case !first.known && (!last.known || last.flags&family != 0) && s.neighbour(first.from, last.to):
			return 55, "two words with capitals, and a word beside them that people stand with"
		}
		return 0, ""
	}
	switch {
	case introduced && first.flags&(given|family) != 0:
		return 80, "a name, and the words before it introduce one"
	case introduced:
		return 60, "the words before it introduce a name"
	case !s.prose(first.from, first.to):
		return 0, ""
	}
	begins := s.beginsSentence(first.from)
	switch {
	case first.flags&given != 0 && plain:
		return 60, "a given name in a sentence"
	case first.flags&family != 0 && plain && !begins:
		return 50, "a family name in a sentence"
	case first.flags&(given|family) != 0 && s.neighbour(first.from, first.to):
		return 50, "a name, and a word beside it that people stand with"
	case !first.known && s.foreign(first) && !begins:
		return 50, "a word with a capital, and letters that English has not"
	case !first.known && !begins && s.neighbour(first.from, first.to):
		return 45, "a word with a capital, and a word beside it that people stand with"
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
