package detect

import (
	"net/netip"
	"strings"
)

const maxLocalPart, maxDomain = 64, 253

// email looks at an @.
func (s *scan) email(at int) {
	from := at
	for from > 0 && at-from < maxLocalPart && is(s.text[from-1], isLocal) {
		from--
	}
	for from < at && !is(s.text[from], isWord) {
		from++
	}
	if from == at || s.text[at-1] == '.' || s.at(from-1) == '@' || is(s.at(from-1), isWord) {
		return
	}
	// What stands before a URL's host is no mailbox.
	before := s.text[max(0, from-300):from]
	if i := strings.LastIndex(before, "://"); i >= 0 && !strings.ContainsAny(before[i+3:], "/?# \t\n\"'") {
		return
	}
	to, label, dots := at+1, at+1, 0
	for to < len(s.text) && to-at <= maxDomain && (is(s.text[to], isWord) && s.text[to] != '_' || s.text[to] == '-' || s.text[to] == '.') {
		if s.text[to] == '.' {
			if to == label || to+1 == len(s.text) || !is(s.text[to+1], isWord) {
				break
			}
			label, dots = to+1, dots+1
		}
		to++
	}
	for to > label && s.text[to-1] == '-' {
		to--
	}
	top := s.text[label:to]
	if dots == 0 || len(top) < 2 || len(top) > 24 || strings.ContainsAny(top, "0123456789") || s.words.NotDomain[strings.ToLower(top)] {
		return
	}
	// git@host.example:path is where a repository is.
	if s.at(to) == ':' && (is(s.at(to+1), isLower|isUpper) || s.at(to+1) == '/' || s.at(to+1) == '~') {
		return
	}
	s.add(from, to, Email, 95, "an address with a domain")
}

var versionWords = listOf("version", "ver", "release", "driver", "build", "rev", "firmware", "cudnn", "cuda", "sdk", "v", "arxiv")

// ipv4 looks at four groups of digits with points between them.
func (s *scan) ipv4(from, to int) {
	// Chrome/120.0.6099.109 is a version; http://203.0.113.7 is none.
	if c := s.at(from - 1); c == '.' || c == '-' || is(c, isWord) || c == '/' && is(s.at(from-2), isWord) {
		return
	}
	if c := s.at(to); is(c, isWord) || c == '-' && is(s.at(to+1), isWord) || c == '.' && is(s.at(to+1), isWord) {
		return
	}
	a, err := netip.ParseAddr(s.text[from:to])
	if err != nil {
		return
	}
	b := a.As4()
	switch {
	case b[0] == 0, b[0] == 127, b[0] >= 224, a.IsLinkLocalUnicast():
		return // nobody's
	case b[3] == 0 && (s.at(to) == '/' || b[2] == 0):
		return // a network, or a version
	case s.at(from-1) == '=' && s.at(from-2) == '=', s.near(from, 12, &versionWords):
		return
	case a.IsPrivate():
		s.add(from, to, IPv4, 60, "an address of a private network")
		return
	}
	s.add(from, to, IPv4, 90, "a public address")
}

// colon looks at the first colon of what may be hardware's address or a network's.
func (s *scan) colon(at int) {
	next := s.at(at + 1)
	if next != ':' && !is(next, isHex) {
		return
	}
	if s.at(at+3) == ':' && s.at(at+6) == ':' {
		s.mac(at)
	}
	from := at
	for from > 0 && at-from < 5 && is(s.text[from-1], isHex) {
		from--
	}
	to, colons, doubled := at, 0, false
	for to < len(s.text) && to-from < 46 && (is(s.text[to], isHex) || s.text[to] == ':' || s.text[to] == '.') {
		if s.text[to] == ':' {
			colons++
			doubled = doubled || s.at(to+1) == ':'
		}
		to++
	}
	s.colonsTo = to
	for to > at && (s.text[to-1] == '.' || s.text[to-1] == ':' && s.at(to-2) != ':') {
		to--
	}
	// An address without :: has seven colons, or six and one of IPv4; a time has two.
	if colons < 2 || colons < 6 && !doubled || at-from > 4 || is(s.at(to), isWord) || is(s.at(from-1), isWord) || s.at(from-1) == ':' {
		return
	}
	a, err := netip.ParseAddr(s.text[from:to])
	if err != nil || !a.Is6() {
		return
	}
	b := a.As16()
	switch {
	case a.Is4In6():
		if a = a.Unmap(); a.IsLoopback() || a.IsUnspecified() {
			return
		}
		s.add(from, to, IPv6, 80, "an address of IPv4 in one of IPv6")
	case b[0]>>5 == 1:
		s.add(from, to, IPv6, 90, "a public address")
	case b[0]&0xfe == 0xfc || a.IsLinkLocalUnicast():
		s.add(from, to, IPv6, 60, "an address of a private network")
	case b[0] != 0 && b[0] != 0xff && !doubled && to-from >= 8*3+7: // pairs of digits are the names of disks and of fabrics
		s.add(from, to, IPv6, 50, "eight groups of an address, of a range that is not given out yet")
	}
}

// mac looks at the first separator of six pairs of hexadecimal digits.
func (s *scan) mac(at int) {
	from, to := at-2, at+15
	if from < 0 || to > len(s.text) {
		return
	}
	sign := s.text[at]
	for i := from; i < to; i++ {
		if (i-from)%3 == 2 {
			if s.text[i] != sign {
				return
			}
		} else if !is(s.text[i], isHex) {
			return
		}
	}
	edge := func(c byte) bool { return is(c, isWord) || c == sign }
	if edge(s.at(from-1)) || is(s.at(to), isWord) || s.at(to) == sign && is(s.at(to+1), isWord) {
		return
	}
	if v := strings.Trim(s.text[from:to], ":-0"); v == "" || strings.Trim(v, "fF:-") == "" {
		return // nobody's, everybody's
	}
	s.add(from, to, MAC, 90, "six pairs of hexadecimal digits")
}
