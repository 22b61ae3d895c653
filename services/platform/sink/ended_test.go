package sink

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
)

// TestDangerousModeTakesTwoSignatures: what a vault has when a human said no, or said nothing more.
func TestDangerousModeTakesTwoSignatures(t *testing.T) {
	for name, second := range map[string]func(first *statement.Statement, signed []byte) *statement.Statement{
		"none": nil,
		"of another statement": func(first *statement.Statement, _ []byte) *statement.Statement {
			other := *first
			other.ID = grant.NewID()
			raw, _ := other.Marshal()
			return confirmation(&other, raw)
		},
		"made at once": func(first *statement.Statement, signed []byte) *statement.Statement {
			st := confirmation(first, signed)
			st.IssuedAt, st.NotBefore = first.IssuedAt, first.NotBefore
			return st
		},
		"with another end": func(first *statement.Statement, signed []byte) *statement.Statement {
			st := confirmation(first, signed)
			st.ExpiresAt = statement.FormatTime(time.Now().Add(time.Hour))
			return st
		},
		"a second dangerous one": func(first *statement.Statement, _ []byte) *statement.Statement {
			other := *first
			other.ID = grant.NewID()
			return &other
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			p := s.dangerous("start_service", startAlpha())
			p.confirm = second
			s.refused(s.call(p, startAlpha()), callv1.Code_CODE_DENIED, "second statement")
		})
	}
}

// TestDangerousModeIsCounted: so many changes as the human signed, whatever the vault says.
func TestDangerousModeIsCounted(t *testing.T) {
	s := newStand(t)
	p := s.dangerous("start_service", startAlpha())
	p.statement.Uses = 2
	for i := range 3 {
		again := s.dangerous("start_service", startAlpha())
		again.statement = p.statement
		err := s.call(again, startAlpha())
		if want := i == 2; want != fault.Is(err, callv1.Code_CODE_ALREADY_SPENT) {
			t.Errorf("use %d: %v", i+1, err)
		}
	}
	if s.effects != 2 {
		t.Errorf("%d effects", s.effects)
	}
}

// end ends what a paper was signed for, at the sink alone.
func (s *stand) end(p *paper) {
	s.t.Helper()
	if err := s.EndStanding(context.Background(), p.grant.GetStatements()); err != nil {
		s.t.Error(err)
	}
}

// TestWhatAnOperatorEndedHereIsVoid: whatever the vault says, and after a restart.
func TestWhatAnOperatorEndedHereIsVoid(t *testing.T) {
	for name, paper := range map[string]func(s *stand) *paper{
		"a scope":        func(s *stand) *paper { return s.scoped("start_service", startAlpha(), 10) },
		"dangerous mode": func(s *stand) *paper { return s.dangerous("start_service", startAlpha()) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			p := paper(s)
			must(t, s.call(p, startAlpha()))
			s.end(p)
			last := s.last()
			if last.GetKind() != auditv1.Kind_KIND_STANDING_ENDED || last.GetBody().GetDetails()["statement"] != p.statement.ID {
				t.Errorf("recorded as %v", last)
			}
			for _, restarted := range []bool{false, true} {
				again := paper(s)
				again.statement = p.statement
				if restarted {
					s.ended = map[[32]byte]time.Time{}
				}
				if err := s.call(again, startAlpha()); !fault.Is(err, callv1.Code_CODE_ALREADY_SPENT) {
					t.Errorf("restarted %v: %v", restarted, err)
				}
			}
			other := paper(s)
			if err := s.call(other, startAlpha()); err != nil {
				t.Errorf("another statement: %v", err)
			}
			if s.effects != 2 {
				t.Errorf("%d effects", s.effects)
			}
		})
	}
}

// TestAnApprovalThatWasTakenBackIsVoid: before its call has come, whatever the vault says.
func TestAnApprovalThatWasTakenBackIsVoid(t *testing.T) {
	s := newStand(t)
	p := s.approved("start_service", startAlpha())
	h, err := statement.Sign(p.statement, s.kit.OperatorSigner)
	must(t, err)
	must(t, s.EndStanding(t.Context(), []*callv1.HumanStatement{h}))
	if err := s.call(p, startAlpha()); !fault.Is(err, callv1.Code_CODE_ALREADY_SPENT) || s.effects != 0 {
		t.Errorf("%v, %d effects", err, s.effects)
	}
}

