// Package words says under which words a record is found.
package words

import (
	"strings"
	"unicode"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

const (
	// maxWords is how many different words of one record are found, and maxWord how long a word may be, in bytes.
	maxWords = 1024
	maxWord  = 128
)

// In are the different words of a text, in lower case: runs of letters and digits. Longer ones, and more of them, are left out.
func In(text string) []string {
	var out []string
	seen := map[string]bool{}
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		if word = strings.ToLower(word); len(word) > maxWord || seen[word] || strings.ContainsFunc(word, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
			continue
		}
		seen[word] = true
		if out = append(out, word); len(out) == maxWords {
			break
		}
	}
	return out
}

// Of are the words under which a record with that body is found.
func Of(b *auditv1.Body) []string {
	if b.GetArguments() == "" && b.GetSummary() == "" && b.GetReason() == "" {
		return nil
	}
	return In(b.GetSummary() + " " + b.GetReason() + " " + b.GetArguments())
}
