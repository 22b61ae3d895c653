package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

const (
	// tailBatch is the largest batch that goes into the tail, in entries, tailEntries and tailBytes the most that waits there, and
	// settleAfter how long it does.
	tailBatch, tailEntries, tailBytes = 8, 64, 256 << 10
	settleAfter                       = 100 * time.Millisecond
)

// tail makes a small commit cheap, for which somebody waits. An entry in its tables touches about twenty pages, most of them of indexes; in
// the tail it is one row. The tail is moved to the tables as one batch, soon, or before something is searched for: what it holds counts as
// written from the first moment on, and what is read by its place is read from here meanwhile. A process that follows reads it anew each
// time, and leaves it where it is.
type tail struct {
	db tailDB
	// fixed: what waits stays where it is, since the database is only read.
	fixed bool
	// after is settleAfter.
	after time.Duration
	// settled is the lead in which nothing waits, so that the tables have everything; 0: in none. It is read without mu.
	settled atomic.Int64

	mu sync.Mutex
	// known is the lead in which end and waiting are as the database has them; 0: in none. A transaction whose outcome is unknown makes
	// them unknown.
	known   int64
	end     Head
	waiting []Batch // it is only ever added to
	bytes   int
	timer   *time.Timer
}

// tailDB is the tail in an engine's database.
type tailDB interface {
	// extend adds a row to the tail durably. ErrFollows: this process leads no more, and nothing was added.
	extend(ctx context.Context, r tailRow) error
	// leads is another number each time that this process takes the lead, in which no other writes; 0: it does not lead.
	leads() int64
}

// tailRow is a batch in the tail: its entries, each as auditv1.Entry without its leaf, after its length, and how many the log has with these.
type tailRow struct {
	size                        int64
	entries, hashes, checkpoint []byte
	firstHash                   int64
}

// errTail is wrapped by the error of a tail that does not go on where the tables end.
var errTail = fmt.Errorf("%w: the newest entries do not follow the others", errStored)

// recall reads where the log ends, and what waits, unless that is known.
func (s *Store) recall(ctx context.Context) error {
	t := s.tail
	lead := t.db.leads() // the database may be another's by the time it was read
	if lead != 0 && t.known == lead {
		return nil
	}
	waiting, end, err := s.ending(ctx)
	for tries := 1; errors.Is(err, errTail) && tries < 20; tries++ {
		waiting, end, err = s.ending(ctx) // another process, which leads by now, moved it in between
	}
	if err != nil {
		return err
	}
	t.waiting, t.bytes = nil, 0
	for _, b := range waiting {
		t.wait(b)
	}
	t.end, t.known = end, lead
	switch {
	case len(t.waiting) == 0:
		t.settled.Store(lead)
	case lead != 0:
		s.settleSoon()
	}
	return nil
}

// ending reads what waits, and where the log ends with it.
func (s *Store) ending(ctx context.Context) (waiting []Batch, end Head, err error) {
	if waiting, err = s.unmoved(ctx); err != nil {
		return nil, end, fmt.Errorf("read the newest entries: %w", err)
	}
	end, err = s.end(ctx, waiting)
	return waiting, end, err
}

// settleSoon has the tail moved by itself. Whoever reads or writes next says why that fails.
func (s *Store) settleSoon() {
	t := s.tail
	if t.timer != nil {
		t.timer.Reset(t.after)
		return
	}
	t.timer = time.AfterFunc(t.after, func() { _ = s.settle(context.Background()) })
}

// end is where the log ends whose newest batches are in the tail.
func (s *Store) end(ctx context.Context, waiting []Batch) (Head, error) {
	end, err := s.tables().Head(ctx)
	for _, b := range waiting {
		if err != nil {
			break
		}
		if end, err = end.with(b); err != nil {
			err = fmt.Errorf("%w: %w", errTail, err)
		}
	}
	return end, err
}

func (t *tail) wait(b Batch) {
	t.waiting = append(t.waiting, b)
	for _, e := range b.Entries {
		t.bytes += proto.Size(e)
	}
}

// with is where the log ends after b.
func (h Head) with(b Batch) (Head, error) {
	last := maps.Clone(h.Last)
	if b.FirstHash != h.Hashes {
		return h, fmt.Errorf("the tree goes on with hash %d and not with %d", h.Hashes, b.FirstHash)
	}
	for _, e := range b.Entries {
		writer, sequence := e.GetWriter(), e.GetRecord().GetSequence()
		if e.GetIndex() != uint64(h.Entries) || h.Entries == math.MaxInt64 {
			return h, fmt.Errorf("entry %d is not the next one, %d", e.GetIndex(), h.Entries)
		}
		if sequence <= last[writer] {
			return h, fmt.Errorf("entry %d has the sequence %d, and its writer's last one is %d", e.GetIndex(), sequence, last[writer])
		}
		if _, err := role(writer); err != nil {
			return h, err
		}
		h.Entries, h.LoggedAt, last[writer] = h.Entries+1, e.GetLoggedAt().AsTime(), sequence
	}
	h.Hashes, h.Checkpoint, h.Last = h.Hashes+int64(len(b.Hashes)), b.Checkpoint, last
	return h, nil
}

// small reports whether a batch goes into the tail: a few entries for which somebody waits, and no reads, which nobody does.
func (t *tail) small(b Batch) bool {
	if len(b.Entries) > tailBatch || slices.ContainsFunc(b.Entries, inBlocks) {
		return false
	}
	n := len(b.Entries)
	for _, older := range t.waiting {
		n += len(older.Entries)
	}
	return n <= tailEntries && t.bytes <= tailBytes
}

