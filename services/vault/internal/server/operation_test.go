package server

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/share"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/store"
)

func operationDigest(arguments []byte) []byte {
	d := contract.Digest(arguments)
	return d[:]
}

const (
	pending  = vaultv1.OperationState_OPERATION_STATE_PENDING
	approved = vaultv1.OperationState_OPERATION_STATE_APPROVED
	running  = vaultv1.OperationState_OPERATION_STATE_RUNNING
	done     = vaultv1.OperationState_OPERATION_STATE_DONE
	refused  = vaultv1.OperationState_OPERATION_STATE_DENIED
	expired  = vaultv1.OperationState_OPERATION_STATE_EXPIRED

	withdrawn = vaultv1.OperationState_OPERATION_STATE_WITHDRAWN
)

// What waits may be more than one message carries: as many requests as the settings let wait, each as long as a human can sign.
func TestALongListIsReadInPages(t *testing.T) {
	v := newVault(t)
	const waiting = 290
	for i := range waiting {
		v.must(v.store.Insert(t.Context(), &store.Operation{
			ID: fmt.Sprintf("%032x", i), State: pending, ToolName: "start_service", AskedAt: v.clock.Now(), ExpiresAt: v.clock.Now().Add(time.Minute),
			Arguments: []byte(`{"service_id":"` + strings.Repeat("a", 59_000) + `"}`),
		}))
	}
	seen := map[string]bool{}
	req := &vaultv1.ListOperationsRequest{Limit: 1000}
	for more := true; more; {
		list, err := v.approvals().ListOperations(t.Context(), req)
		v.must(err)
		if more = list.GetMore(); len(list.GetOperations()) == 0 || proto.Size(list) > 6<<20 {
			t.Fatalf("a page of %d operations and %d bytes", len(list.GetOperations()), proto.Size(list))
		}
		for _, o := range list.GetOperations() {
			seen[o.GetOperationId()], req.After = true, o.GetOperationId()
		}
	}
	if len(seen) != waiting {
		t.Errorf("%d operations of %d", len(seen), waiting)
	}
	req.After = strings.Repeat("f", 32)
	_, err := v.approvals().ListOperations(t.Context(), req)
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
}

func TestAuthoriseRefuses(t *testing.T) {
	v := newVault(t)
	opened, low := v.open(bearer), v.open(reader)
	altered := toolRef("start_service")
	altered.DefinitionDigest = operationDigest([]byte("another definition"))
	elsewhere := toolRef("start_service")
	elsewhere.Source = "mcp:evil"
	unknown := toolRef("start_service")
	unknown.Name = "format_disk"
	for name, c := range map[string]struct {
		req  *vaultv1.AuthoriseRequest
		rule string // denied by this rule
		code callv1.Code
	}{
		"unknown session":    {request(strings.Repeat("0", 32), "start_service", "a"), "", callv1.Code_CODE_UNAUTHENTICATED},
		"unknown tool":       {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: unknown, Arguments: arguments("a")}, "unknown-tool", 0},
		"another definition": {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: altered, Arguments: arguments("a")}, "unknown-tool", 0},
		"another source":     {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: elsewhere, Arguments: arguments("a")}, "unknown-tool", 0},
		"the vault's own":    {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: toolRef("wait_operation"), Arguments: []byte(`{}`)}, "unknown-tool", 0},
		"above the ceiling":  {request(low.GetSessionId(), "start_service", "a"), "above-the-ceiling", 0},
		"spaces":             {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: toolRef("start_service"), Arguments: []byte(`{ "service_id":"a"}`)}, "", callv1.Code_CODE_INVALID_ARGUMENT},
		"escapes":            {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: toolRef("start_service"), Arguments: []byte(`{"service_id":"\u0061"}`)}, "", callv1.Code_CODE_INVALID_ARGUMENT},
		"twice":              {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: toolRef("start_service"), Arguments: []byte(`{"service_id":"a","service_id":"b"}`)}, "", callv1.Code_CODE_INVALID_ARGUMENT},
		"missing":            {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: toolRef("start_service"), Arguments: []byte(`{}`)}, "", callv1.Code_CODE_INVALID_ARGUMENT},
		"unknown argument":   {&vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: toolRef("start_service"), Arguments: []byte(`{"confirm":true,"service_id":"a"}`)}, "", callv1.Code_CODE_INVALID_ARGUMENT},
		"injection":          {request(opened.GetSessionId(), "start_service", "a;rm -rf /"), "", callv1.Code_CODE_INVALID_ARGUMENT},
		"option":             {request(opened.GetSessionId(), "start_service", "--force"), "", callv1.Code_CODE_INVALID_ARGUMENT},
		"newline":            {request(opened.GetSessionId(), "start_service", `a\n`), "", callv1.Code_CODE_INVALID_ARGUMENT},
		"65 characters":      {request(opened.GetSessionId(), "start_service", strings.Repeat("a", 65)), "", callv1.Code_CODE_INVALID_ARGUMENT},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := v.authority().Authorise(t.Context(), c.req)
			if c.rule == "" {
				wantCode(t, err, c.code)
				return
			}
			v.must(err)
			if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED || resp.GetRule() != c.rule ||
				resp.GetOperationId() != "" || resp.GetGrant() != nil {
				t.Errorf("%v", resp)
			}
		})
	}
	if n := v.server.Queue.PendingCount(); n != 0 {
		t.Errorf("%d operations wait for what was refused", n)
	}
	actions := map[string]int{}
	for _, r := range v.audit.of(auditv1.Kind_KIND_DENIED) {
		actions[r.GetBody().GetAction()]++
	}
	if diff := cmp.Diff(map[string]int{"policy": 5, "authorise-refused": 10}, actions); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
}

func TestReadIsGrantedOnce(t *testing.T) {
	v := newVault(t)
	opened := v.open(reader)
	resp, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", "a"))
	v.must(err)
	if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_GRANTED || resp.GetGrant() == nil {
		t.Fatalf("%v", resp)
	}
	g, err := grant.Verify(resp.GetGrant(), v.Trust, v.clock.Now())
	v.must(err)
	if len(g.GetStatements()) != 0 || g.GetPrincipal() != reader || g.GetSession() != opened.GetSession() ||
		g.GetAudience() != v.ID(executor, "local").String() || string(g.GetArgumentsDigest()) != string(operationDigest(arguments("a"))) {
		t.Errorf("grant %v", g)
	}
	v.must(v.redeem(resp.GetGrant()))
	wantCode(t, v.redeem(resp.GetGrant()), callv1.Code_CODE_ALREADY_SPENT)
}

// A read's redemption waits for no audit, is told of once, and does not happen where it could not be told of.
func TestAReadIsRedeemedWithoutWaiting(t *testing.T) {
	v := newVault(t)
	opened := v.open(reader)
	ask := func(argument string) *callv1.SignedGrant {
		resp, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", argument))
		v.must(err)
		return resp.GetGrant()
	}
	first, second, third := ask("a"), ask("b"), ask("c")
	v.audit.set(func(f *fakeAudit) { f.hung = true })
	v.must(v.redeem(first))
	if told := v.audit.of(auditv1.Kind_KIND_REDEEMED); len(told) != 1 || told[0].GetTier() != optionsv1.Tier_TIER_READ {
		t.Errorf("one redemption is recorded as %v", told)
	}
	v.audit.set(func(f *fakeAudit) { f.down = true })
	wantCode(t, v.redeem(second), callv1.Code_CODE_AUDIT_UNAVAILABLE)
	v.audit.set(func(f *fakeAudit) { f.hung, f.down, f.full = false, false, true })
	wantCode(t, v.redeem(third), callv1.Code_CODE_AUDIT_UNAVAILABLE)
	v.audit.set(func(f *fakeAudit) { f.full = false })
	v.must(v.redeem(second))
	wantCode(t, v.redeem(third), callv1.Code_CODE_ALREADY_SPENT)
}

