// Package unattended writes and finds the entries of the executor's list of calls that run without asking, each tied to the rule
// that it was written with. It works on a file's bytes; the operator signs what comes of it.
package unattended

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/operator/internal/edit"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/policy"
)

// ends finds the ends of rules and of the executor's entries, as they are written.
var ends = pattern.New(`context\.time\.unix < ([0-9]{1,12})|until: "?([0-9TZ:-]{20})"?`)

// OtherEnds are the ids that the same rule would have with the ends that a text speaks of, and with none: a rule's id is made of
// what it says, so that one with another end has another.
func OtherEnds(raw []byte, client string, tool contract.Tool, arguments map[string][]string, id string) []string {
	untils := []time.Time{{}}
	for _, found := range ends().FindAllSubmatch(raw, -1) {
		if unix, err := strconv.ParseInt(string(found[1]), 10, 64); err == nil {
			untils = append(untils, time.Unix(unix, 0))
		} else if until, err := time.Parse(time.RFC3339, string(found[2])); err == nil {
			untils = append(untils, until)
		}
	}
	var out []string
	for _, until := range untils {
		if other, _, err := policy.Allow(client, tool, arguments, "", until); err == nil && other != id && !slices.Contains(out, other) {
			out = append(out, other)
		}
	}
	return out
}

// Mark begins the comment that ties an entry of the executor's list to its rule.
const Mark = "# durward policy allow: "

// marked reports whether an entry of the executor's list bears the mark of a rule. A line that is commented out is no entry.
func marked(text, id string) bool {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if _, rest, ok := strings.Cut(line, Mark); ok && rest == id && !strings.HasPrefix(line, "#") {
			return true
		}
	}
	return false
}

// Has reports whether the executor's list has an entry that was written with a rule.
func Has(raw []byte, id string) bool {
	_, err := edit.Remove(raw, "unattended", func(_ any, text string) bool { return marked(text, id) })
	return marked(string(raw), id) && !errors.Is(err, edit.ErrUnknown)
}

// Without takes the entries that were written with rules out of the executor's list.
func Without(raw []byte, ids ...string) ([]byte, error) {
	if !slices.ContainsFunc(ids, func(id string) bool { return marked(string(raw), id) }) {
		return raw, nil
	}
	out, err := edit.Remove(raw, "unattended", func(_ any, text string) bool {
		return slices.ContainsFunc(ids, func(id string) bool { return marked(text, id) })
	})
	if errors.Is(err, edit.ErrUnknown) {
		return raw, nil
	}
	return out, err
}

// Entry is the entry that a sink's own list takes; a zero until: it does not end.
func Entry(tool contract.Tool, client string, arguments map[string][]string, id string, until time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "{tool: %s, clients: [%s]", edit.Text(tool.Name), edit.Text(client))
	for i, name := range slices.Sorted(maps.Keys(arguments)) {
		if i == 0 {
			b.WriteString(", arguments: {")
		} else {
			b.WriteString(", ")
		}
		values := make([]string, len(arguments[name]))
		for j, v := range arguments[name] {
			values[j] = edit.Text(v)
			if !isText(tool, name, v) {
				values[j] = v // a number or a bool
			}
		}
		fmt.Fprintf(&b, "%s: [%s]", edit.Text(name), strings.Join(values, ", "))
		if i == len(arguments)-1 {
			b.WriteString("}")
		}
	}
	if !until.IsZero() {
		fmt.Fprintf(&b, ", until: %q", until.UTC().Format(time.RFC3339))
	}
	fmt.Fprintf(&b, "} %s%s", Mark, id)
	return b.String()
}

// isText reports whether a value of an argument is a text, and no number or bool.
func isText(tool contract.Tool, name, value string) bool {
	properties, _ := tool.InputSchema["properties"].(map[string]any)
	property, known := properties[name].(map[string]any)
	var typed any
	if !known || property["type"] == "string" || json.Unmarshal([]byte(value), &typed) != nil {
		return true
	}
	_, text := typed.(string)
	return text
}
