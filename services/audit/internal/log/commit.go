package log

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"syscall"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/reserve"
)

const notNow = "the audit log cannot be written now"

var errFull = fmt.Errorf("the log: %w", syscall.ENOSPC)

func unavailable(cause error) *fault.Error {
	return fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, notNow, fault.WithRetry(time.Second), fault.WithCause(cause))
}

// write is the writing goroutine.
func (l *Log) write() {
	defer close(l.stopped)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-look.C:
			if l.look() == nil { // it says so itself
				l.keep()
			}
		case r := <-l.requests:
			l.commit(l.gather(r))
		case b := <-l.between:
			b.done <- l.run(b)
		}
	}
}

// between is something that is done between two transactions.
type between struct {
	ctx  context.Context
	f    func(context.Context) error
	done chan error // holds one
}

// Between calls f between two transactions of the log, while this process leads: what writers send waits for it, so f must be short.
// store.ErrFollows: another process leads.
func (l *Log) Between(ctx context.Context, f func(context.Context) error) error {
	b := &between{ctx, f, make(chan error, 1)}
	select {
	case l.between <- b:
	case <-l.stopped:
		return unavailable(errors.New("the log is closed"))
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-b.done
}

func (l *Log) run(b *between) error {
	switch err := l.look(); {
	case err != nil:
		return unavailable(err)
	case l.follows.Load():
		return store.ErrFollows
	case l.broken.Load():
		return unavailable(errors.New("the log cannot be written"))
	case b.ctx.Err() != nil:
		return b.ctx.Err()
	}
	return b.f(b.ctx)
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
	logged  *timestamppb.Timestamp // at, which all entries share
	entries []*auditv1.Entry
	last    map[string]uint64
	// recent has the staged tree's hashes behind those that it began with, of which there are so many.
	recent store.Recent
	began  int
	// full is why only what entitled allows is staged; nil: everything is.
	full error
	// processes are the starts and stops that were written out of the reserve lately, these among them.
	processes map[process]time.Time
}

// look returns an error while the log's files are not in their place, and logs that once.
func (l *Log) look() error {
	err := inPlace(l.cfg.Store.InPlace())
	if err == nil {
		l.lost.Store(nil)
		return nil
	}
	if l.lost.Swap(&err) == nil {
		l.cfg.Logger.Error("NOTHING IS RECORDED ANY MORE: the log's files are gone", "cause", err.Error())
	}
	return err
}

// keep keeps the lead, or takes it when it is free and reads what the log holds while it is not.
func (l *Log) keep() {
	ctx := context.Background()
	if !l.follows.Load() && !l.broken.Load() {
		err := l.cfg.Store.Hold(ctx)
		if err == nil {
			return
		}
		l.failed(err, "the lead may be lost")
	}
	err := l.lead(ctx)
	if errors.Is(err, store.ErrFollows) {
		err = l.follow(ctx)
	}
	if err != nil {
		l.failed(err, "the log cannot be read")
		return
	}
	l.mended()
}

// follow reads the log if it has grown.
func (l *Log) follow(ctx context.Context) error {
	stored, err := l.cfg.Store.Head(ctx)
	if err != nil || bytes.Equal(stored.Checkpoint, l.head.Load().stored) {
		return err
	}
	return l.load(ctx)
}

// failure is a transaction that failed, or that had no room for all that was to be in it.
type failure struct {
	why error
	// size is the log's afterwards, as far as is known: once it has grown, that transaction was written after all, or another one.
	size uint64
}

// stuck returns why nothing was written since a transaction failed: that the log can be read does not say that it can be written.
func (l *Log) stuck() error {
	if u := l.unwritten.Load(); u != nil && u.size >= l.Size() && !l.follows.Load() {
		return u.why
	}
	return nil
}

// failed has the log read again before anything is written, and says so once.
func (l *Log) failed(err error, what string, more ...any) {
	if !l.broken.Swap(true) && l.stuck() == nil {
		l.cfg.Logger.Error(what, append(more, "cause", err.Error())...)
	}
}

// mended says once that the log was read again, unless it is stuck: then the next transaction that goes well says so.
func (l *Log) mended() {
	if l.broken.Swap(false) && l.stuck() == nil {
		l.cfg.Logger.Info("the log can be used again", "size", l.Size())
	}
}

// commit answers every request of the group.
func (l *Log) commit(group []*request) {
	ctx := context.Background() // a request that gave up does not undo what others wait for
	if err := l.look(); err != nil {
		refuse(group, unavailable(err))
		return
	}
	if l.follows.Load() {
		l.relay(ctx, group)
		return
	}
	if l.broken.Load() {
		err := l.lead(ctx)
		if errors.Is(err, store.ErrFollows) {
			l.relay(ctx, group)
			return
		}
		if err != nil {
			l.cfg.Logger.Debug("the log cannot be read again after a failed transaction", "cause", err.Error())
			refuse(group, unavailable(err))
			return
		}
		l.mended()
	}
	h, stuck := l.head.Load(), l.stuck() != nil
	var full error
	if l.cfg.Reserve.Tight() {
		full = errors.New("the reserve is given up")
	}
	answers, next, err := l.attempt(ctx, h, group, full)
	if reserve.Full(err) && l.lead(ctx) == nil { // load says how the transaction ended
		h = l.head.Load()
		answers, next, err = l.economise(ctx, h, group, err)
	}
	if err != nil {
		l.failed(err, "a transaction of the log failed", "requests", len(group))
		if next != h {
			l.unwritten.Store(&failure{err, h.Size})
		}
		refuse(group, unavailable(err))
		return
	}
	switch {
	case crowdedOut(answers):
		l.unwritten.Store(&failure{errFull, next.Size})
		if !stuck {
			l.cfg.Logger.Warn("the disk is full: only what takes load off the host is recorded")
		}
	case stuck && next != h:
		l.cfg.Logger.Info("the log can be written again", "size", next.Size)
	}
	for i, r := range group {
		answers[i].head, answers[i].last = next, l.last[r.writer]
		r.answer <- answers[i]
	}
}

// relay answers the requests of the group that read, and refuses the others, which are for the process that leads.
func (l *Log) relay(ctx context.Context, group []*request) {
	var err error
	if slices.ContainsFunc(group, func(r *request) bool { return r.reads }) {
		err = l.follow(ctx)
	}
	for _, r := range group {
		switch {
		case !r.reads:
			r.answer <- answer{err: unavailable(store.ErrFollows)}
		case err != nil:
			r.answer <- answer{err: unavailable(err)}
		default:
			r.answer <- answer{head: l.head.Load()}
		}
	}
}

// attempt stages the group and commits what could be staged. An error is the transaction's, and what became of it is unknown.
func (l *Log) attempt(ctx context.Context, h *head, group []*request, full error) ([]answer, *head, error) {
	s := &stage{from: h.Size, at: l.cfg.Clock().UTC(), last: map[string]uint64{}, recent: edge(h), full: full, processes: maps.Clone(l.processes)}
	s.began = len(s.recent.Hashes)
	if s.at.Before(l.logged) {
		s.at = l.logged // the log's clock does not go back
	}
	s.logged = timestamppb.New(s.at)
	answers := make([]answer, len(group))
	for i, r := range group {
		answers[i].entries, answers[i].err = l.stage(ctx, s, h, r)
	}
	if len(s.entries) == 0 {
		return answers, h, l.cfg.Store.Hold(ctx) // another process may have moved the log on
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
	if err := l.lead(ctx); err != nil {
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

// maxRecent is how many hashes a head carries on from the ones before it, once there have been twice as many: of about 4,000 entries.
const maxRecent = 8 << 10

// edge returns the hashes that the next entries need, which are those of h; when they have become many, the newest, and the roots of the
// complete subtrees of the entries before those. A proof about a tree that ends among the newest needs no others.
func edge(h *head) store.Recent {
	r := h.recent
	if len(r.Hashes) <= 2*maxRecent {
		return r
	}
	want := r.First + int64(len(r.Hashes)) - maxRecent
	from := want / 2 // an entry has two hashes, nearly
	for tlog.StoredHashIndex(0, from) < want {
		from++
	}
	cut := store.Recent{First: tlog.StoredHashIndex(0, from), Roots: map[int64]tlog.Hash{}}
	for _, index := range roots(uint64(from)) {
		hash, ok := r.Hash(index)
		if !ok {
			return r
		}
		cut.Roots[index] = hash
	}
	cut.Hashes = append(make([]tlog.Hash, 0, 3*maxRecent), r.Hashes[cut.First-r.First:]...)
	return cut
}

// roots returns the stored indexes of the roots of a tree's complete subtrees.
func roots(size uint64) []int64 { return stored(0, size) }

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
	salts := make([]byte, logproof.SaltSize*len(r.records))
	_, _ = rand.Read(salts)                         // never fails (crypto/rand)
	placed := make([]auditv1.Entry, len(r.records)) // one piece of memory
	for i, record := range r.records {
		if entries[i] != nil {
			continue
		}
		e := &placed[i]
		e.Writer, e.Record, e.LoggedAt, e.Salt = r.writer, record, s.logged, salts[i*logproof.SaltSize:][:logproof.SaltSize:logproof.SaltSize]
		if err := l.place(s, e); err != nil {
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

// place gives an entry its index, seals it, and adds it to the staged tree.
func (l *Log) place(s *stage, e *auditv1.Entry) (err error) {
	e.Index = s.from + uint64(len(s.entries))
	if e.GetIndex() >= math.MaxInt64 {
		return unavailable(errors.New("the log is full"))
	}
	if l.text, err = logproof.SealHashes(l.text, e); err != nil {
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "a record cannot be put into canonical form", fault.WithField("records"), fault.WithCause(err))
	}
	n := int64(e.GetIndex())
	hashes, err := tlog.StoredHashesForRecordHash(n, tlog.Hash(e.GetLeafHash()), store.Hashes{Ctx: context.Background(), From: l.cfg.Store, Fresh: &s.recent})
	if err != nil {
		return unavailable(err)
	}
	s.recent.Hashes = append(s.recent.Hashes, hashes...)
	s.entries = append(s.entries, e)
	return nil
}

// undo takes back what was placed after the first n entries.
func (s *stage) undo(n int) {
	s.recent.Hashes = s.recent.Hashes[:tlog.StoredHashIndex(0, int64(s.from)+int64(n))-s.recent.First]
	s.entries = s.entries[:n]
}

// transact signs and commits the stage and moves the log on.
func (l *Log) transact(ctx context.Context, s *stage, h *head) (*head, error) {
	next := &head{grown: make(chan struct{}), recent: s.recent}
	next.Origin, next.Size = h.Origin, s.from+uint64(len(s.entries))
	var err error
	if next.Root, err = tlog.TreeHash(int64(next.Size), l.reader(ctx, next)); err != nil {
		return nil, err
	}
	if next.stored, err = logproof.SignStaged(next.Checkpoint, l.cfg.Signer); err != nil {
		return nil, err
	}
	if err := written(func() error {
		return l.cfg.Store.Commit(ctx, store.Batch{
			Entries: s.entries, FirstHash: tlog.StoredHashIndex(0, int64(s.from)), Hashes: slices.Clip(s.recent.Hashes[s.began:]), Checkpoint: next.stored,
		})
	}); err != nil {
		return nil, err
	}
	if next.signed, err = logproof.SignCheckpoint(next.Checkpoint, l.cfg.Signer); err != nil {
		return nil, err
	}
	maps.Copy(l.last, s.last)
	l.processes = s.processes
	l.logged = s.at
	l.head.Store(next)
	close(h.grown)
	return next, nil
}

// processInterval is how often a full disk's reserve takes it from one writer that a process starts, and that one stops.
const processInterval = time.Minute

// process is what a record says of its writer's process.
type process struct {
	writer string
	kind   auditv1.Kind
}

// entitled reports whether a record of that writer may be written out of the reserve at that time. taken is when such records of
// processes were written so before; the record is added to it if it is one of them.
func entitled(writer string, record *auditv1.Record, at time.Time, taken map[process]time.Time) bool {
	if reserve.Entitled(record) {
		return true
	}
	kind := record.GetKind()
	if kind != auditv1.Kind_KIND_STARTED && kind != auditv1.Kind_KIND_STOPPED {
		return false
	}
	// The gateway meets the agents: whoever took it over could say that it starts until no room is left for a halt.
	id, err := identity.Parse(writer)
	if err != nil || id.Role() == optionsv1.Role_ROLE_GATEWAY {
		return false
	}
	key := process{writer, kind}
	if last, ok := taken[key]; ok && at.Sub(last) < processInterval {
		return false
	}
	maps.DeleteFunc(taken, func(_ process, last time.Time) bool { return at.Sub(last) >= processInterval })
	taken[key] = at
	return true
}
