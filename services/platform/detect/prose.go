package detect

import "strings"

// packed is a word of up to eight letters in small ones, as a number; 0 where it is longer.
func packed(w string) (key uint64) {
	if len(w) > 8 {
		return 0
	}
	for i := range len(w) {
		key = key<<8 | uint64(w[i]|0x20)
	}
	return key
}

func packedSet(list string) map[uint64]bool {
	out := map[uint64]bool{}
	for w := range strings.FieldsSeq(list) {
		if key := packed(w); key != 0 {
			out[key] = true
		}
	}
	return out
}

// common are small words of sentences that people write.
var common = func() (out [1 << 11]uint64) {
	for w := range strings.FieldsSeq(`the a an to is my you i he she was of and in for with that have has it we our please are will on at from his her me your this can by would be not as who what
		they them him us were had do does did could should when where how why if then than there here so up out about into just like know get go see think no yes but or one all
		been more some very much too many two any only also even now ever never back down home day today love want need make made take took come came give said says ask asked
		tell told born lives`) {
		key := packed(w)
		at := commonAt(key)
		for out[at] != 0 {
			at = (at + 1) % len(out)
		}
		out[at] = key
	}
	return out
}()

func commonAt(key uint64) int { return int(key * 0x9e3779b97f4a7c15 >> (64 - 11)) }

func isCommon(key uint64) bool {
	for at := commonAt(key); common[at] != 0; at = (at + 1) % len(common) {
		if common[at] == key {
			return true
		}
	}
	return false
}

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
	s.isProse, s.isPersonal = proseIn(s.text[begin:end])
	return s.isProse
}

// personalWords stand in sentences about people.
var personalWords = packedSet(`my me he him his she her hers who whom mr mrs ms born friend love`)

// proseIn reports whether a part of a line has people's words, and whether it speaks of people.
func proseIn(text string) (prose, personal bool) {
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
			key := packed(text[from:i])
			if isCommon(key) {
				n++
			}
			personal = personal || personalWords[key] || i-from == 1 && text[from] == 'I'
		}
		i--
	}
	prose = n >= 2 || n == 1 && plain && len(text) <= 60
	return prose, prose && personal
}
