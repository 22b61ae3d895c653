package mcpserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

var askedAt = time.Date(2030, 1, 2, 2, 34, 5, 0, time.UTC)

// GetOperation says where an operation stands, once it is not where the caller knows it to be.
func (v *fakeVault) GetOperation(ctx context.Context, req *vaultv1.GetOperationRequest) (*vaultv1.GetOperationResponse, error) {
	if err := v.blocked(ctx); err != nil {
		return nil, err
	}
	md, _ := metadata.FromIncomingContext(ctx)
	principal, err := permitHolder(v.kit, md)
	if err != nil {
		return nil, err
	}
	for {
		v.mu.Lock()
		o, ok := v.operations[req.GetOperationId()]
		if !ok || o.principal != principal {
			v.mu.Unlock()
			return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such operation")
		}
		out := &vaultv1.GetOperationResponse{
			State: o.state, Tool: o.tool, Arguments: o.arguments, Reason: o.reason,
			AskedAt: timestamppb.New(askedAt), ExpiresAt: timestamppb.New(askedAt.Add(30 * time.Minute)),
		}
		changed := o.changed.Wait()
		v.mu.Unlock()
		if req.KnownState == nil || out.State != req.GetKnownState() {
			return out, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// taskAnswer is an answer of the tasks extension as clients see it.
type taskAnswer struct {
	ResultType     string          `json:"resultType"`
	TaskID         string          `json:"taskId"`
	Status         string          `json:"status"`
	StatusMessage  string          `json:"statusMessage"`
	CreatedAt      string          `json:"createdAt"`
	LastUpdatedAt  string          `json:"lastUpdatedAt"`
	TTLMs          *int64          `json:"ttlMs"`
	PollIntervalMs int64           `json:"pollIntervalMs"`
	Result         json.RawMessage `json:"result"`
	Content        json.RawMessage `json:"content"`
	Meta           map[string]any  `json:"_meta"`
	envelope       answer
}

const declaresTasks = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// own sends a request of the stateless era, with what its client declares.
func (e *edge) own(t testing.TB, token, method, name, params, declares string) reply {
	t.Helper()
	if params != "" {
		params += ","
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}}}`,
		method, params, declares)
	return e.send(t, request{token: token, body: body, header: map[string]string{
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
	}})
}

// ask calls start_service as a client that takes tasks.
func (e *edge) ask(t testing.TB) taskAnswer {
	t.Helper()
	return decodeTask(t, e.own(t, tokenAgent, "tools/call", "start_service", `"name":"start_service","arguments":{"service_id":"demo-chat"}`, declaresTasks))
}

func (e *edge) task(t testing.TB, method, id string) taskAnswer {
	t.Helper()
	return decodeTask(t, e.own(t, tokenAgent, method, id, `"taskId":"`+id+`"`, declaresTasks))
}

// decodeTask checks what holds for every answer of the extension.
func decodeTask(t testing.TB, r reply) taskAnswer {
	t.Helper()
	if r.status != http.StatusOK || r.message.Error != nil {
		t.Fatalf("%d %s", r.status, r.raw)
	}
	var a taskAnswer
	must(t, json.Unmarshal(r.message.Result, &a))
	if strings.Contains(r.raw, "requestState") || strings.Contains(r.raw, "related-task") || strings.Contains(r.raw, "inputRequests") {
		t.Errorf("more than a task: %s", r.raw)
	}
	if a.Result != nil {
		inner := r
		inner.message.Result = a.Result
		a.envelope = decodeAnswer(t, inner)
	}
	return a
}

// A call that a human has to decide becomes a task under the operation's own id, and the poll that finds it approved carries
// it out and brings the tool's own result.
func TestTaskIsTheOperation(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 200 * time.Millisecond})
	made := e.ask(t)
	if made.ResultType != "task" || made.Status != "working" || made.Content != nil || made.Result != nil || made.TTLMs == nil || *made.TTLMs <= 0 || made.PollIntervalMs <= 0 {
		t.Fatalf("the call was answered with %+v", made)
	}
	id := e.vault.pending(t)
	if made.TaskID != id || made.Meta["durward/operation_id"] != id || made.CreatedAt != "2030-01-02T02:34:05Z" || made.LastUpdatedAt != made.CreatedAt {
		t.Errorf("the task is %+v, the operation %s", made, id)
	}
	if !strings.Contains(made.StatusMessage, "durward approve ") {
		t.Errorf("the task says %q", made.StatusMessage)
	}
	polled := e.task(t, "tasks/get", id)
	if polled.ResultType != "complete" || polled.Status != "working" || polled.CreatedAt != made.CreatedAt || e.executor.count() != 0 {
		t.Errorf("while nobody decided: %+v, %d effects", polled, e.executor.count())
	}
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
	if e.executor.count() != 0 {
		t.Error("an approval executed something by itself")
	}
	done := e.task(t, "tasks/get", id)
	if done.ResultType != "complete" || done.Status != "completed" || done.TaskID != id || !strings.Contains(string(done.Result), `"resultType":"complete"`) {
		t.Fatalf("approved: %+v", done)
	}
	if a := done.envelope; a.Status != "ok" || a.OperationID != id || a.Summary != "Started demo-chat." || a.tool.Meta["durward/receipt"] == nil {
		t.Errorf("the result is %s", done.Result)
	}
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_DONE, "")
	if again := e.task(t, "tasks/get", id); again.Status != "completed" || !again.envelope.Replayed || e.executor.count() != 1 {
		t.Errorf("polled once more: %+v, %d effects", again, e.executor.count())
	}
}

// An operation that is over ends its task, also where the same call could succeed another time: no poll brings that.
func TestTaskEndsThoughItsCallMayBeRepeated(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	id := e.ask(t).TaskID
	e.vault.mu.Lock()
	e.vault.operations[id].halted = true
	e.vault.mu.Unlock()
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_EXPIRED, "")
	if got := e.task(t, "tasks/get", id); got.Status != "completed" || got.envelope.Error.Code != "HALTED" || !got.envelope.Error.Retryable {
		t.Errorf("ended by a halt: %+v", got)
	}
	id = e.ask(t).TaskID
	e.executor.mu.Lock()
	e.executor.fail, e.executor.failed = fault.New(callv1.Code_CODE_CONFLICT, "a switch of modes is going on", fault.WithRetry(time.Second)), true
	e.executor.mu.Unlock()
	for _, state := range []vaultv1.OperationState{vaultv1.OperationState_OPERATION_STATE_APPROVED, vaultv1.OperationState_OPERATION_STATE_DONE} {
		e.vault.set(id, state, "")
		if got := e.task(t, "tasks/get", id); got.Status != "completed" || got.envelope.Error.Code != "CONFLICT" || !got.envelope.Error.Retryable {
			t.Errorf("failed, polled while %v: %+v", state, got)
		}
	}
}

// The results of operations that came to nothing are results.
func TestTaskThatCameToNothing(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	for state, want := range map[vaultv1.OperationState]string{
		vaultv1.OperationState_OPERATION_STATE_DENIED:  "denied",
		vaultv1.OperationState_OPERATION_STATE_EXPIRED: "error",
	} {
		id := e.ask(t).TaskID
		e.vault.set(id, state, "it is in use")
		got := e.task(t, "tasks/get", id)
		if got.Status != "completed" || got.envelope.Status != want || !got.envelope.tool.IsError {
			t.Errorf("%v: %+v, %s", state, got, got.Result)
		}
	}
	if n := e.executor.count(); n != 0 {
		t.Errorf("%d effects", n)
	}
}

// What is over within the time that a call is held is answered as ever, and so is every call of a client that did not declare
// tasks with it.
func TestNoTask(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 5 * time.Second})
	go func() { e.vault.set(e.vault.pending(t), vaultv1.OperationState_OPERATION_STATE_APPROVED, "") }()
	call := `"name":"start_service","arguments":{"service_id":"demo-chat"}`
	if a := decodeAnswer(t, e.own(t, tokenAgent, "tools/call", "start_service", call, declaresTasks)); a.Status != "ok" {
		t.Errorf("approved while the call was held: %s", a.tool.Structured)
	}
	if a := decodeAnswer(t, e.own(t, tokenAgent, "tools/call", "gpu_status", `"name":"gpu_status"`, declaresTasks)); a.Status != "ok" {
		t.Errorf("a read: %s", a.tool.Structured)
	}
	e = newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	if a := decodeAnswer(t, e.own(t, tokenAgent, "tools/call", "start_service", call, `{"extensions":{"io.example/other":{}}}`)); a.Status != "pending_approval" {
		t.Errorf("undeclared: %s", a.tool.Structured)
	}
	session := e.connect(t, tokenAgent)
	legacy := `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo-chat"},"task":{"ttl":60000}}}`
	if a := decodeAnswer(t, e.send(t, request{session: session, body: legacy})); a.Status != "pending_approval" {
		t.Errorf("the older era's experiment: %s", a.tool.Structured)
	}
	// wait_operation says what a model waits for.
	id := e.vault.pending(t)
	if a := decodeAnswer(t, e.own(t, tokenAgent, "tools/call", "wait_operation", `"name":"wait_operation","arguments":{"operation_id":"`+id+`"}`, declaresTasks)); a.Status != "pending_approval" {
		t.Errorf("wait_operation: %s", a.tool.Structured)
	}
}

// A task goes on while it runs, whoever polls, and the polls join the one call to the sink.
func TestTaskThatRunsLong(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 200 * time.Millisecond})
	id := e.ask(t).TaskID
	slow := make(chan struct{})
	e.executor.mu.Lock()
	e.executor.slow = slow
	e.executor.mu.Unlock()
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
	for range 2 {
		if got := e.task(t, "tasks/get", id); got.Status != "working" || !strings.Contains(got.StatusMessage, "still running") {
			t.Errorf("while it runs: %+v", got)
		}
	}
	if got := e.task(t, "tasks/cancel", id); got.ResultType != "complete" || got.TaskID != "" || got.Status != "" {
		t.Errorf("cancelled: %+v", got)
	}
	close(slow)
	if got := e.task(t, "tasks/get", id); got.envelope.Status != "ok" || e.executor.count() != 1 {
		t.Errorf("in the end: %+v, %d effects", got, e.executor.count())
	}
}