// The main job: ask, look, approve, wait, redeem, settle, and the records that tell of it.
func TestApprovedOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		opened := v.open(bearer)
		req := request(opened.GetSessionId(), "start_service", "demo-chat")
		req.Reason = "the user \x1b[1masked"
		asked, err := v.authority().Authorise(t.Context(), req)
		v.must(err)
		if asked.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING || asked.GetGrant() != nil || asked.GetRule() != "may-be-asked-for" {
			t.Fatalf("%v", asked)
		}
		id := asked.GetOperationId()
		shown := v.operation(id)
		if shown.GetState() != pending || shown.GetAgentReason() != "the user asked" || string(shown.GetArguments()) != string(arguments("demo-chat")) ||
			shown.GetTier() != optionsv1.Tier_TIER_WRITE || shown.GetAudience() != v.ID(executor, "local").String() || shown.GetEpoch() != 1 ||
			shown.GetExpiresAt().AsTime().Sub(v.clock.Now()) > operation.Life || shown.GetClientName() != "test" || shown.GetKeyBound() {
			t.Errorf("shown as %v", shown)
		}

		answer := make(chan *vaultv1.WaitOperationResponse, 1)
		go func() {
			resp, err := v.wait(opened, id, 20*time.Second)
			if err != nil {
				t.Error(err)
			}
			answer <- resp
		}()
		synctest.Wait()
		if v.operation(id).GetWaiters() == 0 {
			t.Fatal("nobody waits")
		}
		if got := v.approve(id); got.GetState() != approved || got.GetDecidedBy() != platformtest.Operator || got.GetStatement() == nil {
			t.Errorf("approved as %v", got)
		}
		resp := <-answer
		g, err := grant.Verify(resp.GetGrant(), v.Trust, v.clock.Now())
		v.must(err)
		wanted := canonicalDigest(t, subject)
		if resp.GetState() != approved || string(resp.GetArguments()) != string(arguments("demo-chat")) || g.GetOperationId() != id ||
			g.GetUse() != 1 || len(g.GetStatements()) != 1 || string(g.GetSubjectDigest()) != string(wanted) || g.GetEpoch() != 1 ||
			!g.GetExpiresAt().AsTime().Equal(v.clock.Now().Add(time.Minute)) {
			t.Errorf("grant %v", g)
		}
		verified, err := statement.Verify(g.GetStatements()[0], v.Trust.Current().AllowedSigners, v.clock.Now())
		v.must(err)
		// What the sink will check.
		v.must(verified.Covers(g, toolRef("start_service"), optionsv1.Tier_TIER_WRITE, arguments("demo-chat"), nil))

		// Another issue has another id and the same spend key.
		again, err := v.wait(opened, id, 0)
		v.must(err)
		g2, err := grant.Verify(again.GetGrant(), v.Trust, v.clock.Now())
		v.must(err)
		if g2.GetId() == g.GetId() || grant.SpendKey(g2) != grant.SpendKey(g) {
			t.Errorf("ids %s and %s, spend keys %s and %s", g.GetId(), g2.GetId(), grant.SpendKey(g), grant.SpendKey(g2))
		}
		v.must(v.redeem(resp.GetGrant()))
		if got := v.operation(id).GetState(); got != running {
			t.Errorf("state %s", got)
		}
		wantCode(t, v.redeem(again.GetGrant()), callv1.Code_CODE_ALREADY_SPENT)

		// An identical request joins what runs, and gets the same spend key.
		joined := v.ask(opened.GetSessionId(), "demo-chat")
		if !joined.GetJoined() || joined.GetOperationId() != id || joined.GetDecision() != vaultv1.AuthoriseResponse_DECISION_GRANTED {
			t.Errorf("%v", joined)
		}
		settle := &vaultv1.SettleRequest{OperationId: id, Use: 1, Ok: true}
		for range 2 {
			_, err = v.sink().Settle(t.Context(), settle)
			v.must(err)
		}
		if got := v.operation(id).GetState(); got != done {
			t.Errorf("state %s", got)
		}
		after, err := v.wait(opened, id, time.Minute)
		v.must(err)
		if after.GetState() != done || after.GetGrant() == nil {
			t.Errorf("after it was done: %v", after)
		}
		if next := v.ask(opened.GetSessionId(), "demo-chat"); next.GetJoined() || next.GetOperationId() == id ||
			next.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING {
			t.Errorf("the next identical request is no new operation: %v", next)
		}

		for kind, n := range map[auditv1.Kind]int{
			auditv1.Kind_KIND_ASKED: 3, auditv1.Kind_KIND_APPROVED: 1, auditv1.Kind_KIND_GRANTED: 4, auditv1.Kind_KIND_REDEEMED: 1,
		} {
			if got := len(v.audit.of(kind)); got != n {
				t.Errorf("%d records of %s, want %d", got, kind, n)
			}
		}
		approval := v.audit.of(auditv1.Kind_KIND_APPROVED)[0]
		if !proto.Equal(approval.GetBody().GetStatement(), g.GetStatements()[0]) || !approval.GetBody().GetConfirmed() || approval.GetOperationId() != id {
			t.Errorf("approval recorded as %v", approval)
		}
		if first := v.audit.of(auditv1.Kind_KIND_ASKED)[0]; first.GetBody().GetArguments() != string(arguments("demo-chat")) {
			t.Errorf("arguments recorded as %q", first.GetBody().GetArguments())
		}
	})
}

func canonicalDigest(t *testing.T, s string) []byte {
	t.Helper()
	d, err := canonical.ParseDigest(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestApproveRefuses(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	id := v.ask(opened.GetSessionId(), "a").GetOperationId()
	theirs := v.ask(v.open(other).GetSessionId(), "b").GetOperationId()
	stranger := platformtest.New(t)
	past := v.clock.Now().Add(-time.Hour)
	for name, c := range map[string]struct {
		change func(*statement.Statement)
		sign   func(*statement.Statement) *callv1.HumanStatement
	}{
		"a stranger's key": {sign: func(s *statement.Statement) *callv1.HumanStatement {
			h, err := statement.Sign(s, stranger.OperatorSigner)
			v.must(err)
			return h
		}},
		"altered after signing": {sign: func(s *statement.Statement) *callv1.HumanStatement {
			h := v.sign(s)
			h.Statement = []byte(strings.Replace(string(h.Statement), platformtest.Operator, "mallory", 1))
			return h
		}},
		"no signature": {sign: func(s *statement.Statement) *callv1.HumanStatement {
			h := v.sign(s)
			h.Signature = []byte("x")
			return h
		}},
		"another operator":   {change: func(s *statement.Statement) { s.Operator = "mallory" }},
		"another operation":  {change: func(s *statement.Statement) { s.Operation = theirs }},
		"another principal":  {change: func(s *statement.Statement) { s.Principal = other }},
		"another session":    {change: func(s *statement.Statement) { s.Session = "s-other" }},
		"another channel":    {change: func(s *statement.Statement) { s.Channel = "api" }},
		"another audience":   {change: func(s *statement.Statement) { s.Audience = v.ID(executor, "other").String() }},
		"another epoch":      {change: func(s *statement.Statement) { s.Epoch = 2 }},
		"another tier":       {change: func(s *statement.Statement) { s.Tier = "READ" }},
		"another tool":       {change: func(s *statement.Statement) { tool := statement.ToolOf(toolRef("stop_service")); s.Tool = &tool }},
		"another definition": {change: func(s *statement.Statement) { s.Tool.DefinitionDigest = subject }},
		"other arguments": {change: func(s *statement.Statement) {
			s.Arguments = arguments("b")
			s.ArgumentsDigest = canonical.FormatDigest(operationDigest(s.Arguments))
		}},
		"expired": {change: func(s *statement.Statement) {
			s.IssuedAt, s.NotBefore = statement.FormatTime(past), statement.FormatTime(past)
			s.ExpiresAt = statement.FormatTime(past.Add(10 * time.Minute))
		}},
		"not yet": {change: func(s *statement.Statement) {
			later := v.clock.Now().Add(10 * time.Minute)
			s.IssuedAt, s.NotBefore = statement.FormatTime(later), statement.FormatTime(later)
		}},
		"a resume": {change: func(s *statement.Statement) {
			*s = statement.Statement{
				Type: s.Type, Version: s.Version, Kind: statement.KindResume, ID: s.ID, Operator: s.Operator, IssuedAt: s.IssuedAt,
				NotBefore: s.NotBefore, ExpiresAt: statement.FormatTime(v.clock.Now().Add(5 * time.Minute)), Epoch: s.Epoch, Audience: s.Audience,
			}
		}},
		"a scope": {change: func(s *statement.Statement) {
			*s = statement.Statement{
				Type: s.Type, Version: s.Version, Kind: statement.KindScope, ID: s.ID, Operator: s.Operator, IssuedAt: s.IssuedAt,
				NotBefore: s.NotBefore, ExpiresAt: s.ExpiresAt, Epoch: s.Epoch, Audience: s.Audience, Principal: s.Principal,
				Session: s.Session, Channel: s.Channel, Tools: []statement.Tool{*s.Tool}, Free: []string{"/service_id"},
				SubjectDigests: []string{subject}, Uses: 10,
			}
		}},
		"a command": {change: func(s *statement.Statement) {
			s.Kind, s.Principal = statement.KindCommand, statement.CommandPrincipal(s.Operator)
			s.ExpiresAt = statement.FormatTime(v.clock.Now().Add(5 * time.Minute))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := v.statementFor(v.operation(id))
			if c.change != nil {
				c.change(s)
			}
			sign := c.sign
			if sign == nil {
				sign = v.sign
			}
			_, err := v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{OperationId: id, Statement: sign(s)})
			f := wantCode(t, err, callv1.Code_CODE_DENIED)
			if f.Message != "the statement does not approve this operation" {
				t.Errorf("message %q", f.Message)
			}
		})
	}
	if got := v.operation(id).GetState(); got != pending {
		t.Errorf("after all that the operation is %s", got)
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_APPROVED)); n != 0 {
		t.Errorf("%d approvals recorded", n)
	}
	_, err := v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{
		OperationId: strings.Repeat("0", 32), Statement: v.sign(v.statementFor(v.operation(id))),
	})
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, err = v.approvals().DenyOperation(t.Context(), &vaultv1.DenyOperationRequest{OperationId: strings.Repeat("0", 32)})
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)

	v.approve(id)
	_, err = v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{
		OperationId: id, Statement: v.sign(v.statementFor(v.operation(id))),
	})
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
}

// An approval that nobody has come for is taken back by a denial, durably: the grant that is out is worth nothing, no other is given, and
// its agent is told no. What has begun is not denied, nor what runs without an approval of its own.
func TestAnApprovalIsTakenBack(t *testing.T) {
	v := newVault(t)
	deny := func(id string) (*vaultv1.Operation, error) {
		resp, err := v.approvals().DenyOperation(t.Context(), &vaultv1.DenyOperationRequest{OperationId: id, Reason: "not now"})
		return resp.GetOperation(), err
	}
	opened, id, out := v.granted(bearer, "a")
	o, err := deny(id)
	v.must(err)
	if o.GetState() != refused || o.GetDecisionReason() != "not now" || o.GetStatement() == nil {
		t.Errorf("%v", o)
	}
	recorded := v.audit.of(auditv1.Kind_KIND_DENIED)
	if b := recorded[len(recorded)-1].GetBody(); b.GetAction() != "deny" || b.GetSummary() != "a human took the approval back" || b.GetDetails()["approved_by"] != platformtest.Operator {
		t.Errorf("recorded as %v", b)
	}
	_, err = v.approvals().ClaimOperation(t.Context(), &vaultv1.ClaimOperationRequest{OperationId: id})
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	if waited, err := v.wait(opened, id, time.Minute); err != nil || waited.GetState() != refused || waited.GetReason() != "not now" || waited.GetGrant() != nil {
		t.Errorf("%v, %v", waited, err)
	}
	for range 2 {
		if f := wantCode(t, v.redeem(out), callv1.Code_CODE_CONFLICT); f.Message != "this operation was denied already" {
			t.Error(f)
		}
		v.restart()
	}

	_, id, out = v.granted(bearer, "b")
	v.must(v.redeem(out))
	_, err = deny(id)
	if f := wantCode(t, err, callv1.Code_CODE_CONFLICT); f.Message != "this operation is running already" {
		t.Error(f)
	}
	session := v.openBound(1)
	id = v.call(session, 1, "start_service", "c").GetOperationId()
	_, err = v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(session.GetSession(), bound, 5)), OperationId: id})
	v.must(err)
	_, err = deny(id)
	if f := wantCode(t, err, callv1.Code_CODE_CONFLICT); !strings.Contains(f.Message, "no approval of its own") {
		t.Error(f)
	}
}

