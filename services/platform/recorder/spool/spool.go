// Package spool keeps a recorder's spooled records in an SQLite file, for processes that have a disk of their own: the vault
// and every sink. It is apart from package recorder so that a process without a database can record too.
package spool

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/recorder"
)

// File is the name of the spool in a process's state folder.
const File = "spool.db"

//go:embed migrations/*.sql
var migrations embed.FS

// Store is a recorder.Store in an SQLite file of its own. A saved checkpoint is kept in memory until the next Commit, so that
// remembering it costs no fsync of its own; the recorder commits within a second.
type Store struct {
	db      *sql.DB
	place   database.Place
	mu      sync.Mutex
	pending []byte
}

// Open opens or makes the spool in the state folder.
func Open(ctx context.Context, stateDir string) (*Store, error) {
	schema, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(stateDir, File)
	db, err := database.Open(ctx, database.Config{
		Path: path, StateDir: stateDir, Migrations: schema, Service: "audit spool",
	})
	if err != nil {
		return nil, err
	}
	place, err := database.Locate(path)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Store{db: db, place: place}, nil
}

// LoadCheckpoint implements logproof.CheckpointStore.
func (s *Store) LoadCheckpoint(ctx context.Context) ([]byte, error) {
	var note []byte
	err := s.db.QueryRowContext(ctx, `SELECT note FROM checkpoint WHERE only = 1`).Scan(&note)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return note, err
}

// SaveCheckpoint implements logproof.CheckpointStore; see Store for when it is durable.
func (s *Store) SaveCheckpoint(_ context.Context, checkpoint []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = slices.Clone(checkpoint)
	return nil
}

// Load implements recorder.Store.
func (s *Store) Load(ctx context.Context) ([]recorder.Row, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id, sequence, queued, record FROM spool ORDER BY id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []recorder.Row
	for rows.Next() {
		var r recorder.Row
		var queued int64
		if err := rows.Scan(&r.ID, &r.Sequence, &queued, &r.Record); err != nil {
			return nil, err
		}
		r.Queued = time.Unix(0, queued)
		out = append(out, r)
	}
	return out, rows.Err()
}

// Commit implements recorder.Store.
func (s *Store) Commit(ctx context.Context, change recorder.Change) error {
	s.mu.Lock()
	checkpoint := s.pending
	s.mu.Unlock()
	// What is written to a file that was removed is lost with the process.
	if err := s.place.Check(); err != nil {
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	for _, r := range change.Add {
		if _, err := tx.ExecContext(ctx, `INSERT INTO spool (id, sequence, queued, record) VALUES (?, ?, ?, ?)`,
			r.ID, r.Sequence, r.Queued.UnixNano(), r.Record); err != nil {
			return fmt.Errorf("add to the spool: %w", err)
		}
	}
	for id, sequence := range change.Assign {
		if _, err := tx.ExecContext(ctx, `UPDATE spool SET sequence = ? WHERE id = ?`, sequence, id); err != nil {
			return fmt.Errorf("number the spool: %w", err)
		}
	}
	for _, id := range change.Remove {
		if _, err := tx.ExecContext(ctx, `DELETE FROM spool WHERE id = ?`, id); err != nil {
			return fmt.Errorf("shorten the spool: %w", err)
		}
	}
	if checkpoint != nil {
		if _, err := tx.ExecContext(ctx, `INSERT INTO checkpoint (only, note) VALUES (1, ?)
			ON CONFLICT (only) DO UPDATE SET note = excluded.note`, checkpoint); err != nil {
			return fmt.Errorf("keep the checkpoint: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(s.pending, checkpoint) {
		s.pending = nil
	}
	return nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }
