package history

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// TestNotable: the newest that stand out, each once, in order, whichever order they came in.
func TestNotable(t *testing.T) {
	entry := func(index uint64, r *auditv1.Record) *auditv1.Entry { return &auditv1.Entry{Index: index, Record: r} }
	failed := &auditv1.Record{Status: auditv1.Status_STATUS_TIMEOUT}
	all := []*auditv1.Entry{
		entry(9, failed), entry(4, &auditv1.Record{Status: auditv1.Status_STATUS_OK}), entry(7, &auditv1.Record{Status: auditv1.Status_STATUS_DENIED}),
		entry(2, &auditv1.Record{Tier: optionsv1.Tier_TIER_DESTRUCTIVE}), entry(9, failed), entry(5, &auditv1.Record{Body: &auditv1.Body{Dangerous: true}}),
	}
	for limit, want := range map[int][]uint64{0: nil, 2: {7, 9}, 100: {2, 5, 7, 9}} {
		var got []uint64
		for _, e := range Notable(all, limit) {
			got = append(got, e.GetIndex())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d: %s", limit, diff)
		}
	}
}

func TestDaysLeft(t *testing.T) {
	for _, c := range []struct {
		perDay, free, days uint64
		known              bool
	}{{1_000_000, 30_500_000, 30, true}, {1_000_000, 1, 0, true}, {0, 30_500_000, 0, false}, {1_000_000, 0, 0, false}} {
		if days, known := DaysLeft(&auditv1.GetStatusResponse{BytesPerDay: c.perDay, DiskFreeBytes: c.free}); days != c.days || known != c.known {
			t.Errorf("%+v: %d, %t", c, days, known)
		}
	}
}