func TestDeny(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	id := v.ask(opened.GetSessionId(), "a").GetOperationId()
	_, err := v.approvals().ClaimOperation(t.Context(), &vaultv1.ClaimOperationRequest{OperationId: id})
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	v.audit.set(func(f *fakeAudit) { f.down, f.full = true, true }) // refusing is always possible
	resp, err := v.approvals().DenyOperation(t.Context(), &vaultv1.DenyOperationRequest{OperationId: id, Reason: "not\x1b[2J now"})
	v.must(err)
	if o := resp.GetOperation(); o.GetState() != refused || o.GetDecisionReason() != "not now" || o.GetDecidedBy() != v.ID(operator, platformtest.Operator).String() {
		t.Errorf("%v", o)
	}
	_, err = v.wait(opened, id, time.Minute)
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE) // telling somebody of it is a read like any other
	v.audit.set(func(f *fakeAudit) { f.full = false })
	waited, err := v.wait(opened, id, time.Minute)
	v.must(err)
	if waited.GetState() != refused || waited.GetReason() != "not now" || waited.GetGrant() != nil {
		t.Errorf("%v", waited)
	}
	_, err = v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{
		OperationId: id, Statement: v.sign(v.statementFor(v.operation(id))),
	})
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	// Each session of the client is told so, as where it waits; another client is not.
	for _, session := range []*vaultv1.OpenSessionResponse{opened, v.open(bearer)} {
		_, err = v.withdraw(session, id)
		if f := wantCode(t, err, callv1.Code_CODE_CONFLICT); f.Message != "this operation was denied already" {
			t.Error(f)
		}
	}
	_, err = v.withdraw(v.open(other), id)
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
}

// An agent takes back what its own session asked for, and nothing else: another session's operation, and another client's, are answered
// as one that never was. What is taken back cannot be approved, and a human sees that it was.
func TestASessionTakesBackItsOwnRequestAlone(t *testing.T) {
	v := newVault(t)
	mine, sibling, theirs := v.open(bearer), v.open(bearer), v.open(other)
	id := v.ask(mine.GetSessionId(), "a").GetOperationId()
	_, err := v.withdraw(mine, strings.Repeat("0", 32))
	unknown := wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	for name, stranger := range map[string]*vaultv1.OpenSessionResponse{"another session of the client": sibling, "another client": theirs} {
		_, err := v.withdraw(stranger, id)
		if f := wantCode(t, err, callv1.Code_CODE_NOT_FOUND); f.Message != unknown.Message || f.Retryable != unknown.Retryable || f.Field != unknown.Field {
			t.Errorf("%s: %v, of what never was: %v", name, f, unknown)
		}
	}
	for _, r := range v.audit.of(auditv1.Kind_KIND_DENIED) {
		if r.GetBody().GetAction() != "operation-not-theirs" || r.GetBody().GetDetails()["method"] != vaultv1.ToolService_WithdrawOperation_FullMethodName {
			t.Errorf("a probe is recorded as %v", r)
		}
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_DENIED)); n != 3 {
		t.Errorf("%d probes of 3 are recorded", n)
	}
	waiting := v.operation(id)
	if waiting.GetState() != pending {
		t.Fatalf("a stranger took it back: %v", waiting)
	}
	got, err := v.withdraw(mine, id)
	v.must(err)
	if got.GetState() != withdrawn {
		t.Errorf("answered with %v", got)
	}
	_, err = v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{OperationId: id, Statement: v.sign(v.statementFor(waiting))})
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	_, err = v.withdraw(mine, id)
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	listed, err := v.approvals().ListOperations(t.Context(), &vaultv1.ListOperationsRequest{States: []vaultv1.OperationState{withdrawn}})
	v.must(err)
	if all := listed.GetOperations(); len(all) != 1 || all[0].GetOperationId() != id || v.server.Queue.PendingCount() != 0 {
		t.Errorf("operators see %v", all)
	}
	if waited, err := v.wait(mine, id, time.Second); err != nil || waited.GetState() != withdrawn || waited.GetGrant() != nil {
		t.Errorf("whoever waits gets %v, %v", waited, err)
	}
	if records := v.audit.of(auditv1.Kind_KIND_WITHDRAWN); len(records) != 1 || records[0].GetOperationId() != id || records[0].GetBody().GetSession() != mine.GetSession() {
		t.Errorf("recorded: %v", records)
	}
	// What a human approved is no longer the agent's to end, and asking anew is another request.
	again := v.ask(mine.GetSessionId(), "a")
	if again.GetOperationId() == id || again.GetJoined() {
		t.Errorf("asking again joined what was taken back: %v", again)
	}
	v.approve(again.GetOperationId())
	_, err = v.withdraw(mine, again.GetOperationId())
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
}

// What two sessions of a client asked for is taken back for the one that says so; it ends with the last that is there. A session that
// is over asks for nothing any more.
func TestASharedRequestOutlivesOneWithdrawal(t *testing.T) {
	v := newVault(t)
	mine, sibling, stranger := v.open(bearer), v.open(bearer), v.open(bearer)
	ask := func() string {
		t.Helper()
		id := v.ask(mine.GetSessionId(), "a").GetOperationId()
		if joined := v.ask(sibling.GetSessionId(), "a"); joined.GetOperationId() != id {
			t.Fatalf("the same request of another session: %v", joined)
		}
		return id
	}
	withdraw := func(session *vaultv1.OpenSessionResponse, id string, want vaultv1.OperationState) {
		t.Helper()
		if got, err := v.withdraw(session, id); err != nil || got.GetState() != want {
			t.Fatalf("it is %v, %v; want %v", got, err, want)
		}
	}
	for name, order := range map[string][]*vaultv1.OpenSessionResponse{"first the one that asked first": {mine, sibling}, "first the other": {sibling, mine}} {
		id := ask()
		withdraw(order[0], id, pending)
		_, err := v.withdraw(order[0], id)
		wantCode(t, err, callv1.Code_CODE_CONFLICT)
		_, err = v.withdraw(stranger, id)
		wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
		if o := v.operation(id); o.GetState() != pending {
			t.Fatalf("%s: %v", name, o)
		}
		withdraw(order[1], id, withdrawn)
		var told []string
		for _, r := range append(v.audit.of(auditv1.Kind_KIND_ASKED), v.audit.of(auditv1.Kind_KIND_WITHDRAWN)...) {
			if r.GetOperationId() == id && strings.HasPrefix(r.GetBody().GetAction(), "withdraw") {
				told = append(told, r.GetBody().GetAction()+" "+r.GetBody().GetSession())
			}
		}
		if want := []string{"withdraw-part " + order[0].GetSession(), "withdraw " + order[1].GetSession()}; !slices.Equal(told, want) {
			t.Errorf("%s: recorded %q, want %q", name, told, want)
		}
	}
	id := ask()
	withdraw(mine, id, pending)
	v.approve(id) // it still is what the other session wants
	if waited, err := v.wait(sibling, id, time.Second); err != nil || waited.GetGrant() == nil {
		t.Errorf("the other session gets %v, %v", waited, err)
	}
	other := v.ask(mine.GetSessionId(), "b").GetOperationId()
	v.ask(sibling.GetSessionId(), "b")
	_, err := v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: mine.GetSessionId()})
	v.must(err)
	withdraw(sibling, other, withdrawn)
}

// What nobody asks for any more who is there, as after a restart of the vault, any session of the agent that asked may take back, and no other.
func TestADesertedRequestIsTakenBack(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: bearer\n", "id: bearer\n    agents: [planner]\n")
	as := func(client, agent string) *vaultv1.OpenSessionResponse {
		t.Helper()
		opened, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(client), Agent: agent})
		v.must(err)
		return opened
	}
	mine, leaving := v.open(bearer), v.open(bearer)
	id := v.ask(mine.GetSessionId(), "a").GetOperationId()
	v.ask(leaving.GetSessionId(), "a")
	if got, err := v.withdraw(mine, id); err != nil || got.GetState() != pending {
		t.Fatalf("%v, %v", got, err)
	}
	_, err := v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: leaving.GetSessionId()})
	v.must(err)
	if got, err := v.withdraw(mine, id); err != nil || got.GetState() != withdrawn {
		t.Errorf("when the other left: %v, %v", got, err)
	}
	id = v.ask(mine.GetSessionId(), "a").GetOperationId()
	v.restart()
	for name, stranger := range map[string]*vaultv1.OpenSessionResponse{"another client": v.open(other), "another agent": as(bearer, "planner")} {
		_, err := v.withdraw(stranger, id)
		if wantCode(t, err, callv1.Code_CODE_NOT_FOUND); v.operation(id).GetState() != pending {
			t.Fatalf("%s took it back", name)
		}
	}
	if got, err := v.withdraw(v.open(bearer), id); err != nil || got.GetState() != withdrawn {
		t.Errorf("after a restart: %v, %v", got, err)
	}
}

// A session whose joining could not be recorded hears of an error and asks for nothing: it does not keep waiting what the other took back.
func TestWhatCouldNotBeRecordedIsNoJoining(t *testing.T) {
	v := newVault(t)
	mine, sibling := v.open(bearer), v.open(bearer)
	id := v.ask(mine.GetSessionId(), "a").GetOperationId()
	v.audit.set(func(f *fakeAudit) { f.full = true })
	_, err := v.authority().Authorise(t.Context(), request(sibling.GetSessionId(), "start_service", "a"))
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	v.audit.set(func(f *fakeAudit) { f.full = false })
	if o := v.operation(id); o.GetJoined() != 0 {
		t.Errorf("%d joined", o.GetJoined())
	}
	if got, err := v.withdraw(mine, id); err != nil || got.GetState() != withdrawn {
		t.Errorf("taken back, it is %v, %v", got, err)
	}
}

