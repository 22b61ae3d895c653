// Package log is the Merkle log: it takes records from many writers, gives each its place, and signs what it holds. It is
// the heart of the audit process, which dials nobody and of which nobody needs to believe anything: every answer carries
// its proof.
//
// One goroutine writes. It gathers the requests that wait, stages them in memory, and makes one transaction of the
// entries, the tree's new hashes and a signed note of their sum, which is no checkpoint; only when that is on disk is a checkpoint
// signed, do the requests get their answers and does the log in memory move: no two checkpoints of one size exist. A transaction that
// fails leaves everything as it was; because its fate on disk may be unknown, this process takes the lead again, and the log is read
// again and verified, before the next one.
//
// Where several processes share a store, one leads. The others follow: they refuse what writers send, so that the writers go
// to the one that leads, read the log as it grows, and take the lead when it is free.
package log

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/keyfile"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/telemetry/span"
)

const (
	// maxGroup bounds a transaction, in records, beyond the request that crosses it.
	maxGroup = 1024
	// waiting bounds the requests that wait for the writer.
	waiting = 256
	// lookEvery is how often the log looks whether its files are in their place, keeps its lead, or tries to take it.
	lookEvery = 500 * time.Millisecond
)

// ErrDamaged is wrapped by Open's error for a log that is not what was written. Package damage says what of it.
var ErrDamaged = errors.New("the log was damaged or altered")

// Store is what the log needs of its database.
type Store interface {
	Head(ctx context.Context) (store.Head, error)
	Commit(ctx context.Context, batch store.Batch) error
	ReadHashes(ctx context.Context, indexes []int64) ([]tlog.Hash, error)
	BySequence(ctx context.Context, writer string, sequence uint64) (*auditv1.Entry, error)
	Entry(ctx context.Context, index uint64) (*auditv1.Entry, error)
	// Lead makes this process the only one that writes. When it returns, nothing that any process wrote before is under way any
	// more. store.ErrFollows: another process leads. database.ErrNewerSchema: this one may not any more.
	Lead(ctx context.Context) error
	// Hold keeps the lead; an error says that it may be lost.
	Hold(ctx context.Context) error
	// InPlace returns an error once the database's files were removed or replaced.
	InPlace() error
}

// Config is what a Log needs. Store, Signer and Keys are required.
type Config struct {
	Store Store
	// Signer is named like the log's origin.
	Signer note.Signer
	// Keys returns the trusted log keys: the stored checkpoint must be signed by one, which may be an earlier key than
	// Signer's.
	Keys func() []note.Verifier
	// Reserve is given up when the disk is full, for the records that it allows; nil: there is none.
	Reserve *reserve.Reserve
	Logger  *slog.Logger
	// Clock is time.Now unless set.
	Clock func() time.Time
}

// Log is the log. It is safe for concurrent use.
type Log struct {
	cfg      Config
	requests chan *request
	between  chan *between
	stop     chan struct{} // closed by Close
	stopped  chan struct{} // closed when the writing goroutine has ended
	once     sync.Once
	head     atomic.Pointer[head]

	// These belong to the writing goroutine.
	last   map[string]uint64 // each writer's last sequence
	logged time.Time         // the newest entry's
	text   []byte            // what leaves are made in
	// processes are starts and stops that were written out of the reserve lately; never nil.
	processes map[process]time.Time

	// broken: a transaction failed, so the log is read again before the next one.
	broken atomic.Bool
	// follows: another process leads.
	follows atomic.Bool
	// leads is closed when this process first leads.
	leads chan struct{}
	// outdated holds the error of a store that only a newer program may write.
	outdated chan error
	// unwritten: a transaction failed, or had no room for all that was to be in it; nil: none.
	unwritten atomic.Pointer[failure]
	// lost is why nothing is written any more: the log's files are not in their place. Nil: they are.
	lost atomic.Pointer[error]
}

// head is a committed state of the log. It does not change.
type head struct {
	logproof.Checkpoint
	signed []byte
	// stored is what the store holds of it: logproof.SignStaged's, or a checkpoint that an earlier version kept.
	stored []byte
	// recent holds the hashes of the newest entries, and the roots of the complete subtrees of those before, so that proofs about trees that
	// end among the newest need no database. Heads share it: the next one's hashes lie behind this one's.
	recent store.Recent
	// grown is closed when the log has moved on.
	grown chan struct{}
}

