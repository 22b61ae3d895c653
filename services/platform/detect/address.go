package detect

import (
	"strings"

	"durward.internal/services/platform/detect/lexicon"
)

// An address is a street with a house's number, in one of the orders that countries have, and what follows it: a flat, a town, a state,
// a code, a country. What alone is too little, a word with a capital and a number, counts where the words before it or the
// lines behind it say that it is an address.

const (
	whyStreet    = "a street's name, and a number"
	whyNumber    = "a number, and a street's name"
	whyTown      = "a name and a number, and a town behind them"
	whyAnnounced = "a name and a number, and the words before them announce an address"
)

// addressWords announce an address.
var addressWords = listOf(
	"address*", "live", "lives", "lived", "living", "reside*", "residence", "located", "ship", "shipped", "shipping", "deliver*", "mailing", "moved", "moving", "relocate*",
	"adresse", "wohnt", "wohnhaft", "indirizzo", "dirección", "direccion",
)

// minWord is how long a word of a street's name has to be to be told by how it ends.
const minWord = 6

// compound reports whether a word names a street by how it ends: Hauptstraße, Kerkstraat, Storgatan.
func (s *scan) compound(word string) bool {
	if len(word) < minWord {
		return false
	}
	for _, end := range s.words.StreetEnds[word[len(word)-1]] {
		if len(word) >= len(end)+3 && strings.HasSuffix(word, end) {
			return !s.words.NotStreets[word] && s.words.Of(word)&(lexicon.NotName|lexicon.Organ) == 0 &&
				(strings.IndexFunc(word[1:], func(r rune) bool { return r >= 'A' && r <= 'Z' }) < 0 || strings.Contains(word, "-"))
		}
	}
	return false
}

// token is where a word of a street's or a town's name ends that begins at a place, with the point of an abbreviation; from where there is none.
func (s *scan) token(from int) int {
	to := from
	for to < len(s.text) && to-from < maxNameWord+8 {
		c := s.text[to]
		if is(c, isLower|isUpper) || to > from && (c == '\'' || c == '-' || is(c, isDigit) && is(s.text[from], isDigit)) && is(s.at(to+1), isWord) || to == from && is(c, isDigit) {
			to++
			continue
		}
		if c == 0xe2 && strings.HasPrefix(s.text[to:], "’") && to > from {
			to += len("’")
			continue
		}
		break
	}
	if to > from && (to-from <= 6 || strings.HasSuffix(s.text[from:to], "str")) && s.at(to) == '.' && (s.at(to+1) == ' ' || s.at(to+1) == ',') && !is(s.text[from], isDigit) {
		to++
	}
	return to
}

// capitalAt reports whether a word begins at a place with a capital.
func (s *scan) capitalAt(i int) bool {
	c := s.at(i)
	return is(c, isUpper) || kinds[c] == kindUpper && i+1 < len(s.text) && upperRune(c, s.text[i+1])
}

// upperRune reports whether two bytes are a capital of the Latin script beyond ASCII.
func upperRune(a, b byte) bool {
	switch a {
	case 0xc3:
		return b < 0x9f
	case 0xc4, 0xc5:
		return b&1 == 0 || a == 0xc5 && (b == 0xb9 || b == 0xbb || b == 0xbd) || a == 0xc4 && b >= 0xb9 && b&1 == 1
	}
	return b&1 == 0
}

