package life

import "testing"

// Of a log so many lines are collected, whether the last of them is whole or not.
func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		text, want string
		n          int
	}{
		{"", "", 2},
		{"a\n", "a\n", 2},
		{"a\nb\n", "a\nb\n", 2},
		{"a\nb\nc\n", "b\nc\n", 2},
		{"a\nb\nc", "b\nc", 2},
		{"\n\n\n", "\n\n", 2},
	} {
		if got := lastLines(c.text, c.n); got != c.want {
			t.Errorf("%q: got %q, want %q", c.text, got, c.want)
		}
	}
}
