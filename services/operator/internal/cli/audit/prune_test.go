package audit

import (
	"maps"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/operator/internal/cli"
)

// TestWhatIsHeldIsNamedHere: the command that lists it is about the installation that --home names.
func TestWhatIsHeldIsNamedHere(t *testing.T) {
	a := &app{&cli.App{HomeDir: "h"}}
	lines := a.surveyed(&auditv1.SurveyPruneResponse{Held: 2}, time.Time{})
	if got, want := lines[len(lines)-1].Text, "2 are held: durward --home h audit hold list"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestKindsOfASurveyHaveTheNamesOfSearch(t *testing.T) {
	found := &auditv1.SurveyPruneResponse{Size: 9, Kinds: map[string]uint64{"KIND_APPROVED": 2, "KIND_READ": 3}}
	if got := named(found).GetKinds(); !maps.Equal(got, map[string]uint64{"approved": 2, "read": 3}) || found.GetKinds()["KIND_READ"] != 3 {
		t.Errorf("%v; what is signed has %v", got, found.GetKinds())
	}
}
