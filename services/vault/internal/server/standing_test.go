package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/session"
)

const (
	granted = vaultv1.AuthoriseResponse_DECISION_GRANTED
	waits   = vaultv1.AuthoriseResponse_DECISION_PENDING
)

func (v *vault) standing() vaultv1.StandingServiceClient {
	return vaultv1.NewStandingServiceClient(v.as(operator, platformtest.Operator))
}

// permission is what an honest operator's program makes of a human's wish for a session, for an hour.
func (v *vault) permission(kind statement.Kind, ref, principal string) *statement.Statement {
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: kind, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(v.clock.Now()), NotBefore: statement.FormatTime(v.clock.Now()),
		ExpiresAt: statement.FormatTime(v.clock.Now().Add(time.Hour)), Epoch: v.server.Halt.Now().Epoch,
		Audience: v.ID(executor, "local").String(), Principal: principal, Session: ref, Channel: "cli",
	}
}

// scope allows start_service of any service, so often.
func (v *vault) scope(ref, principal string, uses int) *statement.Statement {
	s := v.permission(statement.KindScope, ref, principal)
	s.Tools, s.Free = []statement.Tool{statement.ToolOf(toolRef("start_service"))}, []string{"/service_id"}
	s.SubjectDigests, s.Uses = []string{subject}, uses
	return s
}

// mode is dangerous mode of the session, for 20 changes.
func (v *vault) mode(ref, principal string) *statement.Statement {
	s := v.permission(statement.KindDangerous, ref, principal)
	s.Version, s.Uses = statement.VersionConfirmed, 20
	return s
}

// confirmation is the second statement of dangerous mode.
func (v *vault) confirmation(first *callv1.HumanStatement) *vaultv1.ConfirmDangerousRequest {
	v.t.Helper()
	s, err := statement.Parse(first.GetStatement())
	v.must(err)
	return &vaultv1.ConfirmDangerousRequest{Statement: v.sign(statement.Confirmation(s, first.GetStatement(), grant.NewID(), v.clock.Now()))}
}

// dangerous puts a session of the key-bound client into dangerous mode.
func (v *vault) dangerous(ref string) *vaultv1.Standing {
	v.t.Helper()
	return v.confirmed(v.mode(ref, bound))
}

// confirmed proposes a mode and confirms it.
func (v *vault) confirmed(mode *statement.Statement) *vaultv1.Standing {
	v.t.Helper()
	h := v.sign(mode)
	_, err := v.standing().ProposeDangerous(v.t.Context(), &vaultv1.ProposeDangerousRequest{Statement: h})
	v.must(err)
	v.clock.advance(5 * time.Second)
	confirmed, err := v.standing().ConfirmDangerous(v.t.Context(), v.confirmation(h))
	v.must(err)
	return confirmed.GetStanding()
}

// call is a call of the key-bound client.
func (v *vault) call(opened *vaultv1.OpenSessionResponse, counter uint64, tool, service string) *vaultv1.AuthoriseResponse {
	v.t.Helper()
	resp, err := v.authority().Authorise(v.t.Context(), v.proved(opened, counter, tool, arguments(service)))
	v.must(err)
	return resp
}

// A scope that is granted for a call that waits approves it as its first use, and what it covers runs without asking.
func TestScopeForAnOperation(t *testing.T) {
	v := newVault(t)
	opened, sibling := v.openBound(1), v.openBound(2)
	asked := v.call(opened, 1, "start_service", "a")
	if asked.GetDecision() != waits {
		t.Fatalf("%v", asked)
	}
	if o := v.operation(asked.GetOperationId()); o.GetRule() != asked.GetRule() || o.GetRule() == "" {
		t.Errorf("operators are shown the rule %q", o.GetRule())
	}
	s := v.scope(opened.GetSession(), bound, 2)
	// It has to cover the operation that it is granted for.
	other := *s
	other.ID, other.Tools = grant.NewID(), []statement.Tool{statement.ToolOf(toolRef("stop_service"))}
	_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(&other), OperationId: asked.GetOperationId()})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	resp, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(s), OperationId: asked.GetOperationId()})
	v.must(err)
	if g := resp.GetStanding(); g.GetStandingId() != s.ID || g.GetUses() != 2 || g.GetUsesLeft() != 1 || g.GetSession() != opened.GetSession() {
		t.Errorf("%v", g)
	}
	if o := resp.GetOperation(); o.GetState() != approved || o.GetDecidedBy() != platformtest.Operator || o.GetStatement() == nil {
		t.Errorf("%v", o)
	}
	_, err = v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{
		Statement: v.sign(v.scope(opened.GetSession(), bound, 2)), OperationId: asked.GetOperationId(),
	})
	wantCode(t, err, callv1.Code_CODE_CONFLICT) // it does not wait any more
	waited, err := v.wait(opened, asked.GetOperationId(), time.Second)
	v.must(err)
	v.must(v.redeem(waited.GetGrant()))

	next := v.call(opened, 2, "start_service", "b")
	if next.GetDecision() != granted || next.GetGrant() == nil || next.GetDangerousUntil() != nil {
		t.Fatalf("%v", next)
	}
	v.must(v.redeem(next.GetGrant()))
	wantCode(t, v.redeem(next.GetGrant()), callv1.Code_CODE_ALREADY_SPENT)
	// It was used up; another session never had it.
	if got := v.call(opened, 3, "start_service", "c").GetDecision(); got != waits {
		t.Errorf("a third use of two: %s", got)
	}
	if got := v.call(sibling, 1, "start_service", "d").GetDecision(); got != waits {
		t.Errorf("another session: %s", got)
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_STANDING_GRANTED)); n != 1 {
		t.Errorf("%d grants recorded", n)
	}
}