// Open reads the log, verifies that what is stored adds up to the newest checkpoint, and starts to write. Its errors are
// plain sentences for the human who starts the process.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	l := &Log{cfg: cfg, requests: make(chan *request, waiting), between: make(chan *between), stop: make(chan struct{}), stopped: make(chan struct{}),
		processes: map[process]time.Time{}, leads: make(chan struct{}), outdated: make(chan error, 1),
	}
	if !trusted(cfg.Signer, cfg.Keys()) {
		return nil, errors.New("the log's signing key is not in the trust folder's log_keys, so nobody would believe what it signs: put the key back that belongs to it")
	}
	err := l.lead(ctx)
	if errors.Is(err, store.ErrFollows) {
		err = l.load(ctx)
	}
	if err != nil {
		return nil, err
	}
	go l.write()
	return l, nil
}

// lead takes the lead and reads the log. Where another process leads, this one follows.
func (l *Log) lead(ctx context.Context) error {
	if err := l.cfg.Store.Lead(ctx); err != nil {
		switch {
		case errors.Is(err, store.ErrFollows):
			if !l.follows.Swap(true) {
				l.cfg.Logger.Info("another process writes the log, and this one stands by")
			}
		case errors.Is(err, database.ErrNewerSchema):
			l.follows.Store(true)
			select {
			case l.outdated <- err:
			default: // it was said
			}
		}
		return err
	}
	if err := l.load(ctx); err != nil {
		return err
	}
	if l.follows.Swap(false) {
		l.unwritten.Store(nil) // it was another lead's
		l.cfg.Logger.Warn("this process writes the log now", "size", l.Size())
	}
	select {
	case <-l.leads:
	default:
		close(l.leads)
	}
	return nil
}

// Leads returns a channel that is closed when this process has led.
func (l *Log) Leads() <-chan struct{} { return l.leads }

// Follows reports whether another process leads, or only a newer one may.
func (l *Log) Follows() bool { return l.follows.Load() }

// Outdated returns, once only a newer program may write the log, the error that says so; nil when ctx ends.
func (l *Log) Outdated(ctx context.Context) error {
	select {
	case err := <-l.outdated:
		return err
	case <-ctx.Done():
		return nil
	}
}

func trusted(signer note.Signer, keys []note.Verifier) bool {
	return slices.ContainsFunc(keys, func(v note.Verifier) bool { return v.Name() == signer.Name() && v.KeyHash() == signer.KeyHash() })
}

// Close stops writing; requests that wait are refused. The store stays open.
func (l *Log) Close() {
	l.once.Do(func() { close(l.stop) })
	<-l.stopped
}

// load reads where the log ends and verifies it.
func (l *Log) load(ctx context.Context) error {
	stored, err := l.cfg.Store.Head(ctx)
	if err != nil {
		return fmt.Errorf("the stored log cannot be read: %w", err)
	}
	h := &head{grown: make(chan struct{}), stored: stored.Checkpoint}
	h.Origin = l.cfg.Signer.Name()
	if stored.Checkpoint == nil {
		if stored.Entries != 0 || stored.Hashes != 0 {
			return fmt.Errorf("the stored log has entries and no checkpoint: %w", ErrDamaged)
		}
		h.Root, _ = tlog.TreeHash(0, nil) // the empty tree's root reads nothing
	} else if err := l.verify(ctx, h, stored); err != nil {
		return err
	}
	// The entries are committed, and add up.
	if h.signed, err = logproof.SignCheckpoint(h.Checkpoint, l.cfg.Signer); err != nil {
		return err
	}
	l.last, l.logged = stored.Last, stored.LoggedAt
	if old := l.head.Swap(h); old != nil {
		close(old.grown)
	}
	return nil
}

