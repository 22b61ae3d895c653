package edit

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// RemoveRule returns a Cedar file without the rule of an id (@id("…")), and without the comment that stands directly above it. It
// is ErrUnknown if there is no such rule, and ErrLayout if there are several or other rules stand on its lines. What is left says
// the same as before: whether it does is for the caller to check with a parser.
func RemoveRule(raw []byte, id string) ([]byte, error) {
	var at []span
	statements, ok := rules(raw)
	if !ok {
		return nil, ErrLayout
	}
	for _, s := range statements {
		if s.id == id {
			at = append(at, s)
		}
	}
	switch {
	case len(at) == 0:
		return nil, ErrUnknown
	case len(at) > 1:
		return nil, ErrLayout
	}
	lines := split(raw)
	first, last := lineOf(raw, at[0].start), lineOf(raw, at[0].end-1)
	for _, s := range statements {
		if s != at[0] && lineOf(raw, s.end-1) >= first && lineOf(raw, s.start) <= last {
			return nil, ErrLayout
		}
	}
	for first > 0 && bytes.HasPrefix(bytes.TrimSpace(lines[first-1]), []byte("//")) {
		first--
	}
	// One of the blank lines around it goes too.
	if last+1 < len(lines) && len(bytes.TrimSpace(lines[last+1])) == 0 && (first == 0 || len(bytes.TrimSpace(lines[first-1])) == 0) {
		last++
	} else if first > 0 && last+1 == len(lines) && len(bytes.TrimSpace(lines[first-1])) == 0 {
		first--
	}
	return bytes.Join(slices.Delete(lines, first, last+1), nil), nil
}

// RuleLine is the line, counted from 1, where the rule of an id begins; 0: there is none.
func RuleLine(raw []byte, id string) int {
	statements, _ := rules(raw)
	for _, s := range statements {
		if s.id == id {
			return lineOf(raw, s.start) + 1
		}
	}
	return 0
}

// span is one rule: its bytes [start, end), the semicolon last.
type span struct {
	start, end int
	id         string
}

// rules splits a Cedar file at the semicolons that end rules; false: it ends within one, or within a text.
func rules(raw []byte) ([]span, bool) {
	var out []span
	start := -1
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == '/' && i+1 < len(raw) && raw[i+1] == '/':
			for i < len(raw) && raw[i] != '\n' {
				i++
			}
			continue
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			continue
		}
		if start < 0 {
			start = i
		}
		switch c {
		case '"':
			end := textEnd(raw, i)
			if end < 0 {
				return nil, false
			}
			i = end
		case ';':
			out = append(out, span{start, i + 1, idOf(raw[start : i+1])})
			start = -1
		}
	}
	return out, start < 0
}

// textEnd is where the text that begins at i ends; -1: it does not.
func textEnd(raw []byte, i int) int {
	for i++; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// idOf is what stands in @id("…") before the rule's effect.
func idOf(rule []byte) string {
	for i := 0; i < len(rule); i++ {
		switch {
		case rule[i] == '/' && i+1 < len(rule) && rule[i+1] == '/':
			for i < len(rule) && rule[i] != '\n' {
				i++
			}
		case rule[i] == '"':
			if i = textEnd(rule, i); i < 0 {
				return ""
			}
		case rule[i] == '(' && i+1 < len(rule) && rule[i+1] != '"':
			return "" // the scope begins; annotations are over
		case rule[i] == '@':
			rest := string(rule[i+1:])
			if text, ok := strings.CutPrefix(rest, "id("); ok {
				text = strings.TrimLeft(text, " \t\r\n")
				if !strings.HasPrefix(text, `"`) {
					return ""
				}
				end := textEnd([]byte(text), 0)
				if end < 0 {
					return ""
				}
				id, err := strconv.Unquote(text[:end+1])
				if err != nil {
					return ""
				}
				return id
			}
		}
	}
	return ""
}

func lineOf(raw []byte, at int) int { return bytes.Count(raw[:at], []byte("\n")) }
