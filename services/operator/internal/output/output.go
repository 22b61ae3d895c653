// Package output writes what the durward command shows: aligned tables, JSON, and colours where a person looks.
//
// It runs in the operator's process and trusts nothing that it prints: text that came from another process is cleaned or
// made visible by the caller (package clean) before it reaches a Printer.
package output

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
)

// Printer writes results to Out and remarks to Err. It is not safe for concurrent use.
type Printer struct {
	Out io.Writer
	Err io.Writer
	// Wide: tables are as wide as they are.
	Wide bool
	// Draws: Out is a terminal that obeys when it is told where to write, which TERM=dumb says of none.
	Draws   bool
	colours bool
	failed  error
}

// New returns a printer. Colours are used only when out is a terminal, NO_COLOR is unset or empty and TERM is not "dumb".
func New(out, errs io.Writer, getenv func(string) string) *Printer {
	draws := IsTerminal(out) && getenv("TERM") != "dumb"
	return &Printer{Out: out, Err: errs, Draws: draws, colours: draws && getenv("NO_COLOR") == ""}
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Printf writes to Out. Failed tells of a write that failed.
func (p *Printer) Printf(format string, args ...any) {
	if _, err := fmt.Fprintf(p.Out, format, args...); err != nil {
		p.failed = err
	}
}

// Failed returns the last error of writing to Out.
func (p *Printer) Failed() error { return p.failed }

// Remark writes a line to Err.
func (p *Printer) Remark(format string, args ...any) { _, _ = fmt.Fprintf(p.Err, format+"\n", args...) }

func (p *Printer) paint(code, s string) string {
	if !p.colours || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Green, Red, Yellow, Blue, Bold and Dim colour s where colours are used.
func (p *Printer) Green(s string) string  { return p.paint("32", s) }
func (p *Printer) Red(s string) string    { return p.paint("31", s) }
func (p *Printer) Yellow(s string) string { return p.paint("33", s) }
func (p *Printer) Blue(s string) string   { return p.paint("34", s) }
func (p *Printer) Bold(s string) string   { return p.paint("1", s) }
func (p *Printer) Dim(s string) string    { return p.paint("2", s) }

// Columns is how many columns of a terminal s takes at most; colours take none. Some terminals draw a cluster of characters in the place of
// one, others each of its characters: a letter with a hundred vowel signs behind it is one column there and 101 here.
func Columns(s string) int { return max(ansi.StringWidth(s), ansi.StringWidthWc(s)) }

// Cut is the longest beginning of s, which holds no escape codes, that takes so many columns at most.
func Cut(s string, columns int) string {
	used := 0
	for i, r := range s {
		if used += ansi.StringWidthWc(string(r)); used > columns {
			s = s[:i]
			break
		}
	}
	return ansi.Truncate(s, columns, "")
}

// Pad fills s up to n columns.
func Pad(s string, n int) string { return s + strings.Repeat(" ", max(0, n-Columns(s))) }

// Each is what f gives for each item: a table's rows, the names in a list.
func Each[T, V any](items []T, f func(T) V) []V {
	out := make([]V, len(items))
	for i, item := range items {
		out[i] = f(item)
	}
	return out
}

// Fields writes names and values below each other, the names in a column of so many characters; a field without a value is left out.
func (p *Printer) Fields(column int, fields [][2]string) {
	for _, f := range fields {
		if f[1] != "" {
			p.Printf("  %-*s %s\n", column, f[0], f[1])
		}
	}
}

// seen escapes what in JSON a terminal would obey or not show: C1 controls, turns of direction, characters without width. Such
// characters stand in strings alone, where the escape says the same.
func seen(b []byte) []byte {
	return escaped(b, func(out []byte, r rune) []byte {
		if r > 0xffff {
			high, low := utf16.EncodeRune(r)
			return fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
		return fmt.Appendf(out, `\u%04x`, r)
	})
}

// escaped writes what is not seen as escape does.
func escaped(b []byte, escape func(out []byte, r rune) []byte) []byte {
	if !bytes.ContainsFunc(b, unseen) {
		return b
	}
	var out []byte
	for _, r := range string(b) {
		if unseen(r) {
			out = escape(out, r)
		} else {
			out = utf8.AppendRune(out, r)
		}
	}
	return out
}

func unseen(r rune) bool { return r >= 0x7f && !unicode.IsGraphic(r) }

// gutter stands before what goes on of a line, at the line's own indent.
const gutter = "│ "

// Wrap breaks a line that holds no escape codes at width columns; 0: not at all. What goes on stands behind a gutter, so that no
// text of somebody else's, however padded, begins a line of the screen, where cards and questions of our own do. Nothing is dropped.
func Wrap(line string, width int) []string {
	if width < 1 || Columns(line) <= width {
		return []string{line}
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	further := before(min(indent, width/2))
	var lines []string
	for rest, room, start := line, width, ""; ; room, start = max(width-Columns(further), 2), further {
		part := Cut(rest, room)
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

// Size is how many columns and lines the terminal has that p writes to; ok is false where that is none, or does not tell.
func (p *Printer) Size() (width, height int, ok bool) {
	f, ok := p.Out.(*os.File)
	if !ok {
		return 0, 0, false
	}
	width, height, err := term.GetSize(int(f.Fd()))
	return width, height, err == nil && width > 0 && height > 0
}

// Wrapped is a line as Wrap breaks it for the terminal that p writes to; as it is where that is none.
func (p *Printer) Wrapped(line string) string {
	width, _, ok := p.Size()
	if !ok {
		return line
	}
	return strings.Join(Wrap(line, width), "\n")
}
