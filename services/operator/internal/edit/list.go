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
	out, _, err := insert(raw, key, item, false)
	return out, err
}

// Insert is Append for a file of sections: a new section stands apart, and an item too if the others do. It returns the line, counted
// from 1, at which the item begins. A file without a document is ErrLayout.
func Insert(raw []byte, key, item string) (out []byte, line int, err error) {
	if root, err := mapping(raw); err != nil || len(root) == 0 {
		return nil, 0, ErrLayout
	}
	return insert(raw, key, item, true)
}

func insert(raw []byte, key, item string, apart bool) (out []byte, line int, err error) {
	want, err := content(raw)
	if err != nil {
		return nil, 0, err
	}
	var value any
	if err := yaml.Unmarshal([]byte(item), &value); err != nil {
		return nil, 0, ErrLayout
	}
	var list []any
	if there, ok := want[key]; ok && there != nil {
		if list, ok = there.([]any); !ok {
			return nil, 0, ErrLayout
		}
	}
	want[key] = append(slices.Clone(list), value)
	if out, line, err = insertItem(raw, key, item, apart); err != nil {
		return nil, 0, err
	}
	return out, line, verify(out, want)
}

// indentation is what an item begins with where there is none to look at.
const indentation = "  "

func insertItem(raw []byte, key, item string, apart bool) ([]byte, int, error) {
	root, err := mapping(raw)
	if err != nil {
		return nil, 0, err
	}
	newline := "\n"
	if bytes.Contains(raw, []byte("\r\n")) {
		newline = "\r\n"
	}
	lines := split(raw)
	// put writes the item, and what comes before it, behind so many lines.
	put := func(behind int, indent string, before ...string) ([]byte, int, error) {
		out := bytes.Join(lines[:behind], nil)
		if len(out) > 0 && out[len(out)-1] != '\n' {
			out = append(out, newline...)
		}
		for _, line := range slices.Concat(before, dashed(item, indent)) {
			out = append(append(out, line...), newline...)
		}
		return append(out, bytes.Join(lines[behind:], nil)...), behind + len(before) + 1, nil
	}
	node := walk(root, []string{key})
	if node == nil {
		head := []string{Text(key) + ":"}
		if apart {
			head = []string{"", head[0]}
		}
		return put(len(lines), indentation, head...)
	}
	at := node.Key.GetToken().Position
	switch v := node.Value.(type) {
	case *ast.NullNode:
		return put(at.Line, indentation)
	case *ast.SequenceNode:
		if v.IsFlowStyle {
			texts, err := unfold(lines, node, v)
			for i := range texts {
				texts[i] = indentation + "- " + texts[i]
			}
			if err != nil {
				return nil, 0, err
			}
			return put(at.Line, indentation, texts...)
		}
		if v.Start == nil || v.Start.Position == nil || v.Start.Position.Line <= at.Line || v.Start.Position.Line > len(lines) {
			return nil, 0, ErrLayout
		}
		first := v.Start.Position.Line - 1
		end := len(lines)
		for _, other := range root {
			if line := other.Key.GetToken().Position.Line; line > at.Line && line <= end {
				end = line - 1
			}
		}
		// What trails the list and is indented no deeper than it (empty lines, the next section's comment) stays behind the item.
		indent := leading(lines[first])
		for end > first+1 {
			text := bytes.TrimSpace(lines[end-1])
			if len(text) > 0 && (text[0] != '#' || len(leading(lines[end-1])) > len(indent)) {
				break
			}
			end--
		}
		if apart && spaced(lines[first:end], indent) {
			return put(end, indent, "")
		}
		return put(end, indent)
	}
	return nil, 0, ErrLayout
}

// spaced reports whether an empty line stands between the items of a list.
func spaced(list [][]byte, indent string) bool {
	for i := 1; i < len(list); i++ {
		if !bytes.HasPrefix(list[i], []byte(indent+"- ")) {
			continue
		}
		above := i - 1
		for above > 0 && bytes.HasPrefix(bytes.TrimSpace(list[above]), []byte("#")) {
			above--
		}
		return len(bytes.TrimSpace(list[above])) == 0
	}
	return false
}

func leading(line []byte) string { return string(line[:len(line)-len(bytes.TrimLeft(line, " "))]) }

// unfold takes a list in brackets, of scalars and on one line, away, and returns its items.
func unfold(lines [][]byte, node *ast.MappingValueNode, v *ast.SequenceNode) ([]string, error) {
	at := node.Key.GetToken().Position
	line := string(lines[at.Line-1])
	open, end := strings.Index(line, "["), strings.LastIndex(line, "]")
	if open < 0 || end < open || lastLine(v) != at.Line {
		return nil, ErrLayout
	}
	if rest := strings.TrimSpace(line[end+1:]); rest != "" && !strings.HasPrefix(rest, "#") {
		return nil, ErrLayout
	}
	var texts []string
	for _, value := range v.Values {
		scalar, ok := value.(ast.ScalarNode)
		if !ok || !single(value) {
			return nil, ErrLayout
		}
		texts = append(texts, strings.TrimSpace(scalar.GetToken().Origin))
	}
	lines[at.Line-1] = []byte(strings.TrimRight(line[:open], " ") + line[end+1:])
	return texts, nil
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
		start, end := items[i].start, items[i].end
		if blank := func(at int) bool { return len(bytes.TrimSpace(lines[at])) == 0 }; blank(start-1) && (end == len(lines) || blank(end)) {
			start-- // the empty line that parted it from the one before
		}
		lines = slices.Delete(lines, start, end)
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

// dashed are an item's lines.
func dashed(item, indent string) []string {
	lines := strings.Split(strings.TrimRight(item, "\n"), "\n")
	for i, line := range lines {
		switch {
		case i == 0:
			lines[i] = indent + "- " + line
		case line != "":
			lines[i] = indent + "  " + line
		}
	}
	return lines
}

// place is where an item stands: lines [start, end), without blank lines and comments behind it.
type place struct{ start, end int }

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
		items = append(items, place{start, max(start+1, lastLine(value))})
	}
	return items, nil
}
