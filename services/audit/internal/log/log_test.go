package log_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest/full"
	"durward.internal/services/platform/reserve"
)

const origin = "durward.local/audit/main"

var writers = []string{
	"spiffe://durward.local/executor/local", "spiffe://durward.local/vault/main", "spiffe://durward.local/gateway/main",
}

// faulty is a store whose commits fail when the test says so.
type faulty struct {
	*store.Store
	mu     sync.Mutex
	before error // fail and write nothing
	after  error // write, and report a failure all the same
	read   error
}

func (f *faulty) Commit(ctx context.Context, b store.Batch) error {
	f.mu.Lock()
	before, after := f.before, f.after
	f.mu.Unlock()
	if before != nil {
		return before
	}
	return errors.Join(f.Store.Commit(ctx, b), after)
}

func (f *faulty) Head(ctx context.Context) (store.Head, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read != nil {
		return store.Head{}, f.read
	}
	return f.Store.Head(ctx)
}

func (f *faulty) set(before, after, read error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after, f.read = before, after, read
}

// rig is a log with everything that anybody ever heard of it.
type rig struct {
	t      testing.TB
	dir    string
	signer note.Signer
	keys   []note.Verifier
	kept   *reserve.Reserve
	db     *faulty
	log    *log.Log
	clock  time.Time
	next   map[string]uint64
	// records are all that was acknowledged, by writer and sequence; receipts their newest receipts.
	records  map[string][]*auditv1.Record
	receipts []*callv1.Receipt
	heads    []logproof.Checkpoint
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigIn(t, t.TempDir(), nil)
}

func newRigIn(t testing.TB, dir string, kept *reserve.Reserve) *rig {
	t.Helper()
	secret, public, err := note.GenerateKey(nil, origin)
	must(t, err)
	r := &rig{t: t, dir: dir, kept: kept, clock: time.Now(), next: map[string]uint64{}, records: map[string][]*auditv1.Record{}}
	if r.signer, err = note.NewSigner(secret); err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(public)
	must(t, err)
	r.keys = []note.Verifier{v}
	r.open()
	t.Cleanup(r.close)
	return r
}

