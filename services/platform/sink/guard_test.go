package sink

import (
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
)

// TestGuardsStand: in a build without the drill's tag every guard refuses what is off by a little.
func TestGuardsStand(t *testing.T) {
	if !permitRequired() || !grantRequired() || !statementRequired(false) || !redemptionRequired() || !intentRequired() || !confirmRequired() ||
		!oneCallRequired() || !tokenisationRequired() || !checkRequired() {
		t.Error("something is not required")
	}
	if ctx := ungranted(t.Context()); ctx != t.Context() {
		t.Error("a handler that runs without a grant may change something")
	}
	if statementRequired(true) {
		t.Error("a tool that the sink lists needs a human all the same")
	}
	if audienceIs("a", "b") || epochHolds(1, 2) || !epochHolds(2, 2) || argumentsMatch([]byte("a"), []byte("b")) || subjectMatches(nil, []byte("b")) {
		t.Error("a comparison is too kind")
	}
	program, err := identity.New("durward.local", optionsv1.Role_ROLE_TOOL, "reporter")
	if err != nil || presentedBy(program, "claude") || !presentedBy(program, "reporter") {
		t.Error("an internal program comes with another's permit")
	}
	one := &callv1.ToolRef{Name: "a", Source: "native", DefinitionDigest: []byte("x")}
	if toolIs(one, &callv1.ToolRef{Name: "a", Source: "native", DefinitionDigest: []byte("y")}) || !toolIs(one, one) {
		t.Error("a tool is known by its name alone")
	}
	g := &callv1.Grant{OperationId: "op", Use: 3}
	if spendKey(g) != "op/3" {
		t.Errorf("the spend key is %q", spendKey(g))
	}
	if u := (&Use{Limit: 1}); useOf(u) != u {
		t.Error("uses are not counted")
	}
}
