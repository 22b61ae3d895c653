//go:build real

package real

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/downstream"
	"durward.internal/services/platform/platformtest/testfile"
)

// walk returns the command lines with which README puts another's server behind Durward, without the program's name.
func walk(t *testing.T) (lines [][]string) {
	t.Helper()
	raw := testfile.Read(t, filepath.Join(harness.Root(t), "README.md"))
	_, section, _ := strings.Cut(string(raw), "\n## Other people's MCP servers\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		if command, is := strings.CutPrefix(line, "    durward "); is {
			lines = append(lines, strings.Fields(command))
		}
	}
	if len(lines) != 3 {
		t.Fatalf("README's section has the commands %q, want 3", lines)
	}
	return lines
}

// locked is a reference server's package with the version that this folder's lock has.
func locked(t *testing.T, name string) string {
	t.Helper()
	p := dependency(t, "@modelcontextprotocol/server-"+name)
	return "npm:" + p.Name + "@" + p.Version
}

// dependency is a package in the version that this folder's lock has.
func dependency(t *testing.T, name string) downstream.Package {
	t.Helper()
	raw := testfile.Read(t, "package.json")
	var manifest struct{ Dependencies map[string]string }
	must(t, json.Unmarshal(raw, &manifest))
	return downstream.Package{Name: name, Version: manifest.Dependencies[name]}
}

// command runs durward with the npm settings of whoever runs the test. npm has these packages already: what is installed here is locked.
func command(t *testing.T, h *harness.Host, args ...string) {
	t.Helper()
	home, err := os.UserHomeDir()
	must(t, err)
	cmd := h.Command(append([]string{filepath.Join(h.Bin, "durward"), "--home", h.Dir}, args...)...)
	cmd.Env = append(cmd.Env, "npm_config_userconfig="+filepath.Join(home, ".npmrc"), "npm_config_cache="+filepath.Join(home, ".npm"), "npm_config_prefer_offline=true")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("durward %q: %v\n%s", args, err, out)
	}
}

