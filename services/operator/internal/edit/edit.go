// Package edit changes single values of YAML files that humans write, by line, so that comments, order and everything else stay as
// they are. It never writes a document anew: where the layout does not let one value be changed alone, it says so, and a human edits
// by hand.
//
// A path is of keys; behind the key of a list stands an item's number, from 0.
//
// It runs in the operator's process and believes nothing of its own reading of the text: each result is parsed again, and is
// returned only if it says exactly what was meant and nothing else changed.
package edit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"durward.internal/services/platform/pattern"
)

var (
	// ErrLayout means that the file is laid out so that the value cannot be changed alone.
	ErrLayout = errors.New("the file is laid out so that it cannot be edited safely; edit it by hand")
	// ErrUnknown means that what is to be taken away is not there.
	ErrUnknown = errors.New("it is not there")
)

// Set returns the file with the scalar at a path set to value, which is written as it stands and must be one YAML scalar.
// Keys that are not there are added: below their parent, or at the end of the file.
func Set(raw []byte, path []string, value string) ([]byte, error) {
	var scalar any
	if err := yaml.Unmarshal([]byte(value), &scalar); err != nil || strings.ContainsAny(value, "\n\r") || !isScalar(scalar) {
		return nil, fmt.Errorf("%q is not one value", value)
	}
	want, err := content(raw)
	if err != nil {
		return nil, err
	}
	if err := put(want, path, scalar); err != nil {
		return nil, err
	}
	out, err := set(raw, path, value)
	if err != nil {
		return nil, err
	}
	return out, verify(out, want)
}

// Unset returns the file without the scalar at a path, and without parents that hold nothing any more.
func Unset(raw []byte, path []string) ([]byte, error) {
	node, want, err := find(raw, path)
	if err != nil {
		return nil, err
	}
	lines := split(raw)
	line := node.Key.GetToken().Position.Line - 1
	if !single(node.Value) || bytes.ContainsAny(bytes.TrimLeft(lines[line], " "), "{}") {
		return nil, ErrLayout
	}
	return without(lines, path, line, line+1, want)
}

// UnsetAll returns the file without the key at a path and everything below it, and without parents that hold nothing any more.
func UnsetAll(raw []byte, path []string) ([]byte, error) {
	node, want, err := find(raw, path)
	if err != nil {
		return nil, err
	}
	lines := split(raw)
	at := node.Key.GetToken().Position
	if len(bytes.TrimSpace(lines[at.Line-1][:at.Column-1])) > 0 {
		return nil, ErrLayout
	}
	return without(lines, path, at.Line-1, max(at.Line, lastLine(node.Value)), want)
}

// find returns the key at a path, and what the file says.
func find(raw []byte, path []string) (*ast.MappingValueNode, map[string]any, error) {
	says, err := content(raw)
	if err != nil {
		return nil, nil, err
	}
	root, err := mapping(raw)
	if err != nil {
		return nil, nil, err
	}
	node := walk(root, path)
	if node == nil {
		return nil, nil, ErrUnknown
	}
	return node, says, nil
}

// without takes the lines [first, last) of a path away, and parents with nothing below them, not even a comment.
func without(lines [][]byte, path []string, first, last int, want map[string]any) ([]byte, error) {
	out := bytes.Join(slices.Delete(lines, first, last), nil)
	drop(want, path)
	for up := path[:len(path)-1]; len(up) > 0; up = up[:len(up)-1] {
		shorter, ok := withoutEmpty(out, up)
		if !ok {
			break
		}
		out = shorter
		drop(want, up)
	}
	return out, verify(out, want)
}

func withoutEmpty(raw []byte, path []string) ([]byte, bool) {
	root, err := mapping(raw)
	if err != nil {
		return nil, false
	}
	node := walk(root, path)
	if node == nil {
		return nil, false
	}
	if _, empty := node.Value.(*ast.NullNode); !empty {
		return nil, false
	}
	lines := split(raw)
	at := node.Key.GetToken().Position
	line := at.Line - 1
	for _, next := range lines[line+1:] {
		text := bytes.TrimLeft(next, " ")
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		if len(next)-len(text) >= at.Column {
			return nil, false // a comment that belongs to it
		}
		break
	}
	if strings.Contains(string(lines[line]), "#") {
		return nil, false
	}
	return bytes.Join(slices.Delete(lines, line, line+1), nil), true
}

