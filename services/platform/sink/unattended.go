package sink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
)

// Unattended is one entry of a sink's own file: calls beyond READ that run here on a grant without a human's statement. A call
// must meet all of an entry, and one entry will do.
type Unattended struct {
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
	maxUnattended       = 1000
	maxUnattendedValues = 1000
)

var clientID = regexp.MustCompile(`\A[a-z0-9][a-z0-9_-]{0,63}\z`)

// ParseUnattended reads the entries as a strict YAML file holds them: a tool's name, or {tool, clients, arguments,
// until}. What is wrong is said with the number of the entry, from 1. An entry that has ended is no mistake: it lets nothing run. Whether a sink has the tools is for New and SetUnattended.
func ParseUnattended(items []any) ([]Unattended, error) {
	var out []Unattended
	for i, item := range items {
		u, err := parseUnattended(item)
		if err != nil {
			return nil, fmt.Errorf("unattended: entry %d: %w", i+1, err)
		}
		out = append(out, u)
	}
	return out, nil
}

func parseUnattended(item any) (u Unattended, err error) {
	if name, ok := item.(string); ok {
		return Unattended{Tool: name}, nil
	}
	object, ok := item.(map[string]any)
	if !ok {
		return u, fmt.Errorf("must be a tool's name, or {tool, clients, arguments, until}")
	}
	for key, value := range object {
		switch key {
		case "tool":
			if u.Tool, ok = value.(string); !ok {
				return u, fmt.Errorf("tool: must be text")
			}
		case "clients":
			if u.Clients, err = texts(value); err != nil {
				return u, fmt.Errorf("clients: %w", err)
			}
		case "arguments":
			if u.Arguments, err = listedArguments(value); err != nil {
				return u, fmt.Errorf("arguments: %w", err)
			}
		case "until":
			if u.Until, err = parseUntil(value); err != nil {
				return u, fmt.Errorf("until: %w", err)
			}
		default:
			hint := ""
			if near := config.Suggest(key, []string{"tool", "clients", "arguments", "until"}); len(near) > 0 {
				hint = fmt.Sprintf("; did you mean %q?", near[0])
			}
			return u, fmt.Errorf("unknown key %q%s", key, hint)
		}
	}
	if u.Tool == "" {
		return u, fmt.Errorf("tool: is required")
	}
	return u, nil
}

// moment is RFC 3339 to the second.
var moment = regexp.MustCompile(`\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})\z`)

// parseUntil reads a moment. One before this age is refused: the earliest of them all would stand for no end.
func parseUntil(value any) (time.Time, error) {
	text, ok := value.(string)
	if !ok {
		return time.Time{}, fmt.Errorf("must be a time like 2026-01-31T18:00:00Z; leave it out for no end")
	}
	t, err := time.Parse(time.RFC3339, text)
	if !moment.MatchString(text) || err != nil || t.Year() < 2000 {
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

// CheckUnattended holds the entries to the tools that a sink of that role serves.
func CheckUnattended(entries []Unattended, role optionsv1.Role) error {
	if len(entries) > maxUnattended {
		return fmt.Errorf("unattended: more than %d entries", maxUnattended)
	}
	for i, u := range entries {
		if err := u.check(role); err != nil {
			return fmt.Errorf("unattended: entry %d: %w", i+1, err)
		}
	}
	return nil
}

func (u Unattended) check(role optionsv1.Role) error {
	tool, ok := contract.Lookup(u.Tool)
	if !ok || tool.Sink != role {
		var names []string
		for _, t := range contract.Tools() {
			if t.Sink == role {
				names = append(names, t.Name)
			}
		}
		hint := ""
		if near := config.Suggest(u.Tool, names); len(near) > 0 {
			hint = fmt.Sprintf("; did you mean %q?", near[0])
		}
		return fmt.Errorf("%q is not a tool of this sink%s", u.Tool, hint)
	}
	return u.fits(tool)
}

// fits holds an entry to its tool.
func (u Unattended) fits(tool contract.Tool) error {
	if desktop.Controls(tool) {
		return fmt.Errorf("%q controls the desktop, which never runs without a human", u.Tool)
	}
	for _, c := range u.Clients {
		if !clientID.MatchString(c) {
			return fmt.Errorf("clients: %q is not a client's id", c)
		}
	}
	for name, values := range u.Arguments {
		fd := tool.Method.Input().Fields().ByName(protoreflect.Name(name))
		if fd == nil {
			return fmt.Errorf("arguments: %s has no argument %q", u.Tool, name)
		}
		if len(values) == 0 || len(values) > maxUnattendedValues {
			return fmt.Errorf("arguments: %s: must have 1 to %d values", name, maxUnattendedValues)
		}
		for _, v := range values {
			if !mayHold(fd, v) {
				return fmt.Errorf("arguments: %s: %s is not a value of that argument", name, v)
			}
		}
	}
	return nil
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
func (u Unattended) covers(tool, principal string, arguments []byte, now time.Time) bool {
	if entryEnded(u.Until, now) || u.Tool != tool || len(u.Clients) > 0 && !slices.Contains(u.Clients, principal) {
		return false
	}
	var own map[string]json.RawMessage
	if len(u.Arguments) > 0 && json.Unmarshal(arguments, &own) != nil {
		return false
	}
	for name, values := range u.Arguments {
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

// SetUnattended replaces the list of what runs here without a human's statement, from the next call on; a call that waits for its
// turn is held to the new one too. An error leaves the list as it was.
func (a *Authority) SetUnattended(entries []Unattended) error {
	if err := CheckUnattended(entries, a.cfg.Self.Role()); err != nil {
		return err
	}
	list := slices.Clone(entries)
	a.unattendedList.Store(&list)
	return nil
}

// unattended reports whether a call may run on a grant without a human's statement.
func (a *Authority) unattended(c *call, arguments []byte) bool {
	now := a.cfg.Now()
	return !desktop.Controls(c.tool) && slices.ContainsFunc(*a.unattendedList.Load(), func(u Unattended) bool {
		return u.covers(c.tool.Name, c.who.principal, arguments, now)
	})
}
