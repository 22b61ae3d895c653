package standing_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/store"
)

func argumentsDigest(b []byte) string {
	d := canonical.Digest(b)
	return canonical.FormatDigest(d[:])
}

func TestDangerousRefuses(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	for name, c := range map[string]struct {
		session *session.Session
		change  func(*statement.Statement)
		set     func()
	}{
		"a bearer client":    {session: w.open(bearer)},
		"no such session":    {change: func(s *statement.Statement) { s.Session = "s-nobody" }},
		"another principal":  {change: func(s *statement.Statement) { s.Principal = other }},
		"another audience":   {change: func(s *statement.Statement) { s.Audience = "spiffe://durward.local/executor/elsewhere" }},
		"too long":           {set: func() { w.limits.DangerousMax = time.Hour }},
		"not allowed at all": {set: func() { w.limits.DangerousAllowed = false }},
		"messaging as cli":   {session: w.open(chat), change: func(s *statement.Statement) { s.Channel = "cli" }},
		"a scope": {change: func(s *statement.Statement) {
			*s = *w.scope(live, 1)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before := w.limits
			defer func() { w.limits = before }()
			if c.set != nil {
				c.set()
			}
			s := live
			if c.session != nil {
				s = c.session
			}
			mode := w.dangerous(s)
			if c.change != nil {
				c.change(mode)
			}
			_, _, _, err := w.book.ProposeDangerous(t.Context(), w.sign(mode), "operator")
			wantCode(t, err, callv1.Code_CODE_DENIED)
		})
	}
	if n := len(w.audit.of(auditv1.Kind_KIND_STANDING_GRANTED)); n != 0 {
		t.Errorf("%d recorded", n)
	}
}

// Two deliberate steps, five seconds apart by the vault's clock.
func TestDangerous(t *testing.T) {
	w := newWorld(t)
	live, sibling := w.open(bound), w.open(bound)
	h := w.sign(w.dangerous(live))
	_, from, until, err := w.book.ProposeDangerous(t.Context(), h, "operator")
	w.must(err)
	if from.Sub(w.Now()) != 5*time.Second || until.Sub(w.Now()) != time.Minute {
		t.Errorf("from %s until %s", from, until)
	}
	off := func() {
		t.Helper()
		if _, ok := w.book.Dangerous(live.Ref); ok {
			t.Fatal("in dangerous mode")
		}
	}
	off()
	_, _, _, err = w.book.ProposeDangerous(t.Context(), w.sign(w.dangerous(live)), "operator")
	wantCode(t, err, callv1.Code_CODE_CONFLICT) // one at a time
	w.advance(5*time.Second - time.Nanosecond)
	_, err = w.confirm(h)
	wantCode(t, err, callv1.Code_CODE_CONFLICT)
	off()
	w.advance(time.Nanosecond)
	g, err := w.confirm(h)
	w.must(err)
	if g.GetKind() != "dangerous" || g.GetSession() != live.Ref || g.GetUses() != 20 || g.GetConfirmation() == nil {
		t.Errorf("%v", g)
	}
	ends, ok := w.book.Dangerous(live.Ref)
	if !ok || !ends.Equal(g.GetExpiresAt().AsTime()) {
		t.Errorf("until %s, %v", ends, ok)
	}
	if _, ok := w.book.Dangerous(sibling.Ref); ok {
		t.Error("another session of the client is in dangerous mode too")
	}
	_, err = w.confirm(h)
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	_, _, _, err = w.book.ProposeDangerous(t.Context(), h, "operator")
	wantCode(t, err, callv1.Code_CODE_ALREADY_SPENT)

	r := w.request(live, "start_service", "a")
	got, _, ok := w.book.UseDangerous(&r.Operation)
	if !ok || string(got.GetStatement()) != string(h.GetStatement()) {
		t.Fatalf("its use: %v, %v", got, ok)
	}
	o, _, err := w.queue.Run(t.Context(), r, got, true)
	w.must(err)
	// The same call of another session gets nothing of it.
	asked, err := w.call(sibling, "start_service", "a")
	w.must(err)
	if asked.ID == o.ID || asked.State != pending {
		t.Errorf("another session's call: %+v", asked)
	}
	w.must(w.redeem(o))
	w.must(w.queue.Settle(t.Context(), o.ID, 1, true, w.sink))
	for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_APPROVED, auditv1.Kind_KIND_GRANTED, auditv1.Kind_KIND_REDEEMED} {
		for _, r := range w.audit.of(kind) {
			if !r.GetBody().GetDangerous() {
				t.Errorf("a record of %s is not tagged: %v", kind, r)
			}
		}
	}
	if n := len(w.audit.of(auditv1.Kind_KIND_STANDING_GRANTED)); n != 2 { // proposed, and in force
		t.Errorf("%d records", n)
	}
}

