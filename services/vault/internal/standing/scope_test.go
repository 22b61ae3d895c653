package standing_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/standing"
	"golang.org/x/crypto/ssh"
)

const (
	pending  = vaultv1.OperationState_OPERATION_STATE_PENDING
	approved = vaultv1.OperationState_OPERATION_STATE_APPROVED
	running  = vaultv1.OperationState_OPERATION_STATE_RUNNING
	expired  = vaultv1.OperationState_OPERATION_STATE_EXPIRED
)

func TestGrantScopeRefuses(t *testing.T) {
	w := newWorld(t)
	live, unbound, theirs := w.open(bound), w.open(bearer), w.open(other)
	stranger := platformtest.New(t)
	own, err := ssh.NewSignerFromKey(w.keys[bound])
	w.must(err)
	// A human's mistake: a client's key is an operator's too.
	w.WriteTrust(trust.FileAllowedSigners, []byte(trust.FormatSigner(platformtest.Operator, w.OperatorSigner.PublicKey(), statement.Namespace)+"\n"+
		trust.FormatSigner("mallory", own.PublicKey(), statement.Namespace)+"\n"))
	w.must(w.Trust.Reload())
	signedBy := func(signer ssh.Signer, s *statement.Statement) *callv1.HumanStatement {
		h, err := statement.Sign(s, signer)
		w.must(err)
		return h
	}
	for name, c := range map[string]struct {
		session *session.Session
		change  func(*statement.Statement)
		sign    func(*statement.Statement) *callv1.HumanStatement
		code    callv1.Code
	}{
		"a bearer client":           {session: unbound},
		"another client's session":  {change: func(s *statement.Statement) { s.Session = theirs.Ref }},
		"another principal":         {change: func(s *statement.Statement) { s.Principal = other }},
		"no such session":           {change: func(s *statement.Statement) { s.Session = "s-nobody" }},
		"another channel":           {change: func(s *statement.Statement) { s.Channel = "api" }},
		"another audience":          {change: func(s *statement.Statement) { s.Audience = "spiffe://durward.local/executor/elsewhere" }},
		"another epoch":             {change: func(s *statement.Statement) { s.Epoch++ }, code: callv1.Code_CODE_EXPIRED},
		"a tool that is not there":  {change: func(s *statement.Statement) { s.Tools[0].Name = "format_disk" }},
		"another definition":        {change: func(s *statement.Statement) { s.Tools[0].DefinitionDigest = subject }},
		"too long for the settings": {change: func(s *statement.Statement) { s.ExpiresAt = statement.FormatTime(w.Now().Add(5 * time.Hour)) }},
		"too often":                 {change: func(s *statement.Statement) { s.Uses = 11 }},
		"a stranger's key":          {sign: func(s *statement.Statement) *callv1.HumanStatement { return signedBy(stranger.OperatorSigner, s) }},
		"the client's own key": {change: func(s *statement.Statement) { s.Operator = "mallory" },
			sign: func(s *statement.Statement) *callv1.HumanStatement { return signedBy(own, s) }},
		"altered after signing": {sign: func(s *statement.Statement) *callv1.HumanStatement {
			h := w.sign(s)
			s.Uses = 9
			raw, err := s.Marshal()
			w.must(err)
			h.Statement = raw
			return h
		}},
		"expired": {change: func(s *statement.Statement) {
			past := w.Now().Add(-time.Hour)
			s.IssuedAt, s.NotBefore, s.ExpiresAt = statement.FormatTime(past), statement.FormatTime(past), statement.FormatTime(past.Add(time.Minute))
		}},
		"expired within the skew": {change: func(s *statement.Statement) {
			past := w.Now().Add(-time.Hour)
			s.IssuedAt, s.NotBefore, s.ExpiresAt = statement.FormatTime(past), statement.FormatTime(past), statement.FormatTime(w.Now().Add(-time.Second))
		}},
		"dangerous mode": {change: func(s *statement.Statement) {
			*s = *w.dangerous(live)
		}},
		"a resume": {change: func(s *statement.Statement) {
			*s = statement.Statement{Type: s.Type, Version: s.Version, Kind: statement.KindResume, ID: s.ID, Operator: s.Operator, IssuedAt: s.IssuedAt,
				NotBefore: s.NotBefore, ExpiresAt: statement.FormatTime(w.Now().Add(time.Minute)), Epoch: s.Epoch, Audience: s.Audience}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w.limits.ScopeMax, w.limits.ScopeMaxUses = 4*time.Hour, 10
			s := live
			if c.session != nil {
				s = c.session
			}
			if c.code == 0 {
				c.code = callv1.Code_CODE_DENIED
			}
			scope := w.scope(s, 5)
			if c.change != nil {
				c.change(scope)
			}
			if c.sign == nil {
				c.sign = w.sign
			}
			_, err := w.book.GrantScope(t.Context(), c.sign(scope), nil, "operator")
			wantCode(t, err, c.code)
		})
	}
	if all, _ := w.book.List(); len(all) != 0 {
		t.Errorf("in force after all that: %v", all)
	}
	if n := len(w.audit.of(auditv1.Kind_KIND_STANDING_GRANTED)); n != 0 {
		t.Errorf("%d grants recorded", n)
	}
	if n := len(w.audit.of(auditv1.Kind_KIND_DENIED, "standing-refused")); n != 18 {
		t.Errorf("%d refusals recorded, want 18", n)
	}
	w.must(func() error {
		_, err := w.book.GrantScope(t.Context(), w.sign(w.scope(live, 10)), nil, "operator")
		return err
	}())
}

