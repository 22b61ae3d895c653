// Package draft lays out new entries of a catalog, and puts them into its file, where comments, layout and order stay as their
// author left them.
//
// It runs in the operator's process, on files that a human owns. It does not judge an entry, which package catalog does afterwards.
package draft

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"durward.internal/services/operator/internal/edit"
)

// Reasons why an entry is not taken.
var (
	// ErrEntry means that it is not one mapping of keys to values.
	ErrEntry = errors.New("an entry is one mapping, in YAML or JSON, without anchors, tags or a second document")
	// ErrTooLarge means that it is larger than any entry needs to be.
	ErrTooLarge = errors.New("the entry is larger than 64 kB")
)

const maxEntry = 64 << 10

// Entry is a new entry's YAML: the lines of one block mapping, without indentation.
type Entry struct {
	lines []string
	// value is what the lines mean, for comparing.
	value map[string]any
}

// Lines returns the entry's lines.
func (e Entry) Lines() []string { return slices.Clone(e.lines) }

// String is the text that an entry's key holds, or "".
func (e Entry) String(key string) string {
	text, _ := e.value[key].(string)
	return text
}

// Read takes an entry as somebody wrote it. YAML in block style keeps its comments and its layout; JSON, and YAML in flow
// style, is laid out anew.
func Read(raw []byte) (Entry, error) {
	if len(raw) > maxEntry {
		return Entry{}, ErrTooLarge
	}
	text := strings.ReplaceAll(strings.TrimPrefix(string(raw), "\ufeff"), "\r\n", "\n")
	text = strings.TrimPrefix(text, "---\n")
	var value map[string]any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil || len(value) == 0 {
		return Entry{}, ErrEntry
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		var ordered yaml.MapSlice
		if err := yaml.UnmarshalWithOptions([]byte(text), &ordered, yaml.UseOrderedMap()); err != nil {
			return Entry{}, ErrEntry
		}
		return Make(ordered)
	}
	lines := strings.Split(strings.Trim(text, "\n"), "\n")
	indent := ""
	for _, line := range lines {
		if content := strings.TrimLeft(line, " "); content != "" && content[0] != '#' {
			indent = line[:len(line)-len(content)]
			break
		}
	}
	for i, line := range lines {
		if after, ok := strings.CutPrefix(line, indent); ok {
			line = after
		} else {
			// A comment or an empty line that stands further left than the entry.
			line = strings.TrimLeft(line, " ")
		}
		lines[i] = strings.TrimRight(line, " ")
	}
	return checked(lines)
}

// Make lays out an entry from keys and values in order. Values are strings, bools, numbers, lists and mappings of them.
func Make(fields yaml.MapSlice) (Entry, error) {
	lines, err := block(fields, 0)
	if err != nil {
		return Entry{}, err
	}
	return checked(lines)
}

// checked holds what was laid out against the YAML library.
func checked(lines []string) (Entry, error) {
	e := Entry{lines: lines}
	if err := yaml.Unmarshal([]byte(strings.Join(lines, "\n")+"\n"), &e.value); err != nil || len(e.value) == 0 {
		return Entry{}, ErrEntry
	}
	for _, line := range lines {
		if line == "---" || line == "..." || strings.HasPrefix(line, "--- ") {
			return Entry{}, ErrEntry
		}
	}
	// It has to mean in a list what it means alone: a key of null does not.
	var placed []any
	if err := yaml.Unmarshal([]byte("- "+strings.Join(lines, "\n  ")+"\n"), &placed); err != nil || len(placed) != 1 || !reflect.DeepEqual(placed[0], any(e.value)) {
		return Entry{}, ErrEntry
	}
	return e, nil
}

// wide is the length from which a list or mapping in flow style becomes a block.
const wide = 100

// block lays out a mapping over lines.
func block(fields yaml.MapSlice, indent int) ([]string, error) {
	var lines []string
	pad := strings.Repeat(" ", indent)
	for _, field := range fields {
		key, ok := field.Key.(string)
		if !ok {
			return nil, ErrEntry
		}
		name := edit.Text(key)
		value, err := flow(field.Value)
		if err != nil {
			return nil, err
		}
		if len(pad)+len(name)+2+len(value) <= wide {
			lines = append(lines, pad+name+": "+value)
			continue
		}
		var below []string
		switch v := field.Value.(type) {
		case yaml.MapSlice:
			below, err = block(v, indent+2)
		case []any:
			below, err = list(v, indent+2)
		default:
			lines = append(lines, pad+name+": "+value)
			continue
		}
		if err != nil {
			return nil, err
		}
		lines = append(append(lines, pad+name+":"), below...)
	}
	return lines, nil
}

func list(items []any, indent int) ([]string, error) {
	var lines []string
	for _, item := range items {
		value, err := flow(item)
		if err != nil {
			return nil, err
		}
		lines = append(lines, strings.Repeat(" ", indent)+"- "+value)
	}
	return lines, nil
}

// flow writes a value on one line.
func flow(value any) (string, error) {
	switch v := value.(type) {
	case yaml.MapSlice:
		parts := make([]string, 0, len(v))
		for _, field := range v {
			key, ok := field.Key.(string)
			if !ok {
				return "", ErrEntry
			}
			item, err := flow(field.Value)
			if err != nil {
				return "", err
			}
			parts = append(parts, edit.Text(key)+": "+item)
		}
		return "{" + strings.Join(parts, ", ") + "}", nil
	case []any:
		return flowList(v)
	case []string:
		return flowList(v)
	case []uint32:
		return flowList(v)
	case string:
		return edit.Text(v), nil
	case bool, int, int64, uint64, uint32, float64:
		return fmt.Sprint(v), nil
	default:
		return "", ErrEntry
	}
}

func flowList[T any](items []T) (string, error) {
	parts := make([]string, len(items))
	for i, item := range items {
		var err error
		if parts[i], err = flow(item); err != nil {
			return "", err
		}
	}
	return "[" + strings.Join(parts, ", ") + "]", nil
}

// Sections of a catalog that entries are put into.
const (
	GPUs     = "gpus"
	Models   = "models"
	Services = "services"
	Modes    = "modes"
)

// Append returns the file's text with the entry as the last of a section's list, and the line at which the entry begins, 1
// for the first. A section that is missing is made, at the end.
func Append(text []byte, section string, e Entry) (out []byte, line int, err error) {
	return edit.Insert(text, section, strings.Join(e.lines, "\n"))
}
