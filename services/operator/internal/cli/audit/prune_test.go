package audit

import (
	"maps"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

func TestKindsOfASurveyHaveTheNamesOfSearch(t *testing.T) {
	found := &auditv1.SurveyPruneResponse{Size: 9, Kinds: map[string]uint64{"KIND_APPROVED": 2, "KIND_READ": 3}}
	if got := named(found).GetKinds(); !maps.Equal(got, map[string]uint64{"approved": 2, "read": 3}) || found.GetKinds()["KIND_READ"] != 3 {
		t.Errorf("%v; what is signed has %v", got, found.GetKinds())
	}
}
