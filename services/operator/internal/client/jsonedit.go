package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/tailscale/hujson"
)

// ErrNotJSON means that a configuration file is not one well-formed JSON object; it is never rewritten then.
var ErrNotJSON = errors.New("not one well-formed JSON object")

// dialect is what a program reads as JSON.
type dialect int

const (
	// strict is JSON as RFC 8259 has it.
	strict dialect = iota
	// commented is JSON with comments and trailing commas, as VS Code and its kin read it.
	commented
)

// setIn returns document with the member at path set to value, and every other byte as it was. Objects on the way that
// are missing are made. An empty document counts as {}. A document that is not one JSON object without duplicate keys is
// refused.
func setIn(document []byte, path []string, value any, d dialect) ([]byte, error) {
	root, plain, err := read(document, d)
	if err != nil {
		return nil, err
	}
	if err := setMember(root.Value, path, value, indentation(plain), 1); err != nil {
		return nil, err
	}
	out := root.Pack()
	return out, verifyEdit(plain, out, d, path, value, true)
}

// removeIn returns document without the member at path, and every other member and comment as it was. A document that has no such
// member is returned as it is.
func removeIn(document []byte, path []string, d dialect) ([]byte, error) {
	root, plain, err := read(document, d)
	if err != nil {
		return nil, err
	}
	object, ok := root.Value.(*hujson.Object)
	if !ok {
		return nil, ErrNotJSON
	}
	for i, key := range path {
		at := memberAt(object, key)
		if at < 0 {
			return document, nil
		}
		if i == len(path)-1 {
			removeMember(object, at)
			break
		}
		if object, ok = object.Members[at].Value.Value.(*hujson.Object); !ok {
			return nil, fmt.Errorf("%w: %q is not an object", ErrNotJSON, key)
		}
	}
	out := root.Pack()
	return out, verifyEdit(plain, out, d, path, nil, false)
}

// read parses a document: one object without duplicate keys. An empty one counts as {}. plain is the same for a strict parser, with
// blanks for comments and trailing commas.
func read(document []byte, d dialect) (root hujson.Value, plain []byte, err error) {
	if len(bytes.TrimSpace(document)) == 0 {
		document = []byte("{}\n")
	}
	if len(document) > maxDocument || depth(document) > maxDepth {
		return root, nil, ErrNotJSON
	}
	root, err = hujson.Parse(document)
	if err != nil || d == strict && !root.IsStandard() {
		return root, nil, ErrNotJSON
	}
	standard := root.Clone()
	standard.Standardize()
	plain = standard.Pack()
	if !jsontext.Value(plain).IsValid() || root.Value.Kind() != '{' {
		return root, nil, ErrNotJSON
	}
	return root, plain, nil
}

// Bounds of a program's configuration, which in a project others may have written: the parser calls itself once a level.
const (
	maxDocument = 4 << 20
	maxDepth    = 100
)

// depth is how deep the arrays and objects of a document go, up to where it is malformed.
func depth(document []byte) (deepest int) {
	level := 0
	for i := 0; i < len(document); i++ {
		switch rest := document[i:]; {
		case rest[0] == '"':
			for i++; i < len(document) && document[i] != '"'; i++ {
				if document[i] == '\\' {
					i++
				}
			}
		case bytes.HasPrefix(rest, []byte("//")):
			i += ending(rest, "\n")
		case bytes.HasPrefix(rest, []byte("/*")):
			i += 1 + ending(rest[2:], "*/") + len("*/")
		case rest[0] == '[' || rest[0] == '{':
			level++
			deepest = max(deepest, level)
		case rest[0] == ']' || rest[0] == '}':
			level--
		}
	}
	return deepest
}

// ending is where text ends; its length where it does not.
func ending(text []byte, by string) int {
	if at := bytes.Index(text, []byte(by)); at >= 0 {
		return at
	}
	return len(text)
}

func memberAt(object *hujson.Object, key string) int {
	return slices.IndexFunc(object.Members, func(m hujson.ObjectMember) bool {
		name, ok := m.Name.Value.(hujson.Literal)
		return ok && name.String() == key
	})
}

