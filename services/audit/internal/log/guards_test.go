package log_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
)

// TestBetweenRefuses: what is done between two transactions is not done by a log that follows, nor for a caller who is gone.
func TestBetweenRefuses(t *testing.T) {
	r := newRig(t)
	done := 0
	act := func(context.Context) error { done++; return nil }
	if err := r.log.Between(t.Context(), act); err != nil || done != 1 {
		t.Fatalf("while it leads: %v, done %d times", err, done)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 200 { // the log may take it before it is seen that the caller is gone
		if err := r.log.Between(gone, act); !errors.Is(err, context.Canceled) || done != 1 {
			t.Fatalf("for a caller who is gone: %v, done %d times", err, done)
		}
	}
	r.log.Close()
	own := &deposed{Store: r.db.Store, why: store.ErrFollows}
	own.lost.Store(true)
	cfg := r.config()
	cfg.Store = own
	var err error
	if r.log, err = log.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if err := r.log.Between(t.Context(), act); !errors.Is(err, store.ErrFollows) || done != 1 {
		t.Errorf("while it follows: %v, done %d times", err, done)
	}
}

// TestTreesThatAreNotThere: an entry or a tree that the newest checkpoint does not hold has no proof.
func TestTreesThatAreNotThere(t *testing.T) {
	r := newRig(t)
	me := writers[0]
	r.append(me, r.record(me, "1"), r.record(me, "2"), r.record(me, "3"))
	for _, index := range []uint64{3, 4, 1 << 63} {
		if receipt, err := r.log.Receipt(t.Context(), &auditv1.Entry{Index: index}, nil); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("entry %d: %v, %v", index, receipt, err)
		}
	}
	if proof, err := r.log.Consistency(t.Context(), 1, 3); err != nil || len(proof) == 0 {
		t.Errorf("trees that are there: %v, %v", proof, err)
	}
	for _, sizes := range [][2]uint64{{1, 4}, {3, 4}, {4, 4}, {0, 4}, {3, 1}, {1 << 63, 1 << 63}} {
		if proof, err := r.log.Consistency(t.Context(), sizes[0], sizes[1]); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
			t.Errorf("from %d to %d: %v, %v", sizes[0], sizes[1], proof, err)
		}
	}
}

// TestFullWithoutAReserve: where there is none to give up, a halt is refused too, is not tried once more, and nobody is told that a
// reserve was given up.
func TestFullWithoutAReserve(t *testing.T) {
	r := newRig(t)
	r.log.Close()
	var said bytes.Buffer
	cfg := r.config()
	cfg.Logger = slog.New(slog.NewTextHandler(&said, nil))
	var err error
	if r.log, err = log.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	r.db.set(syscall.ENOSPC, nil, nil)
	halt := r.record(writers[1], "x")
	halt.Kind = auditv1.Kind_KIND_HALTED
	if _, err := r.log.Append(t.Context(), writers[1], []*auditv1.Record{halt}, 0); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
		t.Errorf("on a full disk: %v", err)
	}
	r.log.Close()
	if !strings.Contains(said.String(), "no space left on device") || strings.Contains(said.String(), "the reserve is given up") {
		t.Errorf("it said %s", said.String())
	}
	r.db.set(nil, nil, nil)
	if r.log, err = log.Open(t.Context(), r.config()); err != nil {
		t.Fatal(err)
	}
	r.append(writers[1], halt)
	r.check()
}
