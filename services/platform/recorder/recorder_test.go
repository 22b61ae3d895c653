package recorder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
)

const (
	origin = "durward.local/audit/main"
	writer = "spiffe://durward.local/executor/local"
)

// audit is a log in memory with the manners that a test gives it.
type audit struct {
	signer note.Signer
	keys   []note.Verifier

	mu      sync.Mutex
	entries []*auditv1.Entry
	hashes  []tlog.Hash
	appends int // requests that came
	// down refuses; hang accepts and never answers; deaf commits and never answers.
	down, hang, deaf bool
	// refuse makes it refuse records for good.
	refuse func(*auditv1.Record) bool
	// spoil alters answers.
	spoil func(*auditv1.AppendResponse)
	// delay is how long an answer takes.
	delay time.Duration
}

func newAudit(t testing.TB) *audit {
	t.Helper()
	secret, public, err := note.GenerateKey(nil, origin)
	if err != nil {
		t.Fatal(err)
	}
	a := &audit{}
	if a.signer, err = note.NewSigner(secret); err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(public)
	if err != nil {
		t.Fatal(err)
	}
	a.keys = []note.Verifier{v}
	return a
}

func (a *audit) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		out[i] = a.hashes[index]
	}
	return out, nil
}

func (a *audit) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// meet waits out what the test's manners ask for.
func (a *audit) meet(ctx context.Context) error {
	a.mu.Lock()
	down, hang, delay := a.down, a.hang, a.delay
	a.mu.Unlock()
	if down {
		return fault.New(callv1.Code_CODE_UNAVAILABLE, "a process of Durward cannot be reached")
	}
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(delay)
	return nil
}

func (a *audit) head(known uint64) ([]byte, [][]byte, error) {
	size := int64(len(a.entries))
	root, err := tlog.TreeHash(size, a)
	if err != nil {
		return nil, nil, err
	}
	signed, err := logproof.SignCheckpoint(logproof.Checkpoint{Origin: origin, Size: uint64(size), Root: root}, a.signer)
	if err != nil || known == 0 || int64(known) >= size {
		return signed, nil, err
	}
	proof, err := tlog.ProveTree(size, int64(known), a)
	return signed, raw(proof), err
}

func raw(hashes []tlog.Hash) [][]byte {
	var out [][]byte
	for i := range hashes {
		out = append(out, hashes[i][:])
	}
	return out
}

func (a *audit) last() uint64 {
	if n := len(a.entries); n > 0 {
		return a.entries[n-1].GetRecord().GetSequence()
	}
	return 0
}

func (a *audit) GetHead(ctx context.Context, req *auditv1.GetHeadRequest, _ ...grpc.CallOption) (*auditv1.GetHeadResponse, error) {
	if err := a.meet(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	signed, proof, err := a.head(req.GetKnownSize())
	return &auditv1.GetHeadResponse{Checkpoint: signed, Consistency: proof, LastSequence: a.last()}, err
}

func (a *audit) Append(ctx context.Context, req *auditv1.AppendRequest, _ ...grpc.CallOption) (*auditv1.AppendResponse, error) {
	a.set(func() { a.appends++ })
	if err := a.meet(ctx); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.last() + 1
	for _, r := range req.GetRecords() {
		switch {
		case a.refuse != nil && a.refuse(r):
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "this process does not write records of that kind")
		case r.GetSequence() == next:
			next++
		case r.GetSequence() > next:
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "the next sequence is another")
		case r.GetSequence() <= a.last() && !proto.Equal(r, a.entries[r.GetSequence()-1].GetRecord()):
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "another record has the sequence")
		}
	}
	out := &auditv1.AppendResponse{}
	var placed []*auditv1.Entry
	for _, r := range req.GetRecords() {
		if r.GetSequence() > a.last() {
			e := &auditv1.Entry{
				Index: uint64(len(a.entries)), Writer: writer, Record: proto.CloneOf(r),
				LoggedAt: timestamppb.Now(), Salt: make([]byte, logproof.SaltSize),
			}
			if err := logproof.Seal(e); err != nil {
				return nil, err
			}
			hashes, err := tlog.StoredHashesForRecordHash(int64(len(a.entries)), tlog.Hash(e.GetLeafHash()), a)
			if err != nil {
				return nil, err
			}
			a.hashes, a.entries = append(a.hashes, hashes...), append(a.entries, e)
		}
		placed = append(placed, a.entries[r.GetSequence()-1])
	}
	var err error
	if out.Checkpoint, out.Consistency, err = a.head(req.GetKnownSize()); err != nil {
		return nil, err
	}
	for _, e := range placed {
		proof, err := tlog.ProveRecord(int64(len(a.entries)), int64(e.GetIndex()), a)
		if err != nil {
			return nil, err
		}
		out.Receipts = append(out.Receipts, &callv1.Receipt{Index: e.GetIndex(), Checkpoint: out.GetCheckpoint(), LeafHash: e.GetLeafHash(), Inclusion: raw(proof)})
		out.Placements = append(out.Placements, &auditv1.Placement{LoggedAt: e.GetLoggedAt(), Salt: bytes.Clone(e.GetSalt())})
	}
	if a.deaf {
		a.mu.Unlock()
		<-ctx.Done()
		a.mu.Lock()
		return nil, ctx.Err()
	}
	if a.spoil != nil {
		a.spoil(out)
	}
	return out, nil
}

