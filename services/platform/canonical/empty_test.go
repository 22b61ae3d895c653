package canonical_test

import (
	"testing"

	"durward.internal/services/platform/canonical"
)

// TestEmpty: what says nothing, and its nearest neighbours that say something.
func TestEmpty(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`null`: true, `false`: true, `0`: true, `""`: true, `[]`: true, `{}`: true, `{"a":null,"b":{"c":0}}`: true,
		`true`: false, `1`: false, `" "`: false, `[null]`: false, `{"a":{"b":""},"c":[0]}`: false, `{`: false, ``: false,
	} {
		if got := canonical.Empty([]byte(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}
