package sink

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/sink/unattended"
)

// TestWithoutItsGuard: the negative controls of TestStandingStatementsGoNoFurther, TestACallThatWaitedIsAskedAbout and TestUnattendedCallsMeetTheirEntry: with the one
// guard off, the same attack has its effect.
func TestWithoutItsGuard(t *testing.T) {
	switchMode := &executorv1.SwitchModeRequest{ModeId: proto.String("train"), PlanDigest: proto.String("0")}
	for guard, attack := range map[string]func(s *stand) error{
		"any-subject": func(s *stand) error {
			p := s.scoped("start_service", startAlpha(), 5)
			s.subject.set(`{"id":"alpha","argv":["rm"]}`)
			return s.call(p, startAlpha())
		},
		"dangerous-flag": func(s *stand) error {
			p := s.dangerous("start_service", startAlpha())
			p.grant.Dangerous = false
			return s.call(p, startAlpha())
		},
		"check": func(s *stand) error {
			var waited time.Duration
			began := time.Now()
			s.cfg.Now = func() time.Time { return began.Add(waited) }
			s.clerk.answer = fault.New(callv1.Code_CODE_EXPIRED, "it was revoked")
			s.handle = func(context.Context) { waited = time.Minute }
			return s.call(s.dangerous("start_service", startAlpha()), startAlpha())
		},
		"unattended-until": func(s *stand) error {
			if err := s.SetUnattended([]unattended.Entry{{Tool: "start_service", Until: time.Now().Add(-time.Hour)}}); err != nil {
				s.t.Fatal(err)
			}
			return s.call(s.grantFor("start_service", startAlpha()), startAlpha())
		},
		"unattended-arguments": func(s *stand) error {
			entries, err := unattended.Parse([]any{map[string]any{"tool": "switch_mode", "arguments": map[string]any{"mode_id": []any{"chat"}}}})
			if err == nil {
				err = s.SetUnattended(entries)
			}
			if err != nil {
				s.t.Fatal(err)
			}
			return s.call(s.grantFor("switch_mode", switchMode), switchMode)
		},
	} {
		s := newStand(t)
		if err := attack(s); err == nil || s.effects != 0 {
			t.Errorf("%s: with every guard the attack has an effect: %v", guard, err)
		}
		s = newStand(t)
		if err := Guards.Weaken(guard); err != nil {
			t.Fatal(err)
		}
		if err := attack(s); err != nil || s.effects != 1 {
			t.Errorf("%s: without its guard the attack fails: %v, %d effects", guard, err, s.effects)
		}
		Guards.Restore(guard)
		unattended.Guards.Restore(guard)
	}
}