func TestCoalescingAndCaps(t *testing.T) {
	v := newVault(t, func(_ *Config, c *operation.Config) { c.PendingCap = 7 })
	one, two, theirs := v.open(bearer), v.open(bearer), v.open(other)
	first := v.ask(one.GetSessionId(), "s0")
	if joined := v.ask(two.GetSessionId(), "s0"); !joined.GetJoined() || joined.GetOperationId() != first.GetOperationId() {
		t.Errorf("the same request of another session: %v", joined)
	}
	if n := v.operation(first.GetOperationId()).GetJoined(); n != 1 {
		t.Errorf("joined %d", n)
	}
	if alone := v.ask(theirs.GetSessionId(), "s0"); alone.GetJoined() {
		t.Errorf("joined another principal's operation: %v", alone)
	}
	stop, err := v.authority().Authorise(t.Context(), request(one.GetSessionId(), "stop_service", "s0"))
	v.must(err)
	if stop.GetJoined() {
		t.Error("stopping joined starting")
	}
	for i := range 3 {
		v.ask(one.GetSessionId(), fmt.Sprintf("s%d", i+1))
	}
	_, err = v.authority().Authorise(t.Context(), request(two.GetSessionId(), "start_service", "s9"))
	wantCode(t, err, callv1.Code_CODE_TOO_MANY_PENDING)
	v.ask(one.GetSessionId(), "s1") // joining is no new one
	v.ask(theirs.GetSessionId(), "s1")
	_, err = v.authority().Authorise(t.Context(), request(theirs.GetSessionId(), "start_service", "s2"))
	wantCode(t, err, callv1.Code_CODE_TOO_MANY_PENDING) // 7 in all
	if n := v.server.Queue.PendingCount(); n != 7 {
		t.Errorf("%d wait", n)
	}
	low := v.open(small)
	_, err = v.authority().Authorise(t.Context(), request(low.GetSessionId(), "start_service", "s0"))
	wantCode(t, err, callv1.Code_CODE_TOO_MANY_PENDING)
}

// A call that may only join asks no human anew, whatever would let it run; while an identical one waits, it joins that.
func TestJoiningOnly(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	only := request(opened.GetSessionId(), "start_service", "a")
	only.JoinOnly = true
	_, err := v.authority().Authorise(t.Context(), only)
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	if n := v.server.Queue.PendingCount(); n != 0 {
		t.Errorf("%d wait", n)
	}
	first := v.ask(opened.GetSessionId(), "a")
	joined, err := v.authority().Authorise(t.Context(), only)
	v.must(err)
	if !joined.GetJoined() || joined.GetOperationId() != first.GetOperationId() || v.server.Queue.PendingCount() != 1 {
		t.Errorf("joined %v", joined)
	}

	signer := v.openBound(1)
	asked := v.call(signer, 1, "start_service", "a")
	_, err = v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(signer.GetSession(), bound, 2)), OperationId: asked.GetOperationId()})
	v.must(err)
	proved := v.proved(signer, 2, "start_service", arguments("b"))
	proved.JoinOnly = true
	_, err = v.authority().Authorise(t.Context(), proved)
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	if covered := v.call(signer, 3, "start_service", "b"); covered.GetDecision() != granted {
		t.Errorf("the use of the scope was not given back: %v", covered)
	}
}

// Identical requests at one moment are one operation, and different ones at one moment keep the cap.
func TestConcurrentAsking(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	client := v.authority()
	var same sync.Map
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			resp, err := client.Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "same"))
			if err != nil {
				t.Error(err)
				return
			}
			same.Store(resp.GetOperationId(), true)
		})
	}
	wg.Wait()
	n := 0
	same.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d operations of one request", n)
	}
	var accepted atomic.Int32
	for i := range 50 {
		wg.Go(func() {
			_, err := client.Authorise(t.Context(), request(opened.GetSessionId(), "start_service", fmt.Sprintf("s%d", i)))
			if err == nil {
				accepted.Add(1)
			}
		})
	}
	wg.Wait()
	if accepted.Load() != 4 || v.server.Queue.PendingCount() != 5 {
		t.Errorf("%d accepted, %d wait; want 4 and 5", accepted.Load(), v.server.Queue.PendingCount())
	}
}

func TestRedeemRefuses(t *testing.T) {
	v := newVault(t)
	_, _, good := v.granted(bearer, "a")
	g, err := grant.Verify(good, v.Trust, v.clock.Now())
	v.must(err)
	forgedKey, err := grant.GenerateKey("test")
	v.must(err)
	sign := func(key grant.Key, change func(*callv1.Grant)) *callv1.SignedGrant {
		c := proto.CloneOf(g)
		change(c)
		signed, err := grant.Sign(key, c)
		v.must(err)
		return signed
	}
	flipped := proto.CloneOf(good)
	flipped.Payload[len(flipped.Payload)-1] ^= 1
	for name, c := range map[string]struct {
		grant *callv1.SignedGrant
		code  callv1.Code
	}{
		"forged":            {sign(forgedKey, func(*callv1.Grant) {}), callv1.Code_CODE_DENIED},
		"altered":           {flipped, callv1.Code_CODE_DENIED},
		"unknown kid":       {&callv1.SignedGrant{Payload: good.GetPayload(), Kid: "other", Signature: good.GetSignature()}, callv1.Code_CODE_DENIED},
		"another audience":  {sign(v.GrantKey, func(g *callv1.Grant) { g.Audience = v.ID(executor, "other").String() }), callv1.Code_CODE_DENIED},
		"unknown operation": {sign(v.GrantKey, func(g *callv1.Grant) { g.OperationId = grant.NewID() }), callv1.Code_CODE_DENIED},
		"another epoch":     {sign(v.GrantKey, func(g *callv1.Grant) { g.Epoch = 2 }), callv1.Code_CODE_EXPIRED},
		"not yet": {sign(v.GrantKey, func(g *callv1.Grant) {
			g.NotBefore = timestamppb.New(v.clock.Now().Add(time.Second))
		}), callv1.Code_CODE_EXPIRED},
		"expired": {sign(v.GrantKey, func(g *callv1.Grant) {
			g.IssuedAt = timestamppb.New(v.clock.Now().Add(-time.Minute))
			g.NotBefore, g.ExpiresAt = g.IssuedAt, timestamppb.New(v.clock.Now())
		}), callv1.Code_CODE_EXPIRED},
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, v.redeem(c.grant), c.code) })
	}
	t.Run("another sink", func(t *testing.T) {
		for _, conn := range []vaultv1.RedeemServiceClient{
			vaultv1.NewRedeemServiceClient(v.as(executor, "other")), vaultv1.NewRedeemServiceClient(v.as(egress, "main")),
		} {
			_, err := conn.Redeem(t.Context(), &vaultv1.RedeemRequest{Grant: good})
			wantCode(t, err, callv1.Code_CODE_DENIED)
		}
	})
	if n := len(v.audit.of(auditv1.Kind_KIND_REDEEMED)); n != 0 {
		t.Errorf("%d redemptions recorded", n)
	}
	v.must(v.redeem(good))
	_, err = vaultv1.NewRedeemServiceClient(v.as(executor, "other")).Settle(t.Context(), &vaultv1.SettleRequest{OperationId: g.GetOperationId(), Use: 1})
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
}

// Where the state cannot say whether a grant was spent, or what its operation is, nothing is redeemed, and no record says that it was.
func TestStateThatCannotBeReadRedeemsNothing(t *testing.T) {
	for _, table := range []string{"spent", "operations"} {
		v := newVault(t)
		resp, err := v.authority().Authorise(t.Context(), request(v.open(reader).GetSessionId(), "service_info", "a"))
		v.must(err)
		db, err := sql.Open("sqlite", filepath.Join(v.Dir, "vault.db"))
		v.must(err)
		_, err = db.ExecContext(t.Context(), "ALTER TABLE "+table+" RENAME TO away")
		v.must(errors.Join(err, db.Close()))
		wantCode(t, v.redeem(resp.GetGrant()), callv1.Code_CODE_INTERNAL)
		if n := len(v.audit.of(auditv1.Kind_KIND_REDEEMED)); n != 0 {
			t.Errorf("without %s %d redemptions are recorded", table, n)
		}
	}
}

func TestThousandParallelRedemptions(t *testing.T) {
	v := newVault(t)
	_, id, g := v.granted(bearer, "a")
	client := v.sink()
	var ok, spent atomic.Int32
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := client.Redeem(ctx, &vaultv1.RedeemRequest{Grant: g})
			switch {
			case err == nil:
				ok.Add(1)
			case fault.Is(err, callv1.Code_CODE_ALREADY_SPENT):
				spent.Add(1)
			case fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE), fault.Is(err, callv1.Code_CODE_TIMEOUT):
				// Whoever waited too long for the others on a busy machine is told that it may not act.
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ok.Load() != 1 {
		t.Errorf("%d redeemed, %d were told that it was spent", ok.Load(), spent.Load())
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_REDEEMED)); n != 1 {
		t.Errorf("%d redemptions recorded", n)
	}
	v.restart()
	wantCode(t, v.redeem(g), callv1.Code_CODE_ALREADY_SPENT)
	if got := v.operation(id).GetState(); got != running {
		t.Errorf("after a restart the operation is %s", got)
	}
}

