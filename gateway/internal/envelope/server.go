package envelope

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
)

// ServerResult is Result of another's MCP server's answer: its parts, and its data put together again. Every text is wrapped, numbers are
// numbers where they are still what the server gave, and keys that are plain names stand as they are.
func ServerResult(m proto.Message) (json.RawMessage, error) {
	Clean(m)
	response, _ := m.(*egressv1.CallServerToolResponse)
	type part struct {
		Kind      string `json:"kind"`
		Text      string `json:"text"`
		MediaType string `json:"media_type,omitempty"`
	}
	out := struct {
		Content []part          `json:"content"`
		Data    json.RawMessage `json:"data,omitempty"`
	}{Content: []part{}}
	for _, c := range response.GetContent() {
		out.Content = append(out.Content, part{c.GetKind(), c.GetText(), c.GetMediaType()})
	}
	if response.GetShape() != "" {
		var err error
		if out.Data, err = assemble(response.GetShape(), response.GetLeaves()); err != nil {
			return nil, err
		}
	}
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	err := enc.Encode(out)
	return bytes.TrimRight(raw.Bytes(), "\n"), err
}

// assemble puts leaves into their places in a shape: a number stands for the text of that place, a text for the number, and so does
// each key for the key.
func assemble(shape string, leaves []string) (json.RawMessage, error) {
	dec := json.NewDecoder(strings.NewReader(shape))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, fmt.Errorf("a server's data has no shape: %w", err)
	}
	tree, err := fill(tree, func(place string) (string, error) {
		i, err := strconv.Atoi(place)
		if err != nil || i < 0 || i >= len(leaves) {
			return "", fmt.Errorf("a server's data refers to the leaf %.20q of %d", place, len(leaves))
		}
		return leaves[i], nil
	})
	if err != nil {
		return nil, err
	}
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	err = enc.Encode(tree)
	return bytes.TrimRight(raw.Bytes(), "\n"), err
}

func fill(v any, leaf func(place string) (string, error)) (_ any, err error) {
	switch v := v.(type) {
	case json.Number:
		return leaf(v.String())
	case string:
		text, err := leaf(v)
		if number := json.Number(unwrapped(text)); err == nil && json.Valid([]byte(number)) && strings.IndexAny(string(number), "-0123456789") == 0 {
			return number, nil
		}
		return text, err
	case []any:
		for i := range v {
			if v[i], err = fill(v[i], leaf); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		again := map[string]int{} // how often a key was taken, so that of many alike each is numbered at once
		places := slices.SortedFunc(maps.Keys(v), func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		for _, place := range places {
			item := v[place]
			key, err := leaf(place)
			if err != nil {
				return nil, err
			}
			if plain := unwrapped(key); plainKey(plain) {
				key = plain
			}
			// Keys in whose place the same stands by now, such as two credentials, are told apart: no member is lost.
			for first := key; taken(out, key); {
				again[first]++
				key = fmt.Sprintf("%s (%d)", first, again[first]+1)
			}
			if out[key], err = fill(item, leaf); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}

func taken(m map[string]any, key string) bool { _, is := m[key]; return is }

func unwrapped(s string) string {
	return strings.TrimSuffix(strings.TrimPrefix(s, outsideOpen), outsideClose)
}

// plainKey reports whether a key is a name, and can be nothing else.
func plainKey(s string) bool {
	return s != "" && len(s) <= 40 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}
