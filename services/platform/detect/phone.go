package detect

import (
	"slices"
	"strings"
)

var (
	// phoneWords stand before a telephone's number; the strong ones mean nothing else.
	phoneWords  = listOf("phone*", "telephone*", "tel", "mobile", "cell", "cellphone", "fax", "dial", "sms", "whatsapp", "call", "called", "calling", "calls", "reach", "ring", "text", "contact", "number", "hotline", "landline")
	strongWords = listOf("phone*", "telephone*", "tel", "mobile", "cellphone", "fax", "sms", "whatsapp", "hotline", "landline")
	// labelWords stand behind one, or as the label of its line.
	labelWords = listOf(append(slices.Clone(strongWords.words), "office", "home", "work", "cell", "direct", "main")...)
)

// phone looks for a telephone's number (E.164, the North American plan, and national forms), and returns where it ends.
func (s *scan) phone(from int, q *sequence) int {
	if !s.free(from) && q.before != '(' || q.before == 0 && q.n > 1 && q.groups[0].len() == 1 && q.groups[1].len() == 1 {
		return 0
	}
	n, confidence, why := 0, 0, ""
	switch {
	case q.before == '+':
		n, confidence, why = s.international(q), 90, "a country's code and a number's length"
	case s.american(q) > 0:
		n = s.american(q)
		bare := n == 3 && q.before == 0 && s.same(q, n, " ")
		if confidence, why = 85, "the North American plan's areas and exchanges"; bare && !s.near(from, 60, &phoneWords) {
			return 0 // three numbers of a table
		}
	case s.trunk(q) > 0:
		n, confidence, why = s.trunk(q), 60, "a national number with its 0"
	}
	if n == 0 && s.national(from, q) {
		n, confidence, why = q.n, 60, "a form of a country's numbers, in a sentence"
	}
	if n == 0 {
		n = s.said(q)
		switch {
		case n == 0:
			return 0
		case s.behind(q.groups[n-1].to, 24, &labelWords): // 555 1234 (mobile)
		case n == 1 && s.labelled(from) && s.around(from, q.groups[0].to, 60, &strongWords): // a line of a card, beside another number
		case n > 1 && (from == 0 || s.text[from-1] == '\n') && s.around(from, q.groups[n-1].to, 60, &strongWords): // under a name, over another number
		case n == 1 && !s.inLine(from, 40, &strongWords), n > 1 && !s.inLine(from, 40, &phoneWords) && !s.near(from, 40, &strongWords):
			return 0
		}
		confidence, why = 70, "a number of a telephone's length, and one is named before it"
	}
	to := q.groups[n-1].to
	to = s.extension(to)
	if is(s.at(to), isWord) || s.at(to) == '%' || s.at(to) == ':' && is(s.at(to+1), isDigit) || n < q.n && s.between(q, n-1) == "-" {
		return 0
	}
	s.add(from, to, Phone, confidence, why)
	return to
}

// national reports whether a sequence has a form of a country's numbers, and what stands around it lets it be one: nothing in it looks like
// years or like a number in thousands, and it stands in a sentence or, in brackets, alone.
func (s *scan) national(from int, q *sequence) bool {
	if q.n < 2 || q.n > 5 || q.before == '+' || !s.ends(q, q.n) {
		return false
	}
	var form [5]byte
	thousands, years := true, true
	for i, g := range q.groups[:q.n] {
		if g.len() > 8 {
			return false
		}
		form[i] = '0' + byte(g.len())
		thousands = thousands && (i == 0 && g.len() <= 3 || g.len() == 3)
		years = years && g.len() == 4 && (s.text[g.from] == '1' || s.text[g.from] == '2')
		if i == 0 {
			continue
		}
		sign := s.between(q, i-1)
		if bracket := i == 1 && q.before == '(' && (sign == ") " || sign == ")" || sign == ")-"); !bracket && sign != " " && sign != "-" && sign != "." && (sign != "/" || i > 1) {
			return false
		}
		if i > 1 && sign != s.between(q, i-2) && (i > 2 || q.before != '(') && sign != " " && sign != "-" {
			return false
		}
	}
	trunk := s.text[q.groups[0].from] == '0'
	if trunk && !s.words.TrunkForms[string(form[:q.n])] || !trunk && !s.words.PlainForms[string(form[:q.n])] || years || form[0] == '4' && q.n == 3 && form[1] == '2' && form[2] == '2' {
		return false
	}
	said := s.near(from, 60, &phoneWords)
	to := q.groups[q.n-1].to
	switch {
	case s.between(q, 0) == "." && s.near(from, 12, &versionWords):
		return false
	case trunk && q.before == '(' && q.digits(q.n) >= 9:
		return true
	case !s.prose(from), !said && s.at(to) == ' ' && s.capitalAt(to+1), !said && s.at(from-1) == ' ' && !is(s.at(from-2), isLower) && s.at(from-2) != ':':
		return false
	case trunk:
		return q.digits(q.n) >= 9 || said || s.isPersonal
	case thousands && s.between(q, 0) != "-" || s.between(q, 0) == ".":
		return said || s.lineEnds(to) && q.digits(q.n) >= 8
	case q.n == 2:
		return said || s.isPersonal
	}
	return said || s.isPersonal || q.n >= 4 || q.before == '('
}

