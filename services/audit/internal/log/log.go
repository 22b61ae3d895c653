// Package log is the Merkle log: it takes records from many writers, gives each its place, and signs what it holds. It is
// the heart of the audit process, which dials nobody and of which nobody needs to believe anything: every answer carries
// its proof.
//
// One goroutine writes. It gathers the requests that wait, stages them in memory, and makes one transaction of the
// entries, the tree's new hashes and a freshly signed checkpoint; only when that is on disk do the requests get their
// answers and does the log in memory move. A transaction that fails leaves everything as it was; because its fate on disk
// may be unknown, the log is read again and verified before the next one.
package log

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/telemetry/span"
)

const (
	// maxGroup bounds a transaction, in records, beyond the request that crosses it.
	maxGroup = 1024
	// waiting bounds the requests that wait for the writer.
	waiting = 256
)

// Store is what the log needs of its database.
type Store interface {
	Head(ctx context.Context) (store.Head, error)
	Commit(ctx context.Context, batch store.Batch) error
	ReadHashes(ctx context.Context, indexes []int64) ([]tlog.Hash, error)
	BySequence(ctx context.Context, writer string, sequence uint64) (*auditv1.Entry, error)
	Entry(ctx context.Context, index uint64) (*auditv1.Entry, error)
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
	stop     chan struct{} // closed by Close
	stopped  chan struct{} // closed when the writing goroutine has ended
	once     sync.Once
	head     atomic.Pointer[head]

	// These belong to the writing goroutine.
	last   map[string]uint64 // each writer's last sequence
	logged time.Time         // the newest entry's
	// processes are starts and stops that were written out of the reserve lately; never nil.
	processes map[process]time.Time

	// broken: a transaction failed, so the log is read again before the next one.
	broken atomic.Bool
	// full: the last transaction met a full disk, or the reserve is given up.
	full atomic.Bool
}

// head is a committed state of the log. It does not change.
type head struct {
	logproof.Checkpoint
	signed []byte
	// recent holds the hashes that came with this state and the roots of its complete subtrees, so that most proofs need
	// no database.
	recent map[int64]tlog.Hash
	// grown is closed when the log has moved on.
	grown chan struct{}
}

// Open reads the log, verifies that what is stored adds up to the newest checkpoint, and starts to write. Its errors are
// plain sentences for the human who starts the process.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{cfg: cfg, requests: make(chan *request, waiting), stop: make(chan struct{}), stopped: make(chan struct{}),
		processes: map[process]time.Time{},
	}
	if !trusted(cfg.Signer, cfg.Keys()) {
		return nil, errors.New("the log's signing key is not in the trust folder's log_keys, so nobody would believe what it signs")
	}
	if err := l.load(ctx); err != nil {
		return nil, err
	}
	go l.write()
	return l, nil
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
	h := &head{grown: make(chan struct{}), recent: map[int64]tlog.Hash{}, signed: stored.Checkpoint}
	h.Origin = l.cfg.Signer.Name()
	if stored.Checkpoint == nil {
		if stored.Entries != 0 || stored.Hashes != 0 {
			return errors.New("the stored log has entries and no checkpoint: it was damaged or altered; restore it from a backup")
		}
		h.Root, _ = tlog.TreeHash(0, nil) // the empty tree's root reads nothing
		if h.signed, err = logproof.SignCheckpoint(h.Checkpoint, l.cfg.Signer); err != nil {
			return err
		}
	} else {
		if h.Checkpoint, err = logproof.OpenCheckpoint(stored.Checkpoint, l.cfg.Keys()); err != nil {
			return fmt.Errorf("the stored log's newest checkpoint is not signed by a key in the trust folder's log_keys: %w", err)
		}
		if h.Origin != l.cfg.Signer.Name() {
			return fmt.Errorf("the stored log is %q, and this process is configured to write %q", h.Origin, l.cfg.Signer.Name())
		}
		size := int64(h.Size)
		if stored.Entries != size || stored.Hashes != tlog.StoredHashCount(size) {
			return fmt.Errorf("the stored log has %d entries and its newest checkpoint says %d: it was damaged or altered; restore it from a backup", stored.Entries, size)
		}
		indexes := roots(h.Size)
		hashes, err := l.cfg.Store.ReadHashes(ctx, indexes)
		if err != nil {
			return fmt.Errorf("the stored log's tree cannot be read: %w", err)
		}
		for i, index := range indexes {
			h.recent[index] = hashes[i]
		}
		root, err := tlog.TreeHash(size, l.reader(ctx, h))
		if err != nil {
			return fmt.Errorf("the stored log's tree cannot be read: %w", err)
		}
		if root != h.Root {
			return fmt.Errorf("the stored log's tree does not add up to its newest checkpoint (%d entries): it was damaged or altered; restore it from a backup", size)
		}
		newest, err := l.cfg.Store.Entry(ctx, h.Size-1)
		if err != nil {
			return fmt.Errorf("the stored log's newest entry cannot be read: %w", err)
		}
		// The newest leaf is the one that a torn or edited database most likely gets wrong; `audit verify` checks all.
		leaf, err := l.reader(ctx, h).ReadHashes([]int64{tlog.StoredHashIndex(0, size-1)})
		if err != nil || !bytes.Equal(leaf[0][:], newest.GetLeafHash()) {
			return errors.New("the stored log's newest entry is not the one that its tree commits to: it was damaged or altered; restore it from a backup")
		}
	}
	l.last, l.logged = stored.Last, stored.LoggedAt
	if old := l.head.Swap(h); old != nil {
		close(old.grown)
	}
	return nil
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

