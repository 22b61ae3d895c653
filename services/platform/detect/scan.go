package detect

import (
	"context"
	"strings"

	"durward.internal/services/platform/detect/lexicon"
)

// scan goes through one text.
type scan struct {
	text  string
	spans []Span
	// numbersTo, colonsTo and namesTo are how far numbers, addresses with colons and names have been looked at.
	numbersTo, colonsTo, namesTo int
	// bareTo is how far there is no digit.
	bareTo int
	// proseFrom and proseTo are where isProse holds.
	proseFrom, proseTo int
	isProse            bool
	isPersonal         bool
	words              *lexicon.Table
	marks              [6]mark
}

// What a byte may begin or be in the middle of.
const (
	kindNone = iota
	kindDigit
	kindUpper
	kindAt
	kindColon
	kindDash
	kindPlus
	kindParen
)

const (
	isDigit = 1 << iota
	isLower
	isUpper
	isHex
	isWord  // letters, digits and _
	isLocal // what stands before an email's @
	isSign  // what stands between the parts of a number
)

// kinds and classes of bytes. A byte beyond ASCII is a part of a letter.
var kinds, classes = func() (k, c [256]byte) {
	for b := range 256 {
		switch {
		case b >= '0' && b <= '9':
			k[b], c[b] = kindDigit, isDigit|isHex|isWord|isLocal
		case b >= 'a' && b <= 'z':
			c[b] = isLower | isWord | isLocal
		case b >= 'A' && b <= 'Z':
			k[b], c[b] = kindUpper, isUpper|isWord|isLocal
		case b >= 0x80:
			c[b] = isLower | isWord
		}
		if b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F' {
			c[b] |= isHex
		}
	}
	for _, b := range []byte("._%+-") {
		c[b] |= isLocal
	}
	for _, b := range []byte(" -./()") {
		c[b] |= isSign
	}
	c['_'] |= isWord
	k['@'], k[':'], k['-'], k['+'], k['('] = kindAt, kindColon, kindDash, kindPlus, kindParen
	k[0xc3], k[0xc4], k[0xc5], k[0xc8] = kindUpper, kindUpper, kindUpper, kindUpper // the first byte of most capitals with accents
	return k, c
}()

func is(c, class byte) bool { return classes[c]&class != 0 }

// anyOf has the bytes of a text.
func anyOf(text string) (out [256]bool) {
	for i := range len(text) {
		out[text[i]] = true
	}
	return out
}

// at is a byte of the text, or 0 beyond its ends.
func (s *scan) at(i int) byte {
	if i < 0 || i >= len(s.text) {
		return 0
	}
	return s.text[i]
}

func (s *scan) add(from, to int, t Type, confidence int, why string) {
	s.spans = append(s.spans, Span{From: from, To: to, Type: t, Confidence: confidence, Why: why})
}

// run goes through the text once. It looks at ctx every 64 KiB.
func (s *scan) run(ctx context.Context) error {
	const every = 64 << 10
	text := s.text
	for from := 0; from < len(text); from += every {
		if err := ctx.Err(); err != nil {
			return err
		}
		for i, to := from, min(from+every, len(text)); i < to; i++ {
			kind := kinds[text[i]]
			for kind == kindNone {
				if i++; i == to {
					break
				}
				kind = kinds[text[i]]
			}
			switch kind {
			case kindDigit:
				if i == 0 || !is(text[i-1], isDigit) {
					s.digits(i)
				}
				// Behind a digit, nothing in the same word is the first of anything.
				for i+1 < to && is(text[i+1], isWord) {
					i++
				}
			case kindUpper:
				if i >= s.namesTo && (i == 0 || !is(text[i-1], isWord)) {
					s.capital(i)
				}
			case kindAt:
				s.email(i)
			case kindColon:
				if i >= s.colonsTo {
					s.colon(i)
				}
			case kindDash:
				if s.at(i+3) == '-' && s.at(i+6) == '-' {
					s.mac(i)
				}
			case kindPlus, kindParen:
				if i >= s.numbersTo && (is(s.at(i+1), isDigit) || s.at(i+1) == '(' || s.at(i+1) == '+') {
					s.numbers(i)
				}
			}
		}
	}
	return nil
}

