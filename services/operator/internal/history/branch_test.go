package history

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// TestBranches: each operation by itself, in its order, with how long its parts took by the log's clock, whatever its writers' clocks say.
func TestBranches(t *testing.T) {
	var entries []*auditv1.Entry
	add := func(operation string, kind auditv1.Kind, status auditv1.Status, after time.Duration) {
		at := testNow
		if len(entries) > 0 {
			at = entries[len(entries)-1].GetLoggedAt().AsTime().Add(after)
		}
		entries = append(entries, &auditv1.Entry{Index: uint64(len(entries)), Writer: "spiffe://durward.local/vault/main", LoggedAt: timestamppb.New(at), Salt: []byte{1},
			Record: &auditv1.Record{Kind: kind, Status: status, OperationId: operation, Tool: "stop_service", Tier: optionsv1.Tier_TIER_WRITE, Time: timestamppb.New(at.Add(-time.Hour)),
				Body: &auditv1.Body{Principal: "cursor", Session: "s-1"}}})
	}
	ok, pending := auditv1.Status_STATUS_OK, auditv1.Status_STATUS_PENDING
	add("", auditv1.Kind_KIND_READ, ok, 0)
	add("a", auditv1.Kind_KIND_ASKED, pending, time.Second)
	add("b", auditv1.Kind_KIND_ASKED, pending, time.Second)
	add("a", auditv1.Kind_KIND_READ, pending, time.Second)
	add("a", auditv1.Kind_KIND_APPROVED, ok, 8*time.Second)
	add("a", auditv1.Kind_KIND_GRANTED, ok, time.Millisecond)
	add("a", auditv1.Kind_KIND_REDEEMED, ok, time.Millisecond)
	add("b", auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, 10*time.Second)
	add("a", auditv1.Kind_KIND_INTENT, ok, time.Second)
	add("a", auditv1.Kind_KIND_OUTCOME, auditv1.Status_STATUS_ERROR, 3*time.Second)
	branches := Branches(entries)
	var names, kinds []string
	for _, b := range branches {
		names = append(names, b.Operation)
	}
	if !slices.Equal(names, []string{"a", "b", ""}) {
		t.Fatalf("branches %q", names)
	}
	a, b := branches[0], branches[1]
	for _, step := range a.Steps {
		kinds = append(kinds, step.Kind)
	}
	if want := []string{"asked", "read", "approved", "granted", "redeemed", "intent", "outcome"}; !slices.Equal(kinds, want) {
		t.Errorf("steps %v, want %v", kinds, want)
	}
	if *a.Waited != 10_000 || *a.Ran != 3000 || *a.Took != 24_002 || a.Status != "error" || a.StandsOut != "failed" || a.Tool != "stop_service" || a.Principal != "cursor" {
		t.Errorf("the first: %+v", a)
	}
	if a.Steps[0].After != nil || a.Steps[1].After != nil || *a.Steps[2].After != 10_000 || *a.Steps[5].After != 11_000 {
		t.Errorf("its steps: %+v", a.Steps)
	}
	if *b.Waited != 19_002 || b.Ran != nil || b.Status != "denied" || b.StandsOut != "denied" {
		t.Errorf("the second: %+v", b)
	}
	raw, err := json.Marshal(branches)
	if err != nil || !strings.Contains(string(raw), `"waited_ms":10000`) || !strings.Contains(string(raw), `"after_ms":11000`) {
		t.Errorf("%s, %v", raw, err)
	}
	if got := Branches(nil); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