func (a *audit) size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.entries)
}

func (a *audit) requests() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.appends
}

func (a *audit) id(index int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.entries[index].GetRecord().GetRequestId()
}

// holds checks that the log's records are exactly these, by request id, numbered without gaps.
func (a *audit) holds(t testing.TB, want ...string) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var got []string
	for i, e := range a.entries {
		if e.GetRecord().GetSequence() != uint64(i)+1 {
			t.Errorf("entry %d has the sequence %d", i, e.GetRecord().GetSequence())
		}
		got = append(got, e.GetRecord().GetRequestId())
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the log holds %v, want %v", got, want)
	}
}

func start(t testing.TB, a *audit, store Store) *Recorder {
	t.Helper()
	keeper, err := logproof.NewKeeper(t.Context(), logproof.KeeperConfig{Origin: origin, Keys: func() []note.Verifier { return a.keys }, Store: store})
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{Client: a, Keeper: keeper, Writer: writer, Store: store})
	if err != nil {
		t.Fatal(err)
	}
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

// store is a memory store that can be full.
type store struct {
	*MemoryStore
	mu      sync.Mutex
	err     error
	commits int
}

func newStore() *store { return &store{MemoryStore: NewMemoryStore()} }

func (s *store) Commit(ctx context.Context, c Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commits++
	if s.err != nil {
		return s.err
	}
	return s.MemoryStore.Commit(ctx, c)
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
	rows, err := s.Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
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
	for name, manners := range map[string]func(*audit){
		"is down":                  func(a *audit) { a.down = true },
		"hangs":                    func(a *audit) { a.hang = true },
		"commits and is not heard": func(a *audit) { a.deaf = true },
		"answers without receipts": func(a *audit) { a.spoil = func(r *auditv1.AppendResponse) { r.Receipts = nil } },
		"gives another's receipt": func(a *audit) {
			a.spoil = func(r *auditv1.AppendResponse) { r.Placements[0].Salt[0]++ }
		},
		"proves nothing": func(a *audit) {
			a.spoil = func(r *auditv1.AppendResponse) { r.Receipts[0].Index += 7 }
		},
		"signs nothing": func(a *audit) {
			a.spoil = func(r *auditv1.AppendResponse) { r.Checkpoint = r.GetCheckpoint()[:40] }
		},
		"is slow": func(a *audit) { a.delay = 1700 * time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAudit(t)
				r := start(t, a, newStore())
				if _, err := r.Record(t.Context(), record("r-0")); err != nil {
					t.Fatal(err)
				}
				a.set(func() { manners(a) })
				began := time.Now()
				_, err := r.Record(t.Context(), record("r-1"))
				wantUnavailable(t, err, began, DefaultTimeout)
				// When audit is well again everything goes on, without a gap and without a second r-1.
				a.set(func() { a.down, a.hang, a.deaf, a.spoil, a.delay = false, false, false, nil, 0 })
				time.Sleep(3 * time.Second)
				receipt, err := r.Record(t.Context(), record("r-2"))
				if err != nil {
					t.Fatalf("afterwards: %v", err)
				}
				if _, err := logproof.VerifyReceipt(receipt, a.keys); err != nil {
					t.Errorf("receipt: %v", err)
				}
				stop(t, r)
				// r-1 was sent, so its number stands and it is delivered, though its caller had given up.
				a.holds(t, "r-0", "r-1", "r-2")
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
		a.set(func() { entries, hashes = a.entries, a.hashes })
		a.set(func() { a.entries, a.hashes = entries[:1], hashes[:1] })
		began := time.Now()
		_, err := r.Record(t.Context(), record("r-3"))
		wantUnavailable(t, err, began, DefaultTimeout)
		if r.Reachable() {
			t.Error("a log that was rolled back counts as reachable")
		}
		a.set(func() { a.entries, a.hashes = entries, hashes })
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
		a.set(func() { a.entries, a.hashes = a.entries[:1], a.hashes[:1] })
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
		a.set(func() { a.delay = 10 * time.Millisecond })
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
		if a.requests() > 3 {
			t.Errorf("%d requests for 200 records", a.requests())
		}
		stop(t, r)
		if a.size() != 200 {
			t.Errorf("%d entries", a.size())
		}
	})
}

