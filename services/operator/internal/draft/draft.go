// Package draft puts new entries into a catalog's file without touching any other byte of it: comments, layout and order
// stay as their author left them.
//
// It runs in the operator's process, on files that a human owns. It does not judge an entry, which package catalog does
// afterwards; it makes sure that the file means what it meant, and the new entry beside it.
package draft

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Sections of a catalog that entries are put into.
const (
	GPUs     = "gpus"
	Models   = "models"
	Services = "services"
	Modes    = "modes"
)

// ErrLayout means that the file is laid out in a way that this package cannot edit safely.
var ErrLayout = errors.New("the file is laid out in a way that cannot be edited safely; put the entry in by hand")

// Append returns the file's text with the entry as the last of a section's list, and the line at which the entry begins, 1
// for the first. A section that is missing is made, at the end.
func Append(text []byte, section string, e Entry) (out []byte, line int, err error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil || len(file.Docs) != 1 {
		return nil, 0, ErrLayout
	}
	root, ok := file.Docs[0].Body.(*ast.MappingNode)
	if !ok {
		if one, isOne := file.Docs[0].Body.(*ast.MappingValueNode); isOne {
			root = ast.Mapping(one.GetToken(), false, one)
		} else {
			return nil, 0, ErrLayout
		}
	}
	if root.IsFlowStyle {
		return nil, 0, ErrLayout
	}
	d := &document{newline: "\n"}
	if bytes.Contains(text, []byte("\r\n")) {
		d.newline = "\r\n"
	}
	d.lines = strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	if d.lines[len(d.lines)-1] == "" {
		d.lines = d.lines[:len(d.lines)-1]
	}
	if line, err = d.put(root, section, e); err != nil {
		return nil, 0, err
	}
	out = []byte(strings.Join(d.lines, d.newline) + d.newline)
	if !means(text, out, section, e) {
		return nil, 0, ErrLayout
	}
	return out, line, nil
}

// means reports whether after is before with the entry at the end of the section, and nothing else.
func means(before, after []byte, section string, e Entry) bool {
	var old, now map[string]any
	if yaml.Unmarshal(before, &old) != nil || yaml.Unmarshal(after, &now) != nil {
		return false
	}
	list, _ := old[section].([]any)
	old[section] = append(slices.Clone(list), any(e.value))
	return reflect.DeepEqual(old, now)
}

type document struct {
	lines   []string
	newline string
}

// indentation is what a list's entries begin with where there is none to look at.
const indentation = "  "

// put changes the lines and returns where the entry begins.
func (d *document) put(root *ast.MappingNode, section string, e Entry) (int, error) {
	at := slices.IndexFunc(root.Values, func(v *ast.MappingValueNode) bool { return v.Key.GetToken().Value == section })
	if at < 0 {
		return d.insert(len(d.lines), indentation, e, "", section+":"), nil
	}
	key := root.Values[at].Key.GetToken().Position.Line
	if key < 1 || key > len(d.lines) {
		return 0, ErrLayout
	}
	switch value := root.Values[at].Value.(type) {
	case *ast.NullNode:
		return d.insert(key, indentation, e), nil
	case *ast.SequenceNode:
		if value.IsFlowStyle {
			return d.flow(key, value, e)
		}
		if value.Start == nil || value.Start.Position == nil || value.Start.Position.Line <= key {
			return 0, ErrLayout
		}
		end := len(d.lines)
		for _, other := range root.Values {
			if line := other.Key.GetToken().Position.Line; line > key && line <= end {
				end = line - 1
			}
		}
		return d.append(value.Start.Position.Line, end, e)
	default:
		return 0, ErrLayout
	}
}

// append puts the entry behind a block list that stands on the lines first to end, 1 for the first, both included. What
// trails the list and is indented no deeper than it (empty lines, the next section's comment) stays behind the entry.
func (d *document) append(first, end int, e Entry) (int, error) {
	if first < 1 || first > end || end > len(d.lines) {
		return 0, ErrLayout
	}
	indent := leading(d.lines[first-1])
	last := end
	for last > first {
		content := strings.TrimSpace(d.lines[last-1])
		if content != "" && (content[0] != '#' || len(leading(d.lines[last-1])) > len(indent)) {
			break
		}
		last--
	}
	var before []string
	if d.spaced(first, last, indent) {
		before = []string{""}
	}
	return d.insert(last, indent, e, before...), nil
}

// spaced reports whether an empty line stands between the entries of the list.
func (d *document) spaced(first, last int, indent string) bool {
	for i := first; i < last; i++ {
		if !strings.HasPrefix(d.lines[i], indent+"- ") {
			continue
		}
		above := i - 1
		for above >= first && strings.HasPrefix(strings.TrimSpace(d.lines[above]), "#") {
			above--
		}
		return strings.TrimSpace(d.lines[above]) == ""
	}
	return false
}

// flow puts the entry into a list in brackets: an empty one becomes a block, and a longer one is refused.
func (d *document) flow(key int, list *ast.SequenceNode, e Entry) (int, error) {
	line := d.lines[key-1]
	open, shut := strings.Index(line, "["), strings.Index(line, "]")
	if len(list.Values) > 0 || open < 0 || shut < open || strings.TrimSpace(line[open+1:shut]) != "" {
		return 0, ErrLayout
	}
	d.lines[key-1] = strings.TrimRight(strings.TrimRight(line[:open], " ")+line[shut+1:], " ")
	return d.insert(key, indentation, e), nil
}

// insert puts lines, and then the entry as an element of a list, behind so many lines. It returns the entry's first line.
func (d *document) insert(behind int, indent string, e Entry, before ...string) int {
	added := slices.Clone(before)
	for i, line := range e.lines {
		switch {
		case i == 0:
			line = indent + "- " + line
		case line != "":
			line = indent + "  " + line
		}
		added = append(added, line)
	}
	d.lines = slices.Insert(d.lines, behind, added...)
	return behind + len(before) + 1
}

func leading(line string) string { return line[:len(line)-len(strings.TrimLeft(line, " "))] }
