package live

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func area(whole bool, height int) (*Area, *bytes.Buffer) {
	var out bytes.Buffer
	a := Below(&out)
	a.whole, a.size = whole, func() (int, int) { return 40, height }
	return a, &out
}

func TestBelowDrawsInPlace(t *testing.T) {
	a, out := area(false, 10)
	a.Draw([]string{"one", "two", "three"})
	out.Reset()
	a.Draw([]string{"uno"})
	if got := out.String(); !strings.HasPrefix(got, "\x1b[3A\r") || !strings.Contains(got, "uno\x1b[K") || !strings.Contains(got, "\x1b[J") {
		t.Errorf("the second frame is %q", got)
	}
	out.Reset()
	a.Close()
	a.Close()
	if got := out.String(); got != cursorShow {
		t.Errorf("closed twice with %q", got)
	}
}

func TestALowTerminalIsNotOverrun(t *testing.T) {
	a, out := area(true, 3)
	a.Draw(strings.Split("a b c d e", " "))
	if got := strings.Count(out.String(), "\n"); got != 2 {
		t.Errorf("%d lines in a terminal of 3", got)
	}
	a.size = func() (int, int) { return 40, 1 }
	out.Reset()
	a.Draw([]string{"a", "b"})
	if got := strings.Count(out.String(), "\n"); got != 1 {
		t.Errorf("%d lines in a terminal of 1", got)
	}
}

// Nothing is left out without saying so: the first lines of a screen stay, and the newest of what grows downwards.
func TestALowTerminalSaysWhatItLeavesOut(t *testing.T) {
	for whole, want := range map[bool][]string{
		true:  {"a", "b", "… 3 more lines: this terminal is too low for them"},
		false: {"… 3 lines before these: this terminal is too low for them", "d", "e"},
	} {
		a, out := area(whole, 4)
		a.Draw(strings.Split("a b c d e", " "))
		got := strings.Split(out.String()[strings.Index(out.String(), wrapOff)+len(wrapOff):], clearLine+"\n")
		if got = got[:len(got)-1]; !slices.Equal(got, want) {
			t.Errorf("whole %v: %q, want %q", whole, got, want)
		}
		out.Reset()
		if a.Draw(strings.Split("a b c", " ")); strings.Contains(out.String(), "…") {
			t.Errorf("whole %v: what fits is %q", whole, out)
		}
	}
}

func TestTheOtherScreenIsLeft(t *testing.T) {
	a, out := area(true, 10)
	a.Close()
	if out.Len() > 0 {
		t.Errorf("nothing was drawn, and closing wrote %q", out)
	}
	a.Draw([]string{"x"})
	a.Close()
	if got := out.String(); !strings.HasPrefix(got, screenOther) || !strings.HasSuffix(got, cursorShow+screenNormal) {
		t.Errorf("%q", got)
	}
}

func TestSizeOfNoTerminal(t *testing.T) {
	if w, h := Below(&bytes.Buffer{}).Size(); w != usualWidth || h != usualHeight {
		t.Errorf("%d × %d", w, h)
	}
}
