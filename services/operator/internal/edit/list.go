package edit

import (
	"bytes"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// Append returns the file with an item at the end of the list under a key of the document. item is one line or more of YAML,
// without the dash and without indentation; lines after the first belong to it. A key that is not there is added.
func Append(raw []byte, key, item string) ([]byte, error) {
	want, err := content(raw)
	if err != nil {
		return nil, err
	}
	var value any
	if err := yaml.Unmarshal([]byte(item), &value); err != nil {
		return nil, ErrLayout
	}
	var list []any
	if there, ok := want[key]; ok && there != nil {
		if list, ok = there.([]any); !ok {
			return nil, ErrLayout
		}
	}
	want[key] = append(slices.Clone(list), value)
	out, err := appendItem(raw, key, item)
	if err != nil {
		return nil, err
	}
	return out, verify(out, want)
}

func appendItem(raw []byte, key, item string) ([]byte, error) {
	root, err := mapping(raw)
	if err != nil {
		return nil, err
	}
	lines := split(raw)
	node := walk(root, []string{key})
	if node == nil {
		out := append(ended(raw), Key(key)+":\n"...)
		return append(out, dashed(item, "  ")...), nil
	}
	at := node.Key.GetToken().Position
	switch v := node.Value.(type) {
	case *ast.NullNode:
		out := ended(bytes.Join(lines[:at.Line], nil))
		return append(append(out, dashed(item, "  ")...), bytes.Join(lines[at.Line:], nil)...), nil
	case *ast.SequenceNode:
		if v.IsFlowStyle {
			return unfold(lines, node, v, item)
		}
		items, err := located(lines, v, at.Line-1)
		if err != nil || len(items) == 0 {
			return nil, ErrLayout
		}
		last := items[len(items)-1]
		out := ended(bytes.Join(lines[:last.end], nil))
		return append(append(out, dashed(item, last.indent)...), bytes.Join(lines[last.end:], nil)...), nil
	}
	return nil, ErrLayout
}

// unfold writes a list in brackets, of scalars and on one line, as lines, with one item more.
func unfold(lines [][]byte, node *ast.MappingValueNode, v *ast.SequenceNode, item string) ([]byte, error) {
	at := node.Key.GetToken().Position
	line := string(lines[at.Line-1])
	open, end := strings.Index(line, "["), strings.LastIndex(line, "]")
	if open < 0 || end < open || lastLine(v) != at.Line {
		return nil, ErrLayout
	}
	if rest := strings.TrimSpace(line[end+1:]); rest != "" && !strings.HasPrefix(rest, "#") {
		return nil, ErrLayout
	}
	head := strings.TrimRight(line[:open], " ") + strings.TrimRight(line[end+1:], "\r\n") + "\n"
	out := append(bytes.Join(lines[:at.Line-1], nil), head...)
	for _, value := range v.Values {
		scalar, ok := value.(ast.ScalarNode)
		if !ok || !single(value) {
			return nil, ErrLayout
		}
		text := strings.TrimSpace(scalar.GetToken().Origin)
		out = append(out, dashed(text, "  ")...)
	}
	out = append(out, dashed(item, "  ")...)
	return append(out, bytes.Join(lines[at.Line:], nil)...), nil
}

// Remove returns the file without the items of the list under a key of the document that match: their lines, with the comment
// at their end. It is ErrUnknown if none does.
func Remove(raw []byte, key string, match func(item any, text string) bool) ([]byte, error) {
	want, err := content(raw)
	if err != nil {
		return nil, err
	}
	list, ok := want[key].([]any)
	if !ok {
		return nil, ErrUnknown
	}
	root, err := mapping(raw)
	if err != nil {
		return nil, err
	}
	node := walk(root, []string{key})
	if node == nil {
		return nil, ErrUnknown
	}
	v, ok := node.Value.(*ast.SequenceNode)
	if !ok || len(v.Values) != len(list) {
		return nil, ErrLayout
	}
	if v.IsFlowStyle {
		return removeFolded(raw, node, v, want, key, match)
	}
	lines := split(raw)
	at := node.Key.GetToken().Position.Line - 1
	items, err := located(lines, v, at)
	if err != nil {
		return nil, err
	}
	var kept []any
	for i := len(items) - 1; i >= 0; i-- {
		text := string(bytes.Join(lines[items[i].start:items[i].end], nil))
		if !match(list[i], text) {
			kept = append(kept, list[i])
			continue
		}
		lines = slices.Delete(lines, items[i].start, items[i].end)
	}
	if len(kept) == len(list) {
		return nil, ErrUnknown
	}
	slices.Reverse(kept)
	want[key] = kept
	if len(kept) == 0 {
		// A key with nothing behind it says nothing; an empty list says none.
		head := strings.TrimRight(string(lines[at]), "\r\n")
		colon := strings.Index(head, ":")
		lines[at] = []byte(head[:colon+1] + " []" + head[colon+1:] + "\n")
		want[key] = []any{}
	}
	out := bytes.Join(lines, nil)
	return out, verify(out, want)
}

// removeFolded takes items out of a list in brackets, of scalars and on one line.
func removeFolded(
	raw []byte, node *ast.MappingValueNode, v *ast.SequenceNode, want map[string]any, key string, match func(any, string) bool,
) ([]byte, error) {
	lines := split(raw)
	at := node.Key.GetToken().Position
	line := string(lines[at.Line-1])
	open, end := strings.Index(line, "["), strings.LastIndex(line, "]")
	list, _ := want[key].([]any)
	if open < 0 || end < open || lastLine(v) != at.Line {
		return nil, ErrLayout
	}
	var texts []string
	kept := []any{}
	for i, value := range v.Values {
		text := strings.TrimSpace(value.GetToken().Origin)
		if _, ok := value.(ast.ScalarNode); !ok || !single(value) {
			return nil, ErrLayout
		}
		if !match(list[i], text) {
			texts, kept = append(texts, text), append(kept, list[i])
		}
	}
	if len(kept) == len(list) {
		return nil, ErrUnknown
	}
	want[key] = kept
	lines[at.Line-1] = []byte(line[:open] + "[" + strings.Join(texts, ", ") + line[end:])
	out := bytes.Join(lines, nil)
	return out, verify(out, want)
}

// Has reports whether the list under a key of the document holds a value.
func Has(raw []byte, key string, value any) bool {
	m, err := content(raw)
	if err != nil {
		return false
	}
	list, _ := m[key].([]any)
	return slices.ContainsFunc(list, func(v any) bool { return reflect.DeepEqual(v, value) })
}

// dashed writes an item.
func dashed(item, indent string) []byte {
	var b bytes.Buffer
	for i, line := range strings.Split(strings.TrimRight(item, "\n"), "\n") {
		lead := "  "
		if i == 0 {
			lead = "- "
		}
		b.WriteString(indent + lead + line + "\n")
	}
	return b.Bytes()
}

// place is where an item stands: lines [start, end), without blank lines and comments behind it.
type place struct {
	start, end int
	indent     string
}

func located(lines [][]byte, v *ast.SequenceNode, key int) ([]place, error) {
	var items []place
	for _, value := range v.Values {
		token := value.GetToken()
		switch n := value.(type) {
		case *ast.MappingNode:
			if len(n.Values) > 0 && !n.IsFlowStyle {
				token = n.Values[0].Key.GetToken()
			}
		case *ast.MappingValueNode:
			token = n.Key.GetToken()
		}
		start := token.Position.Line - 1
		for start > key && !bytes.HasPrefix(bytes.TrimLeft(lines[start], " "), []byte("-")) {
			start--
		}
		if start <= key || len(items) > 0 && start <= items[len(items)-1].start {
			return nil, ErrLayout
		}
		text := lines[start]
		items = append(items, place{start, max(start+1, lastLine(value)), string(text[:len(text)-len(bytes.TrimLeft(text, " "))])})
	}
	return items, nil
}
