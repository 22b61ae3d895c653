package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/diagnostic"
	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
)

// diagnostics are what the conformance suite looks for beside the product.
type diagnostics struct{ jobs diagnostic.Jobs }

// prepare lets a server say that it has what register puts on it.
func (*diagnostics) prepare(options *mcp.ServerOptions) { diagnostic.Prepare(options) }

func (*diagnostics) register(sdk *mcp.Server, era httpfront.Era) error {
	diagnostic.Register(sdk)
	if era == httpfront.Stateful {
		return nil
	}
	// In place of the product's, whose tasks take no input.
	return mcp.AddReceivingCustomMethod(sdk, methodUpdateTask, func(context.Context, *mcp.ServerSession, *taskUpdate) (*acknowledged, error) {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "This server does not offer that method."}
	})
}

// taskUpdate are the params of tasks/update with the input that a task asked for.
type taskUpdate struct {
	taskParams
	Responses map[string]json.RawMessage `json:"inputResponses"`
}

// suiteTask is a task with what the product's never have.
type suiteTask struct {
	task
	Error   *jsonrpc.Error      `json:"error,omitempty"`
	Pending mcp.InputRequestMap `json:"inputRequests,omitempty"`
}

// diagnose serves a message that is for the suite's tools, prompts and resources, whose errors go out as they are; false: it
// is for the product.
func (s *Server) diagnose(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request, call *httpfront.Call) (result mcp.Result, served bool, err error) {
	switch params := req.GetParams().(type) {
	case *mcp.CompleteParams:
		result, served := diagnostic.Complete(params)
		return result, served, nil
	case *mcp.CallToolParamsRaw:
		if r, ok := req.(*mcp.CallToolRequest); ok && call.Capabilities.Tasks {
			if job := s.diagnostics.jobs.Start(r); job != nil {
				return suiteTaskOf(job.State(), resultTask), true, nil
			}
		}
	case *taskParams:
		return s.diagnoseTask(method, params.TaskID, nil)
	case *taskUpdate:
		if result, served, err := s.diagnoseTask(method, params.TaskID, slices.Collect(maps.Keys(params.Responses))); served {
			return result, true, err
		}
		r, _ := req.(*mcp.ServerRequest[*taskUpdate])
		result, err := s.task(ctx, method, &mcp.ServerRequest[*taskParams]{Session: r.Session, Params: &params.taskParams, Extra: r.Extra}, call)
		return result, true, err
	}
	if !diagnostic.Serves(method, req) {
		return nil, false, nil
	}
	result, err = next(ctx, method, req)
	if said, ok := errors.AsType[*jsonrpc.Error](err); ok {
		err = &refusalError{said}
	}
	return result, true, err
}

// diagnoseTask serves a message about one of the suite's own tasks.
func (s *Server) diagnoseTask(method, id string, answers []string) (result mcp.Result, served bool, err error) {
	job := s.diagnostics.jobs.Find(id)
	if job == nil {
		return nil, false, nil
	}
	switch method {
	case methodGetTask:
		return suiteTaskOf(job.State(), resultComplete), true, nil
	case methodCancelTask:
		job.Cancel()
	case methodUpdateTask:
		job.Answer(answers...)
	}
	return &acknowledged{ResultType: resultComplete}, true, nil
}

func suiteTaskOf(state diagnostic.State, resultType string) *suiteTask {
	out := &suiteTask{Error: state.Error, Pending: state.Pending, task: task{
		ResultType: resultType, TaskID: state.ID, Status: state.Status,
		CreatedAt: envelope.Time(state.Created), LastUpdatedAt: envelope.Time(state.Updated),
		TTLMs: taskKept.Milliseconds(), PollIntervalMs: taskPoll.Milliseconds(),
	}}
	if state.Result != nil {
		raw, err := json.Marshal(completed{state.Result})
		if err != nil {
			panic(err) // a fixed text
		}
		out.Result = raw
	}
	return out
}
