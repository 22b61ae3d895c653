package policy

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func jsonText(s string) (string, error) {
	raw, err := json.Marshal(s)
	return string(raw), err
}

// FuzzCompile: no file of rules makes anything panic, and one that is taken loosens no built-in rule.
func FuzzCompile(f *testing.F) {
	f.Add(string(defaultText))
	f.Add(allowAll)
	f.Add(`@id("x") forbid (principal in User::"alice", action in [Action::"call:switch_mode"], resource == Mode::"chat") when { context.arguments.mode_id like "c*" && context.time.hour < 9 };`)
	f.Add(`permit (principal is Agent in Client::"cursor", action, resource) unless { [1, {"a": -1}].contains(context.calls.day * 3) || if context.known then true else !false };`)
	f.Add(`permit (principal, action, resource) when { ip("1.2.3.4").isInRange(ip("::/0")) && decimal("1.2").lessThan(decimal("2.0")) };`)
	f.Add(`permit (principal, action, resource) when { "` + strings.Repeat("(", 40) + `" == "\"" }; // ` + strings.Repeat("[", 60))
	unknown := call(downstream(read), dangerous)
	above := call(native(f, "switch_mode"), ceiling(read), dangerous)
	f.Fuzz(func(t *testing.T, text string) {
		sources := []Source{system("policy/a.cedar", text)}
		s, err := Compile(sources)
		problems := Check(sources, Known{})
		if err != nil {
			if !errors.As(err, new(Problems)) || len(problems.grave()) == 0 {
				t.Fatalf("refused without a problem: %v", err)
			}
			return
		}
		if len(problems.grave()) > 0 {
			t.Fatalf("taken with problems: %v", problems)
		}
		if d := s.Decide(unknown); d.Verdict == Run {
			t.Errorf("an unknown tool runs: %+v", d)
		}
		if d := s.Decide(above); d.Verdict != Deny {
			t.Errorf("what is above the ceiling: %+v", d)
		}
		for _, c := range []Call{call(native(t, "gpu_status")), call(native(t, "start_service"), bearer)} {
			d := s.Decide(c)
			if v, ok := s.Always(c); ok && v != d.Verdict {
				t.Errorf("always %v, and %+v", v, d)
			}
		}
	})
}

// FuzzTools: no tools.yaml makes anything panic, and a project's file never loosens.
func FuzzTools(f *testing.F) {
	f.Add("tools: {}\n")
	f.Add("tools:\n  gpu_status:\n    tier: WRITE\n    min_interval_s: 3\n    opt_in: [cursor]\n    budget: {session: 1, day: 2, month: 3}\n")
	f.Add("tools:\n  'mcp:web:fetch':\n    tier: READ\n  start_service: {session_limit: 9}\n")
	f.Add("settings: {a: [1, {b: c}]}\ntools:\n  switch_mode: {tier: DENIED}\n")
	f.Add("{tools: {\"gpu_status\": null}}")
	plain := compiledSet(f)
	calls := []Call{call(native(f, "gpu_status")), call(native(f, "start_service"), dangerous), call(downstream(read)), call(native(f, "switch_mode"), messaging)}
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := Compile([]Source{project(text)}); err == nil {
			for _, c := range calls {
				if before, after := plain.Decide(c), s.Decide(c); after.Verdict.freedom() > before.Verdict.freedom() {
					t.Errorf("a project loosens: %+v became %+v", before, after)
				}
			}
		} else if !errors.As(err, new(Problems)) {
			t.Errorf("refused without a problem: %v", err)
		}
		if s, err := Compile([]Source{tools(text)}); err == nil {
			for _, c := range calls {
				s.Decide(c)
			}
		}
	})
}

// FuzzAllow: what is written is one rule, whatever it is made of.
func FuzzAllow(f *testing.F) {
	for _, text := range hostile {
		f.Add(text, text)
	}
	f.Fuzz(func(t *testing.T, value, note string) {
		tool := native(t, "switch_mode")
		tool.InputSchema = map[string]any{"properties": map[string]any{"mode_id": map[string]any{"type": "string"}}, "required": []string{"mode_id"}}
		_, text, err := Allow("cursor", tool, map[string][]string{"mode_id": {value}}, note, time.Time{})
		if err != nil {
			return
		}
		s, err := Compile([]Source{system("policy/a.cedar", text)})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for _, c := range []Call{call(tool, arguments(`{"mode_id":"other"}`)), call(native(t, "start_service"))} {
			if d := s.Decide(c); value != "other" && d.Verdict != Ask {
				t.Errorf("%+v\n%s", d, text)
			}
		}
	})
}
