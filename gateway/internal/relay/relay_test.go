package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
)

// Calls of one operation share one trip to the sink, which goes on when the callers leave.
func TestFlightsAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		var trips atomic.Int32
		land := make(chan struct{})
		fly := func() (Reply, error) {
			trips.Add(1)
			<-land
			return Reply{Outcome: &callv1.Outcome{Summary: "landed"}}, nil
		}
		impatient, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := f.do(impatient, "a", fly); !errors.Is(err, ErrRunning) {
			t.Fatalf("the first caller left with %v", err)
		}
		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() {
				if reply, err := f.do(t.Context(), "a", fly); err != nil || reply.Outcome.GetSummary() != "landed" {
					t.Errorf("joined: %v, %v", reply.Outcome, err)
				}
			})
		}
		synctest.Wait()
		close(land)
		waiting.Wait()
		if n := trips.Load(); n != 1 {
			t.Errorf("%d trips, want 1", n)
		}
		if _, err := f.do(t.Context(), "a", fly); err != nil || trips.Load() != 2 {
			t.Errorf("a later call makes its own trip: %v, %d", err, trips.Load())
		}
	})
}

func TestProofServesItsPurposeAlone(t *testing.T) {
	p := &callv1.Proof{Purpose: callv1.Proof_PURPOSE_CALL, Counter: 1}
	by := Caller{Proof: p}
	for purpose, want := range map[callv1.Proof_Purpose]*callv1.Proof{
		callv1.Proof_PURPOSE_CALL: p, callv1.Proof_PURPOSE_OPEN: nil, callv1.Proof_PURPOSE_RENEW: nil,
	} {
		if got := by.proof(purpose); got != want {
			t.Errorf("%v: %v", purpose, got)
		}
	}
	if (Caller{}).proof(callv1.Proof_PURPOSE_CALL) != nil {
		t.Error("no proof became one")
	}
}

// opened is a relay between peers, with a session of the client "token".
func opened(t *testing.T, p *peers) (*Relay, *Session) {
	t.Helper()
	r, err := New(Config{Vault: p, Waits: p, Executor: p, Logger: platformtest.Logger()})
	must(t, err)
	s, err := r.Open(t.Context(), Caller{Credential: "token"})
	must(t, err)
	return r, s
}

// A session that is opened again is what the vault says of the client now: whether it writes from a messaging channel, how
// far it may go, and whether it signs.
func TestSessionOpenedAgainIsAsTheVaultSaysNow(t *testing.T) {
	p := newPeers()
	p.channel, p.ceiling = callv1.Channel_CHANNEL_API, optionsv1.Tier_TIER_DESTRUCTIVE
	r, s := opened(t, p)
	by := Caller{Credential: "token"}
	renew := func() error {
		_, err := r.permit(t.Context(), s, by, optionsv1.Role_ROLE_VAULT, s.state.Load().permits[optionsv1.Role_ROLE_VAULT].signed)
		return err
	}
	p.set(func() {
		p.known, p.keyBound, p.signs = false, true, true
		p.channel, p.ceiling = callv1.Channel_CHANNEL_MESSAGING, optionsv1.Tier_TIER_READ
	})
	needed, ok := errors.AsType[ProofNeeded](renew())
	if !ok || needed.Purpose != callv1.Proof_PURPOSE_OPEN || s.About().Channel != callv1.Channel_CHANNEL_API {
		t.Errorf("a client that must sign by now: %v, %+v", needed, s.About())
	}
	by.Proof = &callv1.Proof{Purpose: callv1.Proof_PURPOSE_OPEN}
	must(t, renew())
	// One that must sign is told so before anybody asks the vault, and nobody's credential opens nothing.
	p.set(func() { p.known = false })
	for name, of := range map[string]Caller{"without a proof": {Credential: by.Credential}, "without a credential": {Proof: by.Proof}} {
		asked := p.asked
		err := r.withSession(t.Context(), s, of, func(string) error {
			return fault.New(callv1.Code_CODE_UNAUTHENTICATED, "no session")
		})
		if _, needed := errors.AsType[ProofNeeded](err); needed != (of.Proof == nil) || err == nil || p.asked != asked {
			t.Errorf("%s: %v, and the vault was asked %d times", name, err, p.asked-asked)
		}
	}
	if _, err := r.permit(t.Context(), s, by, optionsv1.Role_ROLE_EGRESS, ""); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("a sink that the vault gave no permit for: %v", err)
	}
	if a := s.About(); a.Channel != callv1.Channel_CHANNEL_MESSAGING || a.Ceiling != optionsv1.Tier_TIER_READ || !a.KeyBound || !s.KeyBound() {
		t.Errorf("opened again as %+v", a)
	}
}

