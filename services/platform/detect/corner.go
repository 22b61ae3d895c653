package detect

import "strings"

// Addresses without a street and a house: boxes, and streets that meet.

// box returns where "P.O. Box 12" ends, or what the post of the US' forces has for a street; 0 where there is none.
func (s *scan) box(from int) int {
	digits := func(at, most int) int {
		end := at
		for end < len(s.text) && end-at < most && is(s.text[end], isDigit) {
			end++
		}
		if end == at || is(s.at(end), isWord) {
			return 0
		}
		return end
	}
	part := s.text[from:min(len(s.text), from+40)]
	for _, form := range []string{"P.O. Box ", "P.O.Box ", "PO Box ", "P O Box ", "P.O. BOX ", "PO BOX ", "P. O. Box "} {
		if strings.HasPrefix(part, form) {
			return digits(from+len(form), 8)
		}
	}
	for _, form := range []string{"PSC ", "Unit "} {
		if strings.HasPrefix(part, form) {
			if at := digits(from+len(form), 5); at > 0 {
				for _, sep := range []string{", Box ", " Box "} {
					if strings.HasPrefix(s.text[at:], sep) {
						return digits(at+len(sep), 6)
					}
				}
			}
			return 0
		}
	}
	for _, form := range []string{"USS ", "USNS ", "USNV ", "USCGC "} {
		if strings.HasPrefix(part, form) {
			if end := s.token(from + len(form)); end > from+len(form) {
				if to, sure := s.block(end); sure && to > end {
					return end
				}
			}
		}
	}
	return 0
}

// atCorner reports whether the words before a place say that streets meet.
func (s *scan) atCorner(from int) bool {
	before := s.text[max(0, from-16):from]
	return strings.HasSuffix(before, "corner of ") || strings.HasSuffix(before, "intersection of ") || strings.HasSuffix(before, "junction of ")
}

// corner returns where "the corner of King Street 12 and Mill Lane" begins and ends, of which the first name begins at a place; 0, 0 where it does
// not stand there.
func (s *scan) corner(at int) (from, to int) {
	if !s.atCorner(at) {
		return 0, 0
	}
	names := func(at int) int {
		end := 0
		for range 6 {
			to := s.token(at)
			if to == at || !s.capitalAt(at) && !is(s.text[at], isDigit) {
				break
			}
			if end = to; s.at(to) != ' ' {
				break
			}
			at = to + 1
		}
		return end
	}
	end := names(at)
	for _, and := range []string{" and ", " & "} {
		if end > 0 && strings.HasPrefix(s.text[end:], and) {
			to = names(end + len(and))
		}
	}
	if to == 0 {
		return 0, 0
	}
	for from = at - 4; from > 0 && is(s.text[from-1], isLower) && at-from < 20; from-- {
	}
	if strings.HasSuffix(s.text[:from], "the ") {
		from -= len("the ")
	}
	return from, to
}
