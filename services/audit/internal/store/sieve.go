package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
)

const (
	// outlinesAtOnce is how many blocks' outlines are read at once, and outlinesKept how many bytes are kept of them.
	outlinesAtOnce = 1024
	outlinesKept   = 16 << 20
)

// outline is a block without what is in it.
type outline struct {
	first, last, logged, loggedLast int64
	filter                          []byte
}

// sieve keeps the newest blocks' outlines, so that a search reads from the database what may hold what it looks for, and no filters: to
// read those of a million reads costs more than all else that a search does. The database is asked for what came since. A block that is
// not the newest one grows no more; pruning writes it anew, and has the sieve forget all.
type sieve struct {
	mu sync.Mutex
	// newest may grow; nil: nothing is kept. closed are the blocks before it, in order and without a gap. An element does not change.
	newest *outline
	closed []outline
	bytes  int
	// whole: there are no blocks before these.
	whole bool
}

// forget has everything read again.
func (v *sieve) forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.clear()
}

func (v *sieve) clear() { v.newest, v.closed, v.bytes, v.whole = nil, nil, 0, false }

// below returns blocks that begin below an index, in order and without a gap up to there: some, unless there are none.
func (v *sieve) below(ctx context.Context, s *Store, index int64) ([]outline, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.newest == nil || index > v.newest.first {
		if err := v.renew(ctx, s); err != nil || v.newest == nil {
			return nil, err
		}
		if index > v.newest.first {
			return []outline{*v.newest}, nil
		}
	}
	for !v.whole && v.bytes < outlinesKept && v.oldest() >= index {
		older, err := s.outlines(ctx, `WHERE first < ? ORDER BY first DESC LIMIT ?`, v.oldest(), int64(outlinesAtOnce))
		if err != nil {
			return nil, err
		}
		slices.Reverse(older)
		v.closed, v.whole = slices.Concat(older, v.closed), len(older) < outlinesAtOnce
		for _, o := range older {
			v.bytes += o.size()
		}
	}
	n, _ := slices.BinarySearchFunc(v.closed, index, func(o outline, index int64) int { return cmp.Compare(o.first, index) })
	if n > 0 || v.whole {
		return v.closed[:n:n], nil
	}
	older, err := s.outlines(ctx, `WHERE first < ? ORDER BY first DESC LIMIT ?`, index, int64(outlinesAtOnce))
	slices.Reverse(older)
	return older, err
}

// oldest is where the first block begins that is kept.
func (v *sieve) oldest() int64 {
	if len(v.closed) > 0 {
		return v.closed[0].first
	}
	return v.newest.first
}

// renew reads what became of the newest block, and those behind it.
func (v *sieve) renew(ctx context.Context, s *Store) error {
	if v.newest != nil {
		list, err := s.outlines(ctx, `WHERE first >= ? ORDER BY first`, v.newest.first)
		if err != nil {
			return err
		}
		if len(list) > 0 && list[0].first == v.newest.first && list[0].last >= v.newest.last {
			last := len(list) - 1
			for _, o := range list[:last] {
				v.closed, v.bytes = append(v.closed, o), v.bytes+o.size()
			}
			v.newest = &list[last]
			if v.bytes > 2*outlinesKept {
				v.clear()
			}
		} else {
			v.clear() // a database that fell behind is another one
		}
	}
	if v.newest == nil {
		list, err := s.outlines(ctx, `ORDER BY first DESC LIMIT 1`)
		if err != nil || len(list) == 0 {
			return err
		}
		v.newest = &list[0]
	}
	return nil
}

func (o *outline) size() int { return 64 + len(o.filter) }

func (s *Store) outlines(ctx context.Context, which string, args ...any) (list []outline, err error) {
	err = s.each(ctx, `SELECT first, last, logged, logged_last, filter FROM blocks `+which, args, func(scan func(...any) error) (bool, error) {
		var o outline
		if err := scan(&o.first, &o.last, &o.logged, &o.loggedLast, &o.filter); err != nil {
			return false, fmt.Errorf("%w: %w", errStored, err)
		}
		list = append(list, o)
		return true, nil
	})
	return list, err
}