// The confirmation is a second signature, by the key of the first, under a statement that names the first and was made 5 s later:
// whoever has an operator's certificate alone confirms nothing. What is no confirmation leaves the proposal to its human.
func TestConfirmationIsASecondSignature(t *testing.T) {
	w := newWorld(t)
	live, sibling := w.open(bound), w.open(bound)
	h := w.sign(w.dangerous(live))
	_, _, _, err := w.book.ProposeDangerous(t.Context(), h, "operator")
	w.must(err)
	second := w.confirmation(h) // made at once, by the operator's clock
	w.advance(5 * time.Second)
	good := w.confirmation(h)
	altered := func(change func(*statement.Statement)) *callv1.HumanStatement {
		s := *good
		change(&s)
		return w.sign(&s)
	}
	foreign, err := statement.Sign(good, platformtest.New(t).OperatorSigner)
	w.must(err)
	for name, c := range map[string]struct {
		h    *callv1.HumanStatement
		code callv1.Code
	}{
		"the first again":       {h, callv1.Code_CODE_DENIED},
		"by nobody's key":       {foreign, callv1.Code_CODE_DENIED},
		"of another statement":  {w.sign(w.confirmation(w.sign(w.dangerous(live)))), callv1.Code_CODE_NOT_FOUND},
		"for another session":   {altered(func(s *statement.Statement) { s.Session = sibling.Ref }), callv1.Code_CODE_NOT_FOUND},
		"for another principal": {altered(func(s *statement.Statement) { s.Principal = other }), callv1.Code_CODE_DENIED},
		"a changed signature": {&callv1.HumanStatement{Statement: w.sign(good).GetStatement(), Signature: h.GetSignature()},
			callv1.Code_CODE_DENIED},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.book.ConfirmDangerous(t.Context(), c.h, "operator")
			wantCode(t, err, c.code)
		})
	}
	if _, ok := w.book.Dangerous(live.Ref); ok {
		t.Fatal("in dangerous mode")
	}
	_, err = w.book.ConfirmDangerous(t.Context(), w.sign(good), "operator")
	w.must(err)
	// One that differs in what it says beside the party is none, and uses the proposal up.
	for name, h2 := range map[string]func(first *callv1.HumanStatement) *callv1.HumanStatement{
		"made at once": func(first *callv1.HumanStatement) *callv1.HumanStatement {
			s := w.confirmation(first)
			s.IssuedAt, s.NotBefore = second.IssuedAt, second.NotBefore
			return w.sign(s)
		},
		"another end": func(first *callv1.HumanStatement) *callv1.HumanStatement {
			s := w.confirmation(first)
			s.ExpiresAt = statement.FormatTime(w.Now().Add(time.Hour))
			return w.sign(s)
		},
	} {
		t.Run(name, func(t *testing.T) {
			first := w.sign(w.dangerous(sibling))
			_, _, _, err := w.book.ProposeDangerous(t.Context(), first, "operator")
			w.must(err)
			w.advance(5 * time.Second)
			_, err = w.book.ConfirmDangerous(t.Context(), h2(first), "operator")
			wantCode(t, err, callv1.Code_CODE_DENIED)
		})
	}
	if _, ok := w.book.Dangerous(sibling.Ref); ok {
		t.Error("in dangerous mode")
	}
}

