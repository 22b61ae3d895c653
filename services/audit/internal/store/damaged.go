package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/mod/sumdb/tlog"

	"durward.internal/services/audit/internal/store/packed"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/postgres"
)

// errStored is wrapped by the error of a row that is there and can be of no log.
var errStored = errors.New("what is stored is no part of a log")

// Damaged reports whether an error says that a part of the database is no longer what was written there, or cannot be read from its disk.
func Damaged(err error) bool {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		// Class XX is PostgreSQL's for damaged data and indexes, 58 for what the system below it refuses.
		return strings.HasPrefix(said.Code, "XX") || strings.HasPrefix(said.Code, "58")
	}
	return errors.Is(err, errStored) || errors.Is(err, packed.ErrBlock) || database.Unsound(err)
}

// OpenDamaged opens a database that Open refuses, for reading alone: what can be read of it is read.
func OpenDamaged(ctx context.Context, stateDir string) (*Store, error) {
	cfg := database.Config{Path: filepath.Join(stateDir, File), StateDir: stateDir, Service: "audit", Damaged: true}
	reader, err := database.OpenReader(ctx, cfg)
	if err != nil {
		return nil, err
	}
	engine := &sqlite{db: reader, reader: reader, path: cfg.Path}
	return (&Store{engine: engine, tail: &tail{db: engine}}).salvage(ctx), nil
}

// OpenDamagedPostgres is OpenPostgres for reading alone, where what waits to be moved to the tables may be damaged: it stays where it is, and
// what can be read of it is read. Nobody writes the log before it is closed; ErrFollows: somebody does now.
func OpenDamagedPostgres(ctx context.Context, settings postgres.Settings, logger *slog.Logger) (*Store, error) {
	engine, err := openServer(ctx, settings, logger)
	if err != nil {
		return nil, err
	}
	if engine.sole, err = engine.Sole(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("the log to be copied: %w: stop every audit process first", err), engine.Close())
	}
	return (&Store{engine: engine, tail: &tail{db: engine}}).salvage(ctx), nil
}

// salvage reads of the tail what can be read, has it stay there, and returns the store.
func (s *Store) salvage(ctx context.Context) *Store {
	s.tail.fixed = true
	waiting, _ := s.unmoved(ctx) // what cannot be read of it is missing, and so is what follows nothing
	_, unknown := s.tables().Head(ctx)
	for n := range waiting {
		end, err := s.end(ctx, waiting[:n+1])
		if unknown == nil && (err != nil || end.Hashes != tlog.StoredHashCount(end.Entries)) {
			break
		}
		s.tail.waiting = waiting[:n+1]
	}
	return s
}

// Unread is how many entries the log had that Head does not count, since what waits to be moved to the tables cannot be read.
func (s *Store) Unread(ctx context.Context) (uint64, error) {
	head, err := s.Head(ctx)
	if err != nil {
		return 0, err
	}
	var size int64
	err = s.row(ctx, `SELECT COALESCE(MAX(size), 0) FROM tail`, nil, &size)
	return uint64(max(size-head.Entries, 0)), err
}

// Extent is how many entries there are or were, by whatever of the database can be read.
func (s *Store) Extent(ctx context.Context) (uint64, error) {
	var most int64
	waiting, failed := s.unsettled(ctx)
	for _, b := range waiting {
		most = max(most, int64(b.Entries[len(b.Entries)-1].GetIndex())+1)
	}
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
