package server

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/share"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/session"
)

func TestOpenSessionFailuresAreAlike(t *testing.T) {
	v := newVault(t)
	now := v.clock.Now()
	forged := v.openProof(2, now)
	forged.Signature[0] ^= 1
	other := v.openProof(3, now)
	other.Counter++
	used := v.openProof(4, now)
	if _, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Proof: used}); err != nil {
		t.Fatal(err)
	}
	wrongPurpose, err := proof.Sign(v.clientKey, proof.Claim{
		Purpose: callv1.Proof_PURPOSE_RENEW, Client: bound, Session: "s-x", Counter: 5, Time: now.Unix(),
	})
	v.must(err)
	for name, req := range map[string]*vaultv1.OpenSessionRequest{
		"unknown token":            {Credential: "nobody"},
		"a client's id":            {Credential: bearer},
		"token with a newline":     {Credential: tokenOf(bearer) + "\n"},
		"key-bound without proof":  {Credential: tokenOf(bound)},
		"forged proof":             {Credential: tokenOf(bound), Proof: forged},
		"proof of another counter": {Credential: tokenOf(bound), Proof: other},
		"proof used before":        {Credential: tokenOf(bound), Proof: used},
		"proof of another purpose": {Credential: tokenOf(bound), Proof: wrongPurpose},
		"old proof":                {Credential: tokenOf(bound), Proof: v.openProof(6, now.Add(-session.OpenSkew-2*time.Second))},
		"proof of the future":      {Credential: tokenOf(bound), Proof: v.openProof(7, now.Add(session.Ahead+2*time.Second))},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := v.sessions().OpenSession(t.Context(), req)
			f := wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
			if f.Message != "not authenticated" || f.Retryable || f.Field != "" {
				t.Errorf("the answer tells them apart: %+v", f)
			}
		})
	}
	failed := v.audit.of(auditv1.Kind_KIND_AUTHENTICATION_FAILED)
	if len(failed) != 10 {
		t.Errorf("%d failures recorded, want 10", len(failed))
	}
	for _, r := range failed {
		if raw, _ := json.Marshal(r); strings.Contains(string(raw), "token-of") {
			t.Errorf("a record holds a credential: %s", raw)
		}
	}
}

func TestOpenSession(t *testing.T) {
	v := newVault(t)
	resp, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{
		Credential: tokenOf(bound), ClientName: "evil\x1b[31m\u202ename", ClientVersion: "1", Proof: v.openProof(1, v.clock.Now()),
	})
	v.must(err)
	if len(resp.GetSessionId()) != 32 || !strings.HasPrefix(resp.GetSession(), "s-") || len(resp.GetSession()) != 28 ||
		resp.GetPrincipal() != bound || !resp.GetKeyBound() || resp.GetTierCeiling() != optionsv1.Tier_TIER_WRITE ||
		resp.GetIdleTimeoutS() != 1800 || !resp.GetExpiresAt().AsTime().Equal(v.clock.Now().Add(8*time.Hour)) {
		t.Errorf("session %+v", resp)
	}
	want := map[string][]string{
		v.self.String(): {"describe_tool", "find_tools", "security_config", "tokenize", "wait_operation", "withdraw_operation"},
		v.ID(executor, "local").String(): {
			"gpu_status", "list_models", "list_modes", "list_services", "mode_info", "model_info", "service_info", "simulate_mode",
		},
	}
	got := map[string][]string{}
	for _, addressed := range resp.GetPermits() {
		p, err := grant.VerifyPermit(addressed.GetPermit(), v.Trust, v.clock.Now())
		v.must(err)
		got[p.GetAudience()] = p.GetTools()
		if p.GetPrincipal() != bound || p.GetSession() != resp.GetSession() || p.GetEpoch() != 1 ||
			!p.GetExpiresAt().AsTime().Equal(v.clock.Now().Add(time.Minute)) || addressed.GetAudience() != p.GetAudience() {
			t.Errorf("permit %+v", p)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("permits (-want +got):\n%s", diff)
	}
	opened := v.audit.of(auditv1.Kind_KIND_SESSION_OPENED)
	if len(opened) != 1 || opened[0].GetBody().GetDetails()["client_name"] != "evilname 1" {
		t.Errorf("recorded as %v", opened)
	}
}