// TestGivenUpBeforeSent: what was not sent when its caller gave up is never sent.
func TestGivenUpBeforeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		a.set(func() { a.delay = 200 * time.Millisecond })
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
		a.holds(t, "r-1", "r-3")
	})
}

func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		r := start(t, a, s)
		if receipt, err := r.Report(t.Context(), record("r-1")); err != nil || receipt == nil {
			t.Fatalf("%v, %v", receipt, err)
		}
		a.set(func() { a.down = true })
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
		a.set(func() { a.down = false })
		r = start(t, a, s)
		stop(t, r)
		if a.size() < 2 || a.id(1) != "r-2" {
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
			if err := r.Spool(t.Context(), record(fmt.Sprint("r-", i))); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(linger + time.Millisecond)
		if a.size() != 20 || a.requests() != 1 || r.Depth() != 0 {
			t.Errorf("%d entries in %d requests, depth %d; want 20 in 1, 0", a.size(), a.requests(), r.Depth())
		}
		if s.committed() != commits {
			t.Errorf("%d commits to our own disk although audit's had everything", s.committed()-commits)
		}
		stop(t, r)
	})
}

// TestRecordCarriesTheSpool: a synchronous record takes along what was spooled before it, in order.
func TestRecordCarriesTheSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		r := start(t, a, newStore())
		time.Sleep(time.Second)
		for _, id := range []string{"r-1", "r-2"} {
			if err := r.Spool(t.Context(), record(id)); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if _, err := r.Record(t.Context(), record("r-3")); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= linger {
			t.Errorf("Record waited %v for the spool's company", took)
		}
		if a.requests() != 1 {
			t.Errorf("%d requests", a.requests())
		}
		a.holds(t, "r-1", "r-2", "r-3")
		stop(t, r)
	})
}

func TestSpoolOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		r := start(t, a, s)
		time.Sleep(time.Second)
		a.set(func() { a.down = true })
		for i := range 50 {
			if err := r.Spool(t.Context(), record(fmt.Sprint("r-", i))); err != nil {
				t.Fatal(err)
			}
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
		// The process is killed, and started again while audit is back.
		crash(r)
		a.set(func() { a.down = false })
		r = start(t, a, s)
		if r.Depth() != 51 {
			t.Errorf("depth %d after the restart", r.Depth())
		}
		if _, err := r.Record(t.Context(), record("r-after")); err != nil {
			t.Error(err)
		}
		stop(t, r)
		if n := s.count(t); n != 0 || a.size() != 52 {
			t.Errorf("%d rows left, %d entries; want 0, 52", n, a.size())
		}
	})
}

func TestSpoolIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		a.set(func() { a.down = true })
		r := start(t, a, s)
		for i := range MaxSpooled {
			if err := r.Spool(t.Context(), record("r")); err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
		}
		wantUnavailable(t, r.Spool(t.Context(), record("r")), time.Now(), 0)
		a.set(func() { a.down = false })
		time.Sleep(10 * time.Second)
		if r.Depth() != 0 || a.size() != MaxSpooled {
			t.Errorf("depth %d, %d entries", r.Depth(), a.size())
		}
		if a.requests() > MaxSpooled/maxBatch+10 {
			t.Errorf("%d requests", a.requests())
		}
		stop(t, r)
	})
}

func TestSpoolBytesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		a.set(func() { a.down = true })
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
		a.holds(t, "r-1")
		a.set(func() { a.down = true })
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
		a.set(func() { a.down = false })
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
				a.set(func() { a.deaf, a.hang = taken, !taken })
				for _, id := range []string{"r-1", "r-2", "r-3"} {
					if err := r.Spool(t.Context(), record(id)); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(100 * time.Millisecond)
				crash(r)
				rows, err := s.Load(t.Context())
				if err != nil || len(rows) != 3 || rows[2].Sequence != 4 {
					t.Fatalf("rows %v, %v", rows, err)
				}
				a.set(func() { a.deaf, a.hang = false, false })
				r = start(t, a, s)
				if _, err := r.Record(t.Context(), record("r-4")); err != nil {
					t.Error(err)
				}
				stop(t, r)
				a.holds(t, "r-0", "r-1", "r-2", "r-3", "r-4")
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
		a.set(func() { a.down = true })
		r := start(t, a, s)
		for _, id := range []string{"r-1", "r-2"} {
			if err := r.Spool(t.Context(), record(id)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		a.set(func() { a.down, a.deaf = false, true })
		time.Sleep(time.Second)
		crash(r)
		a.set(func() { a.deaf = false })
		r = start(t, a, s)
		if _, err := r.Record(t.Context(), record("r-3")); err != nil {
			t.Error(err)
		}
		stop(t, r)
		a.holds(t, "r-1", "r-2", "r-3")
	})
}

