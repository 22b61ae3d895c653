package store

import (
	"context"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/audit/internal/store/packed"
	"durward.internal/services/audit/internal/store/words"
)

// Reads are most of what a log holds, and like each other. They are kept in blocks.
const (
	// blockEntries and blockBytes bound a block. One takes more records while it has fewer than blockOpen.
	blockEntries, blockOpen = 256, 128
	blockBytes              = 128 << 10
)

// inBlocks reports whether an entry is kept in a block, and not in rows of its own.
func inBlocks(e *auditv1.Entry) bool { return e.GetRecord().GetKind() == auditv1.Kind_KIND_READ }

// work is what one Commit does.
type work struct {
	rows       []*auditv1.Entry
	blocks     []block
	tree       []chunk
	last       []lastOf
	size       int64
	checkpoint []byte
}

// lastOf is a writer with the first and the last sequence that a Commit brings of it.
type lastOf struct {
	writer, role    string
	first, sequence int64
}

// block is a block as it is stored.
type block struct {
	first, last, logged, loggedLast int64
	// was is the last index that it had before; -1: it is new.
	was          int64
	filter, data []byte
	// spans are the writers that it has entries of and did not have before, with the first sequence of each.
	spans []span
}

type span struct {
	writer   string
	sequence int64
}

// file adds the batch to the tables durably, or nothing of it.
func (s *Store) file(ctx context.Context, b Batch) error {
	w, open, err := s.plot(ctx, b)
	if err == nil {
		err = s.add(ctx, w)
	}
	if err != nil {
		s.open = nil
		return err
	}
	s.open = open
	return nil
}

// Lead is engine's; what another process wrote meanwhile is read again.
func (s *Store) Lead(ctx context.Context) error {
	s.forget()
	return s.engine.Lead(ctx)
}

// forget has what is kept in memory of the database read again.
func (s *Store) forget() {
	s.forgetTail()
	s.sieve.forget() // a search holds the sieve's lock while it waits for the tail's, so nobody takes them the other way round
}

func (s *Store) forgetTail() {
	if t := s.tail; t != nil {
		t.mu.Lock() // the tail is moved by itself, too
		defer t.mu.Unlock()
		t.known = 0
		t.settled.Store(0)
	}
	s.open = nil
}

// plot says what a batch comes to, and what the newest block holds then.
func (s *Store) plot(ctx context.Context, b Batch) (w work, open []packed.Cell, err error) {
	w = work{size: int64(b.Entries[len(b.Entries)-1].GetIndex()) + 1, checkpoint: b.Checkpoint}
	var reads []packed.Cell
	at := map[string]int{}
	for i, e := range b.Entries {
		if e.GetIndex() != b.Entries[0].GetIndex()+uint64(i) || e.GetIndex() >= math.MaxInt64 {
			return w, nil, fmt.Errorf("entry %d does not follow the one before it", e.GetIndex())
		}
		sequence := int64(e.GetRecord().GetSequence())
		n, known := at[e.GetWriter()]
		switch {
		case !known:
			who, err := role(e.GetWriter())
			if err != nil {
				return w, nil, err
			}
			at[e.GetWriter()] = len(w.last)
			w.last = append(w.last, lastOf{e.GetWriter(), who, sequence, sequence})
		case sequence <= w.last[n].sequence:
			return w, nil, fmt.Errorf("entry %d has the sequence %d, and its writer's last one is %d", e.GetIndex(), sequence, w.last[n].sequence)
		default:
			w.last[n].sequence = sequence
		}
		if !inBlocks(e) {
			w.rows = append(w.rows, e)
			continue
		}
		c, err := packed.New(e)
		if err != nil {
			return w, nil, err
		}
		if reads == nil {
			reads = make([]packed.Cell, 0, len(b.Entries)-i)
		}
		reads = append(reads, c)
	}
	w.tree = chunksOf(b)
	if len(reads) == 0 {
		return w, s.open, nil
	}
	w.blocks, open, err = s.fill(ctx, reads)
	return w, open, err
}

