//go:build real

package real

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// client is an MCP client that nobody here wrote, as the tests drive it. Its methods fail the test when the client does not
// like what it got: strict ones check every answer of a tool against the tool's output schema.
type client interface {
	// Revision is the protocol revision that the client settled on.
	Revision() string
	Tools() []*mcp.Tool
	// Call calls a tool so many times at once, and returns the texts of the progress that was reported meanwhile.
	Call(tool string, arguments map[string]any, times int) (results []*mcp.CallToolResult, progress []string)
	// Cut calls a tool and cancels the call after half a second.
	Cut(tool string, arguments map[string]any)
	// List returns the URIs of the resources and of their templates.
	List() (resources, templates []string)
	Read(uri string) string
	Complete(uri, name, value string) []string
	Subscribe(uri string)
	// Updated waits for the next resource that the client is told to have changed.
	Updated() string
}

// everything is what a client is led through, in the order of the table's columns.
var everything = []string{"tools", "resources", "completion", "updates", "approved", "joined", "denied", "progress", "cancelled"}

// results collects which client did what, for the table at the end of a test.
type results struct {
	mu   sync.Mutex
	rows map[string]map[string]bool
}

func (r *results) did(name, what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rows == nil {
		r.rows = map[string]map[string]bool{}
	}
	if r.rows[name] == nil {
		r.rows[name] = map[string]bool{}
	}
	r.rows[name][what] = true
}

// String is the table: a row for each client, a column for each thing that it was led through.
func (r *results) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out strings.Builder
	fmt.Fprintf(&out, "%-40s", "client, era, transport")
	for _, what := range everything {
		fmt.Fprintf(&out, " %-10s", what)
	}
	for _, name := range slices.Sorted(maps.Keys(r.rows)) {
		fmt.Fprintf(&out, "\n%-40s", name)
		for _, what := range everything {
			mark := "-"
			if r.rows[name][what] {
				mark = "yes"
			}
			fmt.Fprintf(&out, " %-10s", mark)
		}
	}
	return out.String()
}

// arguments of the tools.
var (
	demo = map[string]any{"service_id": harness.DemoService}
	slow = map[string]any{"service_id": harness.SlowService}
)

// asker checks answers as a strict client does.
type asker struct {
	t       *testing.T
	schemas map[string]any
}

func newAsker(t *testing.T, tools []*mcp.Tool) asker {
	a := asker{t, map[string]any{}}
	for _, tool := range tools {
		a.schemas[tool.Name] = tool.OutputSchema
	}
	if want := len(harness.Listed(optionsv1.Tier_TIER_WRITE)); len(tools) != want {
		t.Fatalf("%d tools, want %d", len(tools), want)
	}
	return a
}

func (a asker) check(want, tool string, result *mcp.CallToolResult) harness.Envelope {
	a.t.Helper()
	e := harness.CheckResult(a.t, harness.ResolveSchema(a.t, a.schemas[tool]), result)
	if e.Status != want {
		a.t.Fatalf("%s: status %s, want %s: %s", tool, e.Status, want, e.Raw)
	}
	return e
}

// lead leads a client through everything, with the operator beside it.
func lead(t *testing.T, h *harness.Host, c client, did func(what string)) {
	a := newAsker(t, c.Tools())
	ask := func(want, tool string, arguments map[string]any) harness.Envelope {
		t.Helper()
		results, _ := c.Call(tool, arguments, 1)
		return a.check(want, tool, results[0])
	}
	ask("ok", "gpu_status", map[string]any{})
	ask("error", "service_info", map[string]any{"service_id": "no-such-service"})
	ask("error", "start_service", map[string]any{"service_id": "--force"})
	did("tools")

	resources, templates := c.List()
	checkResources(t, resources, templates)
	service := "durward://services/" + harness.DemoService
	if text := c.Read(service); !strings.Contains(text, harness.DemoService) {
		t.Errorf("%s says %q", service, text)
	}
	did("resources")
	if values := c.Complete(templates[slices.IndexFunc(templates, isServices)], "service_id", "demo"); !slices.Contains(values, harness.DemoService) {
		t.Errorf("service_id completes to %v", values)
	}
	did("completion")

	// The same call twice at once is one request, and what comes of it is told to whoever subscribed.
	c.Subscribe(service)
	pending, _ := c.Call("start_service", demo, 2)
	asked := a.check("pending_approval", "start_service", pending[0])
	if joined := a.check("pending_approval", "start_service", pending[1]); joined.OperationID != asked.OperationID || len(h.Approvals()) != 1 {
		t.Errorf("two identical calls are the operations %s and %s", asked.OperationID, joined.OperationID)
	}
	did("joined")
	h.Approve(asked.OperationID)
	done := ask("ok", "wait_operation", asked.Next.Arguments)
	if done.Replayed || h.Starts(harness.DemoService) != 1 {
		t.Errorf("the service was started %d times, want 1: %s", h.Starts(harness.DemoService), done.Raw)
	}
	if again := ask("ok", "wait_operation", asked.Next.Arguments); !again.Replayed {
		t.Errorf("the same operation again: %s", again.Raw)
	}
	did("approved")
	if uri := c.Updated(); uri != service {
		t.Errorf("the client was told that %s changed, want %s", uri, service)
	}
	did("updates")

	refused := ask("pending_approval", "stop_service", demo)
	h.Deny(refused.OperationID, "it is in use")
	if e := ask("denied", "wait_operation", refused.Next.Arguments); e.Reason != "user_rejected" {
		t.Errorf("denied: %s", e.Raw)
	}
	did("denied")

	// What runs goes on when the client cancels its call.
	long := ask("pending_approval", "start_service", slow)
	h.Approve(long.OperationID)
	c.Cut("wait_operation", long.Next.Arguments)
	running, progress := c.Call("wait_operation", long.Next.Arguments, 1)
	a.check("running", "wait_operation", running[0])
	if h.Starts(harness.SlowService) != 1 {
		t.Errorf("the slow service was started %d times, want 1", h.Starts(harness.SlowService))
	}
	did("cancelled")
	if !slices.ContainsFunc(progress, func(said string) bool { return strings.Contains(said, "start "+harness.SlowService) }) {
		t.Errorf("progress says %q", progress)
	}
	did("progress")
}

func checkResources(t *testing.T, resources, templates []string) {
	t.Helper()
	for _, want := range []string{"durward://help", "durward://gpu", "durward://services", "durward://config"} {
		if !slices.Contains(resources, want) {
			t.Errorf("resources %q, without %s", resources, want)
		}
	}
	if !slices.ContainsFunc(templates, isServices) {
		t.Fatalf("templates %q, without one for services", templates)
	}
}

func isServices(template string) bool { return strings.HasPrefix(template, "durward://services/{") }