// TestPoison: a record that audit will never take does not hold up the others.
func TestPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newAudit(t), newStore()
		a.set(func() { a.refuse = func(r *auditv1.Record) bool { return r.GetRequestId() == "r-bad" } })
		a.set(func() { a.down = true })
		r := start(t, a, s)
		for _, id := range []string{"r-1", "r-2", "r-bad", "r-3", "r-bad", "r-4", "r-5"} {
			if err := r.Spool(t.Context(), record(id)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		a.set(func() { a.down = false })
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
		a.holds(t, "r-1", "r-2", "r-3", "r-4", "r-5", "r-6")
		if s.count(t) != 0 || r.Depth() != 0 {
			t.Errorf("%d rows, depth %d left", s.count(t), r.Depth())
		}
	})
}

// TestAnotherWriterWithOurIdentity: two commands of one operator number their records together.
func TestAnotherWriterWithOurIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		first, second := start(t, a, newStore()), start(t, a, newStore())
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
		a.holds(t, "r-0", "r-1", "r-2", "r-3", "r-4", "r-5")
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
		if a.size() != 0 {
			t.Errorf("%d entries", a.size())
		}
	})
}

func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		r := start(t, a, newStore())
		if err := r.Spool(t.Context(), record("r-1")); err != nil {
			t.Fatal(err)
		}
		stop(t, r)
		stop(t, r)
		a.holds(t, "r-1")
		_, err := r.Record(t.Context(), record("r-2"))
		wantUnavailable(t, err, time.Now(), 0)
		wantUnavailable(t, r.Spool(t.Context(), record("r-2")), time.Now(), 0)
	})
}

// TestSQLStore runs the spool's life on a real file.
func TestSQLStore(t *testing.T) {
	dir := t.TempDir()
	open := func() *SQLStore {
		s, err := OpenStore(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if b, err := s.LoadCheckpoint(t.Context()); b != nil || err != nil {
		t.Fatalf("%q, %v", b, err)
	}
	when := time.Unix(1_700_000_000, 5)
	if err := s.SaveCheckpoint(t.Context(), []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), Change{Add: []Row{{ID: 1, Queued: when, Record: []byte("a")}, {ID: 2, Queued: when, Record: []byte("b")}, {ID: 3, Sequence: 9, Queued: when, Record: []byte("c")}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), Change{Assign: map[uint64]uint64{1: 7, 99: 8}, Remove: []uint64{2, 98}}); err != nil {
		t.Fatal(err)
	}
	// A change that fails halfway leaves nothing behind.
	if err := s.Commit(t.Context(), Change{Remove: []uint64{1}, Add: []Row{{ID: 4, Queued: when, Record: []byte("d")}, {ID: 3, Queued: when, Record: []byte("c")}}}); err == nil {
		t.Fatal("a row was added twice")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	defer s.Close()
	rows, err := s.Load(t.Context())
	if err != nil || len(rows) != 2 || rows[0].Sequence != 7 || rows[1].ID != 3 || !rows[0].Queued.Equal(when) || string(rows[1].Record) != "c" {
		t.Fatalf("rows %+v, %v", rows, err)
	}
	if b, err := s.LoadCheckpoint(t.Context()); string(b) != "one" || err != nil {
		t.Fatalf("checkpoint %q, %v", b, err)
	}
	if _, err := OpenStore(t.Context(), filepath.Join("relative", "folder")); err == nil {
		t.Error("a relative state folder was taken")
	}
}

// TestOnDisk runs a recorder on a real file through an outage and a restart.
func TestOnDisk(t *testing.T) {
	dir, a := t.TempDir(), newAudit(t)
	open := func() *Recorder {
		s, err := OpenStore(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return start(t, a, s)
	}
	a.set(func() { a.down = true })
	r := open()
	if err := r.Spool(t.Context(), record("r-1")); err != nil {
		t.Fatal(err)
	}
	if receipt, err := r.Report(t.Context(), record("r-2")); receipt != nil || err != nil {
		t.Fatalf("%v, %v", receipt, err)
	}
	stop(t, r)
	a.set(func() { a.down = false })
	r = open()
	if _, err := r.Record(t.Context(), record("r-3")); err != nil {
		t.Fatal(err)
	}
	stop(t, r)
	a.holds(t, "r-1", "r-2", "r-3")
	r = open()
	if r.Depth() != 0 || r.cfg.Keeper.Held().Size != 3 {
		t.Errorf("depth %d, checkpoint of %d", r.Depth(), r.cfg.Keeper.Held().Size)
	}
	stop(t, r)
}
