package detect

import (
	"strings"

	"durward.internal/services/platform/detect/account"
)

// group is a run of digits in a sequence of them.
type group struct{ from, to int }

func (g group) len() int { return g.to - g.from }

const (
	// maxGroups is how many runs of digits a number of any type has at most, and maxNumber how many bytes it may take.
	maxGroups, maxNumber = 8, 40
)

// sequence is runs of digits with at most three signs between one and the next.
type sequence struct {
	groups [maxGroups]group
	n      int
	// before is the sign that the sequence begins with: +, ( or 0.
	before byte
}

// sequenceAt reads the sequence that begins at a place, into one that is empty.
func (s *scan) sequenceAt(from int, q *sequence) {
	i := from
	for i < len(s.text) && i-from < 2 && (s.text[i] == '+' || s.text[i] == '(') {
		if q.before == 0 || s.text[i] == '+' {
			q.before = s.text[i]
		}
		i++
	}
	for q.n < maxGroups && i-from < maxNumber {
		to := i
		for to < len(s.text) && to-i < maxNumber && is(s.text[to], isDigit) {
			to++
		}
		if to == i {
			break
		}
		q.groups[q.n] = group{i, to}
		q.n++
		i = to
		for i < len(s.text) && i-to < 3 && is(s.text[i], isSign) {
			i++
		}
	}
}

// between is the signs between two groups.
func (s *scan) between(q *sequence, i int) string { return s.text[q.groups[i].to:q.groups[i+1].from] }

// same reports whether the signs between the first n groups are all one and the same.
func (s *scan) same(q *sequence, n int, sign string) bool {
	for i := range n - 1 {
		if s.between(q, i) != sign {
			return false
		}
	}
	return true
}

// shaped reports whether the first groups have these lengths.
func (q *sequence) shaped(lengths ...int) bool {
	if q.n < len(lengths) {
		return false
	}
	for i, n := range lengths {
		if q.groups[i].len() != n {
			return false
		}
	}
	return true
}

// ends reports whether nothing that belongs to the number follows its first n groups: no letter, no percent, and no more groups with
// the same sign before them.
func (s *scan) ends(q *sequence, n int) bool {
	to := q.groups[n-1].to
	c, after := s.at(to), s.at(to+1)
	switch {
	case is(c, isWord), c == '%':
		return false
	case c == '-' || c == '/' || c == ':':
		return !is(after, isWord)
	case c == '.', c == ',':
		return !is(after, isDigit)
	case n > 1 && n < q.n && len(s.between(q, n-2)) > 0:
		return s.between(q, n-1) != s.between(q, n-2) || s.between(q, n-1) == " "
	}
	return true
}

// inNumbers are the signs that stand within numbers.
var inNumbers = anyOf("-./:+")

// free reports whether nothing that belongs to a number stands before it.
func (s *scan) free(from int) bool {
	c := s.at(from - 1)
	return !is(c, isWord) && (!inNumbers[c] || !is(s.at(from-2), isWord))
}

// mayFollow is what may stand behind the first digits of an address or a date: "12 Long Lane", "12, rue", "12b", "1st of March".
func mayFollow(c byte) bool {
	return c == ' ' || c == ',' || c == '-' || c == '/' || is(c, isLower|isUpper)
}

// numbers looks at what the digits at a place may be the beginning of.
func (s *scan) numbers(from int) {
	// Most numbers are short, and nothing that could follow one of a type here follows them.
	end := from
	for end < len(s.text) && end-from <= 3 && is(s.text[end], isDigit) {
		end++
	}
	if next := s.at(end); end > from && end-from <= 3 && !is(next, isSign) && !mayFollow(next) {
		s.numbersTo = end
		return
	}
	var q sequence
	s.sequenceAt(from, &q)
	if q.n == 0 {
		return
	}
	first := q.groups[0]
	s.numbersTo = first.to
	switch {
	case q.before == 0 && first.len() <= 3 && q.n >= 4 && s.same(&q, 4, ".") && (q.n == 4 || s.between(&q, 3) != "."):
		s.ipv4(from, q.groups[3].to)
		if q.groups[3].len() <= 3 {
			s.numbersTo = q.groups[3].to
			return
		}
	case first.len() <= 3 && q.n == 1 && q.before == 0 && !mayFollow(s.at(first.to)):
		return // one with a sign behind it
	}
	// Called by name: a sequence that is looked at through a list of functions is allocated for each number.
	to, digits := 0, q.digits(q.n)
	if digits >= 12 {
		to = s.card(from, &q)
	}
	if to == 0 && digits >= 9 {
		to = s.ssn(from, &q)
	}
	if to == 0 && (digits >= 4 || s.at(first.to) == ' ') {
		to = s.birth(from, &q)
	}
	if to == 0 && digits >= 7 {
		to = s.phone(from, &q)
	}
	if to > 0 {
		s.numbersTo = to
		return
	}
	if q.before == 0 {
		s.street(from, first.to)
	}
}

var cardWords = listOf("card*", "credit", "debit", "visa", "mastercard", "amex", "maestro", "discover", "diners", "jcb", "payment*", "pay", "paid", "cc", "charge*")

