package tui

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"durward.internal/services/operator/internal/output"
	"durward.internal/services/platform/clean"
)

// wrap is output.Wrap behind the last gate.
func wrap(line string, width int) []string { return output.Wrap(printable(line), width) }

// more says that there is more than is shown, and which key shows it.
const more = " … enter"

// oneLine cuts a line to width columns, and says so.
func oneLine(line string, width int) string {
	line = printable(line)
	if output.Columns(line) <= width {
		return line
	}
	return output.Cut(line, max(width-output.Columns(more), 0)) + more
}

// fit cuts a line of the screen, which may hold colours, to width columns. They are lost where clusters alone would be too wide.
func fit(line string, width int) string {
	if output.Columns(line) <= width {
		return line
	}
	if short := ansi.Truncate(line, width, "…"); output.Columns(short) <= width {
		return short
	}
	return output.Cut(ansi.Strip(line), width-1) + "…"
}

// clip shows at most max lines, the last of which says how many are missing and how to see them.
func clip(lines []string, max int, how string) []string {
	if len(lines) <= max {
		return lines
	}
	if max < 1 {
		return nil
	}
	missing := len(lines) - (max - 1)
	return append(lines[:max-1:max-1], fmt.Sprintf("… %s: %s", clean.Count(missing, "more line"), how))
}

// printable is the last gate before the terminal: whoever forgot to make text visible moves no cursor with it.
func printable(s string) string {
	if !strings.ContainsFunc(s, commands) && utf8.ValidString(s) {
		return s
	}
	return clean.Visible(s)
}

// commands reports whether a terminal would obey the character instead of showing it, or not show it.
func commands(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// helpBar shows which key does what: as many as there is room for, each key set off.
func helpBar(keys string, width int) string {
	var out []string
	used := -2
	for _, entry := range strings.Split(keys, "  ") {
		if used += 2 + ansi.StringWidth(entry); used > width {
			break
		}
		key, what, _ := strings.Cut(entry, " ")
		out = append(out, lipgloss.NewStyle().Reverse(true).Render(key)+dim(" "+what))
	}
	return strings.Join(out, "  ")
}

// editor is one line that is typed. What is not printable is not taken.
type editor struct {
	text   []rune
	masked bool
}

func newEditor(text string) editor { return editor{text: []rune(text)} }

// maxTyped bounds a typed line: reasons are at most 500 bytes, passphrases rarely longer.
const maxTyped = 500

func (e *editor) insert(s string) {
	for _, r := range s {
		if !commands(r) && r != utf8.RuneError && len(e.text) < maxTyped {
			e.text = append(e.text, r)
		}
	}
}

func (e *editor) backspace() {
	if len(e.text) > 0 {
		e.text[len(e.text)-1] = 0
		e.text = e.text[:len(e.text)-1]
	}
}

func (e *editor) clear() {
	clear(e.text)
	e.text = e.text[:0]
}

// take returns what was typed and forgets it.
func (e *editor) take() string {
	s := string(e.text)
	e.clear()
	return s
}

// shown is the typed line as the screen shows it: of a passphrase only that something was typed.
func (e editor) shown() string {
	if e.masked {
		return strings.Repeat("•", len(e.text)) + "▏"
	}
	return string(e.text) + "▏"
}
