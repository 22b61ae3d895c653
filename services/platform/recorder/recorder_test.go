package recorder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
)

const (
	origin = "durward.local/audit/main"
	writer = "spiffe://durward.local/executor/local"
)

func newAudit(t testing.TB) *platformtest.AuditLog {
	t.Helper()
	return platformtest.NewAuditLog(t, origin, writer)
}

func start(t testing.TB, a *platformtest.AuditLog, store Store) *Recorder {
	t.Helper()
	return startWith(t, a, a, store)
}

func startWith(t testing.TB, client auditv1.LogServiceClient, a *platformtest.AuditLog, store Store) *Recorder {
	t.Helper()
	keeper, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{Origin: origin, Keys: a.Keys, Store: store})
	must(t, err)
	r, err := New(Config{Client: client, Keeper: keeper, Writer: writer, Store: store})
	must(t, err)
	t.Cleanup(func() { crash(r) })
	return r
}

func stop(t testing.TB, r *Recorder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// crash stops a recorder as a killed process stops: nothing more is sent or written.
func crash(r *Recorder) {
	r.stop()
	r.running.Wait()
}

func record(id string) *auditv1.Record {
	return &auditv1.Record{Kind: auditv1.Kind_KIND_READ, RequestId: id, Body: &auditv1.Body{Summary: "about " + id}}
}

func halted() *auditv1.Record {
	r := record("r-halt")
	r.Kind, r.Status = auditv1.Kind_KIND_HALTED, auditv1.Status_STATUS_OK
	return r
}

// store is a memory store that can be full.
type store struct {
	*memoryStore
	mu      sync.Mutex
	err     error
	commits int
}

func newStore() *store { return &store{memoryStore: newMemoryStore()} }

func (s *store) Commit(ctx context.Context, c Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	if s.err != nil {
		return s.err
	}
	return s.memoryStore.Commit(ctx, c)
}

func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *store) committed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commits
}

func (s *store) count(t testing.TB) int {
	t.Helper()
	rows, _, err := s.Load(context.Background())
	must(t, err)
	return len(rows)
}

func wantUnavailable(t testing.TB, err error, started time.Time, within time.Duration) {
	t.Helper()
	if !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
		t.Errorf("error %v, want CODE_AUDIT_UNAVAILABLE", err)
	}
	if took := time.Since(started); took > within {
		t.Errorf("refused after %v, want within %v", took, within)
	}
}

func TestRecordRefusesWhenAudit(t *testing.T) {
	for name, manners := range map[string]func(*platformtest.AuditLog){
		"is down":                  func(a *platformtest.AuditLog) { a.Down = true },
		"hangs":                    func(a *platformtest.AuditLog) { a.Hang = true },
		"commits and is not heard": func(a *platformtest.AuditLog) { a.Deaf = true },
		"answers without receipts": func(a *platformtest.AuditLog) { a.Spoil = func(r *auditv1.AppendResponse) { r.Receipts = nil } },
		"gives another's receipt": func(a *platformtest.AuditLog) {
			a.Spoil = func(r *auditv1.AppendResponse) { r.Placements[0].Salt[0]++ }
		},
		"proves nothing": func(a *platformtest.AuditLog) {
			a.Spoil = func(r *auditv1.AppendResponse) { r.Receipts[0].Index += 7 }
		},
		"signs nothing": func(a *platformtest.AuditLog) {
			a.Spoil = func(r *auditv1.AppendResponse) { r.Checkpoint = r.GetCheckpoint()[:40] }
		},
		"is slow": func(a *platformtest.AuditLog) { a.Delay = 1700 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAudit(t)
				r := start(t, a, newStore())
				if _, err := r.Record(t.Context(), record("r-0")); err != nil {
					t.Fatal(err)
				}
				a.Set(func() { manners(a) })
				began := time.Now()
				_, err := r.Record(t.Context(), record("r-1"))
				wantUnavailable(t, err, began, DefaultTimeout)
				// When audit is well again everything goes on, without a gap and without a second r-1.
				a.Set(func() { a.Down, a.Hang, a.Deaf, a.Spoil, a.Delay = false, false, false, nil, 0 })
				time.Sleep(3 * time.Second)
				receipt, err := r.Record(t.Context(), record("r-2"))
				if err != nil {
					t.Fatalf("afterwards: %v", err)
				}
				if _, err := logproof.VerifyReceipt(receipt, a.Keys()); err != nil {
					t.Errorf("receipt: %v", err)
				}
				stop(t, r)
				// r-1 was sent, so its number stands and it is delivered, though its caller had given up.
				a.Holds(t, "r-0", "r-1", "r-2")
			})
		})
	}
}

