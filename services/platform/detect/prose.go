package detect

import (
	"strings"

	"durward.internal/services/platform/detect/lexicon"
)

// proseStep: prose is looked for in pieces of so many bytes, and in those before and behind.
const proseStep = 128

// prose reports whether people's words stand around a place: some of the small words of a sentence on the same line, which is no
// program's. What it says of a place holds for all places on the same line in the same piece, so that it is found once.
func (s *scan) prose(at int) bool {
	if at >= s.proseFrom && at < s.proseTo {
		return s.isProse
	}
	piece := at / proseStep * proseStep
	begin, end := max(0, piece-proseStep), min(len(s.text), piece+2*proseStep)
	s.proseFrom, s.proseTo = piece, min(end, piece+proseStep)
	if i := strings.LastIndexByte(s.text[begin:at], '\n'); i >= 0 {
		begin += i + 1
		s.proseFrom = max(piece, begin)
	}
	if i := strings.IndexByte(s.text[at:end], '\n'); i >= 0 {
		end = at + i
		s.proseTo = min(s.proseTo, end)
	}
	s.isProse, s.isPersonal = s.proseIn(s.text[begin:end])
	return s.isProse
}

// proseIn reports whether a part of a line has people's words, and whether it speaks of people.
func (s *scan) proseIn(text string) (prose, personal bool) {
	n, plain := 0, true
	for i := 0; i < len(text); i++ {
		c := text[i]
		if !is(c, isLower|isUpper) {
			if c == '=' || c == '{' {
				return false, false
			}
			plain = plain && (c == ' ' || c == '.' || c == ',' || c == '?' || c == '!' || c == '\'' || c == ':' || c == '"')
			continue
		}
		from := i
		for i < len(text) && is(text[i], isLower|isUpper) {
			i++
		}
		// A letter or two of a digest are no word.
		if i-from <= 6 && (from == 0 || classes[text[from-1]]&(isDigit|isWord) == 0) && (i == len(text) || !is(text[i], isDigit|isWord)) {
			key := lexicon.Pack(text[from:i])
			if s.words.Common(key) {
				n++
			}
			personal = personal || s.words.PersonalWords[key] || i-from == 1 && text[from] == 'I'
		}
		i--
	}
	prose = n >= 2 || n == 1 && plain && len(text) <= 60
	return prose, prose && personal
}
