package detect

import (
	"strings"

	"durward.internal/services/platform/detect/lexicon"
)

// capitalised is a word and where it ends.
type capitalised struct {
	from, to int
	flags    uint16
	// initial: an initial stands before it.
	initial bool
}

// unknown reports whether no list has the word.
func (w capitalised) unknown() bool { return w.flags == 0 }

// name reports whether a list of names has the word, and it is nothing else.
func (w capitalised) name() bool {
	return w.flags&lexicon.Name != 0 && w.flags&(lexicon.Word|lexicon.PlaceName|lexicon.Ambiguous) == 0
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
	return capitalised{from: from, to: to, flags: s.words.Of(s.text[from:to])}
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
		if !is(s.at(at), isLower) {
			break
		}
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
	if w.flags&(lexicon.NotName|lexicon.Organ|lexicon.Title) != 0 || w.to-w.from < 2 || w.to-w.from > maxNameWord || is(s.at(w.to), isDigit) || s.at(w.to) == '_' || s.at(w.to) == '(' {
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

// beside reports how much what stands beside a name says that it is somebody's: 2: a word that only people stand with, 1: another.
func (s *scan) beside(from, to int) int {
	strength := 0
	if end := from - 1; s.at(end) == ' ' {
		begin := end
		for begin > 0 && end-begin < 9 && is(s.text[begin-1], isLower|isUpper) {
			begin--
		}
		switch key := lexicon.Pack(s.text[begin:end]); {
		case is(s.at(begin-1), isWord):
		case s.words.PeopleBefore[key]:
			return 2
		case s.words.BesideBefore[key]:
			strength = 1
		}
	}
	if s.at(to) == '\'' && s.at(to+1) == 's' {
		return max(strength, 1)
	}
	if s.at(to) == ' ' {
		end := to + 1
		for end < len(s.text) && end-to < 10 && is(s.text[end], isLower) {
			end++
		}
		switch key := lexicon.Pack(s.text[to+1 : end]); {
		case is(s.at(end), isWord):
		case s.words.PeopleAfter[key]:
			return 2
		case s.words.BesideAfter[key]:
			strength = 1
		}
	}
	return strength
}

// simple reports whether a word is a capital, and at least three letters that are none.
func (s *scan) simple(w capitalised) bool {
	for i := w.from + 1; i < w.to; i++ {
		if !is(s.text[i], isLower) {
			return false
		}
	}
	return w.to-w.from > 3
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

// capital looks at a word that begins with a capital.
func (s *scan) capital(from int) {
	w := s.wordAt(from)
	s.namesTo = w.to
	if s.place(w) || s.monthFirst(w) {
		return
	}
	if w.flags&lexicon.Title != 0 {
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
			if next.flags&lexicon.Organ != 0 {
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
	if len(parts) == 0 {
		return s.sureOfOne(first, introduced)
	}
	last := parts[len(parts)-1]
	plain := first.flags&lexicon.Given != 0 && first.name()
	switch {
	case plain && last.flags&(lexicon.Family|lexicon.Listed) != 0:
		return 85, "a given name and a family name"
	case plain && last.flags&lexicon.Street == 0 && (last.flags&lexicon.Word == 0 || last.flags&lexicon.Name != 0):
		return 75, "a given name, and another word with a capital"
	case first.flags&lexicon.Given != 0 && last.flags&lexicon.Family != 0 && last.name() && first.flags&lexicon.PlaceName == 0:
		return 75, "a given name and a family name"
	case introduced:
		return 75, "the words before it introduce a name"
	case first.flags&lexicon.Given != 0 && last.initial:
		return 75, "a given name, an initial and another word"
	case !s.prose(first.from):
		return 0, ""
	}
	begins, beside := s.beginsSentence(first.from), s.beside(first.from, last.to)
	switch {
	case first.name() && last.name():
		return 60, "two names in a sentence"
	case first.flags&lexicon.Given != 0 && last.flags&(lexicon.Family|lexicon.Given) != 0 && !begins && beside == 2:
		return 55, "a given name and a family name, both words as well"
	case first.name() && (last.unknown() || last.flags&lexicon.Name != 0 && last.flags&lexicon.PlaceName == 0):
		return 55, "a name, and another word with a capital"
	case first.unknown() && last.name():
		return 55, "a word with a capital that is no word of English, and a name"
	case first.unknown() && last.unknown() && (s.foreign(first) || s.foreign(last)):
		return 55, "two words with capitals, and letters that English has not"
	case first.unknown() && (last.unknown() || last.flags&lexicon.Name != 0) && beside == 2:
		return 55, "two words with capitals, and a word beside them that people stand with"
	case s.isPersonal && (first.unknown() && s.simple(first) || first.name()) && last.flags&(lexicon.Organ|lexicon.Street|lexicon.Suffix) == 0:
		return 45, "words with capitals of which one is no word of English, in a sentence about people"
	}
	return 0, ""
}

// sureOfOne is sure for one word.
func (s *scan) sureOfOne(w capitalised, introduced bool) (int, string) {
	switch {
	case introduced && w.flags&lexicon.Name != 0:
		return 80, "a name, and the words before it introduce one"
	case introduced && w.flags&lexicon.PlaceName == 0:
		return 60, "the words before it introduce a name"
	case !s.prose(w.from):
		return 0, ""
	}
	begins, beside := s.beginsSentence(w.from), s.beside(w.from, w.to)
	switch {
	case w.flags&lexicon.Given != 0 && w.name():
		return 60, "a given name in a sentence"
	case w.flags&lexicon.Family != 0 && w.name() && (!begins || beside > 0):
		return 50, "a family name in a sentence"
	case w.flags&lexicon.Name != 0 && beside == 2:
		return 50, "a name, and a word beside it that people stand with"
	case w.name() && !begins && beside > 0:
		return 45, "a name in a sentence"
	case w.flags&lexicon.Given != 0 && w.flags&(lexicon.PlaceName|lexicon.Ambiguous) == 0 && !begins && beside > 0:
		return 45, "a given name that is a word as well, in the middle of a sentence"
	case s.isPersonal && (w.unknown() && s.simple(w) || w.name() && (!begins || beside > 0 || w.flags&lexicon.Family != 0)):
		return 40, "a word with a capital that is no word of English, in a sentence about people"
	case w.unknown() && !begins && beside == 2:
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
