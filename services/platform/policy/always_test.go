package policy

import "testing"

// TestAlways is what Always may say, where a shorter way to its answer would be wrong.
func TestAlways(t *testing.T) {
	start, status := native(t, "start_service"), native(t, "gpu_status")
	for _, c := range []struct {
		name    string
		sources []Source
		call    Call
		want    Verdict
		sure    bool
	}{
		{"a condition that cannot be evaluated comes before one that is not met", []Source{system("policy/a.cedar",
			`forbid (principal, action == Action::"call:start_service", resource) when { context.calls.day * 9223372036854775807 > 0 && context.dangerous };`)},
			call(start), Deny, false},
		{"the whole context in a condition", []Source{system("policy/a.cedar",
			`forbid (principal, action == Action::"call:start_service", resource) when { (if context.known then context else context).calls.day > 3 };`)},
			call(start), Deny, false},
		{"a resource that calls name", []Source{system("policy/a.cedar", `forbid (principal, action, resource == Service::"x");`)}, call(start), Deny, false},
		{"a condition that is not met comes first", []Source{system("policy/a.cedar",
			`forbid (principal, action == Action::"call:start_service", resource) when { context.dangerous && context.calls.day > 3 };`)}, call(start), Ask, true},
		{"a resource that no call of the tool names", []Source{system("policy/a.cedar", `forbid (principal, action, resource == Mode::"x");`)}, call(start), Ask, true},
		{"what can never be evaluated", []Source{system("policy/a.cedar",
			`forbid (principal, action == Action::"call:gpu_status", resource) when { context.known && 9223372036854775807 + 1 > 0 };`)}, call(status), Deny, true},
		{"denied at one of its tiers", []Source{tools("tools: {gpu_status: {tier: WRITE}}"), system("policy/a.cedar",
			`forbid (principal, action, resource) when { context.tier == "READ" && context.time.hour < 5 };
forbid (principal, action, resource) when { context.tier == "WRITE" };`)}, call(status), Deny, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := compiledSet(t, c.sources...)
			if v, ok := s.Always(c.call); ok != c.sure || ok && v != c.want {
				t.Errorf("always %v, %t; want %v, %t", v, ok, c.want, c.sure)
			}
			if c.sure {
				if d := s.Decide(c.call); d.Verdict != c.want {
					t.Errorf("and it is %+v", d)
				}
			}
		})
	}
	often := func(c *Call) { c.Counts = Counts{Day: 4, Last: c.Now.Add(1e12)} }
	whole := compiledSet(t, system("policy/a.cedar",
		`forbid (principal, action == Action::"call:start_service", resource) when { (if context.known then context else context).calls.day > 3 };`))
	if d := whole.Decide(call(start, often)); d.Verdict != Deny || d.Rule.Failed || !whole.Counted("cursor", "start_service") {
		t.Errorf("the whole context in a condition: %+v", d)
	}
	back := compiledSet(t, system("policy/a.cedar", `forbid (principal, action == Action::"call:start_service", resource) when { context.calls.since_last_s < 0 };`))
	if d := back.Decide(call(start, often)); d.Verdict != Ask {
		t.Errorf("a clock that was set back: %+v", d)
	}
}

// TestDesktopControlAsks, also where a human named the tool, lowered it and permitted everything, in dangerous mode too.
func TestDesktopControlAsks(t *testing.T) {
	s := compiledSet(t, tools("tools: {'mcp:web:fetch': {tier: READ}}"), system("policy/all.cedar", allowAll))
	for _, tag := range []string{"desktop:screenshot", "desktop:click", "desktop"} {
		if d := s.Decide(call(downstream(read, tag), desktop, dangerous)); d.Verdict != Ask || d.Rule.ID != "desktop-asks" {
			t.Errorf("%s: %+v", tag, d)
		}
	}
}