// Ready returns an error while the last transaction was one that failed, and while the disk is full.
func (l *Log) Ready() error {
	if l.broken.Load() {
		return errors.New("the log cannot be written")
	}
	if l.full.Load() {
		return errors.New("the log's disk is full")
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
	answer  chan answer // holds one
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
	ctx, committing := span.Start(ctx, span.Commit, trace.SpanKindInternal)
	a, err := l.submit(ctx, &request{writer: writer, records: records, known: known, answer: make(chan answer, 1)})
	span.End(committing, err)
	if err != nil {
		return nil, err
	}
	out := &auditv1.AppendResponse{Checkpoint: a.head.signed}
	if out.Consistency, err = l.consistency(ctx, a.head, known); err != nil {
		return nil, err
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
		out.Consistency, err = l.consistency(ctx, a.head, known)
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

// Export returns the newest checkpoint, its size, and the proof that it extends the tree of size known.
func (l *Log) Export(ctx context.Context, known uint64) (size uint64, checkpoint []byte, consistency [][]byte, err error) {
	h := l.head.Load()
	if known <= h.Size {
		consistency, err = l.consistency(ctx, h, known)
	}
	return h.Size, h.signed, consistency, err
}

// Receipt proves an entry in the newest tree.
func (l *Log) Receipt(ctx context.Context, entry *auditv1.Entry) (*callv1.Receipt, error) {
	h := l.head.Load()
	if entry.GetIndex() >= h.Size {
		return nil, store.ErrNotFound
	}
	return l.receipt(ctx, h, entry)
}

func (l *Log) receipt(ctx context.Context, h *head, entry *auditv1.Entry) (*callv1.Receipt, error) {
	// Sizes are bounded by OpenCheckpoint and indexes lie below them.
	proof, err := tlog.ProveRecord(int64(h.Size), int64(entry.GetIndex()), l.reader(ctx, h))
	if err != nil {
		return nil, unavailable(err)
	}
	return &callv1.Receipt{Index: entry.GetIndex(), Checkpoint: h.signed, LeafHash: entry.GetLeafHash(), Inclusion: raw(proof)}, nil
}

func (l *Log) consistency(ctx context.Context, h *head, known uint64) ([][]byte, error) {
	if known == 0 || known == h.Size {
		return nil, nil
	}
	if known > h.Size {
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the log is shorter than the tree that the caller has verified", fault.WithField("known_size"))
	}
	proof, err := tlog.ProveTree(int64(h.Size), int64(known), l.reader(ctx, h))
	if err != nil {
		return nil, unavailable(err)
	}
	return raw(proof), nil
}

func raw(hashes []tlog.Hash) [][]byte {
	out := make([][]byte, len(hashes))
	for i := range hashes {
		out[i] = hashes[i][:]
	}
	return out
}

// reader reads the tree's hashes from h, then from the store, which may be ahead: a stored hash never changes.
func (l *Log) reader(ctx context.Context, h *head) tlog.HashReader {
	return overlay{ctx, l.cfg.Store, h.recent}
}

type overlay struct {
	ctx    context.Context
	store  Store
	recent map[int64]tlog.Hash
}

func (o overlay) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	var missing []int64
	var places []int
	for i, index := range indexes {
		if hash, ok := o.recent[index]; ok {
			out[i] = hash
			continue
		}
		missing, places = append(missing, index), append(places, i)
	}
	if len(missing) == 0 {
		return out, nil
	}
	hashes, err := o.store.ReadHashes(o.ctx, missing)
	if err != nil {
		return nil, err
	}
	for i, hash := range hashes {
		out[places[i]] = hash
	}
	return out, nil
}

const notNow = "the audit log cannot be written now"

func unavailable(cause error) *fault.Error {
	return fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, notNow, fault.WithRetry(time.Second), fault.WithCause(cause))
}

// write is the writing goroutine.
func (l *Log) write() {
	defer close(l.stopped)
	for {
		select {
		case <-l.stop:
			return
		case r := <-l.requests:
			l.commit(l.gather(r))
		}
	}
}

// gather takes what waits, without waiting.
func (l *Log) gather(first *request) []*request {
	group := []*request{first}
	for n := len(first.records); n < maxGroup; {
		select {
		case r := <-l.requests:
			group = append(group, r)
			n += len(r.records)
		default:
			return group
		}
	}
	return group
}

// stage is a group of requests on its way into one transaction.
type stage struct {
	from    uint64
	at      time.Time
	entries []*auditv1.Entry
	last    map[string]uint64
	hashes  []tlog.Hash
	recent  map[int64]tlog.Hash
	// full is why only what entitled allows is staged; nil: everything is.
	full error
	// processes are the starts and stops that were written out of the reserve lately, these among them.
	processes map[process]time.Time
}

// commit answers every request of the group.
func (l *Log) commit(group []*request) {
	ctx := context.Background() // a request that gave up does not undo what others wait for
	if l.broken.Load() {
		if err := l.load(ctx); err != nil {
			l.cfg.Logger.Error("the log cannot be read again after a failed transaction", "cause", err.Error())
			refuse(group, unavailable(err))
			return
		}
		l.broken.Store(false)
		l.cfg.Logger.Info("the log can be written again", "size", l.Size())
	}
	h := l.head.Load()
	var full error
	if l.cfg.Reserve.Tight() {
		full = errors.New("the reserve is given up")
	}
	answers, next, err := l.attempt(ctx, h, group, full)
	if reserve.Full(err) && l.load(ctx) == nil { // load says how the transaction ended
		h = l.head.Load()
		answers, next, err = l.economise(ctx, h, group, err)
	}
	l.full.Store(full != nil || crowdedOut(answers))
	if err != nil {
		l.broken.Store(true)
		l.cfg.Logger.Error("a transaction of the log failed", "cause", err.Error(), "requests", len(group))
		refuse(group, unavailable(err))
		return
	}
	for i, r := range group {
		answers[i].head, answers[i].last = next, l.last[r.writer]
		r.answer <- answers[i]
	}
}

// attempt stages the group and commits what could be staged. An error is the transaction's, and what became of it is unknown.
func (l *Log) attempt(ctx context.Context, h *head, group []*request, full error) ([]answer, *head, error) {
	s := &stage{from: h.Size, at: l.cfg.Clock().UTC(), last: map[string]uint64{}, recent: edge(h), full: full, processes: maps.Clone(l.processes)}
	if s.at.Before(l.logged) {
		s.at = l.logged // the log's clock does not go back
	}
	answers := make([]answer, len(group))
	for i, r := range group {
		answers[i].entries, answers[i].err = l.stage(ctx, s, h, r)
	}
	if len(s.entries) == 0 {
		return answers, h, nil
	}
	next, err := l.transact(ctx, s, h)
	return answers, next, err
}

// economise commits what a full disk's reserve is there for, and gives the reserve up for it.
func (l *Log) economise(ctx context.Context, h *head, group []*request, full error) ([]answer, *head, error) {
	answers, next, err := l.attempt(ctx, h, group, full)
	if !reserve.Full(err) {
		return answers, next, err
	}
	released, gone := l.cfg.Reserve.Release()
	if !released {
		return nil, nil, errors.Join(err, gone)
	}
	l.cfg.Logger.Warn("the disk is full: the reserve is given up, and only what takes load off the host is recorded")
	if err := l.load(ctx); err != nil {
		return nil, nil, err
	}
	return l.attempt(ctx, l.head.Load(), group, full)
}

// crowded is the fault of records for which a full disk has no room. Nothing of them was written.
func crowded(cause error) *fault.Error {
	return fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, notNow, fault.WithField(reserve.Field), fault.WithRetry(time.Second), fault.WithCause(cause))
}