// place looks at a word with a capital that may begin an address: a street's name, a number behind it; or a box. It reports whether it
// took one.
func (s *scan) place(w capitalised) bool {
	if !s.digitAhead(w.to) && !s.atCorner(w.from) {
		return false
	}
	name := s.text[w.from:w.to]
	if w.to-w.from > 5 && !is(s.text[w.from+1], isLower) && !is(s.text[w.from+2], isLower) && s.text[w.from+1] != '\'' {
		return false // a word in capitals
	}
	switch name {
	case "PO", "P", "PSC", "Unit", "USS", "USNS", "USNV", "USCGC":
		if to := s.box(w.from); to > 0 {
			s.take(w.from, to, 85, "a post office box")
			return true
		}
	}
	if from, to := s.corner(w.from); to > 0 {
		s.take(from, to, 70, "two streets that meet")
		return true
	}
	if c := s.at(w.from - 1); s.words.FlatOnly.Has(name) && (w.from == 0 || c == '\n' || s.at(w.from-2) == ',' || s.at(w.from-2) == '\n') {
		if end, _ := s.flat(w.from); end > 0 && s.lineEnds(end) {
			s.take(w.from, end, 60, "a flat or a suite in a line of its own")
			return true
		}
	}
	from, road := w.from, s.words.Roads.Has(strings.TrimSuffix(name, "."))
	for before, words := w.from, 0; !road && words < 4; words++ {
		at := s.wordBefore(before)
		if c := s.at(before - 2); s.at(before-1) == '\'' && (c == 'l' || c == 'd') && !is(s.at(before-3), isWord) {
			at = before - 2
		}
		word := strings.TrimRight(s.text[at:before], ". ")
		if at == before || before-at <= 2 && !s.words.Joins[word] {
			break
		}
		if before = at; s.words.Roads.Has(word) {
			from, road = before, true
		} else if !s.words.Joins[word] {
			break
		}
	}
	at, known, words := w.from, road, 0
	for ; words < 6; words++ {
		end := s.token(at)
		if end == at || is(s.text[at], isDigit) {
			break
		}
		word := s.text[at:end]
		upper := s.capitalAt(at)
		switch {
		case words == 0 && !upper:
			return false
		case words > 0 && s.words.StreetWords[strings.TrimSuffix(word, ".")], s.compound(word), strings.HasSuffix(word, "str.") && len(word) > 6:
			known = true
		case !upper && !s.words.Joins[word]:
			end = at
		}
		if end == at {
			break
		}
		if at = end; s.at(at) == ' ' {
			at++
		}
	}
	at = s.trimBack(at)
	to := s.houseNumber(at)
	if to == 0 || !known && s.at(at) == ',' {
		return false
	}
	switch {
	case !s.plainWords(w.from, at):
		return false
	case known:
		s.take(from, to, 75, whyStreet)
		return true
	case w.flags&lexicon.NotName != 0 || words > 4:
		return false
	case s.near(from, 24, &addressWords) && s.prose(from) && w.to-w.from > 2:
		s.take(from, to, 60, whyAnnounced)
		return true
	}
	if end, sure := s.block(to); sure && end > to {
		s.take(from, to, 60, whyTown)
		return true
	}
	if words <= 2 && w.unknown() && s.simple(w) && to-at <= 4 && s.near(from, 6, &toPlace) && s.lineEnds(to) && s.prose(from) && s.isPersonal {
		s.take(from, to, 50, "a word that is none of English and a number, in a sentence about people")
		return true
	}
	return false
}

// toPlace are words before a place.
var toPlace = listOf("at", "to", "in", "near", "from", "on", "is")

// trimBack is where what comes before a place ends, without its space.
func (s *scan) trimBack(at int) int {
	for at > 0 && s.text[at-1] == ' ' {
		at--
	}
	return at
}

// wordBefore is where the word in small letters begins that stands before a place: "ul. ", "via "; the place where there is none.
func (s *scan) wordBefore(from int) int {
	end := from
	if s.at(end-1) == ' ' {
		end--
	}
	if end < from && s.at(end-1) == '.' {
		end--
	}
	begin := end
	for begin > 0 && end-begin < 12 && is(s.text[begin-1], isLower) {
		begin--
	}
	if end == from || begin == end || is(s.at(begin-1), isWord) {
		return from
	}
	return begin
}

// take adds an address with what follows it.
func (s *scan) take(from, to, confidence int, why string) {
	// A flat's number may stand before the house's.
	if s.at(from-1) == ' ' && is(s.at(from-2), isDigit) {
		begin := from - 1
		for begin > 0 && from-begin <= 7 && is(s.text[begin-1], isDigit) {
			begin--
		}
		if c := s.at(begin - 1); from-begin <= 6 && !is(c, isWord) && !noHouse[c] && c != ',' {
			from = begin
		}
	}
	if s.at(to) == '.' && s.at(to+1) == ' ' {
		if _, town := s.postcode(to + 2); town {
			to++ // utca 12. 1053 Budapest
		}
	}
	to, _ = s.block(to)
	s.namesTo, s.numbersTo = to, to
	s.add(from, to, Address, confidence, why)
}