func setMember(in hujson.ValueTrimmed, path []string, value any, indent string, depth int) error {
	object, ok := in.(*hujson.Object)
	if !ok {
		return ErrNotJSON
	}
	at := memberAt(object, path[0])
	if at >= 0 && len(path) > 1 {
		inner := object.Members[at].Value.Value
		if inner.Kind() != '{' {
			return fmt.Errorf("%w: %q is not an object", ErrNotJSON, path[0])
		}
		return setMember(inner, path[1:], value, indent, depth+1)
	}
	for i := len(path) - 1; i > 0; i-- {
		value = map[string]any{path[i]: value}
	}
	fresh, err := encode(value, indent, depth)
	if err != nil {
		return err
	}
	if at >= 0 {
		object.Members[at].Value.Value = fresh
		return nil
	}
	line := "\n" + strings.Repeat(indent, depth)
	added := hujson.ObjectMember{
		Name:  hujson.Value{BeforeExtra: hujson.Extra(line), Value: hujson.String(path[0])},
		Value: hujson.Value{BeforeExtra: hujson.Extra(" "), Value: fresh},
	}
	if len(object.Members) == 0 {
		if !onlySpace(object.AfterExtra) { // comments stay
			added.Name.BeforeExtra = slices.Concat(object.AfterExtra, added.Name.BeforeExtra)
		}
		object.AfterExtra = hujson.Extra("\n" + strings.Repeat(indent, depth-1))
	} else {
		// Behind the last member, and behind a comment on its line.
		if eol := bytes.IndexByte(object.AfterExtra, '\n'); eol > 0 && strings.HasPrefix(strings.TrimLeft(string(object.AfterExtra[:eol]), " \t"), "//") {
			added.Name.BeforeExtra = slices.Concat(object.AfterExtra[:eol], added.Name.BeforeExtra)
			object.AfterExtra = object.AfterExtra[eol:]
		}
		if object.Members[len(object.Members)-1].Value.AfterExtra != nil {
			added.Value.AfterExtra = hujson.Extra{} // a trailing comma
		}
	}
	object.Members = append(object.Members, added)
	return nil
}

// removeMember takes a member out of an object, with one comma and its own lines. Comments around it stay.
func removeMember(object *hujson.Object, at int) {
	gone := object.Members[at]
	last := at == len(object.Members)-1
	object.Members = slices.Delete(object.Members, at, at+1)
	next := &object.AfterExtra
	if !last {
		next = &object.Members[at].Name.BeforeExtra
	}
	before, after := gone.Name.BeforeExtra, *next
	if !onlySpace(gone.Value.AfterExtra) {
		after = slices.Concat(gone.Value.AfterExtra, after)
	}
	// Its lines go with it, if nothing else is on them.
	head, rest := bytes.TrimRight(before, " \t"), bytes.TrimLeft(after, " \t\r")
	if bytes.HasSuffix(head, []byte("\n")) && bytes.HasPrefix(rest, []byte("\n")) {
		before, after = head, rest[1:]
	}
	*next = slices.Concat(before, after)
	if !last || at == 0 {
		return
	}
	// The one before is the last now, with a trailing comma where this one had one.
	previous := &object.Members[at-1].Value
	if gone.Value.AfterExtra != nil {
		if previous.AfterExtra == nil {
			previous.AfterExtra = hujson.Extra{}
		}
		return
	}
	object.AfterExtra = slices.Concat(previous.AfterExtra, object.AfterExtra)
	previous.AfterExtra = nil
}

func onlySpace(b []byte) bool { return len(bytes.TrimSpace(b)) == 0 }

// verifyEdit makes sure that an edited document says what it said before, but for the one member.
func verifyEdit(before, after []byte, d dialect, path []string, value any, set bool) error {
	_, plain, err := read(after, d)
	if err != nil {
		return err
	}
	var was, is map[string]any
	if unmarshal(before, &was) != nil || unmarshal(plain, &is) != nil {
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

func encode(value any, indent string, depth int) (hujson.ValueTrimmed, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent(strings.Repeat(indent, depth), indent)
	if err := enc.Encode(value); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	v, err := hujson.Parse(b.Bytes())
	return v.Value, err
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
