// Package spool keeps a recorder's spooled records in an SQLite file, for processes that have a disk of their own: the vault
// and every sink. It is apart from package recorder so that a process without a database can record too.
package spool

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/recorder"
)

// File is the name of the spool in a process's state folder.
const File = "spool.db"

//go:embed migrations/*.sql
var migrations embed.FS

// Store is a recorder.Store in an SQLite file of its own. Saved checkpoints are kept in memory until the next Commit, so that
// remembering them costs no fsync of its own; the recorder commits within a second.
type Store struct {
	db    *sql.DB
	place database.Place

	add, number, remove, keep, count *sql.Stmt
	// rows is how many the spool has. Load's and Commit's, which are never called at once.
	rows int

	mu sync.Mutex
	// pending are the checkpoints that wait, by their place in the table.
	pending map[logproof.Kept][]byte
}

// Open opens or makes the spool in the state folder.
func Open(ctx context.Context, stateDir string) (*Store, error) {
	path := filepath.Join(stateDir, File)
	db, err := database.Open(ctx, database.Config{
		Path: path, StateDir: stateDir, Migrations: database.Embedded(migrations, "migrations"), Service: "audit spool", Alone: true,
	})
	if err != nil {
		return nil, err
	}
	s := &Store{db: db, pending: map[logproof.Kept][]byte{}}
	s.place, err = database.Locate(path)
	if err = errors.Join(err, database.Prepare(ctx, db, map[**sql.Stmt]string{
		&s.add:    `INSERT INTO spool (id, sequence, queued, record) VALUES (?, ?, ?, ?)`,
		&s.number: `UPDATE spool SET sequence = ? WHERE id = ?`,
		&s.remove: `DELETE FROM spool WHERE id = ?`,
		&s.keep: `INSERT INTO checkpoint (only, note) VALUES (?, ?)
			ON CONFLICT (only) DO UPDATE SET note = excluded.note`,
		&s.count: `INSERT OR REPLACE INTO kept (only, rows) VALUES (1, ?)`,
	})); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// LoadCheckpoint implements logproof.CheckpointStore.
func (s *Store) LoadCheckpoint(ctx context.Context, which logproof.Kept) ([]byte, error) {
	var note []byte
	err := s.db.QueryRowContext(ctx, `SELECT note FROM checkpoint WHERE only = ?`, which).Scan(&note)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return note, err
}

// SaveCheckpoint implements logproof.CheckpointStore; see Store for when it is durable.
func (s *Store) SaveCheckpoint(_ context.Context, which logproof.Kept, checkpoint []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending[which] = slices.Clone(checkpoint)
	return nil
}

// Load implements recorder.Store.
func (s *Store) Load(ctx context.Context) (out []recorder.Row, kept int, err error) {
	if err := s.db.QueryRowContext(ctx, `SELECT coalesce((SELECT rows FROM kept), -1)`).Scan(&kept); err != nil {
		return nil, 0, err
	}
	err = database.Each(ctx, s.db, func(scan func(...any) error) error {
		var r recorder.Row
		var queued int64
		err := scan(&r.ID, &r.Sequence, &queued, &r.Record)
		r.Queued = time.Unix(0, queued)
		out = append(out, r)
		return err
	}, `SELECT id, sequence, queued, record FROM spool ORDER BY id`)
	s.rows = len(out)
	return out, kept, err
}

// Commit implements recorder.Store.
func (s *Store) Commit(ctx context.Context, change recorder.Change) error {
	s.mu.Lock()
	checkpoints := maps.Clone(s.pending)
	s.mu.Unlock()
	// What is written to a file that was removed is lost with the process.
	if err := s.place.Check(); err != nil {
		return err
	}
	rows := 0
	err := database.Within(ctx, s.db, func(tx *sql.Tx) error {
		rows = s.rows + len(change.Add)
		// The transaction's end closes the statements that are made for it.
		run := func(stmt *sql.Stmt, args ...any) (changed int64, err error) {
			done, err := tx.StmtContext(ctx, stmt).ExecContext(ctx, args...)
			if err != nil {
				return 0, err
			}
			return done.RowsAffected()
		}
		for _, r := range change.Add {
			if _, err := run(s.add, r.ID, r.Sequence, r.Queued.UnixNano(), r.Record); err != nil {
				return fmt.Errorf("add to the spool: %w", err)
			}
		}
		for id, sequence := range change.Assign {
			if _, err := run(s.number, sequence, id); err != nil {
				return fmt.Errorf("number the spool: %w", err)
			}
		}
		for _, id := range change.Remove {
			removed, err := run(s.remove, id)
			if err != nil {
				return fmt.Errorf("shorten the spool: %w", err)
			}
			rows -= int(removed)
		}
		for which, checkpoint := range checkpoints {
			if _, err := run(s.keep, which, checkpoint); err != nil {
				return fmt.Errorf("keep the checkpoint: %w", err)
			}
		}
		if _, err := run(s.count, rows); err != nil {
			return fmt.Errorf("count the spool: %w", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.rows = rows
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.pending, func(which logproof.Kept, waits []byte) bool { return slices.Equal(waits, checkpoints[which]) })
	return nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }
