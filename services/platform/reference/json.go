package reference

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Place is a reference in a JSON text: the strings that hold it are named by their pointer (RFC 6901).
type Place struct {
	Pointer string
	Reference
}

// maxDepth is how deep a JSON text may be nested.
const maxDepth = 100

// InJSON returns the references in the strings of a canonical JSON text (RFC 8785), each once for each string, members in the order of their names.
func InJSON(raw []byte) ([]Place, error) {
	if !bytes.Contains(raw, []byte(idPrefix)) {
		return nil, nil // the canonical form escapes no letter
	}
	var out []Place
	_, err := Fill(raw, func(p Place) (string, error) {
		if slices.Contains(out, p) {
			return p.Marshal(), nil
		}
		out = append(out, p)
		return p.Marshal(), nil
	})
	return out, err
}

// Fill returns a JSON text with each reference in its strings replaced by what value says. References in names of members are text.
func Fill(raw []byte, value func(Place) (string, error)) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	filled, err := fill(tree, "", 0, value)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(filled); err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func fill(v any, pointer string, depth int, value func(Place) (string, error)) (any, error) {
	if depth > maxDepth {
		return nil, errors.New("the JSON is nested too deep")
	}
	switch v := v.(type) {
	case string:
		found, _ := Scan(v, nil)
		var b strings.Builder
		at := 0
		for _, f := range found {
			text, err := value(Place{pointer, f.Reference})
			if err != nil {
				return nil, err
			}
			b.WriteString(v[at:f.From])
			b.WriteString(text)
			at = f.To
		}
		b.WriteString(v[at:])
		return b.String(), nil
	case []any:
		for i := range v {
			filled, err := fill(v[i], pointer+"/"+strconv.Itoa(i), depth+1, value)
			if err != nil {
				return nil, err
			}
			v[i] = filled
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			filled, err := fill(v[name], string(jsontext.Pointer(pointer).AppendToken(name)), depth+1, value)
			if err != nil {
				return nil, err
			}
			v[name] = filled
		}
	}
	return v, nil
}
