package secret

import (
	"math/bits"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// What a rule's matches may begin with is computed from its expression, so that an expression is tried only where a match of it can
// begin: the text is gone through once for all rules, three bytes at a time.

// byteSet is a set of bytes.
type byteSet [4]uint64

func (s *byteSet) add(c byte)      { s[c>>6] |= 1 << (c & 63) }
func (s *byteSet) has(c byte) bool { return s[c>>6]>>(c&63)&1 != 0 }

func (s *byteSet) size() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// all calls f with each byte of the set.
func (s *byteSet) all(f func(byte)) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			f(byte(i<<6 | bits.TrailingZeros64(word)))
		}
	}
}

// beginning is the bytes that a match has at its first places, as far as they are the same in number for all matches.
type beginning []byteSet

func (b beginning) of(text string) bool {
	if len(text) < len(b) {
		return false
	}
	for i := range b {
		if !b[i].has(text[i]) {
			return false
		}
	}
	return true
}

const (
	// maxBeginning is how many places of a match are looked at before its expression is tried, and maxBeginnings how many
	// different ones a rule may have; one with more is cut.
	maxBeginning, maxBeginnings = 48, 96
	// maxMatch is how far a match is looked for that may be of any length.
	maxMatch = 4 << 10
)

// beginningsOf returns what matches of an expression begin with, and whether that is all of each match. Assertions are left to
// the expression.
func beginningsOf(re *syntax.Regexp) (list []beginning, whole bool) {
	switch re.Op {
	case syntax.OpLiteral:
		b := make(beginning, 0, len(re.Rune))
		for _, r := range re.Rune {
			if r >= utf8.RuneSelf {
				return []beginning{b}, false
			}
			var s byteSet
			s.add(byte(r))
			if re.Flags&syntax.FoldCase != 0 && isLetter(lowerByte(byte(r))) {
				s.add(byte(r) ^ 0x20)
			}
			b = append(b, s)
		}
		return []beginning{b}, true
	case syntax.OpCharClass:
		var s byteSet
		for i := 0; i < len(re.Rune); i += 2 {
			for r := re.Rune[i]; r <= min(re.Rune[i+1], utf8.RuneSelf-1); r++ {
				s.add(byte(r))
			}
		}
		if last := len(re.Rune) - 1; last < 0 || re.Rune[last] < utf8.RuneSelf || foldsOnly(re.Rune) {
			return []beginning{{s}}, true
		}
		s[2], s[3] = ^uint64(0), ^uint64(0)
		return []beginning{{s}}, false
	case syntax.OpCapture:
		return beginningsOf(re.Sub[0])
	case syntax.OpPlus:
		list, _ = beginningsOf(re.Sub[0])
		return list, false
	case syntax.OpQuest:
		list, whole = beginningsOf(re.Sub[0])
		return append(list, beginning{}), whole
	case syntax.OpRepeat:
		next, all := beginningsOf(re.Sub[0])
		list, whole = []beginning{nil}, true
		for i := 0; i < min(re.Min, maxBeginning) && whole; i++ {
			list, whole = join(list, next, all)
		}
		return list, whole && re.Min == re.Max && re.Min <= maxBeginning
	case syntax.OpConcat:
		list, whole = []beginning{nil}, true
		for i := 0; i < len(re.Sub) && whole; i++ {
			next, all := beginningsOf(re.Sub[i])
			list, whole = join(list, next, all)
		}
		return list, whole
	case syntax.OpAlternate:
		whole = true
		for _, sub := range re.Sub {
			next, all := beginningsOf(sub)
			list, whole = append(list, next...), whole && all
		}
		return list, whole
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText, syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return []beginning{nil}, true
	}
	return []beginning{nil}, false // a star, any character
}

// foldsOnly reports whether the characters beyond ASCII are those two alone that Unicode takes for k and s.
func foldsOnly(ranges []rune) bool {
	for i := 0; i < len(ranges); i += 2 {
		if hi := ranges[i+1]; hi >= utf8.RuneSelf && (hi != ranges[i] || hi != 'ſ' && hi != '\u212a') {
			return false
		}
	}
	return true
}

