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
			if strings.ContainsAny(w, "|&;<>()`$ \t\n") || strings.HasPrefix(w, "/") && strings.ContainsAny(w, "*?[{") {
				t.Errorf("%q became %q", text, words)
			}
		}
	})
}

func TestSplit(t *testing.T) {
	for text, want := range map[string]string{
		`x -ot .ffn_.*_exps.=CPU`:                   `x|-ot|.ffn_.*_exps.=CPU`,
		`x -ot blk.[0-9].ffn=CPU -y a?b`:            `x|-ot|blk.[0-9].ffn=CPU|-y|a?b`,
		`x --kwargs {\"thinking\":false} --l [1,2]`: `x|--kwargs|{"thinking":false}|--l|[1,2]`,
		`x '*' "?"`:     `x|*|?`,
		`x /m/*.gguf`:   "",
		`x ./m/?.gguf`:  "",
		`x ../{a,b}`:    "",
		`x /m/[ab]`:     "",
		`x *.gguf`:      "",
		`x ?`:           "",
		`x (a)`:         "",
		`x a|b`:         "",
		`x -m ~/a.gguf`: "",
	} {
		got, err := Split(text)
		if (err != nil) != (want == "") || err == nil && strings.Join(got, "|") != want {
			t.Errorf("%s: %q, %v, want %s", text, got, err, want)
		}
	}
}
