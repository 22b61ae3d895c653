package downstream

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"durward.internal/services/platform/clean"
)

// Change is how a tool differs from what is pinned.
type Change string

// The changes.
const (
	New     Change = "new"
	Gone    Change = "gone"
	Changed Change = "changed"
)

// Difference is one tool, or for "" the server's instructions, that a server lists otherwise than it is pinned. Lines say in plain
// sentences what differs; what a server said stands in them made visible.
type Difference struct {
	Tool   string
	Change Change
	Lines  []string
}

// Diff compares what is pinned with what was listed and cleaned, as Pin has it. Tiers and roles are a human's, and not compared.
func Diff(pinned, listed Pinned) (out []Difference) {
	if pinned.Instructions != listed.Instructions {
		out = append(out, Difference{"", Changed, []string{changed("its instructions", pinned.Instructions, listed.Instructions)}})
	}
	before, after := byName(pinned.Tools), byName(listed.Tools)
	for _, name := range slices.Sorted(maps.Keys(merged(before, after))) {
		was, had := before[name]
		is, has := after[name]
		d := Difference{Tool: name}
		switch {
		case !has:
			d.Change, d.Lines = Gone, []string{"the server lists it no more"}
		case !had:
			d.Change, d.Lines = New, []string{"it was not there: " + shown(is.Description)}
		default:
			d.Change, d.Lines = Changed, differences(was, is)
		}
		if len(d.Lines) > 0 {
			out = append(out, d)
		}
	}
	return out
}

func byName(tools []Tool) map[string]Tool {
	out := map[string]Tool{}
	for _, t := range tools {
		out[t.Name] = t
	}
	return out
}

func merged[V any](a, b map[string]V) map[string]V {
	out := map[string]V{}
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

func shown(text string) string {
	if text == "" {
		return "nothing"
	}
	return fmt.Sprintf("%q", clean.Visible(clean.Line(text, 400)))
}

func changed(what, was, is string) string {
	if clean.Line(was, 400) == clean.Line(is, 400) { // it differs behind that, or in its blanks
		return what + " changed, behind its first 400 characters or in its blanks"
	}
	return fmt.Sprintf("%s: %s before, %s now", what, shown(was), shown(is))
}

func differences(was, is Tool) (lines []string) {
	for _, text := range []struct{ what, was, is string }{
		{"its title", was.Title, is.Title}, {"its description", was.Description, is.Description},
		{"what it says of its effects (a hint, no tier)", string(was.Annotations), string(is.Annotations)},
	} {
		if text.was != text.is {
			lines = append(lines, changed(text.what, text.was, text.is))
		}
	}
	if !bytes.Equal(was.Input, is.Input) {
		lines = append(lines, arguments(was.Input, is.Input)...)
	}
	if !bytes.Equal(was.Output, is.Output) {
		lines = append(lines, "the schema of its results changed")
	}
	return lines
}

// arguments says how two input schemas differ, argument by argument.
func arguments(was, is json.RawMessage) (lines []string) {
	type schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}
	var before, after schema
	if json.Unmarshal(was, &before) == nil && json.Unmarshal(is, &after) == nil {
		for _, name := range slices.Sorted(maps.Keys(merged(before.Properties, after.Properties))) {
			old, had := before.Properties[name]
			now, has := after.Properties[name]
			said := clean.Visible(clean.Line(name, 100))
			mustOld, mustNow := slices.Contains(before.Required, name), slices.Contains(after.Required, name)
			switch {
			case !had:
				lines = append(lines, fmt.Sprintf("the argument %s is new: %s", said, shown(string(now))))
			case !has:
				lines = append(lines, fmt.Sprintf("the argument %s is gone", said))
			case !bytes.Equal(old, now):
				lines = append(lines, changed("the argument "+said, string(old), string(now)))
			case mustOld != mustNow:
				lines = append(lines, fmt.Sprintf("the argument %s is %s", said, map[bool]string{true: "now required", false: "required no more"}[mustNow]))
			}
		}
	}
	if len(lines) == 0 {
		lines = []string{"the schema of its arguments changed"}
	}
	return lines
}
