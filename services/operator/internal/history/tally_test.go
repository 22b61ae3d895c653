package history

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// TestTally counts a change that was approved after 2 s, one that was denied, a read that failed and a refusal.
func TestTally(t *testing.T) {
	steps := whole(changed)
	steps[1].wait = time.Second
	other := "f" + changed[1:]
	no := whole(other)[:2]
	no[1].record.Kind, no[1].record.Status = auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED
	read := step{writer: executorID, record: &auditv1.Record{Kind: auditv1.Kind_KIND_READ, Tool: "gpu_status", Status: auditv1.Status_STATUS_TIMEOUT, Body: &auditv1.Body{Principal: "codex"}}}
	steps = append(append(steps, no...), read, pause(0))
	steps[5].record.Status, steps[5].record.Tier = auditv1.Status_STATUS_OK, optionsv1.Tier_TIER_DESTRUCTIVE
	tally := NewTally()
	for _, e := range entries(steps) {
		tally.Add(e)
	}
	if tally.Records != 10 || tally.Refused != 1 || tally.Wait(50) != 2*time.Second || len(tally.Waits) != 1 {
		t.Errorf("tally %+v", tally)
	}
	if diff := cmp.Diff(map[string]int{"approved": 1, "denied": 1}, tally.Decisions); diff != "" {
		t.Errorf("decisions: %s", diff)
	}
	want := map[string]*Count{"start_service": {OK: 1}, "gpu_status": {Failed: 1}}
	if diff := cmp.Diff(want, tally.Tools); diff != "" {
		t.Errorf("tools: %s", diff)
	}
	if diff := cmp.Diff([]string{"claude", "codex"}, Busiest(tally.Principals)); diff != "" {
		t.Errorf("clients: %s", diff)
	}
	var notable []uint64
	for _, e := range tally.Notable {
		notable = append(notable, e.GetIndex())
	}
	if diff := cmp.Diff([]uint64{5, 7, 8}, notable); diff != "" {
		t.Errorf("what stands out: %s", diff)
	}
	for _, c := range []struct {
		perDay, free, days uint64
		known              bool
	}{{1_000_000, 30_500_000, 30, true}, {1_000_000, 1, 0, true}, {0, 30_500_000, 0, false}, {1_000_000, 0, 0, false}} {
		if days, known := DaysLeft(&auditv1.GetStatusResponse{BytesPerDay: c.perDay, DiskFreeBytes: c.free}); days != c.days || known != c.known {
			t.Errorf("%+v: %d, %t", c, days, known)
		}
	}
}
