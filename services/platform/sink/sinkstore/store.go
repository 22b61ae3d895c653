// Package sinkstore is a sink's own durable memory, one small SQLite file: spent keys with their outcomes, uses of humans'
// statements, and the panic switch. It is the sink.Store of every sink; one with more to remember keeps its tables in the same file. It
// trusts its own file and nobody's word for what is in it; every change is on disk when a method returns.
package sinkstore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/sink"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Store implements sink.Store.
type Store struct {
	// DB is the whole file, for the tables that a sink adds.
	DB    *sql.DB
	seals *database.Seals

	lookup, use, spend, finish, settled *sql.Stmt
}

var _ sink.Store = (*Store)(nil)

// Config says where a store is and what else is in it.
type Config struct {
	// Service is the sink's name: the file is SERVICE.db in the state folder StateDir.
	Service, StateDir string
	// Migrations make all tables, the sink's own among them; nil: those of this package alone.
	Migrations fs.FS
	// Tables are those of a sink's own that are sealed as this package's are.
	Tables []string
}

// Open opens or makes the store in the state folder. The caller closes it.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if cfg.Migrations == nil {
		cfg.Migrations = database.Embedded(migrations, "migrations")
	}
	db, seals, err := database.OpenSealed(ctx, database.Config{
		Path: filepath.Join(cfg.StateDir, cfg.Service+".db"), StateDir: cfg.StateDir, Migrations: cfg.Migrations, Service: cfg.Service,
	}, append([]string{"spent", "statement_use", "control"}, cfg.Tables...)...)
	if err != nil {
		return nil, err
	}
	s := &Store{DB: db, seals: seals}
	if err := errors.Join(s.distrust(ctx), s.prepare(ctx)); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// distrust halts a switch that does not bear its seal, or is not there: its epoch says nothing.
