package standing_test

import (
	"context"
	"sync"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

func TestMute(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	o, err := w.call(live, "start_service", "a")
	w.must(err)
	_, err = w.book.Mute(t.Context(), "nobody", time.Hour, "", "alice")
	wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	m, err := w.book.Mute(t.Context(), bound, time.Hour, "too many", "alice")
	w.must(err)
	if until, ok := w.book.Muted(bound); !ok || !until.Equal(w.Now().Add(time.Hour)) || m.GetBy() != "alice" {
		t.Errorf("until %s, %v", until, ok)
	}
	if n, err := w.queue.DenyAll(t.Context(), bound, "too many", "alice"); err != nil || n != 1 {
		t.Errorf("%d denied, %v", n, err)
	}
	if got, _, _ := w.queue.Lookup(t.Context(), o.ID); got.State != vaultv1.OperationState_OPERATION_STATE_DENIED || got.DecisionReason != "too many" {
		t.Errorf("%+v", got)
	}
	before := len(w.audit.of(auditv1.Kind_KIND_ASKED))
	_, err = w.call(live, "start_service", "b")
	wantCode(t, err, callv1.Code_CODE_MUTED)
	if after := len(w.audit.of(auditv1.Kind_KIND_ASKED)); after != before {
		t.Error("it was recorded as waiting")
	}
	if f := fault.From(err); f.RetryAfter != time.Hour {
		t.Errorf("again after %s", f.RetryAfter)
	}
	// What runs by itself goes on, and nobody else is muted.
	_, _, err = w.queue.Run(t.Context(), w.request(live, "start_service", "c"), nil, false)
	w.must(err)
	_, err = w.call(w.open(other), "start_service", "a")
	w.must(err)
	if _, muted := w.book.List(); len(muted) != 1 || muted[0].GetPrincipal() != bound || muted[0].GetReason() != "too many" {
		t.Errorf("muted: %v", muted)
	}

	m, err = w.book.Mute(t.Context(), bound, 0, "", "alice")
	if err != nil || m != nil {
		t.Errorf("%v, %v", m, err)
	}
	_, err = w.call(live, "start_service", "b")
	w.must(err)
	_, err = w.book.Mute(t.Context(), bound, time.Minute, "", "alice")
	w.must(err)
	w.advance(time.Minute)
	if _, ok := w.book.Muted(bound); ok {
		t.Error("muted for longer than it was said")
	}
	for range 2 {
		w.book.Sweep(t.Context())
	}
	if on, off := len(w.audit.of(auditv1.Kind_KIND_MUTED, "mute")), len(w.audit.of(auditv1.Kind_KIND_MUTED, "unmute")); on != 2 || off != 2 {
		t.Errorf("recorded %d and %d", on, off)
	}
}

// A request that is on its way when its client is muted does not come to wait.
func TestMuteLeavesNothingWaiting(t *testing.T) {
	w := newWorld(t)
	for range 20 {
		live := w.open(bound)
		var wg sync.WaitGroup
		for _, service := range []string{"a", "b", "c", "d"} {
			// It may come before the muting, or be refused after it.
			wg.Go(func() { _, _ = w.call(live, "start_service", service) })
		}
		wg.Go(func() {
			_, err := w.book.Mute(context.Background(), bound, time.Hour, "", "alice")
			if err != nil {
				t.Error(err)
			}
			if _, err := w.queue.DenyAll(context.Background(), bound, "", "alice"); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		if n := w.queue.PendingCount(); n != 0 {
			t.Fatalf("%d wait", n)
		}
		_, err := w.book.Mute(t.Context(), bound, 0, "", "alice")
		w.must(err)
	}
}
