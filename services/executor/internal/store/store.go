// Package store is the executor's own durable memory, one small SQLite file: spent keys with their outcomes, uses of
// humans' statements, and the panic switch. It is the platform's sink.Store. It trusts its own file and nobody's word for
// what is in it; every change is on disk when a method returns.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/sink"
)

// File is the database's name in the state folder.
const File = "executor.db"

//go:embed migrations/*.sql
var migrations embed.FS

// Store implements sink.Store.
type Store struct {
	db *sql.DB

	lookup, use, spend, finish *sql.Stmt
}

var _ sink.Store = (*Store)(nil)

// Open opens or makes the store in the state folder. The caller closes it.
func Open(ctx context.Context, stateDir string) (*Store, error) {
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("executor store: %w", err)
	}
	db, err := database.Open(ctx, database.Config{
		Path: filepath.Join(stateDir, File), StateDir: stateDir, Migrations: sub, Service: "executor",
	})
	if err != nil {
		return nil, err
	}
	s := &Store{db: db}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

const columns = `key, operation, use, tool, arguments, arguments_digest, request_id, principal, session, channel, dangerous,
	statement, spent_at, keep_until, state, ok, response, fault, outcome, found`

// prepare is for what every call runs.
func (s *Store) prepare(ctx context.Context) error {
	if err := database.Prepare(ctx, s.db, map[**sql.Stmt]string{
		&s.lookup: `SELECT ` + columns + ` FROM spent WHERE key = ?`,
		&s.use: `INSERT INTO statement_use (digest, used, keep_until) VALUES (?, 1, ?)
			ON CONFLICT (digest) DO UPDATE SET used = used + 1 RETURNING used`,
		&s.spend: `INSERT INTO spent (key, operation, use, tool, arguments, arguments_digest, request_id, principal,
			session, channel, dangerous, statement, spent_at, keep_until, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (key) DO NOTHING`,
		&s.finish: `UPDATE spent SET state = ?, ok = ?, response = ?, fault = ?, outcome = ?, found = ?
			WHERE key = ? AND state = ?`,
	}); err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	return nil
}

// Lookup implements sink.Store.
func (s *Store) Lookup(ctx context.Context, key string) (*sink.Entry, error) {
	found, err := entries(s.lookup.QueryContext(ctx, key))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// Interrupted implements sink.Store.
func (s *Store) Interrupted(ctx context.Context) ([]*sink.Entry, error) {
	return entries(s.db.QueryContext(ctx, `SELECT `+columns+` FROM spent WHERE settled = 0 AND state = ? ORDER BY spent_at`, string(sink.StateSpent)))
}

// Unsettled implements sink.Store.
func (s *Store) Unsettled(ctx context.Context) ([]*sink.Entry, error) {
	return entries(s.db.QueryContext(ctx, `SELECT `+columns+` FROM spent WHERE settled = 0 AND state IN ('done', 'not acted', 'unknown') ORDER BY spent_at LIMIT 1000`))
}

// entries reads the answer to a query for columns.
func entries(rows *sql.Rows, err error) ([]*sink.Entry, error) {
	if err != nil {
		return nil, fmt.Errorf("executor store: %w", err)
	}
	defer rows.Close()
	var out []*sink.Entry
	for rows.Next() {
		var e sink.Entry
		var channel int32
		var statement []byte
		var at, until int64
		if err := rows.Scan(&e.Key, &e.Operation, &e.Use, &e.Tool, &e.Arguments, &e.ArgumentsDigest, &e.RequestID, &e.Principal,
			&e.Session, &channel, &e.Dangerous, &statement, &at, &until, &e.State, &e.OK, &e.Response, &e.Fault, &e.Outcome,
			&e.Found); err != nil {
			return nil, fmt.Errorf("executor store: %w", err)
		}
		e.Channel = callv1.Channel(channel)
		e.At, e.Until = time.Unix(0, at), time.Unix(0, until)
		if len(statement) == 32 {
			e.Statement = &sink.Use{Digest: [32]byte(statement)}
		}
		out = append(out, &e)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("executor store: %w", err)
	}
	return out, nil
}

// Spend implements sink.Store.
func (s *Store) Spend(ctx context.Context, p *sink.Spend) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	var statement []byte
	if p.Statement != nil {
		statement = p.Statement.Digest[:]
		var used int
		// The transaction's end closes the statements that are made for it.
		err := tx.StmtContext(ctx, s.use).QueryRowContext(ctx, statement, p.Statement.Until.UnixNano()).Scan(&used)
		if err != nil {
			return fmt.Errorf("executor store: %w", err)
		}
		if used > p.Statement.Limit {
			return sink.ErrUsedUp
		}
	}
	done, err := tx.StmtContext(ctx, s.spend).ExecContext(ctx,
		p.Key, p.Operation, p.Use, p.Tool, p.Arguments, p.ArgumentsDigest, p.RequestID, p.Principal, p.Session, int32(p.Channel),
		p.Dangerous, statement, p.At.UnixNano(), p.Until.UnixNano(), string(sink.StateSpent))
	if err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	if n, err := done.RowsAffected(); err != nil {
		return fmt.Errorf("executor store: %w", err)
	} else if n == 0 {
		return sink.ErrSpent
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	return nil
}

// ErrNotOpen is returned by Finish for a key that is not in StateSpent.
var ErrNotOpen = errors.New("executor store: the key is not waiting for an outcome")

// Finish implements sink.Store.
func (s *Store) Finish(ctx context.Context, key string, r *sink.Result) error {
	done, err := s.finish.ExecContext(ctx, string(r.State), r.OK, r.Response, r.Fault, r.Outcome, r.Found, key, string(sink.StateSpent))
	if err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	if n, err := done.RowsAffected(); err != nil {
		return fmt.Errorf("executor store: %w", err)
	} else if n == 0 {
		return ErrNotOpen
	}
	return nil
}

// Settled implements sink.Store.
func (s *Store) Settled(ctx context.Context, keys []string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	for _, key := range keys {
		if _, err := tx.ExecContext(ctx, `UPDATE spent SET settled = 1 WHERE key = ?`, key); err != nil {
			return fmt.Errorf("executor store: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	return nil
}

// Purge implements sink.Store.
func (s *Store) Purge(ctx context.Context, now time.Time) error {
	if _, err := s.db.ExecContext(ctx, `DELETE FROM spent WHERE settled = 1 AND keep_until < ?`, now.UnixNano()); err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	if _, err := s.db.ExecContext(ctx, `DELETE FROM statement_use WHERE keep_until < ?`, now.UnixNano()); err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	return nil
}

// Control implements sink.Store.
func (s *Store) Control(ctx context.Context) (sink.Control, error) {
	var c sink.Control
	err := s.db.QueryRowContext(ctx, `SELECT epoch, halted FROM control WHERE only = 1`).Scan(&c.Epoch, &c.Halted)
	if err != nil {
		return sink.Control{}, fmt.Errorf("executor store: %w", err)
	}
	return c, nil
}

// SetControl implements sink.Store.
func (s *Store) SetControl(ctx context.Context, c sink.Control) error {
	if c.Epoch > math.MaxInt64 {
		return errors.New("executor store: the epoch is out of range")
	}
	if _, err := s.db.ExecContext(ctx, `UPDATE control SET epoch = ?, halted = ? WHERE only = 1`, int64(c.Epoch), c.Halted); err != nil {
		return fmt.Errorf("executor store: %w", err)
	}
	return nil
}
