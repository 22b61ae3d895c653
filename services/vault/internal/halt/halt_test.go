package halt

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/vault/internal/store"
)

func open(t *testing.T) (*Switch, *store.Store) {
	t.Helper()
	s, err := store.Open(t.Context(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return again(t, s), s
}

func again(t *testing.T, s *store.Store) *Switch {
	t.Helper()
	sw, err := New(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return sw
}

func TestWithinRefusesDuringHaltAndForOtherEpochs(t *testing.T) {
	sw, s := open(t)
	run := func(sw *Switch, epoch uint64) error {
		ran := false
		err := sw.Within(epoch, func() error { ran = true; return nil })
		if ran == (err != nil) {
			t.Errorf("ran %v and answered %v", ran, err)
		}
		return err
	}
	if err := run(sw, 1); err != nil {
		t.Error(err)
	}
	for _, epoch := range []uint64{0, 2} {
		if err := run(sw, epoch); !fault.Is(err, callv1.Code_CODE_EXPIRED) {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
	for want := uint64(2); want <= 3; want++ { // halting twice raises it twice
		if epoch, err := sw.Halt(t.Context(), "alice", "why", time.Now()); err != nil || epoch != want {
			t.Errorf("epoch %d, %v", epoch, err)
		}
	}
	for _, one := range []*Switch{sw, again(t, s)} {
		if err := run(one, 3); !fault.Is(err, callv1.Code_CODE_HALTED) {
			t.Errorf("halted: %v", err)
		}
		if now := one.Now(); now.Epoch != 3 || !now.Halted || now.Reason != "why" || now.ChangedBy != "alice" {
			t.Errorf("%+v", now)
		}
	}
	used := store.UsedStatement{Digest: []byte{1}, Operator: "alice"}
	for _, r := range []struct{ halted, epoch uint64 }{{3, 2}, {3, 3}, {2, 9}, {4, 9}} {
		if err := sw.Resume(t.Context(), r.halted, r.epoch, used, time.Now()); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
			t.Errorf("resume of the halt at %d at %d: %v", r.halted, r.epoch, err)
		}
	}
	if err := sw.Resume(t.Context(), 3, 9, used, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := run(again(t, s), 9); err != nil {
		t.Error(err)
	}
	if err := sw.Resume(t.Context(), 9, 10, used, time.Now()); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
		t.Errorf("resume of nothing: %v", err)
	}
}

// Whatever passes through Within is on one side of a halt: nothing runs after Halt has returned.
func TestNothingRunsAcrossAHalt(t *testing.T) {
	sw, _ := open(t)
	var halted atomic.Bool
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				err := sw.Within(1, func() error {
					if halted.Load() {
						t.Error("it ran after the halt")
					}
					return nil
				})
				if err != nil {
					return
				}
			}
		})
	}
	if _, err := sw.Halt(t.Context(), "alice", "", time.Now()); err != nil {
		t.Error(err)
	}
	halted.Store(true)
	wg.Wait()
}

// A disk that refuses does not keep a halt from being in force.
func TestHaltIsInForceThoughTheDiskRefuses(t *testing.T) {
	sw, s := open(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if epoch, err := sw.Halt(t.Context(), "alice", "", time.Now()); err == nil || epoch != sw.Now().Epoch || epoch != 2 {
		t.Errorf("it is said to be durable: epoch %d, %v", epoch, err)
	}
	if err := sw.Check(); !fault.Is(err, callv1.Code_CODE_HALTED) {
		t.Errorf("not in force: %v", err)
	}
}
