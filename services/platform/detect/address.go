package detect

import "strings"

// longStreets are how the words of some languages end that name a street.
var longStreets = []string{
	"straße", "strasse", "str", "gasse", "allee", "platz", "weg", "ufer", "damm", "straat", "laan", "plein", "gracht", "kade", "dreef", "singel", "gatan", "vägen", "gränd",
	"vej", "gade", "veien", "gata", "katu", "tie", "kuja", "utca", "útja",
}

// place looks at a word with a capital that may be a street's name, or begin one, with a number behind it. It reports whether it took it.
func (s *scan) place(w capitalised) bool {
	name := s.text[w.from:w.to]
	switch {
	case w.flags&road != 0:
		at := s.roadWords(w.to)
		if !is(s.at(at-1), isLower) {
			return false
		}
		if to := s.houseNumber(at); at > w.to && to > 0 {
			s.take(w.from, to, 75, "a street's name, and a number")
			return true
		}
	case name == "PO" || name == "P":
		if to := s.box(w.from); to > 0 {
			s.take(w.from, to, 85, "a post office box")
			return true
		}
	case len(name) > 5:
		for _, end := range longStreets {
			if !strings.HasSuffix(name, end) || len(name) < len(end)+3 {
				continue
			}
			if end == "str" && s.at(w.to) != '.' {
				break
			}
			at := w.to
			if s.at(at) == '.' {
				at++
			}
			if to := s.houseNumber(at); to > 0 && !w.known {
				s.take(w.from, to, 75, "a street's name, and a number")
				return true
			}
			break
		}
	}
	return false
}

// take adds an address with what follows it.
func (s *scan) take(from, to, confidence int, why string) {
	to = s.town(s.unit(to))
	s.namesTo, s.numbersTo = to, to
	s.add(from, to, Address, confidence, why)
}

// roadWords returns where the words end that name a street behind Rue, Via, Calle.
func (s *scan) roadWords(at int) int {
	for range 5 {
		if s.at(at) != ' ' || !is(s.at(at+1), isLower|isUpper) {
			break
		}
		end := at + 1
		for end < len(s.text) && end-at < maxNameWord && (is(s.text[end], isLower|isUpper) || s.text[end] == '\'' || s.text[end] == '-' || s.text[end] == '.') {
			end++
		}
		if end-at > 5 && is(s.text[at+1], isLower) {
			break
		}
		at = end
	}
	return at
}

// houseNumber returns where a house's number ends that may stand behind a place, or 0.
func (s *scan) houseNumber(at int) int {
	if s.at(at) == ',' {
		at++
	}
	if s.at(at) != ' ' {
		return 0
	}
	end := at + 1
	for end < len(s.text) && end-at <= 5 && is(s.text[end], isDigit) {
		end++
	}
	if end == at+1 || end-at > 5 {
		return 0
	}
	if is(s.at(end), isLower|isUpper) && !is(s.at(end+1), isWord) {
		end++
	}
	if is(s.at(end), isWord) || s.at(end) == '.' && is(s.at(end+1), isDigit) || s.at(end) == ':' {
		return 0
	}
	return end
}

// box returns where "P.O. Box 12" ends.
func (s *scan) box(from int) int {
	at := from
	for _, form := range []string{"P.O. Box ", "P.O.Box ", "PO Box ", "P O Box ", "P.O. BOX ", "PO BOX "} {
		if strings.HasPrefix(s.text[from:], form) {
			at = from + len(form)
			break
		}
	}
	end := at
	for end < len(s.text) && end-at < 8 && is(s.text[end], isDigit) {
		end++
	}
	if at == from || end == at {
		return 0
	}
	return end
}

// street looks at a number that may be a house's, with a street's name behind it: 12 Long Lane.
func (s *scan) street(from, to int) {
	if to-from > 6 || s.at(from-1) == '.' || s.at(from-1) == '-' || s.at(from-1) == ':' || s.at(from-1) == '/' || s.at(from-1) == '=' {
		s.code(from, to)
		return
	}
	at := to
	if is(s.at(at), isLower|isUpper) && s.at(at+1) == ' ' {
		at++
	}
	if s.at(at) == ',' {
		at++
	}
	if s.at(at) != ' ' {
		s.code(from, to)
		return
	}
	at++
	if s.frenchStreet(from, at) {
		return
	}
	last, seen := 0, 0
	for range 6 {
		if kinds[s.at(at)] != kindUpper && !is(s.at(at), isDigit) {
			break
		}
		end := at
		for end < len(s.text) && end-at < maxNameWord && (is(s.text[end], isWord) && s.text[end] != '_' || s.text[end] == '\'' || s.text[end] == '-') {
			end++
		}
		flags := lexicon()[s.text[at:end]]
		if flags&street != 0 && seen > 0 {
			last = end
		}
		if is(s.text[at], isDigit) && (end-at < 3 || !is(s.text[end-1], isLower)) {
			break // 5th, but no number
		}
		seen++
		if s.at(end) == '.' {
			if last == end {
				last++
			}
			end++
		}
		if s.at(end) != ' ' {
			break
		}
		at = end + 1
	}
	if last > 0 {
		s.take(from, last, 85, "a number, and a street's name")
		return
	}
	s.code(from, to)
}

