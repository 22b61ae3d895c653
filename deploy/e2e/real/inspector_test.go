//go:build real

package real

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/platformtest/full"
)

// inspector is the MCP inspector's command line, which connects anew for each call.
type inspector struct {
	t      *testing.T
	node   string
	home   string
	target []string
}

func (i inspector) command(args ...string) *exec.Cmd {
	line := append([]string{"node_modules/.bin/mcp-inspector", "--cli"}, i.target...)
	cmd := exec.CommandContext(i.t.Context(), i.node, append(line, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+i.home, "PATH="+filepath.Dir(i.node)+":"+os.Getenv("PATH"))
	return cmd
}

// start calls one method. What it returns waits for the end, decodes what the inspector printed, and returns its exit status.
func (i inspector) start(args ...string) func(into any) int {
	i.t.Helper()
	cmd := i.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	must(i.t, cmd.Start())
	return func(into any) int {
		i.t.Helper()
		err := cmd.Wait()
		if json.Unmarshal(stdout.Bytes(), into) != nil {
			i.t.Fatalf("%v: %v\n%s%s", args, err, stdout.Bytes(), stderr.Bytes())
		}
		return cmd.ProcessState.ExitCode()
	}
}

func (i inspector) run(into any, args ...string) int {
	i.t.Helper()
	return i.start(args...)(into)
}

// Call calls a tool and returns what waits for its answer. The exit status of a call that failed is the inspector's own
// affair.
func (i inspector) Call(tool string, arguments map[string]any) func() *mcp.CallToolResult {
	i.t.Helper()
	args := []string{"--method", "tools/call", "--tool-name", tool}
	for key, value := range arguments {
		encoded, err := json.Marshal(value)
		must(i.t, err)
		args = append(args, "--tool-arg", key+"="+string(encoded))
	}
	wait := i.start(args...)
	return func() *mcp.CallToolResult {
		i.t.Helper()
		var result mcp.CallToolResult
		wait(&result)
		return &result
	}
}

// TestInspector runs the MCP inspector's command line in the eras that it can be told to speak, over HTTP and stdio, or in a third of these
// ways: each call is a connection and a process of Node's of its own. Operations belong to the principal.
func TestInspector(t *testing.T) {
	t.Parallel()
	picked := full.Picks(t, 3)
	var table results
	t.Run("clients", func(t *testing.T) {
		for _, test := range []struct {
			era, revision string
			// tasks: the inspector declares the tasks extension, so that its call ends when the operation does.
			tasks bool
		}{
			{"default", "2025-11-25", false},
			{"auto", "2026-07-28", true},
			{"modern", "2026-07-28", true},
		} {
			for _, transport := range []string{"http", "stdio"} {
				if !picked() {
					continue
				}
				name := "inspector " + test.era + ", " + test.revision + ", " + transport
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					h := harness.Start(t, harness.Options{HoldS: 1, Limits: harness.DefaultLimits})
					i := inspector{t: t, node: node(t), home: t.TempDir()}
					if transport == "http" {
						i.target = []string{h.MCPURL(), "--transport", "http", "--header", "Authorization: Bearer " + h.AddClient("agent")}
					} else {
						h.AddKeyBound("agent")
						i.target = h.StdioCommand("agent")
					}
					if test.era != "default" {
						i.target = append(i.target, "--protocol-era", test.era)
					}
					leadInspector(t, h, i, test.revision, test.tasks, func(what string) { table.did(name, what) })
				})
			}
		}
	})
	t.Logf("\n%s", &table)
}

// leadInspector leads the inspector through what its command line can do: it completes nothing, and it follows no resource.
func leadInspector(t *testing.T, h *harness.Host, i inspector, revision string, tasks bool, did func(what string)) {
	var hello struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if i.run(&hello, "--method", "initialize"); hello.ProtocolVersion != revision {
		t.Errorf("the inspector speaks %s, want %s", hello.ProtocolVersion, revision)
	}
	// --strict reports what is not portable in a schema, and fails where a client would.
	var list mcp.ListToolsResult
	if code := i.run(&list, "--method", "tools/list", "--strict"); code != 0 {
		t.Errorf("tools/list --strict: exit status %d", code)
	}
	a := newAsker(t, list.Tools)
	a.check("error", "service_info", i.Call("service_info", map[string]any{"service_id": "no-such-service"})())
	did("tools")

	var listed struct {
		Resources []*mcp.Resource         `json:"resources"`
		Templates []*mcp.ResourceTemplate `json:"resourceTemplates"`
	}
	i.run(&listed, "--method", "resources/list")
	i.run(&listed, "--method", "resources/templates/list")
	var resources, templates []string
	for _, r := range listed.Resources {
		resources = append(resources, r.URI)
	}
	for _, f := range listed.Templates {
		templates = append(templates, f.URITemplate)
	}
	checkResources(t, resources, templates)
	service := "durward://services/" + harness.DemoService
	var read mcp.ReadResourceResult
	if i.run(&read, "--method", "resources/read", "--uri", service); len(read.Contents) != 1 || !strings.Contains(read.Contents[0].Text, harness.DemoService) {
		t.Errorf("%s says %v", service, read.Contents)
	}
	did("resources")

	decided := func(tool string, decide func(id string), want string) {
		t.Helper()
		called := i.Call(tool, demo)
		if tasks {
			// The call becomes a task, which the inspector polls until a human has decided and the operation ended.
			decide(h.AwaitApproval(tool).OperationID)
			a.check(want, tool, called())
			return
		}
		asked := a.check("pending_approval", tool, called())
		decide(asked.OperationID)
		a.check(want, "wait_operation", i.Call("wait_operation", asked.Next.Arguments)())
	}
	decided("start_service", func(id string) { h.Approve(id) }, "ok")
	if n := h.Starts(harness.DemoService); n != 1 {
		t.Errorf("the service was started %d times, want 1", n)
	}
	did("approved")
	decided("stop_service", func(id string) { h.Deny(id, "it is in use") }, "denied")
	did("denied")
}