// fill puts reads into the newest block, while it has room, and into new ones.
func (s *Store) fill(ctx context.Context, reads []packed.Cell) (blocks []block, open []packed.Cell, err error) {
	if open = s.open; open == nil {
		if open, err = s.tables().newest(ctx); err != nil {
			return nil, nil, err
		}
	}
	was := int64(-1)
	if len(open) > 0 && len(open) < blockOpen && sizeOf(open) < blockBytes {
		was = int64(open[len(open)-1].Index)
		if reads[0].Index <= uint64(was) {
			return nil, nil, fmt.Errorf("entry %d is taken", reads[0].Index)
		}
	} else {
		open = nil
	}
	for len(reads) > 0 {
		known, n := len(open), 0
		for size := sizeOf(open); n < len(reads) && known+n < blockEntries && (size < blockBytes || n == 0); n++ {
			size += reads[n].Size()
		}
		if known == 0 {
			open = reads[:n:n]
		} else {
			open = slices.Concat(open, reads[:n]) // in memory of its own: a Commit that fails leaves the old one as it was
		}
		reads = reads[n:]
		b, err := stored(open, was, nil)
		if err != nil {
			return nil, nil, err
		}
		seen := map[string]bool{}
		for i, c := range open {
			if !seen[c.Writer] && i >= known {
				b.spans = append(b.spans, span{c.Writer, int64(c.Sequence)})
			}
			seen[c.Writer] = true
		}
		blocks = append(blocks, b)
		if len(reads) > 0 {
			open, was = nil, -1
		}
	}
	return blocks, open, nil
}

func sizeOf(cells []packed.Cell) (size int) {
	for i := range cells {
		size += cells[i].Size()
	}
	return size
}

// stored makes a block of cells, over an older one if there is one.
func stored(cells []packed.Cell, was int64, older *block) (block, error) {
	newest := &cells[len(cells)-1]
	b := block{first: int64(cells[0].Index), last: int64(newest.Index), logged: cells[0].Logged, loggedLast: newest.Logged, was: was}
	var leastFilter, leastData int
	if older != nil {
		leastFilter, leastData = len(older.filter), len(older.data)
	}
	var err error
	if b.filter, err = packed.Filter(cells, leastFilter); err != nil {
		return b, err
	}
	b.data, err = packed.Encode(cells, leastData)
	return b, err
}

// selectBlocks are blocks; beginAt is the condition for the one that an index is in, if any block has it.
const (
	selectBlocks = `SELECT b.first, b.last, b.filter, p.data FROM blocks b JOIN packs p ON p.first = b.first `
	beginAt      = `WHERE p.first = (SELECT MAX(first) FROM blocks WHERE first <= ?)`
)

// blocksOf reads blocks with their entries. One that cannot be read is an error that says where it begins.
func (s *Store) blocksOf(ctx context.Context, query string, args []any, each func(b *block, cells []packed.Cell) (bool, error)) error {
	return s.each(ctx, selectBlocks+query, args, func(scan func(...any) error) (bool, error) {
		b := &block{}
		if err := scan(&b.first, &b.last, &b.filter, &b.data); err != nil {
			return false, fmt.Errorf("%w: %w", errStored, err)
		}
		cells, err := packed.Decode(b.data)
		if err != nil {
			return false, fmt.Errorf("entries %d to %d: %w", b.first, b.last, err)
		}
		return each(b, cells)
	})
}

// newest returns the newest block's entries.
func (s *Store) newest(ctx context.Context) (newest []packed.Cell, err error) {
	err = s.blocksOf(ctx, `ORDER BY b.first DESC LIMIT 1`, nil, func(_ *block, cells []packed.Cell) (bool, error) {
		newest = cells
		return false, nil
	})
	return newest, err
}

// inBlock returns the entry that is wanted of a block, or ErrNotFound.
func (s *Store) inBlock(ctx context.Context, wanted func(*packed.Cell) bool, query string, args ...any) (found *auditv1.Entry, err error) {
	err = s.blocksOf(ctx, query, args, func(_ *block, cells []packed.Cell) (_ bool, err error) {
		if i := slices.IndexFunc(cells, func(c packed.Cell) bool { return wanted(&c) }); i >= 0 {
			found, err = entryOf(&cells[i])
		}
		return false, err
	})
	if err == nil && found == nil {
		err = ErrNotFound
	}
	return found, err
}

// blocksAtOnce is how many blocks are asked for at once.
const blocksAtOnce = 8

// entryOf is the entry of a cell, with everything.
func entryOf(c *packed.Cell) (*auditv1.Entry, error) {
	e, err := c.Stored(nil)
	if err != nil {
		return nil, err
	}
	return e, whole(e)
}

