package client

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSetMemberRefuses(t *testing.T) {
	for name, document := range map[string]string{
		"array":             `[]`,
		"truncated":         `{"a": `,
		"comment":           "// hello\n{}",
		"trailing comma":    `{"a": 1,}`,
		"duplicate key":     `{"a": 1, "a": 2}`,
		"two values":        `{} {}`,
		"servers no object": `{"mcpServers": []}`,
		"bad UTF-8":         "{\"a\": \"\xff\"}",
	} {
		if out, err := setIn([]byte(document), []string{"mcpServers", "durward"}, 1, strict); !errors.Is(err, ErrNotJSON) {
			t.Errorf("%s: %q, %v; want ErrNotJSON", name, out, err)
		}
	}
}

// The parser has no limit of depth: a project's file that nests a million levels would end the program.
func TestDeepDocumentsAreRefused(t *testing.T) {
	in := func(open, close string, n int) string {
		return `{"a":` + strings.Repeat(open, n) + "1" + strings.Repeat(close, n) + "}"
	}
	for name, c := range map[string]struct {
		document string
		taken    bool
	}{
		"as deep as may be":           {in("[", "]", maxDepth-1), true},
		"one deeper":                  {in("[", "]", maxDepth), false},
		"objects":                     {in(`{"a":`, "}", maxDepth), false},
		"brackets in strings":         {in("[", "]", 3)[:5] + `"` + strings.Repeat(`[\"`, 1000) + `"}`, true},
		"hidden by strings":           {in(`["]]",`, "]", maxDepth), false},
		"hidden by comments":          {in("[/*]]*/", "]", maxDepth), false},
		"hidden by comments of lines": {in("[//]]\n", "]", maxDepth), false},
		"a million, and cut":          {strings.Repeat("[", 1_000_000), false},
		"long":                        {`{"a":"` + strings.Repeat("x", maxDocument) + `"}`, false},
	} {
		_, err := setIn([]byte(c.document), []string{"b"}, 1, commented)
		if c.taken != (err == nil) || err != nil && !errors.Is(err, ErrNotJSON) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSetMember(t *testing.T) {
	value := map[string]any{"command": "/bin/durward", "args": []string{"mcp"}}
	for _, c := range []struct{ name, in, want string }{
		{"empty file", "", "{\n  \"mcpServers\": {\n    \"durward\": {\n      \"args\": [\n        \"mcp\"\n      ],\n      \"command\": \"/bin/durward\"\n    }\n  }\n}\n"},
		{"other members keep their bytes", "{\"n\": 1e3,\t\"u\": \"\\u00e9\"}", "{\"n\": 1e3,\t\"u\": \"\\u00e9\",\n  \"mcpServers\": {\n    \"durward\": {\n      \"args\": [\n        \"mcp\"\n      ],\n      \"command\": \"/bin/durward\"\n    }\n  }}"},
		{"replaced in place", `{"mcpServers":{"durward":{"command":"old"},"other":{}},"z":0}`, "{\"mcpServers\":{\"durward\":{\n      \"args\": [\n        \"mcp\"\n      ],\n      \"command\": \"/bin/durward\"\n    },\"other\":{}},\"z\":0}"},
		{"empty servers, tabs", "{\n\t\"mcpServers\": {}\n}\n", "{\n\t\"mcpServers\": {\n\t\t\"durward\": {\n\t\t\t\"args\": [\n\t\t\t\t\"mcp\"\n\t\t\t],\n\t\t\t\"command\": \"/bin/durward\"\n\t\t}\n\t}\n}\n"},
		{"beside another", "{\n  \"mcpServers\": {\n    \"a\": {}\n  }\n}\n", "{\n  \"mcpServers\": {\n    \"a\": {},\n    \"durward\": {\n      \"args\": [\n        \"mcp\"\n      ],\n      \"command\": \"/bin/durward\"\n    }\n  }\n}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := setIn([]byte(c.in), []string{"mcpServers", "durward"}, value, strict)
			must(t, err)
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
			again, err := setIn(got, []string{"mcpServers", "durward"}, value, strict)
			if err != nil || string(again) != string(got) {
				t.Errorf("setting it again changed the file: %q, %v", again, err)
			}
		})
	}
}

func FuzzSetMember(f *testing.F) {
	f.Add([]byte(`{"a":1}`))
	f.Add([]byte("{\n\t\"mcpServers\": {\"x\": {}}\n}"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, document []byte) {
		out, err := setIn(document, []string{"mcpServers", "durward"}, "mark", strict)
		if err != nil {
			return
		}
		var after map[string]any
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatalf("%q became %q: %v", document, out, err)
		}
		servers, ok := after["mcpServers"].(map[string]any)
		if !ok || servers["durward"] != "mark" {
			t.Fatalf("%q became %q, without the mark", document, out)
		}
		before := map[string]any{}
		if len(document) > 0 {
			if err := json.Unmarshal(document, &before); err != nil {
				return
			}
		}
		delete(servers, "durward")
		if old, ok := before["mcpServers"].(map[string]any); ok {
			delete(old, "durward")
		} else {
			delete(after, "mcpServers")
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Fatalf("something else changed: %s", diff)
		}
	})
}
