package output

import (
	"os"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

// gutter stands before what goes on of a line, at the line's own indent.
const gutter = "│ "

// Wrap breaks a line that holds no escape codes at width columns; 0: not at all. What goes on stands behind a gutter, so that no
// text of somebody else's, however padded, begins a line of the screen, where cards and questions of our own do. Nothing is dropped.
func Wrap(line string, width int) []string {
	if width < 1 || ansi.StringWidth(line) <= width {
		return []string{line}
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	before := strings.Repeat(" ", min(indent, width/2)) + gutter
	var lines []string
	for rest, room, start := line, width, ""; ; room, start = max(width-ansi.StringWidth(before), 2), before {
		part := ansi.Truncate(rest, room, "")
		if part == "" { // a character that is wider than the screen
			part = rest
		}
		if at := strings.LastIndexByte(part, ' ') + 1; len(part) < len(rest) && at > len(part)/2 {
			part = part[:at] // between words, where there are any
		}
		lines = append(lines, start+part)
		if rest = rest[len(part):]; rest == "" {
			return lines
		}
	}
}

// Wrapped is a line as Wrap breaks it for the terminal that p writes to; as it is where that is none.
func (p *Printer) Wrapped(line string) string {
	f, ok := p.Out.(*os.File)
	if !ok {
		return line
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return line
	}
	return strings.Join(Wrap(line, width), "\n")
}