// labelled reports whether nothing but a telephone's label stands before a place on its line: "Work: ".
func (s *scan) labelled(from int) bool {
	const reach = 24
	before := s.text[max(0, from-reach):from]
	line := strings.LastIndexByte(before, '\n') + 1
	label, ok := strings.CutSuffix(strings.TrimRight(before[line:], " "), ":")
	return ok && (line > 0 || from <= reach) && hasWord(label, &labelWords)
}

// inLine is near, on the same line.
func (s *scan) inLine(from, n int, words *wordList) bool {
	before := s.text[max(0, from-n):from]
	return hasWord(before[strings.LastIndexByte(before, '\n')+1:], words)
}

// digits counts those of the first n groups.
func (q *sequence) digits(n int) int {
	count := 0
	for _, g := range q.groups[:n] {
		count += g.len()
	}
	return count
}

// international returns how many groups a number takes that begins with +.
func (s *scan) international(q *sequence) int {
	if s.text[q.groups[0].from] == '0' {
		return 0
	}
	american := s.text[q.groups[0].from] == '1'
	for n := 1; n <= q.n; n++ {
		switch d := q.digits(n); {
		case american && d == 11:
			return n
		case american && d > 11, d > 15:
			return 0
		case !american && d >= 8 && (n == q.n || q.digits(n+1) > 13 || len(s.between(q, n-1)) > 2 || q.groups[n].len() < 2):
			return n
		}
	}
	return 0
}

// american returns how many groups a number of the North American plan takes.
func (s *scan) american(q *sequence) int {
	first := 0
	if q.n > 3 && (q.groups[0].len() == 1 && s.text[q.groups[0].from] == '1' || q.groups[0].len() == 3 && s.text[q.groups[0].from:q.groups[0].to] == "001") {
		first = 1
	}
	if q.n < first+3 {
		return 0
	}
	area, exchange, line := q.groups[first], q.groups[first+1], q.groups[first+2]
	if area.len() != 3 || exchange.len() != 3 || line.len() != 4 || s.text[area.from] < '2' || s.text[exchange.from] < '2' {
		return 0
	}
	switch one, two := s.between(q, first), s.between(q, first+1); {
	case one == two && (one == "-" || one == "." || one == " "):
	case (one == ") " || one == ")" || one == ")-" || one == ").") && (two == "-" || two == "." || two == " "):
	case one == " " && two == "-", one == "/" && two == "-":
	default:
		return 0
	}
	return first + 3
}

// trunk returns how many groups a national number takes that begins with 0.
func (s *scan) trunk(q *sequence) int {
	g := q.groups[0]
	if q.n < 2 || s.text[g.from] != '0' || g.len() < 2 || g.len() > 5 || s.text[g.from+1] == '0' {
		return 0
	}
	for n := 1; n <= q.n; n++ {
		if n > 1 && q.groups[n-1].len() < 2 {
			return 0
		}
		if n > 1 && n <= q.n {
			if sign := s.between(q, n-2); sign != " " && (sign != "." || g.len() != 2) && sign != "-" && sign != ") " && sign != ")" && sign != "/" {
				return 0
			}
		}
		if d := q.digits(n); d >= 10 && d <= 11 && n > 1 && (n == q.n || s.between(q, n-1) != s.between(q, n-2)) {
			if q.before == 0 && g.len() == 2 && n < 5 && q.groups[1].len() == 2 {
				return 0 // a date and a time
			}
			return n
		}
	}
	return 0
}

// said returns how many groups a number takes where a telephone is named before it.
func (s *scan) said(q *sequence) int {
	best := 0
	for n := 1; n <= q.n; n++ {
		if n > 1 {
			sign := s.between(q, n-2)
			if q.groups[n-1].len() > 8 || q.groups[0].len() > 8 {
				break
			}
			if len(sign) > 2 || sign == ". " || sign == "." && q.n < 3 || sign == ")" && q.before != '(' && n > 2 {
				break
			}
		}
		if d := q.digits(n); d >= 7 && d <= 15 {
			best = n
		}
	}
	if best == 3 && (q.groups[0].len() == 4 && q.groups[1].len() == 2 && q.groups[2].len() == 2 || q.groups[0].len() <= 2 && q.groups[1].len() <= 2 && q.groups[2].len() == 4) {
		return 0 // a date
	}
	return best
}

// extension returns where a number's extension ends: x123, ext. 123.
func (s *scan) extension(to int) int {
	at := to
	if s.at(at) == ' ' || s.at(at) == ',' {
		at++
	}
	if s.at(at) == ' ' {
		at++
	}
	switch {
	case len(s.text) > at+3 && s.text[at:at+3] == "ext":
		at += 3
	case s.at(at) == 'x':
		at++
	default:
		return to
	}
	for s.at(at) == '.' || s.at(at) == ' ' {
		at++
	}
	end := at
	for end < len(s.text) && end-at < 6 && is(s.text[end], isDigit) {
		end++
	}
	if end == at {
		return to
	}
	return end
}
