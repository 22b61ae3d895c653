package policy

import "testing"

// TestGuardsStand: in a build without the drill's tag every guard refuses what is off by a little.
func TestGuardsStand(t *testing.T) {
	if !failedForbidCounts() || !forbidWins() {
		t.Error("a forbid does not count")
	}
	if mayPermit(Project) || mayPermit("") || mayName(Project) || mayName(BuiltIn) {
		t.Error("a project may loosen")
	}
	theirs := &rule{Rule: Rule{Layer: User}, user: "bob"}
	if binds(theirs, &Call{User: "alice"}) || binds(theirs, &Call{}) || !binds(theirs, &Call{User: "bob"}) {
		t.Error("a user's rules are about somebody else")
	}
	nobody := &rule{Rule: Rule{Layer: User}}
	if binds(nobody, &Call{}) {
		t.Error("rules of no user are about clients without one")
	}
}