func TestFourEyes(t *testing.T) {
	w := newWorld(t)
	w.fourEyes = true
	live := w.open(bound)
	w.granted(live, 1) // alice is not bob
	w.change(bound, func(c *clients.Client) { c.User = platformtest.Operator })
	live = w.open(bound)
	_, err := w.book.GrantScope(t.Context(), w.sign(w.scope(live, 1)), nil, "operator")
	wantCode(t, err, callv1.Code_CODE_DENIED)
	_, _, _, err = w.book.ProposeDangerous(t.Context(), w.sign(w.dangerous(live)), "operator")
	wantCode(t, err, callv1.Code_CODE_DENIED)
	o, err := w.call(live, "start_service", "a")
	w.must(err)
	digest := subject
	tool := statement.ToolOf(toolOf("start_service").Ref())
	s := w.base(statement.KindApprove, live, 10*time.Minute)
	s.Operation, s.Tool, s.Tier, s.Arguments, s.SubjectDigest, s.Uses = o.ID, &tool, "WRITE", o.Arguments, digest, 1
	s.ArgumentsDigest = argumentsDigest(o.Arguments)
	_, err = w.queue.Approve(t.Context(), o.ID, w.sign(s), "operator")
	wantCode(t, err, callv1.Code_CODE_DENIED)
	w.fourEyes = false
	_, err = w.queue.Approve(t.Context(), o.ID, w.sign(s), "operator")
	w.must(err)
}

// Four eyes are two humans: another spelling, or another name for the same key, is none.
func TestFourEyesGoByKeys(t *testing.T) {
	for name, lines := range map[string][]string{
		"another spelling":             {"Alice"},
		"another name for the key":     {"second", "alice"},
		"another name, spelled anyhow": {"second", "ALICE"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.fourEyes = true
			w.change(bound, func(c *clients.Client) { c.User = "alice" })
			live := w.open(bound)
			var file string
			for _, operator := range lines {
				file += trust.FormatSigner(operator, w.OperatorSigner.PublicKey(), statement.Namespace) + "\n"
			}
			w.WriteTrust(trust.FileAllowedSigners, []byte(file))
			w.must(w.Trust.Reload())
			s := w.scope(live, 1)
			s.Operator = lines[0]
			_, err := w.book.GrantScope(t.Context(), w.sign(s), nil, "operator")
			wantCode(t, err, callv1.Code_CODE_DENIED)
			w.fourEyes = false
			_, err = w.book.GrantScope(t.Context(), w.sign(s), nil, "operator")
			w.must(err)
		})
	}
}