// verify reads the newest checkpoint into h, and holds what is stored against it.
func (l *Log) verify(ctx context.Context, h *head, stored store.Head) (err error) {
	if h.Checkpoint, err = OpenStored(stored.Checkpoint, l.cfg.Keys()); err != nil {
		return fmt.Errorf("the stored log's newest checkpoint is not signed by a key in the trust folder's log_keys: %w", err)
	}
	if h.Origin != l.cfg.Signer.Name() {
		return fmt.Errorf("the stored log is %q, and this process is configured to write %q", h.Origin, l.cfg.Signer.Name())
	}
	size := int64(h.Size)
	if stored.Entries != size || stored.Hashes != tlog.StoredHashCount(size) {
		return fmt.Errorf("the stored log has %d entries and its newest checkpoint says %d: %w", stored.Entries, size, ErrDamaged)
	}
	h.recent = store.Recent{First: stored.Hashes, Roots: map[int64]tlog.Hash{}}
	indexes := roots(h.Size)
	hashes, err := l.cfg.Store.ReadHashes(ctx, indexes)
	if err != nil {
		return fmt.Errorf("the stored log's tree cannot be read: %w", err)
	}
	for i, index := range indexes {
		h.recent.Roots[index] = hashes[i]
	}
	root, err := tlog.TreeHash(size, l.reader(ctx, h))
	if err != nil {
		return fmt.Errorf("the stored log's tree cannot be read: %w", err)
	}
	if root != h.Root {
		return fmt.Errorf("the stored log's tree does not add up to its newest checkpoint (%d entries): %w", size, ErrDamaged)
	}
	newest, err := l.cfg.Store.Entry(ctx, h.Size-1)
	if errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("the stored log's newest entry, %d, is missing: %w", h.Size-1, ErrDamaged)
	}
	if err != nil {
		return fmt.Errorf("the stored log's newest entry cannot be read: %w", err)
	}
	// The newest leaf is the one that a torn or edited database most likely gets wrong; `audit verify` checks all.
	leaf, err := l.reader(ctx, h).ReadHashes([]int64{tlog.StoredHashIndex(0, size-1)})
	if err != nil || !bytes.Equal(leaf[0][:], newest.GetLeafHash()) {
		return fmt.Errorf("the stored log's newest entry is not the one that its tree commits to: %w", ErrDamaged)
	}
	return nil
}

// OpenStored returns what a store says of its newest tree: what was signed with the entries, before they were committed, or the
// checkpoint that an earlier version signed then.
func OpenStored(b []byte, keys []note.Verifier) (logproof.Checkpoint, error) {
	c, err := logproof.OpenStaged(b, keys)
	if errors.Is(err, logproof.ErrFormat) {
		c, err = logproof.OpenCheckpoint(b, keys)
	}
	return c, err
}

// Size is how many entries the log holds.
func (l *Log) Size() uint64 { return l.head.Load().Size }

// Newest returns the size and the signed checkpoint that belong together.
func (l *Log) Newest() (size uint64, checkpoint []byte) {
	h := l.head.Load()
	return h.Size, h.signed
}

// Waiting is how many requests wait for the writer, and how many may.
func (l *Log) Waiting() (now, most int) { return len(l.requests), cap(l.requests) }

// Ready returns an error while the last transaction was one that failed, while the disk is full, and once the log's files are
// gone. A log that follows is ready.
func (l *Log) Ready() error {
	if lost := l.lost.Load(); lost != nil {
		return *lost
	}
	if why := l.stuck(); why != nil {
		return fmt.Errorf("the log cannot be written: %w", why)
	}
	if l.broken.Load() {
		return errors.New("the log cannot be written")
	}
	if l.cfg.Reserve.InUse() {
		return errFull
	}
	return nil
}

// Grown returns a channel that is closed when the log has more than size entries. It may close early: look again.
func (l *Log) Grown(size uint64) <-chan struct{} {
	h := l.head.Load()
	if h.Size > size {
		done := make(chan struct{})
		close(done)
		return done
	}
	return h.grown
}

type request struct {
	writer  string
	records []*auditv1.Record
	known   uint64
	// reads: it is answered by a log that follows, too.
	reads  bool
	answer chan answer // holds one
}

type answer struct {
	head    *head
	last    uint64 // the writer's last sequence
	entries []*auditv1.Entry
	err     error
}

