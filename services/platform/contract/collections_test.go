package contract

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// ids returns n service ids, each quoted.
func ids(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`"s%d"`, i))
	}
	return out
}

func list(items ...string) string { return "[" + strings.Join(items, ",") + "]" }

// pairs returns an object of n services with that value.
func pairs(n int, value string) string {
	var out []string
	for _, id := range ids(n) {
		out = append(out, id+":"+value)
	}
	return "{" + strings.Join(out, ",") + "}"
}

// TestListsAndMaps: the published schema and Decode take and refuse the same lists and maps, and a refusal says which argument it is
// about and repeats nothing of it.
func TestListsAndMaps(t *testing.T) {
	tool := lookup(t, "simulate_mode")
	schema := compile(t, tool.InputSchema)
	long := strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		raw   string
		valid bool
		// field is the argument at fault.
		field string
	}{
		"nothing":                 {`{}`, true, ""},
		"empty":                   {`{"start":[],"stop":[],"context_overrides":{}}`, true, ""},
		"everything":              {`{"mode_id":"m","start":["a"],"stop":["b"],"context_overrides":{"a":8192},"alternatives":10,"margin_mib_override":0}`, true, ""},
		"32 items":                {`{"start":` + list(ids(32)...) + `}`, true, ""},
		"64 characters":           {`{"start":["` + long + `"],"context_overrides":{"` + long + `":1}}`, true, ""},
		"32 pairs at the most":    {`{"context_overrides":` + pairs(32, "131072") + `}`, true, ""},
		"a fraction of zeros":     {`{"context_overrides":{"a":8192.0}}`, true, ""},
		"33 items":                {`{"start":` + list(ids(33)...) + `}`, false, "start"},
		"the same twice":          {`{"stop":["a","b","a"]}`, false, "stop"},
		"the same by an escape":   {`{"stop":["a","\u0061"]}`, false, "stop"},
		"no id":                   {`{"start":["--force"]}`, false, "start"},
		"the second is no id":     {`{"start":["a","evil;rm"]}`, false, "start"},
		"empty id":                {`{"start":[""]}`, false, "start"},
		"65 characters":           {`{"start":["` + long + `a"]}`, false, "start"},
		"a line's end":            {`{"start":["a\n"]}`, false, "start"},
		"a number in a list":      {`{"start":[1]}`, false, "start"},
		"null in a list":          {`{"start":[null]}`, false, "start"},
		"a list in a list":        {`{"start":[["a"]]}`, false, "start"},
		"an object in a list":     {`{"start":[{}]}`, false, "start"},
		"a word for a list":       {`{"start":"a"}`, false, "start"},
		"an object for a list":    {`{"start":{"0":"a"}}`, false, "start"},
		"null for a list":         {`{"start":null}`, false, "start"},
		"0":                       {`{"context_overrides":{"a":0}}`, false, "context_overrides"},
		"131073":                  {`{"context_overrides":{"a":131073}}`, false, "context_overrides"},
		"beyond 32 bits":          {`{"context_overrides":{"a":4294967297}}`, false, "context_overrides"},
		"negative":                {`{"context_overrides":{"a":-1}}`, false, "context_overrides"},
		"a number in quotes":      {`{"context_overrides":{"a":"8"}}`, false, "context_overrides"},
		"a fraction":              {`{"context_overrides":{"a":1.5}}`, false, "context_overrides"},
		"true":                    {`{"context_overrides":{"a":true}}`, false, "context_overrides"},
		"null in a map":           {`{"context_overrides":{"a":null}}`, false, "context_overrides"},
		"a list in a map":         {`{"context_overrides":{"a":[1]}}`, false, "context_overrides"},
		"a bad key":               {`{"context_overrides":{"evil key":8}}`, false, "context_overrides"},
		"an empty key":            {`{"context_overrides":{"":8}}`, false, "context_overrides"},
		"a key with a line's end": {`{"context_overrides":{"a\n":8}}`, false, "context_overrides"},
		"a key of 65 characters":  {`{"context_overrides":{"` + long + `a":8}}`, false, "context_overrides"},
		"33 pairs":                {`{"context_overrides":` + pairs(33, "8") + `}`, false, "context_overrides"},
		"a list for a map":        {`{"context_overrides":[8]}`, false, "context_overrides"},
		"null for a map":          {`{"context_overrides":null}`, false, "context_overrides"},
		"11 alternatives":         {`{"alternatives":11}`, false, "alternatives"},
		"null for a number":       {`{"alternatives":null}`, false, "alternatives"},
	} {
		t.Run(name, func(t *testing.T) {
			var value any
			must(t, json.Unmarshal([]byte(c.raw), &value))
			if err := schema.Validate(value); (err == nil) != c.valid {
				t.Errorf("the schema says %v", err)
			}
			_, err := tool.Decode([]byte(c.raw))
			if (err == nil) != c.valid {
				t.Fatalf("Decode says %v", err)
			}
			if err == nil {
				return
			}
			f := fault.From(err)
			if f.Code != callv1.Code_CODE_INVALID_ARGUMENT || f.Field != c.field {
				t.Errorf("fault %v at %q: %s", f.Code, f.Field, f.Message)
			}
			if said := f.Field + f.Message; strings.Contains(said, "evil") || strings.Contains(said, "force") || strings.Contains(said, "aaaa") {
				t.Errorf("it repeats what was sent: %s: %s", f.Field, f.Message)
			}
		})
	}
	// What two readers could take for two things never gets as far as a schema.
	for _, raw := range []string{`{"context_overrides":{"a":1,"a":2}}`, `{"context_overrides":{"a":1,"\u0061":2}}`, `{"start":["a"],"start":["b"]}`} {
		if m, err := tool.Decode([]byte(raw)); err == nil {
			t.Errorf("%s is decoded as %v", raw, m)
		}
	}
}

// TestListsKeepTheirOrder: what is signed is what was asked for; nothing is sorted, and the keys of maps have one order.
func TestListsKeepTheirOrder(t *testing.T) {
	tool := lookup(t, "simulate_mode")
	canonical := func(raw string) string {
		t.Helper()
		m, err := tool.Decode([]byte(raw))
		must(t, err)
		out, err := Canonical(m)
		must(t, err)
		return string(out)
	}
	forms := []string{
		canonical(`{"context_overrides":{"b":2,"a":1},"start":["b","a"]}`), canonical(`{"start":["b","a"],"context_overrides":{"a":1.0,"b":2}}`),
		canonical(`{"start":["a","b"],"context_overrides":{"a":1,"b":2}}`),
	}
	want := []string{
		`{"context_overrides":{"a":1,"b":2},"start":["b","a"]}`, `{"context_overrides":{"a":1,"b":2},"start":["b","a"]}`,
		`{"context_overrides":{"a":1,"b":2},"start":["a","b"]}`,
	}
	if !slices.Equal(forms, want) {
		t.Errorf("canonical forms\n%s\nwant\n%s", strings.Join(forms, "\n"), strings.Join(want, "\n"))
	}
}
