package mcpserver_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/opnumber"
)

func TestReadIsOneHop(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	s := e.connect(t, tokenAgent)
	e.executor.name = "Simulated \u202eGPU\x1b[31m"
	a := e.call(t, s, "gpu_status", `{}`)
	if a.Status != "ok" {
		t.Fatalf("status %s: %s", a.Status, a.Summary)
	}
	want := `{"gpus":[{"index":0,"uuid":"GPU-0","name":"Simulated GPU","simulated":true,"memory_total_mib":24576,"memory_used_mib":0,"services":["demo-chat"],"problem":"",` +
		`"memory_free_mib":0,"memory_reserved_mib":0,"memory_claimed_mib":0,"memory_foreign_mib":0,"last_xid":0}],"source":"simulated"}`
	if string(a.Result) != want {
		t.Errorf("result\n%s, want\n%s", a.Result, want)
	}
	if e.vault.renewed != 0 || len(e.vault.asked) != 0 {
		t.Errorf("a warm read asked the vault: %d renewals, %d decisions", e.vault.renewed, len(e.vault.asked))
	}
	if len(e.executor.requestIDs) != 1 || e.executor.requestIDs[0] != a.RequestID {
		t.Errorf("the executor saw request ids %v, want %s", e.executor.requestIDs, a.RequestID)
	}
}

// Every answer that never reached a decision leaves a record of its reason, and no effect.
func TestRefusedArguments(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	s := e.connect(t, tokenAgent)
	long := strings.Repeat("a", 65)
	for _, c := range []struct{ name, arguments, field string }{
		{"unknown field", `{"service_id":"demo-chat","force":true}`, ""},
		{"number for text", `{"service_id":3}`, "service_id"},
		{"null", `{"service_id":null}`, "service_id"},
		{"null arguments", `null`, ""},
		{"list arguments", `[]`, ""},
		{"missing", `{}`, "service_id"},
		{"shell", `{"service_id":"a;rm -rf /"}`, "service_id"},
		{"option", `{"service_id":"--force"}`, "service_id"},
		{"trailing newline", `{"service_id":"demo-chat\n"}`, "service_id"},
		{"path", `{"service_id":"a/../../etc"}`, "service_id"},
		{"65 characters", `{"service_id":"` + long + `"}`, "service_id"},
		{"camel case", `{"serviceId":"demo-chat"}`, ""},
		{"other case", `{"Service_id":"demo-chat"}`, ""},
		{"reason of a wrong type", `{"service_id":"demo-chat","reason":3}`, "reason"},
		{"reason too long", `{"service_id":"demo-chat","reason":"` + strings.Repeat("a", 1001) + `"}`, "reason"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := e.call(t, s, "start_service", c.arguments)
			if a.Status != "error" || a.Error.Code != "INVALID_ARGUMENT" || a.Error.Field != c.field || a.Error.Retryable {
				t.Errorf("status %s, error %+v, want INVALID_ARGUMENT of field %q", a.Status, a.Error, c.field)
			}
			for _, leak := range []string{"rm -rf", "--force", long, "etc", "goroutine", ".go", "proto:"} {
				if a.repeats(leak) {
					t.Errorf("the answer repeats %q: %s", leak, a.tool.Structured)
				}
			}
			r := e.spool.find(a.RequestID)
			if r == nil || r.GetTool() != "start_service" || r.GetBody().GetPrincipal() != "agent" || !strings.HasPrefix(r.GetBody().GetReason(), "CODE_INVALID_ARGUMENT") {
				t.Errorf("the refusal was recorded as %v", r)
			}
		})
	}
	if n := e.executor.count(); n != 0 || len(e.vault.asked) != 0 {
		t.Errorf("%d effects and %d decisions", n, len(e.vault.asked))
	}
}

