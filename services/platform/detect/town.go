package detect

import (
	"strings"

	"durward.internal/services/platform/detect/lexicon"
)

// maxParts is how many parts of an address are looked at behind its street.
const maxParts = 7

// block returns where the rest of an address ends that follows a street at a place, or the place; sure: it holds a code, a state or a
// country, so that no more is needed to say that it is an address. A town's name counts when it stands between commas or in a
// line of its own, and what follows says the same, or when it follows its code.
func (s *scan) block(to int) (end int, sure bool) {
	end = to
	at := to
	open := 0 // parts that nothing has confirmed yet
	for range maxParts {
		next, sign := s.separator(at)
		if next == at {
			break
		}
		if stop, said := s.flat(next); stop > 0 {
			at, sure = stop, sure || said
			if open == 0 {
				end = stop
			}
			continue
		}
		if stop, town := s.postcode(next); stop > 0 && (sign != ' ' || open > 0 || town) {
			if town {
				if more := s.town(stop); more > 0 {
					if s.streetIn(stop, more) {
						break // 1600 Pennsylvania Avenue is another
					}
					stop = s.district(more)
				}
			} else if n := stop - next; n < 5 && open == 0 {
				break // four digits and nothing else
			}
			at, end, sure, open = stop, stop, true, 0
			continue
		}
		stop, state := s.region(next)
		if stop > 0 && (sign != ' ' || open > 0 || s.text[stop-1] <= 'Z') {
			if state && s.at(stop) == ' ' {
				if code := max(s.zip(stop+1), s.lettered(stop+1)); code > 0 {
					stop = code
				}
			}
			if sign != ' ' || stop-next > 3 || open > 0 {
				at, end, sure, open = stop, stop, true, 0
				continue
			}
		}
		if open > 0 { // São Paulo SP 01310-200
			n := 0
			for n <= 3 && is(s.at(next+n), isUpper) {
				n++
			}
			if n >= 2 && s.at(next+n) == ' ' {
				if code, _ := s.postcode(next + n + 1); code > 0 {
					at, end, sure, open = code, code, true, 0
					continue
				}
			}
		}
		stop = s.townWords(next)
		if stop == 0 || open >= 2 {
			break
		}
		at = stop
		if open++; s.lineEnds(stop) && (sign != '\n' && open == 1 || sign == '\n' && s.at(stop) != ',') {
			end = stop // a town, or a country in a language of its own
		}
	}
	return end, sure
}

// streetIn reports whether one of the words between two places names a street.
func (s *scan) streetIn(from, to int) bool {
	for at := from; at < to; {
		end := s.token(at)
		if end == at {
			at++
			continue
		}
		if word := strings.TrimSuffix(s.text[at:end], "."); s.words.Of(word)&lexicon.Street != 0 || s.compound(word) {
			return true
		}
		at = end
	}
	return false
}

// district returns where what follows a town's name ends: Praha 1, København V, Roma RM.
func (s *scan) district(at int) int {
	if s.at(at) != ' ' {
		return at
	}
	end := at + 1
	for end-at <= 2 && is(s.at(end), isDigit|isUpper) {
		end++
	}
	if n := end - at - 1; n == 0 || is(s.at(end), isWord) || s.at(end) == '.' && is(s.at(end+1), isDigit) || s.at(end) == ':' || s.text[at+1:end] == "I" || s.at(end) == '\'' {
		return at
	}
	return end
}

// separator returns where the next part of an address begins behind a place, and what stands between: a line's end, a comma, a space.
func (s *scan) separator(at int) (next int, sign byte) {
	next = at
	for next < len(s.text) && next-at < 8 {
		switch c := s.text[next]; {
		case c == '\n':
			if sign == '\n' {
				return at, 0 // an empty line
			}
			sign = '\n'
		case c == ',' && sign == 0, c == ';' && sign == 0:
			sign = ','
		case c == '\\' && s.at(next+1) == 'n' && sign != '\n': // a line's end within a string of JSON
			sign = '\n'
			next++
		case sign == '\n' && (c == '>' || c == '|' || c == '\t' || c == ','): // an answer's mark
		case c == ' ', c == '\r':
			if sign == 0 && s.at(next+1) == '-' && s.at(next+2) == ' ' {
				sign, next = ',', next+2
			} else if sign == 0 {
				sign = ' '
			}
		default:
			return next, sign
		}
		next++
	}
	return next, sign
}