func TestSessionEnds(t *testing.T) {
	for name, end := range map[string]func(v *vault, opened *vaultv1.OpenSessionResponse){
		"closed": func(v *vault, opened *vaultv1.OpenSessionResponse) {
			_, err := v.sessions().CloseSession(v.t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
			v.must(err)
		},
		"idle": func(v *vault, _ *vaultv1.OpenSessionResponse) { v.clock.advance(session.IdleTimeout) },
		"old": func(v *vault, opened *vaultv1.OpenSessionResponse) {
			for range 16 {
				v.clock.advance(session.IdleTimeout - time.Second)
				_, err := v.sessions().RenewPermits(v.t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId()})
				v.must(err)
			}
			v.clock.advance(20 * time.Second)
		},
		"client revoked":         func(v *vault, _ *vaultv1.OpenSessionResponse) { v.revoke(bearer) },
		"client's token changed": func(v *vault, _ *vaultv1.OpenSessionResponse) { v.changeToken(bearer) },
		"vault restarted":        func(v *vault, _ *vaultv1.OpenSessionResponse) { v.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVault(t)
			opened := v.open(bearer)
			end(v, opened)
			_, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId()})
			wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
			_, err = v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "a"))
			wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
			v.must(v.server.Sweep(t.Context()))
			if n := v.server.Sessions.Count(); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

func TestSessionCaps(t *testing.T) {
	v := newVault(t, func(c *Config, _ *operation.Config) { c.Sessions = session.New(c.Now, 3) })
	v.open(small)
	v.open(small)
	_, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(small)})
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	opened := v.open(bearer)
	_, err = v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bearer)})
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	_, err = v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
	v.must(err)
	v.open(bearer)
}

func TestKeyBoundClientSignsEachRequest(t *testing.T) {
	v := newVault(t)
	opened, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), Proof: v.openProof(1, v.clock.Now())})
	v.must(err)
	digest := operationDigest(arguments("a"))
	call := func(change func(*proof.Claim)) *callv1.Proof {
		c := proof.Claim{
			Purpose: callv1.Proof_PURPOSE_CALL, Client: bound, Session: opened.GetSession(), Tool: "start_service",
			ArgumentsDigest: digest, Counter: 10, Time: v.clock.Now().Unix(),
		}
		change(&c)
		p, err := proof.Sign(v.clientKey, c)
		v.must(err)
		return p
	}
	for name, p := range map[string]*callv1.Proof{
		"none":            nil,
		"another tool":    call(func(c *proof.Claim) { c.Tool = "stop_service" }),
		"other arguments": call(func(c *proof.Claim) { c.ArgumentsDigest = operationDigest(arguments("b")) }),
		"another session": call(func(c *proof.Claim) { c.Session = "s-other" }),
		"another client":  call(func(c *proof.Claim) { c.Client = bearer }),
		"an opening":      v.openProof(10, v.clock.Now()),
		"121 s old":       call(func(c *proof.Claim) { c.Time -= 121 }),
		"121 s ahead":     call(func(c *proof.Claim) { c.Time += 121 }),
	} {
		t.Run(name, func(t *testing.T) {
			req := request(opened.GetSessionId(), "start_service", "a")
			req.Proof = p
			_, err := v.authority().Authorise(t.Context(), req)
			wantCode(t, err, callv1.Code_CODE_PROOF_REQUIRED)
		})
	}
	req := request(opened.GetSessionId(), "start_service", "a")
	req.Proof = call(func(*proof.Claim) {})
	_, err = v.authority().Authorise(t.Context(), req)
	v.must(err)
	_, err = v.authority().Authorise(t.Context(), req)
	wantCode(t, err, callv1.Code_CODE_PROOF_REQUIRED) // the same counter again

	// Being asked for a proof is no refusal, and is not recorded as one; a proof that is another's is.
	refused := len(v.audit.of(auditv1.Kind_KIND_DENIED))
	for i, p := range []*callv1.Proof{nil, v.openProof(10, v.clock.Now())} {
		_, err = v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId(), Proof: p})
		wantCode(t, err, callv1.Code_CODE_PROOF_REQUIRED)
		if n := len(v.audit.of(auditv1.Kind_KIND_DENIED)); n != refused+i {
			t.Errorf("%d more refusals are recorded, want %d", n-refused, i)
		}
	}
	renewal := proof.Claim{
		Purpose: callv1.Proof_PURPOSE_RENEW, Client: bound, Session: opened.GetSession(), Counter: 11, Time: v.clock.Now().Unix(),
	}
	renew, err := proof.Sign(v.clientKey, renewal)
	v.must(err)
	_, err = v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId(), Proof: renew})
	v.must(err)

	// Proofs that a relay kept are worth nothing two minutes later, though nobody used them.
	renewal.Counter = 12
	renew, err = proof.Sign(v.clientKey, renewal)
	v.must(err)
	kept := request(opened.GetSessionId(), "start_service", "a")
	kept.Proof = call(func(c *proof.Claim) { c.Counter = 13 })
	v.clock.advance(session.Skew + time.Second)
	_, err = v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId(), Proof: renew})
	wantCode(t, err, callv1.Code_CODE_PROOF_REQUIRED)
	_, err = v.authority().Authorise(t.Context(), kept)
	wantCode(t, err, callv1.Code_CODE_PROOF_REQUIRED)
}

