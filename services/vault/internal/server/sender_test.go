package server

import (
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// People who speak through one messaging client share no operation: what one asked for is not joined by another's same request, and
// is not there for another who knows its id.
func TestSendersShareNoOperation(t *testing.T) {
	v := newVault(t)
	v.messenger()
	v.rule("policy/ask.cedar", `@id("asks") forbid (principal, action == Action::"callWithoutApproval:service_info", resource);`+"\n")
	alice, err := v.openAs("alice", "kitchen")
	v.must(err)
	bob, err := v.openAs("bob", "kitchen")
	v.must(err)
	ask := func(opened *vaultv1.OpenSessionResponse) *vaultv1.AuthoriseResponse {
		t.Helper()
		out, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", "a"))
		v.must(err)
		if out.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING {
			t.Fatalf("decision %v", out)
		}
		return out
	}
	hers := ask(alice)
	if again := ask(alice); again.GetOperationId() != hers.GetOperationId() || !again.GetJoined() {
		t.Errorf("her own second request: %v", again)
	}
	if his := ask(bob); his.GetOperationId() == hers.GetOperationId() || his.GetJoined() {
		t.Errorf("his request joins hers: %v", his)
	}
	_, err = v.wait(bob, hers.GetOperationId(), 0)
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, err = v.look(bob, hers.GetOperationId())
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, err = v.look(alice, hers.GetOperationId())
	v.must(err)
}