// houseNumber returns where a house's number ends that may stand behind a place, or 0: " 12", ", 12b", " nº 12", " 12/3", " 12-14".
func (s *scan) houseNumber(at int) int {
	if s.at(at) == ',' {
		at++
	}
	if s.at(at) != ' ' {
		return 0
	}
	switch at++; s.at(at) {
	case 'n', 'N', '#', 'k', 'B', 'b':
		for _, mark := range [...]string{"nº ", "n° ", "nº", "n°", "n. ", "Nr. ", "nr. ", "No. ", "no. ", "No: ", "No:", "No ", "#", "km ", "Bloc ", "bl. "} {
			if strings.HasPrefix(s.text[at:], mark) {
				at += len(mark)
				break
			}
		}
	}
	return s.number(at)
}

// number returns where a house's number ends that begins at a place, or 0. It may be none: s/n.
func (s *scan) number(at int) int {
	if strings.HasPrefix(s.text[at:], "s/n") && !is(s.at(at+3), isWord) {
		return at + 3
	}
	end := at
	for end < len(s.text) && end-at <= 5 && is(s.text[end], isDigit) {
		end++
	}
	if end == at || end-at > 5 {
		return 0
	}
	if is(s.at(end), isLower|isUpper) && !is(s.at(end+1), isWord) {
		end++
	} else if s.at(end) == ' ' && is(s.at(end+1), isLower|isUpper) && s.at(end+1) < 0x80 && s.at(end+1) != 'a' && s.at(end+1) != 'I' && !is(s.at(end+2), isWord) && s.at(end+2) != '.' {
		end += 2 // 12 B
	}
	if c := s.at(end); (c == '/' || c == '-') && is(s.at(end+1), isDigit) {
		more := end + 1
		for more < len(s.text) && more-end < 5 && is(s.text[more], isDigit) {
			more++
		}
		if c := s.at(more); is(c, isLower|isUpper) && !is(s.at(more+1), isWord) {
			more++
		}
		if c := s.at(more); c != '/' && c != '-' && !is(c, isWord) {
			end = more
		} else {
			return 0 // a date
		}
	}
	if c := s.at(end); is(c, isWord) || (c == '.' || c == ',' || c == ':') && is(s.at(end+1), isDigit) || c == '%' || c == '(' {
		return 0
	}
	return end
}

// noHouse are the bytes behind which a number is no house's.
var noHouse = anyOf(".-:/=_@")

// street looks at a number that may be a house's, with a street's name behind it: 12 Long Lane, 12 rue de Rivoli.
func (s *scan) street(from, to int) {
	if to-from > 6 || noHouse[s.at(from-1)] {
		s.code(from, to)
		return
	}
	at := to
	if c := s.at(at); (c == '-' || c == '/') && is(s.at(at+1), isDigit) {
		for at++; at-to < 6 && is(s.at(at), isDigit); {
			at++
		}
	}
	if is(s.at(at), isLower|isUpper) && s.at(at+1) == ' ' {
		at++
	}
	for _, more := range []string{" bis", " ter"} {
		if s.at(at+1) == more[1] && strings.HasPrefix(s.text[at:], more) && !is(s.at(at+4), isWord) {
			at += 4
		}
	}
	if s.at(at) == ',' {
		at++
	}
	if s.at(at) != ' ' {
		s.code(from, to)
		return
	}
	at++
	if !s.streetBehind(from, at) {
		s.code(from, to)
	}
}

