package server

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/standing"
)

// Whoever carries a key-bound client's opening neither drops the agent in it nor puts another there: a rule about the agent would
// bind nobody.
func TestAgentIsTheClientsOwnWord(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: bound\n", "id: bound\n    agents: [intern, lead]\n")
	v.rule("policy/a.cedar", `@id("not-the-intern") forbid (principal in Agent::"bound/intern", action == Action::"call:start_service", resource);`)
	counter := uint64(0)
	open := func(signed, said string) (*vaultv1.OpenSessionResponse, error) {
		counter++
		p, err := proof.Sign(v.clientKey, proof.Claim{
			Purpose: callv1.Proof_PURPOSE_OPEN, Client: bound, Counter: counter, Time: v.clock.Now().Unix(), Agent: signed,
		})
		v.must(err)
		return v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Proof: p, Agent: said})
	}
	for _, c := range []struct{ signed, said string }{{"intern", ""}, {"intern", "lead"}, {"", "lead"}, {"lead", "intern"}} {
		_, err := open(c.signed, c.said)
		wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
	}
	intern, err := open("intern", "intern")
	v.must(err)
	if got := v.call(intern, 1, "start_service", "a"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED {
		t.Errorf("the intern: %v", got)
	}
	lead, err := open("lead", "lead")
	v.must(err)
	if got := v.call(lead, 1, "start_service", "a"); got.GetDecision() != waits {
		t.Errorf("the lead: %v", got)
	}
}

// A person on a messaging platform is the client's own word as well, where the client signs.
func TestSenderIsTheClientsOwnWord(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: bound\n    token_sha256: "+tokenDigest(bound)+"\n    channel: cli\n", "id: bound\n    token_sha256: "+tokenDigest(bound)+"\n    channel: messaging:signal\n")
	counter := uint64(0)
	open := func(user, room string, said *vaultv1.Sender) error {
		counter++
		p, err := proof.Sign(v.clientKey, proof.Claim{
			Purpose: callv1.Proof_PURPOSE_OPEN, Client: bound, Counter: counter, Time: v.clock.Now().Unix(), SenderUser: user, SenderRoom: room,
		})
		v.must(err)
		_, err = v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Proof: p, Sender: said})
		return err
	}
	wantCode(t, open("alice", "kitchen", &vaultv1.Sender{User: "bob", Room: "kitchen"}), callv1.Code_CODE_UNAUTHENTICATED)
	wantCode(t, open("alice", "kitchen", &vaultv1.Sender{User: "alice", Room: "all"}), callv1.Code_CODE_UNAUTHENTICATED)
	wantCode(t, open("", "", &vaultv1.Sender{User: "alice", Room: "kitchen"}), callv1.Code_CODE_UNAUTHENTICATED)
	v.must(open("alice", "kitchen", &vaultv1.Sender{User: "alice", Room: "kitchen"}))
}

// A gateway finds out without a proof whether a key-bound client whose session it had is still let in, also at a vault that started
// anew: nothing opens, and only that the client is let in no more is recorded.
func TestAGatewayFindsOutWhetherAKeyBoundClientStands(t *testing.T) {
	for name, restart := range map[string]bool{"the same vault": false, "one that started anew": true} {
		t.Run(name, func(t *testing.T) {
			v := newVault(t)
			v.rewrite("id: bound\n", "id: bound\n    agents: [intern]\n")
			handle := v.openBound(1).GetSessionId()
			if restart {
				v.restart()
			}
			open, failures := v.server.Sessions.Count(), 0
			ask := func(want callv1.Code, req *vaultv1.OpenSessionRequest) {
				t.Helper()
				_, err := v.sessions().OpenSession(t.Context(), req)
				wantCode(t, err, want)
				if want == callv1.Code_CODE_UNAUTHENTICATED {
					failures++
				}
				if n := len(v.audit.of(auditv1.Kind_KIND_AUTHENTICATION_FAILED)); n != failures {
					t.Errorf("%d failures are recorded, want %d", n, failures)
				}
				if n := v.server.Sessions.Count(); n != open {
					t.Errorf("%d sessions are open, want %d", n, open)
				}
			}
			const stands, gone = callv1.Code_CODE_PROOF_REQUIRED, callv1.Code_CODE_UNAUTHENTICATED
			forged := v.openProof(2, v.clock.Now().Add(time.Second))
			forged.Signature[0] ^= 1
			ask(gone, &vaultv1.OpenSessionRequest{Credential: tokenOf(bound)}) // a stranger does not know the handle
			ask(gone, &vaultv1.OpenSessionRequest{Credential: "guess", Replaces: handle})
			ask(gone, &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Replaces: handle, Proof: forged})
			ask(stands, &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Replaces: handle})
			ask(stands, &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Replaces: handle, Agent: "intern"})
			v.rewrite("    agents: [intern]\n", "")
			ask(gone, &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Replaces: handle, Agent: "intern"})
			ask(stands, &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Replaces: handle})
			v.revoke(bound)
			ask(gone, &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Replaces: handle})
		})
	}
}