// card looks for a payment card's number (ISO/IEC 7812), and returns where it ends.
func (s *scan) card(from int, q *sequence) int {
	n := 0
	switch {
	case q.before != 0 || !s.free(from):
		return 0
	case q.groups[0].len() >= 12 && q.groups[0].len() <= 19:
		n = 1
	case q.shaped(4, 4, 4, 4, 3):
		n = 5
	case q.shaped(4, 4, 4, 4), q.shaped(4, 4, 4, 1), q.shaped(4, 4, 4, 2), q.shaped(4, 4, 4, 3):
		n = 4
	case q.shaped(4, 6, 5), q.shaped(4, 6, 4), q.shaped(4, 4, 4):
		n = 3
	default:
		return 0
	}
	if n > 1 && !s.same(q, n, " ") && !s.same(q, n, "-") {
		if n != 5 || !s.same(q, 4, " ") && !s.same(q, 4, "-") {
			return 0
		}
		n = 4
	}
	for ; n >= 3 || n == 1; n-- {
		var digits [19]byte
		count := 0
		for _, g := range q.groups[:n] {
			count += copy(digits[count:], s.text[g.from:g.to])
		}
		network, usual := account.Issuer(string(digits[:count]))
		if network == "" || !account.Luhn(digits[:count]) || !s.ends(q, n) && s.at(q.groups[n-1].to) != ',' { // it has no decimals
			continue
		}
		to := q.groups[n-1].to
		said := s.around(from, to, 80, &cardWords)
		alone := strings.IndexByte("=:/#_\"'", s.at(from-1)) < 0
		switch {
		case said:
			s.add(from, to, CreditCard, 95, network+"'s prefix and length, the check digit, and what stands around it")
		case usual && (n > 1 || alone):
			s.add(from, to, CreditCard, 85, network+"'s prefix and length, and the check digit")
		default:
			continue
		}
		return to
	}
	return 0
}

var ssnWords = listOf("ssn*", "social", "ss", "taxpayer")

// ssn looks for a number of the US' Social Security, and returns where it ends.
func (s *scan) ssn(from int, q *sequence) int {
	n := 3
	switch {
	case q.before != 0 || !s.free(from):
		return 0
	case q.shaped(3, 2, 4) && s.same(q, 3, "-"):
	case q.shaped(3, 2, 4) && (s.same(q, 3, " ") || s.same(q, 3, ".")) && s.around(from, q.groups[2].to, 60, &ssnWords):
	case q.shaped(9) && s.near(from, 40, &ssnWords):
		n = 1
	default:
		return 0
	}
	to := q.groups[n-1].to
	d := strings.NewReplacer("-", "", " ", "", ".", "").Replace(s.text[from:to])
	if d[:3] == "000" || d[:3] == "666" || d[0] == '9' || d[3:5] == "00" || d[5:] == "0000" || !s.ends(q, n) && s.at(to) != ',' { // it has no decimals
		return 0
	}
	s.add(from, to, USSSN, 88, "an area, a group and a serial that are issued")
	return to
}

var (
	birthWords = listOf("born", "birth*", "dob", "birthdate")
	months     = []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}
)

const saidBirth = "a date, and birth is named before it"

// birth looks for a date where birth is named, and returns where it ends.
func (s *scan) birth(from int, q *sequence) int {
	to := 0
	switch year := q.groups[2]; {
	case q.before != 0 || !s.free(from):
		return 0
	case q.n >= 3 && q.groups[0].len() == 4 && q.groups[1].len() <= 2 && q.groups[2].len() <= 2,
		q.n >= 3 && q.groups[0].len() <= 2 && q.groups[1].len() <= 2 && (year.len() == 4 || year.len() == 2):
		if sign := s.between(q, 0); (sign == "-" || sign == "/" || sign == "." || sign == ". ") && s.between(q, 1) == sign {
			to = year.to
		}
	case q.groups[0].len() <= 2:
		to = s.dayMonth(q.groups[0].to)
	}
	if to == 0 || is(s.at(to), isDigit) || !s.near(from, 48, &birthWords) {
		return 0
	}
	s.add(from, to, DateOfBirth, 85, saidBirth)
	return to
}

// dayMonth returns where " March 1980" ends that may begin at a place, or 0.
func (s *scan) dayMonth(at int) int {
	if at+2 <= len(s.text) && is(s.text[at], isLower) {
		switch s.text[at : at+2] {
		case "st", "nd", "rd", "th":
			at += 2
		}
	}
	if strings.HasPrefix(s.text[at:], " of") {
		at += 3
	}
	at = s.month(at + 1)
	if at == 0 {
		return 0
	}
	for s.at(at) == ' ' || s.at(at) == ',' {
		at++
	}
	return s.year(at)
}

// month returns where the month's name ends that may begin at a place, or 0.
func (s *scan) month(at int) int {
	if at+3 > len(s.text) || !is(s.text[at], isLower|isUpper) || strings.IndexByte("jfmasond", s.text[at]|0x20) < 0 {
		return 0
	}
	for _, m := range months {
		if strings.EqualFold(s.text[at:at+3], m) {
			for at < len(s.text) && is(s.text[at], isLower|isUpper) {
				at++
			}
			return at
		}
	}
	return 0
}

// monthFirst looks for "March 12, 1980" where birth is named. It reports whether it took it.
func (s *scan) monthFirst(w capitalised) bool {
	if s.at(w.to) != ' ' || !is(s.at(w.to+1), isDigit) || s.month(w.from) != w.to || !s.near(w.from, 48, &birthWords) {
		return false
	}
	at := w.to + 1
	for at-w.to <= 4 && is(s.at(at), isDigit|isLower) {
		at++
	}
	for s.at(at) == ' ' || s.at(at) == ',' {
		at++
	}
	if at = s.year(at); at == 0 {
		return false
	}
	s.namesTo, s.numbersTo = at, at
	s.add(w.from, at, DateOfBirth, 85, saidBirth)
	return true
}

// year returns where four digits end that may stand at a place, or 0.
func (s *scan) year(at int) int {
	if at+4 > len(s.text) || is(s.at(at+4), isDigit) {
		return 0
	}
	for i := range 4 {
		if !is(s.text[at+i], isDigit) {
			return 0
		}
	}
	return at + 4
}
