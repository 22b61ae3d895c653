package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"durward.internal/services/platform/clean"
)

const (
	// maxFile bounds a file, in bytes.
	maxFile = 1 << 20
	// maxDepth bounds how deep values nest.
	maxDepth = 32
)

// Load reads the YAML file at path into the struct that into points to. It refuses, with file:line:column: what is not
// YAML or UTF-8, an empty file, more than 1 MB, a second document, unknown and duplicate keys, values of the wrong type,
// anchors, aliases, merges and tags.
func Load(path string, into any) error {
	data, err := Read(path)
	if err != nil {
		return err
	}
	return Parse(path, data, into)
}

// Read reads a regular file, up to one byte more than Parse takes. It waits for no writer of a named pipe.
func Read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// Blank reports whether a file holds comments and nothing else, which is no YAML document and to some readers no mistake.
func Blank(data []byte) bool {
	for line := range bytes.Lines(data) {
		if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' {
			return false
		}
	}
	return true
}

// Parse is Load for what has been read already; name stands in errors for the path. What is wrong with the file is an *Error.
func Parse(name string, data []byte, into any) error {
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return errors.New("config: the target must be a pointer")
	}
	body, problem := document(data)
	if problem == nil {
		problem = check(body, target.Type().Elem(), "", 0)
	}
	if problem == nil {
		problem = syntax(yaml.NewDecoder(strings.NewReader(""), yaml.Strict()).DecodeFromNode(body, into))
	}
	if problem == nil {
		return nil
	}
	problem.File = name
	return problem
}

// Error is what is wrong with a file, and where. Line 0 means the whole file.
type Error struct {
	File         string
	Line, Column int
	What         string
}

// Error is FILE:LINE:COLUMN: what is wrong.
func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.What)
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.What)
}

// Where is name:line:column of a value that Parse has read; path leads to it by keys, and by numbers from 0 in lists. Where the file has
// no such place it is that of the nearest value around it.
func Where(name string, data []byte, path ...string) string {
	node, problem := document(data)
	if problem != nil {
		return name
	}
	t := node.GetToken()
	for _, step := range path {
		if node = inside(node, step, &t); node == nil {
			break
		}
	}
	return fmt.Sprintf("%s:%d:%d", name, t.Position.Line, t.Position.Column)
}

// inside is the value of a key or of a list's item, and where the key or the item stands.
func inside(node ast.Node, step string, t **token.Token) ast.Node {
	var pairs []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	case *ast.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(n.Values) {
			*t = n.Values[i].GetToken()
			return n.Values[i]
		}
	}
	for _, pair := range pairs {
		if pair.Key.GetToken().Value == step {
			*t = pair.Key.GetToken()
			return pair.Value
		}
	}
	return nil
}

// at is what is wrong at a token, in a file that Parse names; nil: with the whole of it.
func at(t *token.Token, format string, args ...any) *Error {
	e := &Error{What: fmt.Sprintf(format, args...)}
	if t != nil && t.Position != nil {
		e.Line, e.Column = t.Position.Line, t.Position.Column
	}
	return e
}

// document parses data and returns the one document's body.
func document(data []byte) (ast.Node, *Error) {
	switch {
	case len(data) > maxFile:
		return nil, at(nil, "larger than 1 MB")
	case !utf8.Valid(data):
		return nil, at(nil, "not UTF-8 text")
	}
	if line, column := tooDeep(data); line > 0 {
		return nil, &Error{Line: line, Column: column, What: fmt.Sprintf("nested deeper than %d levels", maxDepth)}
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, syntax(err)
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			return nil, at(doc.Body.GetToken(), "a second document; a file holds one")
		}
		body = doc.Body
	}
	if body == nil || len(file.Docs) > 1 {
		if body != nil {
			return nil, at(nil, "more than one document; a file holds one")
		}
		return nil, at(nil, "the file is empty")
	}
	return body, nil
}

// tooDeep bounds flow nesting before the recursive parser sees it.
func tooDeep(data []byte) (line, column int) {
	line, column = 1, 0
	depth := 0
	for _, c := range data {
		column++
		switch c {
		case '\n':
			line, column = line+1, 0
		case '[', '{':
			depth++
		case ']', '}':
			depth = max(0, depth-1)
		}
		if depth > maxDepth*4 { // brackets in text and comments count too; the exact bound is checked on the tree
			return line, column
		}
	}
	return 0, 0
}

// syntax turns the YAML library's error into ours: its place, and its message without the library's drawing of the source.
func syntax(err error) *Error {
	if err == nil {
		return nil
	}
	located, ok := errors.AsType[yaml.Error](err)
	if !ok {
		return at(nil, "cannot be read: %s", clean.Line(err.Error(), 200))
	}
	if mismatch, ok := errors.AsType[*yaml.TypeError](err); ok {
		return at(mismatch.Token, "a value of the wrong type")
	}
	if overflow, ok := errors.AsType[*yaml.OverflowError](err); ok {
		return at(overflow.Token, "a number that is out of range")
	}
	return at(located.GetToken(), "%s", clean.Line(located.GetMessage(), 200))
}

