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
	letters := []string{" ", " ", " ", "a", "│", "日", "e\u0301", "\"", "👍", "\U0001f3fd", "ก\u0e33\u0e33\u0e33", "क\u093e\u093e\u093e", "word"}
	for range 3000 {
		var b strings.Builder
		for range random.IntN(120) {
			b.WriteString(letters[random.IntN(len(letters))])
		}
		line, width := b.String(), random.IntN(90)
		lines := Wrap(line, width)
		if width == 0 || Columns(line) <= width {
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
			if width > 12 && max(ansi.StringWidth(l), ansi.StringWidthWc(l)) > width {
				t.Fatalf("%q is wider than %d", l, width)
			}
		}
		if whole != line {
			t.Fatalf("of %q at %d there is %q", line, width, whole)
		}
	}
}

// TestColumns: a terminal that draws each character of a cluster by itself breaks no line by itself, where what is somebody else's would begin
// the next one.
func TestColumns(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "word": 4, "\x1b[31mred\x1b[0m": 3, "日本": 4, "e\u0301": 1, "क" + strings.Repeat("\u093e", 99): 100, "👍\U0001f3fd": 4, "\U0001f1e9": 2,
	} {
		if got := Columns(text); got != want {
			t.Errorf("%q takes %d columns, want %d", text, got, want)
		}
	}
	for _, text := range []string{"क" + strings.Repeat("\u093e", 99), strings.Repeat("👍\U0001f3fd", 20), strings.Repeat("ก\u0e33", 50), strings.Repeat("日", 40)} {
		for width := range 60 {
			if cut := Cut(text, width); !strings.HasPrefix(text, cut) || Columns(cut) > width || Columns(cut) < width-4 {
				t.Errorf("%q cut to %d columns is %q", text, width, cut)
			}
		}
	}
	for _, line := range table([]string{"A", "B"}, [][]string{{strings.Repeat("ก\u0e33 ", 20), "b"}}, 30, strings.ToLower) {
		if Columns(line) > 30 {
			t.Errorf("%q is wider than 30", line)
		}
	}
}