// A redemption waits for audit. What a human ended meanwhile has ended.
func TestEndedWhileRedeemed(t *testing.T) {
	for name, end := range map[string]func(*vault, string) error{
		"revoked": func(v *vault, ref string) error {
			_, err := v.standing().RevokeStanding(t.Context(), &vaultv1.RevokeStandingRequest{Session: ref})
			return err
		},
		"client gone": func(v *vault, _ string) error { v.revoke(bound); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVault(t)
			opened := v.openBound(1)
			v.dangerous(opened.GetSession())
			g := v.call(opened, 1, "start_service", "a").GetGrant()
			gate, entered := make(chan struct{}), make(chan struct{}, 8)
			v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
			redeemed := make(chan error, 1)
			go func() { redeemed <- v.redeem(g) }()
			select {
			case <-entered:
			case err := <-redeemed:
				t.Fatalf("redeemed without a record: %v", err)
			}
			v.must(end(v, opened.GetSession()))
			close(gate)
			if err := <-redeemed; err == nil {
				t.Error("it was redeemed all the same")
			}
			v.audit.set(func(f *fakeAudit) { f.gate = nil })
			if n := len(v.audit.of(auditv1.Kind_KIND_DENIED)); n == 0 {
				t.Error("the log does not say that it came to nothing")
			}
		})
	}
}

// An agent that waits for what ended with its session's standing authority is told so, before and after it was swept away.
func TestWhatEndedWithItsStandingIsToldSo(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	v.dangerous(opened.GetSession())
	id := v.call(opened, 1, "start_service", "a").GetOperationId()
	_, err := v.standing().RevokeStanding(t.Context(), &vaultv1.RevokeStandingRequest{Session: opened.GetSession()})
	v.must(err)
	for _, when := range []string{"before the sweep", "after it"} {
		_, err := v.wait(opened, id, time.Second)
		if f := wantCode(t, err, callv1.Code_CODE_EXPIRED); f.Message != "what a human let this session do has ended; ask again" {
			t.Errorf("%s: %q", when, f.Message)
		}
		v.must(v.server.Sweep(t.Context()))
	}
	if got := v.operation(id).GetState(); got != expired {
		t.Errorf("after the sweep it is %s", got)
	}
}

// A human who takes dangerous mode out of the configuration, or lowers a limit, means what is in force too.
func TestLimitsBindWhatIsInForce(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	v.dangerous(opened.GetSession())
	if got := v.call(opened, 1, "start_service", "a"); got.GetDecision() != granted {
		t.Fatalf("before: %v", got)
	}
	v.rule("security.yaml", "dangerous:\n  max_s: 600\n")
	if got := v.call(opened, 2, "start_service", "b"); got.GetDecision() != granted {
		t.Fatalf("within the new limit: %v", got)
	}
	v.clock.advance(10 * time.Minute)
	if got := v.call(opened, 3, "start_service", "c"); got.GetDecision() != waits || got.GetDangerousUntil() != nil {
		t.Errorf("past the new limit: %v", got)
	}
	opened = v.openBound(2)
	v.rule("security.yaml", "dangerous:\n  allowed: true\n")
	v.dangerous(opened.GetSession())
	before := v.call(opened, 1, "start_service", "d")
	v.rule("security.yaml", "dangerous:\n  allowed: false\n")
	if got := v.call(opened, 2, "start_service", "e"); got.GetDecision() != waits || got.GetDangerousUntil() != nil {
		t.Errorf("switched off: %v", got)
	}
	wantCode(t, v.redeem(before.GetGrant()), callv1.Code_CODE_EXPIRED)
	v.must(v.server.Sweep(t.Context()))
	list, err := v.standing().ListStanding(t.Context(), &vaultv1.ListStandingRequest{})
	v.must(err)
	if len(list.GetStanding()) != 0 {
		t.Errorf("in force: %v", list.GetStanding())
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_STANDING_ENDED)); n != 2 {
		t.Errorf("%d ends are recorded, want 2", n)
	}
}

