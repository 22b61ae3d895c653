package downstream_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/downstream"
)

const whole = `servers:
  - id: web
    url: https://mcp.example/mcp
    bearer: web-token
  - id: files
    npm: {package: "@modelcontextprotocol/server-filesystem", version: 2026.8.31, args: [/srv/docs]}
    sandbox:
      filesystem: {allow_read: [/srv/docs], allow_write: [/srv/out]}
      network: {allowed_domains: ["*.example.com"]}
      memory_mib: 256
    env: {LOG: debug}
    credentials: {API_KEY: docs}
    timeouts: {call: 5s}
    tools:
      read: [read_file]
      destructive: [move_file]
      roles: {read_file: {/path: path}}
`

func TestReadFile(t *testing.T) {
	got, err := downstream.ReadFile("servers.yaml", []byte(whole))
	must(t, err)
	files := downstream.Entry{
		ID:      "files",
		NPM:     &downstream.Package{Name: "@modelcontextprotocol/server-filesystem", Version: "2026.8.31", Args: []string{"/srv/docs"}},
		Sandbox: downstream.Sandbox{Read: []string{"/srv/docs"}, Write: []string{"/srv/out"}, Domains: []string{"*.example.com"}, MemoryMiB: 256, CPU: 1, Processes: 64},
		Env:     map[string]string{"LOG": "debug"}, Credentials: map[string]string{"API_KEY": "docs"},
		Timeouts: downstream.Timeouts{Ready: 30 * time.Second, Call: 5 * time.Second, Idle: 10 * time.Minute},
		Tiers:    map[string]optionsv1.Tier{"read_file": optionsv1.Tier_TIER_READ, "move_file": optionsv1.Tier_TIER_DESTRUCTIVE},
		Roles:    map[string]map[string]downstream.Role{"read_file": {"/path": downstream.RolePath}},
	}
	if len(got) != 2 || got[1].ID != "web" {
		t.Fatalf("%+v", got)
	}
	if diff := cmp.Diff(files, got[0]); diff != "" {
		t.Error(diff)
	}
	if got, err := downstream.ReadFile("servers.yaml", []byte("# none yet\n")); err != nil || len(got) != 0 {
		t.Errorf("comments alone: %v, %v", got, err)
	}
}