func (r *rig) open() {
	r.t.Helper()
	var db *store.Store
	err := r.kept.Write(true, func() (err error) { db, err = store.Open(r.t.Context(), r.dir); return err })
	must(r.t, err)
	r.db = &faulty{Store: db}
	if r.log, err = log.Open(r.t.Context(), r.config()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) config() log.Config {
	return log.Config{Store: r.db, Signer: r.signer, Reserve: r.kept, Keys: func() []note.Verifier { return r.keys }, Clock: func() time.Time { return r.clock }}
}

func (r *rig) close() {
	r.log.Close()
	if err := r.db.Close(); err != nil {
		r.t.Error(err)
	}
}

// record makes the next record of a writer.
func (r *rig) record(writer, summary string) *auditv1.Record {
	r.next[writer]++
	return &auditv1.Record{
		Sequence: r.next[writer], Kind: auditv1.Kind_KIND_READ, Time: timestamppb.New(r.clock), RequestId: "r-1", Tool: "gpu_status",
		Body: &auditv1.Body{Summary: summary},
	}
}

// keep remembers an acknowledged answer and verifies it by itself.
func (r *rig) keep(writer string, sent []*auditv1.Record, known uint64, answer *auditv1.AppendResponse) {
	r.t.Helper()
	head, err := logproof.OpenCheckpoint(answer.GetCheckpoint(), r.keys)
	must(r.t, err)
	if len(answer.GetReceipts()) != len(sent) || len(answer.GetPlacements()) != len(sent) {
		r.t.Fatalf("%d receipts and %d placements for %d records", len(answer.GetReceipts()), len(answer.GetPlacements()), len(sent))
	}
	for i, receipt := range answer.GetReceipts() {
		if c, err := logproof.VerifyReceipt(receipt, r.keys); err != nil || c != head {
			r.t.Fatalf("receipt %d: %v, of %+v where the answer has %+v", i, err, c, head)
		}
		if err := logproof.VerifyPlacement(writer, sent[i], answer.GetPlacements()[i], receipt); err != nil {
			r.t.Fatalf("record %d: %v", i, err)
		}
	}
	for _, c := range r.heads {
		if c.Size == known {
			if err := logproof.VerifyConsistency(c, head, answer.GetConsistency()); err != nil {
				r.t.Fatalf("from %d: %v", known, err)
			}
		}
	}
	for _, record := range sent {
		if record.GetSequence() > uint64(len(r.records[writer])) {
			r.records[writer] = append(r.records[writer], record)
		}
	}
	r.receipts = append(r.receipts, answer.GetReceipts()...)
	r.heads = append(r.heads, head)
}

func (r *rig) append(writer string, sent ...*auditv1.Record) *auditv1.AppendResponse {
	r.t.Helper()
	known := uint64(0)
	if len(r.heads) > 0 {
		known = r.heads[len(r.heads)-1].Size
	}
	answer, err := r.log.Append(r.t.Context(), writer, sent, known)
	if err != nil {
		r.t.Fatalf("append: %v: %v", err, errors.Unwrap(err))
	}
	r.keep(writer, sent, known, answer)
	return answer
}

// check holds what must be true of a log after every step: what is stored adds up to the newest checkpoint and contains
// every acknowledged record; it extends every checkpoint that anybody saw; and every receipt ever given still stands.
func (r *rig) check() {
	r.t.Helper()
	size, checkpoint, _, err := r.log.Export(r.t.Context(), 0)
	must(r.t, err)
	if size == 0 {
		if len(r.receipts) > 0 {
			r.t.Fatal("the log is empty, and receipts were given")
		}
		return
	}
	head, err := logproof.OpenCheckpoint(checkpoint, r.keys)
	must(r.t, err)
	replay := &logproof.Replay{}
	for _, c := range r.heads {
		replay.Expect(c)
		_, _, proof, err := r.log.Export(r.t.Context(), c.Size)
		if err != nil {
			r.t.Fatalf("proof from %d: %v", c.Size, err)
		}
		if err := logproof.VerifyConsistency(c, head, proof); err != nil {
			r.t.Fatalf("from %d to %d: %v", c.Size, head.Size, err)
		}
	}
	entries, err := r.db.Range(r.t.Context(), 0, size, int(size), 1<<30)
	must(r.t, err)
	var logged time.Time
	stored := map[string][]*auditv1.Record{}
	for _, e := range entries {
		must(r.t, replay.Add(e))
		if e.GetLoggedAt().AsTime().Before(logged) {
			r.t.Fatalf("entry %d: the log's clock went back", e.GetIndex())
		}
		logged = e.GetLoggedAt().AsTime()
		stored[e.GetWriter()] = append(stored[e.GetWriter()], e.GetRecord())
	}
	must(r.t, replay.Finish(head))
	for writer, records := range r.records {
		if len(stored[writer]) < len(records) {
			r.t.Fatalf("%s: %d records acknowledged, %d stored", writer, len(records), len(stored[writer]))
		}
		for i, want := range records {
			if got := stored[writer][i]; !proto.Equal(got, want) {
				r.t.Fatalf("%s: record %d is %v, acknowledged was %v", writer, i, got, want)
			}
		}
	}
	for _, receipt := range r.receipts {
		if hash := entries[receipt.GetIndex()].GetLeafHash(); !cmp.Equal(hash, receipt.GetLeafHash()) {
			r.t.Fatalf("entry %d is not the one of its receipt", receipt.GetIndex())
		}
	}
}

func TestAppendRefuses(t *testing.T) {
	r := newRig(t)
	me, other := writers[0], writers[1]
	one, two := r.record(me, "1"), r.record(me, "2")
	r.append(me, one, two)
	r.append(other, r.record(other, "1"))
	three := r.record(me, "3")
	changed := func(edit func(*auditv1.Record)) *auditv1.Record {
		c := proto.CloneOf(two)
		edit(c)
		return c
	}
	for _, tc := range []struct {
		name    string
		records []*auditv1.Record
		known   uint64
		want    string
	}{
		{"a gap", []*auditv1.Record{{Sequence: 4, Kind: auditv1.Kind_KIND_READ, Time: three.GetTime()}}, 0, "the next sequence is 3"},
		{"a gap inside", []*auditv1.Record{three, {Sequence: 5, Kind: auditv1.Kind_KIND_READ, Time: three.GetTime()}}, 0, "the next sequence is 4"},
		{"the same sequence twice", []*auditv1.Record{three, three}, 0, "the next sequence is 4"},
		{"the largest sequence", []*auditv1.Record{{Sequence: 1<<64 - 1, Kind: auditv1.Kind_KIND_READ, Time: three.GetTime()}}, 0, "the next sequence is 3"},
		{"another body", []*auditv1.Record{changed(func(r *auditv1.Record) { r.Body.Summary = "x" })}, 0, "another record has the sequence 2; the next sequence is 3"},
		{"another kind", []*auditv1.Record{changed(func(r *auditv1.Record) { r.Kind = auditv1.Kind_KIND_INTENT })}, 0, "another record has the sequence 2; the next sequence is 3"},
		{"a new one, then another body", []*auditv1.Record{three, changed(func(r *auditv1.Record) { r.Body = nil })}, 0, "another record has the sequence 2; the next sequence is 3"},
		{"a longer tree than there is", []*auditv1.Record{three}, 4, "the log is shorter than the tree that the caller has verified"},
	} {
		_, err := r.log.Append(t.Context(), me, tc.records, tc.known)
		if !fault.Is(err, callv1.Code_CODE_CONFLICT) || err.Error() != tc.want {
			t.Errorf("%s: error %v, want %q", tc.name, err, tc.want)
		}
		if size := r.log.Size(); size != 3 {
			t.Fatalf("%s: %d entries, want 3", tc.name, size)
		}
		r.check()
	}
	r.append(me, three)
	r.check()
}

func TestAppendAgain(t *testing.T) {
	r := newRig(t)
	me := writers[0]
	one, two := r.record(me, "1"), r.record(me, "2")
	first := r.append(me, one, two)
	r.clock = r.clock.Add(time.Hour)
	three := r.record(me, "3")
	again := r.append(me, one, two, three)
	for i := range 2 {
		if again.GetReceipts()[i].GetIndex() != first.GetReceipts()[i].GetIndex() || !proto.Equal(again.GetPlacements()[i], first.GetPlacements()[i]) {
			t.Errorf("record %d has another place the second time", i+1)
		}
	}
	if size := r.log.Size(); size != 3 {
		t.Errorf("%d entries, want 3", size)
	}
	before, _ := r.log.Newest()
	only := r.append(me, two)
	if after, _ := r.log.Newest(); after != before || only.GetReceipts()[0].GetIndex() != 1 {
		t.Errorf("a repetition alone wrote something: %d, %d", before, after)
	}
	r.check()
}

func TestGetHead(t *testing.T) {
	r := newRig(t)
	me := writers[0]
	r.append(me, r.record(me, "1"), r.record(me, "2"))
	r.append(writers[1], r.record(writers[1], "1"))
	for _, tc := range []struct {
		writer string
		known  uint64
		last   uint64
		proof  int
	}{{me, 0, 2, 0}, {me, 2, 2, 1}, {me, 3, 2, 0}, {writers[1], 0, 1, 0}, {writers[2], 0, 0, 0}, {me, 99, 2, 0}} {
		head, err := r.log.Head(t.Context(), tc.writer, tc.known)
		must(t, err)
		if head.GetLastSequence() != tc.last || len(head.GetConsistency()) != tc.proof {
			t.Errorf("%s knows %d: last %d, %d hashes; want %d, %d", tc.writer, tc.known, head.GetLastSequence(), len(head.GetConsistency()), tc.last, tc.proof)
		}
	}
}

func TestClockDoesNotGoBack(t *testing.T) {
	r := newRig(t)
	me := writers[0]
	r.append(me, r.record(me, "1"))
	r.clock = r.clock.Add(-24 * time.Hour)
	r.append(me, r.record(me, "2"))
	r.close()
	r.open()
	r.append(me, r.record(me, "3"))
	r.check()
}

// TestFailedTransactions: whether a failed commit wrote nothing or everything, the log is right afterwards.
func TestFailedTransactions(t *testing.T) {
	full := errors.New("database or disk is full")
	for name, tc := range map[string]struct {
		before, after error
		written       uint64
	}{"nothing was written": {full, nil, 0}, "it was written after all": {nil, full, 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			me := writers[0]
			r.append(me, r.record(me, "1"))
			two := r.record(me, "2")
			r.db.set(tc.before, tc.after, nil)
			_, err := r.log.Append(t.Context(), me, []*auditv1.Record{two}, 1)
			if !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) || errors.Is(err, context.Canceled) {
				t.Fatalf("error %v", err)
			}
			if r.log.Ready() == nil {
				t.Error("the log says that it is ready")
			}
			if size := r.log.Size(); size != 1 {
				t.Fatalf("%d entries in memory, want 1", size)
			}
			r.db.set(nil, nil, errors.New("the disk is gone"))
			if _, err := r.log.Append(t.Context(), me, []*auditv1.Record{two}, 1); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
				t.Fatalf("while nothing can be read: %v", err)
			}
			r.db.set(nil, nil, nil)
			r.check()
			head, err := r.log.Head(t.Context(), me, 1)
			if err != nil || head.GetLastSequence() != 1+tc.written {
				t.Fatalf("last sequence %d, %v; want %d", head.GetLastSequence(), err, 1+tc.written)
			}
			if err := r.log.Ready(); (err == nil) != (tc.written > 0) { // that it can be read says nothing
				t.Errorf("the log was read, and says that it is ready: %v", err)
			}
			r.append(me, two, r.record(me, "3"))
			if err := r.log.Ready(); err != nil {
				t.Errorf("the log was written, and is not ready: %v", err)
			}
			if size := r.log.Size(); size != 3 {
				t.Fatalf("%d entries, want 3", size)
			}
			r.check()
		})
	}
}