func TestLowerUsesBindAScope(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(opened.GetSession(), bound, 10))})
	v.must(err)
	for i := range uint64(2) {
		if got := v.call(opened, i+1, "start_service", "a"+string(rune('a'+i))); got.GetDecision() != granted {
			t.Fatalf("%v", got)
		}
	}
	v.rule("security.yaml", "approvals:\n  scope_max_uses: 2\n")
	if got := v.call(opened, 3, "start_service", "b"); got.GetDecision() != waits {
		t.Errorf("a third use of two: %v", got)
	}
}

// What a human let one session do is that session's: another of the same client gets no grant of it, whether it waited already or
// knows the name.
func TestSiblingGetsNoGrantOfAScope(t *testing.T) {
	v := newVault(t)
	opened, sibling := v.openBound(1), v.openBound(2)
	asked := v.call(opened, 1, "start_service", "a")
	if joined := v.call(sibling, 1, "start_service", "a"); !joined.GetJoined() {
		t.Fatalf("%v", joined)
	}
	_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{
		Statement: v.sign(v.scope(opened.GetSession(), bound, 2)), OperationId: asked.GetOperationId(),
	})
	v.must(err)
	for _, id := range []string{asked.GetOperationId(), v.call(opened, 2, "start_service", "b").GetOperationId()} {
		_, err := v.wait(sibling, id, time.Second)
		wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
		own, err := v.wait(opened, id, time.Second)
		v.must(err)
		v.must(v.redeem(own.GetGrant()))
		if after, err := v.wait(sibling, id, time.Second); err != nil || after.GetGrant() != nil {
			t.Errorf("once it runs: %v, %v", after, err)
		}
	}
}

// A mute takes proposals back, and nothing is granted to a muted client.
func TestMuteTakesProposals(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	h := v.sign(v.mode(opened.GetSession(), bound))
	propose := func() (*vaultv1.ProposeDangerousResponse, error) {
		return v.standing().ProposeDangerous(t.Context(), &vaultv1.ProposeDangerousRequest{
			Statement: v.sign(v.mode(opened.GetSession(), bound)),
		})
	}
	_, err := v.standing().ProposeDangerous(t.Context(), &vaultv1.ProposeDangerousRequest{Statement: h})
	v.must(err)
	mute := func(length uint32) {
		_, err := v.standing().MutePrincipal(t.Context(), &vaultv1.MutePrincipalRequest{Principal: bound, ForS: length})
		v.must(err)
	}
	mute(3600)
	v.clock.advance(standing.ConfirmAfter)
	_, err = v.standing().ConfirmDangerous(t.Context(), v.confirmation(h))
	wantCode(t, err, callv1.Code_CODE_DENIED)
	mute(0)
	_, err = v.standing().ConfirmDangerous(t.Context(), v.confirmation(h))
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	mute(3600)
	_, err = propose()
	wantCode(t, err, callv1.Code_CODE_DENIED)
	_, err = v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(opened.GetSession(), bound, 1))})
	if f := wantCode(t, err, callv1.Code_CODE_DENIED); !strings.Contains(f.Message, "muted") {
		t.Errorf("%q", f.Message)
	}
	mute(0)
	_, err = propose()
	v.must(err)
}

// A proposal that an operator takes back is recorded, and shown as what it was.
func TestRevokedProposal(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	p, err := v.standing().ProposeDangerous(t.Context(), &vaultv1.ProposeDangerousRequest{
		Statement: v.sign(v.mode(opened.GetSession(), bound)),
	})
	v.must(err)
	revoke := func() (*vaultv1.RevokeStandingResponse, error) {
		return v.standing().RevokeStanding(t.Context(), &vaultv1.RevokeStandingRequest{StandingId: p.GetStandingId(), Reason: "no"})
	}
	resp, err := revoke()
	v.must(err)
	if len(resp.GetEnded()) != 1 || resp.GetEnded()[0].GetStandingId() != p.GetStandingId() || resp.GetEnded()[0].GetKind() != "dangerous" {
		t.Errorf("%v", resp)
	}
	ends := v.audit.of(auditv1.Kind_KIND_STANDING_ENDED)
	if len(ends) != 1 || ends[0].GetBody().GetAction() != "standing-withdrawn" || !strings.HasSuffix(ends[0].GetBody().GetReason(), ": no") ||
		ends[0].GetBody().GetDetails()["statement"] != p.GetStandingId() {
		t.Errorf("%v", ends)
	}
	_, err = revoke()
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
}