// An opening for which there is no room is not used up by that: its gateway ends the oldest session and comes again with it.
func TestAnOpeningWithoutRoomIsGoodOnceThereIs(t *testing.T) {
	v := newVault(t, func(c *Config, _ *operation.Config) { c.Sessions = session.New(c.Now, 1) })
	opened := v.open(bearer)
	p := v.openProof(1, v.clock.Now())
	wantCode(t, v.opensBy(p), callv1.Code_CODE_RATE_LIMITED)
	_, err := v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
	v.must(err)
	v.must(v.opensBy(p))
	if n := len(v.audit.of(auditv1.Kind_KIND_AUTHENTICATION_FAILED)); n != 0 {
		t.Errorf("%d failures are recorded", n)
	}
}

// A vault that restarted takes the openings that nobody used yet, and none a second time.
func TestOpeningsFromBeforeARestart(t *testing.T) {
	v := newVault(t)
	used, kept := v.openProof(1, v.clock.Now()), v.openProof(2, v.clock.Now())
	open := v.opensBy
	v.must(open(used))
	v.clock.advance(1500 * time.Millisecond)
	v.restart()
	wantCode(t, open(used), callv1.Code_CODE_UNAUTHENTICATED)
	forged := v.openProof(4, v.clock.Now().Add(-time.Second))
	forged.Signature[0] ^= 1
	wantCode(t, open(forged), callv1.Code_CODE_UNAUTHENTICATED)
	if n := len(v.audit.of(auditv1.Kind_KIND_AUTHENTICATION_FAILED)); n != 2 {
		t.Errorf("%d failures recorded, want 2", n)
	}
	v.must(open(kept))
	wantCode(t, open(kept), callv1.Code_CODE_UNAUTHENTICATED)
}

// A vault that started while its clock was ahead opens sessions once the clock was set back, each opening once, in this life and the next.
func TestOpeningsOnceTheClockWasSetBack(t *testing.T) {
	v := newVault(t)
	v.clock.advance(2 * time.Hour)
	v.restart()
	ahead := v.openProof(1, v.clock.Now())
	v.must(v.opensBy(ahead))
	v.clock.advance(-2 * time.Hour)
	for counter := range uint64(2) {
		p := v.openProof(2+counter, v.clock.Now())
		v.must(v.opensBy(p))
		for range 2 {
			wantCode(t, v.opensBy(p), callv1.Code_CODE_UNAUTHENTICATED)
			v.restart()
		}
	}
	v.clock.advance(2 * time.Hour)
	wantCode(t, v.opensBy(ahead), callv1.Code_CODE_UNAUTHENTICATED)
}

