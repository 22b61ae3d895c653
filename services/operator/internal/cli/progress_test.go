package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/pty"
)

// TestLookingIsForATerminal: a person sees what is looked at, one thing in place of the other, and nothing of it in the end. Elsewhere nothing
// is said.
func TestLookingIsForATerminal(t *testing.T) {
	look := func(errs io.Writer) {
		a := &App{Streams: Streams{Err: errs, Getenv: func(string) string { return "" }}}
		at, done := a.Looking()
		at("clocks")
		at("units")
		done()
		done()
	}
	var said bytes.Buffer
	if look(&said); said.Len() > 0 {
		t.Errorf("without a terminal: %q", said.String())
	}
	master, slave, err := pty.Open(80, 24)
	if err != nil {
		t.Fatal(err)
	}
	look(slave)
	if err := slave.Close(); err != nil {
		t.Fatal(err)
	}
	drawn, _ := io.ReadAll(master) // it ends with an error, as a terminal does that nobody has open
	first, rest, both := strings.Cut(string(drawn), "Looking at clocks …")
	second, end, _ := strings.Cut(rest, "Looking at units …")
	const up, clear, show = "\x1b[1A\r", "\x1b[J", "\x1b[?25h"
	if !both || strings.Contains(first, up) || !strings.Contains(second, up) || !strings.Contains(end, up) || !strings.Contains(end[strings.Index(end, up):], clear) || strings.Count(end, show) != 1 {
		t.Errorf("at a terminal: %q", drawn)
	}
	if err := master.Close(); err != nil {
		t.Error(err)
	}
}
