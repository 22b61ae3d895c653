package client

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// dialect is what a program reads as JSON.
type dialect int

const (
	// strict is JSON as RFC 8259 has it.
	strict dialect = iota
	// commented is JSON with comments and trailing commas, as VS Code and its kin read it.
	commented
)

// text is a document, or an object in one, beside what a strict parser makes of it: the same bytes at the same places, with
// blanks for comments and trailing commas.
type text struct{ raw, plain []byte }

// read checks a document: one object without duplicate keys. An empty one counts as {}.
func read(document []byte, d dialect) (text, error) {
	if len(bytes.TrimSpace(document)) == 0 {
		document = []byte("{}\n")
	}
	t := text{raw: document, plain: document}
	if d == commented {
		t.plain = plain(document)
	}
	if !jsontext.Value(t.plain).IsValid() || jsontext.Value(t.plain).Kind() != '{' {
		return text{}, ErrNotJSON
	}
	return t, nil
}

func (t text) slice(from, to int) text { return text{t.raw[from:to], t.plain[from:to]} }

// plain replaces comments and trailing commas by blanks. What is no such document stays wrong.
func plain(document []byte) []byte {
	out := bytes.Clone(document)
	// comma is where the last comma is after which nothing has come yet; before, what came before it.
	comma, last := -1, byte(0)
	for i := 0; i < len(out); {
		switch c := out[i]; {
		case c == '"':
			end := stringEnd(out, i)
			i, comma, last = end, -1, c
		case c == '/' && i+1 < len(out) && (out[i+1] == '/' || out[i+1] == '*'):
			end := commentEnd(out, i)
			if end < 0 {
				return out
			}
			for ; i < end; i++ {
				if out[i] != '\n' && out[i] != '\r' {
					out[i] = ' '
				}
			}
		case c == ',':
			if last != '{' && last != '[' && last != ',' && last != 0 {
				comma = i
			}
			last = c
			i++
		case c == '}' || c == ']':
			if comma >= 0 {
				out[comma] = ' '
			}
			comma, last = -1, c
			i++
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			i++
		default:
			comma, last = -1, c
			i++
		}
	}
	return out
}

func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

// commentEnd is where a comment that begins at i ends, or -1 if it never does.
func commentEnd(b []byte, i int) int {
	if b[i+1] == '/' {
		if n := bytes.IndexByte(b[i:], '\n'); n >= 0 {
			return i + n
		}
		return len(b)
	}
	if n := bytes.Index(b[i+2:], []byte("*/")); n >= 0 {
		return i + 2 + n + 2
	}
	return -1
}