// cells calls f with each entry of a block from one index to below another, in order, until it returns false.
func (s *Store) cells(ctx context.Context, from, end uint64, f func(*packed.Cell) (bool, error)) error {
	query, at := `WHERE b.first >= COALESCE((SELECT MAX(first) FROM blocks WHERE first <= ?), 0)`, from
	for more := true; more; {
		n := 0
		err := s.blocksOf(ctx, query+` AND b.first < ? ORDER BY b.first LIMIT ?`, []any{int64(at), int64(end), int64(blocksAtOnce)}, func(b *block, cells []packed.Cell) (_ bool, err error) {
			n++
			at = uint64(b.first) + 1
			for i := range cells {
				if c := &cells[i]; c.Index >= from && c.Index < end && more {
					if more, err = f(c); err != nil {
						return false, err
					}
				}
			}
			return more, nil
		})
		if err != nil {
			return err
		}
		query, more = `WHERE b.first >= ?`, more && n == blocksAtOnce
	}
	return nil
}

// readsFrom is Range among the entries of blocks. Entries that say the same share a body, which nobody may change.
func (s *Store) readsFrom(ctx context.Context, finish func(*auditv1.Entry) error, from, end uint64, limit, maxBytes int) (out []*auditv1.Entry, err error) {
	size := 0
	bodies := map[packed.Said]*auditv1.Body{}
	err = s.cells(ctx, from, end, func(c *packed.Cell) (bool, error) {
		e, err := c.Stored(bodies)
		if err == nil {
			err = finish(e)
		}
		if err != nil {
			return false, err
		}
		out = append(out, e)
		size += c.Size() + len(e.GetLeaf())
		return len(out) < limit && size < maxBytes, nil
	})
	return out, err
}

// without returns the blocks that hold some of the entries, without the bodies of these, and which of the entries no block holds.
func (s *Store) without(ctx context.Context, by uint64, entries []uint64) (blocks []block, rest []int64, err error) {
	entries = slices.Sorted(slices.Values(entries))
	for len(entries) > 0 {
		index := entries[0]
		last := index // of what this turn is about
		err := s.blocksOf(ctx, beginAt, []any{int64(index)}, func(older *block, cells []packed.Cell) (bool, error) {
			last = max(index, uint64(older.last))
			changed := false
			for i := range cells {
				c := &cells[i]
				if n, found := slices.BinarySearch(entries, c.Index); found {
					entries = slices.Delete(entries, n, n+1)
					if c.Salt != nil {
						changed = true
						if err := c.Prune(by); err != nil {
							return false, err
						}
					}
				}
			}
			if !changed {
				return false, nil
			}
			b, err := stored(cells, older.last, older)
			blocks = append(blocks, b)
			return false, err
		})
		if err != nil {
			return nil, nil, err
		}
		for len(entries) > 0 && entries[0] <= last {
			rest, entries = append(rest, int64(entries[0])), entries[1:]
		}
	}
	return blocks, rest, nil
}

const (
	// candidates are how many blocks are read at once that a filter names.
	candidates = 16
)

