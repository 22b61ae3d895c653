package reference

import (
	"strings"
	"testing"
)

func TestEdge(t *testing.T) {
	long := Reference{Class: PII, Type: strings.Repeat("Z", MaxType), ID: NewID(), JSON: true}
	for _, r := range []Reference{inText, secret, inJSON, long} {
		text := "é" + r.Marshal() + r.Marshal() + "é"
		first, second, end := 2, 2+len(r.Marshal()), 2+2*len(r.Marshal())
		for place := -1; place <= len(text)+1; place++ {
			want := place
			switch {
			case place <= 1:
				want = 0
			case place < second:
				want = first
			case place < end:
				want = second
			case place == end+1:
				want = end
			case place > len(text):
				want = len(text)
			}
			if got := Edge(text, place); got != want {
				t.Errorf("%.20s: at %d it may be cut at %d, want %d", r.Marshal(), place, got, want)
			}
		}
	}
	// What only looks like a reference is text.
	if text := "[[PII:EMAIL:tkn_x]]"; Edge(text, 8) != 8 {
		t.Error("a look-alike is kept whole")
	}
}

func TestHoldBack(t *testing.T) {
	ref := inText.Marshal()
	for text, want := range map[string]string{
		"":                             "",
		"short":                        "",
		strings.Repeat("a", 30):        strings.Repeat("a", 20),
		"0123456789abcdefgh" + ref:     "01234567",
		"x" + ref + "0123456789" + ref: "x" + ref,
		"x" + ref + "012345678" + ref:  "",
	} {
		if got := text[:HoldBack(text, 10)]; got != want {
			t.Errorf("of %q stays %q, want %q", text, got, want)
		}
	}
}