// Cancelling a task denies nothing, undoes nothing, and says what is left.
func TestTaskCancelled(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	id := e.ask(t).TaskID
	for _, c := range []struct {
		state vaultv1.OperationState
		says  string
	}{
		{vaultv1.OperationState_OPERATION_STATE_PENDING, "nothing happens unless it is asked for again. To take it back, call withdraw_operation."},
		{vaultv1.OperationState_OPERATION_STATE_APPROVED, "nothing happens unless"},
		{vaultv1.OperationState_OPERATION_STATE_RUNNING, "nothing is rolled back"},
		{vaultv1.OperationState_OPERATION_STATE_DONE, "over"},
	} {
		e.vault.set(id, c.state, "")
		got := e.task(t, "tasks/cancel", id)
		if says, _ := got.Meta["durward/summary"].(string); got.ResultType != "complete" || !strings.Contains(says, c.says) {
			t.Errorf("%v: %+v", c.state, got)
		}
	}
	if e.executor.count() != 0 {
		t.Error("a cancellation executed something")
	}
}

// Tasks of others, tasks that do not exist and ids that no task could have look alike, and nothing that is sent approves.
func TestTaskRefused(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	id := e.ask(t).TaskID
	strip := func(r reply) string { return strings.ReplaceAll(r.raw, r.message.Error.Data.RequestID, "") }
	for _, method := range []string{"tasks/get", "tasks/cancel"} {
		var alike []string
		for name, c := range map[string]struct{ token, id string }{
			"another's":  {tokenOther, id},
			"made up":    {tokenAgent, "00000000000000000000000000000000"},
			"not an id":  {tokenAgent, "../../etc"},
			"upper case": {tokenAgent, strings.ToUpper(id) + "X"},
		} {
			r := e.own(t, c.token, method, c.id, `"taskId":"`+c.id+`"`, declaresTasks)
			if r.message.Error == nil || r.message.Error.Code != -32602 || strings.Contains(r.raw, c.id) {
				t.Fatalf("%s, %s: %d %s", method, name, r.status, r.raw)
			}
			alike = append(alike, strip(r))
		}
		for _, other := range alike[1:] {
			if other != alike[0] {
				t.Errorf("%s: refusals differ:\n%s\n%s", method, alike[0], other)
			}
		}
		if r := e.own(t, tokenAgent, method, id, `"taskId":"`+id+`"`, `{}`); r.message.Error == nil || r.message.Error.Code != -32021 ||
			!strings.Contains(r.raw, `"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`) {
			t.Errorf("%s without the capability: %d %s", method, r.status, r.raw)
		}
		if r := e.own(t, tokenAgent, method, "other", `"taskId":"`+id+`"`, declaresTasks); r.status != http.StatusBadRequest || r.message.Error.Code != -32020 {
			t.Errorf("%s with another name in the header: %d %s", method, r.status, r.raw)
		}
	}
	forged := `"taskId":"` + id + `","inputResponses":{"approve":{"action":"accept"}}`
	if r := e.own(t, tokenAgent, "tasks/update", id, forged, declaresTasks); r.message.Error == nil || r.message.Error.Code != -32602 ||
		e.spool.find(r.message.Error.Data.RequestID).GetBody().GetPrincipal() != "agent" {
		t.Errorf("tasks/update: %d %s", r.status, r.raw)
	}
	watch := `"notifications":{"taskIds":["` + id + `"]}`
	if r := e.own(t, tokenAgent, "subscriptions/listen", "", watch, `{}`); r.message.Error == nil || r.message.Error.Code != -32021 {
		t.Errorf("watching a task without the capability: %d %s", r.status, r.raw)
	}
	if r := e.own(t, tokenAgent, "subscriptions/listen", "", watch, declaresTasks); r.message.Error != nil || strings.Contains(r.raw, "taskIds") {
		t.Errorf("watching a task: %d %s", r.status, r.raw)
	}
	for _, method := range []string{"tasks/result", "tasks/list"} {
		if r := e.own(t, tokenAgent, method, "", `"taskId":"`+id+`"`, declaresTasks); r.status != http.StatusNotFound || r.message.Error.Code != -32601 {
			t.Errorf("%s: %d %s", method, r.status, r.raw)
		}
	}
	session := e.connect(t, tokenAgent)
	if r := e.send(t, request{session: session, body: `{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"` + id + `"}}`}); r.message.Error == nil || r.message.Error.Code != -32601 {
		t.Errorf("in a session: %d %s", r.status, r.raw)
	}
	if got := e.task(t, "tasks/get", id); got.Status != "working" || e.executor.count() != 0 {
		t.Errorf("after all that: %+v, %d effects", got, e.executor.count())
	}
}