// deposed is a store whose lead another process takes when the test says so; why is what it says then.
type deposed struct {
	*store.Store
	lost atomic.Bool
	why  error
}

func (d *deposed) Lead(ctx context.Context) error {
	if d.lost.Load() {
		return d.why
	}
	return d.Store.Lead(ctx)
}

func (d *deposed) Commit(ctx context.Context, b store.Batch) error {
	if d.lost.Load() {
		return errors.New("connection reset by peer")
	}
	return d.Store.Commit(ctx, b)
}

// TestADeposedLogIsReadAnew: a log that lost its lead together with its connection answers readers with what the one that leads has
// written since.
func TestADeposedLogIsReadAnew(t *testing.T) {
	r := newRig(t)
	r.log.Close()
	me, own := writers[0], &deposed{Store: r.db.Store, why: store.ErrFollows}
	cfg := r.config()
	cfg.Store = own
	first, err := log.Open(t.Context(), cfg)
	must(t, err)
	t.Cleanup(first.Close)
	r.log = first
	r.append(me, r.record(me, "1"))
	own.lost.Store(true)
	two := r.record(me, "2")
	if _, err := first.Append(t.Context(), me, []*auditv1.Record{two}, 1); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
		t.Fatal(err)
	}
	if r.log, err = log.Open(t.Context(), r.config()); err != nil {
		t.Fatal(err)
	}
	r.append(me, two, r.record(me, "3"))
	if size, _, _, err := first.Export(t.Context(), 0); err != nil || size != 3 {
		t.Errorf("it reads %d entries, %v; want 3", size, err)
	}
	if _, err := first.Append(t.Context(), me, []*auditv1.Record{r.record(me, "4")}, 3); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
		t.Errorf("it still writes: %v", err)
	}
	r.check()
}