func TestExpiry(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	waiting := v.ask(opened.GetSessionId(), "a").GetOperationId()
	late := v.sign(v.statementFor(v.operation(waiting)))
	unused := v.ask(opened.GetSessionId(), "b").GetOperationId()
	v.approve(unused)
	lost := v.ask(opened.GetSessionId(), "c").GetOperationId()
	v.approve(lost)
	resp, err := v.wait(opened, lost, 0)
	v.must(err)
	v.must(v.redeem(resp.GetGrant()))

	v.clock.advance(operation.JoinRunning - time.Second)
	if joined := v.ask(opened.GetSessionId(), "c"); !joined.GetJoined() {
		t.Errorf("not joined to what runs: %v", joined)
	}
	v.clock.advance(2 * time.Second)
	if joined := v.ask(opened.GetSessionId(), "c"); joined.GetJoined() {
		t.Errorf("still joined to what nobody settled: %v", joined)
	}
	v.clock.advance(operation.Life - operation.JoinRunning)
	opened = v.open(bearer) // permits are over too
	for _, id := range []string{waiting, unused} {
		resp, err := v.wait(opened, id, time.Minute)
		v.must(err)
		if resp.GetState() != expired || resp.GetGrant() != nil {
			t.Errorf("before the sweep %v", resp)
		}
		_, err = v.approvals().ClaimOperation(t.Context(), &vaultv1.ClaimOperationRequest{OperationId: id})
		if err == nil {
			t.Error("claimed what has expired")
		}
	}
	_, err = v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{
		OperationId: waiting, Statement: late,
	})
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	v.must(v.server.Sweep(t.Context()))
	for _, id := range []string{waiting, unused} {
		if got := v.operation(id).GetState(); got != expired {
			t.Errorf("after the sweep %s", got)
		}
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_EXPIRED)); n != 2 {
		t.Errorf("%d recorded as expired, want 2", n)
	}
	if again := v.ask(opened.GetSessionId(), "a"); again.GetJoined() {
		t.Errorf("joined what has expired: %v", again)
	}
	v.clock.advance(operation.Kept + time.Hour)
	v.must(v.server.Sweep(t.Context()))
	v.must(v.server.Queue.Prune(t.Context()))
	list, err := v.approvals().ListOperations(t.Context(), &vaultv1.ListOperationsRequest{States: []vaultv1.OperationState{1, 2, 3, 4, 5, 6}})
	v.must(err)
	if n := len(list.GetOperations()); n != 0 {
		t.Errorf("%d operations are remembered after %s", n, operation.Kept)
	}
}

// An operation that stands elsewhere in the store, since the answer to a change of it was lost, keeps no other one from expiring.
func TestOneLostAnswerKeepsNothingFromExpiring(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	lost, approvedUnheard, other := v.ask(opened.GetSessionId(), "a").GetOperationId(), v.ask(opened.GetSessionId(), "b").GetOperationId(),
		v.ask(opened.GetSessionId(), "c").GetOperationId()
	v.must(v.store.End(t.Context(), pending, &store.Operation{ID: lost, State: refused}))
	o, err := v.store.Operation(t.Context(), approvedUnheard)
	v.must(err)
	v.must(v.store.Approve(t.Context(), o, nil))
	v.clock.advance(operation.Life)
	for range 2 {
		v.must(v.server.Sweep(t.Context()))
	}
	for id, want := range map[string]vaultv1.OperationState{lost: refused, approvedUnheard: expired, other: expired} {
		if o, err := v.store.Operation(t.Context(), id); err != nil || o.State != want {
			t.Errorf("it is %v, %v; want %s", o, err, want)
		}
	}
	if n := v.server.Queue.PendingCount(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

// Calls that run without an approval count against their bound while they are recorded: none slip past it together.
func TestCallsAtOnceKeepTheBoundOfWhatRuns(t *testing.T) {
	const most, more = 64, 6
	v := newVault(t)
	opened := v.openBound(1)
	gate, entered, ended := make(chan struct{}), make(chan struct{}, most+more), make(chan error, most+more)
	v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
	for i := range most + more {
		raw, tool := arguments(fmt.Sprintf("s%d", i)), toolRef("start_service")
		known, _ := contract.Lookup(tool.GetName())
		decoded, err := known.Decode(raw)
		v.must(err)
		go func() {
			_, _, err := v.server.Queue.Run(t.Context(), operation.Request{Rule: "unattended", Arguments: decoded, Operation: store.Operation{
				Principal: bound, Session: opened.GetSession(), Channel: callv1.Channel_CHANNEL_CLI, KeyBound: true, ToolName: tool.GetName(),
				ToolSource: tool.GetSource(), ToolDigest: tool.GetDefinitionDigest(), Tier: optionsv1.Tier_TIER_WRITE, Arguments: raw,
				ArgumentsDigest: operationDigest(raw), Audience: v.ID(executor, "local").String(),
			}}, nil, false)
			ended <- err
		}()
	}
	recording := 0
	for range most + more {
		select {
		case <-entered:
			recording++
		case err := <-ended:
			wantCode(t, err, callv1.Code_CODE_TOO_MANY_PENDING)
		}
	}
	close(gate)
	if recording != most {
		t.Errorf("%d run at once", recording)
	}
	for range recording {
		v.must(<-ended)
	}
}

// A grant that was issued in time is worth nothing once the approval is over.
func TestApprovalEndsBetweenIssueAndRedemption(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	id := v.ask(opened.GetSessionId(), "a").GetOperationId()
	v.approve(id)
	v.clock.advance(operation.Life - 10*time.Second)
	resp, err := v.approvals().ClaimOperation(t.Context(), &vaultv1.ClaimOperationRequest{OperationId: id})
	v.must(err)
	v.clock.advance(20 * time.Second)
	wantCode(t, v.redeem(resp.GetGrant()), callv1.Code_CODE_EXPIRED)
	v.must(v.server.Sweep(t.Context()))
	wantCode(t, v.redeem(resp.GetGrant()), callv1.Code_CODE_EXPIRED)
}

// A client that was shut out gets no grant that it waits for, redeems none that it has, and leaves nothing queued.
func TestClientThatIsGone(t *testing.T) {
	for name, leave := range map[string]func(*vault){
		"revoked":       func(v *vault) { v.revoke(bearer) },
		"token changed": func(v *vault) { v.changeToken(bearer) },
	} {
		t.Run("while its call is held, "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVault(t)
				opened := v.open(bearer)
				id := v.ask(opened.GetSessionId(), "a").GetOperationId()
				ended := make(chan error, 1)
				go func() {
					_, err := v.wait(opened, id, 20*time.Second)
					ended <- err
				}()
				synctest.Wait()
				if v.operation(id).GetWaiters() == 0 {
					t.Fatal("nobody waits")
				}
				leave(v)
				v.approve(id) // a human who did not know
				wantCode(t, <-ended, callv1.Code_CODE_DENIED)
				_, err := v.wait(opened, id, 0)
				wantCode(t, err, callv1.Code_CODE_DENIED)
				if n := len(v.audit.of(auditv1.Kind_KIND_GRANTED)); n != 0 {
					t.Errorf("%d grants were issued", n)
				}
			})
		})
	}
	t.Run("with a grant in hand", func(t *testing.T) {
		v := newVault(t)
		_, _, g := v.granted(bearer, "a")
		look := v.open(bearer)
		read, err := v.authority().Authorise(t.Context(), request(look.GetSessionId(), "service_info", "a"))
		v.must(err)
		v.revoke(bearer)
		wantCode(t, v.redeem(g), callv1.Code_CODE_DENIED)
		wantCode(t, v.redeem(read.GetGrant()), callv1.Code_CODE_DENIED)
		if n := len(v.audit.of(auditv1.Kind_KIND_REDEEMED)); n != 0 {
			t.Errorf("%d redemptions recorded", n)
		}
	})
	t.Run("with operations in the queue", func(t *testing.T) {
		v := newVault(t)
		opened, others := v.open(bearer), v.open(other)
		waiting := v.ask(opened.GetSessionId(), "a").GetOperationId()
		unused := v.ask(opened.GetSessionId(), "b").GetOperationId()
		v.approve(unused)
		runs := v.ask(opened.GetSessionId(), "c").GetOperationId()
		v.approve(runs)
		resp, err := v.wait(opened, runs, 0)
		v.must(err)
		v.must(v.redeem(resp.GetGrant()))
		kept := v.ask(others.GetSessionId(), "a").GetOperationId()
		command, err := v.approvals().GrantCommand(t.Context(), &vaultv1.GrantCommandRequest{Statement: v.command("d", func(*statement.Statement) {})})
		v.must(err)

		v.revoke(bearer)
		_, err = v.approvals().ClaimOperation(t.Context(), &vaultv1.ClaimOperationRequest{OperationId: unused})
		wantCode(t, err, callv1.Code_CODE_DENIED)
		v.must(v.server.Sweep(t.Context()))
		want := map[string]vaultv1.OperationState{
			waiting: expired, unused: expired, runs: running, kept: pending, command.GetOperationId(): approved,
		}
		for id, state := range want {
			if got := v.operation(id); got.GetState() != state {
				t.Errorf("operation of %s is %s, want %s", got.GetPrincipal(), got.GetState(), state)
			}
		}
		for _, id := range []string{waiting, unused} {
			if got := v.operation(id).GetDecisionReason(); got != "the client that asked for it is not let in any more" {
				t.Errorf("the reason is %q", got)
			}
		}
		if n := len(v.audit.of(auditv1.Kind_KIND_EXPIRED)); n != 2 {
			t.Errorf("%d recorded as expired, want 2", n)
		}
		// What an operator signed does not hang on any client.
		v.must(v.redeem(command.GetGrant()))
	})
}

// A clock that is set back prolongs nothing that waits, neither in the process that heard the request nor in the next.
func TestASetBackClockProlongsNoRequest(t *testing.T) {
	v := newVault(t)
	now := time.Now()
	v.clock.now = now
	waiting, agreed := v.ask(v.open(bearer).GetSessionId(), "a").GetOperationId(), v.ask(v.open(bearer).GetSessionId(), "b").GetOperationId()
	v.approve(agreed)
	v.clock.now = platformtest.Suspended(now.Add(operation.Life), -time.Hour)
	if _, err := v.wait(v.open(bearer), agreed, time.Second); err != nil {
		t.Errorf("its asker hears %v", err)
	}
	over := func(ids ...string) {
		t.Helper()
		v.must(v.server.Sweep(t.Context()))
		for _, id := range ids {
			if o := v.operation(id); o.GetState() != expired {
				t.Errorf("it is %s", o.GetState())
			}
		}
	}
	over(waiting, agreed)
	v.clock.now = now.Add(24 * time.Hour).Round(0)
	ahead := v.ask(v.open(bearer).GetSessionId(), "a").GetOperationId()
	v.clock.now = now.Add(time.Hour).Round(0)
	v.restart()
	over(ahead)
	if n := v.server.Queue.PendingCount(); n != 0 {
		t.Errorf("%d wait", n)
	}
}

