package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store"
)

// testCount: what is counted is what each record by itself says, in rows and in blocks, before and after some of it is pruned.
func testCount(t *testing.T, db *store.Store) {
	ctx, tr := t.Context(), &tree{t: t, db: db}
	if got, err := db.Count(ctx, time.Time{}, 10); err != nil || !got.First.IsZero() || len(got.Alike) != 0 || len(got.Waits) != 0 {
		t.Errorf("an empty log: %+v, %v", got, err)
	}
	kinds := []auditv1.Kind{auditv1.Kind_KIND_READ, auditv1.Kind_KIND_OUTCOME, auditv1.Kind_KIND_ASKED, auditv1.Kind_KIND_SINK_REFUSED, auditv1.Kind_KIND_READ, auditv1.Kind_KIND_APPROVED}
	for i := range 720 {
		tr.commit(writer, &auditv1.Record{Kind: kinds[i%len(kinds)], Status: auditv1.Status(i % 4), Tool: fmt.Sprint("tool_", i%3), OperationId: fmt.Sprint("op-", i/12*12),
			Body: &auditv1.Body{Principal: fmt.Sprint("p-", i%5)}})
	}
	moment := func(index int) time.Time { return tr.entries[index].GetLoggedAt().AsTime() }
	for name, tc := range map[string]struct {
		since    time.Time
		from     int
		end, all uint64
	}{
		"all":                    {time.Time{}, 0, 1000, 720},
		"below an index":         {time.Time{}, 0, 431, 431},
		"since a record":         {moment(500), 500, 1000, 220},
		"since just after":       {moment(500).Add(1), 501, 1000, 219},
		"in the first block":     {moment(3), 3, 17, 14},
		"since the end":          {moment(719), 719, 1000, 1},
		"after all":              {moment(719).Add(1), 720, 1000, 0},
		"before all, below none": {moment(0).Add(-1), 0, 0, 0},
	} {
		want := store.Counts{Alike: map[store.Alike]uint64{}}
		asked := map[string]time.Time{}
		for _, e := range tr.entries[min(uint64(tc.from), tc.end):min(tc.end, 720)] {
			r := e.GetRecord()
			if want.First.IsZero() {
				want.First = e.GetLoggedAt().AsTime()
			}
			a := store.Alike{Kind: r.GetKind(), Status: r.GetStatus(), Tool: r.GetTool(), Principal: r.GetBody().GetPrincipal()}
			at, known := asked[r.GetOperationId()]
			switch r.GetKind() {
			case auditv1.Kind_KIND_ASKED:
				a.Tool, a.Principal = "", ""
				if !known {
					asked[r.GetOperationId()] = e.GetLoggedAt().AsTime()
				}
			case auditv1.Kind_KIND_APPROVED:
				a.Tool, a.Principal = "", ""
				if known {
					want.Waits = append(want.Waits, e.GetLoggedAt().AsTime().Sub(at))
					delete(asked, r.GetOperationId())
				}
			default:
			}
			want.Alike[a]++
		}
		got, err := db.Count(ctx, tc.since, tc.end)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
		all := uint64(0)
		for _, n := range got.Alike {
			all += n
		}
		if all != tc.all {
			t.Errorf("%s: %d records, want %d", name, all, tc.all)
		}
	}
	must(t, db.Prune(ctx, 719, []uint64{0, 1}))
	got, err := db.Count(ctx, time.Time{}, 2)
	if diff := cmp.Diff(map[store.Alike]uint64{{Kind: auditv1.Kind_KIND_READ, Tool: "tool_0"}: 1, {Kind: auditv1.Kind_KIND_OUTCOME, Status: 1, Tool: "tool_1"}: 1}, got.Alike); err != nil || diff != "" {
		t.Errorf("pruned records: %v %s", err, diff)
	}
}