// A denial says which rule, in words, where the vault gives any.
func TestADenialSaysWhichRule(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	e.vault.decide = func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
		return &vaultv1.AuthoriseResponse{Decision: vaultv1.AuthoriseResponse_DECISION_DENIED, Rule: "site.cedar:7", Reason: "not at night (quiet-hours)"}, nil
	}
	for era, call := range e.callers(t, tokenAgent, "") {
		a := call(t, "start_service", `{"service_id":"demo-chat"}`)
		if a.Status != "denied" || a.Reason != "rule" || a.Error != nil || a.Summary != "A rule denies this call: not at night (quiet-hours). Do not retry." || strings.Contains(string(a.tool.Structured), "site.cedar") {
			t.Errorf("%s: %s", era, a.tool.Structured)
		}
	}
}

// What a grant is for is forwarded, and not what the agent sent: with references in the place of personal data it is another.
func TestTheGrantedArgumentsAreForwarded(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	e.vault.decide = func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
		id := hexID()
		return &vaultv1.AuthoriseResponse{
			Decision: vaultv1.AuthoriseResponse_DECISION_GRANTED, OperationId: id, Arguments: []byte(`{"service_id":"of-the-grant"}`),
			Grant: &callv1.SignedGrant{Payload: []byte(id), Kid: "test", Signature: make([]byte, 64)},
		}, nil
	}
	for era, call := range e.callers(t, tokenAgent, "") {
		if a := call(t, "start_service", `{"service_id":"demo-chat"}`); a.Status != "ok" || a.Summary != "Started of-the-grant." {
			t.Errorf("%s: %s", era, a.tool.Structured)
		}
	}
}

// What is named as the next call is one that the client may make; what its user is told stays.
func TestNextNamesOnlyWhatTheClientMayCall(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 50 * time.Millisecond, wrap: func(c grpc.ClientConnInterface) grpc.ClientConnInterface { return crowded{c} }})
	for may, token := range map[bool]string{true: tokenAgent, false: tokenOther} {
		e.vault.mu.Lock()
		e.vault.denied = map[string]bool{"wait_operation": !may, "switch_mode": !may}
		e.vault.mu.Unlock()
		call := e.callers(t, token, "")["sessions"]
		if a := call(t, "start_service", `{"service_id":"demo-chat"}`); a.Status != "pending_approval" || (a.Next != nil) != may || !strings.Contains(a.TellUser, "durward approve "+opnumber.Of(a.OperationID)[:4]) {
			t.Errorf("may: %t: %s", may, a.tool.Structured)
		}
		a := call(t, "simulate_mode", `{"mode_id":"everyday-coding"}`)
		if a.Status != "ok" || strings.Contains(string(a.Result), `"next"`) != may || strings.Contains(strings.Join(a.Warnings, " "), "may not carry this out") == may {
			t.Errorf("may: %t: %s", may, a.tool.Structured)
		}
	}
}

func TestUnknownToolLooksDenied(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	e.vault.denied = map[string]bool{"stop_service": true}
	s := e.connect(t, tokenAgent)
	e.vault.decide = func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
		return &vaultv1.AuthoriseResponse{Decision: vaultv1.AuthoriseResponse_DECISION_DENIED, Rule: "secret-rule"}, nil
	}
	denied := e.call(t, s, "stop_service", `{"service_id":"demo-chat"}`)
	unknown := e.call(t, s, "drop_tables", `{}`)
	if denied.Status != "denied" || denied.Reason != "not_available" {
		t.Errorf("a denied tool answers %s", denied.tool.Structured)
	}
	if r := e.send(t, request{session: s, body: toolCall(4, "drop_tables", `{}`)}); strings.Contains(r.raw, "resultType") {
		t.Errorf("the stateful era knows no such member: %s", r.raw)
	}
	if r := e.send(t, statelessCall("drop_tables", `{}`)); !strings.Contains(r.raw, `"resultType":"complete"`) {
		t.Errorf("the stateless era wants it: %s", r.raw)
	}
	plain := func(a answer) string { return strings.ReplaceAll(string(a.tool.Structured), a.RequestID, "r") }
	if plain(denied) != plain(unknown) {
		t.Errorf("unknown and denied differ:\n%s\n%s", plain(unknown), plain(denied))
	}
	if a := unknown; a.Error.Retryable || !strings.Contains(a.Summary, "These are yours: describe_tool, fetch_url, find_tools, gpu_status, http_request") || strings.Contains(a.Summary, "stop_service") {
		t.Errorf("a model cannot use %s", a.tool.Structured)
	}
	if r := e.spool.find(unknown.RequestID); r == nil || r.GetTool() != "" {
		t.Errorf("the unknown tool was recorded as %v", r)
	}
}