// digits looks at a run of digits from its first on.
func (s *scan) digits(i int) {
	before := s.at(i - 1)
	if !is(before, isWord) {
		switch s.text[i] {
		case '0':
			if s.at(i+1) == 'x' {
				s.ethereum(i)
				return
			}
		case '1', '3':
			s.bitcoin(i)
		}
		if i >= s.numbersTo {
			s.numbers(i)
		}
		return
	}
	if i < 2 || is(s.at(i-3), isWord) {
		return
	}
	switch {
	case is(before, isUpper) && is(s.text[i-2], isUpper):
		s.iban(i - 2)
	case before == 'c' && s.text[i-2] == 'b' && s.text[i] == '1':
		s.bech32(i-2, "bc")
	case is(before, isLower) && is(s.text[i-2], isLower):
		s.iban(i - 2)
	}
}

// digitAhead reports whether a digit, or the sign of a house without a number, stands in what an address may take behind a place.
func (s *scan) digitAhead(from int) bool {
	const reach = 160
	end := min(len(s.text), from+reach)
	for i := max(from, s.bareTo); i < end; i++ {
		if c := s.text[i]; c >= '/' && c <= '9' { // the sign stands before 0
			s.bareTo = i
			return true
		}
	}
	s.bareTo = max(s.bareTo, end)
	return false
}

// near reports whether one of some words, in lower case, stands in the n bytes before a place; around, whether it does in those behind, too.
func (s *scan) near(i, n int, words *wordList) bool {
	m := s.markOf(words)
	if m == nil || i < m.to {
		return hasWord(s.text[max(0, i-n):i], words)
	}
	if i-m.to > 2*n {
		m.to = i - 2*n // nothing before is looked at again
	}
	// The last word that ended before the place was found when an earlier place was looked at, or is looked for now.
	for m.to < i {
		if !is(s.text[m.to], isLower|isUpper) {
			m.to++
			continue
		}
		end := m.to
		for end < i && is(s.text[end], isLower|isUpper) {
			end++
		}
		if end == i && end < len(s.text) && is(s.text[end], isLower|isUpper) {
			return m.hit >= i-n // in the middle of a word
		}
		if words.first[s.text[m.to]] && hasWord(s.text[m.to:end], words) {
			m.hit = m.to
		}
		m.to = end
	}
	return m.hit >= i-n
}

// mark is how far a text was searched for the words of a list, and where the last of them is.
type mark struct {
	list    *wordList
	to, hit int
}

// markOf is the mark of a list, or nil where there are too many lists.
func (s *scan) markOf(list *wordList) *mark {
	for i := range s.marks {
		switch m := &s.marks[i]; m.list {
		case list:
			return m
		case nil:
			*m = mark{list: list, hit: -1 << 30}
			return m
		}
	}
	return nil
}

func (s *scan) around(from, to, n int, words *wordList) bool {
	return s.near(from, n, words) || hasWord(s.text[to:min(len(s.text), to+n)], words)
}

// wordList is words in lower case, and with which letters they begin. A word that ends with * is the beginning of one.
type wordList struct {
	first [256]bool
	words []string
}

func listOf(words ...string) (l wordList) {
	for _, w := range words {
		l.first[w[0]], l.first[w[0]&^0x20] = true, true
	}
	l.words = words
	return l
}

// hasWord reports whether a short text has one of some words, whatever its letters' case.
func hasWord(text string, words *wordList) bool {
	for i := 0; i < len(text); i++ {
		if !is(text[i], isLower|isUpper) {
			continue
		}
		to := i
		for to < len(text) && is(text[to], isLower|isUpper) {
			to++
		}
		if !words.first[text[i]] {
			i = to
			continue
		}
		for _, w := range words.words {
			stem, cut := strings.CutSuffix(w, "*")
			if text[i]|0x20 == w[0] && (to-i == len(stem) || cut && to-i > len(stem)) && strings.EqualFold(text[i:i+len(stem)], stem) {
				return true
			}
		}
		i = to
	}
	return false
}
