package policy

import "testing"

// TestEachGuardIsNeeded is the negative control of this package's attacks: without its guard each of them gets through. Run it with
// -tags weak, alone.
func TestEachGuardIsNeeded(t *testing.T) {
	start := native(t, "start_service")
	often := func(c *Call) { c.Counts.Day = 2 }
	failing := system("policy/a.cedar", `@id("x") forbid (principal, action == Action::"call:start_service", resource) `+overflows+`;`)
	bobs := Source{Layer: User, User: "bob", Name: "users/bob/policy/a.cedar", Text: []byte(allowAll)}
	permits := Source{Layer: Project, Name: "projects/a.cedar", Text: []byte(allowAll)}
	for _, c := range []struct {
		guard   string
		sources []Source
		call    Call
		with    Verdict
		without Verdict
	}{
		{"policy-error", []Source{failing}, call(start, often), Deny, Ask},
		{"policy-project", []Source{permits}, call(start), Ask, Run},
		{"policy-known", []Source{project("tools: {'mcp:web:fetch': {}}")}, call(downstream(read)), Ask, Run},
		{"policy-binds", []Source{bobs}, call(start), Ask, Run},
		{"policy-forbid", []Source{system("policy/all.cedar", allowAll)}, call(start, messaging), Deny, Run},
	} {
		t.Run(c.guard, func(t *testing.T) {
			defer Guards.Restore(c.guard)
			if s, err := Compile(c.sources); err == nil {
				if d := s.Decide(c.call); d.Verdict != c.with {
					t.Errorf("with the guard: %v", d.Verdict)
				}
			} else if c.guard != "policy-project" {
				t.Fatal(err)
			}
			if err := Guards.Weaken(c.guard); err != nil {
				t.Fatal(err)
			}
			if d := compiledSet(t, c.sources...).Decide(c.call); d.Verdict != c.without {
				t.Errorf("without the guard: %v by %s", d.Verdict, d.Rule.ID)
			}
		})
	}
	if Guards.Weaken("nothing") == nil {
		t.Error("a guard that there is not was removed")
	}
}
