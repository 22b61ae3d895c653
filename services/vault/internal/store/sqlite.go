package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/reserve"
)

//go:embed migrations/*.sql
var files embed.FS

// File is the database's name in the state folder.
const File = "vault.db"

// Migrations are the schema's steps, for database.Open.
func Migrations() fs.FS { return database.Embedded(files, "migrations") }

// sealedTables returns the tables that carry authority.
func sealedTables() []string {
	var out []string
	for _, t := range tables {
		if t.sealed {
			out = append(out, t.name)
		}
	}
	return out
}

// sqlite is the engine of one process with a file.
type sqlite struct {
	db    *sql.DB
	seals *database.Seals
	// prepared are the statements of an operation's life, by their texts. It does not change.
	prepared map[string]*sql.Stmt
}

// Open opens or makes the database in the state folder, out of the reserve where the disk is full: a vault that could not start could
// not halt, refuse or take back either. When the disk is full the store gives the reserve up for what stops things: a halt, a refusal, an
// end of standing authority, what is in force of the rules, and calls of tools that take load off the host. Everything else is then refused
// with reserve.Refused.
func Open(ctx context.Context, stateDir string, kept *reserve.Reserve) (*Store, error) {
	var db *sql.DB
	var seals *database.Seals
	if err := kept.Write(true, func() (err error) {
		db, seals, err = database.OpenSealed(ctx, database.Config{
			Path: filepath.Join(stateDir, File), StateDir: stateDir, Migrations: Migrations(), Service: "the vault",
		}, sealedTables()...)
		return err
	}); err != nil {
		return nil, err
	}
	e := &sqlite{db: db, seals: seals}
	s := &Store{engine: e, kept: kept}
	if err := errors.Join(s.distrust(ctx), e.prepare(ctx)); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// prepare has SQLite parse once what every operation runs from its request to its end.
func (e *sqlite) prepare(ctx context.Context) error {
	e.prepared = map[string]*sql.Stmt{}
	for _, text := range []string{
		e.selects(operations, whereID), insertText(operations), insertText(statements), updateText(operations, allow(&Operation{}), whereState),
		e.selects(spent, whereSpent), insertText(spent), updateText(operations, run(Spend{}), whereState), updateText(operations, settled(false, 0), whereState),
	} {
		stmt, err := e.db.PrepareContext(ctx, text)
		if err != nil {
			return fmt.Errorf("prepare a statement: %w", err)
		}
		e.prepared[text] = stmt
	}
	return nil
}

func (e *sqlite) close() error { return e.db.Close() }

// hold and lasts: no other process leads, since each has its state folder to itself.
func (e *sqlite) hold(ctx context.Context) error { <-ctx.Done(); return nil }
func (e *sqlite) lasts() bool                    { return true }

func (e *sqlite) probe(ctx context.Context) error { return database.Probe(ctx, e.db) }

func (e *sqlite) damage() []string { return e.seals.Damage() }

func (e *sqlite) accept(ctx context.Context) error { return e.seals.Accept(ctx) }

func (e *sqlite) state(ctx context.Context) (recorder.State, error) {
	state, err := e.seals.State(ctx)
	return recorder.State(state), err
}

func (e *sqlite) digest(purpose string, values ...string) string {
	return e.seals.Digest(purpose, values...)
}

func (e *sqlite) find(ctx context.Context, t *table, rest string, args []any, row func(scanner) (bool, error)) error {
	text := e.selects(t, rest)
	if stmt := e.prepared[text]; stmt != nil {
		rows, err := stmt.QueryContext(ctx, args...)
		return each(rows, err, row)
	}
	rows, err := e.db.QueryContext(ctx, text, args...)
	return each(rows, err, row)
}

// selects reads a table's columns, and whether the row is sound.
func (e *sqlite) selects(t *table, rest string) string {
	sound := "1"
	if t.sealed {
		sound = e.seals.Sound(t.name)
	}
	return "SELECT " + strings.Join(t.columns, ", ") + ", " + sound + " FROM " + t.name + " " + rest // #nosec G202 -- constants
}

func each(rows *sql.Rows, err error, row func(scanner) (bool, error)) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		more, err := row(func(into ...any) (sound bool, err error) {
			err = rows.Scan(append(into, &sound)...)
			return sound, err
		})
		if err != nil || !more {
			return err
		}
	}
	return rows.Err()
}

func (e *sqlite) transact(ctx context.Context, f func(writer) error) error {
	return database.Within(ctx, e.db, func(tx *sql.Tx) error { return f(&transaction{e, tx}) })
}

// transaction is a writer. Triggers write the seals.
type transaction struct {
	*sqlite
	tx *sql.Tx
}

func (t *transaction) find(ctx context.Context, of *table, rest string, args []any, row func(scanner) (bool, error)) error {
	text := t.selects(of, rest)
	if stmt := t.prepared[text]; stmt != nil {
		rows, err := t.tx.StmtContext(ctx, stmt).QueryContext(ctx, args...)
		return each(rows, err, row)
	}
	rows, err := t.tx.QueryContext(ctx, text, args...)
	return each(rows, err, row)
}

// exec runs a statement; the transaction's end closes what is prepared for it.
func (t *transaction) exec(ctx context.Context, text string, args ...any) (int64, error) {
	var r sql.Result
	var err error
	if stmt := t.prepared[text]; stmt != nil {
		r, err = t.tx.StmtContext(ctx, stmt).ExecContext(ctx, args...)
	} else {
		r, err = t.tx.ExecContext(ctx, text, args...)
	}
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (t *transaction) insert(ctx context.Context, into *table, values ...any) (bool, error) {
	n, err := t.exec(ctx, insertText(into), values...)
	return n > 0, err
}

func (t *transaction) update(ctx context.Context, of *table, set []column, where string, args ...any) (int64, error) {
	values := make([]any, 0, len(set)+len(args))
	for _, c := range set {
		values = append(values, c.value)
	}
	return t.exec(ctx, updateText(of, set, where), append(values, args...)...)
}

func (t *transaction) remove(ctx context.Context, of *table, where string, args ...any) error {
	_, err := t.exec(ctx, "DELETE FROM "+of.name+" WHERE "+where, args...) // #nosec G202 -- constants
	return err
}

func insertText(t *table) string {
	return "INSERT INTO " + t.name + " (" + strings.Join(t.columns, ", ") + ") VALUES (" + marks(len(t.columns)) + ") ON CONFLICT DO NOTHING"
}

func updateText(t *table, set []column, where string) string {
	names := make([]string, len(set))
	for i, c := range set {
		names[i] = c.name + " = ?"
	}
	return "UPDATE " + t.name + " SET " + strings.Join(names, ", ") + " WHERE " + where
}