// Append adds the records of one writer, all or none, and answers when they are on disk. known is the size of the newest
// tree that the writer has verified. Faults: CODE_CONFLICT when a sequence leaves a gap or is taken by another record, or
// when known is more than the log holds; CODE_AUDIT_UNAVAILABLE when the disk does not take it, with reserve.Field as its field
// if the disk is full and the records are not among those that may be written out of the reserve.
func (l *Log) Append(ctx context.Context, writer string, records []*auditv1.Record, known uint64) (*auditv1.AppendResponse, error) {
	return l.append(ctx, writer, records, known, false)
}

// AppendTogether is Append with one proof for all of the records, where they follow one another in the log.
func (l *Log) AppendTogether(ctx context.Context, writer string, records []*auditv1.Record, known uint64) (*auditv1.AppendResponse, error) {
	return l.append(ctx, writer, records, known, true)
}

func (l *Log) append(ctx context.Context, writer string, records []*auditv1.Record, known uint64, together bool) (*auditv1.AppendResponse, error) {
	ctx, committing := span.Start(ctx, span.Commit, trace.SpanKindInternal)
	a, err := l.submit(ctx, &request{writer: writer, records: records, known: known, answer: make(chan answer, 1)})
	span.End(committing, err)
	if err != nil {
		return nil, err
	}
	out := &auditv1.AppendResponse{Checkpoint: a.head.signed}
	if out.Consistency, err = l.prove(ctx, a.head, known, a.head.Size); err != nil {
		return nil, err
	}
	if together {
		if out.Run, err = l.together(ctx, a.head, a.entries); err != nil || out.Run != nil {
			return out, err
		}
	}
	for _, e := range a.entries {
		receipt, err := l.receipt(ctx, a.head, e)
		if err != nil {
			return nil, err
		}
		out.Receipts = append(out.Receipts, receipt)
		out.Placements = append(out.Placements, &auditv1.Placement{LoggedAt: e.GetLoggedAt(), Salt: e.GetSalt()})
	}
	return out, nil
}

// Head returns the newest checkpoint, the proof that it extends the tree of size known, and the writer's last sequence.
// For a known size that the log does not have there is no proof, and the caller sees for itself that the log is shorter.
func (l *Log) Head(ctx context.Context, writer string, known uint64) (*auditv1.GetHeadResponse, error) {
	// The writing goroutine answers: what it has taken before is counted.
	a, err := l.submit(ctx, &request{writer: writer, answer: make(chan answer, 1)})
	if err != nil {
		return nil, err
	}
	out := &auditv1.GetHeadResponse{Checkpoint: a.head.signed, LastSequence: a.last}
	if known <= a.head.Size {
		out.Consistency, err = l.prove(ctx, a.head, known, a.head.Size)
	}
	return out, err
}

// submit hands a request to the writing goroutine and waits for its answer. A request whose caller gives up may still be
// written.
func (l *Log) submit(ctx context.Context, r *request) (answer, error) {
	select {
	case l.requests <- r:
	case <-l.stop:
		return answer{}, unavailable(errors.New("the log is closed"))
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	select {
	case a := <-r.answer:
		return a, a.err
	case <-l.stopped:
		select {
		case a := <-r.answer:
			return a, a.err
		default:
			return answer{}, unavailable(errors.New("the log is closed"))
		}
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// current is the newest state, of another process that leads too. A log whose transaction failed may have lost the lead, and looks.
func (l *Log) current(ctx context.Context) (*head, error) {
	if !l.follows.Load() && !l.broken.Load() {
		return l.head.Load(), nil
	}
	a, err := l.submit(ctx, &request{reads: true, answer: make(chan answer, 1)})
	return a.head, err
}

// LoadSigner reads the log's signing key, a sumdb/note signer key on one line, from a file that only its owner can read.
func LoadSigner(path string) (note.Signer, error) {
	text, err := keyfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("log_key: %w", err)
	}
	// note's errors do not repeat the key.
	signer, err := note.NewSigner(strings.TrimSuffix(string(text), "\n"))
	if err != nil {
		return nil, fmt.Errorf("log_key: %s does not hold a note signing key: %w", path, err)
	}
	return signer, nil
}