// A scope for an operation that somebody denies at the same moment: either both stand, or neither.
func TestScopeOrNothing(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	for i := range 20 {
		id := v.call(opened, uint64(i+1), "start_service", fmt.Sprintf("s%d", i)).GetOperationId()
		h := v.sign(v.scope(opened.GetSession(), bound, 5))
		var wg sync.WaitGroup
		wg.Go(func() {
			// Either of the two may come first; the other is then refused.
			_, _ = v.approvals().DenyOperation(t.Context(), &vaultv1.DenyOperationRequest{OperationId: id})
		})
		_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: h, OperationId: id})
		wg.Wait()
		listed, failed := v.standing().ListStanding(t.Context(), &vaultv1.ListStandingRequest{})
		v.must(failed)
		if state := v.operation(id).GetState(); (err == nil) != (state == approved) || (err == nil) != (len(listed.GetStanding()) == 1) {
			t.Errorf("error %v, the operation is %s, in force: %v", err, state, listed.GetStanding())
		}
		_, failed = v.standing().RevokeStanding(t.Context(), &vaultv1.RevokeStandingRequest{})
		v.must(failed)
	}
}

// Of a hundred calls at one moment as many run as the scope has uses, and each has one effect.
func TestScopeUnderLoad(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(opened.GetSession(), bound, 10))})
	v.must(err)
	client, sink := v.authority(), v.sink()
	var ran atomic.Int32
	var wg sync.WaitGroup
	for i := range 100 {
		req := v.proved(opened, uint64(i+1), "start_service", arguments(fmt.Sprintf("s%d", i)))
		wg.Go(func() {
			resp, err := client.Authorise(t.Context(), req)
			if err != nil || resp.GetGrant() == nil {
				return
			}
			for range 3 {
				if _, err := sink.Redeem(t.Context(), &vaultv1.RedeemRequest{Grant: resp.GetGrant()}); err == nil {
					ran.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := ran.Load(); n != 10 {
		t.Errorf("%d effects of a scope with 10 uses", n)
	}
}

// Dangerous mode over the wire: two steps, tagged answers, one session, and an end at once.
func TestDangerousMode(t *testing.T) {
	v := newVault(t)
	opened, sibling := v.openBound(1), v.openBound(2)
	h := v.sign(v.mode(opened.GetSession(), bound))
	_, err := v.standing().ProposeDangerous(t.Context(), &vaultv1.ProposeDangerousRequest{Statement: h})
	v.must(err)
	_, err = v.standing().ConfirmDangerous(t.Context(), v.confirmation(h))
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	if got := v.call(opened, 1, "start_service", "a"); got.GetDecision() != waits || got.GetDangerousUntil() != nil {
		t.Errorf("before it was confirmed: %v", got)
	}
	v.clock.advance(5 * time.Second)
	confirmed, err := v.standing().ConfirmDangerous(t.Context(), v.confirmation(h))
	v.must(err)
	got := v.call(opened, 2, "start_service", "b")
	if got.GetDecision() != granted || !got.GetDangerousUntil().AsTime().Equal(confirmed.GetStanding().GetExpiresAt().AsTime()) {
		t.Fatalf("%v", got)
	}
	g, err := grant.Verify(got.GetGrant(), v.Trust, v.clock.Now())
	v.must(err)
	if !g.GetDangerous() || len(g.GetStatements()) != 2 || len(g.GetSubjectDigest()) != 0 {
		t.Errorf("grant %v", g)
	}
	if got := v.call(sibling, 1, "start_service", "b"); got.GetDecision() != waits || got.GetDangerousUntil() != nil {
		t.Errorf("another session: %v", got)
	}
	shown, err := v.standing().ListSessions(t.Context(), &vaultv1.ListSessionsRequest{})
	v.must(err)
	if len(shown.GetSessions()) != 2 {
		t.Fatalf("%v", shown)
	}
	for _, s := range shown.GetSessions() {
		if (s.GetDangerousUntil() != nil) != (s.GetSession() == opened.GetSession()) || !s.GetKeyBound() || s.GetPrincipal() != bound {
			t.Errorf("%v", s)
		}
	}
	// An end: what was granted and did not begin does not begin.
	_, err = v.standing().RevokeStanding(t.Context(), &vaultv1.RevokeStandingRequest{Session: opened.GetSession(), Reason: "done\x1b[2J"})
	v.must(err)
	wantCode(t, v.redeem(got.GetGrant()), callv1.Code_CODE_EXPIRED)
	if got := v.call(opened, 3, "start_service", "c"); got.GetDecision() != waits || got.GetDangerousUntil() != nil {
		t.Errorf("after its end: %v", got)
	}
	if listed, err := v.standing().ListStanding(t.Context(), &vaultv1.ListStandingRequest{}); err != nil || len(listed.GetStanding()) != 0 {
		t.Errorf("%v, %v", listed, err)
	}
	ends := v.audit.of(auditv1.Kind_KIND_STANDING_ENDED)
	if len(ends) != 1 || ends[0].GetBody().GetReason() != "an operator ended it: done" || !ends[0].GetBody().GetDangerous() {
		t.Errorf("recorded as %v", ends)
	}
}

// A halt ends everything at once, and a resume brings nothing back.
func TestHaltEndsStanding(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	v.dangerous(opened.GetSession())
	_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(opened.GetSession(), bound, 10))})
	v.must(err)
	held := v.call(opened, 1, "start_service", "a")
	_, err = v.control().Halt(t.Context(), &vaultv1.HaltRequest{Reason: "panic"})
	v.must(err)
	if n := len(v.audit.of(auditv1.Kind_KIND_STANDING_ENDED)); n != 2 {
		t.Errorf("%d ends recorded when the halt returned", n)
	}
	wantCode(t, v.redeem(held.GetGrant()), callv1.Code_CODE_HALTED)
	_, err = v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: v.resumption(func(*statement.Statement) {})})
	v.must(err)
	if wantCode(t, v.redeem(held.GetGrant()), callv1.Code_CODE_EXPIRED); v.call(opened, 2, "start_service", "b").GetDecision() != waits {
		t.Error("it runs again after the resume")
	}
}