// A session that ends while its scope is recorded has none, and nobody is told that it has.
func TestASessionThatEndsMeanwhileHasNoScope(t *testing.T) {
	w := newWorld(t)
	handle, live := w.openHandle(bound)
	w.audit.meanwhile = func() { w.sessions.Close(handle) }
	_, err := w.book.GrantScope(t.Context(), w.sign(w.scope(live, 3)), nil, "operator")
	wantCode(t, err, callv1.Code_CODE_DENIED)
	if all, _ := w.book.List(); len(all) != 0 || w.ends("its session ended") != 1 {
		t.Errorf("in force: %v; its end is recorded %d times", all, w.ends("its session ended"))
	}
}

// A scope runs what it covers, so often as it says, and nothing else.
func TestScope(t *testing.T) {
	w := newWorld(t)
	live, sibling := w.open(bound), w.open(bound)
	id := w.granted(live, 2)
	o, err := w.call(live, "start_service", "a")
	w.must(err)
	if o.State != approved || o.Authority != "scope" || o.DecidedBy != platformtest.Operator || o.Dangerous || len(o.SubjectDigest) != 0 ||
		o.ExpiresAt.Sub(w.Now()) > time.Minute {
		t.Errorf("%+v", o)
	}
	signed, err := w.queue.Issue(t.Context(), o)
	w.must(err)
	g, err := grant.Verify(signed, w.Trust, w.Now())
	w.must(err)
	v, err := statement.Verify(g.GetStatements()[0], w.Trust.Current().AllowedSigners, w.Now())
	w.must(err)
	w.must(v.Covers(g, toolOf("start_service").Ref(), o.Tier, o.Arguments, nil)) // what the sink will check
	if v.ID != id || g.GetDangerous() || len(g.GetSubjectDigest()) != 0 {
		t.Errorf("grant %v", g)
	}
	// The identical call at the same time is the same operation, and takes no use.
	same, err := w.call(live, "start_service", "a")
	w.must(err)
	if same.ID != o.ID || w.usesLeft(id) != 1 {
		t.Errorf("operation %s, %d uses left", same.ID, w.usesLeft(id))
	}
	_, err = w.queue.Redeem(t.Context(), signed, w.sink)
	w.must(err)
	_, err = w.queue.Redeem(t.Context(), signed, w.sink)
	wantCode(t, err, callv1.Code_CODE_ALREADY_SPENT)
	w.must(w.queue.Settle(t.Context(), o.ID, 1, true, w.sink))

	// Another tool, another session of the same client, another client: they ask.
	for name, c := range map[string]struct {
		s    *session.Session
		tool string
	}{"another tool": {live, "stop_service"}, "another session": {sibling, "start_service"}, "another client": {w.open(other), "start_service"}} {
		o, err := w.call(c.s, c.tool, "b")
		w.must(err)
		if o.State != pending {
			t.Errorf("%s: %s", name, o.State)
		}
	}
	second, err := w.call(live, "start_service", "a")
	w.must(err)
	if second.ID == o.ID || second.State != approved {
		t.Errorf("the second use: %+v", second)
	}
	third, err := w.call(live, "start_service", "c")
	w.must(err)
	if third.State != pending {
		t.Errorf("a third use of two: %s", third.State)
	}
	w.must(w.redeem(second)) // a scope that is used up holds for what it covered
	w.advance(time.Minute)
	w.book.Sweep(t.Context())
	w.book.Sweep(t.Context())
	if n := w.ends("it was used up"); n != 1 {
		t.Errorf("recorded %d times that it was used up", n)
	}
	if n := len(w.audit.of(auditv1.Kind_KIND_APPROVED, "scope")); n != 2 {
		t.Errorf("%d uses recorded", n)
	}
	kept, err := w.store.StandingOf(t.Context(), live.Ref)
	w.must(err)
	if len(kept) != 1 || kept[0].ID != id || kept[0].Used != 2 || kept[0].EndedWhy != "it was used up" || kept[0].Operator != platformtest.Operator {
		t.Errorf("evidence %+v", kept[0])
	}
}