// crowdedOut reports whether a full disk is why one of the answers is a refusal.
func crowdedOut(answers []answer) bool {
	return slices.ContainsFunc(answers, func(a answer) bool { return a.err != nil && fault.From(a.err).Field == reserve.Field })
}

func refuse(group []*request, err error) {
	for _, r := range group {
		r.answer <- answer{err: err}
	}
}

// maxRecent bounds the hashes that a head carries on from the ones before it.
const maxRecent = 256

// edge returns the hashes that the next entries need: what came with h, which includes the roots of its complete subtrees;
// when that has become much, those roots alone.
func edge(h *head) map[int64]tlog.Hash {
	if len(h.recent) <= maxRecent {
		return maps.Clone(h.recent)
	}
	cut := map[int64]tlog.Hash{}
	for _, index := range roots(h.Size) {
		cut[index] = h.recent[index]
	}
	return cut
}

// roots returns the stored indexes of the roots of a tree's complete subtrees.
func roots(size uint64) []int64 {
	var out []int64
	for lo := uint64(0); lo < size; {
		level := bits.Len64(size-lo) - 1
		out = append(out, tlog.StoredHashIndex(level, int64(lo>>level)))
		lo += 1 << level
	}
	return out
}

// stage checks one request as a whole and adds its new records to the stage.
func (l *Log) stage(ctx context.Context, s *stage, h *head, r *request) ([]*auditv1.Entry, error) {
	if r.known > h.Size {
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the log is shorter than the tree that the caller has verified", fault.WithField("known_size"))
	}
	last, staged := s.last[r.writer]
	if !staged {
		last = l.last[r.writer]
	}
	entries := make([]*auditv1.Entry, len(r.records))
	fresh := last
	processes := maps.Clone(s.processes)
	for i, record := range r.records {
		switch sequence := record.GetSequence(); {
		case sequence == fresh+1:
			if s.full != nil && !entitled(r.writer, record, s.at, processes) {
				return nil, crowded(s.full)
			}
			fresh++
		case sequence > last:
			return nil, gap(fresh + 1)
		default:
			first, err := l.first(ctx, s, r.writer, sequence)
			if err != nil {
				return nil, unavailable(err)
			}
			if !same(first, record) {
				return nil, fault.New(callv1.Code_CODE_CONFLICT, fmt.Sprintf("another record has the sequence %d; the next sequence is %d", sequence, last+1), fault.WithField("records.sequence"))
			}
			entries[i] = first
		}
	}
	before := len(s.entries)
	for i, record := range r.records {
		if entries[i] != nil {
			continue
		}
		e, err := l.place(s, r.writer, record)
		if err != nil {
			s.undo(before)
			return nil, err
		}
		entries[i] = e
	}
	s.last[r.writer], s.processes = fresh, processes
	return entries, nil
}