func TestPendingThenApproved(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 300 * time.Millisecond})
	s := e.connect(t, tokenAgent)
	a := e.call(t, s, "start_service", `{"service_id":"demo-chat","reason":"the user asked"}`)
	if a.Status != "pending_approval" || a.ExpiresAt != "2030-01-02T03:04:05Z" || !strings.Contains(a.TellUser, "durward approve "+opnumber.Of(a.OperationID)[:4]) {
		t.Fatalf("answer %s", a.tool.Structured)
	}
	if a.Next == nil || a.Next.Tool != "wait_operation" || a.Next.Arguments["operation_id"] != a.OperationID || a.tool.Meta["durward/operation_id"] != a.OperationID {
		t.Errorf("next %+v, operation %s", a.Next, a.OperationID)
	}
	asked := e.vault.asked[0]
	if string(asked.GetArguments()) != `{"service_id":"demo-chat"}` || asked.GetReason() != "the user asked" {
		t.Errorf("the vault was asked for %s because %q", asked.GetArguments(), asked.GetReason())
	}
	if e.executor.count() != 0 {
		t.Fatal("an effect before the approval")
	}
	wait := `{"operation_id":"` + a.OperationID + `"}`
	if again := e.call(t, s, "wait_operation", wait); again.Status != "pending_approval" || again.ExpiresAt == "" {
		t.Errorf("still pending: %s", again.tool.Structured)
	}
	e.vault.set(a.OperationID, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
	done := e.call(t, s, "wait_operation", wait)
	if done.Status != "ok" || done.Summary != "Started demo-chat." || done.Replayed || done.OperationID != a.OperationID {
		t.Fatalf("approved: %s", done.tool.Structured)
	}
	if !strings.Contains(string(done.Result), `"changed":true`) || len(done.Warnings) != 1 || done.Warnings[0] != "slow disk" {
		t.Errorf("result %s, warnings %q", done.Result, done.Warnings)
	}
	receipt, _ := done.tool.Meta["durward/receipt"].(map[string]any)
	if receipt["index"] != 7.0 || !strings.HasPrefix(receipt["checkpoint"].(string), "durward.local/audit/main\n8\n") {
		t.Errorf("receipt %v", receipt)
	}
	if path, _ := receipt["inclusion"].([]any); receipt["leaf_hash"] != "bGVhZg==" || len(path) != 1 || path[0] != "cGF0aA==" {
		t.Errorf("the receipt %v cannot be proved offline", receipt)
	}
	e.vault.set(a.OperationID, vaultv1.OperationState_OPERATION_STATE_DONE, "")
	if replay := e.call(t, s, "wait_operation", wait); replay.Status != "ok" || !replay.Replayed {
		t.Errorf("replay: %s", replay.tool.Structured)
	}
	if n := e.executor.count(); n != 1 {
		t.Errorf("%d effects, want 1", n)
	}
}

func TestApprovedWithinTheHold(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 5 * time.Second})
	s := e.connect(t, tokenAgent)
	go func() { e.vault.set(e.vault.pending(t), vaultv1.OperationState_OPERATION_STATE_APPROVED, "") }()
	if a := e.call(t, s, "start_service", `{"service_id":"demo-chat"}`); a.Status != "ok" || e.executor.count() != 1 {
		t.Errorf("answer %s, %d effects", a.tool.Structured, e.executor.count())
	}
}

