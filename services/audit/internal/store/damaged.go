package store

import (
	"context"
	"errors"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"durward.internal/services/platform/database"
)

// errStored is wrapped by the error of a row that is there and can be of no log.
var errStored = errors.New("what is stored is no part of a log")

// Damaged reports whether an error says that a part of the database is no longer what was written there, or cannot be read from its disk.
func Damaged(err error) bool {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		// Class XX is PostgreSQL's for damaged data and indexes, 58 for what the system below it refuses.
		return strings.HasPrefix(said.Code, "XX") || strings.HasPrefix(said.Code, "58")
	}
	return errors.Is(err, errStored) || database.Unsound(err)
}

// OpenDamaged opens a database that Open refuses, for reading alone: what can be read of it is read.
func OpenDamaged(ctx context.Context, stateDir string) (*Store, error) {
	cfg := database.Config{Path: filepath.Join(stateDir, File), StateDir: stateDir, Service: "audit", Damaged: true}
	reader, err := database.OpenReader(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Store{engine: &sqlite{db: reader, reader: reader, path: cfg.Path}}, nil
}

// Extent is how many entries there are or were, by whatever of the database can be read.
func (s *Store) Extent(ctx context.Context) (uint64, error) {
	var most int64
	var failed error
	for _, query := range []string{`SELECT COALESCE(MAX(size), 0) FROM checkpoints`, `SELECT COALESCE(MAX(idx) + 1, 0) FROM entries`, `SELECT COALESCE(MAX(last) + 1, 0) FROM blocks`} {
		var n int64
		if err := s.row(ctx, query, nil, &n); err != nil {
			failed = errors.Join(failed, err)
		}
		most = max(most, n)
	}
	if most > 0 {
		failed = nil
	}
	return uint64(most), failed
}
