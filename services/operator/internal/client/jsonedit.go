package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrNotJSON means that a configuration file is not one well-formed JSON object; it is never rewritten then.
var ErrNotJSON = errors.New("not one well-formed JSON object")

// SetMember returns document with the member at path set to value, and every other byte as it was. Objects on the way that
// are missing are made. An empty document counts as {}. A document that is not one JSON object without duplicate keys is
// refused.
func SetMember(document []byte, path []string, value any) ([]byte, error) {
	if len(bytes.TrimSpace(document)) == 0 {
		document = []byte("{}\n")
	}
	if !jsontext.Value(document).IsValid() || jsontext.Value(document).Kind() != '{' {
		return nil, ErrNotJSON
	}
	indent := indentation(document)
	out, err := setMember(document, path, value, indent, 1)
	if err != nil {
		return nil, err
	}
	if !jsontext.Value(out).IsValid() {
		return nil, ErrNotJSON
	}
	return out, nil
}

// member is where a value stands in an object's bytes.
type member struct {
	found               bool
	valueStart, lastEnd int
	valueEnd            int
	empty               bool
	// open is the offset just behind "{".
	open int
}

func locate(object []byte, key string) (member, error) {
	m := member{empty: true}
	dec := jsontext.NewDecoder(bytes.NewReader(object))
	if _, err := dec.ReadToken(); err != nil {
		return m, ErrNotJSON
	}
	m.open = int(dec.InputOffset())
	m.lastEnd = m.open
	for dec.PeekKind() != '}' {
		m.empty = false
		name, err := dec.ReadToken()
		if err != nil {
			return m, ErrNotJSON
		}
		found := name.String() == key
		value, err := dec.ReadValue()
		if err != nil {
			return m, ErrNotJSON
		}
		m.lastEnd = int(dec.InputOffset())
		if found {
			m.found, m.valueStart, m.valueEnd = true, m.lastEnd-len(value), m.lastEnd
		}
	}
	return m, nil
}

func setMember(object []byte, path []string, value any, indent string, depth int) ([]byte, error) {
	m, err := locate(object, path[0])
	if err != nil {
		return nil, err
	}
	var replacement []byte
	switch {
	case len(path) == 1:
		if replacement, err = encode(value, indent, depth); err != nil {
			return nil, err
		}
	case m.found:
		inner := object[m.valueStart:m.valueEnd]
		if jsontext.Value(inner).Kind() != '{' {
			return nil, fmt.Errorf("%w: %q is not an object", ErrNotJSON, path[0])
		}
		if replacement, err = setMember(inner, path[1:], value, indent, depth+1); err != nil {
			return nil, err
		}
	default:
		nested := value
		for i := len(path) - 1; i > 0; i-- {
			nested = map[string]any{path[i]: nested}
		}
		if replacement, err = encode(nested, indent, depth); err != nil {
			return nil, err
		}
	}
	if m.found {
		return splice(object, m.valueStart, m.valueEnd, replacement), nil
	}
	key, err := json.Marshal(path[0])
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	var b bytes.Buffer
	if !m.empty {
		b.WriteByte(',')
	}
	b.WriteString("\n" + strings.Repeat(indent, depth))
	b.Write(key)
	b.WriteString(": ")
	b.Write(replacement)
	if m.empty {
		b.WriteString("\n" + strings.Repeat(indent, depth-1))
		end := bytes.LastIndexByte(object, '}')
		return splice(object, m.open, end, b.Bytes()), nil
	}
	return splice(object, m.lastEnd, m.lastEnd, b.Bytes()), nil
}

func splice(b []byte, from, to int, with []byte) []byte {
	out := make([]byte, 0, len(b)-(to-from)+len(with))
	out = append(out, b[:from]...)
	out = append(out, with...)
	return append(out, b[to:]...)
}

func encode(value any, indent string, depth int) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent(strings.Repeat(indent, depth), indent)
	if err := enc.Encode(value); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// indentation is what the first member's line begins with; two spaces when the first member has no line of its own.
func indentation(document []byte) string {
	if first, _, _ := bytes.Cut(bytes.TrimSpace(document), []byte("\n")); len(bytes.TrimSpace(first)) > 1 {
		return "  "
	}
	for line := range bytes.Lines(document) {
		trimmed := bytes.TrimLeft(line, " \t")
		if n := len(line) - len(trimmed); n > 0 && len(bytes.TrimSpace(trimmed)) > 0 {
			return string(line[:n])
		}
	}
	return "  "
}
