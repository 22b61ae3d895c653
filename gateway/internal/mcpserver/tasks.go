package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/refusal"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

// The tasks extension (SEP-2663, https://github.com/modelcontextprotocol/ext-tasks, 2026-07-28). A task is an operation under
// the vault's own id, so that nothing about tasks is kept here: any gateway answers for any of them, wait_operation goes on
// where a task was left, and a task of another principal looks like one that does not exist.
//
// A task asks its client for no input, since nothing that a client sends can approve. As everywhere, approval executes nothing
// by itself: the tasks/get that finds an operation approved is the live call that carries it out.

// metaSummary is a member of _meta that is ours: a sentence, where an answer has no place for one.
const metaSummary = "durward/summary"

// extensionTasks is the name under which client and server declare the extension.
const extensionTasks = "io.modelcontextprotocol/tasks"

// Methods of the extension.
const (
	methodGetTask    = "tasks/get"
	methodUpdateTask = "tasks/update"
	methodCancelTask = "tasks/cancel"
)

const (
	// taskAfter is how long a call is held before it becomes a task, and how long a poll waits for what it carries out. What a
	// standing approval covers is mostly over by then, and no human decides faster.
	taskAfter = 2 * time.Second
	// taskPoll is how often clients are asked to poll.
	taskPoll = 2 * time.Second
	// taskKept is how long after it was asked for a task can be polled at least: the vault keeps operations for longer.
	taskKept = 24 * time.Hour
)

// taskParams are the params of all the extension's methods, as the front forwards them.
type taskParams struct {
	mcp.ParamsBase
	TaskID string `json:"taskId"`
}

// task is the extension's Task, with which a call is answered in place of its result and a poll with the result in it.
type task struct {
	mcp.ResultBase
	ResultType     string          `json:"resultType"`
	TaskID         string          `json:"taskId"`
	Status         string          `json:"status"`
	StatusMessage  string          `json:"statusMessage,omitempty"`
	CreatedAt      string          `json:"createdAt"`
	LastUpdatedAt  string          `json:"lastUpdatedAt"`
	TTLMs          int64           `json:"ttlMs"`
	PollIntervalMs int64           `json:"pollIntervalMs"`
	Result         json.RawMessage `json:"result,omitempty"`
}

// Values of resultType and of a task's status. A call that failed or was denied has a result too: its task is completed.
const (
	resultTask     = "task"
	resultComplete = "complete"
	taskWorking    = "working"
	taskCompleted  = "completed"
)

// acknowledged is the answer to a method of the extension that returns nothing.
type acknowledged struct {
	mcp.ResultBase
	ResultType string `json:"resultType"`
}

// addTasks makes the SDK decode the extension's methods; the middleware answers them.
func addTasks(sdk *mcp.Server) error {
	for _, method := range []string{methodGetTask, methodUpdateTask, methodCancelTask} {
		err := mcp.AddReceivingCustomMethod(sdk, method, func(context.Context, *mcp.ServerSession, *taskParams) (*acknowledged, error) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "This server does not offer that method."}
		})
		if err != nil {
			return fmt.Errorf("method %s: %w", method, err)
		}
	}
	return nil
}

// takesTasks reports whether a call may be answered with a task: its client declared so with this very call, and what it calls
// may take as long as a human does.
func takesTasks(call *httpfront.Call, t tool) bool {
	return call.Capabilities.Tasks && t.Tier != optionsv1.Tier_TIER_READ
}

// heldAsTask returns the bounds of a call that becomes a task when it takes long.
func (s *Server) heldAsTask(began time.Time) bounds {
	until := began.Add(min(taskAfter, s.conf.Hold))
	return bounds{decided: until, done: until}
}

type taskSlot struct{}

// taskOr calls next, which serves a tools/call, and returns the task that it left in place of its result, if it did: the SDK's
// tool handlers can return results of tools alone.
func taskOr(ctx context.Context, next mcp.MethodHandler, method string, req mcp.Request) (mcp.Result, error) {
	var made *task
	result, err := next(context.WithValue(ctx, taskSlot{}, &made), method, req)
	if err == nil && made != nil {
		return made, nil
	}
	return result, err
}

// leaveTask leaves a task in place of the answer of a call that has not ended. Without the vault's word on the operation there
// is none, and the answer stands.
func (s *Server) leaveTask(ctx context.Context, call *httpfront.Call, t tool, out answer) {
	slot, _ := ctx.Value(taskSlot{}).(**task)
	if slot == nil || !takesTasks(call, t) || out.OperationID == "" || out.Status != envelope.PendingApproval && out.Status != envelope.Running {
		return
	}
	operation, err := s.conf.Relay.Operation(ctx, call.Session, call.Caller, out.OperationID)
	if err != nil {
		s.conf.Logger.WarnContext(ctx, "a call that takes long is answered without a task", "fault", fault.From(err))
		return
	}
	*slot = newTask(call, operation, s.banner(call, out))
	(*slot).ResultType = resultTask
}

// newTask is the task of an operation that has not ended. It says to people what the envelope would have said.
func newTask(call *httpfront.Call, operation *vaultv1.GetOperationResponse, out answer) *task {
	asked, updated := operation.GetAskedAt().AsTime(), time.Now()
	if operation.GetState() == vaultv1.OperationState_OPERATION_STATE_PENDING {
		updated = asked
	}
	message := out.Summary
	if out.TellUser != "" {
		message += " " + out.TellUser
	}
	return &task{
		ResultBase: mcp.ResultBase{Meta: metaOf(call, out)},
		ResultType: resultComplete, TaskID: out.OperationID, Status: taskWorking, StatusMessage: message,
		CreatedAt: envelope.Time(asked), LastUpdatedAt: envelope.Time(updated),
		TTLMs: taskKept.Milliseconds(), PollIntervalMs: taskPoll.Milliseconds(),
	}
}

