package boundedyaml

import (
	"strings"
	"testing"
)

// TestDeep: what nests for a whole file ends with one sentence: the library stops far above our bound, and far below what would exhaust it.
func TestDeep(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"[", "{a: ", "- ", "? ", "&a [", "[{", "- - ? ", "a: {", "!!seq [", "{? "} {
		_, err := Decode("x", []byte(strings.Repeat(unit, MaxBytes/len(unit))))
		if err == nil || !strings.Contains(err.Error(), "nested deeper than 32 levels") {
			t.Errorf("%q: %v", unit, err)
		}
	}
}