// TestAnOutdatedLogSaysSo: a log whose database a newer program migrated says so, and leaves it to that program.
func TestAnOutdatedLogSaysSo(t *testing.T) {
	r := newRig(t)
	r.log.Close()
	me, own := writers[0], &deposed{Store: r.db.Store, why: fmt.Errorf("audit database: %w", database.ErrNewerSchema)}
	cfg := r.config()
	cfg.Store = own
	l, err := log.Open(t.Context(), cfg)
	must(t, err)
	defer l.Close()
	ended, end := context.WithCancel(t.Context())
	end()
	if err := l.Outdated(ended); err != nil || l.Follows() {
		t.Errorf("before: %v, follows: %v", err, l.Follows())
	}
	own.lost.Store(true)
	if _, err := l.Append(t.Context(), me, []*auditv1.Record{r.record(me, "1")}, 0); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
		t.Fatal(err)
	}
	if err := l.Outdated(t.Context()); !errors.Is(err, database.ErrNewerSchema) || !l.Follows() {
		t.Errorf("%v, follows: %v", err, l.Follows())
	}
}

// TestOpenRefuses: a database that was edited, cut or exchanged does not become a log.
func TestOpenRefuses(t *testing.T) {
	stranger, _, err := note.GenerateKey(nil, origin)
	must(t, err)
	strange, err := note.NewSigner(stranger)
	must(t, err)
	elsewhere, public, err := note.GenerateKey(nil, "durward.local/audit/other")
	must(t, err)
	other, err := note.NewSigner(elsewhere)
	must(t, err)
	otherKey, err := note.NewVerifier(public)
	must(t, err)
	for name, tc := range map[string]struct {
		edit func(*spoiled)
		with func(*log.Config)
		says string
	}{
		"entries cut off":         {edit: func(s *spoiled) { s.head.Entries-- }},
		"hashes cut off":          {edit: func(s *spoiled) { s.head.Hashes-- }},
		"entries added":           {edit: func(s *spoiled) { s.head.Entries++ }},
		"no checkpoint":           {edit: func(s *spoiled) { s.head.Checkpoint = nil }},
		"checkpoint altered":      {edit: func(s *spoiled) { s.head.Checkpoint[30]++ }},
		"a hash altered":          {edit: func(s *spoiled) { s.hash = true }},
		"the newest leaf altered": {edit: func(s *spoiled) { s.leaf = true }},
		"unreadable":              {edit: func(s *spoiled) { s.err = errors.New("malformed database") }},
		"an untrusted key":        {with: func(c *log.Config) { c.Signer = strange }},
		"another log's key": {with: func(c *log.Config) {
			keys := append(c.Keys(), otherKey)
			c.Signer, c.Keys = other, func() []note.Verifier { return keys }
		}, says: `this process is configured to write "durward.local/audit/other"`},
		"no trusted key": {with: func(c *log.Config) { c.Keys = func() []note.Verifier { return nil } }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for range 5 {
				r.append(writers[0], r.record(writers[0], "x"))
			}
			head, err := r.db.Store.Head(t.Context())
			must(t, err)
			s := &spoiled{Store: r.db.Store, head: head}
			cfg := r.config()
			cfg.Store = s
			if tc.edit != nil {
				tc.edit(s)
			}
			if tc.with != nil {
				tc.with(&cfg)
			}
			l, err := log.Open(t.Context(), cfg)
			if err == nil {
				l.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v; want %q in it", err, tc.says)
			}
		})
	}
}

