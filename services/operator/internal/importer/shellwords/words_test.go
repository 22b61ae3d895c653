package shellwords

import (
	"strings"
	"testing"
)

// FuzzSplit: a word that is quoted comes back as it was, and no word of an unquoted line holds what a shell would act on.
func FuzzSplit(f *testing.F) {
	f.Add("a 'b c' \"d\\\"e\" f\\ g\n# h\ni")
	f.Fuzz(func(t *testing.T, text string) {
		if !strings.ContainsRune(text, '\'') {
			words, err := Split("x '" + text + "'")
			if err == nil && (len(words) != 2 || words[1] != strings.ReplaceAll(text, "\r\n", "\n")) {
				t.Errorf("%q became %q", text, words)
			}
		}
		words, err := Split(text)
		if err != nil || strings.ContainsAny(text, "'\"\\") {
			return
		}
		for _, w := range words {
			if strings.ContainsAny(w, "|&;<>()`$*? \t\n") {
				t.Errorf("%q became %q", text, words)
			}
		}
	})
}