// flat returns where "Apt. 4" or "3. Stock" ends that may stand at a place, or 0; said: the words mean nothing else.
func (s *scan) flat(at int) (to int, said bool) {
	word := func(at int) (end int, word string) {
		end = s.token(at)
		return end, strings.TrimSuffix(s.text[at:end], ".")
	}
	if n := s.digitsAt(at); n > 0 && n <= 2 {
		end := at + n
		for _, sign := range [...]string{".", "º", "°", "ª", "e", "er", "ème"} {
			if strings.HasPrefix(s.text[end:], sign) {
				end += len(sign)
				break
			}
		}
		numbered := end > at+n
		if s.at(end) == ' ' {
			end++
		}
		stop, w := word(end)
		if stop == end || !s.words.FloorWords.Has(w) || len(w) == 1 && !numbered {
			return 0, false
		}
		for _, more := range []string{" achter", " voor"} {
			if strings.HasPrefix(s.text[stop:], more) {
				stop += len(more)
			}
		}
		if s.text[stop-1] == '.' {
			stop--
		}
		return stop, false
	}
	if s.at(at) == '#' {
		at++
	} else {
		end, w := word(at)
		if end == at || !s.words.FlatWords.Has(w) || s.at(end) != ' ' {
			return 0, false
		}
		at, said = end+1, s.words.FlatOnly.Has(w)
	}
	end := at
	for end < len(s.text) && end-at < 8 && (is(s.text[end], isWord) || s.text[end] == '-') {
		end++
	}
	for i := at; i < end; i++ {
		if is(s.text[i], isDigit) || end-at <= 2 && is(s.text[i], isUpper) {
			return end, said
		}
	}
	return 0, false
}

// digitsAt counts the digits at a place, up to ten.
func (s *scan) digitsAt(at int) int {
	n := 0
	for n < 10 && is(s.at(at+n), isDigit) {
		n++
	}
	return n
}

// zip returns where five digits end, or five and four, that begin at a place; 0 where there are none.
func (s *scan) zip(at int) int {
	n := s.digitsAt(at)
	end := at + n
	if n != 5 && n != 4 {
		return 0
	}
	if s.at(end) == '-' && s.digitsAt(end+1) == 4 {
		end += 5
	}
	if is(s.at(end), isWord) || s.at(end) == '.' && is(s.at(end+1), isDigit) {
		return 0
	}
	return end
}

// postcode returns where a town's code ends that begins at a place, or 0; town: the town's name stands behind it where it is so used.
func (s *scan) postcode(at int) (end int, town bool) {
	if is(s.at(at), isUpper) {
		// D-12345, LV-1010, SE-123 45
		for n := 1; n <= 2; n++ {
			if s.at(at+n) == '-' && s.digitsAt(at+n+1) >= 3 {
				end, _ = s.postcode(at + n + 1)
				return end, end > 0
			}
		}
		return s.lettered(at), false
	}
	n := s.digitsAt(at)
	end = at + n
	ends := func(end int) bool {
		return !is(s.at(end), isWord) && (s.at(end) != ' ' || !is(s.at(end+1), isDigit)) && (s.at(end) != '.' && s.at(end) != ':' && s.at(end) != '-' && s.at(end) != '/' || !is(s.at(end+1), isDigit))
	}
	switch sign := s.at(end); {
	case n == 4 && sign == ' ' && is(s.at(end+1), isUpper) && is(s.at(end+2), isUpper) && !is(s.at(end+3), isWord):
		return end + 3, true // the Netherlands
	case n == 3 && sign == ' ' && s.digitsAt(end+1) == 2 && ends(end+3):
		return end + 3, true // Sweden, Czechia, Slovakia, Greece
	case n == 3 && sign == ' ' && s.digitsAt(end+1) == 3 && ends(end+4):
		return end + 4, false // India
	case n == 2 && sign == '-' && s.digitsAt(end+1) == 3 && ends(end+4):
		return end + 4, true // Poland
	case n == 4 && sign == '-' && s.digitsAt(end+1) == 3 && ends(end+4):
		return end + 4, true // Portugal
	case n == 5 && sign == '-' && s.digitsAt(end+1) == 3 && ends(end+4):
		return end + 4, true // Brazil
	case n == 3 && sign == '-' && s.digitsAt(end+1) == 4 && ends(end+5):
		return end + 5, false // Japan
	case n == 5 && sign == '-' && s.digitsAt(end+1) == 4 && ends(end+5):
		return end + 5, false // the US
	case (n == 5 || n == 6) && ends(end):
		return end, true
	case n == 3 && sign == ' ' && ends(end) && s.townWords(end+1) > 0:
		return end, true // Iceland
	case n == 4 && ends(end):
		if s.at(end) == ' ' && s.townWords(end+1) > 0 {
			return end, true
		}
		return end, false
	}
	return 0, false
}