// task answers the extension's methods.
func (s *Server) task(ctx context.Context, method string, req mcp.Request, call *httpfront.Call) (mcp.Result, error) {
	params, _ := req.GetParams().(*taskParams)
	session, _ := req.GetSession().(*mcp.ServerSession)
	if params == nil || session == nil {
		return nil, internalError(call)
	}
	switch method {
	case methodGetTask:
		return s.getTask(ctx, call, params.TaskID)
	case methodCancelTask:
		return s.cancelTask(ctx, call, params.TaskID)
	default:
		// The same for every id: there is no task that asked for something.
		s.conf.Refusals.Record(ctx, refusal.Event{
			RequestID: call.RequestID, Code: callv1.Code_CODE_INVALID_ARGUMENT, Reason: "input for a task",
			Principal: call.Session.Principal(), Session: call.Session.Ref(),
		})
		return nil, refuse(call, fault.New(callv1.Code_CODE_INVALID_ARGUMENT,
			"the task asked for no input; what a client sends cannot approve anything"))
	}
}

// getTask polls a task, and carries the operation out if a human approved it meanwhile.
func (s *Server) getTask(ctx context.Context, call *httpfront.Call, id string) (mcp.Result, error) {
	if !call.Enter() {
		return nil, taskError(call, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded", fault.WithRetry(time.Second)))
	}
	defer call.Leave()
	operation, err := s.conf.Relay.Operation(ctx, call.Session, call.Caller, id)
	if err != nil {
		return nil, taskError(call, err)
	}
	if operation.GetState() == vaultv1.OperationState_OPERATION_STATE_PENDING {
		return newTask(call, operation, s.banner(call, answer{Envelope: envelope.Pending(call.RequestID, id, operation.GetExpiresAt().AsTime())})), nil
	}
	out, err := s.settle(ctx, call, id, time.Time{}, s.heldAsTask(time.Now()))
	if err != nil {
		f := fault.From(err)
		if !f.Retryable && f.Code != callv1.Code_CODE_EXPIRED || f.Code == callv1.Code_CODE_PROOF_REQUIRED {
			return nil, taskError(call, err) // it is the poll that failed: how the operation ends is not known
		}
		out = failed(call, s.tools[envelope.WaitTool], err)
		out.OperationID = id
	}
	polled := newTask(call, operation, s.banner(call, out))
	if out.Status == envelope.PendingApproval || out.Status == envelope.Running || out.Error != nil && out.Error.Retryable && !out.over {
		return polled, nil // the operation is still there: the next poll goes on with it
	}
	s.conf.Logger.InfoContext(ctx, "task ended", "tool", operation.GetTool().GetName(), "principal", call.Session.Principal(), "session", call.Session.Ref(),
		"status", string(out.Status), "operation", id)
	result, err := s.result(ctx, call, out)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(completed{result})
	if err != nil {
		s.conf.Logger.ErrorContext(ctx, "encode a task's result", "error", err)
		return nil, internalError(call)
	}
	polled.Status, polled.StatusMessage, polled.Result = taskCompleted, s.banner(call, out).Summary, raw
	return polled, nil
}

// afterCancel says what a cancellation left as it is, by the operation's state.
var afterCancel = map[vaultv1.OperationState]string{
	vaultv1.OperationState_OPERATION_STATE_PENDING:  "Nobody waits for the request any more. It stays with the human, and nothing happens unless it is asked for again.",
	vaultv1.OperationState_OPERATION_STATE_APPROVED: "Nobody waits for the request any more. It is approved, and nothing happens unless it is asked for again.",
	vaultv1.OperationState_OPERATION_STATE_RUNNING:  "Nobody waits for the operation any more. It goes on, and nothing is rolled back.",
}

// cancelTask ends nothing but the client's waiting, which is over when it stops polling: the request is the human's to deny,
// and what runs is not rolled back. The acknowledgement is empty, as the extension wants it; how things stand is in _meta.
func (s *Server) cancelTask(ctx context.Context, call *httpfront.Call, id string) (mcp.Result, error) {
	operation, err := s.conf.Relay.Operation(ctx, call.Session, call.Caller, id)
	if err != nil {
		return nil, taskError(call, err)
	}
	meta := metaOf(call, answer{Envelope: &envelope.Envelope{OperationID: id}})
	left := cmp.Or(afterCancel[operation.GetState()], "The operation is over.")
	if operation.GetState() == vaultv1.OperationState_OPERATION_STATE_PENDING && call.Session.May("withdraw_operation") {
		left += " To take it back, call withdraw_operation."
	}
	meta[metaSummary] = left
	return &acknowledged{ResultBase: mcp.ResultBase{Meta: meta}, ResultType: resultComplete}, nil
}

// gone reports whether a fault means that there is no such operation for this client. What is not there, what is another's,
// what no operation could be called and what this client may not ask for look alike.
func gone(f *fault.Error) bool {
	switch f.Code {
	case callv1.Code_CODE_NOT_FOUND, callv1.Code_CODE_DENIED, callv1.Code_CODE_INVALID_ARGUMENT:
		return true
	default:
		return false
	}
}

// taskError is the answer to a poll that cannot say how the task stands.
func taskError(call *httpfront.Call, err error) error {
	f := fault.From(err)
	if gone(f) {
		return refuse(call, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such task"))
	}
	return refuse(call, f)
}