// What a human's file denies by now is neither approved nor claimed by another human.
func TestDeniedIsNeitherApprovedNorClaimed(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	first := v.call(opened, 1, "start_service", "a").GetOperationId()
	second := v.call(opened, 2, "start_service", "b").GetOperationId()
	third := v.call(opened, 3, "start_service", "c").GetOperationId()
	v.approve(first)
	v.approve(third)
	claim := func(id string) error {
		_, err := v.approvals().ClaimOperation(t.Context(), &vaultv1.ClaimOperationRequest{OperationId: id})
		return err
	}
	v.must(claim(third))
	v.rule("tools.yaml", "tools:\n  start_service:\n    tier: DENIED\n")
	f := wantCode(t, claim(first), callv1.Code_CODE_DENIED)
	if !strings.Contains(f.Message, "tools.yaml:3") {
		t.Errorf("%q does not say where", f.Message)
	}
	_, err := v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{
		OperationId: second, Statement: v.sign(v.statementFor(v.operation(second))),
	})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	_, err = v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{
		Statement: v.sign(v.scope(opened.GetSession(), bound, 1)), OperationId: second,
	})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	// Its session's end changes nothing about it.
	_, err = v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
	v.must(err)
	wantCode(t, claim(first), callv1.Code_CODE_DENIED)
	v.rule("tools.yaml", "tools: {}\n")
	v.must(claim(first))
}

// Every record of what a session in dangerous mode asks, joins and reads says so.
func TestDangerousRecords(t *testing.T) {
	v := newVault(t)
	v.rule("policy/a.cedar", `@id("look") forbid (principal, action == Action::"callWithoutApproval:stop_service", resource);`)
	opened := v.openBound(1)
	v.dangerous(opened.GetSession())
	asked := v.call(opened, 1, "stop_service", "a")
	if asked.GetDecision() != waits {
		t.Fatalf("%v", asked)
	}
	v.call(opened, 2, "stop_service", "a") // joins
	if got := v.call(opened, 3, "service_info", "a"); got.GetDecision() != granted {
		t.Fatalf("%v", got)
	}
	v.call(opened, 4, "start_service", "a")
	v.call(opened, 5, "start_service", "a") // joins
	_, _, err := v.showConfig(opened, 0)
	v.must(err)
	_, err = v.look(opened, asked.GetOperationId())
	v.must(err)
	n := 0
	for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_APPROVED} {
		for _, r := range v.audit.of(kind) {
			if n++; !r.GetBody().GetDangerous() {
				t.Errorf("not tagged: %s %s of %s", kind, r.GetBody().GetAction(), r.GetTool())
			}
		}
	}
	if n < 9 {
		t.Errorf("%d records", n)
	}
	quiet := v.open(bearer)
	v.ask(quiet.GetSessionId(), "z")
	for _, r := range v.audit.of(auditv1.Kind_KIND_ASKED) {
		if r.GetBody().GetPrincipal() == bearer && r.GetBody().GetDangerous() {
			t.Error("another client's is tagged")
		}
	}
}

