// Package unattended reads the list, in a sink's own file, of calls beyond READ that run there without a human's statement, holds it
// to the contract and compares calls with it. The file is trusted: a human wrote it. The calls are not.
package unattended

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/pattern"
)

// Entry is one entry of the list. A call must meet all of an entry, and one entry will do.
type Entry struct {
	Tool string
	// Clients are the principals; none: any.
	Clients []string
	// Arguments lists, for an argument, the values that it may have, as RFC 8785 JSON; a call must give each argument that is
	// named here. One that is not named may have any value.
	Arguments map[string][]json.RawMessage
	// Until is when the entry ends, by the sink's own clock; zero: never.
	Until time.Time
}

// Bounds of a list.
const (
	maxEntries = 1000
	maxValues  = 1000
)

var (
	clientID = pattern.New(`\A[a-z0-9][a-z0-9_-]{0,63}\z`)
	// serversTool is how a tool of another's server is called.
	serversTool = pattern.New(`\A[a-z][a-z0-9-]{0,31}` + contract.Separator + `[A-Za-z0-9_.-]{1,64}\z`)
)

// Parse reads the entries as a strict YAML file holds them: a tool's name, or {tool, clients, arguments, until}. What is wrong is said
// with the number of the entry, from 1. An entry that has ended is no mistake: it lets nothing run. Whether a sink has the tools is for
// Check.
func Parse(items []any) ([]Entry, error) {
	var out []Entry
	for i, item := range items {
		e, err := parse(item)
		if err != nil {
			return nil, fmt.Errorf("unattended: entry %d: %w", i+1, err)
		}
		out = append(out, e)
	}
	return out, nil
}

func parse(item any) (e Entry, err error) {
	if name, ok := item.(string); ok {
		return Entry{Tool: name}, nil
	}
	object, ok := item.(map[string]any)
	if !ok {
		return e, fmt.Errorf("must be a tool's name, or {tool, clients, arguments, until}")
	}
	for key, value := range object {
		switch key {
		case "tool":
			if e.Tool, ok = value.(string); !ok {
				return e, fmt.Errorf("tool: must be text")
			}
		case "clients":
			if e.Clients, err = texts(value); err != nil {
				return e, fmt.Errorf("clients: %w", err)
			}
		case "arguments":
			if e.Arguments, err = listedArguments(value); err != nil {
				return e, fmt.Errorf("arguments: %w", err)
			}
		case "until":
			if e.Until, err = parseUntil(value); err != nil {
				return e, fmt.Errorf("until: %w", err)
			}
		default:
			return e, fmt.Errorf("unknown key %q%s", key, config.DidYouMean(key, []string{"tool", "clients", "arguments", "until"}))
		}
	}
	if e.Tool == "" {
		return e, fmt.Errorf("tool: is required")
	}
	return e, nil
}

// moment is RFC 3339 to the second.
var moment = pattern.New(`\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})\z`)

// parseUntil reads a moment. One before this age is refused: the earliest of them all would stand for no end.
func parseUntil(value any) (time.Time, error) {
	text, ok := value.(string)
	if !ok {
		return time.Time{}, fmt.Errorf("must be a time like 2026-01-31T18:00:00Z; leave it out for no end")
	}
	t, err := time.Parse(time.RFC3339, text)
	if !moment().MatchString(text) || err != nil || t.Year() < 2000 {
		return time.Time{}, fmt.Errorf("%q is no time like 2026-01-31T18:00:00Z", text)
	}
	return t.UTC(), nil
}

// texts reads a list of texts. A list without any would say the opposite of what it seems to: it is refused.
func texts(value any) ([]string, error) {
	list, ok := value.([]any)
	if !ok || len(list) == 0 {
		return nil, fmt.Errorf("must be a list with at least one entry; leave it out for any")
	}
	var out []string
	for _, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil, fmt.Errorf("must be texts")
		}
		out = append(out, text)
	}
	return out, nil
}

func listedArguments(value any) (map[string][]json.RawMessage, error) {
	object, ok := value.(map[string]any)
	if !ok || len(object) == 0 {
		return nil, fmt.Errorf("must be {argument: [values]}; leave it out for any")
	}
	out := map[string][]json.RawMessage{}
	for name, values := range object {
		list, ok := values.([]any)
		if !ok || len(list) == 0 {
			return nil, fmt.Errorf("%s: must be a list with at least one value; leave it out for any", name)
		}
		for _, one := range list {
			raw, err := canonical.Marshal(one)
			if err != nil {
				return nil, fmt.Errorf("%s: has a value that no argument can have", name)
			}
			out[name] = append(out[name], raw)
		}
	}
	return out, nil
}

