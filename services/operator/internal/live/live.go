// Package live draws lines on a terminal again and again in the same place.
//
// It runs in the operator's process. What it draws was cleaned by the caller; it adds nothing but the terminal's own codes.
package live

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/term"

	"durward.internal/services/platform/clean"
)

// Codes of the terminal (ECMA-48 and xterm).
const (
	clearRest    = "\x1b[J"
	clearLine    = "\x1b[K"
	wrapOff      = "\x1b[?7l"
	wrapOn       = "\x1b[?7h"
	cursorHide   = "\x1b[?25l"
	cursorShow   = "\x1b[?25h"
	cursorHome   = "\x1b[H"
	screenOther  = "\x1b[?1049h"
	screenNormal = "\x1b[?1049l"
)

// Area is where lines are drawn. It is not safe for concurrent use.
type Area struct {
	out    io.Writer
	size   func() (width, height int)
	whole  bool
	drawn  int
	opened bool
}

// Below returns an area that begins where the cursor is and grows downwards; what was drawn last stays.
func Below(out io.Writer) *Area { return &Area{out: out, size: sizeOf(out)} }

// Whole returns an area that is the terminal's whole other screen; what was there before comes back with Close.
func Whole(out io.Writer) *Area { return &Area{out: out, size: sizeOf(out), whole: true} }

// Usual size of a terminal that does not tell.
const (
	usualWidth  = 80
	usualHeight = 24
)

func sizeOf(out io.Writer) func() (int, int) {
	f, ok := out.(*os.File)
	return func() (int, int) {
		if ok {
			if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
				return width, height
			}
		}
		return usualWidth, usualHeight
	}
}

// Size is the terminal's size now, in characters.
func (a *Area) Size() (width, height int) { return a.size() }

// Draw replaces what was drawn before. Of more lines than the terminal is high it shows the first on the whole screen and the last
// below the cursor, and says how many it leaves out. The terminal cuts those that are too long.
func (a *Area) Draw(lines []string) {
	_, height := a.size()
	lines = a.fitting(lines, max(height-1, 1))
	var b strings.Builder
	switch {
	case !a.opened && a.whole:
		b.WriteString(screenOther + cursorHide + cursorHome)
	case !a.opened:
		b.WriteString(cursorHide)
	case a.whole:
		b.WriteString(cursorHome)
	case a.drawn > 0:
		// After a terminal has become lower, what is above it can no longer be reached.
		b.WriteString("\x1b[" + strconv.Itoa(min(a.drawn, max(height-1, 1))) + "A\r")
	}
	a.opened = true
	b.WriteString(wrapOff)
	for _, line := range lines {
		b.WriteString(line + clearLine + "\n")
	}
	b.WriteString(clearRest + wrapOn)
	a.drawn = len(lines)
	_, _ = io.WriteString(a.out, b.String()) // a terminal that is gone has nobody before it
}

// fitting is at most room lines of these.
func (a *Area) fitting(lines []string, room int) []string {
	left := len(lines) - room + 1 // one line says so
	switch {
	case left <= 1:
		return lines
	case a.whole:
		return append(slices.Clone(lines[:room-1]), fmt.Sprintf("… %s: this terminal is too low for them", clean.Count(left, "more line")))
	default:
		return append([]string{fmt.Sprintf("… %s before these: this terminal is too low for them", clean.Count(left, "line"))}, lines[left:]...)
	}
}

// Close gives the terminal back. It may be called twice.
func (a *Area) Close() {
	if !a.opened {
		return
	}
	a.opened, a.drawn = false, 0
	codes := cursorShow
	if a.whole {
		codes += screenNormal
	}
	_, _ = io.WriteString(a.out, codes)
}
