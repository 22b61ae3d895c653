package store

import (
	"context"
	"fmt"
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
	_, err := s.engine.(*sqlite).db.ExecContext(ctx, statement)
	return err
}