// Check holds the entries to the tools that a sink of that role serves.
func Check(entries []Entry, role optionsv1.Role) error {
	if len(entries) > maxEntries {
		return fmt.Errorf("unattended: more than %d entries", maxEntries)
	}
	for i, e := range entries {
		if err := e.check(role); err != nil {
			return fmt.Errorf("unattended: entry %d: %w", i+1, err)
		}
	}
	return nil
}

func (e Entry) check(role optionsv1.Role) error {
	tool, ok := contract.Native(e.Tool)
	if !ok && role == contract.ServersSink && serversTool().MatchString(e.Tool) {
		// Which servers are in force changes while the sink runs, and what is in no force calls nothing: that is for Idle to say.
		tool, ok = contract.Tool{Sink: role, Foreign: &contract.Foreign{}}, true
	}
	if !ok || tool.Sink != role {
		var names []string
		for _, t := range contract.Tools() {
			if t.Sink == role {
				names = append(names, t.Name)
			}
		}
		return fmt.Errorf("%q is not a tool of this sink%s", e.Tool, config.DidYouMean(e.Tool, names))
	}
	return e.fits(tool)
}

// fits holds an entry to its tool.
func (e Entry) fits(tool contract.Tool) error {
	if desktop.Controls(tool) {
		return fmt.Errorf("%q controls the desktop, which never runs without a human", e.Tool)
	}
	for _, c := range e.Clients {
		if !clientID().MatchString(c) {
			return fmt.Errorf("clients: %q is not a client's id", c)
		}
	}
	for name, values := range e.Arguments {
		if len(values) == 0 || len(values) > maxValues {
			return fmt.Errorf("arguments: %s: must have 1 to %d values", name, maxValues)
		}
		if tool.Foreign != nil {
			continue
		}
		fd := tool.Method.Input().Fields().ByName(protoreflect.Name(name))
		if fd == nil {
			return fmt.Errorf("arguments: %s has no argument %q", e.Tool, name)
		}
		for _, v := range values {
			if !mayHold(fd, v) {
				return fmt.Errorf("arguments: %s: %s is not a value of that argument", name, v)
			}
		}
	}
	return nil
}

// Idle says why the entry lets nothing run as it is now: it is for a tool of another's server that is not in force, or whose schema names no
// such argument. "" for every other.
func (e Entry) Idle() string {
	tool, ok := contract.Lookup(e.Tool)
	if !ok {
		return "no server in force has that tool"
	}
	for _, name := range slices.Sorted(maps.Keys(e.Arguments)) {
		if tool.Foreign != nil && !tool.HasArgument(name) {
			return fmt.Sprintf("the tool's schema names no argument %q", name)
		}
	}
	return ""
}

// mayHold reports whether an argument can have that value. Lists and objects cannot be listed.
func mayHold(fd protoreflect.FieldDescriptor, v json.RawMessage) bool {
	if fd.IsList() || fd.IsMap() || canonical.Check(v) != nil {
		return false
	}
	switch fd.Kind() {
	case protoreflect.StringKind:
		return v[0] == '"'
	case protoreflect.EnumKind:
		var name string
		return json.Unmarshal(v, &name) == nil && fd.Enum().Values().ByName(protoreflect.Name(name)) != nil
	case protoreflect.BoolKind:
		return string(v) == "true" || string(v) == "false"
	case protoreflect.Int32Kind, protoreflect.Uint32Kind, protoreflect.Sint32Kind, protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind:
		return strings.Trim(string(v), "-0123456789") == ""
	}
	return false
}

// covers reports whether the entry is for a call of the tool by that principal with these arguments, in RFC 8785 form, at that time.
func (e Entry) covers(tool, principal string, arguments []byte, now time.Time) bool {
	if entryEnded(e.Until, now) || e.Tool != tool || len(e.Clients) > 0 && !slices.Contains(e.Clients, principal) {
		return false
	}
	var own map[string]json.RawMessage
	if len(e.Arguments) > 0 && json.Unmarshal(arguments, &own) != nil {
		return false
	}
	for name, values := range e.Arguments {
		if !argumentListed(values, own[name]) {
			return false
		}
	}
	return true
}

// contains reports whether one of the values is the argument's; an argument that is not there has none.
func contains(values []json.RawMessage, own json.RawMessage) bool {
	return len(own) > 0 && slices.ContainsFunc(values, func(v json.RawMessage) bool { return bytes.Equal(v, own) })
}

// Cover reports whether one of the entries is for a call of the tool by that principal with these arguments, in RFC 8785 form, at
// that time. A tool that controls the desktop never runs without a human, whatever is listed.
func Cover(entries []Entry, tool contract.Tool, principal string, arguments []byte, now time.Time) bool {
	return !desktop.Controls(tool) && slices.ContainsFunc(entries, func(e Entry) bool { return e.covers(tool.Name, principal, arguments, now) })
}
