package words

import (
	"slices"
	"strings"
	"testing"
)

// TestIn: words are runs of letters and digits in lower case, each once, within bounds.
func TestIn(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxWord+1)
	for text, want := range map[string][]string{
		"":                            nil,
		"!? \x00\u202e":               nil,
		"Out of memory, OUT of 24GiB": {"out", "of", "memory", "24gib"},
		"größe_Größe\tname-1":         {"größe", "name", "1"},
		"a " + long + " b":            {"a", "b"},
	} {
		if got := In(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	many := make([]string, maxWords+5)
	for i := range many {
		many[i] = strings.Repeat("a", i%100+1) + strings.Repeat("b", i/100)
	}
	if got := In(strings.Join(many, " ")); len(got) != maxWords {
		t.Errorf("%d words of %d", len(got), len(many))
	}
}