func TestDecisionsThatEndAnOperation(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 5 * time.Second})
	s := e.connect(t, tokenAgent)
	for _, c := range []struct {
		name, reason string
		state        vaultv1.OperationState
		check        func(answer) bool
	}{
		{"denied", "not during\x1b]0;x\x07 the demo", vaultv1.OperationState_OPERATION_STATE_DENIED, func(a answer) bool {
			return a.Status == "denied" && a.Reason == "user_rejected" && strings.Contains(a.TellUser, "Not during the demo.")
		}},
		{"denied without words", "", vaultv1.OperationState_OPERATION_STATE_DENIED, func(a answer) bool {
			return a.Status == "denied" && a.Reason == "user_rejected"
		}},
		{"expired", "", vaultv1.OperationState_OPERATION_STATE_EXPIRED, func(a answer) bool {
			return a.Status == "error" && a.Error.Code == "EXPIRED" && !a.Error.Retryable
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			go func() { e.vault.set(e.vault.pending(t), c.state, c.reason) }()
			if a := e.call(t, s, "start_service", `{"service_id":"demo-chat"}`); !c.check(a) || a.OperationID == "" {
				t.Errorf("answer %s", a.tool.Structured)
			}
		})
	}
	if e.executor.count() != 0 {
		t.Errorf("%d effects", e.executor.count())
	}
}

// An operation that has ended and gets no grant any more, as after a halt or the end of its scope, is not told to be running for ever.
func TestWhatHasEndedWithoutAResultIsOver(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	s := e.connect(t, tokenAgent)
	id := e.ask(t).TaskID
	e.vault.mu.Lock()
	e.vault.operations[id].ungranted = true
	e.vault.mu.Unlock()
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_RUNNING, "")
	wait := func() answer { return e.call(t, s, "wait_operation", `{"operation_id":"`+id+`"}`) }
	if a, got := wait(), e.task(t, "tasks/get", id); a.Status != "running" || got.Status != "working" {
		t.Errorf("while it runs: %s, %+v", a.tool.Structured, got)
	}
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_DONE, "")
	if a := wait(); a.Status != "error" || a.Error.Code != "EXPIRED" || a.Error.Retryable || a.OperationID != id || a.Next != nil {
		t.Errorf("when it has ended: %s", a.tool.Structured)
	}
	if got := e.task(t, "tasks/get", id); got.Status != "completed" || got.envelope.Error == nil || got.envelope.Error.Code != "EXPIRED" {
		t.Errorf("its task: %+v", got)
	}
	if n := e.executor.count(); n != 0 {
		t.Errorf("%d effects", n)
	}
}

func TestWaitForNobodysOperation(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 300 * time.Millisecond})
	mine, theirs := e.connect(t, tokenAgent), e.connect(t, tokenOther)
	a := e.call(t, mine, "start_service", `{"service_id":"demo-chat"}`)
	for name, arguments := range map[string]string{
		"made up":   `{"operation_id":"00000000000000000000000000000000"}`,
		"another's": `{"operation_id":"` + a.OperationID + `"}`,
	} {
		r := e.send(t, request{session: theirs, token: tokenOther, body: toolCall(3, "wait_operation", arguments)})
		if got := decodeAnswer(t, r); got.Status != "error" || got.Error.Code != "NOT_FOUND" {
			t.Errorf("%s: %s", name, got.tool.Structured)
		}
	}
	if got := e.call(t, mine, "wait_operation", `{"operation_id":"K7F3"}`); got.Error == nil || got.Error.Field != "operation_id" {
		t.Errorf("a short number: %s", got.tool.Structured)
	}
}

func TestRunningOutlivesTheCall(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 5 * time.Second})
	s := e.connect(t, tokenAgent)
	e.executor.slow = make(chan struct{})
	go func() { e.vault.set(e.vault.pending(t), vaultv1.OperationState_OPERATION_STATE_APPROVED, "") }()
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = e.try(ctx, request{session: s, body: toolCall(5, "start_service", `{"service_id":"demo-chat"}`)}) // it is cut off
	}()
	e.executor.carriedOut(t)
	cancel()
	<-left
	var id string
	for op := range e.vault.operations {
		id = op
	}
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_RUNNING, "")
	go func() {
		<-e.joined
		close(e.executor.slow)
	}()
	a := e.call(t, s, "wait_operation", `{"operation_id":"`+id+`"}`)
	if a.Status != "ok" || e.executor.count() != 1 {
		t.Errorf("%d effects, answer %s", e.executor.count(), a.tool.Structured)
	}
}