// streetBehind looks at what follows a house's number, and reports whether it is a street.
func (s *scan) streetBehind(from, at int) bool {
	begin := at
	strong, weak, last, capitals := 0, 0, 0, 0
	lead := false
	for words := range 7 {
		end := s.token(at)
		if end == at {
			break
		}
		word := strings.TrimSuffix(s.text[at:end], ".")
		upper := s.capitalAt(at)
		if words > 0 && s.words.FlatWords.Has(word) && s.words.Of(word)&(lexicon.Street|lexicon.Suffix) == 0 {
			if stop, _ := s.flat(at); stop > 0 {
				break
			}
		}
		if words == 0 && end-at > 1 && s.words.Roads.Has(word) {
			lead = true
		} else if !upper && !is(s.text[at], isDigit) {
			if words == 0 || !s.words.Joins[word] && (!lead || words > 3) {
				break
			}
		} else if is(s.text[at], isDigit) {
			if end-at < 3 || !is(s.text[end-1], isLower) {
				break // 5th, but no number
			}
			last = end
		} else {
			flags := s.words.Of(word)
			if words > 0 && capitals > 0 || words > 0 && last > 0 {
				switch {
				case flags&lexicon.Street != 0:
					strong = end
				case flags&lexicon.Suffix != 0:
					weak = end
				case s.compound(word), s.words.StreetWords[word]:
					strong = end
				}
			} else if s.compound(word) {
				strong = end
			}
			if flags&lexicon.NotName != 0 && flags&(lexicon.Street|lexicon.Suffix) == 0 && strong == 0 && words == 0 && !s.words.Compass[word] {
				return false
			}
			capitals++
			last = end
		}
		if s.at(end) != ' ' {
			break
		}
		at = end + 1
	}
	switch {
	case lead && capitals > 0 && last > begin:
		s.take(from, last, 75, whyNumber)
		return true
	case strong > 0:
		end := s.point(strong)
		if lastWord := s.lastWord(strong); s.compound(lastWord) || s.words.StreetWords[lastWord] && s.words.Of(lastWord)&lexicon.Street == 0 {
			end = max(end, s.houseNumber(strong)) // 3, Kerkstraat 12
		}
		s.take(from, end, 85, whyNumber)
		return true
	case last == 0 || capitals == 0:
		return false
	}
	announced := s.near(from, 40, &addressWords)
	if end := s.houseNumber(last); end > 0 && capitals <= 3 && !s.productBefore(from) && s.lineEnds(end) && s.plainWords(begin, last) {
		// 12 Furumyra 5: the line of a letter, when a town's follows.
		if next, sign := s.separator(end); sign == '\n' || sign == ',' {
			if stop := s.townWords(next); stop > 0 && (sign == '\n' && s.lineEnds(stop) || announced) {
				s.take(from, end, 60, whyTown)
				return true
			}
		}
		if stop, sure := s.block(end); sure && stop > end {
			s.take(from, end, 60, whyTown)
			return true
		}
		if announced && s.prose(from) {
			s.take(from, end, 60, whyAnnounced)
			return true
		}
	}
	to := last
	if weak > 0 {
		to = weak
	}
	if !s.plainWords(begin, to) || s.productBefore(from) {
		return false
	}
	if end, sure := s.block(to); sure && end > to {
		s.take(from, to, 70, whyTown)
		return true
	}
	switch {
	case announced && s.prose(from):
		s.take(from, to, 60, whyAnnounced)
		return true
	case weak > 0 && weak == last && (s.lineEnds(weak) || s.prose(from)):
		s.take(from, s.point(weak), 60, whyNumber)
		return true
	}
	return false
}

// lastWord is the word that ends at a place.
func (s *scan) lastWord(end int) string {
	begin := end
	for begin > 0 && end-begin < maxNameWord && is(s.text[begin-1], isLower|isUpper) {
		begin--
	}
	return s.text[begin:end]
}

// productBefore reports whether a word that is no name stands right before a place: Windows 11 Pro.
func (s *scan) productBefore(from int) bool {
	if s.at(from-1) != ' ' || !is(s.at(from-2), isWord) {
		return false
	}
	begin := from - 1
	for begin > 0 && from-begin < maxNameWord && is(s.text[begin-1], isWord) {
		begin--
	}
	return s.words.Of(s.text[begin:from-1])&lexicon.NotName != 0
}

// plainWords reports whether each word has small letters, as names have: API Key has none.
func (s *scan) plainWords(from, to int) bool {
	for at := from; at < to; {
		end := s.token(at)
		if end == at {
			at++
			continue
		}
		if end-at > 1 && s.capitalAt(at) && is(s.text[at+1], isUpper) {
			return false
		}
		at = end
	}
	return true
}

// point is where an abbreviation ends, with its point.
func (s *scan) point(to int) int {
	if s.at(to) == '.' && (s.at(to+1) == ',' || s.at(to+1) == ' ' && kinds[s.at(to+2)] == kindUpper) {
		return to + 1
	}
	return to
}

// lineEnds reports whether nothing follows that belongs to the same line's part.
func (s *scan) lineEnds(at int) bool {
	if s.at(at) == ' ' && strings.IndexByte("])}|\"", s.at(at+1)) >= 0 {
		return true
	}
	c := s.at(at)
	return c == 0 || c == '\n' || c == ']' || c == ')' || c == '"' || c == '\\' || c == '?' || c == ',' || c == '.' && (s.at(at+1) == 0 || s.at(at+1) == '\n' || s.at(at+1) == ' ')
}