// A session that is closed, or idle, or of a client that was shut out, takes what it was let do with it.
func TestSessionsEndTakesStanding(t *testing.T) {
	for name, end := range map[string]func(v *vault, opened *vaultv1.OpenSessionResponse){
		"closed": func(v *vault, opened *vaultv1.OpenSessionResponse) {
			_, err := v.sessions().CloseSession(v.t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
			v.must(err)
		},
		"idle": func(v *vault, _ *vaultv1.OpenSessionResponse) {
			v.clock.advance(session.IdleTimeout)
			v.must(v.server.Sweep(context.Background()))
		},
		"revoked": func(v *vault, _ *vaultv1.OpenSessionResponse) {
			v.revoke(bound)
			v.must(v.server.Sweep(context.Background()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVault(t)
			opened := v.openBound(1)
			v.dangerous(opened.GetSession())
			held := v.call(opened, 1, "start_service", "a")
			end(v, opened)
			if err := v.redeem(held.GetGrant()); err == nil {
				t.Error("its grant was redeemed")
			}
			if listed, err := v.standing().ListStanding(t.Context(), &vaultv1.ListStandingRequest{}); err != nil || len(listed.GetStanding()) != 0 {
				t.Errorf("%v, %v", listed, err)
			}
			if n := len(v.audit.of(auditv1.Kind_KIND_STANDING_ENDED)); n != 1 {
				t.Errorf("%d ends recorded", n)
			}
		})
	}
}

// What was in force is evidence after a restart, and no more.
func TestRestartEndsStanding(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	v.dangerous(opened.GetSession())
	held := v.call(opened, 1, "start_service", "a")
	v.restart()
	if listed, err := v.standing().ListStanding(t.Context(), &vaultv1.ListStandingRequest{}); err != nil || len(listed.GetStanding()) != 0 {
		t.Errorf("%v, %v", listed, err)
	}
	wantCode(t, v.redeem(held.GetGrant()), callv1.Code_CODE_EXPIRED)
	kept, err := v.store.StandingOf(t.Context(), opened.GetSession())
	v.must(err)
	if len(kept) != 1 || kept[0].EndedWhy != "the vault was restarted" {
		t.Errorf("evidence %+v", kept)
	}
}

func TestStandingRefuses(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(opened.GetSession(), bearer, 1))})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	_, err = v.standing().ProposeDangerous(t.Context(), &vaultv1.ProposeDangerousRequest{
		Statement: v.sign(v.mode(opened.GetSession(), bearer)),
	})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	_, err = v.standing().ConfirmDangerous(t.Context(), v.confirmation(v.sign(v.mode(v.openBound(1).GetSession(), bound))))
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, err = v.standing().RevokeStanding(t.Context(), &vaultv1.RevokeStandingRequest{StandingId: grant.NewID()})
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, err = v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{
		Statement: v.sign(v.scope(opened.GetSession(), bearer, 1)), OperationId: grant.NewID(),
	})
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, err = v.standing().MutePrincipal(t.Context(), &vaultv1.MutePrincipalRequest{Principal: "nobody", ForS: 60})
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
}