// A vault that is away for long does not hold a call for as long as a human might take.
func TestAVaultThatStaysAwayEndsTheWait(t *testing.T) {
	t.Parallel() // it waits
	e := newEdge(t, edgeOptions{hold: longestHold})
	e.vault.unwilling = fault.New(callv1.Code_CODE_UNAVAILABLE, "away", fault.WithRetry(time.Second))
	began := time.Now()
	a := e.call(t, e.connect(t, tokenAgent), "start_service", `{"service_id":"demo-chat"}`)
	if took := time.Since(began); took > longestHold/2 || a.Error == nil || a.Error.Code != "UNAVAILABLE" || a.OperationID == "" || a.Next == nil {
		t.Errorf("after %v: %s", took, a.tool.Structured)
	}
}

func TestClientThatLeavesEndsTheWait(t *testing.T) {
	for name, leave := range map[string]func(e *edge, session string, cut func()){
		"cancelled": func(e *edge, session string, _ func()) {
			e.send(t, request{session: session, body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5,"reason":"changed my mind"}}`})
		},
		"cut off": func(_ *edge, _ string, cut func()) { cut() },
		"session deleted": func(e *edge, session string, _ func()) {
			if r := e.send(t, request{method: http.MethodDelete, session: session}); r.status != http.StatusNoContent {
				t.Errorf("DELETE: %d", r.status)
			}
		},
		"drained": func(e *edge, _ string, _ func()) { e.drain() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, edgeOptions{hold: longestHold})
			s := e.connect(t, tokenAgent)
			endsTheWait(t, e, request{session: s, body: toolCall(5, "start_service", `{"service_id":"demo-chat"}`)}, func(cut func()) { leave(e, s, cut) })
		})
	}
}

// endsTheWait has a client ask and leave: the call ends, and what is approved then does not run.
func endsTheWait(t *testing.T, e *edge, r request, leave func(cut func())) {
	t.Helper()
	ctx, cut := context.WithCancel(context.Background())
	defer cut()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = e.try(ctx, r) // it may be cut off
	}()
	id := e.vault.pending(t)
	leave(cut)
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the call went on")
	}
	e.vault.deserted(t)
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
	if e.executor.count() != 0 {
		t.Error("nobody waited, and it ran")
	}
}

// Callers that wait for one operation get one answer of the sink, which each of them cleans for itself (with -race: none
// touches another's).
func TestJoinedCallersCleanOneAnswer(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 300 * time.Millisecond})
	s := e.connect(t, tokenAgent)
	asked := e.call(t, s, "start_service", `{"service_id":"demo-chat"}`)
	e.executor.mu.Lock()
	e.executor.name, e.executor.slow = "Chat\u202e\x1b[2J", make(chan struct{})
	e.executor.mu.Unlock()
	e.vault.set(asked.OperationID, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
	const callers = 3
	answers := make(chan reply, callers)
	for id := range callers {
		go func() {
			r, err := e.try(context.Background(), request{session: s, body: toolCall(10+id, "wait_operation", `{"operation_id":"`+asked.OperationID+`"}`)})
			if err != nil {
				t.Error(err)
			}
			answers <- r
		}()
	}
	for range callers - 1 {
		<-e.joined
	}
	close(e.executor.slow)
	for range callers {
		a := decodeAnswer(t, <-answers)
		if a.Status != "ok" || a.Replayed || !strings.Contains(string(a.Result), `"name":"Chat"`) {
			t.Errorf("a caller was answered %s", a.tool.Structured)
		}
	}
	if n := e.executor.count(); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func TestReadIsCancelledWithItsRequest(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	s := e.connect(t, tokenAgent)
	e.executor.slow = make(chan struct{})
	defer close(e.executor.slow)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// The session ends before the answer.
		_, _ = e.try(context.Background(), request{session: s, body: toolCall(5, "gpu_status", `{}`)})
	}()
	e.executor.readOf(t)
	e.send(t, request{session: s, body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`})
	<-ended
	e.executor.cancels(t)
}

