//go:build real

package real

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
)

// A listing is what a model reads before it calls a tool: the tools of a tools/list, as JSON.
type listing struct {
	from  string
	tools int
	bytes int
}

// perToken is how many bytes of JSON are counted as one token: a rule, and no model's own count.
const perToken = 4

func (l listing) String() string {
	return fmt.Sprintf("| %s | %d | %d | %d |", l.from, l.tools, l.bytes, l.bytes/perToken)
}

// listed is what a session lists. Each is written by the same program, so that they compare.
func listed(t *testing.T, from string, session *mcp.ClientSession) (l listing, names []string) {
	t.Helper()
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatalf("%s: %v", from, err)
	}
	raw, err := json.Marshal(list.Tools)
	must(t, err)
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return listing{from, len(names), len(raw)}, names
}

// setOfItsOwn are the tools of a client that has others' tools as `may:` in clients.yaml.
var setOfItsOwn = []string{"files__read_text_file", "files__list_directory", "memory__read_graph", "browser__browser_navigate"}

// TestServersListed: what a model reads of four servers' tools, listed by themselves and by Durward, for a client without and with a set of
// its own. The official clients call what is listed and nothing else; with such a set they list a server's tools, and call one.
func TestServersListed(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Egress: true})
	before, all, set, paged, driver := h.AddClient("before"), h.AddClient("all"), h.AddClient("set"), h.AddClient("paged"), h.AddClient("driver")
	h.WriteFile("config/gateway.yaml", h.ReadFile("config/gateway.yaml")+"pages: [paged]\n")
	clients := h.ReadFile("config/clients.yaml")
	clients = strings.Replace(clients, "- id: set\n", "- id: set\n    may: ["+strings.Join(setOfItsOwn, ", ")+"]\n", 1)
	h.WriteFile("config/clients.yaml", strings.Replace(clients, "- id: driver\n", "- id: driver\n    may: [files__read_text_file, memory__read_graph, everything__echo]\n", 1))
	h.StartAll()
	docs := t.TempDir()
	hello := filepath.Join(docs, "hello.txt")
	must(t, os.WriteFile(hello, []byte("hello there"), 0o600))
	native, _ := listed(t, "Durward's own tools alone", h.Connect(before).ClientSession)
	table := []listing{native}
	sum := listing{from: "all four, directly"}
	for _, server := range []struct {
		name, id string
		args     []string
		flags    []string
	}{
		{"@modelcontextprotocol/server-filesystem", "files", []string{docs}, []string{"--allow-read", docs, "--read", "read_text_file", "--read", "list_directory"}},
		{"@modelcontextprotocol/server-memory", "memory", nil, []string{"--env", "MEMORY_FILE_PATH=/data/memory.jsonl", "--read", "read_graph"}},
		{"@modelcontextprotocol/server-everything", "everything", nil, []string{"--read", "echo"}},
		{"@playwright/mcp", "browser", []string{"--headless", "--isolated", "--output-dir", "/data"}, []string{"--yes-publisher"}},
	} {
		p := dependency(t, server.name)
		line := append([]string{"server", "add", "npm:" + p.Name + "@" + p.Version, "--id", server.id, "--yes"}, server.flags...)
		command(t, h, append(append(line, "--"), server.args...)...)
		tree := h.Path("config", "packages", p.Folder())
		main, err := p.Main(tree)
		must(t, err)
		cmd := exec.Command(node(t), append([]string{filepath.Join(tree, main)}, server.args...)...)
		cmd.Env = append(h.Environment(), "MEMORY_FILE_PATH="+filepath.Join(t.TempDir(), "memory.jsonl"))
		session, err := mcp.NewClient(&mcp.Implementation{Name: "real", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			t.Fatalf("%s: %v", server.name, err)
		}
		direct, _ := listed(t, server.name+" "+p.Version+", directly", session)
		_ = session.Close() // server-everything ends by a signal alone
		table, sum.tools, sum.bytes = append(table, direct), sum.tools+direct.tools, sum.bytes+direct.bytes
	}

	// Vault, egress and gateway read the lock by themselves, each within a second where the machine is not busy.
	harness.Eventually(t, "the last server's tools are in force", func() error {
		if _, names := listed(t, "the set", h.Connect(set).ClientSession); !slices.Contains(names, "browser__browser_navigate") {
			return fmt.Errorf("the client lists %q", names)
		}
		return nil
	})
	agent := h.Connect(set)
	every, names := listed(t, "all four behind Durward, every tool", h.Connect(all).ClientSession)
	some, few := listed(t, fmt.Sprintf("all four behind Durward, a set of %d", len(setOfItsOwn)), agent.ClientSession)
	if every.bytes > 16_000 || some.bytes > every.bytes || !slices.Contains(names, "find_tools") {
		t.Errorf("Durward lists %d bytes, and %d of a set: %q", every.bytes, some.bytes, names)
	}
	// A client of whom gateway.yaml says so is told of every tool, in pages.
	whole, pages, cursor := sum.tools, 0, ""
	reader := h.Connect(paged)
	for seen := 0; pages == 0 || cursor != ""; pages++ {
		page, err := reader.ListTools(t.Context(), &mcp.ListToolsParams{Cursor: cursor})
		if err != nil {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, tool := range page.Tools {
			if strings.Contains(tool.Name, "__") {
				seen++
			}
		}
		if cursor = page.NextCursor; cursor == "" && seen != whole {
			t.Errorf("%d pages with %d of %d tools of servers", pages+1, seen, whole)
		}
	}
	if pages < 3 {
		t.Errorf("%d pages", pages)
	}
	for _, tool := range setOfItsOwn {
		if !slices.Contains(few, tool) {
			t.Errorf("%s is in the client's set, and not listed: %q", tool, few)
		}
	}
	found := agent.Ask("find_tools", map[string]any{"words": "read a text file"})
	told := agent.Ask("describe_tool", map[string]any{"tool": "files__read_text_file"})
	table = append(table, sum, every, some, listing{"find_tools, one answer", strings.Count(string(found.Raw), `"tool":"`), len(found.Raw)}, listing{"describe_tool, one answer", 1, len(told.Raw)})
	if e := agent.Ask("files__write_file", map[string]any{"path": hello, "content": "x"}); e.Status != "denied" || e.Reason != "not_available" {
		t.Errorf("a tool that is not in the client's set: %s", e.Raw)
	}
	var report strings.Builder
	for _, l := range table {
		fmt.Fprintln(&report, l)
	}
	t.Logf("| listed | tools | bytes | tokens, at %d bytes each |\n|---|---|---|---|\n%s", perToken, &report)

	answers := func(t *testing.T, result *mcp.CallToolResult, want string) {
		t.Helper()
		if e := harness.CheckResult(t, nil, result); e.Status != "ok" || !strings.Contains(string(e.Raw), want) {
			t.Errorf("the server's tool says %s", e.Raw)
		}
	}
	says := func(t *testing.T, result *mcp.CallToolResult) { t.Helper(); answers(t, result, "hello there") }
	has := func(t *testing.T, tools []*mcp.Tool) {
		t.Helper()
		if !slices.ContainsFunc(tools, func(tool *mcp.Tool) bool { return tool.Name == "files__read_text_file" }) {
			t.Errorf("the client lists %d tools, without the server's", len(tools))
		}
	}
	path := map[string]any{"path": hello}
	for _, era := range []string{"", "auto", "modern"} {
		t.Run(strings.TrimSpace("inspector "+era), func(t *testing.T) {
			i := inspector{t: t, node: node(t), home: t.TempDir(), target: []string{h.MCPURL(), "--transport", "http", "--header", "Authorization: Bearer " + driver}}
			if era != "" {
				i.target = append(i.target, "--protocol-era", era)
			}
			var list mcp.ListToolsResult
			if code := i.run(&list, "--method", "tools/list", "--strict"); code != 0 {
				t.Errorf("tools/list --strict: exit status %d", code)
			}
			has(t, list.Tools)
			says(t, i.Call("files__read_text_file", path)())
			answers(t, i.Call("memory__read_graph", map[string]any{})(), "entities")
			answers(t, i.Call("everything__echo", map[string]any{"message": "to be said again"})(), "to be said again")
		})
	}
	for _, era := range []string{"legacy", "auto"} {
		t.Run("typescript pages "+era, func(t *testing.T) {
			c := startTypescript(t, "v2.mjs", []string{"DURWARD_ERA=" + era, "DURWARD_TOKEN=" + paged}, "http", h.MCPURL())
			if n := len(c.Tools()); n < whole {
				t.Errorf("the client that fetches every page has %d tools, want %d and Durward's own", n, whole)
			}
		})
	}
	for _, test := range []struct{ script, era string }{{"v1.mjs", ""}, {"v2.mjs", "legacy"}, {"v2.mjs", "auto"}, {"v2.mjs", "pin"}} {
		t.Run(strings.TrimSpace("typescript "+test.script+" "+test.era), func(t *testing.T) {
			c := startTypescript(t, test.script, []string{"DURWARD_ERA=" + test.era, "DURWARD_TOKEN=" + set}, "http", h.MCPURL())
			has(t, c.Tools())
			results, _ := c.Call("files__read_text_file", path, 1)
			says(t, results[0])
		})
	}
}
