package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/opnumber"
)

// TestWatchWaiting: a notifier is told who waits for what, and when nothing waits any more; never of arguments, words, sessions or
// the id by which an operation is used.
func TestWatchWaiting(t *testing.T) {
	v := newVault(t)
	notices := vaultv1.NewNoticeServiceClient(v.as(optionsv1.Role_ROLE_NOTIFIER, "alice"))
	stream, err := notices.WatchWaiting(t.Context(), &vaultv1.WatchWaitingRequest{})
	v.must(err)
	next := func() []*vaultv1.Waiting {
		t.Helper()
		response, err := stream.Recv()
		v.must(err)
		return response.GetWaiting()
	}
	if got := next(); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
	opened := v.open(bearer)
	first := v.ask(opened.GetSessionId(), "a").GetOperationId()
	got := next()
	if len(got) != 1 || got[0].GetNumber() != opnumber.Of(first) || got[0].GetPrincipal() != bearer || got[0].GetTool() != "start_service" ||
		got[0].GetTier() != optionsv1.Tier_TIER_WRITE || got[0].GetAskedAt() == nil || !got[0].GetExpiresAt().AsTime().After(v.clock.Now()) {
		t.Errorf("of one: %v", got)
	}
	v.clock.advance(time.Second)
	second := v.ask(opened.GetSessionId(), "b").GetOperationId()
	if got := next(); len(got) != 2 || got[0].GetNumber() != opnumber.Of(first) || got[1].GetNumber() != opnumber.Of(second) {
		t.Errorf("of two: %v", got)
	}
	ops, err := v.approvals().ListOperations(t.Context(), &vaultv1.ListOperationsRequest{})
	v.must(err)
	told := protojson.Format(&vaultv1.WatchWaitingResponse{Waiting: got})
	for _, op := range ops.GetOperations() {
		for what, hidden := range map[string]string{
			"id": op.GetOperationId(), "session": op.GetSession(), "arguments": string(op.GetArguments()), "words": op.GetAgentReason(),
			"client's name": op.GetClientName(), "request": op.GetRequestId(),
		} {
			if hidden != "" && strings.Contains(told, hidden) {
				t.Errorf("a notifier is told the %s: %s", what, told)
			}
		}
	}
	v.approve(first)
	if got := next(); len(got) != 1 || got[0].GetNumber() != opnumber.Of(second) {
		t.Errorf("after an approval: %v", got)
	}
	_, err = v.approvals().DenyOperation(t.Context(), &vaultv1.DenyOperationRequest{OperationId: second})
	v.must(err)
	if got := next(); len(got) != 0 {
		t.Errorf("after a denial: %v", got)
	}
}

// TestNotifiersTakeNobodysPlace: however many watches a notifier opens, operators watch.
func TestNotifiersTakeNobodysPlace(t *testing.T) {
	v := newVault(t)
	notices := vaultv1.NewNoticeServiceClient(v.as(optionsv1.Role_ROLE_NOTIFIER, "alice"))
	let := 0
	for range 100 {
		stream, err := notices.WatchWaiting(t.Context(), &vaultv1.WatchWaitingRequest{})
		v.must(err)
		if _, err = stream.Recv(); err == nil {
			let++
		} else if !fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
			t.Fatal(err)
		}
	}
	if let != 16 {
		t.Errorf("%d watches are open", let)
	}
	opened := v.open(bearer)
	id := v.ask(opened.GetSessionId(), "a").GetOperationId()
	stream, err := v.approvals().WatchOperations(t.Context(), &vaultv1.WatchOperationsRequest{})
	v.must(err)
	if event, err := stream.Recv(); err != nil || event.GetOperation().GetOperationId() != id {
		t.Errorf("an operator: %v, %v", event, err)
	}
}