func TestProgressWhileWaiting(t *testing.T) {
	t.Parallel() // it waits
	e := newEdge(t, edgeOptions{hold: time.Second, telling: 100 * time.Millisecond})
	s := e.connect(t, tokenAgent)
	r := e.send(t, request{session: s, body: `{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo-chat"},"_meta":{"progressToken":"p1"}}}`})
	if !strings.Contains(r.raw, `"method":"notifications/progress"`) || !strings.Contains(r.raw, `"progressToken":"p1"`) || !strings.Contains(r.raw, "waiting for approval") {
		t.Errorf("no progress in %s", r.raw)
	}
	if a := decodeAnswer(t, r); a.Status != "pending_approval" {
		t.Errorf("answer %s", a.tool.Structured)
	}
}

func TestPeersAway(t *testing.T) {
	t.Parallel() // it waits
	t.Run("vault, at the door", func(t *testing.T) {
		e := newEdge(t, edgeOptions{vaultDown: true})
		began := time.Now()
		r := e.send(t, request{body: initialize})
		if r.message.Error == nil || r.message.Error.Data.Code != "UNAVAILABLE" || !strings.Contains(r.message.Error.Message, "vault cannot be reached") {
			t.Errorf("%d %s", r.status, r.raw)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("vault hangs", func(t *testing.T) {
		e := newEdge(t, edgeOptions{})
		s := e.connect(t, tokenAgent)
		e.vault.mu.Lock()
		e.vault.hang = make(chan struct{})
		e.vault.mu.Unlock()
		a := e.call(t, s, "start_service", `{"service_id":"demo-chat"}`)
		if a.Status != "error" || a.Error.Code != "TIMEOUT" || a.TellUser == "" || !a.Error.Retryable {
			t.Errorf("answer %s", a.tool.Structured)
		}
		if read := e.call(t, s, "gpu_status", `{}`); read.Status != "ok" {
			t.Errorf("a read with a warm permit: %s", read.tool.Structured)
		}
	})
	t.Run("executor", func(t *testing.T) {
		e := newEdge(t, edgeOptions{executorDown: true})
		s := e.connect(t, tokenAgent)
		began := time.Now()
		a := e.call(t, s, "gpu_status", `{}`)
		if a.Status != "error" || a.Error.Code != "UNAVAILABLE" || !a.Error.Retryable || strings.Contains(string(a.tool.Structured), "127.0.0.1") {
			t.Errorf("answer %s", a.tool.Structured)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestSinkFaults(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 5 * time.Second})
	s := e.connect(t, tokenAgent)
	a := e.call(t, s, "service_info", `{"service_id":"demo-caht"}`)
	if a.Error == nil || a.Error.Code != "NOT_FOUND" || a.Error.Field != "service_id" || len(a.Error.DidYouMean) != 1 || a.Error.DidYouMean[0] != "demo-chat" {
		t.Errorf("answer %s", a.tool.Structured)
	}
	// Nobody is asked about what is not there.
	a = e.call(t, s, "start_service", `{"service_id":"demo-caht"}`)
	if a.Error == nil || a.Error.Code != "NOT_FOUND" || a.OperationID != "" || a.Error.Field != "service_id" || len(a.Error.DidYouMean) != 1 {
		t.Errorf("answer %s", a.tool.Structured)
	}
	e.executor.fail = fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "nothing can be recorded, so nothing is done", fault.WithRetry(time.Second))
	go func() { e.vault.set(e.vault.pending(t), vaultv1.OperationState_OPERATION_STATE_APPROVED, "") }()
	a = e.call(t, s, "start_service", `{"service_id":"demo-chat"}`)
	if a.Error == nil || a.Error.Code != "AUDIT_UNAVAILABLE" || !a.Error.Retryable || a.OperationID == "" {
		t.Errorf("answer %s", a.tool.Structured)
	}
}

func TestVaultLosesItsSessions(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 200 * time.Millisecond})
	s := e.connect(t, tokenAgent)
	e.vault.mu.Lock()
	clear(e.vault.sessions)
	e.vault.mu.Unlock()
	if a := e.call(t, s, "start_service", `{"service_id":"demo-chat"}`); a.Status != "pending_approval" {
		t.Errorf("answer %s", a.tool.Structured)
	}
	if e.vault.opened != 2 {
		t.Errorf("%d sessions were opened, want 2", e.vault.opened)
	}
	// Revoked meanwhile: the session cannot be opened again.
	e.vault.mu.Lock()
	clear(e.vault.sessions)
	delete(e.vault.principals, tokenAgent)
	e.vault.mu.Unlock()
	if a := e.call(t, s, "start_service", `{"service_id":"demo-chat"}`); a.Error == nil || a.Error.Code != "UNAUTHENTICATED" {
		t.Errorf("answer %s", a.tool.Structured)
	}
}

// A sink that adopted a higher epoch, or restarted, refuses permits that look fresh here: one renewal, one more try.
func TestAPermitThatTheSinkFindsStale(t *testing.T) {
	for _, code := range []callv1.Code{callv1.Code_CODE_EXPIRED, callv1.Code_CODE_UNAUTHENTICATED} {
		t.Run(code.String(), func(t *testing.T) {
			e := newEdge(t, edgeOptions{})
			s := e.connect(t, tokenAgent)
			e.executor.refuse = []*fault.Error{fault.New(code, "the permit has expired; renew it")}
			if a := e.call(t, s, "gpu_status", `{}`); a.Status != "ok" || e.vault.renewed != 1 {
				t.Errorf("%d renewals, answer %s", e.vault.renewed, a.tool.Structured)
			}
			e.executor.refuse = []*fault.Error{fault.New(code, "no"), fault.New(code, "no"), fault.New(code, "no")}
			if a := e.call(t, s, "gpu_status", `{}`); a.Status != "error" || len(e.executor.refuse) != 1 {
				t.Errorf("%d refusals are left, answer %s", len(e.executor.refuse), a.tool.Structured)
			}
		})
	}
	t.Run("denied for good", func(t *testing.T) {
		e := newEdge(t, edgeOptions{})
		s := e.connect(t, tokenAgent)
		e.executor.refuse = []*fault.Error{fault.New(callv1.Code_CODE_DENIED, "not allowed")}
		if a := e.call(t, s, "gpu_status", `{}`); a.Status != "denied" || a.Reason != "not_available" || e.vault.renewed != 0 {
			t.Errorf("%d renewals, answer %s", e.vault.renewed, a.tool.Structured)
		}
	})
}

func TestPermitsAreRenewedOnce(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	e.vault.permitLife = 10 * time.Second // under what the gateway wants to have left
	s := e.connect(t, tokenAgent)
	e.vault.mu.Lock()
	e.vault.permitLife = time.Minute
	e.vault.mu.Unlock()
	results := make(chan string, 8)
	for i := range 8 {
		go func() {
			r, err := e.try(context.Background(), request{session: s, body: toolCall(100+i, "gpu_status", `{}`)})
			if err != nil {
				results <- err.Error()
				return
			}
			results <- decodeAnswer(t, r).Status
		}()
	}
	for range 8 {
		if got := <-results; got != "ok" {
			t.Errorf("a read ended as %s", got)
		}
	}
	if e.vault.renewed != 1 {
		t.Errorf("%d renewals, want 1", e.vault.renewed)
	}
}

func TestKeyBoundClientIsToldWhichProof(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 200 * time.Millisecond})
	if r := e.send(t, request{body: initialize, token: tokenSigner}); r.message.Error == nil || r.message.Error.Data.Code != "PROOF_REQUIRED" {
		t.Fatalf("without a proof: %d %s", r.status, r.raw)
	}
	proof := func(purpose string) string {
		return `"_meta":{"durward/proof":{"purpose":"` + purpose + `","counter":"1","time":"1","signature":"` + strings.Repeat("A", 86) + `=="}}`
	}
	r := e.send(t, request{token: tokenSigner, body: strings.Replace(initialize, `"params":{`, `"params":{`+proof("PURPOSE_OPEN")+`,`, 1)})
	if r.message.Error != nil {
		t.Fatal(r.raw)
	}
	var hello struct {
		Meta map[string]string `json:"_meta"`
	}
	must(t, json.Unmarshal(r.message.Result, &hello))
	if hello.Meta["durward/session"] != "s-signer" || hello.Meta["durward/client"] != "signer" {
		t.Errorf("meta %v", hello.Meta)
	}
	s := r.header.Get("Mcp-Session-Id")
	call := func(meta string) answer {
		return decodeAnswer(t, e.send(t, request{session: s, token: tokenSigner,
			body: `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo-chat"}` + meta + `}}`}))
	}
	if a := call(""); a.Error == nil || a.Error.Code != "PROOF_REQUIRED" || a.tool.Meta["durward/proof_needed"] != "call" {
		t.Errorf("unsigned: %s %v", a.tool.Structured, a.tool.Meta)
	}
	if a := call("," + proof("PURPOSE_RENEW")); a.Error == nil || a.Error.Code != "PROOF_REQUIRED" {
		t.Errorf("a proof of another purpose: %s", a.tool.Structured)
	}
	if a := call("," + proof("PURPOSE_CALL")); a.Status != "pending_approval" {
		t.Errorf("signed: %s", a.tool.Structured)
	}
	e.vault.mu.Lock()
	clear(e.vault.sessions)
	e.vault.mu.Unlock()
	if a := call("," + proof("PURPOSE_CALL")); a.Error == nil || a.tool.Meta["durward/proof_needed"] != "open" {
		t.Errorf("after the vault lost the session: %s %v", a.tool.Structured, a.tool.Meta)
	}
	if a := call("," + proof("PURPOSE_OPEN")); a.Error == nil || a.tool.Meta["durward/proof_needed"] != "call" || e.vault.opened != 2 {
		t.Errorf("opened again: %s %v", a.tool.Structured, a.tool.Meta)
	}
}

