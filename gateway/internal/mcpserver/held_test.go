package mcpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// statelessCall is a tools/call of the stateless era, with a progress token.
func statelessCall(tool, arguments string) request {
	return request{
		body: fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":"p1","io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
			tool, arguments),
		header: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool},
	}
}

// A call is held in the stateless era as it is in the other: with progress, within bounds, and then pending.
func TestStatelessCallIsHeld(t *testing.T) {
	t.Parallel() // it waits
	const hold = time.Second
	e := newEdge(t, edgeOptions{hold: hold, telling: 100 * time.Millisecond})
	began := time.Now()
	r := e.send(t, statelessCall("start_service", `{"service_id":"demo-chat"}`))
	if !strings.Contains(r.raw, `"method":"notifications/progress"`) || !strings.Contains(r.raw, `"progressToken":"p1"`) || !strings.Contains(r.raw, "waiting for approval") {
		t.Errorf("no progress in %s", r.raw)
	}
	if a := decodeAnswer(t, r); a.Status != "pending_approval" || !strings.Contains(r.raw, `"resultType":"complete"`) {
		t.Errorf("answer %s", r.raw)
	}
	if took := time.Since(began); took < hold-hold/6 || took > patience {
		t.Errorf("the call was held for %v, want %v", took, hold)
	}
}

// A client that hangs up ends the wait, and so does a process that stops; what is approved then runs for nobody.
func TestStatelessClientThatLeavesEndsTheWait(t *testing.T) {
	for name, leave := range map[string]func(e *edge, cut func()){
		"cut off": func(_ *edge, cut func()) { cut() },
		"drained": func(e *edge, _ func()) { e.drain() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, edgeOptions{hold: longestHold})
			endsTheWait(t, e, statelessCall("start_service", `{"service_id":"demo-chat"}`), func(cut func()) { leave(e, cut) })
		})
	}
}

// A mutation past its intent goes on without its client, and whoever asks for it joins it.
func TestStatelessRunningOutlivesTheCall(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 5 * time.Second})
	slow := make(chan struct{})
	e.executor.slow = slow
	go func() { e.vault.set(e.vault.pending(t), vaultv1.OperationState_OPERATION_STATE_APPROVED, "") }()
	ctx, cut := context.WithCancel(context.Background())
	left := make(chan struct{})
	go func() {
		defer close(left)
		_, _ = e.try(ctx, statelessCall("start_service", `{"service_id":"demo-chat"}`)) // it is cut off
	}()
	e.executor.carriedOut(t)
	cut()
	<-left
	var id string
	e.vault.mu.Lock()
	for op := range e.vault.operations {
		id = op
	}
	e.vault.mu.Unlock()
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_RUNNING, "")
	go func() {
		<-e.joined
		close(slow)
	}()
	a := decodeAnswer(t, e.send(t, statelessCall("wait_operation", `{"operation_id":"`+id+`"}`)))
	if a.Status != "ok" || a.Replayed || e.executor.count() != 1 {
		t.Errorf("%d effects, answer %s", e.executor.count(), a.tool.Structured)
	}
}

func TestStatelessReadIsCancelledWithItsRequest(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	e.executor.slow = make(chan struct{})
	defer close(e.executor.slow)
	ctx, cut := context.WithCancel(context.Background())
	go func() {
		defer cut()
		e.executor.readOf(t)
	}()
	if _, err := e.try(ctx, statelessCall("gpu_status", `{}`)); err == nil {
		t.Error("a request that was cut off was answered")
	}
	e.executor.cancels(t)
}

// A client that signs opens with its first request, and is told which proof a poll lacks when its permits end.
func TestStatelessClientThatSigns(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	instance := strings.Repeat("a", 32)
	send := func(method, name, params, proof string) reply {
		t.Helper()
		if proof != "" {
			proof = `"durward/proof":{"purpose":"PURPOSE_` + proof + `","counter":"1","time":"1","signature":"` + strings.Repeat("A", 86) + `=="},`
		}
		return e.send(t, request{token: tokenSigner, header: map[string]string{
			"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
		}, body: fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s"_meta":{%s"durward/instance":%q,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}}}`,
			method, params, proof, instance, declaresTasks)})
	}
	if r := send("server/discover", "", "", ""); r.message.Error == nil || r.message.Error.Data.Code != "PROOF_REQUIRED" {
		t.Errorf("without a proof: %d %s", r.status, r.raw)
	}
	if r := send("server/discover", "", "", "OPEN"); r.status != http.StatusOK || !strings.Contains(r.raw, `"durward/session":"s-signer"`) {
		t.Errorf("the opening: %d %s", r.status, r.raw)
	}
	call := `"name":"start_service","arguments":{"service_id":"demo-chat"},`
	if r := send("tools/call", "start_service", call, ""); !strings.Contains(r.raw, `"durward/proof_needed":"call"`) {
		t.Errorf("a call without a proof: %s", r.raw)
	}
	id := decodeTask(t, send("tools/call", "start_service", call, "CALL")).TaskID
	if polled := decodeTask(t, send("tasks/get", id, `"taskId":"`+id+`",`, "")); polled.Meta["durward/session"] != "s-signer" {
		t.Errorf("a poll: %+v", polled)
	}
	// Another program of the client, whose permits are always about to end: each look needs a renewal.
	e.vault.permitLife, instance = time.Second, strings.Repeat("b", 32)
	if r := send("server/discover", "", "", "OPEN"); r.status != http.StatusOK {
		t.Fatalf("another opening: %d %s", r.status, r.raw)
	}
	e.vault.permitLife = 2 * time.Second
	if r := send("tasks/get", id, `"taskId":"`+id+`",`, ""); r.message.Error == nil || !strings.Contains(r.raw, `"durward/proof_needed":"renew"`) || !strings.Contains(r.raw, `"durward/session":"s-signer"`) {
		t.Errorf("a poll whose permits ended: %s", r.raw)
	}
	if polled := decodeTask(t, send("tasks/get", id, `"taskId":"`+id+`",`, "RENEW")); polled.Status != "working" {
		t.Errorf("a poll that renews: %+v", polled)
	}
	// Who signs is not asked to when lists change: without a proof the list is what the vault said last.
	moved := e.peers.ListsMoved()
	e.vault.said <- &vaultv1.WatchSessionsResponse{ListsChanged: true}
	<-moved
	if r := send("tools/list", "", "", ""); r.message.Error != nil {
		t.Errorf("tools/list after a change: %s", r.raw)
	}
	if r := send("tools/list", "", "", "RENEW"); r.message.Error != nil {
		t.Errorf("tools/list after a change, with a proof: %s", r.raw)
	}
	// A request that needs no permit renews them all the same, for what the client subscribed to.
	for proof, want := range map[string]int{"": 0, "RENEW": 1} {
		e.vault.mu.Lock()
		before := e.vault.renewed
		e.vault.mu.Unlock()
		if r := send("tools/list", "", "", proof); r.message.Error != nil {
			t.Errorf("tools/list: %s", r.raw)
		}
		e.vault.mu.Lock()
		if got := e.vault.renewed - before; got != want {
			t.Errorf("tools/list with the proof %q renewed %d times, want %d", proof, got, want)
		}
		e.vault.mu.Unlock()
	}
}
