package recorder

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

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

// Store is where a recorder keeps spooled records: memory, or the one on a disk in package spool. The recorder calls Commit from two goroutines, never at once.
type Store interface {
	logproof.CheckpointStore
	// Load returns every row, by ID, and how many there were after the last Commit; -1 where that is gone.
	Load(ctx context.Context) (rows []Row, kept int, err error)
	// Commit applies the whole change durably, or none of it. It also makes the saved checkpoints durable.
	Commit(ctx context.Context, change Change) error
	Close() error
}

// memoryStore is a Store that dies with the process: for tests, and for a process that keeps nothing on a disk and would
// rather lose records of reads than have one.
type memoryStore struct {
	mu          sync.Mutex
	rows        map[uint64]Row
	checkpoints map[logproof.Kept][]byte
}

// newMemoryStore returns an empty store.
func newMemoryStore() *memoryStore {
	return &memoryStore{rows: map[uint64]Row{}, checkpoints: map[logproof.Kept][]byte{}}
}

// LoadCheckpoint implements logproof.CheckpointStore.
func (m *memoryStore) LoadCheckpoint(_ context.Context, which logproof.Kept) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.checkpoints[which]), nil
}

// SaveCheckpoint implements logproof.CheckpointStore.
func (m *memoryStore) SaveCheckpoint(_ context.Context, which logproof.Kept, checkpoint []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checkpoints[which] = slices.Clone(checkpoint)
	return nil
}

// Load implements Store.
func (m *memoryStore) Load(context.Context) (rows []Row, kept int, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rows = slices.Collect(maps.Values(m.rows))
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.ID, b.ID) })
	return rows, len(rows), nil
}

// Commit implements Store.
func (m *memoryStore) Commit(_ context.Context, change Change) error {
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
func (m *memoryStore) Close() error { return nil }
