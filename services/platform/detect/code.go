package detect

import (
	"strings"
)

// code looks at a number that may be a town's: ", CA 90210", or where one is named.
func (s *scan) code(from, to int) {
	if n := to - from; n < 4 || n > 6 || from < 5 || is(s.at(to), isWord) || s.at(to) == '.' && is(s.at(to+1), isDigit) {
		return
	}
	if end := s.zip(from); end > 0 && s.text[from-1] == ' ' {
		begin := from - 1
		for begin > 0 && from-begin < 5 && is(s.text[begin-1], isUpper) {
			begin--
		}
		state := s.text[begin : from-1]
		if s.words.States[state] && begin > 1 && (s.text[begin-1] == '\n' || s.text[begin-1] == ' ' && (s.text[begin-2] == ',' || is(s.text[begin-2], isLower) && !s.words.StateWords[state])) {
			s.add(begin, end, Address, 70, "a state, and a town's number")
			return
		}
	}
	end := to
	if s.at(end) == '-' && is(s.at(end+1), isDigit) {
		if end = s.zip(from); end == to || end == 0 {
			return // 2026-11
		}
	}
	if begin := s.townLine(from, end); begin < from {
		s.add(begin, end, Address, 65, "a town and its number in a line of their own, under an address or a name")
		return
	}
	switch {
	case s.near(from, 24, &codeWords):
	case to-from == 5 && s.inLine(from, 60, &whereWords) && s.lineEnds(end) && s.prose(from):
	case to-from == 5 && s.behind(end, 24, &codeWords) && s.prose(from):
	default:
		return
	}
	s.add(from, end, Address, 60, "a town's number is named beside it")
}

// townLine is where a line begins that has a town's name, its number from one place to another, and nothing else, when the lines above it have
// somebody's address or name; the place of the number otherwise.
func (s *scan) townLine(from, end int) int {
	const reach, above = 48, 64
	begin := strings.LastIndexByte(s.text[max(0, from-reach):from], '\n')
	if c := s.at(end); begin < 0 || c != 0 && c != '\n' {
		return from
	}
	line := max(0, from-reach) + begin + 1
	for begin = line; begin < from && strings.IndexByte(" ,>|\t", s.text[begin]) >= 0; begin++ {
	}
	if !s.capitalAt(begin) {
		return from
	}
	for i := begin; i < from; i++ {
		if c := s.text[i]; !is(c, isLower|isUpper) && strings.IndexByte(" ,.-'()", c) < 0 {
			return from
		}
	}
	for i := len(s.spans) - 1; i >= max(0, len(s.spans)-3); i-- {
		if o := s.spans[i]; (o.Type == Address || o.Type == Person) && o.To >= line-above && o.To <= line {
			return begin
		}
	}
	return from
}

// behind reports whether one of some words stands in the n bytes behind a place, on the same line.
func (s *scan) behind(to, n int, words *wordList) bool {
	after, _, _ := strings.Cut(s.text[to:min(len(s.text), to+n)], "\n")
	return hasWord(after, words)
}

// whereWords speak of a place, which a town's number may name.
var whereWords = listOf(
	"live", "lives", "living", "area", "weather", "store", "stores", "branch", "office", "offices", "nearest", "near", "city", "town", "address", "delivery", "deliver", "ship*",
	"moved", "moving", "located", "location", "neighborhood", "neighbourhood", "restaurant*", "hotel*", "doctor*", "dentist*", "school*", "house", "apartment*", "region", "county",
)

var codeWords = listOf("zip", "zipcode", "postal", "postcode", "plz", "postleitzahl", "cap", "postnummer")
