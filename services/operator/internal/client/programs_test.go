package client

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestEditRefuses: what a program would not read is not edited.
func TestEditRefuses(t *testing.T) {
	vscode, _ := FindProgram("vscode")
	for name, document := range map[string]string{
		"array":                `[]`,
		"open comment":         "{} /* ",
		"slash":                "{} / ",
		"two trailing commas":  `{"a": 1,,}`,
		"comma alone":          `{,}`,
		"comma alone in array": `{"a": [,]}`,
		"duplicate key":        `{"a": 1, /* x */ "a": 2}`,
		"servers no object":    `{"servers": [1,]}`,
		"open string":          `{"a": "// }`,
	} {
		if out, err := vscode.Stdio([]byte(document), "durward"); !errors.Is(err, ErrNotJSON) {
			t.Errorf("%s: set: %q, %v; want ErrNotJSON", name, out, err)
		}
		if out, err := vscode.Remove([]byte(document)); !errors.Is(err, ErrNotJSON) {
			t.Errorf("%s: remove: %q, %v; want ErrNotJSON", name, out, err)
		}
	}
	desktop, _ := FindProgram("claude-desktop")
	if _, err := desktop.Stdio([]byte("{} // a comment"), "durward"); !errors.Is(err, ErrNotJSON) {
		t.Errorf("a comment in strict JSON: %v", err)
	}
	if _, err := desktop.HTTP(nil, "http://x"); !errors.Is(err, ErrNoURL) {
		t.Errorf("a URL for Claude Desktop: %v", err)
	}
}

const ours = `"durward": {"type": "stdio", "command": "d"}`

// TestCommentedJSON: an entry comes and goes, and every comment, comma and other server stays.
func TestCommentedJSON(t *testing.T) {
	vscode, _ := FindProgram("vscode")
	for _, c := range []struct{ name, without, with string }{
		{"beside others, with comments", `{
  // What this editor may use.
  "servers": {
    "a": {"command": "x"}, // mine, "durward": {}
    /* "b": {}, */
    "c": {"args": ["//", "/*", ",}"]} // last
  },
  "inputs": [1, 2,], // trailing
}
`, `{
  // What this editor may use.
  "servers": {
    "a": {"command": "x"}, // mine, "durward": {}
    /* "b": {}, */
    "c": {"args": ["//", "/*", ",}"]}, // last
    "durward": {
      "type": "stdio",
      "command": "d"
    }
  },
  "inputs": [1, 2,], // trailing
}
`},
		{"a trailing comma", "{\n\t\"servers\": {\n\t\t\"a\": 1, // one\n\t},\n}\n",
			"{\n\t\"servers\": {\n\t\t\"a\": 1, // one\n\t\t\"durward\": {\n\t\t\t\"type\": \"stdio\",\n\t\t\t\"command\": \"d\"\n\t\t},\n\t},\n}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := vscode.Stdio([]byte(c.without), "d")
			must(t, err)
			if diff := cmp.Diff(c.with, string(got)); diff != "" {
				t.Fatal(diff)
			}
			back, err := vscode.Remove(got)
			must(t, err)
			if diff := cmp.Diff(c.without, string(back)); diff != "" {
				t.Errorf("removed again: %s", diff)
			}
		})
	}
}

