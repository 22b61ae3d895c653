package outside

import "strings"

// Replacements counts what stands in a text for values.
func Replacements(text string) int {
	return strings.Count(text, "[[SECRET:") + strings.Count(text, "[[PII:") + strings.Count(text, " REDACTED]")
}

// Remarkable reports whether a sentence has anything in it that a value could be told by: more digits than a small number has, a capital
// within it, a sign that no sentence has, a long word.
func Remarkable(sentence string) bool {
	digits := 0
	for i, word := range strings.Fields(sentence) {
		capitals := 0
		for _, r := range word {
			switch {
			case r >= '0' && r <= '9':
				digits++
			case r >= 'A' && r <= 'Z':
				capitals++
			case r >= 'a' && r <= 'z', strings.ContainsRune("-_.,;:'\"()…", r):
			default:
				return true
			}
		}
		if digits > 4 || len(word) > 20 || capitals > 0 && i > 0 {
			return true
		}
	}
	return false
}