// Line is the line, counted from 1, of the key at a path; 0: it is not there.
func Line(raw []byte, path []string) int {
	root, err := mapping(raw)
	if err != nil {
		return 0
	}
	if node := walk(root, path); node != nil {
		return node.Key.GetToken().Position.Line
	}
	return 0
}

func set(raw []byte, path []string, value string) ([]byte, error) {
	root, err := mapping(raw)
	if err != nil {
		return nil, err
	}
	// The deepest key that is there.
	depth := len(path)
	var node *ast.MappingValueNode
	for ; depth > 0; depth-- {
		if node = walk(root, path[:depth]); node != nil {
			break
		}
	}
	lines := split(raw)
	switch {
	case depth == len(path):
		return replace(lines, node, value)
	case depth == 0:
		return append(ended(bytes.Join(lines, nil)), nest(path, value, "", "  ")...), nil
	}
	return below(lines, node, path[depth:], value)
}

// replace writes another value behind a key, on its line; a comment there stays.
func replace(lines [][]byte, node *ast.MappingValueNode, value string) ([]byte, error) {
	at := node.Key.GetToken().Position
	line := string(lines[at.Line-1])
	switch v := node.Value.(type) {
	case *ast.NullNode:
		if !single(v) {
			return nil, ErrLayout
		}
	default:
		if !single(v) || v.GetToken().Position.Line != at.Line {
			return nil, ErrLayout
		}
	}
	colon := strings.Index(line[at.Column-1:], ":")
	if colon < 0 {
		return nil, ErrLayout
	}
	head := line[:at.Column-1+colon+1]
	tail := line[len(head):]
	body := strings.TrimRight(tail, "\r\n")
	end := tail[len(body):]
	comment := ""
	if from := commentAt(body); from >= 0 {
		kept := strings.TrimRight(body[:from], " ")
		comment = body[len(kept):]
	}
	lines[at.Line-1] = []byte(head + " " + value + comment + end)
	return bytes.Join(lines, nil), nil
}

// commentAt is where a comment begins behind a value; -1: there is none.
func commentAt(s string) int {
	quote := byte(0)
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quote == '"' && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '#' && (i == 0 || s[i-1] == ' '):
			return i
		}
	}
	return -1
}

// below adds keys under a parent, or under an item of it, behind its last child.
func below(lines [][]byte, parent *ast.MappingValueNode, path []string, value string) ([]byte, error) {
	at := parent.Key.GetToken().Position
	own := strings.Repeat(" ", at.Column-1)
	var indent string
	after := at.Line // lines[:after] come before
	under := parent.Value
	if item := element(under, path[0]); item != nil && len(path) > 1 {
		if first, err := pairs(item); err == nil && len(first) > 0 {
			own = leading(lines[first[0].Key.GetToken().Position.Line-1])
		}
		under, path = item, path[1:]
	}
	switch v := under.(type) {
	case *ast.NullNode:
		indent = own + "  "
		if commentAt(string(lines[at.Line-1][at.Column-1:])) < 0 && !bytes.HasSuffix(bytes.TrimSpace(lines[at.Line-1]), []byte(":")) {
			return nil, ErrLayout // a spelt-out null
		}
	case *ast.MappingNode:
		if v.IsFlowStyle {
			return flow(lines, parent, v, path, value)
		}
		indent = strings.Repeat(" ", v.Values[0].Key.GetToken().Position.Column-1)
		after = lastLine(v)
	case *ast.MappingValueNode:
		indent = strings.Repeat(" ", v.Key.GetToken().Position.Column-1)
		after = lastLine(v)
	default:
		return nil, ErrLayout
	}
	if len(indent) <= len(own) {
		return nil, ErrLayout
	}
	out := ended(bytes.Join(lines[:after], nil))
	out = append(out, nest(path, value, indent, indent[len(own):])...)
	return append(out, bytes.Join(lines[after:], nil)...), nil
}

// flow adds to "{}" alone, by writing it as a block.
func flow(lines [][]byte, parent *ast.MappingValueNode, v *ast.MappingNode, path []string, value string) ([]byte, error) {
	at := parent.Key.GetToken().Position
	line := string(lines[at.Line-1])
	if len(v.Values) > 0 || !strings.Contains(line, "{}") {
		return nil, ErrLayout
	}
	own := strings.Repeat(" ", at.Column-1)
	lines[at.Line-1] = []byte(strings.TrimRight(strings.Replace(line, " {}", "", 1), "\n") + "\n")
	out := bytes.Join(lines[:at.Line], nil)
	out = append(out, nest(path, value, own+"  ", "  ")...)
	return append(out, bytes.Join(lines[at.Line:], nil)...), nil
}

