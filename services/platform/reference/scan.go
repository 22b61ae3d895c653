package reference

import "strings"

// Found is a reference and where it stands in a text, in bytes.
type Found struct {
	Reference
	From, To int
}

// Scan returns the references in a text, in order, and how many places only look like one: they are misspelled, or ours does not know
// them. Those stay text. A nil ours knows every well-formed reference.
//
// It goes through the text once, and looks at each place no further than a reference is long.
func Scan(text string, ours func(Reference) bool) (found []Found, lookalikes int) {
	for i := 0; i < len(text); {
		next := nextStart(text[i:])
		if next < 0 {
			break
		}
		i += next
		if r, n, ok := at(text[i:]); ok {
			if ours == nil || ours(r) {
				found = append(found, Found{Reference: r, From: i, To: i + n})
			} else {
				lookalikes++
			}
			i += n
			continue
		}
		if n := lookalike(text[i:]); n > 0 {
			lookalikes++
			i += n
			continue
		}
		i++
	}
	return found, lookalikes
}

// nextStart is where the next place is whose first bytes are a reference's, or look like one's; -1 where there is none.
func nextStart(text string) int {
	for i := 0; i+2 < len(text); i++ {
		switch text[i] {
		case '[':
			if text[i+1] == '[' && strings.IndexByte("PpSs \t", text[i+2]) >= 0 {
				return i
			}
		case '{':
			if text[i+1] == '"' && text[i+2] == '$' {
				return i
			}
		case '$':
			if text[i+1]|0x20 == 'p' {
				return i
			}
		}
	}
	return -1
}

// maxBlanks is how many blanks may stand where a reference has none, and it still looks like one.
const maxBlanks = 8

// lookalike is how much of a text's beginning a reader or a program with a tolerant parser may take for the beginning of a reference:
// the brackets and the class, in capitals or not, with blanks between them, or the JSON form's key, however it is quoted.
func lookalike(text string) int {
	if rest, ok := strings.CutPrefix(text, open); ok {
		rest = skipBlanks(rest)
		for _, class := range []Class{PII, Secret} {
			if len(rest) >= len(class) && strings.EqualFold(rest[:len(class)], string(class)) {
				if after := skipBlanks(rest[len(class):]); strings.HasPrefix(after, ":") {
					return len(text) - len(after) + 1
				}
			}
		}
		return 0
	}
	const key = "$pii_ref"
	if text[0] == '$' && len(text) >= len(key) && strings.EqualFold(text[:len(key)], key) {
		return len(key)
	}
	return 0
}

func skipBlanks(s string) string {
	n := 0
	for n < min(len(s), maxBlanks) && (s[n] == ' ' || s[n] == '\t') {
		n++
	}
	return s[n:]
}
