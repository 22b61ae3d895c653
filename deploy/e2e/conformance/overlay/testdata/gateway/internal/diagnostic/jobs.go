package diagnostic

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Jobs are the calls of the suite's tools that became tasks. The product's tasks are operations at the vault, which no tool of
// the suite could be: what the suite sees of tasks is the product's reading of messages and form of answers, not its work.
// The zero value has none. It is safe for concurrent use.
type Jobs struct {
	mu   sync.Mutex
	byID map[string]*Job
}

// Job is one call that goes on after it was answered. It is safe for concurrent use.
type Job struct {
	id      string
	created time.Time
	cancel  context.CancelFunc

	mu       sync.Mutex
	status   string
	updated  time.Time
	result   *mcp.CallToolResult
	problem  *jsonrpc.Error
	pending  mcp.InputRequestMap
	answered chan struct{}
}

// State is how a job stands, in the words of the tasks extension.
type State struct {
	ID, Status       string
	Created, Updated time.Time
	Result           *mcp.CallToolResult
	Error            *jsonrpc.Error
	Pending          mcp.InputRequestMap
}

// work is what a job does. ask shows the client requests and returns when each was answered, or the job was cancelled.
type work func(ctx context.Context, req *mcp.CallToolRequest, ask func(mcp.InputRequestMap)) (*mcp.CallToolResult, error)

// works are the tools whose calls become tasks, for clients that take tasks.
func works() map[string]work {
	return map[string]work{
		"slow_compute": func(ctx context.Context, req *mcp.CallToolRequest, _ func(mcp.InputRequestMap)) (*mcp.CallToolResult, error) {
			var arguments struct {
				Seconds float64 `json:"seconds"`
			}
			if err := json.Unmarshal(req.Params.Arguments, &arguments); err != nil {
				return nil, err
			}
			return answer(text("The computation is over.")), sleep(ctx, time.Duration(arguments.Seconds*float64(time.Second)))
		},
		"failing_job": func(ctx context.Context, _ *mcp.CallToolRequest, _ func(mcp.InputRequestMap)) (*mcp.CallToolResult, error) {
			out := answer(text("The job failed, as it always does."))
			out.IsError = true
			return out, sleep(ctx, time.Second)
		},
		"protocol_error_job": func(context.Context, *mcp.CallToolRequest, func(mcp.InputRequestMap)) (*mcp.CallToolResult, error) {
			return nil, errors.New("the job breaks, as it always does")
		},
		"confirm_delete": func(_ context.Context, _ *mcp.CallToolRequest, ask func(mcp.InputRequestMap)) (*mcp.CallToolResult, error) {
			ask(mcp.InputRequestMap{"confirm": form("Delete it?", "confirm", "boolean")})
			return answer(text("An answer was given.")), nil
		},
		"multi_input": func(_ context.Context, _ *mcp.CallToolRequest, ask func(mcp.InputRequestMap)) (*mcp.CallToolResult, error) {
			ask(mcp.InputRequestMap{"one": form("One?", "value", "string"), "two": form("Two?", "value", "string")})
			return answer(text("Both answers were given.")), nil
		},
		escalating: func(_ context.Context, req *mcp.CallToolRequest, _ func(mcp.InputRequestMap)) (*mcp.CallToolResult, error) {
			said, _ := accepted(req.Params.InputResponses, "user_name")
			return answer(text("Done for " + word(said["name"]) + ".")), nil
		},
	}
}

// escalating is the tool that asks first and becomes a task then.
const escalating = "test_tool_with_task"

// demanding reports whether a tool serves only clients that take tasks.
func demanding(name string) bool { return name == "failing_job" || name == escalating }

// jobTools are the tools that become tasks, as they serve clients that do not take any.
func jobTools() []tool {
	var all []tool
	for name, do := range works() {
		all = append(all, does(name, "Becomes a task", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			declared := req.ClientCapabilities()
			if tasks := declared != nil && declared.Extensions[extensionTasks] != nil; demanding(name) && !tasks {
				return nil, lacks(&mcp.ClientCapabilities{Extensions: map[string]any{extensionTasks: map[string]any{}}})
			}
			if name == escalating {
				return ask("user_name", form("What is your name?", "name", "string")), nil
			}
			return do(ctx, req, func(mcp.InputRequestMap) {})
		}))
	}
	return all
}

// extensionTasks is the name under which clients say that they take tasks.
const extensionTasks = "io.modelcontextprotocol/tasks"

// Start makes a job of a call, if its tool makes one of it; nil: it is a call like others.
func (j *Jobs) Start(req *mcp.CallToolRequest) *Job {
	do, ok := works()[req.Params.Name]
	if _, answered := accepted(req.Params.InputResponses, "user_name"); !ok || req.Params.Name == escalating && !answered {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	job := &Job{id: strings.ToLower(rand.Text()), created: time.Now(), cancel: cancel, status: "working", updated: time.Now()}
	j.mu.Lock()
	if j.byID == nil {
		j.byID = map[string]*Job{}
	}
	j.byID[job.id] = job
	j.mu.Unlock()
	go func() {
		result, err := do(ctx, req, func(requests mcp.InputRequestMap) { job.ask(ctx, requests) })
		job.end(result, err)
	}()
	return job
}

// Find returns a job, or nil.
func (j *Jobs) Find(id string) *Job {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.byID[id]
}

// State returns how the job stands.
func (j *Job) State() State {
	j.mu.Lock()
	defer j.mu.Unlock()
	return State{ID: j.id, Status: j.status, Created: j.created, Updated: j.updated, Result: j.result, Error: j.problem, Pending: maps.Clone(j.pending)}
}

// Cancel ends the job, unless it has ended.
func (j *Job) Cancel() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.status == "working" || j.status == "input_required" {
		j.status, j.updated, j.pending = "cancelled", time.Now(), nil
		j.cancel()
	}
}

// Answer takes what the job asked for, by the names of its requests. Others count for nothing.
func (j *Job) Answer(names ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, name := range names {
		delete(j.pending, name)
	}
	if j.status == "input_required" && len(j.pending) == 0 {
		j.status, j.updated, j.pending = "working", time.Now(), nil
		close(j.answered)
	}
}

func (j *Job) ask(ctx context.Context, requests mcp.InputRequestMap) {
	j.mu.Lock()
	answered := make(chan struct{})
	if j.status == "working" {
		j.status, j.updated, j.pending, j.answered = "input_required", time.Now(), requests, answered
	}
	j.mu.Unlock()
	select {
	case <-answered:
	case <-ctx.Done():
	}
}

func (j *Job) end(result *mcp.CallToolResult, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.cancel()
	switch {
	case j.status != "working": // cancelled
	case err != nil:
		j.status, j.updated, j.problem = "failed", time.Now(), &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "The job broke."}
	default:
		j.status, j.updated, j.result = "completed", time.Now(), result
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