func TestReadFileRefuses(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"an unknown key":       {"  memory_mib", "  memory_mb", `servers.yaml:10:7: unknown key "memory_mb" in servers.sandbox; did you mean "memory_mib"?`},
		"an id with _":         {"id: files", "id: my_files", "servers.yaml:5:5: a server's id is of"},
		"no id":                {"id: files", "id: ''", "servers.yaml:5:5: a server's id is of"},
		"ids that look alike":  {"id: web", "id: fi1es", `look alike`},
		"an id twice":          {"id: web", "id: files", `look alike`},
		"a range":              {"2026.8.31", `"^2026.8.31"`, "servers.yaml:6:63: npm.version must be an exact version"},
		"a tag":                {"2026.8.31", "latest", "npm.version must be an exact version"},
		"a package by URL":     {"@modelcontextprotocol/server-filesystem", "git+https://x/y", "npm.package is no npm package"},
		"two origins":          {"url: https://mcp.example/mcp", "url: https://mcp.example/mcp\n    program: {path: /bin/x}", "one of program, npm and url"},
		"no origin":            {"    url: https://mcp.example/mcp\n", "", "one of program, npm and url"},
		"http":                 {"https://mcp.example", "http://mcp.example", "servers.yaml:3:5: url must be https"},
		"a user in it":         {"https://mcp.example", "https://me:x@mcp.example", "url must be https"},
		"bearer of a program":  {"    env:", "    bearer: x\n    env:", "bearer is for servers with a url"},
		"a relative folder":    {"[/srv/docs], allow_write", "[docs], allow_write", "servers.yaml:8:33: a folder is an absolute path"},
		"a folder that climbs": {"[/srv/docs], allow_write", "[/srv/../etc], allow_write", "a folder is an absolute path"},
		"all folders":          {"[/srv/docs], allow_write", "[/], allow_write", "a folder is an absolute path"},
		"all domains":          {"*.example.com", "*.com", "would allow"},
		"a domain with scheme": {"*.example.com", "https://example.com", "servers.yaml:9:35: "},
		"little memory":        {"memory_mib: 256", "memory_mib: 1", "memory_mib must be from 32"},
		"no processor":         {"memory_mib: 256", "cpu: .nan", "cpu must be from"},
		"a loader's variable":  {"LOG:", "LD_PRELOAD:", "no variable that a server may be given"},
		"node's options":       {"LOG:", "NODE_OPTIONS:", "no variable that a server may be given"},
		"another proxy":        {"LOG:", "https_proxy:", "no variable that a server may be given"},
		"a secret":             {"API_KEY: docs", "API_KEY: sk-AAAABBBB/CCCC", "never the credential itself"},
		"a variable twice":     {"API_KEY: docs", "LOG: docs", "stands under env too"},
		"an endless call":      {"call: 5s", "call: 48h", "servers.yaml:13:16: call must be"},
		"a tool with a dot":    {"[read_file]", "[read.file]", "no name of a tool"},
		"a long tool":          {"[read_file]", "[" + strings.Repeat("x", 60) + "]", "give the server an id of at most 2"},
		"two tiers":            {"[move_file]", "[read_file]", "has a tier already"},
		"a role further in":    {"/path: path", "/a/path: path", "servers.yaml:17:27: a role is written"},
		"shared by sessions":   {"    env:", "    shared: true\n    per_session: true\n    env:", "per_session is for a server"},
		"asks whom":            {"    env:", "    shared: true\n    elicitation: true\n    env:", "nobody could tell whom it asks"},
		"a client's model":     {"    env:", "    sampling: true\n    env:", "sampling does not exist here"},
		"an unknown role":      {"/path: path", "/path: file", "servers.yaml:17:27: a role is written"},
	} {
		if !strings.Contains(whole, c.old) {
			t.Fatalf("%s: nothing to spoil", name)
		}
		_, err := downstream.ReadFile("servers.yaml", []byte(strings.Replace(whole, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "servers.yaml:") {
			t.Errorf("%s: %v\nwant %s", name, err, c.want)
		}
	}
	free := "servers:\n  - id: a\n    program: {path: /bin/a}\n    sandbox: {none: true}\n    tools:\n      roles: {read: {/file: ROLE}}\n"
	if _, err := downstream.ReadFile("servers.yaml", []byte(strings.Replace(free, "ROLE", "url", 1))); err != nil {
		t.Error(err)
	}
	if _, err := downstream.ReadFile("servers.yaml", []byte(strings.Replace(free, "ROLE", "path", 1))); err == nil || !strings.Contains(err.Error(), "nothing holds a path") {
		t.Errorf("a path that no sandbox holds: %v", err)
	}
	var many strings.Builder
	many.WriteString("servers:\n")
	for i := range 21 {
		many.WriteString("  - {id: " + strings.Repeat("a", i+1) + ", program: {path: /bin/x}}\n")
	}
	if _, err := downstream.ReadFile("servers.yaml", []byte(many.String())); err == nil || !strings.Contains(err.Error(), "at most 20") {
		t.Errorf("21 servers: %v", err)
	}
}

// TestEveryChangeOfAnEntryShows: whatever a human changes of an entry, what was accepted before is not in force for it.
func TestEveryChangeOfAnEntryShows(t *testing.T) {
	digests := map[[32]byte]string{}
	for _, change := range []string{"", "LOG: debug|LOG: info", "docs]}|docs, /srv/more]}", "2026.8.31|2026.8.32", "allow_read: [/srv/docs]|allow_read: [/srv]",
		"*.example.com|example.com", "memory_mib: 256|memory_mib: 257", "API_KEY: docs|API_KEY: other", "call: 5s|call: 6s", "destructive: [move_file]|destructive: []",
		"/path: path|/path: url", "    env:|    shared: true\n    env:", "    env:|    per_session: true\n    env:", "    env:|    remote: true\n    env:", "    env:|    images: true\n    env:",
		"    env:|    elicitation: true\n    env:",
		"      read: [read_file]|      read: [read_file]\n      allow: [read_file]"} {
		old, after, _ := strings.Cut(change, "|")
		entries, err := downstream.ReadFile("servers.yaml", []byte(strings.Replace(whole, old, after, 1)))
		if err != nil {
			t.Fatalf("%s: %v", change, err)
		}
		digest, err := entries[0].Digest()
		must(t, err)
		if same, known := digests[digest]; known {
			t.Errorf("%q and %q have one digest", change, same)
		}
		digests[digest] = change
	}
}

// FuzzReadFile: no text panics, and what is read is within its bounds.
func FuzzReadFile(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("servers: [{id: a, program: {path: /x}}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := downstream.ReadFile("servers.yaml", text)
		if err != nil {
			return
		}
		for _, e := range entries {
			if err := downstream.CheckID(e.ID); err != nil || e.Sandbox.MemoryMiB < 32 || e.Timeouts.Call <= 0 {
				t.Errorf("%+v", e)
			}
			if _, err := e.Digest(); err != nil {
				t.Errorf("%+v: %v", e, err)
			}
		}
	})
}

// TestTheShippedFile is read.
func TestTheShippedFile(t *testing.T) {
	text, err := os.ReadFile("../../../deploy/config/servers.yaml")
	must(t, err)
	if entries, err := downstream.ReadFile("servers.yaml", text); err != nil || len(entries) != 3 {
		t.Errorf("%d servers, %v", len(entries), err)
	}
}