func TestRecordAfterRollback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		r := start(t, a, newStore())
		for i := range 3 {
			if _, err := r.Record(t.Context(), record(fmt.Sprint("r-", i))); err != nil {
				t.Fatal(err)
			}
		}
		var entries []*auditv1.Entry
		var hashes []tlog.Hash
		a.Set(func() { entries, hashes = a.Entries, a.Hashes })
		a.Set(func() { a.Entries, a.Hashes = entries[:1], hashes[:1] })
		began := time.Now()
		_, err := r.Record(t.Context(), record("r-3"))
		wantUnavailable(t, err, began, DefaultTimeout)
		if r.Reachable() {
			t.Error("a log that was rolled back counts as reachable")
		}
		a.Set(func() { a.Entries, a.Hashes = entries, hashes })
		time.Sleep(time.Second)
		if _, err := r.Record(t.Context(), record("r-4")); err != nil {
			t.Errorf("the true log again: %v", err)
		}
		stop(t, r)
	})
}

// TestKeptCheckpoint: a restart does not forget what was seen.
func TestKeptCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		r := start(t, a, s)
		for i := range 3 {
			if _, err := r.Record(t.Context(), record(fmt.Sprint("r-", i))); err != nil {
				t.Fatal(err)
			}
		}
		stop(t, r)
		a.Set(func() { a.Entries, a.Hashes = a.Entries[:1], a.Hashes[:1] })
		r = start(t, a, s)
		began := time.Now()
		_, err := r.Record(t.Context(), record("r-3"))
		wantUnavailable(t, err, began, DefaultTimeout)
		stop(t, r)
	})
}

func TestRecordsShareBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		a.Set(func() { a.Delay = 10 * time.Millisecond })
		r := start(t, a, newStore())
		var running sync.WaitGroup
		for i := range 200 {
			running.Go(func() {
				if _, err := r.Record(t.Context(), record(fmt.Sprint("r-", i))); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		if a.Requests() > 3 {
			t.Errorf("%d requests for 200 records", a.Requests())
		}
		stop(t, r)
		if a.Size() != 200 {
			t.Errorf("%d entries", a.Size())
		}
	})
}

// TestGivenUpBeforeSent: what was not sent when its caller gave up is never sent.
func TestGivenUpBeforeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		a.Set(func() { a.Delay = 200 * time.Millisecond })
		r := start(t, a, newStore())
		time.Sleep(time.Second)
		var running sync.WaitGroup
		running.Go(func() {
			if _, err := r.Record(t.Context(), record("r-1")); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(50 * time.Millisecond) // r-1 is on its way
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := r.Record(ctx, record("r-2")); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
			t.Errorf("error %v", err)
		}
		running.Wait()
		if _, err := r.Record(t.Context(), record("r-3")); err != nil {
			t.Error(err)
		}
		stop(t, r)
		a.Holds(t, "r-1", "r-3")
	})
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		r := start(t, a, s)
		if receipt, err := r.Report(t.Context(), record("r-1")); err != nil || receipt == nil {
			t.Fatalf("%v, %v", receipt, err)
		}
		a.Set(func() { a.Down = true })
		began := time.Now()
		receipt, err := r.Report(t.Context(), record("r-2"))
		if err != nil || receipt != nil {
			t.Errorf("kept: %v, %v", receipt, err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("kept after %v", took)
		}
		if s.count(t) != 1 || r.Depth() != 1 {
			t.Errorf("%d rows, depth %d; want 1, 1", s.count(t), r.Depth())
		}
		s.fail(errors.New("disk full"))
		if _, err := r.Report(t.Context(), record("r-3")); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
			t.Errorf("neither audit nor disk: %v", err)
		}
		s.fail(nil)
		crash(r) // r-3 reaches the disk with the flusher's next try, or is lost with the process; here it was told so
		a.Set(func() { a.Down = false })
		r = start(t, a, s)
		stop(t, r)
		if a.Size() < 2 || a.RequestID(1) != "r-2" {
			t.Errorf("r-2 is not in the log")
		}
	})
}

func TestSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		r := start(t, a, s)
		time.Sleep(3 * tidyWithin / 2)
		commits := s.committed()
		for i := range 20 {
			must(t, r.Spool(t.Context(), record(fmt.Sprint("r-", i))))
		}
		time.Sleep(linger + time.Millisecond)
		if a.Size() != 20 || a.Requests() != 1 || r.Depth() != 0 {
			t.Errorf("%d entries in %d requests, depth %d; want 20 in 1, 0", a.Size(), a.Requests(), r.Depth())
		}
		if s.committed() != commits {
			t.Errorf("%d commits to our own disk although audit's had everything", s.committed()-commits)
		}
		stop(t, r)
	})
}

// TestSpoolWritesWhatAuditLacks: what audit has within 100 ms is not written here too, however many records follow each other: only the checkpoint is, each second.
func TestSpoolWritesWhatAuditLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, kept := newAudit(t), newStore()
		a.Delay = 20 * time.Millisecond
		r := start(t, a, kept)
		const seconds = 3
		for i := range seconds * 100 {
			must(t, r.Spool(t.Context(), record(fmt.Sprint(i))))
			time.Sleep(10 * time.Millisecond)
		}
		if n := kept.committed(); n > seconds+1 {
			t.Errorf("%d commits in %d s while audit answers", n, seconds)
		}
		stop(t, r)
		if n := a.Size(); n != seconds*100 {
			t.Errorf("%d records in the log", n)
		}
	})
}

// TestRecordCarriesTheSpool: a synchronous record takes along what was spooled before it, in order.
func TestRecordCarriesTheSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		r := start(t, a, newStore())
		time.Sleep(time.Second)
		for _, id := range []string{"r-1", "r-2"} {
			must(t, r.Spool(t.Context(), record(id)))
		}
		began := time.Now()
		if _, err := r.Record(t.Context(), record("r-3")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= linger {
			t.Errorf("Record waited %v for the spool's company", took)
		}
		if a.Requests() != 1 {
			t.Errorf("%d requests", a.Requests())
		}
		a.Holds(t, "r-1", "r-2", "r-3")
		stop(t, r)
	})
}

func TestSpoolOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		r := start(t, a, s)
		time.Sleep(time.Second)
		a.Set(func() { a.Down = true })
		for i := range 50 {
			must(t, r.Spool(t.Context(), record(fmt.Sprint("r-", i))))
		}
		time.Sleep(commitWithin + time.Millisecond)
		if n := s.count(t); n != 50 {
			t.Errorf("%d rows on disk after %v, want 50", n, commitWithin)
		}
		time.Sleep(MaxAge - time.Second)
		if err := r.Spool(t.Context(), record("r-late")); err != nil {
			t.Errorf("just before %v: %v", MaxAge, err)
		}
		time.Sleep(2 * time.Second)
		wantUnavailable(t, r.Spool(t.Context(), record("r-too-late")), time.Now(), 0)
		if err := r.Spool(t.Context(), halted()); err != nil {
			t.Errorf("a halt: %v", err)
		}
		time.Sleep(commitWithin + time.Millisecond)
		// The process is killed, and started again while audit is back.
		crash(r)
		a.Set(func() { a.Down = false })
		r = start(t, a, s) // it may send before anybody looks
		if _, err := r.Record(t.Context(), record("r-after")); err != nil {
			t.Error(err)
		}
		stop(t, r)
		if n := s.count(t); n != 0 || a.Size() != 53 {
			t.Errorf("%d rows left, %d entries; want 0, 53", n, a.Size())
		}
	})
}

func TestSpoolIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		a.Set(func() { a.Down = true })
		r := start(t, a, s)
		for i := range MaxSpooled {
			if err := r.Spool(t.Context(), record("r")); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
		}
		wantUnavailable(t, r.Spool(t.Context(), record("r")), time.Now(), 0)
		a.Set(func() { a.Down = false })
		time.Sleep(10 * time.Second)
		if r.Depth() != 0 || a.Size() != MaxSpooled {
			t.Errorf("depth %d, %d entries", r.Depth(), a.Size())
		}
		if a.Requests() > MaxSpooled/maxBatch+10 {
			t.Errorf("%d requests", a.Requests())
		}
		stop(t, r)
	})
}

// TestSpoolOfASetSize: a process may want to hold less than the most.
func TestSpoolOfASetSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		a.Set(func() { a.Down = true })
		keeper, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{Origin: origin, Keys: a.Keys})
		must(t, err)
		for _, n := range []int{-1, MaxSpooled + 1} {
			if _, err := New(Config{Client: a, Keeper: keeper, Writer: writer, MaxSpooled: n}); err == nil {
				t.Errorf("a spool of %d records was taken", n)
			}
		}
		var said strings.Builder
		r, err := New(Config{Client: a, Keeper: keeper, Writer: writer, MaxSpooled: 2, Logger: slog.New(slog.NewTextHandler(&said, nil))})
		must(t, err)
		for range 2 {
			must(t, r.Spool(t.Context(), record("r")))
		}
		wantUnavailable(t, r.Spool(t.Context(), record("r")), time.Now(), 0)
		for range 2 { // what a human ends has as much room again, and no more
			must(t, r.Spool(t.Context(), halted()))
		}
		wantUnavailable(t, r.Spool(t.Context(), halted()), time.Now(), 0)
		stop(t, r)
		if !strings.Contains(said.String(), "count=4") {
			t.Errorf("the end does not say what was left: %q", said.String())
		}
	})
}

func TestSpoolBytesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		a.Set(func() { a.Down = true })
		r := start(t, a, newStore())
		big := record("r")
		big.Body.Arguments = string(make([]byte, 60_000))
		n := 0
		for ; n < MaxSpooled; n++ {
			if err := r.Spool(t.Context(), big); err != nil {
				break
			}
		}
		if want := MaxSpooledBytes / 60_000; n > want {
			t.Errorf("%d records of 60 kB were taken, want at most %d", n, want)
		}
		crash(r)
	})
}

func TestSpoolWithoutAuditOrDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		r := start(t, a, s)
		time.Sleep(time.Second)
		s.fail(errors.New("disk full"))
		if err := r.Spool(t.Context(), record("r-1")); err != nil {
			t.Errorf("audit is there: %v", err)
		}
		time.Sleep(time.Second)
		a.Holds(t, "r-1")
		a.Set(func() { a.Down = true })
		if err := r.Spool(t.Context(), record("r-2")); err != nil {
			t.Errorf("not known to be away yet: %v", err)
		}
		time.Sleep(time.Second)
		wantUnavailable(t, r.Spool(t.Context(), record("r-3")), time.Now(), 0)
		s.fail(nil)
		time.Sleep(time.Second)
		if err := r.Spool(t.Context(), record("r-4")); err != nil {
			t.Errorf("the disk is back: %v", err)
		}
		a.Set(func() { a.Down = false })
		stop(t, r)
	})
}

// TestCrashWithAnUnknownFate: records that were sent from the spool before a crash are in the log once, whether audit had
// taken them or not.
func TestCrashWithAnUnknownFate(t *testing.T) {
	for _, taken := range []bool{true, false} {
		t.Run(fmt.Sprintf("taken=%v", taken), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, s := newAudit(t), newStore()
				r := start(t, a, s)
				if _, err := r.Record(t.Context(), record("r-0")); err != nil {
					t.Fatal(err)
				}
				a.Set(func() { a.Deaf, a.Hang = taken, !taken })
				for _, id := range []string{"r-1", "r-2", "r-3"} {
					must(t, r.Spool(t.Context(), record(id)))
				}
				time.Sleep(commitWithin + time.Millisecond) // not at the very instant of the commit
				crash(r)
				rows, _, err := s.Load(t.Context())
				if err != nil || len(rows) != 3 || rows[2].Sequence != 4 {
					t.Fatalf("rows %v, %v", rows, err)
				}
				a.Set(func() { a.Deaf, a.Hang = false, false })
				r = start(t, a, s)
				if _, err := r.Record(t.Context(), record("r-4")); err != nil {
					t.Error(err)
				}
				stop(t, r)
				a.Holds(t, "r-0", "r-1", "r-2", "r-3", "r-4")
				if s.count(t) != 0 {
					t.Error("rows are left")
				}
			})
		})
	}
}