// TestNothingBeginsOnceItEnded: a call that was redeemed and waits, for less than it takes to be put to the vault again, begins no
// more when what it rests on ended: its statement here, or anything at the vault. Nor does what was confirmed before and is late.
func TestNothingBeginsOnceItEnded(t *testing.T) {
	over := fault.New(callv1.Code_CODE_EXPIRED, "it has ended")
	for name, c := range map[string]struct {
		paper func(s *stand) *paper
		// ends is what happens while the call waits.
		ends func(s *stand, p *paper)
		code callv1.Code
	}{
		"its scope, here": {func(s *stand) *paper { return s.scoped("start_service", startAlpha(), 10) },
			func(s *stand, p *paper) { s.end(p) }, callv1.Code_CODE_EXPIRED},
		"dangerous mode, here": {func(s *stand) *paper { return s.dangerous("start_service", startAlpha()) },
			func(s *stand, p *paper) { s.end(p) }, callv1.Code_CODE_EXPIRED},
		"its approval, here": {func(s *stand) *paper { return s.approved("start_service", startAlpha()) },
			func(s *stand, p *paper) { s.end(p) }, callv1.Code_CODE_EXPIRED},
		"its scope, at the vault": {func(s *stand) *paper { return s.scoped("start_service", startAlpha(), 10) },
			func(s *stand, _ *paper) { s.clerk.answer = over; s.end(&paper{grant: &callv1.Grant{}}) }, callv1.Code_CODE_EXPIRED},
		"its client, after a human approved it": {func(s *stand) *paper { return s.approved("start_service", startAlpha()) },
			func(s *stand, _ *paper) { s.clerk.answer = over; s.end(&paper{grant: &callv1.Grant{}}) }, callv1.Code_CODE_EXPIRED},
		"another's scope": {func(s *stand) *paper { return s.scoped("start_service", startAlpha(), 10) },
			func(s *stand, _ *paper) { s.end(&paper{grant: &callv1.Grant{}}) }, callv1.Code_CODE_UNSPECIFIED},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", late ", late), func(t *testing.T) {
				s := newStand(t)
				s.late = late
				p := c.paper(s)
				s.handle = func(context.Context) { c.ends(s, p) }
				err := s.call(p, startAlpha())
				if c.code == callv1.Code_CODE_UNSPECIFIED {
					if err != nil || s.effects != 1 || s.clerk.checked != 1 {
						t.Errorf("%v, %d effects, the vault was asked %d times", err, s.effects, s.clerk.checked)
					}
					return
				}
				if !fault.Is(err, c.code) || s.effects != 0 {
					t.Errorf("%v, %d effects", err, s.effects)
				}
			})
		}
	}
}

// TestAnEndWaitsForWhatIsBeginning: when it has answered, nothing begins any more.
func TestAnEndWaitsForWhatIsBeginning(t *testing.T) {
	a, store, _ := newAuthority(t, platformtest.New(t))
	waitsForWhatIsBeginning(t, a, store, func() error { return a.EndStanding(t.Context(), nil) }, func() {})
}

// refusing is a store whose disk takes nothing more.
type refusing struct{ *memory }

func (refusing) EndStatement(context.Context, [32]byte, time.Time) error {
	return errors.New("no space")
}

// TestAnEndIsInForceThoughTheDiskRefuses: and it says that it is not durable. What no operator signed ends nothing.
func TestAnEndIsInForceThoughTheDiskRefuses(t *testing.T) {
	s := newStand(t, func(c *Config) { c.Store = refusing{c.Store.(*memory)} })
	p := s.scoped("start_service", startAlpha(), 10)
	must(t, s.call(p, startAlpha()))
	if err := s.EndStanding(t.Context(), p.grant.GetStatements()); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("it is said to be durable: %v", err)
	}
	again := s.scoped("start_service", startAlpha(), 10)
	again.statement = p.statement
	if err := s.call(again, startAlpha()); !fault.Is(err, callv1.Code_CODE_EXPIRED) || s.effects != 1 {
		t.Errorf("%v, %d effects", err, s.effects)
	}
	forged := proto.CloneOf(p.grant.GetStatements()[0])
	forged.Signature = []byte("-----BEGIN SSH SIGNATURE-----")
	before := len(s.ended)
	if err := s.EndStanding(t.Context(), []*callv1.HumanStatement{forged}); err != nil || len(s.ended) != before {
		t.Errorf("%v, %d ended", err, len(s.ended))
	}
}

// TestHaltedBeforeItBegan: a halt ends the context of a change that leaves this host. One that was not confirmed by then was not made, whatever
// its handler says of that end.
func TestHaltedBeforeItBegan(t *testing.T) {
	s := newStand(t)
	for method, tool := range s.tools {
		tool.Leaves = true
		s.tools[method] = tool
	}
	s.handle = func(context.Context) {
		if _, err := s.Halt(t.Context(), "", 0); err != nil {
			t.Error(err)
		}
	}
	s.refused(s.call(s.approved("start_service", startAlpha()), startAlpha()), callv1.Code_CODE_HALTED, "spent but not acted")
}