// TestServersOfOthers follows README: the protocol's reference servers from npm, each in its sandbox, behind the gateway, for the client that
// README connects. What they change a human approves.
func TestServersOfOthers(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
	docs, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside.txt")
	for file, text := range map[string]string{filepath.Join(docs, "hello.txt"): "hello there", outside: "not for agents"} {
		testfile.Write(t, file, text)
	}
	linked := filepath.Join(docs, "linked.txt")
	must(t, os.Symlink(outside, linked))
	lines := walk(t)
	if up := lines[0]; !slices.Equal(up[:2], []string{"up", "--development"}) || !slices.Contains(lines[1], locked(t, "filesystem")) {
		t.Fatalf("README starts with %q and %q", up, lines[1])
	}
	h.Up(lines[0][2:]...)
	for _, line := range lines[1:] {
		for i, word := range line {
			line[i] = strings.ReplaceAll(word, "/srv/docs", docs)
		}
		command(t, h, slices.Insert(line, 2, "--yes")...)
	}
	command(t, h, "server", "add", locked(t, "memory"), "--env", "MEMORY_FILE_PATH=/data/memory.jsonl", "--read", "read_graph", "--yes")
	command(t, h, "server", "add", locked(t, "everything"), "--read", "get-tiny-image", "--yes")
	h.WriteFile("config/servers.yaml", strings.Replace(h.ReadFile("config/servers.yaml"), "- id: everything\n", "- id: everything\n    images: true\n", 1))
	command(t, h, "server", "accept", "everything", "--yes")

	raw := testfile.Read(t, filepath.Join(filepath.Dir(h.Dir), ".claude.json"))
	var settings struct {
		Servers map[string]struct {
			Command string
			Args    []string
		} `json:"mcpServers"`
	}
	must(t, json.Unmarshal(raw, &settings))
	bridge := settings.Servers["durward"]
	c := startTypescript(t, "v2.mjs", []string{"DURWARD_ERA=auto"}, append([]string{"stdio", bridge.Command}, bridge.Args...)...)
	is := func(want string, result *mcp.CallToolResult, says string) harness.Envelope {
		t.Helper()
		e := harness.CheckResult(t, nil, result)
		if e.Status != want || !strings.Contains(string(e.Raw), says) {
			t.Fatalf("it is %s, want %s with %q: %s", e.Status, want, says, e.Raw)
		}
		return e
	}
	ask := func(want, tool string, arguments map[string]any, says string) harness.Envelope {
		t.Helper()
		results, _ := c.Call(tool, arguments, 1)
		return is(want, results[0], says)
	}
	// approved asks, and has a human say yes once nothing has happened.
	approved := func(tool string, arguments map[string]any, untouched func() bool) {
		t.Helper()
		asked := ask("pending_approval", tool, arguments, "durward approve")
		if !untouched() {
			t.Fatalf("%s did something before a human approved", tool)
		}
		h.Approve(asked.OperationID)
		ask("ok", "wait_operation", asked.Next.Arguments, "")
	}

	ask("ok", "find_tools", map[string]any{"words": "read a text file"}, `"tool":"files__read_text_file"`)
	ask("ok", "files__read_text_file", map[string]any{"path": filepath.Join(docs, "hello.txt")}, "hello there")
	written := filepath.Join(docs, "new.txt")
	approved("files__write_file", map[string]any{"path": written, "content": "by an agent"}, func() bool {
		_, err := os.Stat(written)
		return os.IsNotExist(err)
	})
	if text, err := os.ReadFile(written); err != nil || string(text) != "by an agent" {
		t.Errorf("what was approved wrote %q, %v", text, err)
	}
	for _, path := range []string{outside, linked, "/etc/passwd", filepath.Join(docs, "..", "..", "..", "etc", "passwd"), h.Path("keys", "operator_ed25519")} {
		if e := ask("error", "files__read_text_file", map[string]any{"path": path}, ""); strings.Contains(string(e.Raw), "not for agents") {
			t.Errorf("%s was read: %s", path, e.Raw)
		}
	}

	ada := map[string]any{"entities": []any{map[string]any{"name": "Ada", "entityType": "person", "observations": []any{"writes programs"}}}}
	approved("memory__create_entities", ada, func() bool {
		results, _ := c.Call("memory__read_graph", map[string]any{}, 1)
		return !strings.Contains(string(is("ok", results[0], "").Raw), "writes programs")
	})
	ask("ok", "memory__read_graph", map[string]any{}, "writes programs")

	// A picture arrives, and the log tells of it. What changes something gives it once: it is not kept to answer again.
	seen := ask("ok", "everything__get-tiny-image", map[string]any{}, "a picture of")
	pictured(t, h, seen, "everything__get-tiny-image")
	drawing := ask("pending_approval", "everything__get-annotated-message", map[string]any{"messageType": "success", "includeImage": true}, "durward approve")
	h.Approve(drawing.OperationID)
	pictured(t, h, ask("ok", "wait_operation", drawing.Next.Arguments, "a picture of"), "everything__get-annotated-message")
	if again := ask("ok", "wait_operation", drawing.Next.Arguments, "a picture of"); !again.Replayed || len(again.Pictures) > 0 || !strings.Contains(string(again.Raw), "which is not kept") {
		t.Errorf("answered again: %d pictures, %s", len(again.Pictures), again.Raw)
	}
	if without := ask("ok", "files__read_text_file", map[string]any{"path": written}, "by an agent"); len(without.Pictures) > 0 {
		t.Errorf("%d pictures of a server whose entry has no images", len(without.Pictures))
	}
}

// pictured is an answer with one picture, of which the log has type, size and digest, and no byte.
func pictured(t *testing.T, h *harness.Host, e harness.Envelope, tool string) {
	t.Helper()
	if len(e.Pictures) != 1 {
		t.Fatalf("%s gives %d pictures: %s", tool, len(e.Pictures), e.Raw)
	}
	shown := e.Pictures[0]
	want := fmt.Sprintf("%s of %d bytes, SHA-256 %x", shown.MIMEType, len(shown.Data), sha256.Sum256(shown.Data))
	harness.Eventually(t, "the log tells of the picture", func() error {
		var told []string
		for _, r := range h.Records(&auditv1.SearchRecordsRequest{Tool: tool, Limit: 100}) {
			for name, value := range r.GetRecord().GetBody().GetDetails() {
				if strings.HasPrefix(name, "picture_") {
					told = append(told, value)
				}
			}
			if text := r.String(); strings.Contains(text, base64.StdEncoding.EncodeToString(shown.Data[:48])) || strings.Contains(text, "IHDR") {
				t.Errorf("the log has the picture itself: %s", text)
			}
		}
		if !slices.Equal(told, []string{want}) {
			return fmt.Errorf("it tells %q, want %q", told, want)
		}
		return nil
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