// TestCrashWhileNumbering: rows that waited through an outage get their numbers on disk before they are sent.
func TestCrashWhileNumbering(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		a.Set(func() { a.Down = true })
		r := start(t, a, s)
		for _, id := range []string{"r-1", "r-2"} {
			must(t, r.Spool(t.Context(), record(id)))
		}
		time.Sleep(time.Second)
		a.Set(func() { a.Down, a.Deaf = false, true })
		time.Sleep(time.Second)
		crash(r)
		a.Set(func() { a.Deaf = false })
		r = start(t, a, s)
		if _, err := r.Record(t.Context(), record("r-3")); err != nil {
			t.Error(err)
		}
		stop(t, r)
		a.Holds(t, "r-1", "r-2", "r-3")
	})
}

// TestPoison: a record that audit will never take does not hold up the others.
func TestPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		a.Set(func() { a.Refuse = func(r *auditv1.Record) bool { return r.GetRequestId() == "r-bad" } })
		a.Set(func() { a.Down = true })
		r := start(t, a, s)
		for _, id := range []string{"r-1", "r-2", "r-bad", "r-3", "r-bad", "r-4", "r-5"} {
			must(t, r.Spool(t.Context(), record(id)))
		}
		time.Sleep(time.Second)
		a.Set(func() { a.Down = false })
		time.Sleep(time.Second)
		if _, err := r.Record(t.Context(), record("r-bad")); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
			t.Errorf("error %v", err)
		}
		if _, err := r.Report(t.Context(), record("r-bad")); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
			t.Errorf("error %v", err)
		}
		if _, err := r.Record(t.Context(), record("r-6")); err != nil {
			t.Error(err)
		}
		stop(t, r)
		a.Holds(t, "r-1", "r-2", "r-3", "r-4", "r-5", "r-6")
		if s.count(t) != 0 || r.Depth() != 0 {
			t.Errorf("%d rows, depth %d left", s.count(t), r.Depth())
		}
	})
}

// TestRedacts: a credential is neither spooled nor sent.
func TestRedacts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		a.Set(func() { a.Down = true })
		r := start(t, a, s)
		secret := record("r-1")
		secret.Body.Arguments, secret.Body.Summary = `{"password":"hunter2"}`, "set password=hunter2"
		must(t, r.Spool(t.Context(), secret))
		time.Sleep(time.Second)
		rows, _, err := s.Load(t.Context())
		if err != nil || len(rows) != 1 || strings.Contains(string(rows[0].Record), "hunter2") {
			t.Errorf("%d rows spooled, %v", len(rows), err)
		}
		a.Set(func() { a.Down = false })
		time.Sleep(time.Second)
		stop(t, r)
		a.Holds(t, "r-1")
		if text := a.Entries[0].String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "[redacted:") {
			t.Errorf("recorded: %s", text)
		}
	})
}

// TestStateIsToldWhole: what a process tells the log of its own state is read back as it was told, whatever its tables are called.
func TestStateIsToldWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		a.Set(func() { a.Down = true })
		r := start(t, a, s)
		told := State{Revision: 7, Digest: strings.Repeat("ab", 32), Rows: map[string]uint64{
			"credentials": 3, "credential_versions": 12345678, "keyring": 1, "tokens": 0, "spent_keys": 9, "passwords": 20260131,
		}}
		of := told.Record()
		of.Time = timestamppb.Now()
		must(t, r.Spool(t.Context(), of))
		if got, _, err := r.LastState(t.Context()); err != nil || !reflect.DeepEqual(got, told) {
			t.Errorf("told %v, read %v, %v", told, got, err)
		}
		stop(t, r)
	})
}

