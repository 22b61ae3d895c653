package disclosure

import (
	"errors"
	"testing"
	"time"

	"durward.internal/services/platform/statement"
)

func rule() Rule {
	return Rule{Types: []string{"EMAIL"}, Sink: "executor", Tool: "start_service", Arguments: []string{"/service_id"}}
}

func TestNothingLeavesWithoutARule(t *testing.T) {
	p := New([]Rule{rule()}, time.Now)
	if !p.Allows("EMAIL", "executor", "start_service", "/service_id") {
		t.Fatal("the rule lets nothing go: this test proves nothing")
	}
	for name, allowed := range map[string]bool{
		"another type":      p.Allows("PHONE", "executor", "start_service", "/service_id"),
		"another sink":      p.Allows("EMAIL", "egress", "start_service", "/service_id"),
		"another tool":      p.Allows("EMAIL", "executor", "stop_service", "/service_id"),
		"another argument":  p.Allows("EMAIL", "executor", "start_service", "/service_id/0"),
		"the whole of them": p.Allows("EMAIL", "executor", "start_service", ""),
		"no rule at all":    New(nil, time.Now).Allows("EMAIL", "executor", "start_service", "/service_id"),
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

func TestLimits(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p := New(nil, func() time.Time { return now })
	if err := p.Take("s", "c", statement.MaxDisclosures+1, 1); !errors.Is(err, ErrLimit) {
		t.Errorf("too many: %v", err)
	}
	if err := p.Take("s", "c", 1, statement.MaxDisclosed+1); !errors.Is(err, ErrLimit) {
		t.Errorf("too long: %v", err)
	}
	taken := 0
	for session := range 5 {
		for range 20 {
			if p.Take(string(rune('a'+session)), "c", statement.MaxDisclosures, 1) == nil {
				taken++
			}
		}
		if session == 0 && taken != perSession/statement.MaxDisclosures {
			t.Errorf("one session takes %d times", taken)
		}
	}
	if taken != perPrincipal/statement.MaxDisclosures {
		t.Errorf("one client takes %d times", taken)
	}
	if err := p.Take("z", "other", 1, 1); err != nil {
		t.Errorf("another client: %v", err)
	}
	now = now.Add(day)
	if err := p.Take("a", "c", 1, 1); err != nil || len(p.used) != 2 {
		t.Errorf("a day later: %v, %d are remembered", err, len(p.used))
	}
}