// A session that asks what it may do has its own permissions judged, however many others have.
func TestASessionsOwn(t *testing.T) {
	w := newWorld(t)
	one, two := w.open(bound), w.open(bound)
	id := w.granted(one, 2)
	w.granted(two, 2)
	w.granted(two, 3)
	before := w.judged
	if own := w.book.Of(one.Ref); len(own) != 1 || own[0].GetStandingId() != id || w.judged != before+1 {
		t.Errorf("%v, by %d signatures", own, w.judged-before)
	}
	if all, _ := w.book.List(); len(all) != 3 {
		t.Errorf("in all %v", all)
	}
}

// The same statement is taken once, also after a revocation and a restart.
func TestScopeIsNotReplayed(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	h := w.sign(w.scope(live, 3))
	g, err := w.book.GrantScope(t.Context(), h, nil, "operator")
	w.must(err)
	_, err = w.book.GrantScope(t.Context(), h, nil, "operator")
	wantCode(t, err, callv1.Code_CODE_ALREADY_SPENT)
	_, err = w.book.Revoke(t.Context(), g.GetStandingId(), "", "", "operator")
	w.must(err)
	_, err = w.book.GrantScope(t.Context(), h, nil, "operator")
	wantCode(t, err, callv1.Code_CODE_ALREADY_SPENT)
	w.start()
	_, err = w.book.GrantScope(t.Context(), h, nil, "operator")
	wantCode(t, err, callv1.Code_CODE_DENIED) // its session is gone
	if all, _ := w.book.List(); len(all) != 0 {
		t.Errorf("in force: %v", all)
	}
}