func TestFloodOfFailuresIsCounted(t *testing.T) {
	v := newVault(t)
	client := v.sessions()
	for range 100 {
		_, err := client.OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: "guess"})
		wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_AUTHENTICATION_FAILED)); n != share.Burst {
		t.Errorf("%d recorded singly, want %d", n, share.Burst)
	}
	v.clock.advance(share.Period)
	_, err := client.OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: "guess"})
	wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
	records := v.audit.of(auditv1.Kind_KIND_AUTHENTICATION_FAILED)
	if got := records[len(records)-1].GetBody().GetDetails()["suppressed"]; got != "80" {
		t.Errorf("suppressed %q, want 80", got)
	}
}

func TestRefusedCallsAreRecorded(t *testing.T) {
	v := newVault(t)
	_, err := vaultv1.NewApprovalServiceClient(v.as(gateway, "main")).ListOperations(t.Context(), &vaultv1.ListOperationsRequest{})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	records := v.audit.of(auditv1.Kind_KIND_DENIED)
	if len(records) != 1 || records[0].GetBody().GetAction() != "rpc-refused" ||
		records[0].GetBody().GetDecisionSource() != v.ID(gateway, "main").String() ||
		records[0].GetBody().GetSummary() != vaultv1.ApprovalService_ListOperations_FullMethodName {
		t.Errorf("recorded as %v", records)
	}
}

// Calls that the chain refuses are recorded singly at first, and then counted: none is left out of the sum.
func TestAFloodOfRefusedCallsIsCounted(t *testing.T) {
	v := newVault(t)
	const flood = 10_000
	for i := range flood {
		v.server.Refused(t.Context(), fmt.Sprint("/durward.vault.v1.ApprovalService/List", i%(flood/2)), v.ID(gateway, "main"), fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed))
	}
	v.server.refusedCalls.Flush(t.Context(), true)
	records, sum := v.audit.of(auditv1.Kind_KIND_DENIED), 0
	for _, r := range records {
		n := 1
		if more := r.GetBody().GetDetails()["suppressed"]; more != "" {
			var err error
			n, err = strconv.Atoi(more)
			v.must(err)
		}
		sum += n
	}
	if len(records) > 100 || sum != flood {
		t.Errorf("%d records of %d refused calls", len(records), sum)
	}
}

// While audit is away sessions and permits go on, as long as the vault's own spool has room.
func TestSessionsWithoutAudit(t *testing.T) {
	v := newVault(t)
	v.audit.set(func(f *fakeAudit) { f.down = true })
	opened := v.open(bearer)
	_, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId()})
	v.must(err)
	v.audit.set(func(f *fakeAudit) { f.full = true })
	_, err = v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bearer)})
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	_, err = v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId()})
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	if n := v.server.Sessions.Count(); n != 1 {
		t.Errorf("%d sessions, want the one that was recorded", n)
	}
}