// join puts each of next behind each of list, which it may change.
func join(list, next []beginning, whole bool) ([]beginning, bool) {
	if len(list)*len(next) > maxBeginnings {
		return list, false
	}
	out := list
	if len(next) != 1 {
		out = make([]beginning, 0, len(list)*len(next))
		for _, a := range list {
			for range next {
				out = append(out, slices.Clone(a))
			}
		}
	}
	for i := range out {
		if out[i] = append(out[i], next[i%len(next)]...); len(out[i]) > maxBeginning {
			out[i], whole = out[i][:maxBeginning], false
		}
	}
	return out, whole
}

// longest is how long a match of an expression can be, in bytes, at most; maxMatch where there is no such length.
func longest(re *syntax.Regexp) int {
	n := 0
	switch re.Op {
	case syntax.OpLiteral:
		n = len(string(re.Rune)) + strings.Count(strings.ToLower(string(re.Rune)), "k")*2 + strings.Count(strings.ToLower(string(re.Rune)), "s")
	case syntax.OpCharClass:
		n = 1
		if last := len(re.Rune) - 1; last >= 0 && re.Rune[last] >= utf8.RuneSelf {
			n = utf8.UTFMax
		}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		n = utf8.UTFMax
	case syntax.OpCapture, syntax.OpQuest:
		n = longest(re.Sub[0])
	case syntax.OpStar, syntax.OpPlus:
		n = maxMatch
	case syntax.OpRepeat:
		if n = maxMatch; re.Max >= 0 {
			n = min(longest(re.Sub[0])*re.Max, maxMatch)
		}
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			n += longest(sub)
		}
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			n = max(n, longest(sub))
		}
	}
	return min(n, maxMatch)
}

// runsOn reports whether an expression goes on over anything, to find how it ends.
func runsOn(re *syntax.Regexp) bool {
	if re.Op == syntax.OpStar || re.Op == syntax.OpPlus || re.Op == syntax.OpRepeat && re.Max < 0 {
		if op := re.Sub[0].Op; op == syntax.OpAnyChar || op == syntax.OpAnyCharNotNL {
			return true
		}
	}
	return slices.ContainsFunc(re.Sub, runsOn)
}

// within takes from an expression what matches at the beginning of a text alone, and reports whether there was any.
func within(re *syntax.Regexp) bool {
	if re.Op == syntax.OpBeginText {
		re.Op = syntax.OpNoMatch
		return true
	}
	found := false
	for _, sub := range re.Sub {
		found = within(sub) || found
	}
	return found
}

// beginsWord reports whether an expression begins with \b.
func beginsWord(re *syntax.Regexp) bool {
	for re.Op == syntax.OpConcat || re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	return re.Op == syntax.OpWordBoundary
}

// assignedTail is how most public shapes go on behind a name: what is between it and the value.
const assignedTail = `(?:[ \t\w.-]{0,20})[\s'"]{0,3}(?:=|>|:{1,3}=|\|\||:|=>|\?=|,)[\x60'"\s=]{0,5}`

// isAssigned reports whether a text may be what assignedTail says, and a value.
func isAssigned(text string) bool {
	i := 0
	for i < len(text) && i < 24 && tailBytes[text[i]]&tailGap != 0 {
		i++
	}
	if i == len(text) || tailBytes[text[i]]&tailSign == 0 {
		return false
	}
	for end := min(i+12, len(text)); i < end && tailBytes[text[i]]&(tailSign|tailQuote) != 0; {
		i++
	}
	from := i
	for i < len(text) && i-from < 6 && text[i] > ' ' && (text[i] == '=' || tailBytes[text[i]]&tailQuote == 0) {
		i++
	}
	return i-from == 6
}

const (
	tailGap = 1 << iota
	tailSign
	tailQuote
)

var tailBytes = func() (t [256]byte) {
	for c := range 256 {
		if b := byte(c); nameByte(b) || strings.IndexByte(" \t\n\r\f'\"", b) >= 0 {
			t[c] |= tailGap
		}
	}
	for _, c := range []byte("=>:|?,") {
		t[c] |= tailSign
	}
	for _, c := range []byte("`'\"= \t\n\r\f") {
		t[c] |= tailQuote
	}
	return t
}()