func TestRestartKeepsOperations(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	waiting := v.ask(opened.GetSessionId(), "a").GetOperationId()
	agreed := v.ask(opened.GetSessionId(), "b").GetOperationId()
	v.approve(agreed)
	v.restart()
	if got := v.operation(waiting); got.GetState() != pending || string(got.GetArguments()) != string(arguments("a")) {
		t.Errorf("%v", got)
	}
	opened = v.open(bearer)
	if joined := v.ask(opened.GetSessionId(), "a"); joined.GetOperationId() != waiting || !joined.GetJoined() {
		t.Errorf("%v", joined)
	}
	resp, err := v.wait(opened, agreed, 0)
	v.must(err)
	v.must(v.redeem(resp.GetGrant()))
	v.approve(waiting)
}

// While audit is away nothing that gives power goes on, and everybody hears so within 2 s.
func TestAuditAway(t *testing.T) {
	for _, how := range []string{"down", "hung"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newVault(t)
				opened, id, g := v.granted(bearer, "a")
				waiting := v.ask(opened.GetSessionId(), "b").GetOperationId()
				h := v.sign(v.statementFor(v.operation(waiting)))
				v.audit.set(func(f *fakeAudit) { f.down, f.hung = how == "down", how == "hung" })
				calls := map[string]func() error{
					"ask": func() error {
						_, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "c"))
						return err
					},
					"ask the same at the same time": func() error {
						errs := make(chan error, 2)
						for range 2 {
							go func() {
								_, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "d"))
								errs <- err
							}()
						}
						if err := <-errs; err == nil {
							return nil
						}
						return <-errs
					},
					"approve": func() error {
						_, err := v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{OperationId: waiting, Statement: h})
						return err
					},
					"redeem": func() error { return v.redeem(g) },
				}
				if how == "down" {
					calls["issue"] = func() error { _, err := v.wait(opened, id, time.Second); return err }
				}
				for name, call := range calls {
					started := time.Now()
					if err := call(); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
						t.Errorf("%s: %v", name, err)
					}
					if took := time.Since(started); took > 2*time.Second {
						t.Errorf("%s took %s", name, took)
					}
				}
				if o := v.operation(waiting); o.GetState() != pending {
					t.Errorf("state %s", o.GetState())
				}
				if n := v.server.Queue.PendingCount(); n != 1 {
					t.Errorf("%d operations wait", n)
				}
				givenUp := map[string]bool{}
				for _, r := range v.audit.of(auditv1.Kind_KIND_DENIED) {
					givenUp[r.GetBody().GetAction()] = r.GetStatus() == auditv1.Status_STATUS_ERROR
				}
				// A record that was sent and not answered may reach the log: what follows it says that nothing was done.
				for _, action := range []string{"ask-given-up", "approve-given-up", "redeem-given-up"} {
					if givenUp[action] != (how == "hung") {
						t.Errorf("%s recorded: %v", action, givenUp[action])
					}
				}
				v.audit.set(func(f *fakeAudit) { f.down, f.hung = false, false })
				v.must(v.redeem(g)) // nothing was spent meanwhile
				v.approve(waiting)
			})
		})
	}
}

func TestWaitEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		opened := v.open(bearer)
		id := v.ask(opened.GetSessionId(), "a").GetOperationId()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			ctx, stop := context.WithTimeout(withPermit(ctx, permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())), time.Minute)
			defer stop()
			// It is cancelled.
			_, _ = v.tools().WaitOperation(ctx, &vaultv1.WaitOperationRequest{OperationId: &id})
		}()
		synctest.Wait()
		if n := v.operation(id).GetWaiters(); n != 1 {
			t.Fatalf("%d wait, want 1", n)
		}
		cancel()
		<-ended
		synctest.Wait()
		if n := v.operation(id).GetWaiters(); n != 0 {
			t.Fatalf("%d wait, and the caller is gone", n)
		}
		// A call of its own deadline is answered before it.
		started := time.Now()
		resp, err := v.wait(opened, id, 300*time.Millisecond)
		v.must(err)
		if resp.GetState() != pending || time.Since(started) != 300*time.Millisecond {
			t.Errorf("%v after %s", resp, time.Since(started))
		}
		// And so is everybody when the vault stops.
		stopping, stop := context.WithCancel(t.Context())
		stop()
		v.server.Run(stopping)
		started = time.Now()
		resp, err = v.wait(opened, id, time.Minute)
		v.must(err)
		if resp.GetState() != pending || time.Since(started) > 0 {
			t.Errorf("%v after %s", resp, time.Since(started))
		}
	})
}

// Whoever looks at an operation sees each of its states as it comes, may carry out none of them, and does not count as
// waiting.
func TestGetOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		opened := v.open(bearer)
		id := v.ask(opened.GetSessionId(), "demo-chat").GetOperationId()
		got, err := v.look(opened, id)
		v.must(err)
		if got.GetState() != pending || got.GetTool().GetName() != "start_service" || string(got.GetArguments()) != string(arguments("demo-chat")) ||
			!got.GetAskedAt().AsTime().Equal(v.clock.Now()) || got.GetExpiresAt().AsTime().Sub(v.clock.Now()) > operation.Life || got.GetReason() != "" {
			t.Errorf("shown as %v", got)
		}
		// follow looks until the state leaves the known one, and does what changes it once the look is on its way.
		follow := func(known vaultv1.OperationState, change func()) *vaultv1.GetOperationResponse {
			t.Helper()
			answer := make(chan *vaultv1.GetOperationResponse, 1)
			go func() {
				resp, err := v.look(opened, id, known)
				if err != nil {
					t.Error(err)
				}
				answer <- resp
			}()
			synctest.Wait()
			select {
			case early := <-answer:
				t.Fatalf("%v, and nothing changed", early)
			default:
			}
			if n := v.operation(id).GetWaiters(); n != 0 {
				t.Errorf("%d wait, and nobody could carry it out", n)
			}
			change()
			return <-answer
		}
		if got := follow(pending, func() { v.approve(id) }); got.GetState() != approved {
			t.Errorf("after the approval %v", got)
		}
		var issued *callv1.SignedGrant
		if got := follow(approved, func() {
			resp, err := v.wait(opened, id, 0)
			v.must(err)
			issued = resp.GetGrant()
			v.must(v.redeem(issued))
		}); got.GetState() != running {
			t.Errorf("after the redemption %v", got)
		}
		if got := follow(running, func() {
			_, err := v.sink().Settle(t.Context(), &vaultv1.SettleRequest{OperationId: id, Use: 1, Ok: true})
			v.must(err)
		}); got.GetState() != done {
			t.Errorf("after it was settled %v", got)
		}
		// What is final is told at once, and a state that is another than the known one too.
		started := time.Now()
		for _, known := range []vaultv1.OperationState{done, pending, 0} {
			if got, err := v.look(opened, id, known); err != nil || got.GetState() != done {
				t.Errorf("known %s: %v, %v", known, got, err)
			}
		}
		if took := time.Since(started); took > 0 {
			t.Errorf("a final state took %s", took)
		}
		if n := len(v.audit.of(auditv1.Kind_KIND_GRANTED)); n != 1 {
			t.Errorf("%d grants were issued, want the one of wait_operation", n)
		}

		no := v.ask(opened.GetSessionId(), "other").GetOperationId()
		_, err = v.approvals().DenyOperation(t.Context(), &vaultv1.DenyOperationRequest{OperationId: no, Reason: "not now"})
		v.must(err)
		if got, err := v.look(opened, no); err != nil || got.GetState() != refused || got.GetReason() != "not now" {
			t.Errorf("denied: %v, %v", got, err)
		}
		late := v.ask(opened.GetSessionId(), "late").GetOperationId()
		v.clock.advance(operation.Life)
		if got, err := v.look(v.open(bearer), late, pending); err != nil || got.GetState() != expired {
			t.Errorf("past its end, before the sweep: %v, %v", got, err)
		}
	})
}

// A look that is held ends with its wait, with the caller's own time, and when the client is shut out.
func TestGetOperationIsHeldWithinBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		opened := v.open(bearer)
		id := v.ask(opened.GetSessionId(), "a").GetOperationId()
		permit := permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())
		known := pending
		for name, c := range map[string]struct {
			wait     uint32
			deadline time.Duration
			held     time.Duration
		}{
			"the caller's time": {45, time.Second, time.Second - holdSpare},
			"the wait":          {1, 20 * time.Second, time.Second},
			"no wait":           {0, 20 * time.Second, 0},
		} {
			ctx, cancel := context.WithTimeout(withPermit(t.Context(), permit), c.deadline)
			started := time.Now()
			got, err := v.operations().GetOperation(ctx, &vaultv1.GetOperationRequest{OperationId: &id, KnownState: &known, WaitS: &c.wait})
			cancel()
			if took := time.Since(started); err != nil || got.GetState() != pending || took != c.held {
				t.Errorf("%s: %v, %v after %s", name, got, err, took)
			}
		}
		// Without a known state it is not held, whatever the wait.
		started := time.Now()
		if _, err := v.operations().GetOperation(withPermit(t.Context(), permit), &vaultv1.GetOperationRequest{OperationId: &id, WaitS: proto.Uint32(45)}); err != nil || time.Since(started) > 0 {
			t.Errorf("%v after %s", err, time.Since(started))
		}
		ended := make(chan error, 1)
		go func() {
			_, err := v.look(opened, id, pending)
			ended <- err
		}()
		synctest.Wait()
		v.revoke(bearer)
		v.approve(id)
		wantCode(t, <-ended, callv1.Code_CODE_DENIED)
	})
}