func TestMutePrincipal(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	id := v.ask(opened.GetSessionId(), "a").GetOperationId()
	theirs := v.ask(v.open(other).GetSessionId(), "a").GetOperationId()
	resp, err := v.standing().MutePrincipal(t.Context(), &vaultv1.MutePrincipalRequest{Principal: bearer, ForS: 3600, Reason: "later\n please"})
	v.must(err)
	if resp.GetDenied() != 1 || resp.GetMute().GetReason() != "later please" || resp.GetMute().GetUntil().AsTime().Sub(v.clock.Now()) != time.Hour {
		t.Errorf("%v", resp)
	}
	if o := v.operation(id); o.GetState() != refused || o.GetDecisionReason() != "later please" {
		t.Errorf("%v", o)
	}
	if o := v.operation(theirs); o.GetState() != pending {
		t.Errorf("another client's: %v", o)
	}
	_, err = v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "b"))
	if f := wantCode(t, err, callv1.Code_CODE_MUTED); f.RetryAfter != time.Hour {
		t.Errorf("again after %s", f.RetryAfter)
	}
	reading, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", "a")) // what runs by itself goes on
	v.must(err)
	if reading.GetDecision() != granted {
		t.Errorf("%v", reading)
	}
	_, err = v.standing().MutePrincipal(t.Context(), &vaultv1.MutePrincipalRequest{Principal: bearer})
	v.must(err)
	v.ask(opened.GetSessionId(), "b")
}

// Whoever holds a client's key cannot say yes to anything with it, though a human had made an operator of it by mistake.
func TestSelfApproval(t *testing.T) {
	v := newVault(t)
	own, err := ssh.NewSignerFromKey(v.clientKey)
	v.must(err)
	v.WriteTrust(trust.FileAllowedSigners, []byte(trust.FormatSigner(platformtest.Operator, own.PublicKey(), statement.Namespace)+"\n"))
	v.must(v.Trust.Reload())
	sign := func(s *statement.Statement) *callv1.HumanStatement {
		h, err := statement.Sign(s, own)
		v.must(err)
		return h
	}
	opened := v.openBound(1)
	id := v.call(opened, 1, "start_service", "a").GetOperationId()
	_, err = v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{OperationId: id, Statement: sign(v.statementFor(v.operation(id)))})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	_, err = v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: sign(v.scope(opened.GetSession(), bound, 1))})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	_, err = v.standing().ProposeDangerous(t.Context(), &vaultv1.ProposeDangerousRequest{
		Statement: sign(v.mode(opened.GetSession(), bound)),
	})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	var command *statement.Statement
	v.command("a", func(s *statement.Statement) { c := *s; command = &c })
	_, err = v.approvals().GrantCommand(t.Context(), &vaultv1.GrantCommandRequest{Statement: sign(command)})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	_, err = v.control().Halt(t.Context(), &vaultv1.HaltRequest{})
	v.must(err)
	var resumption *statement.Statement
	v.resumption(func(s *statement.Statement) { c := *s; resumption = &c })
	_, err = v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: sign(resumption)})
	wantCode(t, err, callv1.Code_CODE_DENIED)
}

// With approvals.four_eyes a human cannot say yes to what their own client asks.
func TestFourEyes(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: "+bearer+"\n", "id: "+bearer+"\n    user: "+platformtest.Operator+"\n")
	id := v.ask(v.open(bearer).GetSessionId(), "a").GetOperationId()
	v.fourEyes = true
	_, err := v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{
		OperationId: id, Statement: v.sign(v.statementFor(v.operation(id))),
	})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	v.fourEyes = false
	v.approve(id)
}