// Dangerous mode is for as many changes as the human signed: the next one asks, and what was covered still holds.
func TestDangerousModeIsUsedUp(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	mode := w.dangerous(live)
	mode.Uses = 2
	h := w.sign(mode)
	_, _, _, err := w.book.ProposeDangerous(t.Context(), h, "operator")
	w.must(err)
	w.advance(5 * time.Second)
	_, err = w.confirm(h)
	w.must(err)
	r := w.request(live, "start_service", "a")
	var last *store.Operation
	for i := range 2 {
		got, _, ok := w.book.UseDangerous(&r.Operation)
		if !ok {
			t.Fatalf("use %d is refused", i+1)
		}
		last, _, err = w.queue.Run(t.Context(), w.request(live, "start_service", string(rune('a'+i))), got, true)
		w.must(err)
	}
	if _, _, ok := w.book.UseDangerous(&r.Operation); ok {
		t.Error("a third use of two")
	}
	if _, ok := w.book.Dangerous(live.Ref); ok {
		t.Error("in dangerous mode without uses")
	}
	w.must(w.redeem(last))
	w.advance(4 * time.Second)
	w.book.Sweep(t.Context())
	if n := w.ends("it was used up"); n != 1 {
		t.Errorf("its end is recorded %d times", n)
	}
	// A gateway that begins to watch now is told of no mode, and another mode takes the place of none.
	ctx, cancel := context.WithCancel(t.Context())
	err = w.book.Watch(ctx, func() error { cancel(); return nil }, func(c *vaultv1.WatchSessionsResponse) error { return fmt.Errorf("told of %v", c) })
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.enable(live)
	if n := len(w.audit.of(auditv1.Kind_KIND_STANDING_ENDED)); n != 1 {
		t.Errorf("%d ends are recorded of one", n)
	}
}

func TestProposalsLapse(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	h := w.sign(w.dangerous(live))
	_, _, _, err := w.book.ProposeDangerous(t.Context(), h, "operator")
	w.must(err)
	w.advance(time.Minute + time.Nanosecond)
	_, err = w.confirm(h)
	wantCode(t, err, callv1.Code_CODE_EXPIRED)
	// What changed in between counts: a halt, a closed session.
	h = w.sign(w.dangerous(live))
	_, _, _, err = w.book.ProposeDangerous(t.Context(), h, "operator")
	w.must(err)
	w.advance(5 * time.Second)
	_, err = w.halt.Halt(t.Context(), "alice", "", w.Now())
	w.must(err)
	_, err = w.confirm(h)
	wantCode(t, err, callv1.Code_CODE_HALTED)
	w.book.Sweep(t.Context())
	if all, _ := w.book.List(); len(all) != 0 {
		t.Errorf("%v", all)
	}
	// So does the key that proposed it.
	gone := newWorld(t)
	h = gone.sign(gone.dangerous(gone.open(bound)))
	_, _, _, err = gone.book.ProposeDangerous(t.Context(), h, "operator")
	gone.must(err)
	gone.advance(5 * time.Second)
	gone.WriteTrust(trust.FileAllowedSigners, []byte("\n"))
	gone.must(gone.Trust.Reload())
	_, err = gone.confirm(h)
	wantCode(t, err, callv1.Code_CODE_DENIED)
	if all, _ := gone.book.List(); len(all) != 0 {
		t.Errorf("%v", all)
	}
	// A revocation takes back what was proposed, too.
	fresh := newWorld(t)
	s := fresh.open(bound)
	h = fresh.sign(fresh.dangerous(s))
	_, _, _, err = fresh.book.ProposeDangerous(t.Context(), h, "operator")
	fresh.must(err)
	_, err = fresh.book.Revoke(t.Context(), "", s.Ref, "", "alice")
	fresh.must(err)
	fresh.advance(5 * time.Second)
	_, err = fresh.confirm(h)
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
}

// A proposal that is taken back while it is recorded, and then could not be, takes no other with it.
func TestAProposalThatFailsLeavesAnother(t *testing.T) {
	w := newWorld(t)
	s := w.open(bound)
	second := w.sign(w.dangerous(s))
	w.audit.meanwhile = func() {
		w.audit.meanwhile = nil
		_, err := w.book.Revoke(t.Context(), "", s.Ref, "", "alice")
		w.must(err)
		_, _, _, err = w.book.ProposeDangerous(t.Context(), second, "operator")
		w.must(err)
		w.audit.down = true
	}
	if _, _, _, err := w.book.ProposeDangerous(t.Context(), w.sign(w.dangerous(s)), "operator"); err == nil {
		t.Fatal("it is proposed without a record")
	}
	w.audit.down = false
	w.advance(5 * time.Second)
	_, err := w.confirm(second)
	w.must(err)
}