// What a client is told of an operation is recorded once, and what tells it nothing new is not. A grant has its own record.
func TestReadsOfOperationsAreRecorded(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	id := v.ask(opened.GetSessionId(), "a").GetOperationId()
	reads := func(want int, method, tool, state string) {
		t.Helper()
		records := v.audit.of(auditv1.Kind_KIND_READ)
		if len(records) != want {
			t.Fatalf("%d reads are recorded, want %d", len(records), want)
		}
		r := records[want-1]
		b := r.GetBody()
		if r.GetOperationId() != id || r.GetTool() != tool || r.GetStatus() != auditv1.Status_STATUS_OK || b.GetPrincipal() != bearer ||
			b.GetSession() != opened.GetSession() || b.GetChannel() != callv1.Channel_CHANNEL_CLI || b.GetDetails()["method"] != method ||
			b.GetDetails()["state"] != "OPERATION_STATE_"+state {
			t.Errorf("recorded as %v", r)
		}
	}
	const look, wait = vaultv1.OperationService_GetOperation_FullMethodName, vaultv1.ToolService_WaitOperation_FullMethodName
	_, err := v.look(opened, id)
	v.must(err)
	reads(1, look, "", "PENDING")
	_, err = v.wait(opened, id, 0)
	v.must(err)
	reads(2, wait, "wait_operation", "PENDING")
	known := pending
	ctx := withPermit(t.Context(), permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits()))
	same, err := v.operations().GetOperation(ctx, &vaultv1.GetOperationRequest{OperationId: &id, KnownState: &known, WaitS: proto.Uint32(0)})
	v.must(err)
	if !proto.Equal(same, &vaultv1.GetOperationResponse{State: pending}) {
		t.Errorf("nothing changed, and it shows %v", same)
	}
	reads(2, wait, "wait_operation", "PENDING")
	v.approve(id)
	_, err = v.look(opened, id, pending)
	v.must(err)
	reads(3, look, "", "APPROVED")
	if resp, err := v.wait(opened, id, 0); err != nil || resp.GetGrant() == nil {
		t.Fatalf("%v, %v", resp, err)
	}
	reads(3, look, "", "APPROVED")

	v.audit.set(func(f *fakeAudit) { f.full = true })
	_, err = v.look(opened, id)
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
}

// A probe for somebody else's operation is recorded with who made it and what was asked for, and one client's flood of them
// hides nobody else's.
func TestProbesAreRecorded(t *testing.T) {
	v := newVault(t)
	id := v.ask(v.open(bearer).GetSessionId(), "a").GetOperationId()
	thief, second := v.open(other), v.open(reader)
	for range 3 * share.Burst {
		_, err := v.look(thief, id)
		wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	}
	_, err := v.wait(second, id, 0)
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	records := v.audit.of(auditv1.Kind_KIND_DENIED)
	if len(records) != share.Burst+1 {
		t.Fatalf("%d refusals are recorded", len(records))
	}
	for i, want := range map[int]struct{ principal, session, method, tool string }{
		0:           {other, thief.GetSession(), vaultv1.OperationService_GetOperation_FullMethodName, ""},
		share.Burst: {reader, second.GetSession(), vaultv1.ToolService_WaitOperation_FullMethodName, "wait_operation"},
	} {
		r := records[i]
		b := r.GetBody()
		if b.GetAction() != "operation-not-theirs" || r.GetOperationId() != id || r.GetTool() != want.tool || b.GetPrincipal() != want.principal ||
			b.GetSession() != want.session || b.GetChannel() != callv1.Channel_CHANNEL_CLI || b.GetDetails()["method"] != want.method {
			t.Errorf("recorded as %v", r)
		}
	}
	v.clock.advance(share.Period)
	_, err = v.look(thief, id)
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	records = v.audit.of(auditv1.Kind_KIND_DENIED)
	if d := records[len(records)-1].GetBody().GetDetails(); d["suppressed"] != "40" || d["method"] == "" {
		t.Errorf("after the flood %v", d)
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_READ)); n != 0 {
		t.Errorf("%d reads are recorded", n)
	}
}

// A held call ends with the epoch that its permit is of, and is refused as the permit would be; and the same when its permit
// has been over for longer than any call is held.
func TestHeldCallsEndWithTheirPermit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		opened := v.open(bearer)
		id := v.ask(opened.GetSessionId(), "a").GetOperationId()
		held := func(end func()) {
			t.Helper()
			ended := make(chan error, 2)
			opened := v.open(bearer)
			go func() {
				_, err := v.look(opened, id, pending)
				ended <- err
			}()
			go func() {
				_, err := v.wait(opened, id, time.Minute)
				ended <- err
			}()
			synctest.Wait()
			if v.operation(id).GetWaiters() == 0 {
				t.Fatal("nobody waits")
			}
			started := time.Now()
			end()
			for range 2 {
				wantCode(t, <-ended, callv1.Code_CODE_EXPIRED)
			}
			if took := time.Since(started); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
		}
		held(func() {
			v.clock.advance(grant.MaxPermitLife + maxHold + time.Second)
			v.approve(id)
		})
		if n := len(v.audit.of(auditv1.Kind_KIND_GRANTED)); n != 0 {
			t.Errorf("%d grants were issued", n)
		}
		id = v.ask(v.open(bearer).GetSessionId(), "b").GetOperationId()
		held(func() {
			_, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{Reason: "test"})
			v.must(err)
		})
	})
}

// What runs for longer than it is kept in memory is looked at without haste.
func TestGetOperationOfWhatNobodySettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		_, id, g := v.granted(bearer, "a")
		v.must(v.redeem(g))
		v.clock.advance(operation.JoinRunning)
		v.must(v.server.Sweep(t.Context()))
		opened := v.open(bearer)
		ctx, cancel := context.WithTimeout(withPermit(t.Context(), permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())), 10*time.Second)
		defer cancel()
		known := running
		started := time.Now()
		got, err := v.operations().GetOperation(ctx, &vaultv1.GetOperationRequest{OperationId: &id, KnownState: &known, WaitS: proto.Uint32(1)})
		if took := time.Since(started); err != nil || got.GetState() != running || took != time.Second {
			t.Errorf("%v, %v after %s", got, err, took)
		}
	})
}

func TestWatchOperations(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	first := v.ask(opened.GetSessionId(), "a").GetOperationId()
	stream, err := v.approvals().WatchOperations(t.Context(), &vaultv1.WatchOperationsRequest{})
	v.must(err)
	next := func() (string, vaultv1.OperationState) {
		resp, err := stream.Recv()
		v.must(err)
		return resp.GetOperation().GetOperationId(), resp.GetOperation().GetState()
	}
	if id, state := next(); id != first || state != pending {
		t.Errorf("first %s %s", id, state)
	}
	second := v.ask(opened.GetSessionId(), "b").GetOperationId()
	if id, state := next(); id != second || state != pending {
		t.Errorf("second %s %s", id, state)
	}
	v.approve(first)
	if id, state := next(); id != first || state != approved {
		t.Errorf("approval %s %s", id, state)
	}
}

// command is a human's own signed start.
func (v *vault) command(service string, change func(*statement.Statement)) *callv1.HumanStatement {
	v.t.Helper()
	s := v.statementFor(&vaultv1.Operation{
		OperationId: grant.NewID(), Principal: statement.CommandPrincipal(platformtest.Operator), Session: "-",
		Channel: callv1.Channel_CHANNEL_CLI, Tool: toolRef("start_service"), Tier: optionsv1.Tier_TIER_WRITE,
		Arguments: arguments(service), Audience: v.ID(executor, "local").String(), Epoch: 1,
		ExpiresAt: timestamppb.New(v.clock.Now().Add(5 * time.Minute)),
	})
	s.Kind = statement.KindCommand
	change(s)
	return v.sign(s)
}

func TestGrantCommand(t *testing.T) {
	v := newVault(t)
	client := v.approvals()
	for name, c := range map[string]struct {
		change func(*statement.Statement)
		code   callv1.Code
	}{
		"approve":             {func(s *statement.Statement) { s.Kind = statement.KindApprove }, callv1.Code_CODE_DENIED},
		"unknown tool":        {func(s *statement.Statement) { s.Tool.Name = "format_disk" }, callv1.Code_CODE_DENIED},
		"another definition":  {func(s *statement.Statement) { s.Tool.DefinitionDigest = subject }, callv1.Code_CODE_DENIED},
		"another audience":    {func(s *statement.Statement) { s.Audience = v.ID(executor, "other").String() }, callv1.Code_CODE_DENIED},
		"a session":           {func(s *statement.Statement) { s.Session = "s-other" }, callv1.Code_CODE_DENIED},
		"another channel":     {func(s *statement.Statement) { s.Channel = "api" }, callv1.Code_CODE_DENIED},
		"another tier":        {func(s *statement.Statement) { s.Tier = "READ" }, callv1.Code_CODE_DENIED},
		"not an operation id": {func(s *statement.Statement) { s.Operation = "K7F3" }, callv1.Code_CODE_DENIED},
		"another epoch":       {func(s *statement.Statement) { s.Epoch = 2 }, callv1.Code_CODE_EXPIRED},
		"bad arguments": {func(s *statement.Statement) {
			s.Arguments = []byte(`{"service_id":"--force"}`)
			s.ArgumentsDigest = canonical.FormatDigest(operationDigest(s.Arguments))
		}, callv1.Code_CODE_INVALID_ARGUMENT},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.GrantCommand(t.Context(), &vaultv1.GrantCommandRequest{Statement: v.command("a", c.change)})
			wantCode(t, err, c.code)
		})
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_APPROVED)); n != 0 {
		t.Errorf("%d approvals recorded", n)
	}
	h := v.command("a", func(*statement.Statement) {})
	resp, err := client.GrantCommand(t.Context(), &vaultv1.GrantCommandRequest{Statement: h})
	v.must(err)
	g, err := grant.Verify(resp.GetGrant(), v.Trust, v.clock.Now())
	v.must(err)
	if g.GetPrincipal() != "operator:alice" || g.GetSession() != "-" || g.GetOperationId() != resp.GetOperationId() {
		t.Errorf("grant %v", g)
	}
	verified, err := statement.Verify(h, v.Trust.Current().AllowedSigners, v.clock.Now())
	v.must(err)
	v.must(verified.Covers(g, toolRef("start_service"), optionsv1.Tier_TIER_WRITE, arguments("a"), nil))
	if o := v.operation(resp.GetOperationId()); o.GetState() != approved || o.GetDecidedBy() != platformtest.Operator {
		t.Errorf("%v", o)
	}
	_, err = client.GrantCommand(t.Context(), &vaultv1.GrantCommandRequest{Statement: h})
	wantCode(t, err, callv1.Code_CODE_ALREADY_SPENT)
	v.must(v.redeem(resp.GetGrant()))
	if n := len(v.audit.of(auditv1.Kind_KIND_APPROVED)); n != 1 {
		t.Errorf("%d approvals recorded", n)
	}
	v.must(v.store.Close()) // where nobody can look whether it was used, it was not
	if _, err = client.GrantCommand(t.Context(), &vaultv1.GrantCommandRequest{Statement: v.command("a", func(*statement.Statement) {})}); err == nil || fault.Is(err, callv1.Code_CODE_ALREADY_SPENT) {
		t.Errorf("without the store: %v", err)
	}
}