// lettered returns where a code of the United Kingdom, Canada or Ireland ends that begins at a place, or 0.
func (s *scan) lettered(at int) int {
	i := at
	for i-at < 2 && is(s.at(i), isUpper) {
		i++
	}
	letters := i - at
	if !is(s.at(i), isDigit) {
		return 0
	}
	if letters == 1 && is(s.at(i+1), isUpper) {
		j := i + 2 // K1A 0B1
		if s.at(j) == ' ' || s.at(j) == '-' {
			j++
		}
		if is(s.at(j), isDigit) && is(s.at(j+1), isUpper) && is(s.at(j+2), isDigit) && !is(s.at(j+3), isWord) {
			return j + 3
		}
	}
	i++
	if is(s.at(i), isDigit|isUpper) {
		i++
	}
	if s.at(i) != ' ' || !is(s.at(i+1), isDigit) || !is(s.at(i+2), isUpper) || !is(s.at(i+3), isUpper) || is(s.at(i+4), isWord) {
		return 0
	}
	return i + 4 // SW1A 1AA
}

// region returns where a state of the US, a province or a country ends that is named at a place, or 0; state: a code may follow.
func (s *scan) region(at int) (end int, state bool) {
	if !s.capitalAt(at) {
		return 0, false
	}
	for _, n := range []int{2, 3} {
		if end = at + n; end <= len(s.text) && !is(s.at(end), isWord) && s.words.States[s.text[at:end]] {
			return end, true
		}
	}
	longest := 0
	end = at
	for range 5 {
		to := s.token(end)
		if to == end {
			break
		}
		switch name := strings.TrimSuffix(s.text[at:to], "."); {
		case s.words.StateNames[name]:
			longest, state = to, true
		case s.words.Countries[name]:
			longest, state = to, false
		}
		if s.at(to) != ' ' {
			break
		}
		end = to + 1
	}
	if longest > 0 && s.text[longest-1] == '.' {
		longest--
	}
	return longest, state
}

// town returns where a town's name ends that may stand behind its code, or 0.
func (s *scan) town(at int) int {
	if s.at(at) == ',' {
		at++
	}
	if s.at(at) != ' ' {
		return 0
	}
	return s.townWords(at + 1)
}

// townWords returns where up to four words end that may be a town's name and begin at a place, or 0.
func (s *scan) townWords(at int) int {
	end := 0
	for words := 0; words < 4; words++ {
		to := s.token(at)
		if to == at {
			break
		}
		word := s.text[at:to]
		switch {
		case is(s.at(to), isDigit):
			return end // LE65 3AB
		case s.capitalAt(at):
			if s.words.States[word] && words > 0 {
				return end
			}
			// Posts want a town in capitals; shorter words in capitals are none.
			if len(word) > 1 && len(word) < 4 && is(word[1], isUpper) && word != "APO" && word != "FPO" && word != "DPO" && (words == 0 || !is(s.text[at-2], isUpper)) {
				return end
			}
			if flags := s.words.Of(strings.TrimSuffix(word, ".")); flags&lexicon.NotName != 0 && words == 0 && !s.words.Compass[word] && flags&lexicon.Suffix == 0 && !s.words.Towns[word] {
				return 0
			}
			if end = to; s.text[to-1] == '.' && (to-at > 4 || s.at(to) != ' ') {
				return to - 1
			}
		case words > 0 && s.words.Joins[word]:
		default:
			return end
		}
		if s.at(to) != ' ' {
			break
		}
		at = to + 1
	}
	return end
}