func (s *Store) distrust(ctx context.Context) error {
	if len(s.seals.Damage()) == 0 {
		return nil
	}
	return s.Within(ctx, func(tx *sql.Tx) error {
		var sound bool
		err := tx.QueryRowContext(ctx, `SELECT `+s.seals.Sound("control")+` FROM control WHERE only = 1`).Scan(&sound) // #nosec G202 -- constants
		if sound || err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM control; INSERT INTO control (only, epoch, halted) VALUES (1, 1, 1)`)
		return err
	})
}

// Damage names rows that do not bear their seals; what acts by the store is halted before Accept takes them as they are.
func (s *Store) Damage() []string { return s.seals.Damage() }

// Accept seals every row as it is.
func (s *Store) Accept(ctx context.Context) error { return s.seals.Accept(ctx) }

// State implements sink.Store.
func (s *Store) State(ctx context.Context) (recorder.State, error) {
	state, err := s.seals.State(ctx)
	return recorder.State(state), err
}

// Probe returns an error while the store cannot be written.
func (s *Store) Probe(ctx context.Context) error { return database.Probe(ctx, s.DB) }

// Close closes the file.
func (s *Store) Close() error { return s.DB.Close() }

const columns = `key, operation, use, tool, arguments, arguments_digest, request_id, principal, session, channel, dangerous,
	statement, spent_at, keep_until, state, ok, response, fault, outcome, found`

// prepare is for what every call runs.
func (s *Store) prepare(ctx context.Context) error {
	return failed(database.Prepare(ctx, s.DB, map[**sql.Stmt]string{
		&s.lookup: `SELECT ` + columns + `, ` + s.seals.Sound("spent") + ` FROM spent WHERE key = ?`,
		&s.use: `INSERT INTO statement_use (digest, used, keep_until) VALUES (?, 1, ?)
			ON CONFLICT (digest) DO UPDATE SET used = used + 1 RETURNING used`,
		&s.spend: `INSERT INTO spent (key, operation, use, tool, arguments, arguments_digest, request_id, principal,
			session, channel, dangerous, statement, spent_at, keep_until, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (key) DO NOTHING`,
		&s.finish: `UPDATE spent SET state = ?, ok = ?, response = ?, fault = ?, outcome = ?, found = ?
			WHERE key = ? AND state = ?`,
		&s.settled: `UPDATE spent SET settled = 1 WHERE key = ?`,
	}))
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
	return entries(s.DB.QueryContext(ctx, `SELECT `+columns+`, `+s.seals.Sound("spent")+` FROM spent WHERE settled = 0 AND state = ? ORDER BY spent_at`, string(sink.StateSpent)))
}

// Unsettled implements sink.Store.
func (s *Store) Unsettled(ctx context.Context) ([]*sink.Entry, error) {
	return entries(s.DB.QueryContext(ctx, `SELECT `+columns+`, `+s.seals.Sound("spent")+` FROM spent WHERE settled = 0 AND state IN ('done', 'not acted', 'unknown') ORDER BY spent_at LIMIT 1000`))
}

// entries reads the answer to a query for columns.
func entries(rows *sql.Rows, err error) ([]*sink.Entry, error) {
	if err != nil {
		return nil, failed(err)
	}
	defer rows.Close()
	var out []*sink.Entry
	for rows.Next() {
		var e sink.Entry
		var channel int32
		var statement []byte
		var at, until int64
		var sound bool
		if err := rows.Scan(&e.Key, &e.Operation, &e.Use, &e.Tool, &e.Arguments, &e.ArgumentsDigest, &e.RequestID, &e.Principal,
			&e.Session, &channel, &e.Dangerous, &statement, &at, &until, &e.State, &e.OK, &e.Response, &e.Fault, &e.Outcome,
			&e.Found, &sound); err != nil {
			return nil, failed(err)
		}
		if !sound {
			return nil, fmt.Errorf("sink store: the spent key %s does not bear its seal: %w", clean.Line(e.Key, 100), database.ErrDamaged)
		}
		e.Channel = callv1.Channel(channel)
		e.At, e.Until = time.Unix(0, at), time.Unix(0, until)
		if len(statement) == 32 {
			e.Statement = &sink.Use{Digest: [32]byte(statement)}
		}
		out = append(out, &e)
	}
	return out, failed(rows.Err())
}

// Knows implements sink.Store.
func (s *Store) Knows(ctx context.Context, operation string) (known bool, err error) {
	err = s.DB.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM spent WHERE operation = ?)`, operation).Scan(&known)
	return known, failed(err)
}

// Spend implements sink.Store.
func (s *Store) Spend(ctx context.Context, p *sink.Spend) error {
	tx, err := s.DB.BeginTx(ctx, nil)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	var statement []byte
	if p.Statement != nil {
		statement = p.Statement.Digest[:]
		var used int
		// The transaction's end closes the statements that are made for it.
		err := tx.StmtContext(ctx, s.use).QueryRowContext(ctx, statement, p.Statement.Until.UnixNano()).Scan(&used)
		if err != nil {
			return failed(err)
		}
		if used > p.Statement.Limit {
			return sink.ErrUsedUp
		}
	}
	done, err := tx.StmtContext(ctx, s.spend).ExecContext(ctx,
		p.Key, p.Operation, p.Use, p.Tool, p.Arguments, p.ArgumentsDigest, p.RequestID, p.Principal, p.Session, int32(p.Channel),
		p.Dangerous, statement, p.At.UnixNano(), p.Until.UnixNano(), string(sink.StateSpent))
	if err != nil {
		return failed(err)
	}
	if n, err := done.RowsAffected(); err != nil {
		return failed(err)
	} else if n == 0 {
		return sink.ErrSpent
	}
	return failed(tx.Commit())
}

// EndStatement implements sink.Store.
func (s *Store) EndStatement(ctx context.Context, digest [32]byte, until time.Time) error {
	_, err := s.DB.ExecContext(ctx, `INSERT INTO statement_use (digest, used, keep_until) VALUES (?, ?, ?)
		ON CONFLICT (digest) DO UPDATE SET used = excluded.used`, digest[:], usedUp, until.UnixNano())
	return failed(err)
}

// usedUp is more often than any statement may be used.
const usedUp = 1 << 30

// ErrNotOpen is returned by Finish for a key that is not in StateSpent.
var ErrNotOpen = errors.New("sink store: the key is not waiting for an outcome")

// Finish implements sink.Store.
func (s *Store) Finish(ctx context.Context, key string, r *sink.Result) error {
	done, err := s.finish.ExecContext(ctx, string(r.State), r.OK, r.Response, r.Fault, r.Outcome, r.Found, key, string(sink.StateSpent))
	if err != nil {
		return failed(err)
	}
	if n, err := done.RowsAffected(); err != nil {
		return failed(err)
	} else if n == 0 {
		return ErrNotOpen
	}
	return nil
}

// Settled implements sink.Store.
func (s *Store) Settled(ctx context.Context, keys []string) error {
	return s.Within(ctx, func(tx *sql.Tx) error {
		for _, key := range keys {
			if _, err := tx.StmtContext(ctx, s.settled).ExecContext(ctx, key); err != nil {
				return err
			}
		}
		return nil
	})
}

// Purge implements sink.Store.
func (s *Store) Purge(ctx context.Context, now time.Time) error {
	if _, err := s.DB.ExecContext(ctx, `DELETE FROM spent WHERE settled = 1 AND keep_until < ?`, now.UnixNano()); err != nil {
		return failed(err)
	}
	_, err := s.DB.ExecContext(ctx, `DELETE FROM statement_use WHERE keep_until < ?`, now.UnixNano())
	return failed(err)
}

// Control implements sink.Store.
func (s *Store) Control(ctx context.Context) (sink.Control, error) {
	var c sink.Control
	var at int64
	err := s.DB.QueryRowContext(ctx, `SELECT epoch, halted, reason, changed_by, changed_at FROM control WHERE only = 1`).
		Scan(&c.Epoch, &c.Halted, &c.Reason, &c.By, &at)
	if err != nil {
		return sink.Control{}, failed(err)
	}
	if at != 0 {
		c.At = time.Unix(0, at)
	}
	return c, nil
}

// SetControl implements sink.Store.
func (s *Store) SetControl(ctx context.Context, c sink.Control) error {
	var at int64
	if !c.At.IsZero() {
		at = c.At.UnixNano()
	}
	_, err := s.DB.ExecContext(ctx, `UPDATE control SET epoch = ?, halted = ?, reason = ?, changed_by = ?, changed_at = ? WHERE only = 1`,
		c.Epoch, c.Halted, c.Reason, c.By, at)
	return failed(err)
}

// Within runs f in one transaction.
func (s *Store) Within(ctx context.Context, f func(*sql.Tx) error) error {
	return failed(database.Within(ctx, s.DB, f))
}

// failed is an error with the store's name, or nil.
func failed(err error) error {
	if err != nil {
		return fmt.Errorf("sink store: %w", err)
	}
	return nil
}