var frenchRoads = []string{"rue ", "avenue ", "boulevard ", "chemin ", "allée ", "impasse ", "place ", "quai ", "route ", "square ", "cours "}

// frenchStreet looks for "rue de Rivoli" behind a number.
func (s *scan) frenchStreet(from, at int) bool {
	for _, r := range frenchRoads {
		if len(s.text)-at > len(r) && s.text[at]|0x20 == r[0] && strings.EqualFold(s.text[at:at+len(r)], r) {
			end := s.roadWords(at + len(r) - 1)
			if end <= at+len(r) || !strings.ContainsAny(s.text[at+len(r):end], "ABCDEFGHIJKLMNOPQRSTUVWXYZ") && kinds[s.at(at+len(r))] != kindUpper {
				return false
			}
			s.take(from, end, 75, "a number, and a street's name")
			return true
		}
	}
	return false
}

// unit returns where ", Apt 4" ends that may stand at a place, or the place.
func (s *scan) unit(to int) int {
	at := to
	if s.at(at) == ',' {
		at++
	}
	if s.at(at) != ' ' {
		return to
	}
	at++
	for _, w := range []string{"Apt", "Apartment", "Suite", "Ste", "Unit", "Floor", "Fl", "Room", "Rm", "Bldg", "#"} {
		rest, ok := strings.CutPrefix(s.text[at:min(len(s.text), at+24)], w)
		if !ok {
			continue
		}
		rest = strings.TrimLeft(rest, ". ")
		end := min(len(s.text), at+24) - len(rest)
		from := end
		for end < len(s.text) && end-from < 8 && is(s.text[end], isWord) {
			end++
		}
		if end > from {
			return end
		}
	}
	return to
}

var states = wordSet(`AL AK AZ AR CA CO CT DE FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY
	DC PR GU VI AB BC MB NB NL NS ON PE QC SK NSW VIC QLD TAS ACT NT`)

// town returns where ", Springfield, IL 62704" ends that may follow a street at a place, or the place.
func (s *scan) town(to int) int {
	at := to
	for s.at(at) == ',' || s.at(at) == ' ' || s.at(at) == '\n' {
		if at++; at-to > 2 {
			return to
		}
	}
	if at == to {
		return to
	}
	end := at
	for words := 0; words < 4 && kinds[s.at(end)] == kindUpper; words++ {
		w := end
		for end < len(s.text) && end-w < maxNameWord && (is(s.text[end], isLower|isUpper) || s.text[end] == '-' || s.text[end] == '.') {
			end++
		}
		if states[s.text[w:end]] && words > 0 {
			if code := s.postcode(end); code > 0 {
				return code
			}
			return end
		}
		if s.at(end) == ',' {
			end++
		}
		if s.at(end) != ' ' {
			break
		}
		end++
	}
	return to
}

// postcode returns where five digits end, or five and four, that may stand behind a place; 0 where there are none.
func (s *scan) postcode(at int) int {
	if s.at(at) == ',' {
		at++
	}
	if s.at(at) != ' ' {
		return 0
	}
	at++
	end := at
	for end < len(s.text) && end-at < 6 && is(s.text[end], isDigit) {
		end++
	}
	if n := end - at; n != 5 && n != 4 {
		return 0
	}
	if s.at(end) == '-' && is(s.at(end+1), isDigit) {
		for end++; end < len(s.text) && end-at < 11 && is(s.text[end], isDigit); {
			end++
		}
	}
	if is(s.at(end), isWord) {
		return 0
	}
	return end
}

var codeWords = []string{"zip", "zipcode", "postal", "postcode"}

// code looks at a number that may be a town's: ", CA 90210", or where one is named.
func (s *scan) code(from, to int) {
	if n := to - from; n < 4 || n > 6 || from < 5 || is(s.at(to), isWord) || s.at(to) == '.' && is(s.at(to+1), isDigit) {
		return
	}
	if end := s.postcode(from - 1); end > 0 && s.text[from-1] == ' ' {
		begin := from - 1
		for begin > 0 && from-begin < 5 && is(s.text[begin-1], isUpper) {
			begin--
		}
		if states[s.text[begin:from-1]] && (strings.HasSuffix(s.text[:begin], ", ") && is(s.at(begin-3), isLower)) {
			s.add(begin, end, Address, 70, "a state, and a town's number")
			return
		}
	}
	if s.near(from, 24, codeWords) {
		end := to
		if s.at(end) == '-' && is(s.at(end+1), isDigit) {
			for end++; end < len(s.text) && is(s.text[end], isDigit) && end-to < 6; {
				end++
			}
		}
		s.add(from, end, Address, 60, "a town's number is named before it")
	}
}
