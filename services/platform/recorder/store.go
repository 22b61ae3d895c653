package recorder

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
	"durward.internal/services/platform/logproof"
)

// Row is one spooled record.
type Row struct {
	// ID orders the spool; it is the recorder's own and unique in the store.
	ID uint64
	// Sequence is the number under which the record was last sent; 0: it was not.
	Sequence uint64
	Queued   time.Time
	// Record is a serialised auditv1.Record without its sequence.
	Record []byte
}

// Change is what one Commit does. Rows of Add are new; Assign sets the sequence of rows that are there; rows that are not
// there are ignored by Assign and Remove.
type Change struct {
	Add    []Row
	Assign map[uint64]uint64
	Remove []uint64
}

// Store is where a recorder keeps spooled records. The recorder calls Commit from two goroutines, never at once.
type Store interface {
	logproof.CheckpointStore
	// Load returns every row, by ID.
	Load(ctx context.Context) ([]Row, error)
	// Commit applies the whole change durably, or none of it. It also makes the saved checkpoint durable.
	Commit(ctx context.Context, change Change) error
	Close() error
}

// SpoolFile is the name of the spool in a process's state folder.
const SpoolFile = "spool.db"

//go:embed migrations/*.sql
var migrations embed.FS

// SQLStore is a Store in an SQLite file of its own. A saved checkpoint is kept in memory until the next Commit, so that
// remembering it costs no fsync of its own; the recorder commits within a second.
type SQLStore struct {
	db      *sql.DB
	mu      sync.Mutex
	pending []byte
}

// OpenStore opens or makes the spool in the state folder.
func OpenStore(ctx context.Context, stateDir string) (*SQLStore, error) {
	schema, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	db, err := database.Open(ctx, database.Config{
		Path: filepath.Join(stateDir, SpoolFile), StateDir: stateDir, Migrations: schema, Service: "audit spool",
	})
	if err != nil {
		return nil, err
	}
	return &SQLStore{db: db}, nil
}

// LoadCheckpoint implements logproof.CheckpointStore.
func (s *SQLStore) LoadCheckpoint(ctx context.Context) ([]byte, error) {
	var note []byte
	err := s.db.QueryRowContext(ctx, `SELECT note FROM checkpoint WHERE only = 1`).Scan(&note)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return note, err
}

// SaveCheckpoint implements logproof.CheckpointStore; see SQLStore for when it is durable.
func (s *SQLStore) SaveCheckpoint(_ context.Context, checkpoint []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = slices.Clone(checkpoint)
	return nil
}

// Load implements Store.
func (s *SQLStore) Load(ctx context.Context) ([]Row, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id, sequence, queued, record FROM spool ORDER BY id`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Row
	for rows.Next() {
		var r Row
		var queued int64
		if err := rows.Scan(&r.ID, &r.Sequence, &queued, &r.Record); err != nil {
			return nil, err
		}
		r.Queued = time.Unix(0, queued)
		out = append(out, r)
	}
	return out, rows.Err()
}

// Commit implements Store.
func (s *SQLStore) Commit(ctx context.Context, change Change) error {
	s.mu.Lock()
	checkpoint := s.pending
	s.mu.Unlock()
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
func (s *SQLStore) Close() error { return s.db.Close() }

// MemoryStore is a Store that dies with the process: for tests, and for a process that keeps nothing on a disk and would
// rather lose records of reads than have one.
type MemoryStore struct {
	mu         sync.Mutex
	rows       map[uint64]Row
	checkpoint []byte
}

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore { return &MemoryStore{rows: map[uint64]Row{}} }

// LoadCheckpoint implements logproof.CheckpointStore.
func (m *MemoryStore) LoadCheckpoint(context.Context) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.checkpoint), nil
}

// SaveCheckpoint implements logproof.CheckpointStore.
func (m *MemoryStore) SaveCheckpoint(_ context.Context, checkpoint []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checkpoint = slices.Clone(checkpoint)
	return nil
}

// Load implements Store.
func (m *MemoryStore) Load(context.Context) ([]Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Row, 0, len(m.rows))
	for _, r := range m.rows {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Row) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return out, nil
}

// Commit implements Store.
func (m *MemoryStore) Commit(_ context.Context, change Change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range change.Add {
		m.rows[r.ID] = r
	}
	for id, sequence := range change.Assign {
		if r, ok := m.rows[id]; ok {
			r.Sequence = sequence
			m.rows[id] = r
		}
	}
	for _, id := range change.Remove {
		delete(m.rows, id)
	}
	return nil
}

// Close implements Store.
func (m *MemoryStore) Close() error { return nil }