// A look at a task counts among its client's calls at once.
func TestTasksAreCapped(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 30 * time.Second, calls: 1})
	s := e.connect(t, tokenAgent)
	go func() {
		// It waits until the test ends.
		_, _ = e.try(context.Background(), request{session: s, body: toolCall(5, "start_service", `{"service_id":"demo-chat"}`)})
	}()
	id := e.vault.pending(t)
	if r := e.own(t, tokenAgent, "tasks/get", id, `"taskId":"`+id+`"`, declaresTasks); r.message.Error == nil || !strings.Contains(r.raw, "RATE_LIMITED") {
		t.Errorf("%d %s", r.status, r.raw)
	}
	e.drain()
}

// A part that is away for a moment ends no task.
func TestTaskOutlivesAnOutage(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	id := e.ask(t).TaskID
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
	e.executor.mu.Lock()
	e.executor.fail = fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "the audit log does not answer, and nothing was changed", fault.WithRetry(time.Second))
	e.executor.mu.Unlock()
	if got := e.task(t, "tasks/get", id); got.Status != "working" || !strings.Contains(got.StatusMessage, "audit log does not answer") {
		t.Errorf("while audit is away: %+v", got)
	}
	e.executor.mu.Lock()
	e.executor.fail = nil
	e.executor.mu.Unlock()
	if got := e.task(t, "tasks/get", id); got.envelope.Status != "ok" || e.executor.count() != 1 {
		t.Errorf("when it is back: %+v", got)
	}
}