// Commit adds the batch durably, or nothing of it: to the tail, or with all that waits there to the tables. ErrFollows: this process leads
// no more, and nothing was added.
func (s *Store) Commit(ctx context.Context, b Batch) error {
	t := s.tail
	if t == nil {
		return s.file(ctx, b)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.db.leads() == 0 { // an epoch of 0 is that of a database in which no process has led
		return ErrFollows
	}
	if err := s.recall(ctx); err != nil {
		return err
	}
	end, err := t.end.with(b)
	if err != nil {
		return err
	}
	if !t.small(b) {
		if err := s.move(ctx, append(t.waiting, b)); err != nil {
			return err
		}
		t.end = end
		return nil
	}
	row, err := b.row()
	if err == nil {
		err = t.db.extend(ctx, row)
	}
	if err != nil {
		t.known = 0
		return fmt.Errorf("write the newest entries: %w", err)
	}
	t.end = end
	t.wait(b)
	t.settled.Store(0)
	if len(t.waiting) == 1 {
		s.settleSoon()
	}
	return nil
}

// move adds batches to the tables as one; all but the newest may be those of the tail, which is then empty.
func (s *Store) move(ctx context.Context, batches []Batch) error {
	whole := batches[0] // mostly the only one
	for _, b := range batches[1:] {
		whole.Entries, whole.Hashes = slices.Concat(whole.Entries, b.Entries), slices.Concat(whole.Hashes, b.Hashes)
		whole.Checkpoint = b.Checkpoint
	}
	t := s.tail
	if err := s.file(ctx, whole); err != nil {
		t.known = 0
		t.settled.Store(0)
		return err
	}
	t.waiting, t.bytes = nil, 0
	t.settled.Store(t.known)
	if t.timer != nil {
		t.timer.Stop()
	}
	return nil
}

// Fill is engine's, between two moves of the tail by itself.
func (s *Store) Fill(why string) {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	s.engine.Fill(why)
}

// settle moves what waits to the tables. ErrFollows: another process leads and does.
func (s *Store) settle(ctx context.Context) error {
	t := s.tail
	if t == nil || t.fixed {
		return nil
	}
	switch t.db.leads() {
	case 0:
		return ErrFollows
	case t.settled.Load():
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := s.recall(ctx); err != nil || len(t.waiting) == 0 {
		return err
	}
	return s.move(context.WithoutCancel(ctx), t.waiting) // one reader's end is none of the next one's business
}

// unsettled are the batches that wait. Who wants the tables too reads them afterwards: what is moved meanwhile is then in both.
func (s *Store) unsettled(ctx context.Context) ([]Batch, error) {
	t := s.tail
	if t == nil {
		return nil, nil
	}
	if t.fixed {
		return t.waiting, nil
	}
	switch t.db.leads() {
	case 0:
		return s.unmoved(ctx)
	case t.settled.Load():
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := s.recall(ctx); err != nil {
		return nil, err
	}
	return t.waiting, nil
}

// tables is the store without its tail.
func (s *Store) tables() *Store {
	if s.tail == nil {
		return s
	}
	return &Store{engine: s.engine}
}

// fixed reports whether there is a tail that stays where it is.
func (s *Store) fixed() bool { return s.tail != nil && s.tail.fixed }

// oneInTail returns the entry of the tail that is wanted, or ErrNotFound. It is the caller's.
func (s *Store) oneInTail(ctx context.Context, wanted func(*auditv1.Entry) bool) (*auditv1.Entry, error) {
	found, err := s.inTail(ctx, whole, func(e *auditv1.Entry) (bool, error) { return wanted(e), nil })
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, ErrNotFound
	}
	return found[0], nil
}

// inTail returns the entries of the tail that are wanted, which are few. They are the caller's.
func (s *Store) inTail(ctx context.Context, finish func(*auditv1.Entry) error, wanted func(*auditv1.Entry) (bool, error)) (found []*auditv1.Entry, err error) {
	waiting, err := s.unsettled(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range waiting {
		for _, e := range b.Entries {
			if is, err := wanted(e); err != nil || !is {
				if err != nil {
					return nil, err
				}
				continue
			}
			e = proto.CloneOf(e)
			if err := finish(e); err != nil {
				return nil, err
			}
			found = append(found, e)
		}
	}
	return found, nil
}

// boundary is where the tables end for whoever has these entries of the tail, and looks below end: what is moved meanwhile is in both.
func boundary(inTail []*auditv1.Entry, end uint64) uint64 {
	if len(inTail) > 0 {
		return min(end, inTail[0].GetIndex())
	}
	return end
}

func (b Batch) row() (r tailRow, err error) {
	var entries bytes.Buffer
	for _, e := range b.Entries {
		stored := &auditv1.Entry{Index: e.GetIndex(), Writer: e.GetWriter(), Record: e.GetRecord(), LoggedAt: e.GetLoggedAt(), Salt: e.GetSalt(),
			BodyCommitment: e.GetBodyCommitment(), LeafHash: e.GetLeafHash(), PrunedBy: e.PrunedBy}
		if _, err := protodelim.MarshalTo(&entries, stored); err != nil {
			return r, err
		}
	}
	size := int64(b.Entries[len(b.Entries)-1].GetIndex()) + 1
	return tailRow{size: size, entries: entries.Bytes(), firstHash: b.FirstHash, hashes: joined(b.Hashes), checkpoint: b.Checkpoint}, nil
}

func (r tailRow) batch() (Batch, error) {
	b := Batch{FirstHash: r.firstHash, Checkpoint: r.checkpoint}
	for from := bytes.NewReader(r.entries); from.Len() > 0; {
		e := &auditv1.Entry{}
		if err := protodelim.UnmarshalFrom(from, e); err != nil {
			return b, fmt.Errorf("%w: before entry %d: %w", errTail, r.size, err)
		}
		b.Entries = append(b.Entries, e)
	}
	for hash := range slices.Chunk(r.hashes, tlog.HashSize) {
		if len(hash) != tlog.HashSize {
			return b, fmt.Errorf("%w: before entry %d: a hash is cut short", errTail, r.size)
		}
		b.Hashes = append(b.Hashes, tlog.Hash(hash))
	}
	if n := len(b.Entries); n == 0 || b.Entries[n-1].GetIndex() != uint64(r.size-1) {
		return b, fmt.Errorf("%w: before entry %d", errTail, r.size)
	}
	return b, nil
}

// unmoved are the batches that are in the tail, in order.
func (s *Store) unmoved(ctx context.Context) (batches []Batch, err error) {
	err = s.engine.each(ctx, `SELECT size, entries, first_hash, hashes, checkpoint FROM tail ORDER BY size`, nil, func(scan func(...any) error) (bool, error) {
		var r tailRow
		if err := scan(&r.size, &r.entries, &r.firstHash, &r.hashes, &r.checkpoint); err != nil {
			return false, fmt.Errorf("%w: %w", errStored, err)
		}
		b, err := r.batch()
		if err == nil {
			batches = append(batches, b)
		}
		return err == nil, err
	})
	return batches, err
}