func gap(next uint64) *fault.Error {
	return fault.New(callv1.Code_CODE_CONFLICT, fmt.Sprintf("the next sequence is %d", next), fault.WithField("records.sequence"))
}

// first finds what the writer wrote under a sequence that is taken.
func (l *Log) first(ctx context.Context, s *stage, writer string, sequence uint64) (*auditv1.Entry, error) {
	for _, e := range s.entries {
		if e.GetWriter() == writer && e.GetRecord().GetSequence() == sequence {
			return e, nil
		}
	}
	return l.cfg.Store.BySequence(ctx, writer, sequence)
}

// same reports whether the entry is of exactly this record: placed where the entry is, it has the same leaf.
func same(entry *auditv1.Entry, record *auditv1.Record) bool {
	again := &auditv1.Entry{Index: entry.GetIndex(), Writer: entry.GetWriter(), Record: record, LoggedAt: entry.GetLoggedAt(), Salt: entry.GetSalt()}
	return logproof.Seal(again) == nil && bytes.Equal(again.GetLeafHash(), entry.GetLeafHash())
}

// place makes an entry of a record and adds it to the staged tree.
func (l *Log) place(s *stage, writer string, record *auditv1.Record) (*auditv1.Entry, error) {
	index := s.from + uint64(len(s.entries))
	if index >= math.MaxInt64 {
		return nil, unavailable(errors.New("the log is full"))
	}
	e := &auditv1.Entry{Index: index, Writer: writer, Record: record, LoggedAt: timestamppb.New(s.at), Salt: make([]byte, logproof.SaltSize)}
	_, _ = rand.Read(e.Salt) // never fails (crypto/rand)
	if err := logproof.Seal(e); err != nil {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a record cannot be put into canonical form", fault.WithField("records"), fault.WithCause(err))
	}
	n := int64(index)
	hashes, err := tlog.StoredHashesForRecordHash(n, tlog.Hash(e.GetLeafHash()), overlay{context.Background(), l.cfg.Store, s.recent})
	if err != nil {
		return nil, unavailable(err)
	}
	for i, hash := range hashes {
		s.recent[tlog.StoredHashIndex(0, n)+int64(i)] = hash
	}
	s.hashes = append(s.hashes, hashes...)
	s.entries = append(s.entries, e)
	return e, nil
}

