package wiring

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/recorder/spool"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/sink/sinkstore"
)

// disk is a disk that is full as long as its reserve is held.
type disk struct{ kept *reserve.Reserve }

func (d disk) write() error {
	if d.kept.InUse() {
		return nil
	}
	return fmt.Errorf("write: %w", syscall.ENOSPC)
}

// fullStore and fullSpool are what writes to it.
type fullStore struct {
	sink.Store
	disk
}

func (s fullStore) Spend(context.Context, *sink.Spend) error           { return s.write() }
func (s fullStore) Finish(context.Context, string, *sink.Result) error { return s.write() }
func (s fullStore) Settled(context.Context, []string) error            { return s.write() }
func (s fullStore) SetControl(_ context.Context, _ sink.Control) error { return s.write() }

type fullSpool struct {
	recorder.Store
	disk
}

func (s fullSpool) Commit(context.Context, recorder.Change) error { return s.write() }

// TestAFullDiskLetsStoppingThrough: a start is refused in plain words, before and after the reserve is given up; a stop, how it
// ended, a halt, and their records go out of it.
func TestAFullDiskLetsStoppingThrough(t *testing.T) {
	row := func(kind auditv1.Kind, tool string) recorder.Change {
		raw, err := proto.Marshal(&auditv1.Record{Kind: kind, Tool: tool})
		must(t, err)
		return recorder.Change{Add: []recorder.Row{{ID: 1, Record: raw}}}
	}
	kept, err := reserve.Open(t.TempDir(), 1<<20)
	must(t, err)
	store, spool := reservedStore{fullStore{disk: disk{kept}}, kept}, recorder.Reserved(fullSpool{disk: disk{kept}}, kept)
	for _, tool := range []string{"start_service", "switch_mode", "no_such_tool"} {
		if err := store.Spend(t.Context(), &sink.Spend{Tool: tool}); !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || kept.InUse() {
			t.Errorf("%s on a full disk: %v, reserve given up: %v", tool, err, kept.InUse())
		}
	}
	if err := spool.Commit(t.Context(), row(auditv1.Kind_KIND_READ, "gpu_status")); !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || kept.InUse() {
		t.Errorf("a read's record on a full disk: %v, reserve given up: %v", err, kept.InUse())
	}
	for what, write := range map[string]func() error{
		"a stop":          func() error { return store.Spend(t.Context(), &sink.Spend{Tool: "stop_service"}) },
		"its outcome":     func() error { return store.Finish(t.Context(), "k/1", &sink.Result{}) },
		"a settlement":    func() error { return store.Settled(t.Context(), nil) },
		"a halt":          func() error { return store.SetControl(t.Context(), sink.Control{Halted: true}) },
		"a halt's record": func() error { return spool.Commit(t.Context(), row(auditv1.Kind_KIND_HALTED, "")) },
		"a stop's intent": func() error { return spool.Commit(t.Context(), row(auditv1.Kind_KIND_INTENT, "stop_service")) },
		"rows taken away": func() error { return spool.Commit(t.Context(), recorder.Change{Remove: []uint64{1}}) },
	} {
		if kept.InUse() {
			must(t, kept.Refill())
		}
		if err := write(); err != nil || !kept.InUse() {
			t.Errorf("%s on a full disk: %v, reserve given up: %v", what, err, kept.InUse())
		}
	}
}

// TestAReallyFullDisk: the executor's own database and spool on a file system without a byte left.
func TestAReallyFullDisk(t *testing.T) {
	dir := platformtest.SmallDisk(t, 12<<20)
	if dir == "" {
		return
	}
	durable, err := sinkstore.Open(t.Context(), sinkstore.Config{Service: "executor", StateDir: dir})
	must(t, err)
	defer durable.Close()
	waiting, err := spool.Open(t.Context(), dir)
	must(t, err)
	defer waiting.Close()
	kept, err := reserve.Open(dir, 4<<20)
	if err != nil || kept.InUse() {
		t.Fatalf("the reserve: %v, given up: %v", err, kept.InUse())
	}
	store, records := reservedStore{durable, kept}, recorder.Reserved(waiting, kept)
	platformtest.Fill(t, filepath.Join(dir, "ballast"))
	spend := func(tool string, n int) *sink.Spend {
		return &sink.Spend{
			Key: fmt.Sprintf("%s/%d", tool, n), Operation: fmt.Sprint(tool, n), Use: 1, Tool: tool, Arguments: make([]byte, 1000),
			ArgumentsDigest: make([]byte, 32), At: time.Now(), Until: time.Now().Add(time.Hour),
		}
	}
	// What is left in the last pages of the files may take a few.
	var full error
	for n := 0; n < 1000 && full == nil; n++ {
		full = store.Spend(t.Context(), spend("start_service", n))
	}
	if !fault.Is(full, callv1.Code_CODE_UNAVAILABLE) || kept.InUse() {
		t.Fatalf("starts on a full disk end with %v, reserve given up: %v", full, kept.InUse())
	}
	stop := spend("stop_service", 1)
	if err := store.Spend(t.Context(), stop); err != nil || !kept.InUse() {
		t.Fatalf("a stop on a full disk: %v, reserve given up: %v", err, kept.InUse())
	}
	if err := store.Spend(t.Context(), spend("start_service", 5000)); !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) {
		t.Errorf("a start takes of the reserve: %v", err)
	}
	raw, err := proto.Marshal(&auditv1.Record{Kind: auditv1.Kind_KIND_INTENT, Tool: "stop_service"})
	must(t, err)
	for what, err := range map[string]error{
		"its intent's record": records.Commit(t.Context(), recorder.Change{Add: []recorder.Row{{ID: 1, Record: raw}}}),
		"its outcome":         store.Finish(t.Context(), stop.Key, &sink.Result{State: sink.StateDone, OK: true}),
		"a halt":              store.SetControl(t.Context(), sink.Control{Epoch: 2, Halted: true}),
	} {
		if err != nil {
			t.Errorf("%s on a full disk: %v", what, err)
		}
	}
	if now, err := durable.Control(t.Context()); err != nil || !now.Halted {
		t.Errorf("on the disk: %v, %v", now, err)
	}
}

// TestStartsOnAFullDisk: a sink that ended on a disk which others then filled starts again, out of the reserve that it holds; without one
// its databases do not open.
func TestStartsOnAFullDisk(t *testing.T) {
	dir := platformtest.SmallDisk(t, 12<<20)
	if dir == "" {
		return
	}
	openStore := func() (*sinkstore.Store, error) {
		return sinkstore.Open(t.Context(), sinkstore.Config{Service: "executor", StateDir: dir})
	}
	openSpool := func() (*spool.Store, error) { return spool.Open(t.Context(), dir) }
	start := func(kept *reserve.Reserve) error {
		waiting, err := reserve.ToStart(kept, openSpool)
		if err != nil {
			return err
		}
		durable, err := reserve.ToStart(kept, openStore)
		if err != nil {
			return errors.Join(err, waiting.Close())
		}
		return errors.Join(durable.Close(), waiting.Close())
	}
	kept, err := reserve.Open(dir, 4<<20)
	must(t, errors.Join(err, start(kept)))
	platformtest.Fill(t, filepath.Join(dir, "ballast"))
	if err := start(nil); !reserve.Full(err) {
		t.Errorf("without a reserve: %v", err)
	}
	if err := start(kept); err != nil || !kept.InUse() {
		t.Errorf("with a reserve: %v, given up: %v", err, kept.InUse())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
