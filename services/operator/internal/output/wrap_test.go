package output

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

// TestWrap: every line fits, what goes on stands behind the gutter, and the text is all there.
func TestWrap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	letters := []string{" ", " ", " ", "a", "│", "日", "e\u0301", "\"", "👍", "word"}
	for range 3000 {
		var b strings.Builder
		for range random.IntN(120) {
			b.WriteString(letters[random.IntN(len(letters))])
		}
		line, width := b.String(), random.IntN(90)
		lines := Wrap(line, width)
		if width == 0 || ansi.StringWidth(line) <= width {
			if len(lines) != 1 || lines[0] != line {
				t.Fatalf("%q at %d became %q", line, width, lines)
			}
			continue
		}
		indent := strings.Repeat(" ", min(len(line)-len(strings.TrimLeft(line, " ")), width/2))
		whole := lines[0]
		for i, l := range lines {
			if i > 0 {
				rest, ok := strings.CutPrefix(l, indent+gutter)
				if !ok {
					t.Fatalf("line %d of %q at %d begins without the gutter: %q", i, line, width, l)
				}
				whole += rest
			}
			if width > 12 && ansi.StringWidth(l) > width {
				t.Fatalf("%q is wider than %d", l, width)
			}
		}
		if whole != line {
			t.Fatalf("of %q at %d there is %q", line, width, whole)
		}
	}
}