// lastLine is the last line that a value stands on.
func lastLine(node ast.Node) int {
	last := 0
	switch n := node.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			last = max(last, lastLine(v))
		}
		if n.End != nil {
			last = max(last, n.End.Position.Line)
		}
	case *ast.MappingValueNode:
		last = max(n.Key.GetToken().Position.Line, lastLine(n.Value))
	case *ast.SequenceNode:
		for _, v := range n.Values {
			last = max(last, lastLine(v))
		}
		if n.End != nil {
			last = max(last, n.End.Position.Line)
		}
	case *ast.LiteralNode:
		last = n.GetToken().Position.Line + strings.Count(n.Value.GetToken().Origin, "\n")
	case nil:
	default:
		if t := node.GetToken(); t != nil && t.Position != nil {
			last = t.Position.Line
		}
	}
	return last
}

// nest writes keys below one another with a value at their end.
func nest(path []string, value, indent, step string) []byte {
	var b bytes.Buffer
	for i, key := range path {
		b.WriteString(indent + Text(key) + ":")
		if i == len(path)-1 {
			b.WriteString(" " + value)
		}
		b.WriteByte('\n')
		indent += step
	}
	return b.Bytes()
}

// single reports whether a value is one scalar on one line.
func single(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.NullNode:
		return true
	case *ast.LiteralNode:
		return false
	case ast.ScalarNode:
		return !strings.Contains(strings.TrimSpace(n.GetToken().Origin), "\n")
	}
	return false
}

// mapping returns the keys of the one document; nil: it holds none.
func mapping(raw []byte) ([]*ast.MappingValueNode, error) {
	// A carriage return alone ends a line for YAML, and none here.
	if bytes.Count(raw, []byte("\r")) != bytes.Count(raw, []byte("\r\n")) {
		return nil, ErrLayout
	}
	file, err := parser.ParseBytes(raw, 0)
	if err != nil || len(file.Docs) > 1 {
		return nil, ErrLayout
	}
	if len(file.Docs) == 0 {
		return nil, nil
	}
	return pairs(file.Docs[0].Body)
}

func pairs(node ast.Node) ([]*ast.MappingValueNode, error) {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values, nil
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, nil
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return nil, nil
	}
	return nil, ErrLayout
}

func walk(nodes []*ast.MappingValueNode, path []string) *ast.MappingValueNode {
	for {
		at := slices.IndexFunc(nodes, func(n *ast.MappingValueNode) bool { return n.Key.GetToken().Value == path[0] })
		if at < 0 {
			return nil
		}
		if path = path[1:]; len(path) == 0 {
			return nodes[at]
		}
		value := nodes[at].Value
		if item := element(value, path[0]); item != nil {
			if value, path = item, path[1:]; len(path) == 0 {
				return nil
			}
		}
		var err error
		if nodes, err = pairs(value); err != nil {
			return nil
		}
	}
}

// element returns the item with that number of a list over lines, or nil.
func element(list ast.Node, number string) ast.Node {
	v, ok := list.(*ast.SequenceNode)
	n, err := strconv.Atoi(number)
	if !ok || v.IsFlowStyle || err != nil || n < 0 || n >= len(v.Values) {
		return nil
	}
	return v.Values[n]
}

// Texts writes texts as a YAML list on one line.
func Texts(list []string) string {
	texts := make([]string, len(list))
	for i, text := range list {
		texts[i] = Text(text)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// plain is a text that means itself in YAML, in block and in flow style, unless it is one of reserved.
var (
	plain    = pattern.New(`^(-{0,2}[A-Za-z/]|/)[A-Za-z0-9_./\-]*$`)
	reserved = []string{"y", "n", "yes", "no", "on", "off", "null", "true", "false"} // which one reader or another takes for something else
)

// Text writes a text as a YAML scalar that is read as that text, whatever is in it.
func Text(s string) string {
	if plain().MatchString(s) && !slices.Contains(reserved, strings.ToLower(s)) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x20 || r == 0x7f || r == 0x85 || r >= 0x2028 && r <= 0x2029 || r == 0xfeff || r >= 0x80 && r < 0xa0:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