// TestGoodPermitIsRenewedWithAProofAlone: a call of a client that signs uses the permit that is good for it, and asks the vault for no
// renewal that nobody signed, which would be recorded as refused. One that is good no more is the vault's to judge.
func TestGoodPermitIsRenewedWithAProofAlone(t *testing.T) {
	p := newPeers()
	r, s := opened(t, p)
	by := Caller{Credential: "token"}
	for _, tc := range []struct {
		left    time.Duration
		purpose callv1.Proof_Purpose
		asked   bool
	}{
		{10 * time.Second, callv1.Proof_PURPOSE_UNSPECIFIED, false},
		{10 * time.Second, callv1.Proof_PURPOSE_CALL, false},
		{10 * time.Second, callv1.Proof_PURPOSE_RENEW, true},
		{-time.Second, callv1.Proof_PURPOSE_CALL, true},
	} {
		old := *s.state.Load()
		of := old.permits[optionsv1.Role_ROLE_VAULT]
		of.expires = time.Now().Add(tc.left)
		old.permits, old.keyBound = map[optionsv1.Role]permit{optionsv1.Role_ROLE_VAULT: of}, true
		s.state.Store(&old)
		p.set(func() { p.known = true })
		before := p.renewed + p.refused
		by.Proof = &callv1.Proof{Purpose: tc.purpose}
		got, err := r.permit(t.Context(), s, by, optionsv1.Role_ROLE_VAULT, "")
		if asked := p.renewed+p.refused != before; asked != tc.asked || !asked && (err != nil || got != of.signed) {
			t.Errorf("%v left, with a proof of %v: the vault was asked: %v; %v", tc.left, tc.purpose, asked, err)
		}
	}
}

// TestProofIsNotLostToAnother: who brings no proof hears that one is needed, and who brings one meanwhile has the permits renewed.
func TestProofIsNotLostToAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		p.keyBound = true
		r, s := opened(t, p)
		held := make(chan struct{})
		p.refusing = func() { <-held }
		time.Sleep(2 * time.Minute) // the permits end, in synctest's time
		ask := func(of *callv1.Proof) <-chan error {
			said := make(chan error, 1)
			go func() {
				_, err := r.permit(t.Context(), s, Caller{Credential: "token", Proof: of}, optionsv1.Role_ROLE_VAULT, "")
				said <- err
			}()
			synctest.Wait()
			return said
		}
		without := ask(nil)
		with := ask(&callv1.Proof{Purpose: callv1.Proof_PURPOSE_RENEW})
		close(held)
		if err := <-with; err != nil {
			t.Errorf("with a proof: %v", err)
		}
		if err := <-without; !fault.Is(err, callv1.Code_CODE_PROOF_REQUIRED) {
			t.Errorf("without a proof: %v", err)
		}
	})
}

// TestCeilingIsAsTheVaultSaysNow: a renewal tells it, and one that was lowered while its answer was under way stays lowered. The answer's
// permits are taken all the same.
func TestCeilingIsAsTheVaultSaysNow(t *testing.T) {
	const read, write = optionsv1.Tier_TIER_READ, optionsv1.Tier_TIER_WRITE
	p := newPeers()
	p.ceiling = read
	r, s := opened(t, p)
	for _, step := range []struct {
		what       string
		says, want optionsv1.Tier
		renewing   func()
	}{
		{"raised", write, write, nil},
		{"lowered meanwhile", write, read, func() { s.Lower(read) }},
		{"raised again", write, write, nil},
		{"lowered", read, read, nil},
		{"a vault that says none", optionsv1.Tier_TIER_UNSPECIFIED, read, nil},
	} {
		p.set(func() { p.ceiling, p.renewing = step.says, step.renewing })
		old := s.state.Load().permits[optionsv1.Role_ROLE_VAULT].signed
		got, err := r.permit(t.Context(), s, Caller{Credential: "token"}, optionsv1.Role_ROLE_VAULT, old)
		if ceiling := s.About().Ceiling; err != nil || got == old || ceiling != step.want {
			t.Errorf("%s: the ceiling is %v, the permit another: %t, %v", step.what, ceiling, got != old, err)
		}
	}
}

// TestEndedSessionIsNotOpenedAgain: neither afterwards nor, so that it stayed, while it is being opened.
func TestEndedSessionIsNotOpenedAgain(t *testing.T) {
	p := newPeers()
	r, s := opened(t, p)
	p.set(func() {
		p.known = false
		p.opening = func() { r.Close(context.Background(), s) }
	})
	for range 2 {
		if _, err := r.permit(t.Context(), s, Caller{Credential: "token"}, optionsv1.Role_ROLE_VAULT, s.state.Load().permits[optionsv1.Role_ROLE_VAULT].signed); !fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED) {
			t.Errorf("the session goes on: %v", err)
		}
		p.set(func() { p.known = false })
	}
	if want := []string{"handle-1", "handle-2"}; p.opened != 2 || !slices.Equal(p.closed, want) {
		t.Errorf("%d sessions were opened, and %v ended", p.opened, p.closed)
	}
}

// An agent learns within 2 s that the vault does not answer.
func TestDecisionsAreBounded(t *testing.T) {
	p := newPeers()
	r, err := New(Config{Vault: p, Waits: p, Executor: p, Logger: platformtest.Logger()})
	if err != nil || r.conf.DecideTimeout <= 0 || r.conf.DecideTimeout >= 2*time.Second {
		t.Errorf("a decision may take %v: %v", r.conf.DecideTimeout, err)
	}
}

func TestNewRefuses(t *testing.T) {
	p := newPeers()
	for name, conf := range map[string]Config{
		"no vault":    {Waits: p, Executor: p, Logger: platformtest.Logger()},
		"no waits":    {Vault: p, Executor: p, Logger: platformtest.Logger()},
		"no executor": {Vault: p, Waits: p, Logger: platformtest.Logger()},
		"no logger":   {Vault: p, Waits: p, Executor: p},
	} {
		if _, err := New(conf); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