// undo takes back what was placed after the first n entries.
func (s *stage) undo(n int) {
	first := tlog.StoredHashIndex(0, int64(s.from))
	keep := tlog.StoredHashIndex(0, int64(s.from)+int64(n)) - first
	for i := range s.hashes[keep:] {
		delete(s.recent, first+keep+int64(i))
	}
	s.hashes, s.entries = s.hashes[:keep], s.entries[:n]
}

// transact signs and commits the stage and moves the log on.
func (l *Log) transact(ctx context.Context, s *stage, h *head) (*head, error) {
	next := &head{grown: make(chan struct{}), recent: s.recent}
	next.Origin, next.Size = h.Origin, s.from+uint64(len(s.entries))
	var err error
	if next.Root, err = tlog.TreeHash(int64(next.Size), l.reader(ctx, next)); err != nil {
		return nil, err
	}
	if next.signed, err = logproof.SignCheckpoint(next.Checkpoint, l.cfg.Signer); err != nil {
		return nil, err
	}
	if err := l.cfg.Store.Commit(ctx, store.Batch{
		Entries: s.entries, FirstHash: tlog.StoredHashIndex(0, int64(s.from)), Hashes: s.hashes, Checkpoint: next.signed,
	}); err != nil {
		return nil, err
	}
	maps.Copy(l.last, s.last)
	l.processes = s.processes
	l.logged = s.at
	l.head.Store(next)
	close(h.grown)
	return next, nil
}