// spoiled is a store that reads differently from what was written.
type spoiled struct {
	*store.Store
	head       store.Head
	err        error
	hash, leaf bool
}

func (s *spoiled) Head(context.Context) (store.Head, error) { return s.head, s.err }

func (s *spoiled) ReadHashes(ctx context.Context, indexes []int64) ([]tlog.Hash, error) {
	hashes, err := s.Store.ReadHashes(ctx, indexes)
	if s.hash && err == nil {
		hashes[0][0]++
	}
	return hashes, err
}

func (s *spoiled) Entry(ctx context.Context, index uint64) (*auditv1.Entry, error) {
	e, err := s.Store.Entry(ctx, index)
	if s.leaf && err == nil {
		e.LeafHash[0]++
	}
	return e, err
}

// TestKeyRotation: a log whose last checkpoint an earlier key signed goes on under the new one.
func TestKeyRotation(t *testing.T) {
	r := newRig(t)
	r.append(writers[0], r.record(writers[0], "1"))
	secret, public, err := note.GenerateKey(nil, origin)
	must(t, err)
	v, err := note.NewVerifier(public)
	must(t, err)
	r.close()
	r.keys = append(r.keys, v)
	if r.signer, err = note.NewSigner(secret); err != nil {
		t.Fatal(err)
	}
	r.open()
	r.append(writers[0], r.record(writers[0], "2"))
	r.check()
}