// A call that changes something is asked for though the session's permits are over, which its proof cannot renew.
func TestKeyBoundClientAsksAfterItsPermitsEnded(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 200 * time.Millisecond})
	e.vault.mu.Lock()
	e.vault.permitLife = time.Nanosecond // it is over at once
	e.vault.mu.Unlock()
	proof := func(purpose string) string {
		return `"_meta":{"durward/proof":{"purpose":"` + purpose + `","counter":"1","time":"1","signature":"` + strings.Repeat("A", 86) + `=="}}`
	}
	r := e.send(t, request{token: tokenSigner, body: strings.Replace(initialize, `"params":{`, `"params":{`+proof("PURPOSE_OPEN")+`,`, 1)})
	s := r.header.Get("Mcp-Session-Id")
	call := func(tool, arguments, purpose string) answer {
		return decodeAnswer(t, e.send(t, request{session: s, token: tokenSigner,
			body: `{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"` + tool + `","arguments":` + arguments + `,` + proof(purpose) + `}}`}))
	}
	asked := call("start_service", `{"service_id":"demo-chat"}`, "PURPOSE_CALL")
	if asked.Status != "pending_approval" || asked.OperationID == "" || asked.tool.Meta["durward/proof_needed"] != nil {
		t.Fatalf("asked: %s %v", asked.tool.Structured, asked.tool.Meta)
	}
	if a := call("wait_operation", `{"operation_id":"`+asked.OperationID+`"}`, "PURPOSE_CALL"); a.Error == nil || a.tool.Meta["durward/proof_needed"] != "renew" {
		t.Errorf("waiting without a renewal: %s %v", a.tool.Structured, a.tool.Meta)
	}
	e.vault.mu.Lock()
	e.vault.permitLife = time.Minute
	e.vault.mu.Unlock()
	if a := call("wait_operation", `{"operation_id":"`+asked.OperationID+`"}`, "PURPOSE_RENEW"); a.Status != "pending_approval" {
		t.Errorf("waiting with one: %s", a.tool.Structured)
	}
}

func TestCallsAtOnceAreCapped(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 30 * time.Second, calls: 1})
	s := e.connect(t, tokenAgent)
	go func() {
		// It waits until the test ends.
		_, _ = e.try(context.Background(), request{session: s, body: toolCall(5, "start_service", `{"service_id":"demo-chat"}`)})
	}()
	e.vault.pending(t)
	if a := e.call(t, s, "gpu_status", `{}`); a.Error == nil || a.Error.Code != "RATE_LIMITED" || a.Error.Message != "Rate limit exceeded" || !a.Error.Retryable {
		t.Errorf("answer %s", a.tool.Structured)
	}
	e.drain()
}
