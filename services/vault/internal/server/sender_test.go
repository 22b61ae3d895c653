package server

import (
	"encoding/hex"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
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
	_, err = v.withdraw(bob, hers.GetOperationId())
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, err = v.approvals().DenyOperation(t.Context(), &vaultv1.DenyOperationRequest{OperationId: hers.GetOperationId()})
	v.must(err)
	_, err = v.withdraw(bob, hers.GetOperationId()) // nor what became of it
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, err = v.withdraw(alice, hers.GetOperationId())
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
}

// The log holds no name of a sender or a room, and yet shows which sessions are of one sender, after a restart too. Operators see the
// names of the sessions that are open.
func TestTheLogNamesNoSender(t *testing.T) {
	v := newVault(t)
	v.messenger()
	v.rule("security.yaml", "messaging: {per_user_per_minute: 4}\n")
	open := func(user, room string) *vaultv1.OpenSessionResponse {
		t.Helper()
		opened, err := v.openAs(user, room)
		v.must(err)
		return opened
	}
	open("alice-of-signal", "the-kitchen")
	open("alice-of-signal", "the-garden")
	bob := open("bob-of-signal", "the-kitchen")
	open("the-kitchen", "the-kitchen")
	v.ask(bob.GetSessionId(), "a")
	_, err := v.openAs("bob\u200b-of-signal", "the-kitchen")
	wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT)
	open("bob-of-signal", "the-garden")
	open("bob-of-signal", "the-garden") // ends the one before
	_, err = v.openAs("bob-of-signal", "the-kitchen")
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	list, err := v.standing().ListSessions(t.Context(), &vaultv1.ListSessionsRequest{})
	v.must(err)
	seen := map[string]bool{}
	for _, s := range list.GetSessions() {
		seen[s.GetSender().GetUser()] = true
	}
	if !seen["alice-of-signal"] || !seen["bob-of-signal"] {
		t.Errorf("operators see %v", seen)
	}
	v.restart()
	open("alice-of-signal", "the-kitchen")

	var users, rooms []string
	for _, r := range v.audit.records {
		text, err := protojson.Marshal(r)
		v.must(err)
		for _, name := range []string{"of-signal", "the-kitchen", "the-garden"} {
			if strings.Contains(string(text), name) {
				t.Errorf("%q is in the record %s", name, text)
			}
		}
		if d := r.GetBody().GetDetails(); r.GetKind() == auditv1.Kind_KIND_SESSION_OPENED && d["sender_user"] != "" {
			users, rooms = append(users, d["sender_user"]), append(rooms, d["sender_room"])
		}
	}
	if len(users) != 7 {
		t.Fatalf("%d sessions of senders in the log", len(users))
	}
	for _, digest := range append(users, rooms...) {
		if raw, err := hex.DecodeString(digest); err != nil || len(raw) != 16 {
			t.Errorf("%q is no digest of 128 bits", digest)
		}
	}
	// Which sessions are of whom, and where: alice, alice, bob, the-kitchen, bob, bob, alice.
	same := func(of []string) (shape [7]int) {
		first := map[string]int{}
		for i, digest := range of {
			if _, known := first[digest]; !known {
				first[digest] = i
			}
			shape[i] = first[digest]
		}
		return shape
	}
	if got, want := same(users), [7]int{0, 0, 2, 3, 2, 2, 0}; got != want {
		t.Errorf("the digests of users are alike as %v, want %v", got, want)
	}
	if got, want := same(rooms), [7]int{0, 1, 0, 0, 1, 1, 0}; got != want {
		t.Errorf("the digests of rooms are alike as %v, want %v", got, want)
	}
	if users[3] == rooms[3] {
		t.Error("a user and a room of one name have one digest")
	}
}