// check compares a node with the type that it is read into, so that errors name keys and not Go types, and so that the
// library's readiness to convert is not relied on. path is the key's, dotted.
func check(node ast.Node, t reflect.Type, path string, depth int) *Error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if depth > maxDepth {
		return at(node.GetToken(), "nested deeper than %d levels", maxDepth)
	}
	switch n := node.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return at(node.GetToken(), "anchors, aliases and merges are not accepted; write the value out")
	case *ast.TagNode:
		return at(node.GetToken(), "tags are not accepted")
	case *ast.NullNode:
		switch t.Kind() {
		case reflect.Slice, reflect.Map, reflect.Struct, reflect.Interface:
			if path != "" {
				return nil
			}
		}
		return at(node.GetToken(), "%s has no value", subject(path))
	case *ast.MappingNode:
		return checkMapping(n, t, path, depth)
	case *ast.MappingValueNode:
		return checkMapping(ast.Mapping(n.GetToken(), false, n), t, path, depth)
	case *ast.SequenceNode:
		if t.Kind() == reflect.Interface {
			t = reflect.TypeFor[[]any]()
		}
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array || decodesItself(t) {
			return wrongType(node, t, path, "a list")
		}
		for _, item := range n.Values {
			if problem := check(item, t.Elem(), path, depth+1); problem != nil {
				return problem
			}
		}
		return nil
	}
	return checkScalar(node, t, path)
}

func checkMapping(n *ast.MappingNode, t reflect.Type, path string, depth int) *Error {
	if t.Kind() == reflect.Interface {
		t = reflect.TypeFor[map[string]any]()
	}
	if t.Kind() != reflect.Struct && t.Kind() != reflect.Map || decodesItself(t) {
		return wrongType(n, t, path, "keys with values")
	}
	var fields map[string]reflect.Type
	if t.Kind() == reflect.Struct {
		fields = structFields(t)
	}
	seen := map[string]bool{}
	for _, item := range n.Values {
		switch item.Key.(type) {
		case *ast.StringNode, *ast.IntegerNode, *ast.BoolNode, *ast.FloatNode:
		case *ast.MergeKeyNode:
			return at(item.Key.GetToken(), "anchors, aliases and merges are not accepted; write the value out")
		default:
			return at(item.Key.GetToken(), "a key that is not a plain name")
		}
		key := item.Key.GetToken().Value
		if seen[key] {
			return at(item.Key.GetToken(), "the key %s stands here twice", show(key))
		}
		seen[key] = true
		child := join(path, key)
		itemType := reflect.Type(nil)
		if fields == nil {
			itemType = t.Elem()
		} else if itemType = fields[key]; itemType == nil {
			return unknownKey(item.Key.GetToken(), key, path, fields)
		}
		if problem := check(item.Value, itemType, child, depth+1); problem != nil {
			return problem
		}
	}
	return nil
}

func unknownKey(t *token.Token, key, path string, fields map[string]reflect.Type) *Error {
	where := ""
	if path != "" {
		where = " in " + clean.Line(path, 200)
	}
	return at(t, "unknown key %s%s%s", show(key), where, DidYouMean(key, slices.Collect(maps.Keys(fields))))
}

func checkScalar(node ast.Node, t reflect.Type, path string) *Error {
	if t.Kind() == reflect.Interface || decodesItself(t) {
		return nil
	}
	ok := false
	switch node.(type) {
	case *ast.StringNode, *ast.LiteralNode:
		ok = isText(node.GetToken().Value, t)
	case *ast.IntegerNode:
		switch t.Kind() {
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8,
			reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
			ok = t != reflect.TypeFor[time.Duration]()
		}
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		ok = t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64
	case *ast.BoolNode:
		ok = t.Kind() == reflect.Bool
	}
	if !ok {
		return wrongType(node, t, path, "")
	}
	return nil
}

// isText reports whether a text can be read into t.
func isText(value string, t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[time.Duration]():
		_, err := time.ParseDuration(value)
		return err == nil
	case reflect.TypeFor[time.Time]():
		_, err := time.Parse(time.RFC3339, value)
		return err == nil
	}
	return t.Kind() == reflect.String
}

func wrongType(node ast.Node, t reflect.Type, path, found string) *Error {
	want := "a value of another kind"
	switch {
	case t == reflect.TypeFor[time.Duration]():
		want = `a length of time like "30s"`
	case t == reflect.TypeFor[time.Time]():
		want = "a time like 2026-01-31T12:00:00Z"
	case t.Kind() == reflect.String:
		want = "text (put it in quotes if it looks like a number)"
	case t.Kind() == reflect.Bool:
		want = "true or false"
	case t.Kind() == reflect.Float32, t.Kind() == reflect.Float64:
		want = "a number"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64:
		want = "a whole number"
	case t.Kind() == reflect.Slice:
		want = "a list"
	case t.Kind() == reflect.Map, t.Kind() == reflect.Struct:
		want = "keys with values"
	}
	if found != "" {
		found = ", not " + found
	}
	return at(node.GetToken(), "%s must be %s%s", subject(path), want, found)
}

// decodesItself reports whether the type has its own idea of what its YAML looks like.
func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[yaml.BytesUnmarshaler]()) || p.Implements(reflect.TypeFor[yaml.InterfaceUnmarshaler]()) ||
		p.Implements(reflect.TypeFor[interface{ UnmarshalText([]byte) error }]()) && t != reflect.TypeFor[time.Time]()
}

// structFields returns the keys that a struct takes, with inlined structs' among them.
func structFields(t reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case name == "-":
		case strings.Contains(options, "inline"):
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			maps.Copy(fields, structFields(inner))
		case name == "":
			fields[strings.ToLower(f.Name)] = f.Type
		default:
			fields[name] = f.Type
		}
	}
	return fields
}

func subject(path string) string {
	if path == "" {
		return "the file"
	}
	return clean.Line(path, 200)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func show(key string) string { return fmt.Sprintf("%q", clean.Line(key, 64)) }