// What one agent asked for no other agent of the client joins or carries out, and the log says whose it was.
func TestAgentsShareNoOperation(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: bearer\n", "id: bearer\n    agents: [intern, lead]\n")
	open := func(agent string) *vaultv1.OpenSessionResponse {
		resp, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bearer), Agent: agent})
		v.must(err)
		return resp
	}
	lead, intern, none := open("lead"), open("intern"), v.open(bearer)
	asked := v.ask(lead.GetSessionId(), "a")
	for name, other := range map[string]*vaultv1.OpenSessionResponse{"intern": intern, "none": none} {
		if got := v.ask(other.GetSessionId(), "a"); got.GetJoined() || got.GetOperationId() == asked.GetOperationId() {
			t.Errorf("%s joins the lead's: %v", name, got)
		}
	}
	if got := v.ask(open("lead").GetSessionId(), "a"); got.GetOperationId() != asked.GetOperationId() {
		t.Errorf("the lead does not join its own: %v", got)
	}
	v.approve(asked.GetOperationId())
	for _, other := range []*vaultv1.OpenSessionResponse{intern, none} {
		_, err := v.wait(other, asked.GetOperationId(), time.Second)
		wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	}
	v.restart()
	again, err := v.wait(open("lead"), asked.GetOperationId(), time.Second)
	v.must(err)
	v.must(v.redeem(again.GetGrant()))
	for _, r := range v.audit.of(auditv1.Kind_KIND_ASKED) {
		if got := r.GetBody().GetDetails()["agent"]; r.GetOperationId() == asked.GetOperationId() && got != "lead" {
			t.Errorf("the record names the agent %q", got)
		}
	}
}

// So many strangers write that a messaging client has no session left: the one who rested longest makes room.
func TestStrangersDoNotShutAChannel(t *testing.T) {
	v := newVault(t)
	v.messenger()
	v.rewrite("id: chat\n", "id: chat\n    limits: {sessions: 3}\n")
	var opened []*vaultv1.OpenSessionResponse
	for _, user := range []string{"a", "b", "c", "d"} {
		one, err := v.openAs(user, "room-"+user)
		v.must(err)
		opened = append(opened, one)
		v.clock.advance(time.Second)
	}
	for i, want := range []callv1.Code{callv1.Code_CODE_UNAUTHENTICATED, callv1.Code_CODE_UNSPECIFIED} {
		_, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened[i].GetSessionId()})
		wantCode(t, err, want)
	}
	closed := v.audit.of(auditv1.Kind_KIND_SESSION_CLOSED)
	if len(closed) != 1 || closed[0].GetBody().GetAction() != "made-room" {
		t.Errorf("%v", closed)
	}
}

// One gateway that opens stream after stream leaves room for another.
func TestWatchersOfOneIdentity(t *testing.T) {
	v := newVault(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan error, 20)
	for range 20 {
		stream, err := v.sessions().WatchSessions(ctx, &vaultv1.WatchSessionsRequest{})
		v.must(err)
		go func() { _, err := stream.Recv(); answers <- err }()
	}
	for range 20 - watchesEach {
		wantCode(t, <-answers, callv1.Code_CODE_RATE_LIMITED)
	}
	another, err := vaultv1.NewSessionServiceClient(v.as(gateway, "second")).WatchSessions(ctx, &vaultv1.WatchSessionsRequest{})
	v.must(err)
	if begun, err := another.Header(); begun == nil || err != nil {
		t.Errorf("before anything is told, the headers are %v, %v", begun, err)
	}
	told := make(chan error, 1)
	go func() { _, err := another.Recv(); told <- err }()
	opened := v.openBound(1)
	v.dangerous(opened.GetSession())
	if err := <-told; err != nil {
		t.Errorf("another gateway: %v", err)
	}
	for range watchesEach {
		v.must(<-answers)
	}
}

// However many gateways there are, each is told: a hostile one takes its own places alone.
func TestWatchersOfManyIdentities(t *testing.T) {
	v := newVault(t)
	for id := range 20 {
		client := vaultv1.NewSessionServiceClient(v.as(gateway, fmt.Sprintf("gateway%d", id)))
		for range watchesEach {
			stream, err := client.WatchSessions(t.Context(), &vaultv1.WatchSessionsRequest{})
			v.must(err)
			if begun, err := stream.Header(); begun == nil || err != nil {
				t.Fatalf("gateway %d: the headers are %v, %v", id, begun, err)
			}
		}
	}
}