// Of a thousand calls at once, as many run as the scope has uses.
func TestUsesHoldUnderLoad(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	id := w.granted(live, 10)
	var ran atomic.Int32
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			r := w.request(live, "start_service", fmt.Sprintf("s%d", i))
			for range 10 {
				h, giveBack, ok := w.book.Use(&r.Operation)
				if !ok {
					continue
				}
				o, joined, err := w.queue.Run(context.Background(), r, h, false)
				if joined || err != nil {
					giveBack()
					giveBack() // once is enough
					continue
				}
				if w.redeem(o) == nil {
					ran.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := ran.Load(); n > 10 || int(n)+w.usesLeft(id) != 10 {
		t.Errorf("%d ran, %d uses left of 10", n, w.usesLeft(id))
	}
}

// Whatever ends standing authority ends it at once, voids what was approved by it and did not begin, and is recorded once.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		end func(w *world, handle string, s *session.Session, id string)
		why string
	}{
		"its time": {func(w *world, _ string, _ *session.Session, _ string) { w.advance(2 * time.Hour) }, "its time is over"},
		"a halt": {func(w *world, _ string, _ *session.Session, _ string) {
			_, err := w.halt.Halt(context.Background(), "alice", "", w.Now())
			w.must(err)
		}, "everything was halted"},
		"the session's close":  {func(w *world, handle string, _ *session.Session, _ string) { w.sessions.Close(handle) }, "its session ended"},
		"the session's idling": {func(w *world, _ string, _ *session.Session, _ string) { w.advance(session.IdleTimeout) }, "its session ended"},
		"a revoked client": {func(w *world, _ string, _ *session.Session, _ string) {
			w.change(bound, func(c *clients.Client) { c.Revoked = true })
		}, "its client is not let in any more"},
		"another credential": {func(w *world, _ string, _ *session.Session, _ string) {
			w.change(bound, func(c *clients.Client) { c.Token[0]++ })
		}, "its client is not let in any more"},
		"a client without keys": {func(w *world, _ string, _ *session.Session, _ string) {
			w.change(bound, func(c *clients.Client) { c.Key = nil })
		}, "its client is not let in any more"},
		"the operator's key": {func(w *world, _ string, _ *session.Session, _ string) {
			w.WriteTrust(trust.FileAllowedSigners, []byte("\n"))
			w.must(w.Trust.Reload())
		}, "the key that signed it is no operator's any more"},
		"an operator": {func(w *world, _ string, _ *session.Session, id string) {
			_, err := w.book.Revoke(context.Background(), id, "", "enough", "alice")
			w.must(err)
		}, "an operator ended it: enough"},
		"an operator, for the session": {func(w *world, _ string, s *session.Session, _ string) {
			_, err := w.book.Revoke(context.Background(), "", s.Ref, "", "alice")
			w.must(err)
		}, "an operator ended it"},
		"an operator, for all": {func(w *world, _ string, _ *session.Session, _ string) {
			_, err := w.book.Revoke(context.Background(), "", "", "", "alice")
			w.must(err)
		}, "an operator ended it"},
		"a mute": {func(w *world, _ string, _ *session.Session, _ string) {
			_, err := w.book.Mute(context.Background(), bound, time.Hour, "", "alice")
			w.must(err)
		}, "an operator muted its client"},
		"the server's word": {func(w *world, handle string, s *session.Session, _ string) {
			w.sessions.Close(handle)
			w.book.SessionEnded(context.Background(), s.Ref)
		}, "its session ended"},
		"a restart": {func(w *world, _ string, _ *session.Session, _ string) { w.start() }, "the vault was restarted"},
	} {
		for _, kind := range []string{"scope", "dangerous"} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				w := newWorld(t)
				handle, live := w.openHandle(bound)
				r := w.request(live, "start_service", "a")
				var id string
				var h *callv1.HumanStatement
				if kind == "scope" {
					id = w.granted(live, 5)
					h, _, _ = w.book.Use(&r.Operation)
				} else {
					id = w.enable(live)
					h, _, _ = w.book.UseDangerous(&r.Operation)
				}
				o, _, err := w.queue.Run(t.Context(), r, h, kind == "dangerous")
				w.must(err)
				signed, err := w.queue.Issue(t.Context(), o)
				w.must(err)

				c.end(w, handle, live, id)
				if kind == "scope" {
					next := w.request(live, "start_service", "b")
					if _, _, ok := w.book.Use(&next.Operation); ok {
						t.Error("used afterwards")
					}
				} else if _, ok := w.book.Dangerous(live.Ref); ok {
					t.Error("dangerous afterwards")
				}
				if all, _ := w.book.List(); len(all) != 0 {
					t.Errorf("shown as in force: %v", all)
				}
				if _, err := w.queue.Issue(t.Context(), o); err == nil {
					t.Error("a grant was issued afterwards")
				}
				if _, err := w.queue.Redeem(t.Context(), signed, w.sink); err == nil {
					t.Error("its grant was redeemed afterwards")
				}
				for range 3 {
					w.book.Sweep(t.Context())
					w.must(w.queue.Sweep(t.Context()))
				}
				if n := w.ends(c.why); n != 1 || len(w.audit.of(auditv1.Kind_KIND_STANDING_ENDED)) != 1 {
					t.Errorf("recorded %d times in %d that %s", n, len(w.audit.of(auditv1.Kind_KIND_STANDING_ENDED)), c.why)
				}
				kept, err := w.store.StandingOf(t.Context(), live.Ref)
				w.must(err)
				if len(kept) != 1 || kept[0].EndedWhy != c.why || kept[0].EndedAt.IsZero() {
					t.Errorf("evidence %+v", kept)
				}
				if name != "a halt" { // during a halt what waits is kept for the resume to void
					if got, _, err := w.queue.Lookup(t.Context(), o.ID); err != nil || got.State != expired {
						t.Errorf("the operation is %v, %v", got, err)
					}
				}
			})
		}
	}
}

// What an operation that nobody was asked about left behind in a crash is gone in a minute.
func TestRunLife(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	r := w.request(live, "start_service", "a")
	o, _, err := w.queue.Run(t.Context(), r, nil, false) // unattended, by a human's file
	w.must(err)
	if o.Authority != "unattended" || o.HumanStatement() != nil {
		t.Errorf("%+v", o)
	}
	w.start()
	if _, joined, err := w.queue.Run(t.Context(), r, nil, false); err != nil || !joined {
		t.Errorf("joined %v, %v", joined, err)
	}
	w.advance(time.Minute)
	w.must(w.queue.Sweep(t.Context()))
	got, _, err := w.queue.Lookup(t.Context(), o.ID)
	w.must(err)
	if got.State != expired {
		t.Errorf("after a minute: %s", got.State)
	}
	wantCode(t, w.redeem(o), callv1.Code_CODE_EXPIRED)
}

