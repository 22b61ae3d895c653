// Package tryout makes the calls on which rules are tried: from words that a person typed, and from the cases of a file. Nobody makes
// these calls.
//
// It runs in the operator's process. What it makes is held to the contract, as edge and sink do.
package tryout

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
)

// Error says what is wrong with a call, and what to write instead.
type Error struct{ Text, Next string }

func (e *Error) Error() string { return e.Text }

func wrong(next, format string, args ...any) error {
	return &Error{Text: fmt.Sprintf(format, args...), Next: next}
}

// Arguments turns what was typed into the canonical arguments of a call, held to the contract as a call's would be.
func Arguments(tool contract.Tool, words []string) ([]byte, error) {
	raw := []byte("{}")
	switch {
	case len(words) == 1 && strings.HasPrefix(strings.TrimSpace(words[0]), "{"):
		raw = []byte(words[0])
	case len(words) > 0:
		object := map[string]any{}
		for _, w := range words {
			name, value, ok := strings.Cut(w, "=")
			if !ok {
				return nil, wrong("Write ARGUMENT=VALUE, or one JSON object.", "%q is no argument", clean.Visible(w))
			}
			typed, err := Value(tool, name, collection(tool, name, value))
			if err != nil {
				return nil, err
			}
			object[name] = typed
		}
		var err error
		if raw, err = json.Marshal(object); err != nil {
			return nil, err
		}
	}
	return decode(tool, raw)
}

// collection writes words with commas between them as the JSON list that an argument is, and words with values, "chat=8192", as the
// JSON object. What is JSON already stays as it is, and so does what is neither.
func collection(tool contract.Tool, name, text string) string {
	properties, _ := tool.InputSchema["properties"].(map[string]any)
	property, _ := properties[name].(map[string]any)
	if strings.HasPrefix(text, "[") || strings.HasPrefix(text, "{") {
		return text
	}
	var value any
	switch property["type"] {
	case "array":
		value = strings.Split(text, ",")
	case "object":
		object := map[string]json.RawMessage{}
		for pair := range strings.SplitSeq(text, ",") {
			key, of, ok := strings.Cut(pair, "=")
			if _, twice := object[key]; !ok || twice || !json.Valid([]byte(of)) {
				return text
			}
			object[key] = json.RawMessage(of)
		}
		value = object
	default:
		return text
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return text
	}
	return string(raw)
}

// decode holds arguments to the contract, as edge and sink do.
func decode(tool contract.Tool, raw []byte) ([]byte, error) {
	var object map[string]any
	// A plan's digest says what was looked at, which nobody has here.
	if properties, _ := tool.InputSchema["properties"].(map[string]any); properties["plan_digest"] != nil && json.Unmarshal(raw, &object) == nil && object != nil {
		if _, given := object["plan_digest"]; !given {
			object["plan_digest"] = strings.Repeat("0", 64)
			if filled, err := json.Marshal(object); err == nil {
				raw = filled
			}
		}
	}
	flat, err := canonical.Transform(raw)
	if err != nil {
		return nil, wrong("", "the arguments are not one JSON object")
	}
	message, err := tool.Decode(flat)
	if err != nil {
		return nil, wrong("", "%s does not take these arguments: %s", tool.Name, clean.Line(err.Error(), 300))
	}
	arguments, err := contract.Canonical(message)
	if err != nil {
		return nil, wrong("", "%s does not take these arguments", tool.Name)
	}
	return arguments, nil
}

// Value reads a word as the argument's type has it.
func Value(tool contract.Tool, name, value string) (any, error) {
	properties, _ := tool.InputSchema["properties"].(map[string]any)
	property, ok := properties[name].(map[string]any)
	if !ok {
		next := "It takes none."
		if known := slices.Sorted(maps.Keys(properties)); len(known) > 0 {
			next = "It takes " + strings.Join(known, ", ")
		}
		return nil, wrong(next, "%s has no argument %s", tool.Name, clean.Visible(name))
	}
	if property["type"] == "string" {
		return value, nil
	}
	var typed any
	if err := json.Unmarshal([]byte(value), &typed); err != nil {
		return nil, wrong("Write it as JSON.", "%q is no value of %s", clean.Visible(value), name)
	}
	return typed, nil
}