func TestWaitOperationNeedsAPermit(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	id := v.ask(opened.GetSessionId(), "a").GetOperationId()
	good := permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())
	forgedKey, err := grant.GenerateKey("test")
	v.must(err)
	resign := func(change func(*callv1.Permit)) *callv1.SignedPermit {
		p, err := grant.VerifyPermit(good, v.Trust, v.clock.Now())
		v.must(err)
		change(p)
		signed, err := grant.SignPermit(v.GrantKey, p)
		v.must(err)
		return signed
	}
	p, err := grant.VerifyPermit(good, v.Trust, v.clock.Now())
	v.must(err)
	forged, err := grant.SignPermit(forgedKey, p)
	v.must(err)
	both := func(ctx context.Context) []error {
		_, waited := v.tools().WaitOperation(ctx, &vaultv1.WaitOperationRequest{OperationId: &id})
		_, looked := v.operations().GetOperation(ctx, &vaultv1.GetOperationRequest{OperationId: &id})
		return []error{waited, looked}
	}
	for name, c := range map[string]struct {
		permit *callv1.SignedPermit
		code   callv1.Code
	}{
		"none":                {nil, callv1.Code_CODE_DENIED},
		"a sink's":            {permitFor(executor, opened.GetPermits()), callv1.Code_CODE_DENIED},
		"forged":              {forged, callv1.Code_CODE_DENIED},
		"unknown kid":         {&callv1.SignedPermit{Payload: good.GetPayload(), Kid: "other", Signature: good.GetSignature()}, callv1.Code_CODE_DENIED},
		"without the tool":    {resign(func(p *callv1.Permit) { p.Tools = []string{"gpu_status"} }), callv1.Code_CODE_DENIED},
		"a stranger's":        {resign(func(p *callv1.Permit) { p.Principal = "nobody" }), callv1.Code_CODE_DENIED},
		"another epoch":       {resign(func(p *callv1.Permit) { p.Epoch = 2 }), callv1.Code_CODE_EXPIRED},
		"another principal's": {permitFor(optionsv1.Role_ROLE_VAULT, v.open(other).GetPermits()), callv1.Code_CODE_NOT_FOUND},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if c.permit != nil {
				ctx = withPermit(ctx, c.permit)
			}
			for _, err := range both(ctx) {
				wantCode(t, err, c.code)
			}
		})
	}
	t.Run("two", func(t *testing.T) {
		for _, err := range both(withPermit(withPermit(t.Context(), good), good)) {
			wantCode(t, err, callv1.Code_CODE_DENIED)
		}
	})
	t.Run("not a permit", func(t *testing.T) {
		for _, err := range both(metadata.AppendToOutgoingContext(t.Context(), rpc.MetadataPermit, "x")) {
			wantCode(t, err, callv1.Code_CODE_DENIED)
		}
	})
	t.Run("another principal's looks like none at all", func(t *testing.T) {
		others := v.open(other)
		_, theirs := v.wait(others, id, 0)
		_, none := v.wait(others, strings.Repeat("0", 32), 0)
		_, shown := v.look(others, id)
		_, unknown := v.look(others, strings.Repeat("0", 32))
		for _, err := range []error{none, shown, unknown} {
			if theirs.Error() != err.Error() {
				t.Errorf("%q and %q", theirs, err)
			}
		}
	})
	t.Run("closed session", func(t *testing.T) {
		gone := v.open(bearer)
		_, err := v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: gone.GetSessionId()})
		v.must(err)
		for _, err := range both(withPermit(t.Context(), permitFor(optionsv1.Role_ROLE_VAULT, gone.GetPermits()))) {
			wantCode(t, err, callv1.Code_CODE_EXPIRED)
		}
	})
	t.Run("expired", func(t *testing.T) {
		v.clock.advance(time.Minute)
		for _, err := range both(withPermit(t.Context(), good)) {
			wantCode(t, err, callv1.Code_CODE_EXPIRED)
		}
	})
	if n := len(v.audit.of(auditv1.Kind_KIND_DENIED)); n < 20 {
		t.Errorf("%d refusals are recorded", n)
	}
}

// A vault has one sink of each role: which of two a grant is for nobody could tell.
func TestTwoSinksOfOneRoleAreRefused(t *testing.T) {
	v := newVault(t)
	conf := v.server.Config
	conf.Sinks = append(conf.Sinks, v.ID(executor, "other"))
	if _, err := New(conf); err == nil {
		t.Error("two executors are taken")
	}
}

// A client whose clock is ahead leaves no opening behind that the next vault takes again, however soon it starts.
func TestAnOpeningIsNotTakenAgainByTheNextVault(t *testing.T) {
	v := newVault(t)
	v.clock.advance(time.Hour)
	for i, ahead := range []time.Duration{0, time.Second, session.Ahead} {
		p := v.openProof(uint64(100+i), v.clock.Now().Add(ahead))
		v.must(v.opensBy(p))
		v.clock.advance(time.Millisecond)
		v.restart()
		for range 2 * session.Ahead / time.Second {
			if err := v.opensBy(p); !fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED) {
				t.Fatalf("%s ahead, opened again: %v", ahead, err)
			}
			v.clock.advance(time.Second)
		}
		v.must(v.opensBy(v.openProof(uint64(200+i), v.clock.Now())))
	}
}