// TestRemove: one member goes, with one comma, wherever it stands.
func TestRemove(t *testing.T) {
	vscode, _ := FindProgram("vscode")
	for _, c := range []struct{ name, in, want string }{
		{"not there", `{"servers": {"a": 1}}`, `{"servers": {"a": 1}}`},
		{"no servers", "{} // nothing\n", "{} // nothing\n"},
		{"alone", `{"servers": {` + ours + `}}`, `{"servers": {}}`},
		{"alone, with a comma", `{"servers": {` + ours + `, }}`, `{"servers": { }}`},
		{"first", `{"servers": {` + ours + `, "a": 1}}`, `{"servers": { "a": 1}}`},
		{"last", `{"servers": {"a": 1, ` + ours + `}}`, `{"servers": {"a": 1 }}`},
		{"last, with a comma", `{"servers": {"a": 1, ` + ours + `,}}`, `{"servers": {"a": 1, }}`},
		{"between", "{\n  \"servers\": {\n    \"a\": 1,\n    " + ours + ",\n    \"b\": 2\n  }\n}\n", "{\n  \"servers\": {\n    \"a\": 1,\n    \"b\": 2\n  }\n}\n"},
		{"a comma in a comment", `{"servers": {"a": 1, ` + ours + ` /* , */}}`, `{"servers": {"a": 1  /* , */}}`},
	} {
		got, err := vscode.Remove([]byte(c.in))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if diff := cmp.Diff(c.want, string(got)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

// TestPlaces: where the programs look, on Linux and on a Mac.
func TestPlaces(t *testing.T) {
	linux := Places{Home: "/home/a", Config: "/home/a/.config"}
	mac := Places{Home: "/Users/a", Config: "/Users/a/.config", Mac: true}
	for name, want := range map[string][3]string{
		"claude-code":    {"/p/.mcp.json", "/home/a/.claude.json", "/Users/a/.claude.json"},
		"claude-desktop": {"/p", "/home/a/.config/Claude/claude_desktop_config.json", "/Users/a/Library/Application Support/Claude/claude_desktop_config.json"},
		"cursor":         {"/p/.cursor/mcp.json", "/home/a/.cursor/mcp.json", "/Users/a/.cursor/mcp.json"},
		"vscode":         {"/p/.vscode/mcp.json", "/home/a/.config/Code/User/mcp.json", "/Users/a/Library/Application Support/Code/User/mcp.json"},
	} {
		p, ok := FindProgram(name)
		if got := [3]string{p.ProjectFile("/p"), p.UserFile(linux), p.UserFile(mac)}; !ok || got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestEntries: what each program gets to read.
func TestEntries(t *testing.T) {
	for name, want := range map[string][2]string{
		"claude-code":    {`{"mcpServers":{"durward":{"type":"stdio","command":"/d","args":["mcp"]}}}`, `{"mcpServers":{"durward":{"type":"http","url":"http://h/mcp","headers":{"Authorization":"Bearer ${DURWARD_TOKEN}"}}}}`},
		"claude-desktop": {`{"mcpServers":{"durward":{"command":"/d","args":["mcp"]}}}`, ``},
		"cursor":         {`{"mcpServers":{"durward":{"command":"/d","args":["mcp"]}}}`, `{"mcpServers":{"durward":{"url":"http://h/mcp","headers":{"Authorization":"Bearer ${env:DURWARD_TOKEN}"}}}}`},
		"vscode":         {`{"servers":{"durward":{"type":"stdio","command":"/d","args":["mcp"]}}}`, `{"servers":{"durward":{"type":"http","url":"http://h/mcp","headers":{"Authorization":"Bearer ${env:DURWARD_TOKEN}"}}}}`},
	} {
		p, _ := FindProgram(name)
		stdio, err := p.Stdio(nil, "/d", "mcp")
		if err != nil || squeeze(stdio) != want[0] {
			t.Errorf("%s: %s, %v", name, squeeze(stdio), err)
		}
		url, err := p.HTTP(nil, "http://h/mcp")
		if (err != nil) != (want[1] == "") || strings.ReplaceAll(squeeze(url), "Bearer$", "Bearer $") != want[1] {
			t.Errorf("%s: %s, %v", name, squeeze(url), err)
		}
	}
}

func squeeze(b []byte) string { return strings.Join(strings.Fields(string(b)), "") }

// TestAuthorizedKey: the line allows one command, whatever the folders are called.
func TestAuthorizedKey(t *testing.T) {
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl agent@laptop"
	for _, c := range []struct{ home, key, want string }{
		{"/h", key, `restrict,command="/usr/bin/durward mcp --home /h --client c" ` + key},
		{"/a b", "", `restrict,command="/usr/bin/durward mcp --home '/a b' --client c" PUBLIC-KEY-OF-THE-AGENT'S-MACHINE`},
		{`/it's "x"`, key, `restrict,command="/usr/bin/durward mcp --home '/it'\''s \"x\"' --client c" ` + key},
		{"/h\nno-restrict", key, ""},
		{"/h", key + "\nssh-ed25519 AAAA", ""},
		{"/h", `" ,no-pty ` + key, ""},
	} {
		got, err := AuthorizedKey("/usr/bin/durward", c.home, "c", c.key)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("home %q, key %q: %s, %v", c.home, c.key, got, err)
		}
	}
}

// FuzzEdit: an edit says what was meant or is none, and removing takes back what was set.
func FuzzEdit(f *testing.F) {
	for _, seed := range []string{`{"servers": {"a": 1, // x` + "\n" + `}, /* "durward": 1, */ }`, `{"servers":{},}`, "", `{"servers": {` + ours + `,}}`} {
		f.Add([]byte(seed))
	}
	vscode, _ := FindProgram("vscode")
	f.Fuzz(func(t *testing.T, document []byte) {
		if out, err := vscode.Stdio(document, "d"); err == nil {
			if _, err := vscode.Remove(out); err != nil {
				t.Fatalf("%q became %q, from which it cannot be removed: %v", document, out, err)
			}
		}
		// A document of any kind may be refused, and must not crash it.
		_, _ = vscode.Remove(document)
	})
}