func TestRunRefuses(t *testing.T) {
	w := newWorld(t)
	live, unbound := w.open(bound), w.open(bearer)
	scope := w.sign(w.scope(live, 5))
	mode := w.sign(w.dangerous(live))
	for name, c := range map[string]struct {
		s         *session.Session
		tool      string
		h         *callv1.HumanStatement
		dangerous bool
	}{
		"unattended, of a bearer client":     {unbound, "start_service", nil, false},
		"dangerous without a statement":      {live, "start_service", nil, true},
		"a scope as dangerous mode":          {live, "start_service", scope, true},
		"dangerous mode as a scope":          {live, "start_service", mode, false},
		"a scope of another tool":            {live, "stop_service", scope, false},
		"a scope of another session":         {w.open(bound), "start_service", scope, false},
		"dangerous mode of another session":  {w.open(bound), "start_service", mode, true},
		"a scope of another client":          {w.open(other), "start_service", scope, false},
		"a scope, of a bearer client":        {unbound, "start_service", w.sign(w.scope(unbound, 5)), false},
		"dangerous mode, of a bearer client": {unbound, "start_service", w.sign(w.dangerous(unbound)), true},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := w.queue.Run(t.Context(), w.request(c.s, c.tool, "a"), c.h, c.dangerous)
			wantCode(t, err, callv1.Code_CODE_DENIED)
		})
	}
	// A statement that is in force nowhere gets as far as the queue's own check, and no grant.
	o, _, err := w.queue.Run(t.Context(), w.request(live, "start_service", "a"), scope, false)
	w.must(err)
	wantCode(t, w.redeem(o), callv1.Code_CODE_EXPIRED)
}

func TestCaps(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	for range standing.PerSession {
		w.granted(live, 1)
	}
	_, err := w.book.GrantScope(t.Context(), w.sign(w.scope(live, 1)), nil, "operator")
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	used, err := w.call(live, "start_service", "a")
	w.must(err)
	w.must(w.redeem(used))
	w.advance(time.Minute)
	w.book.Sweep(t.Context())
	w.granted(live, 1) // in the place of the one that is used up, which nobody is shown any more
	_, err = w.book.GrantScope(t.Context(), w.sign(w.scope(live, 1)), nil, "operator")
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	for n := standing.PerSession; n < standing.InAll; {
		s := w.open(bound)
		for range standing.PerSession {
			w.granted(s, 1)
			n++
		}
	}
	_, err = w.book.GrantScope(t.Context(), w.sign(w.scope(w.open(other), 1)), nil, "operator")
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	if ended, err := w.book.Revoke(t.Context(), "", "", "", "alice"); err != nil || len(ended) != standing.InAll {
		t.Errorf("%d ended, %v", len(ended), err)
	}
	for i := range 64 {
		_, _, err := w.queue.Run(t.Context(), w.request(live, "start_service", fmt.Sprintf("s%d", i)), nil, false)
		w.must(err)
	}
	_, _, err = w.queue.Run(t.Context(), w.request(live, "start_service", "one-more"), nil, false)
	wantCode(t, err, callv1.Code_CODE_TOO_MANY_PENDING)
}

// Nothing is granted that cannot be recorded, and a use that came to nothing is given back.
func TestWithoutAudit(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	id := w.granted(live, 1)
	w.audit.down = true
	_, err := w.book.GrantScope(t.Context(), w.sign(w.scope(live, 1)), nil, "operator")
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	_, _, _, err = w.book.ProposeDangerous(t.Context(), w.sign(w.dangerous(live)), "operator")
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	_, err = w.call(live, "start_service", "a")
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	if n := w.usesLeft(id); n != 1 {
		t.Errorf("%d uses left", n)
	}
	// Ending is always possible.
	if ended, err := w.book.Revoke(t.Context(), id, "", "", "alice"); err != nil || len(ended) != 1 {
		t.Errorf("%v, %v", ended, err)
	}
}