// What is revoked while it is recorded is never in force, whatever the revocation names.
func TestWhatIsRevokedMeanwhileIsNotInForce(t *testing.T) {
	for kind, grant := range map[string]func(w *world, live *session.Session) (id string, grant func() error){
		"a scope": func(w *world, live *session.Session) (string, func() error) {
			st := w.scope(live, 3)
			return st.ID, func() error {
				_, err := w.book.GrantScope(t.Context(), w.sign(st), nil, "operator")
				return err
			}
		},
		"dangerous mode": func(w *world, live *session.Session) (string, func() error) {
			st := w.dangerous(live)
			h := w.sign(st)
			_, _, _, err := w.book.ProposeDangerous(t.Context(), h, "operator")
			w.must(err)
			w.advance(5 * time.Second)
			return st.ID, func() error {
				_, err := w.confirm(h)
				return err
			}
		},
	} {
		for _, named := range []string{"all", "its session", "its id"} {
			t.Run(kind+", "+named, func(t *testing.T) {
				w := newWorld(t)
				live := w.open(bound)
				id, grant := grant(w, live)
				w.audit.meanwhile = func() {
					// It has no answer yet that says that the id is in force.
					_, _ = w.book.Revoke(t.Context(), map[string]string{"its id": id}[named], map[string]string{"its session": live.Ref}[named], "", "alice")
				}
				wantCode(t, grant(), callv1.Code_CODE_DENIED)
				if all, _ := w.book.List(); len(all) != 0 || w.ends("an operator ended what is in force, or some of it, while this was being granted") != 1 {
					t.Errorf("in force: %v; ends %v", all, w.audit.of(auditv1.Kind_KIND_STANDING_ENDED))
				}
				w.audit.meanwhile = nil
				w.granted(live, 1) // the next grant is another
			})
		}
	}
}

// Whoever watches is told at once: of a beginning, of an end, of a halt, of a session that is over, and each time that lists may have changed.
func TestWatch(t *testing.T) {
	w := newWorld(t)
	first := w.open(bound)
	w.enable(first)
	var lists clock.Signal
	w.book.Lists = lists.Wait
	heard := make(chan *vaultv1.WatchSessionsResponse, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error, 1)
	go func() {
		over <- w.book.Watch(ctx, func() error { return nil }, func(c *vaultv1.WatchSessionsResponse) error {
			heard <- c
			return nil
		})
	}()
	next := func() *vaultv1.WatchSessionsResponse {
		t.Helper()
		select {
		case got := <-heard:
			return got
		case <-time.After(5 * time.Second):
			t.Fatal("nobody was told")
			return nil
		}
	}
	if got := next(); got.GetSession() != first.Ref || got.GetDangerousUntil() == nil || got.GetEnded() {
		t.Errorf("at the beginning: %+v", got)
	}
	for range 2 {
		lists.Raise()
		if got := next(); !proto.Equal(got, &vaultv1.WatchSessionsResponse{ListsChanged: true}) {
			t.Errorf("when rules change: %+v", got)
		}
	}
	second := w.open(bound)
	id := w.enable(second)
	if got := next(); got.GetSession() != second.Ref || got.GetDangerousUntil() == nil {
		t.Errorf("at a grant: %+v", got)
	}
	_, err := w.book.Revoke(t.Context(), id, "", "", "alice")
	w.must(err)
	if got := next(); got.GetSession() != second.Ref || got.GetDangerousUntil() != nil || got.GetEnded() {
		t.Errorf("at its end: %+v", got)
	}
	w.book.SessionEnded(t.Context(), second.Ref)
	if got := next(); got.GetSession() != second.Ref || !got.GetEnded() {
		t.Errorf("at the session's end: %+v", got)
	}
	_, err = w.halt.Halt(t.Context(), "alice", "", w.Now())
	w.must(err)
	if got := next(); got.GetSession() != first.Ref || got.GetDangerousUntil() != nil {
		t.Errorf("at a halt: %+v", got)
	}
	cancel()
	<-over
}