// reads searches among the entries of blocks, newest first: the blocks whose filters may hold what is asked for. rows are what was found
// elsewhere, newest first: with so many of them before a place in the log, so many fewer are looked for until there.
func (s *Store) reads(ctx context.Context, q Query, rows []*auditv1.Entry, limit, maxBytes int) (out []*auditv1.Entry, err error) {
	if q.noReads || len(q.Kinds) > 0 && !slices.Contains(q.Kinds, auditv1.Kind_KIND_READ) {
		return nil, nil
	}
	asked, terms := words.In(q.Text), q.terms()
	if q.Text != "" && len(asked) == 0 {
		return nil, nil // signs alone are in no index
	}
	for _, word := range asked {
		terms = append(terms, packed.Term(packed.PlaceWord, word))
	}
	size := 0
	below := int64(math.MaxInt64)
	if q.Before > 0 {
		below = int64(min(q.Before, math.MaxInt64))
	}
	newer := 0 // of rows
	enough := func(index uint64) bool {
		for newer < len(rows) && rows[newer].GetIndex() > index {
			newer++
		}
		return len(out)+newer >= limit || size >= maxBytes
	}
	for more := true; more && len(out)+newer < limit && size < maxBytes; {
		var some []any
		if some, below, more, err = s.candidates(ctx, q, terms, below); err != nil || len(some) == 0 {
			return out, err
		}
		err := s.blocksOf(ctx, `WHERE b.first IN (`+marks(len(some))+`) ORDER BY b.first DESC`, some, func(_ *block, cells []packed.Cell) (bool, error) {
			for i := len(cells) - 1; i >= 0 && !enough(cells[i].Index); i-- {
				c := &cells[i]
				if fits, err := q.fits(c, asked); err != nil || !fits {
					if err != nil {
						return false, err
					}
					continue
				}
				e, err := entryOf(c)
				if err != nil {
					return false, err
				}
				out = append(out, e)
				size += proto.Size(e)
			}
			return len(out)+newer < limit && size < maxBytes, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// candidates returns where blocks begin that may hold what is asked for, newest first, which lie below an index: some of them, below which
// index others may be, and whether others may be at all.
func (s *Store) candidates(ctx context.Context, q Query, terms []uint64, below int64) (some []any, next int64, more bool, err error) {
	next = below
	for len(some) == 0 {
		list, err := s.sieve.below(ctx, s, next)
		if err != nil || len(list) == 0 {
			return nil, next, false, err
		}
		for _, o := range slices.Backward(list) {
			if uint64(o.last) < q.From || !q.Since.IsZero() && o.loggedLast < q.Since.UnixNano() {
				return some, next, false, nil // and so are all below
			}
			if next = o.first; !q.Until.IsZero() && o.logged >= q.Until.UnixNano() || !packed.MayHold(o.filter, terms) {
				continue
			}
			if some = append(some, o.first); len(some) == candidates {
				break
			}
		}
	}
	return some, next, true, nil
}

// terms are what a block has in its filter that holds an entry which fits, but for words.
func (q Query) terms() (out []uint64) {
	for _, t := range []struct {
		place byte
		value string
	}{
		{packed.PlaceRequest, q.RequestID}, {packed.PlaceOperation, q.OperationID}, {packed.PlaceTool, q.Tool}, {packed.PlaceSession, q.Session}, {packed.PlacePrincipal, q.Principal},
	} {
		if t.value != "" {
			out = append(out, packed.Term(t.place, t.value))
		}
	}
	switch {
	case q.Writer == "":
	case q.oneWriter():
		out = append(out, packed.Term(packed.PlaceWriter, q.Writer))
	default:
		out = append(out, packed.Term(packed.PlaceRole, q.Writer))
	}
	if q.Tier != optionsv1.Tier_TIER_UNSPECIFIED {
		out = append(out, packed.Numbered(packed.PlaceTier, uint64(q.Tier)))
	}
	if q.Channel != callv1.Channel_CHANNEL_UNSPECIFIED {
		out = append(out, packed.Numbered(packed.PlaceChannel, uint64(q.Channel)))
	}
	if len(q.Statuses) == 1 {
		out = append(out, packed.Numbered(packed.PlaceStatus, uint64(q.Statuses[0])))
	}
	return out
}

// fits reports whether an entry is among what is asked for; asked are the text's words.
func (q Query) fits(c *packed.Cell, asked []string) (bool, error) {
	is := func(asked, value string) bool { return asked == "" || asked == value }
	switch {
	case q.Before > 0 && c.Index >= q.Before, c.Index < q.From,
		!is(q.RequestID, c.Request), !is(q.OperationID, c.Operation), !is(q.Tool, c.Tool), !is(q.Session, c.Session), !is(q.Principal, c.Principal),
		q.Tier != 0 && uint64(q.Tier) != c.Tier, q.Channel != 0 && uint64(q.Channel) != c.Channel,
		len(q.Kinds) > 0 && !slices.Contains(q.Kinds, auditv1.Kind(int32(uint32(c.Kind)))),
		len(q.Statuses) > 0 && !slices.Contains(q.Statuses, auditv1.Status(int32(uint32(c.Status)))),
		!q.Since.IsZero() && c.Logged < q.Since.UnixNano(), !q.Until.IsZero() && c.Logged >= q.Until.UnixNano():
		return false, nil
	}
	if q.oneWriter() && c.Writer != q.Writer {
		return false, nil
	}
	if q.Writer != "" && !q.oneWriter() {
		if who, err := role(c.Writer); err != nil || who != q.Writer {
			return false, err
		}
	}
	if len(asked) == 0 {
		return q.Text == "", nil // signs alone are in no index
	}
	body, err := c.Body()
	if err != nil {
		return false, err
	}
	has := words.Of(body)
	return !slices.ContainsFunc(asked, func(word string) bool { return !slices.Contains(has, word) }), nil
}