// TestRandom drives the log through random appends, repetitions, refusals, failures and restarts.
func TestRandom(t *testing.T) {
	first, n := full.Sample(t, 4, 1)
	for i := range uint64(n) {
		seed := first + i
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r := newRig(t)
			random := rand.New(rand.NewPCG(seed, 1))
			for step := range 60 {
				writer := writers[random.IntN(len(writers))]
				switch done := r.records[writer]; random.IntN(8) {
				default:
					var batch []*auditv1.Record
					for range 1 + random.IntN(9) {
						batch = append(batch, r.record(writer, fmt.Sprint(step)))
					}
					r.append(writer, batch...)
				case 1:
					if len(done) > 0 {
						from := random.IntN(len(done))
						r.append(writer, done[from:]...)
					}
				case 2:
					if _, err := r.log.Append(t.Context(), writer, []*auditv1.Record{{Sequence: uint64(len(done)) + 2, Kind: auditv1.Kind_KIND_READ, Time: timestamppb.New(r.clock)}}, 0); !fault.Is(err, callv1.Code_CODE_CONFLICT) {
						t.Fatalf("step %d: a gap: %v", step, err)
					}
				case 3:
					r.concurrent(random)
				case 4:
					record := r.record(writer, "ambiguous")
					failure := errors.New("i/o error")
					if random.IntN(2) == 0 {
						r.db.set(failure, nil, nil)
					} else {
						r.db.set(nil, failure, nil)
					}
					if _, err := r.log.Append(t.Context(), writer, []*auditv1.Record{record}, 0); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
						t.Fatalf("step %d: a failing disk: %v", step, err)
					}
					r.db.set(nil, nil, nil)
					r.append(writer, record)
				case 5:
					r.close()
					r.open()
				}
				r.clock = r.clock.Add(time.Duration(random.IntN(2000)-500) * time.Millisecond)
				r.check()
			}
		})
	}
}

// concurrent lets every writer append at once.
func (r *rig) concurrent(random *rand.Rand) {
	r.t.Helper()
	type sent struct {
		writer  string
		records []*auditv1.Record
		answer  *auditv1.AppendResponse
		err     error
	}
	calls := make([]sent, len(writers))
	for i, writer := range writers {
		calls[i].writer = writer
		for range 1 + random.IntN(5) {
			calls[i].records = append(calls[i].records, r.record(writer, "at once"))
		}
	}
	var running sync.WaitGroup
	for i := range calls {
		running.Go(func() {
			calls[i].answer, calls[i].err = r.log.Append(r.t.Context(), calls[i].writer, calls[i].records, 0)
		})
	}
	running.Wait()
	for _, c := range calls {
		if c.err != nil {
			r.t.Fatalf("%s: %v", c.writer, c.err)
		}
		r.keep(c.writer, c.records, 0, c.answer)
	}
}

// TestManyAtOnce shows group commit: many callers, far fewer transactions, and every receipt stands.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		counted := &counting{Store: r.db.Store, hold: make(chan struct{})} // the first transaction waits until everybody has come
		cfg := r.config()
		cfg.Store = counted
		r.log.Close()
		var err error
		if r.log, err = log.Open(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		const callers = 64
		answers := make([]*auditv1.AppendResponse, callers)
		records := make([]*auditv1.Record, callers)
		var running sync.WaitGroup
		for i := range callers {
			writer := fmt.Sprintf("spiffe://durward.local/operator/o%d", i)
			records[i] = r.record(writer, "x")
			running.Go(func() {
				var err error
				if answers[i], err = r.log.Append(t.Context(), writer, records[i:i+1], 0); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // callers that come later only make more transactions
		close(counted.hold)
		running.Wait()
		for i := range callers {
			r.keep(fmt.Sprintf("spiffe://durward.local/operator/o%d", i), records[i:i+1], 0, answers[i])
		}
		if counted.commits > callers/4 {
			t.Errorf("%d transactions for %d callers", counted.commits, callers)
		}
		r.check()
	})
}

type counting struct {
	*store.Store
	hold    chan struct{}
	commits int
}

func (c *counting) Commit(ctx context.Context, b store.Batch) error {
	<-c.hold
	c.commits++
	return c.Store.Commit(ctx, b)
}

func TestCloseRefusesWhatWaits(t *testing.T) {
	r := newRig(t)
	r.log.Close()
	if _, err := r.log.Append(t.Context(), writers[0], []*auditv1.Record{r.record(writers[0], "x")}, 0); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
		t.Errorf("error %v", err)
	}
}

func TestGrown(t *testing.T) {
	r := newRig(t)
	grown := r.log.Grown(0)
	select {
	case <-grown:
		t.Fatal("an empty log has grown")
	default:
	}
	r.append(writers[0], r.record(writers[0], "x"))
	<-grown
	<-r.log.Grown(0)
	select {
	case <-r.log.Grown(1):
		t.Fatal("a log of one entry has more than one")
	default:
	}
}