// TestRedactsWhatAuditFinds: audit knows credentials that this process does not. No record is lost for it, none is doubled by a crash,
// and none keeps its number's neighbours waiting; the spool holds the redacted one.
func TestRedactsWhatAuditFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		a.Set(func() {
			a.Down = true
			a.Finds = func(r *auditv1.Record) string {
				switch {
				case strings.Contains(r.GetBody().GetSummary(), "zebra"):
					return "body.summary"
				case strings.Contains(r.GetBody().GetDetails()["a"], "zebra"):
					return "body.details.a"
				}
				return ""
			}
		})
		r := start(t, a, s)
		var want []string
		for i := range 9 {
			one := record(fmt.Sprint("r-", i))
			if i%4 == 0 {
				one.Body.Summary, one.Body.Details = "a zebra", map[string]string{"a": "zebra", "b": "horse"}
			}
			must(t, r.Spool(t.Context(), one))
			want = append(want, one.GetRequestId())
		}
		time.Sleep(time.Second)
		a.Set(func() { a.Down, a.Deaf = false, true }) // what is taken is not answered
		time.Sleep(time.Second)
		crash(r)
		a.Set(func() { a.Deaf = false })
		r = start(t, a, s)
		time.Sleep(time.Second)
		last := record("r-9")
		last.Body.Summary = "one zebra more"
		if _, err := r.Record(t.Context(), last); err != nil {
			t.Error(err)
		}
		stop(t, r)
		a.Holds(t, append(want, "r-9")...)
		for i, e := range a.Entries {
			if text := e.String(); strings.Contains(text, "zebra") || i%4 == 0 && i < 9 && (!strings.Contains(text, "horse") || !strings.Contains(text, "[redacted:refused]")) {
				t.Errorf("entry %d: %s", i, text)
			}
		}
	})
}

// TestAsksForever: audit that asks for what is redacted already does not hold up the others.
func TestAsksForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		a.Set(func() {
			a.Finds = func(r *auditv1.Record) string {
				return map[string]string{"r-1": "body.summary", "r-2": "no.such.field"}[r.GetRequestId()]
			}
		})
		r := start(t, a, newStore())
		for i := range 4 {
			if _, err := r.Record(t.Context(), record(fmt.Sprint("r-", i))); (err != nil) != (i == 1 || i == 2) {
				t.Errorf("record %d: %v", i, err)
			}
		}
		stop(t, r)
		a.Holds(t, "r-0", "r-3")
	})
}

// TestAnotherWriterWithOurIdentity: two commands of one operator number their records together.
func TestAnotherWriterWithOurIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		first, second := start(t, a, newMemoryStore()), start(t, a, newMemoryStore())
		for i := range 6 {
			r := first
			if i%2 == 1 {
				r = second
			}
			if _, err := r.Record(t.Context(), record(fmt.Sprint("r-", i))); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
		}
		stop(t, first)
		stop(t, second)
		a.Holds(t, "r-0", "r-1", "r-2", "r-3", "r-4", "r-5")
	})
}

func TestInvalidRecordsAreOurMistake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		r := start(t, a, newStore())
		for name, bad := range map[string]*auditv1.Record{
			"no kind":           {RequestId: "r"},
			"control character": {Kind: auditv1.Kind_KIND_READ, Tool: "x\n"},
			"long summary":      {Kind: auditv1.Kind_KIND_READ, Body: &auditv1.Body{Summary: string(make([]byte, 501))}},
			"nothing":           nil,
		} {
			if _, err := r.Record(t.Context(), bad); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
				t.Errorf("%s: Record: %v", name, err)
			}
			if _, err := r.Report(t.Context(), bad); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
				t.Errorf("%s: Report: %v", name, err)
			}
			if err := r.Spool(t.Context(), bad); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
				t.Errorf("%s: Spool: %v", name, err)
			}
		}
		stop(t, r)
		if a.Size() != 0 {
			t.Errorf("%d entries", a.Size())
		}
	})
}

func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		r := start(t, a, newStore())
		must(t, r.Spool(t.Context(), record("r-1")))
		stop(t, r)
		stop(t, r)
		a.Holds(t, "r-1")
		_, err := r.Record(t.Context(), record("r-2"))
		wantUnavailable(t, err, time.Now(), 0)
		wantUnavailable(t, r.Spool(t.Context(), record("r-2")), time.Now(), 0)
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
