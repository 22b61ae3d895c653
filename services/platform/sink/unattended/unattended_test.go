package unattended

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
)

func TestListsAreStrict(t *testing.T) {
	for name, item := range map[string]any{
		"a number":            uint64(1),
		"no tool":             map[string]any{"clients": []any{"cursor"}},
		"an unknown key":      map[string]any{"tool": "switch_mode", "client": []any{"cursor"}},
		"no clients":          map[string]any{"tool": "switch_mode", "clients": []any{}},
		"clients are nothing": map[string]any{"tool": "switch_mode", "clients": nil},
		"a client's pattern":  map[string]any{"tool": "switch_mode", "clients": []any{"*"}},
		"no values":           map[string]any{"tool": "switch_mode", "arguments": map[string]any{"mode_id": []any{}}},
		"arguments, none":     map[string]any{"tool": "switch_mode", "arguments": map[string]any{}},
		"an unknown argument": map[string]any{"tool": "switch_mode", "arguments": map[string]any{"mode": []any{"chat"}}},
		"a value's type":      map[string]any{"tool": "switch_mode", "arguments": map[string]any{"mode_id": []any{uint64(1)}}},
		"a fraction":          map[string]any{"tool": "switch_mode", "arguments": map[string]any{"margin_mib_override": []any{1.5}}},
		"a list as value":     map[string]any{"tool": "switch_mode", "arguments": map[string]any{"mode_id": []any{[]any{"chat"}}}},
		"an end without time": map[string]any{"tool": "switch_mode", "until": "2026-01-31"},
		"an end without zone": map[string]any{"tool": "switch_mode", "until": "2026-01-31T18:00:00"},
		"an end by a blank":   map[string]any{"tool": "switch_mode", "until": "2026-01-31 18:00:00Z"},
		"an end in fractions": map[string]any{"tool": "switch_mode", "until": "2026-01-31T18:00:00.5Z"},
		"an end that is none": map[string]any{"tool": "switch_mode", "until": "2026-02-31T18:00:00Z"},
		"an end as a number":  map[string]any{"tool": "switch_mode", "until": uint64(1790000000)},
		"no end, said so":     map[string]any{"tool": "switch_mode", "until": ""},
		"the zero time":       map[string]any{"tool": "switch_mode", "until": "0001-01-01T00:00:00Z"},
		"an end as nothing":   map[string]any{"tool": "switch_mode", "until": nil},
		"an unknown tool":     "swich_mode",
		"another sink's tool": "wait_operation",
		"nothing":             "",
	} {
		entries, err := Parse([]any{item})
		if err == nil {
			err = Check(entries, optionsv1.Role_ROLE_EXECUTOR)
		}
		if err == nil || !strings.HasPrefix(err.Error(), "unattended: entry 1: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is wrong is said where it is wrong.
	many := make([]any, maxValues+1)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	for want, item := range map[string]any{
		"must be a tool's name":               uint64(1),
		"tool: must be text":                  map[string]any{"tool": uint64(7)},
		"tool: is required":                   map[string]any{"clients": []any{"cursor"}},
		"clients: must be texts":              map[string]any{"tool": "switch_mode", "clients": []any{uint64(7)}},
		"until: must be a time":               map[string]any{"tool": "switch_mode", "until": uint64(7)},
		"arguments: mode_id: must have 1 to ": map[string]any{"tool": "switch_mode", "arguments": map[string]any{"mode_id": many}},
	} {
		entries, err := Parse([]any{item})
		if err == nil {
			err = Check(entries, optionsv1.Role_ROLE_EXECUTOR)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := Check(slices.Repeat([]Entry{{Tool: "start_service"}}, maxEntries+1), optionsv1.Role_ROLE_EXECUTOR); err == nil {
		t.Error("a list without end is taken")
	}
	click, ok := contract.Lookup("start_service")
	if !ok {
		t.Fatal("there is no start_service")
	}
	click.Tags = []string{"desktop:click"}
	if err := (Entry{Tool: "start_service"}).fits(click); err == nil {
		t.Error("a tool that controls the desktop may be listed")
	}
}

// TestServersToolsMayBeListed: an entry for a tool of another's server is held to its form alone, by egress alone, whether the server is
// in force or not, so that no server that goes keeps a sink from starting; it says itself when it lets nothing run.
func TestServersToolsMayBeListed(t *testing.T) {
	t.Cleanup(func() { _ = contract.Pin(nil) }) // no tools are always taken
	paths := map[string][]json.RawMessage{"path": {json.RawMessage(`"/data/a"`)}}
	with := func(arguments map[string][]json.RawMessage) Entry {
		return Entry{Tool: "files__write_file", Clients: []string{"cursor"}, Arguments: arguments}
	}
	for _, inForce := range []bool{false, true} {
		if inForce {
			if err := contract.Pin([]contract.Definition{{
				Foreign: contract.Foreign{Server: "files", Name: "write_file"}, Tier: optionsv1.Tier_TIER_WRITE, Input: map[string]any{"properties": map[string]any{"path": map[string]any{}}},
			}}); err != nil {
				t.Fatal(err)
			}
		}
		for name, c := range map[string]struct {
			entry Entry
			role  optionsv1.Role
			good  bool
			idle  bool
		}{
			"alone":              {with(nil), optionsv1.Role_ROLE_EGRESS, true, !inForce},
			"with an argument":   {with(paths), optionsv1.Role_ROLE_EGRESS, true, !inForce},
			"with another":       {with(map[string][]json.RawMessage{"file": paths["path"]}), optionsv1.Role_ROLE_EGRESS, true, true},
			"another's sink":     {with(nil), optionsv1.Role_ROLE_EXECUTOR, false, !inForce},
			"no values":          {with(map[string][]json.RawMessage{"path": {}}), optionsv1.Role_ROLE_EGRESS, false, !inForce},
			"a client's pattern": {Entry{Tool: "files__write_file", Clients: []string{"*"}}, optionsv1.Role_ROLE_EGRESS, false, !inForce},
			"one underscore":     {Entry{Tool: "files_write_file"}, optionsv1.Role_ROLE_EGRESS, false, true},
			"no tool":            {Entry{Tool: "files__"}, optionsv1.Role_ROLE_EGRESS, false, true},
			"no server":          {Entry{Tool: "__write_file"}, optionsv1.Role_ROLE_EGRESS, false, true},
			"a tool of its own":  {Entry{Tool: "http_request"}, optionsv1.Role_ROLE_EGRESS, true, false},
		} {
			if err := Check([]Entry{c.entry}, c.role); (err == nil) != c.good {
				t.Errorf("%s, in force %t: %v", name, inForce, err)
			}
			if why := c.entry.Idle(); (why != "") != c.idle {
				t.Errorf("%s, in force %t: idle %q", name, inForce, why)
			}
		}
	}
}

// TestCover: an entry is for its tool, its clients, its values and its time, and for nothing else.
func TestCover(t *testing.T) {
	tool, ok := contract.Lookup("switch_mode")
	other, ok2 := contract.Lookup("start_service")
	if !ok || !ok2 {
		t.Fatal("the contract lacks a tool")
	}
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	listed := Entry{Tool: "switch_mode", Clients: []string{"cursor"}, Until: now.Add(time.Hour), Arguments: map[string][]json.RawMessage{"mode_id": {json.RawMessage(`"chat"`), json.RawMessage(`"work"`)}}}
	for name, c := range map[string]struct {
		tool      contract.Tool
		principal string
		arguments string
		at        time.Time
		want      bool
	}{
		"as listed":           {tool, "cursor", `{"mode_id":"work","reason":"x"}`, now, true},
		"another tool":        {other, "cursor", `{"mode_id":"work"}`, now, false},
		"another client":      {tool, "cursor2", `{"mode_id":"work"}`, now, false},
		"another value":       {tool, "cursor", `{"mode_id":"night"}`, now, false},
		"without the value":   {tool, "cursor", `{"reason":"x"}`, now, false},
		"no object":           {tool, "cursor", `["work"]`, now, false},
		"a moment before end": {tool, "cursor", `{"mode_id":"work"}`, now.Add(time.Hour - time.Nanosecond), true},
		"at its end":          {tool, "cursor", `{"mode_id":"work"}`, now.Add(time.Hour), false},
	} {
		if got := Cover([]Entry{{Tool: "stop_service"}, listed}, c.tool, c.principal, []byte(c.arguments), c.at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if !Cover([]Entry{{Tool: "switch_mode"}}, tool, "anybody", []byte(`{"mode_id":"night"}`), now.AddDate(100, 0, 0)) {
		t.Error("an entry of a tool alone is not for every call of it")
	}
	tool.Tags = []string{"desktop:click"}
	if Cover([]Entry{{Tool: "switch_mode"}}, tool, "anybody", nil, now) {
		t.Error("a tool that controls the desktop runs unattended")
	}
}

// FuzzCover: an entry with arguments lets no call run whose argument has another value, whatever the text.
func FuzzCover(f *testing.F) {
	f.Add("chat", "chat")
	f.Add("chat", "chat\n")
	f.Add("a\u202eb", `"`)
	f.Fuzz(func(t *testing.T, listed, given string) {
		if !utf8.ValidString(listed) || !utf8.ValidString(given) {
			return // neither a YAML file nor an argument can hold it
		}
		value, err := canonical.Marshal(listed)
		if err != nil {
			return
		}
		arguments, err := canonical.Marshal(map[string]string{"mode_id": given})
		if err != nil {
			return
		}
		e := Entry{Tool: "switch_mode", Arguments: map[string][]json.RawMessage{"mode_id": {value}}}
		if got := e.covers("switch_mode", "claude", arguments, time.Now()); got != (listed == given) {
			t.Errorf("%q covers %q: %v", listed, given, got)
		}
	})
}