// A task is completed when its operation has ended, in whatever way. A poll that fails says nothing of that: it is an error of
// its own, and the next one goes on.
func TestTaskEndsWithItsOperation(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	id := e.ask(t).TaskID
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
	unwilling := func(f *fault.Error) {
		e.vault.mu.Lock()
		defer e.vault.mu.Unlock()
		e.vault.unwilling = f
	}
	for code, want := range map[callv1.Code]int{
		callv1.Code_CODE_INTERNAL: -32603, callv1.Code_CODE_CONFLICT: -32000, callv1.Code_CODE_DENIED: -32602,
	} {
		unwilling(fault.New(code, "the vault cannot say"))
		if r := e.own(t, tokenAgent, "tasks/get", id, `"taskId":"`+id+`"`, declaresTasks); r.message.Error == nil || r.message.Error.Code != want {
			t.Errorf("%v: %s", code, r.raw)
		}
	}
	unwilling(fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "nothing can be recorded now", fault.WithRetry(time.Second)))
	if got := e.task(t, "tasks/get", id); got.Status != "working" {
		t.Errorf("while the vault cannot record: %+v", got)
	}
	// What let it run has ended, and so has it.
	unwilling(fault.New(callv1.Code_CODE_EXPIRED, "what a human let this session do has ended; ask again"))
	if got := e.task(t, "tasks/get", id); got.Status != "completed" || got.envelope.Error == nil || got.envelope.Error.Code != "EXPIRED" {
		t.Errorf("when its scope has ended: %+v", got)
	}
	unwilling(nil)
	e.executor.mu.Lock()
	e.executor.fail = fault.New(callv1.Code_CODE_CONFLICT, "the service is being changed")
	e.executor.mu.Unlock()
	if got := e.task(t, "tasks/get", id); got.Status != "completed" || got.envelope.Status != "error" || got.envelope.OperationID != id {
		t.Errorf("when the sink refused: %+v, %s", got, got.Result)
	}
	// A tool that is another than the human was shown ends the operation too.
	e.vault.mu.Lock()
	e.vault.operations[id].tool.DefinitionDigest = make([]byte, 32)
	e.vault.mu.Unlock()
	if got := e.task(t, "tasks/get", id); got.Status != "completed" || got.envelope.Status != "error" || e.executor.count() != 0 {
		t.Errorf("with another tool: %+v, %s", got, got.Result)
	}
}

func TestTasksAreDeclared(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	r := e.own(t, tokenAgent, "server/discover", "", "", `{}`)
	if !strings.Contains(string(r.message.Result), `"extensions":{"io.modelcontextprotocol/tasks":{}}`) || strings.Contains(string(r.message.Result), `"tasks":{`) {
		t.Errorf("server/discover: %s", r.raw)
	}
	if r := e.send(t, request{body: initialize}); strings.Contains(r.raw, "tasks") {
		t.Errorf("initialize: %s", r.raw)
	}
}
