package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrNotJSON means that a configuration file is not one well-formed JSON object; it is never rewritten then.
var ErrNotJSON = errors.New("not one well-formed JSON object")

// SetMember returns document with the member at path set to value, and every other byte as it was. Objects on the way that
// are missing are made. An empty document counts as {}. A document that is not one JSON object without duplicate keys is
// refused.
func SetMember(document []byte, path []string, value any) ([]byte, error) {
	return setIn(document, path, value, strict)
}

func setIn(document []byte, path []string, value any, d dialect) ([]byte, error) {
	t, err := read(document, d)
	if err != nil {
		return nil, err
	}
	out, err := setMember(t, path, value, indentation(t), 1)
	if err != nil {
		return nil, err
	}
	return out, verifyEdit(t.plain, out, d, path, value, true)
}

// removeIn returns document without the member at path, and every other member and comment as it was. A document that has no such
// member is returned as it is.
func removeIn(document []byte, path []string, d dialect) ([]byte, error) {
	t, err := read(document, d)
	if err != nil {
		return nil, err
	}
	from, to := 0, len(t.raw)
	for i, key := range path {
		m, err := locate(t.plain[from:to], key)
		if err != nil {
			return nil, err
		}
		if !m.found {
			return document, nil
		}
		if i == len(path)-1 {
			out := cutMember(t, from+m.keyStart, from+m.valueEnd, from+m.previousEnd, to)
			return out, verifyEdit(t.plain, out, d, path, nil, false)
		}
		from, to = from+m.valueStart, from+m.valueEnd
		if t.plain[from] != '{' {
			return nil, fmt.Errorf("%w: %q is not an object", ErrNotJSON, key)
		}
	}
	return document, nil
}

// cutMember cuts the member at [start, end) out of an object that ends at limit, with one comma and its own lines.
func cutMember(t text, start, end, previousEnd, limit int) []byte {
	skip := func(i int) int {
		for i < limit && (t.plain[i] == ' ' || t.plain[i] == '\t' || t.plain[i] == '\r' || t.plain[i] == '\n') {
			i++
		}
		return i
	}
	raw := t.raw
	if next := skip(end); t.plain[next] == ',' {
		end = next + 1 // another member follows
	} else {
		if comma := bytes.IndexByte(raw[end:next], ','); comma >= 0 && t.raw[end+comma] != t.plain[end+comma] && onlySpace(raw[end:end+comma]) {
			end += comma + 1 // a trailing comma, and not one in a comment
		} else if comma := skip(previousEnd); t.plain[comma] == ',' && comma < start {
			raw = splice(raw, comma, comma+1, nil) // the one before is the last now
			start, end = start-1, end-1
		}
	}
	// Its lines go with it, if nothing else is on them.
	line := start
	for line > 0 && (raw[line-1] == ' ' || raw[line-1] == '\t') {
		line--
	}
	rest := end
	for rest < len(raw) && (raw[rest] == ' ' || raw[rest] == '\t' || raw[rest] == '\r') {
		rest++
	}
	if line > 0 && raw[line-1] == '\n' && rest < len(raw) && raw[rest] == '\n' {
		start, end = line, rest+1
	}
	return splice(raw, start, end, nil)
}

func onlySpace(b []byte) bool { return len(bytes.TrimSpace(b)) == 0 }

// verifyEdit makes sure that an edited document says what it said before, but for the one member.
func verifyEdit(before, after []byte, d dialect, path []string, value any, set bool) error {
	t, err := read(after, d)
	if err != nil {
		return err
	}
	var was, is map[string]any
	if unmarshal(before, &was) != nil || unmarshal(t.plain, &is) != nil {
		return ErrNotJSON
	}
	at := was
	for _, key := range path[:len(path)-1] {
		inner, ok := at[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			at[key] = inner
		}
		at = inner
	}
	delete(at, path[len(path)-1])
	if set {
		raw, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		var normal any
		if err := unmarshal(raw, &normal); err != nil {
			return ErrNotJSON
		}
		at[path[len(path)-1]] = normal
	}
	if !reflect.DeepEqual(was, is) {
		return fmt.Errorf("%w that can be edited safely", ErrNotJSON)
	}
	return nil
}

func unmarshal(document []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(document))
	dec.UseNumber()
	return dec.Decode(into)
}

// member is where a value stands in an object's bytes.
type member struct {
	found, empty bool
	// keyStart and valueStart to valueEnd are the member's; previousEnd ends the value before it, or is open.
	keyStart, valueStart, valueEnd, previousEnd int
	// open is the offset just behind "{", lastEnd where the last value ends.
	open, lastEnd int
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
		// The key begins behind the last value, its comma and white space.
		keyStart := m.lastEnd + bytes.IndexByte(object[m.lastEnd:], '"')
		found := name.String() == key
		value, err := dec.ReadValue()
		if err != nil {
			return m, ErrNotJSON
		}
		previousEnd := m.lastEnd
		m.lastEnd = int(dec.InputOffset())
		if found {
			m.found, m.keyStart, m.previousEnd = true, keyStart, previousEnd
			m.valueStart, m.valueEnd = m.lastEnd-len(value), m.lastEnd
		}
	}
	return m, nil
}

func setMember(object text, path []string, value any, indent string, depth int) ([]byte, error) {
	m, err := locate(object.plain, path[0])
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
		inner := object.slice(m.valueStart, m.valueEnd)
		if inner.plain[0] != '{' {
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
		return splice(object.raw, m.valueStart, m.valueEnd, replacement), nil
	}
	key, err := json.Marshal(path[0])
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	added := append(append([]byte("\n"+strings.Repeat(indent, depth)), key...), ": "...)
	added = append(added, replacement...)
	closing := bytes.LastIndexByte(object.plain, '}')
	if m.empty {
		added = append(added, "\n"+strings.Repeat(indent, depth-1)...)
		if onlySpace(object.raw[m.open:closing]) {
			return splice(object.raw, m.open, closing, added), nil
		}
		return splice(object.raw, closing, closing, added), nil // comments stay
	}
	// Behind the last member, and behind a comment on its line.
	at, comma := m.lastEnd, []byte{','}
	if i := trailing(object, m.lastEnd, closing); i >= 0 {
		at, comma = i+1, nil
		added = append(added, ',')
	}
	out := splice(object.raw, at, at, comma)
	at += len(comma)
	if eol := bytes.IndexByte(object.raw[at-len(comma):closing], '\n'); eol > 0 && strings.HasPrefix(strings.TrimLeft(string(out[at:at+eol]), " \t"), "//") {
		at += eol
	}
	return splice(out, at, at, added), nil
}

// trailing is where the trailing comma behind the last value is, or -1.
func trailing(object text, from, to int) int {
	for i := from; i < to; i++ {
		if object.raw[i] == ',' && object.plain[i] == ' ' && !inComment(object, from, i) {
			return i
		}
	}
	return -1
}

// inComment reports whether i, which is blank in the plain text, is in a comment that begins at from or later.
func inComment(object text, from, i int) bool {
	for j := from; j < i; j++ {
		if object.raw[j] == '/' && object.plain[j] == ' ' {
			if end := commentEnd(object.raw, j); end > i {
				return true
			} else if end > j {
				j = end - 1
			}
		}
	}
	return false
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
func indentation(t text) string {
	document := t.plain
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