func (v *vault) resumption(change func(*statement.Statement)) *callv1.HumanStatement {
	v.t.Helper()
	now := v.clock.Now()
	s := &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindResume, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: 3, Audience: v.self.String(),
	}
	change(s)
	return v.sign(s)
}

func TestHaltAndResume(t *testing.T) {
	v := newVault(t)
	opened, id, g := v.granted(bearer, "a")
	waiting := v.ask(opened.GetSessionId(), "b").GetOperationId()
	v.audit.set(func(f *fakeAudit) { f.hung = true })
	started := time.Now()
	halted, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{Reason: "smoke"})
	v.must(err)
	if took := time.Since(started); took > time.Second || halted.GetEpoch() != 2 {
		t.Errorf("epoch %d after %s", halted.GetEpoch(), took)
	}
	v.audit.set(func(f *fakeAudit) { f.hung = false })

	for _, when := range []string{"at once", "after a restart"} {
		t.Run(when, func(t *testing.T) {
			if when == "after a restart" {
				v.restart()
				opened = v.open(bearer)
			} else {
				_, err := v.wait(opened, id, 0)
				wantCode(t, err, callv1.Code_CODE_EXPIRED) // the permit is of the epoch before
				renewed, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId()})
				v.must(err)
				opened.Permits = renewed.GetPermits()
			}
			wantCode(t, v.redeem(g), callv1.Code_CODE_HALTED)
			_, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "c"))
			wantCode(t, err, callv1.Code_CODE_HALTED)
			_, err = v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", "c"))
			wantCode(t, err, callv1.Code_CODE_HALTED)
			// What was asked for ended with the halt, at once, and whoever waits for it learns why.
			for _, asked := range []string{id, waiting} {
				if got, err := v.wait(opened, asked, 0); err != nil || got.GetState() != expired || !got.GetHalted() {
					t.Errorf("what was asked for before: %v, %v", got, err)
				}
			}
			_, err = v.approvals().ClaimOperation(t.Context(), &vaultv1.ClaimOperationRequest{OperationId: id})
			wantCode(t, err, callv1.Code_CODE_HALTED)
			_, err = v.approvals().ApproveOperation(t.Context(), &vaultv1.ApproveOperationRequest{
				OperationId: waiting, Statement: v.sign(v.statementFor(v.operation(waiting))),
			})
			wantCode(t, err, callv1.Code_CODE_HALTED)
			_, err = v.approvals().GrantCommand(t.Context(), &vaultv1.GrantCommandRequest{Statement: v.command("a", func(*statement.Statement) {})})
			wantCode(t, err, callv1.Code_CODE_HALTED)
			status, err := v.control().GetStatus(t.Context(), &vaultv1.GetStatusRequest{})
			v.must(err)
			if !status.GetHalted() || status.GetEpoch() != 2 {
				t.Errorf("%v", status)
			}
		})
	}
	for name, c := range map[string]struct {
		change func(*statement.Statement)
		code   callv1.Code
	}{
		"the current epoch": {func(s *statement.Statement) { s.Epoch = 2 }, callv1.Code_CODE_CONFLICT},
		"another process":   {func(s *statement.Statement) { s.Audience = v.ID(executor, "local").String() }, callv1.Code_CODE_DENIED},
		"another domain":    {func(s *statement.Statement) { s.Audience = "spiffe://elsewhere" }, callv1.Code_CODE_DENIED},
		"expired": {func(s *statement.Statement) {
			past := v.clock.Now().Add(-time.Hour)
			s.IssuedAt, s.NotBefore, s.ExpiresAt = statement.FormatTime(past), statement.FormatTime(past), statement.FormatTime(past.Add(time.Minute))
		}, callv1.Code_CODE_DENIED},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: v.resumption(c.change)})
			wantCode(t, err, c.code)
		})
	}
	t.Run("an approval", func(t *testing.T) {
		_, err := v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: v.sign(v.statementFor(v.operation(waiting)))})
		wantCode(t, err, callv1.Code_CODE_DENIED)
	})
	if n := len(v.audit.of(auditv1.Kind_KIND_RESUMED)); n != 0 {
		t.Errorf("%d resumptions recorded", n)
	}
	h := v.resumption(func(s *statement.Statement) { s.Audience = "spiffe://" + v.TrustDomain })
	resumed, err := v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: h})
	v.must(err)
	if resumed.GetEpoch() != 3 {
		t.Errorf("epoch %d", resumed.GetEpoch())
	}
	_, err = v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: h})
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	// What was asked for before is void, and what is asked for now is new.
	wantCode(t, v.redeem(g), callv1.Code_CODE_EXPIRED)
	for _, old := range []string{id, waiting} {
		if got := v.operation(old).GetState(); got != expired {
			t.Errorf("from before the halt: %s", got)
		}
	}
	if next := v.ask(opened.GetSessionId(), "b"); next.GetJoined() || v.operation(next.GetOperationId()).GetEpoch() != 3 {
		t.Errorf("%v", next)
	}
}

// Of two resumptions at once one is recorded: the log does not say that a halt ended which the other ended.
func TestOneOfTwoResumptionsIsRecorded(t *testing.T) {
	v := newVault(t)
	_, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{})
	v.must(err)
	gate, entered, ended := make(chan struct{}), make(chan struct{}, 2), make(chan error, 2)
	v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
	for range 2 {
		h := v.resumption(func(*statement.Statement) {})
		go func() {
			_, err := v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: h})
			ended <- err
		}()
	}
	<-entered
	time.Sleep(50 * time.Millisecond) // nothing tells that the other one waits
	close(gate)
	won, lost := <-ended, <-ended
	if won != nil {
		won, lost = lost, won
	}
	v.must(won)
	wantCode(t, lost, callv1.Code_CODE_CONFLICT)
	if n := len(v.audit.of(auditv1.Kind_KIND_RESUMED)); n != 1 {
		t.Errorf("the log has %d resumptions", n)
	}
}

// A halt that comes while a resume is recorded is not ended by it, however high an epoch that names; the log, which has the resume below the
// halt by then, is told that the halt goes on.
func TestAHaltOvertakesAResume(t *testing.T) {
	for _, named := range []uint64{3, 9} {
		v := newVault(t)
		halt := func() {
			_, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{Reason: "again"})
			v.must(err)
		}
		halt()
		gate, entered, ended := make(chan struct{}), make(chan struct{}, 1), make(chan error, 1)
		v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
		h := v.resumption(func(s *statement.Statement) { s.Epoch = named })
		go func() {
			_, err := v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: h})
			ended <- err
		}()
		<-entered
		halt()
		close(gate)
		wantCode(t, <-ended, callv1.Code_CODE_CONFLICT)
		if now := v.server.Halt.Now(); !now.Halted || now.Epoch != 3 || now.Reason != "again" {
			t.Errorf("after one at epoch %d: %+v", named, now)
		}
		recorded := v.audit.of(auditv1.Kind_KIND_HALTED)
		if details := recorded[len(recorded)-1].GetBody().GetDetails(); details["epoch"] != "3" || len(recorded) != 3 {
			t.Errorf("two halts, and that the second goes on, are recorded as %v", recorded)
		}
	}
}

// A resumption that may be in the log and is not in force is followed there by the halt that goes on.
func TestAResumptionThatFailedIsNotTheLastWord(t *testing.T) {
	for name, broken := range map[string]func(v *vault){
		"not recorded":     func(v *vault) { v.audit.set(func(f *fakeAudit) { f.hung = true }) },
		"not written down": func(v *vault) { v.must(v.store.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVault(t)
			_, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{})
			v.must(err)
			broken(v)
			if _, err := v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: v.resumption(func(*statement.Statement) {})}); err == nil {
				t.Fatal("it was resumed")
			}
			var last *auditv1.Record
			v.audit.set(func(f *fakeAudit) { last = f.records[len(f.records)-1] })
			if last.GetKind() != auditv1.Kind_KIND_HALTED || last.GetBody().GetDetails()["epoch"] != "2" {
				t.Errorf("the last that was recorded is %v", last)
			}
		})
	}
}

// What the state is is told behind a resumption that is not in force: of what was told before one the next process asks nothing.
func TestTheStateIsToldBehindAResumptionThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		_, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{})
		v.must(err)
		var running sync.WaitGroup
		defer running.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		running.Go(func() { v.server.keeper.Run(ctx) })
		synctest.Wait()
		before := len(v.audit.of(auditv1.Kind_KIND_STATE))
		v.audit.set(func(f *fakeAudit) { f.hung = true })
		_, err = v.control().Resume(t.Context(), &vaultv1.ResumeRequest{Statement: v.resumption(func(*statement.Statement) {})})
		wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
		synctest.Wait()
		if n := len(v.audit.of(auditv1.Kind_KIND_STATE)); before != 1 || n != 2 {
			t.Errorf("it was told %d times before, and %d in all", before, n)
		}
	})
}

func TestRecordsHoldNoHandles(t *testing.T) {
	v := newVault(t)
	opened, _, g := v.granted(bearer, "a")
	v.must(v.redeem(g))
	for _, kind := range []auditv1.Kind{20, 23, 24, 27, 28} {
		records := v.audit.of(kind)
		if len(records) == 0 {
			t.Errorf("no record of %s", kind)
		}
		for _, r := range records {
			raw, err := json.Marshal(r)
			v.must(err)
			if strings.Contains(string(raw), opened.GetSessionId()) || r.GetRequestId() == "" || r.GetTime() == nil {
				t.Errorf("record %s", raw)
			}
		}
	}
}