// Four eyes bind a client that says nothing of whose it is as well: nobody can tell who the other human is.
func TestFourEyesWithoutAUser(t *testing.T) {
	v := newVault(t)
	id := v.ask(v.open(bearer).GetSessionId(), "a").GetOperationId()
	approve := func() error {
		_, err := v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{
			OperationId: id, Statement: v.sign(v.statementFor(v.operation(id))),
		})
		return err
	}
	v.rule("security.yaml", "approvals:\n  four_eyes: true\n")
	if f := wantCode(t, approve(), callv1.Code_CODE_DENIED); !strings.Contains(f.Message, "four eyes") || !strings.Contains(f.Message, "user:") {
		t.Errorf("%q", f.Message)
	}
	scoped := v.openBound(1)
	_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(scoped.GetSession(), bound, 1))})
	if f := wantCode(t, err, callv1.Code_CODE_DENIED); !strings.Contains(f.Message, "four eyes") {
		t.Errorf("%q", f.Message)
	}
	v.rewrite("id: "+other+"\n", "id: "+other+"\n    user: "+platformtest.Operator+"\n")
	id = v.ask(v.open(other).GetSessionId(), "a").GetOperationId()
	if f := wantCode(t, approve(), callv1.Code_CODE_DENIED); !strings.Contains(f.Message, "four eyes") {
		t.Errorf("%q", f.Message)
	}
	v.rewrite("user: "+platformtest.Operator, "user: somebody")
	id = v.ask(v.open(other).GetSessionId(), "a").GetOperationId()
	// A human has two eyes under every name.
	key := v.OperatorSigner.PublicKey()
	one := trust.FormatSigner(platformtest.Operator, key, statement.Namespace) + "\n"
	v.WriteTrust(trust.FileAllowedSigners, []byte(one+trust.FormatSigner("Somebody", key, statement.Namespace)+"\n"))
	v.must(v.Trust.Reload())
	if f := wantCode(t, approve(), callv1.Code_CODE_DENIED); !strings.Contains(f.Message, "four eyes") {
		t.Errorf("%q", f.Message)
	}
	stranger, err := ssh.NewPublicKey(v.clientKey.Public())
	v.must(err)
	v.WriteTrust(trust.FileAllowedSigners, []byte(one+trust.FormatSigner("somebody", stranger, statement.Namespace)+"\n"))
	v.must(v.Trust.Reload())
	v.must(approve())
}

// What was recorded and then came to nothing, since a halt came in between, is followed in the log by a record that says so.
func TestWhatAHaltRefusesAfterItsRecordIsRecordedSo(t *testing.T) {
	for action, begin := range map[string]func(v *vault) (refused func() error){
		"ask": func(v *vault) func() error {
			opened := v.open(bearer)
			return func() error {
				_, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "a"))
				return err
			}
		},
		"approve": func(v *vault) func() error {
			id := v.ask(v.open(bearer).GetSessionId(), "a").GetOperationId()
			h := v.sign(v.statementFor(v.operation(id)))
			return func() error {
				_, err := v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{OperationId: id, Statement: h})
				return err
			}
		},
		"command": func(v *vault) func() error {
			h := v.command("a", func(*statement.Statement) {})
			return func() error {
				_, err := v.approvals().GrantCommand(t.Context(), &vaultv1.GrantCommandRequest{Statement: h})
				return err
			}
		},
		"dangerous": func(v *vault) func() error {
			opened := v.openBound(1)
			v.dangerous(opened.GetSession())
			return func() error {
				_, err := v.authority().Authorise(t.Context(), v.proved(opened, 1, "start_service", arguments("a")))
				return err
			}
		},
		"scope-granted": func(v *vault) func() error {
			h := v.sign(v.scope(v.openBound(1).GetSession(), bound, 2))
			return func() error {
				_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: h})
				return err
			}
		},
		"redeem": func(v *vault) func() error {
			_, _, g := v.granted(bearer, "a")
			return func() error { return v.redeem(g) }
		},
	} {
		t.Run(action, func(t *testing.T) {
			v := newVault(t)
			call := begin(v)
			gate, entered, ended := make(chan struct{}), make(chan struct{}, 1), make(chan error, 1)
			v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
			go func() { ended <- call() }()
			select {
			case <-entered:
			case err := <-ended:
				t.Fatalf("it was not recorded: %v", err)
			}
			_, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{})
			v.must(err)
			close(gate)
			wantCode(t, <-ended, callv1.Code_CODE_HALTED)
			for _, r := range v.audit.of(auditv1.Kind_KIND_DENIED) {
				body := r.GetBody()
				if body.GetAction() == action+"-given-up" && body.GetStatement() == nil && strings.HasPrefix(body.GetReason(), "it was recorded, and then refused") {
					return
				}
			}
			t.Errorf("no record says so: %v", v.audit.of(auditv1.Kind_KIND_DENIED))
		})
	}
}
