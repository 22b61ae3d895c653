package edit

import (
	"bytes"
	"reflect"
	"strconv"

	"github.com/goccy/go-yaml"

	"durward.internal/services/platform/config"
)

func isScalar(v any) bool {
	switch v.(type) {
	case string, bool, int, int64, uint64, float64:
		return true
	}
	return false
}

// content is what a file says.
func content(raw []byte) (map[string]any, error) {
	out := map[string]any{}
	if config.Blank(raw) {
		return out, nil
	}
	if err := yaml.Unmarshal(raw, &out); err != nil {
		return nil, ErrLayout
	}
	if out == nil {
		out = map[string]any{}
	}
	return out, nil
}

func put(m map[string]any, path []string, value any) error {
	for ; len(path) > 1; path = path[1:] {
		switch inner := m[path[0]].(type) {
		case map[string]any:
			m = inner
		case []any:
			if m = itemOf(inner, path[1]); m == nil || len(path) < 3 {
				return ErrLayout
			}
			path = path[1:]
		case nil:
			next := map[string]any{}
			m[path[0]], m = next, next
		default:
			return ErrLayout
		}
	}
	m[path[0]] = value
	return nil
}

func drop(m map[string]any, path []string) {
	for ; len(path) > 1; path = path[1:] {
		if list, ok := m[path[0]].([]any); ok {
			if m = itemOf(list, path[1]); m == nil {
				return
			}
			path = path[1:]
			continue
		}
		inner, ok := m[path[0]].(map[string]any)
		if !ok {
			return
		}
		if len(path) == 2 {
			delete(inner, path[1])
			if len(inner) == 0 {
				m[path[0]] = nil // what a key with nothing behind it says
			}
			return
		}
		m = inner
	}
	delete(m, path[0])
}

// itemOf returns the item with that number of a list, if it holds keys, or nil.
func itemOf(list []any, number string) map[string]any {
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n >= len(list) {
		return nil
	}
	item, _ := list[n].(map[string]any)
	return item
}

func verify(out []byte, want map[string]any) error {
	got, err := content(out)
	if err != nil || !reflect.DeepEqual(got, want) {
		return ErrLayout
	}
	return nil
}

func split(raw []byte) [][]byte {
	lines := bytes.SplitAfter(raw, []byte("\n"))
	if n := len(lines); n > 0 && len(lines[n-1]) == 0 {
		lines = lines[:n-1]
	}
	for i := range lines {
		lines[i] = bytes.Clone(lines[i])
	}
	return lines
}

func ended(b []byte) []byte {
	if len(b) > 0 && b[len(b)-1] != '\n' {
		b = append(b, '\n')
	}
	return b
}
