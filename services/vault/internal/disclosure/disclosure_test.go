package disclosure

import (
	"context"
	"errors"
	"testing"
	"time"

	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/store"
)

func rule() Rule {
	return Rule{Types: []string{"EMAIL"}, Sink: "executor", Tool: "start_service", Arguments: []string{"/service_id"}}
}

func TestNothingLeavesWithoutARule(t *testing.T) {
	p := New([]Rule{rule()}, nil, time.Now)
	if !p.Allows("EMAIL", "executor", "start_service", "/service_id") {
		t.Fatal("the rule lets nothing go: this test proves nothing")
	}
	for name, allowed := range map[string]bool{
		"another type":      p.Allows("PHONE", "executor", "start_service", "/service_id"),
		"another sink":      p.Allows("EMAIL", "egress", "start_service", "/service_id"),
		"another tool":      p.Allows("EMAIL", "executor", "stop_service", "/service_id"),
		"another argument":  p.Allows("EMAIL", "executor", "start_service", "/service_id/0"),
		"the whole of them": p.Allows("EMAIL", "executor", "start_service", ""),
		"no rule at all":    New(nil, nil, time.Now).Allows("EMAIL", "executor", "start_service", "/service_id"),
	} {
		if allowed {
			t.Errorf("%s is allowed", name)
		}
	}
	for name, change := range map[string]func(*Rule){
		"no types": func(r *Rule) { r.Types = nil }, "a small type": func(r *Rule) { r.Types = []string{"email"} },
		"another process": func(r *Rule) { r.Sink = "audit" }, "no process": func(r *Rule) { r.Sink = "" },
		"a process that takes none": func(r *Rule) { r.Sink, r.Tool = "vault", "wait_operation" },
		"a tool of another":         func(r *Rule) { r.Tool = "wait_operation" }, "an unknown tool": func(r *Rule) { r.Tool = "llm" },
		"no arguments": func(r *Rule) { r.Arguments = nil }, "a wildcard": func(r *Rule) { r.Arguments = []string{"/*"} },
		"no pointer": func(r *Rule) { r.Arguments = []string{"service_id"} },
	} {
		r := rule()
		change(&r)
		if err := r.Validate(); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	if err := rule().Validate(); err != nil {
		t.Error(err)
	}
}

// memory is a Store that outlives a Policy, as a database does.
type memory map[[3]string]store.Use

func (m memory) Uses(_ context.Context, client, tool string) (out []store.Use, _ error) {
	for key, u := range m {
		if key[0] == client && key[1] == tool {
			out = append(out, u)
		}
	}
	return out, nil
}

func (m memory) ChangeUse(_ context.Context, client, tool, day string, change func(*store.Use)) error {
	u := m[[3]string{client, tool, day}]
	u.Day = day
	change(&u)
	m[[3]string{client, tool, day}] = u
	return nil
}

// The limits of a day hold for a session and for a client, and for a process that comes after the one that counted.
func TestLimits(t *testing.T) {
	now := time.Unix(1_800_000_000, 0).UTC()
	kept := memory{}
	take := func(session, client string, values, bytes int) error {
		return New(nil, kept, func() time.Time { return now }).Take(t.Context(), session, client, values, bytes)
	}
	if err := take("s", "c", statement.MaxDisclosures+1, 1); !errors.Is(err, ErrLimit) {
		t.Errorf("too many: %v", err)
	}
	if err := take("s", "c", 1, statement.MaxDisclosed+1); !errors.Is(err, ErrLimit) || len(kept) != 0 {
		t.Errorf("too long: %v, and %d are counted", err, len(kept))
	}
	taken := 0
	for session := range 5 {
		for range 20 {
			if take(string(rune('a'+session)), "c", statement.MaxDisclosures, 1) == nil {
				taken++
			}
		}
		if session == 0 && taken != perSession {
			t.Errorf("one session takes %d times", taken)
		}
	}
	if taken != perPrincipal {
		t.Errorf("one client takes %d times", taken)
	}
	for range perSession {
		if err := take("z", "other", 1, statement.MaxDisclosed); err != nil {
			t.Errorf("another client: %v", err)
		}
	}
	if err := take("z", "other", 1, 1); !errors.Is(err, ErrLimit) {
		t.Errorf("bytes are not counted: %v", err)
	}
	now = now.AddDate(0, 0, 1)
	if err := take("a", "c", 1, 1); err != nil {
		t.Errorf("a day later: %v", err)
	}
}
