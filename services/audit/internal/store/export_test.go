package store

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// LimitPages makes the disk full: the database may not grow by more than extra pages from here on; negative: it may.
func (s *Store) LimitPages(ctx context.Context, extra int) error {
	var pages, limit int
	if err := s.engine.(*sqlite).db.QueryRowContext(ctx, `PRAGMA page_count`).Scan(&pages); err != nil {
		return err
	}
	if limit = pages + extra; extra < 0 {
		limit = 1 << 30
	}
	// A PRAGMA takes no parameters; limit is a number.
	return s.engine.(*sqlite).db.QueryRowContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", limit)).Scan(&limit)
}

// Synchronous returns the setting under which commits are made: 2 is FULL.
func (s *Store) Synchronous(ctx context.Context) (level int, err error) {
	err = s.engine.(*sqlite).db.QueryRowContext(ctx, `PRAGMA synchronous`).Scan(&level)
	return level, err
}

// Alter does to the file what whoever can write it can do.
func (s *Store) Alter(ctx context.Context, statement string) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	_, err := s.engine.(*sqlite).db.ExecContext(ctx, statement)
	return err
}

// Blocks calls f with what is stored of each block, in order; what f returns is stored in its place, unless it is nil.
func (s *Store) Blocks(ctx context.Context, f func(data []byte) []byte) error {
	stored := map[int64][]byte{}
	if err := s.each(ctx, `SELECT first, data FROM packs ORDER BY first`, nil, func(scan func(...any) error) (bool, error) {
		var first int64
		var data []byte
		if err := scan(&first, &data); err != nil {
			return false, err
		}
		if data = f(data); data != nil {
			stored[first] = data
		}
		return true, nil
	}); err != nil {
		return err
	}
	for first, data := range stored {
		if _, err := s.engine.(*sqlite).db.ExecContext(ctx, `UPDATE packs SET data = ? WHERE first = ?`, data, first); err != nil {
			return err
		}
	}
	return nil
}

// Migrations are SQLite's.
var Migrations = migrations

// Outlined are the last entries of all blocks that begin below an index, newest first, as a search goes through them; full: what it keeps
// of them in memory has reached its bound.
func (s *Store) Outlined(ctx context.Context, index int64, full bool) (last []int64, err error) {
	if full {
		s.sieve.forget()
		s.sieve.bytes = outlinesKept
	}
	for {
		list, err := s.sieve.below(ctx, s, index)
		if err != nil || len(list) == 0 {
			return last, err
		}
		for _, o := range slices.Backward(list) {
			last, index = append(last, o.last), o.first
		}
	}
}

// Kept is how many blocks' filters are in memory, but for the newest.
func (s *Store) Kept() int { return len(s.sieve.closed) }

// Unsettled is how many batches wait in the tail; nothing moves them by itself from here on.
func (s *Store) Unsettled(ctx context.Context) (int, error) {
	s.SettleAfter(time.Hour)
	waiting, err := s.unsettled(ctx)
	return len(waiting), err
}

// SettleAfter is how long what comes from here on waits in the tail.
func (s *Store) SettleAfter(d time.Duration) {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	s.tail.after = d
}

// AlterTail is Alter before what waits is moved.
func (s *Store) AlterTail(ctx context.Context, statement string) error {
	_, err := s.engine.(*sqlite).db.ExecContext(ctx, statement)
	return err
}
