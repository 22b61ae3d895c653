package policy

import "testing"

// TestListsAndMapsReachRules: a list is a set, a map a record; both count, whatever order they were sent in.
func TestListsAndMapsReachRules(t *testing.T) {
	simulate := native(t, "simulate_mode")
	forbid := func(when string) *Set {
		return compiledSet(t, system("policy/a.cedar", `@id("x") forbid (principal, action == Action::"call:simulate_mode", resource) when { `+when+` };`))
	}
	for _, c := range []struct {
		name, when, arguments string
		want                  Verdict
	}{
		{"in the list", `context.arguments has start && context.arguments.start.contains("chat-70b")`, `{"start":["embed","chat-70b"]}`, Deny},
		{"not in the list", `context.arguments has start && context.arguments.start.contains("chat-70b")`, `{"start":["embed"]}`, Run},
		{"in the other list", `context.arguments has start && context.arguments.start.contains("chat-70b")`, `{"stop":["chat-70b"]}`, Run},
		{"no list", `context.arguments has start`, `{}`, Run},
		{"one of several", `context.arguments has stop && context.arguments.stop.containsAny(["a","b"])`, `{"stop":["x","b"]}`, Deny},
		{"only these", `context.arguments has start && !(["a","b"].containsAll(context.arguments.start))`, `{"start":["b","c"]}`, Deny},
		{"only these, and they are", `context.arguments has start && !(["a","b"].containsAll(context.arguments.start))`, `{"start":["b","a"]}`, Run},
		{"any map", `context.arguments has context_overrides`, `{"context_overrides":{"qwen3-32b":16384}}`, Deny},
		{"a key of the map", `context.arguments has context_overrides && context.arguments.context_overrides has "qwen3-32b"`, `{"context_overrides":{"qwen3-32b":16384}}`, Deny},
		{"another key", `context.arguments has context_overrides && context.arguments.context_overrides has "qwen3-32b"`, `{"context_overrides":{"chat":16384}}`, Run},
		{"a value", `context.arguments has context_overrides && context.arguments.context_overrides has "qwen3-32b" && context.arguments.context_overrides["qwen3-32b"] > 8192`,
			`{"context_overrides":{"qwen3-32b":16384}}`, Deny},
		{"a smaller value", `context.arguments has context_overrides && context.arguments.context_overrides has "qwen3-32b" && context.arguments.context_overrides["qwen3-32b"] > 8192`,
			`{"context_overrides":{"qwen3-32b":4096}}`, Run},
		{"the mode", `resource == Mode::"coding"`, `{"mode_id":"coding","start":["a"]}`, Deny},
		{"no mode", `resource == Mode::"coding"`, `{"start":["a"]}`, Run},
		{"no mode at all", `!(context.arguments has mode_id)`, `{"start":["a"]}`, Deny},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := forbid(c.when)
			made := call(simulate, arguments(c.arguments))
			if d := s.Decide(made); d.Verdict != c.want || d.Rule.Failed {
				t.Errorf("%v by %s (failed: %t), want %v", d.Verdict, d.Rule.ID, d.Rule.Failed, c.want)
			}
			// A permit covers calls whose arguments nobody has seen: such a rule leaves none covered.
			if v, sure := s.Always(made); sure {
				t.Errorf("whatever the arguments: %v", v)
			}
		})
	}
}
