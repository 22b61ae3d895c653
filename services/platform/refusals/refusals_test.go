package refusals_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/refusals"
)

// written is what a Counter wrote: how many records, and how many refusals of each peer they stand for.
type written struct {
	mu      sync.Mutex
	records int
	stand   map[string]uint64
	reasons map[string]uint64
}

func counter(cfg refusals.Config) (*refusals.Counter, *written) {
	w := &written{stand: map[string]uint64{}, reasons: map[string]uint64{}}
	cfg.Write = func(_ context.Context, r *auditv1.Record, more uint64) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.records++
		w.stand[r.GetBody().GetDecisionSource()] += max(more, 1)
		w.reasons[r.GetBody().GetReason()] += max(more, 1)
	}
	return refusals.New(cfg), w
}

func refused(peer, what string) (refusals.Kind, *auditv1.Record) {
	return refusals.Kind{Peer: peer, What: what}, &auditv1.Record{Body: &auditv1.Body{DecisionSource: peer, Reason: what}}
}

// 10,000 refused calls of one peer, alike or each of another kind, leave few records, which add up.
func TestAFloodLeavesFewRecords(t *testing.T) {
	const flood = 10_000
	for name, c := range map[string]struct {
		what   func(i int) string
		first  int
		most   int
		reason string
	}{
		"one kind":        {func(int) string { return "role" }, 1, 2, "role"},
		"one kind, first": {func(int) string { return "role" }, 5, 6, "role"},
		"made up":         {func(i int) string { return fmt.Sprint("method ", i) }, 1, 18, refusals.Further},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				of, got := counter(refusals.Config{First: c.first})
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); of.Run(ctx) }()
				for i := range flood {
					kind, r := refused("mallory", c.what(i))
					of.Add(ctx, kind, r)
				}
				cancel()
				<-done
				if got.records > c.most || got.stand["mallory"] != flood || got.reasons[c.reason] < flood/2 {
					t.Errorf("%d records of %d refusals, %v", got.records, got.stand["mallory"], got.reasons)
				}
			})
		})
	}
}

// A flood hides nobody else, goes on as one count a minute, and is forgotten when it is over.
func TestNobodyHidesAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of, got := counter(refusals.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go of.Run(ctx)
		add := func(peer, what string) {
			kind, r := refused(peer, what)
			of.Add(ctx, kind, r)
		}
		for range 30 {
			for i := range 1000 {
				add("mallory", fmt.Sprint("method ", i%100))
			}
			time.Sleep(2 * time.Second)
		}
		add("ada", "a field that is unknown")
		synctest.Wait()
		if got.reasons["a field that is unknown"] != 1 {
			t.Errorf("ada's is not recorded: %v", got.reasons)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		// 17 at once, and 17 counts after a minute.
		if got.records > 2*17+1 || got.stand["mallory"] != 30_000 {
			t.Errorf("%d records of %d", got.records, got.stand["mallory"])
		}
		time.Sleep(3 * refusals.Period)
		synctest.Wait()
		if n := of.Len(); n != 0 {
			t.Errorf("after a rest %d kinds are counted", n)
		}
	})
}

// However many peers there are, what is kept of them is bounded, and all are counted.
func TestPeersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		of, got := counter(refusals.Config{All: 100})
		for i := range 10_000 {
			kind, r := refused(fmt.Sprint("peer ", i), "role")
			of.Add(t.Context(), kind, r)
		}
		if n := of.Len(); n != 100 {
			t.Errorf("%d kinds are counted", n)
		}
		of.Flush(t.Context(), true)
		var all uint64
		for _, n := range got.stand {
			all += n
		}
		if got.records != 101 || all != 10_000 {
			t.Errorf("%d records of %d refusals", got.records, all)
		}
	})
}
