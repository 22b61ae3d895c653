package store

import (
	"cmp"
	"context"
	"database/sql/driver"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/postgres"
	"durward.internal/services/platform/recorder"
)

// Seals on PostgreSQL are those of package database, which has SQLite's triggers write them. Here the vault itself does, over what it
// sends: the server never has the key.

const (
	// ofKey is the name of the row of seals that tells one key from another, and says which tables were sealed with it.
	ofKey = "key"
	// sealedFirst are those tables where that row, an older one, does not say.
	sealedFirst = "operations statements spent standing control"
)

// sealAll is how long every row may take to be read and sealed.
const sealAll = time.Minute

// seal returns the values as they are written, and their seal; nil where the table has none.
func (p *server) seal(t *table, values []any) ([]any, []byte, error) {
	out, over := make([]any, len(values)), make([]driver.Value, len(values))
	for i, v := range values {
		out[i] = text(v)
		var err error
		if over[i], err = sealed(v); err != nil {
			return nil, nil, err
		}
	}
	if !t.sealed {
		return out, nil, nil
	}
	return out, p.key.Row(t.name, over...), nil
}

// sound reports whether a row, with its seal last, bears its seal.
func (p *server) sound(t *table, row []any) bool {
	_, want, err := p.seal(t, row[:len(row)-1])
	seal, _ := row[len(row)-1].([]byte)
	return err == nil && string(seal) == string(want)
}

func (p *server) damage() []string { return p.found }

func (p *server) digest(purpose string, values ...string) string {
	return p.key.Digest(purpose, values...)
}

func (p *server) state(ctx context.Context) (recorder.State, error) {
	ctx, cancel := context.WithTimeout(ctx, postgres.AnswerTime)
	defer cancel()
	all, err := p.totals(ctx)
	if err != nil {
		return recorder.State{}, err
	}
	out := make([]database.Totals, len(all))
	for i, t := range all {
		out[i] = t.Totals
	}
	return recorder.State(p.key.State(out)), nil
}

// totals is a row of seals.
type totals struct {
	database.Totals
	columns []string
	sound   bool
}

// totals reads what the tables' rows should amount to, in the order of their names.
func (p *server) totals(ctx context.Context) ([]totals, error) {
	rows, err := p.Pool.Query(ctx, `SELECT name, columns, rows, revision, sum, seal FROM seals WHERE name != $1 ORDER BY name COLLATE "C"`, ofKey)
	if err != nil {
		return nil, unavailable(err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (totals, error) { return p.readTotals(row) })
	return out, unavailable(err)
}

func (p *server) readTotals(row pgx.Row) (t totals, err error) {
	var columns string
	var sum, seal []byte
	err = row.Scan(&t.Table, &columns, &t.Rows, &t.Revision, &sum, &seal)
	t.columns = words(columns)
	t.sound = copy(t.Sum[:], sum) == len(sum) && len(sum) == len(t.Sum) && string(seal) == string(p.ofTotals(t.Totals, t.columns))
	return t, err
}

// ofTotals is the seal of a row of seals.
func (p *server) ofTotals(t database.Totals, columns []string) []byte {
	return p.key.Row("seals", t.Table, strings.Join(columns, " "), t.Rows, t.Revision, t.Sum[:])
}

// total writes what changed into the totals. One that does not bear its seal goes on without.
func (s *sealing) total(ctx context.Context) error {
	for _, t := range tables {
		change := s.changed[t]
		if change == nil {
			continue
		}
		was, err := s.readTotals(s.tx.QueryRow(ctx, `SELECT name, columns, rows, revision, sum, seal FROM seals WHERE name = $1`, t.name))
		if errors.Is(err, pgx.ErrNoRows) {
			continue // the database was never sealed, which is found: there is no total before a human has accepted that
		}
		if err != nil {
			return err
		}
		now := database.Totals{Table: t.name, Rows: was.Rows + change.Rows, Revision: was.Revision + change.Revision, Sum: was.Sum}
		now.Sum.Add(change.Sum[:], false)
		seal := []byte{}
		if was.sound {
			seal = s.ofTotals(now, was.columns)
		}
		if _, err := s.tx.Exec(ctx, `UPDATE seals SET rows = $1, revision = $2, sum = $3, seal = $4 WHERE name = $5`,
			now.Rows, now.Revision, now.Sum[:], seal, t.name); err != nil {
			return err
		}
	}
	return nil
}

// openSeals finds the key, checks every row as the schema was, migrates, and seals what was not sealed before.
func (p *server) openSeals(ctx context.Context, migrate func(context.Context) error) error {
	var names string
	var mark []byte
	err := p.Pool.QueryRow(ctx, `SELECT columns, seal FROM seals WHERE name = $1`, ofKey).Scan(&names, &mark)
	isSealed := err == nil
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	path := filepath.Join(p.dir, database.KeyFile)
	p.key, err = database.ReadSealKey(p.dir, isSealed)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case err != nil && !missing:
		return err
	case missing && isSealed:
		return fmt.Errorf("its rows are sealed, and this vault has no %s: copy it from the state folder of the vault that led before", path)
	case isSealed && string(mark) != string(p.ofTables(names)):
		return fmt.Errorf("its rows are sealed with another key than %s: copy that of the vault that led before", path)
	}
	current := false
	switch {
	case isSealed:
		current, err = p.verify(ctx, cmp.Or(names, sealedFirst))
	case p.key == nil:
		p.key, err = database.MakeSealKey(p.dir)
	default:
		p.found, err = []string{"the database: it was never sealed, and " + database.KeyFile + " says that the state was"}, nil
	}
	if err == nil {
		err = migrate(ctx)
	}
	if err == nil && !current && len(p.found) == 0 {
		err = p.accept(ctx)
	}
	return err
}

// ofTables is the seal of the row of seals that names the tables.
func (p *server) ofTables(names string) []byte {
	if names == "" {
		return p.key.Row(ofKey)
	}
	return p.key.Row(ofKey, names)
}

// verify finds what does not bear its seal, and reports whether the seals are over the tables and columns that this program has. A table that
// is not among those that were sealed comes later, or is empty.
func (p *server) verify(ctx context.Context, names string) (current bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, sealAll)
	defer cancel()
	all, err := p.totals(ctx)
	if err != nil {
		return false, err
	}
	there, err := p.columns(ctx)
	if err != nil {
		return false, err
	}
	current = slices.Equal(words(names), sealedTables())
	for _, t := range tables {
		if !t.sealed {
			continue
		}
		said := &totals{columns: t.columns, sound: !slices.Contains(words(names), t.name)}
		if at := slices.IndexFunc(all, func(s totals) bool { return s.Table == t.name }); at >= 0 && all[at].sound {
			said = &all[at]
			current = current && slices.Equal(said.columns, t.columns)
		}
		if len(there[t.name]) == 0 && !slices.Contains(words(names), t.name) {
			continue
		}
		if slices.ContainsFunc(said.columns, func(c string) bool { return !slices.Contains(there[t.name], c) }) {
			p.found = append(p.found, t.name+": columns of it are gone that its seals are over")
			continue
		}
		as := *t
		as.columns = said.columns
		has, unsound, err := p.sum(ctx, &as, nil)
		if err != nil {
			return false, err
		}
		p.found = append(p.found, database.Damage(has, said.Totals, said.sound, unsound)...)
	}
	p.found = database.Named(p.found)
	return current, nil
}

// columns are the tables' as they are.
func (p *server) columns(ctx context.Context) (map[string][]string, error) {
	rows, err := p.Pool.Query(ctx, `SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = current_schema()`)
	if err != nil {
		return nil, unavailable(err)
	}
	out := map[string][]string{}
	var table, column string
	_, err = pgx.ForEachRow(rows, []any{&table, &column}, func() error {
		out[table] = append(out[table], column)
		return nil
	})
	return out, unavailable(err)
}

// sum reads a table and adds its seals up; each is told of each row and its seal. unsound names the rows that do not bear theirs.
func (p *server) sum(ctx context.Context, t *table, each func(row []any, seal []byte)) (has database.Totals, unsound []string, err error) {
	has.Table = t.name
	rows, err := p.Pool.Query(ctx, "SELECT "+t.list()+" FROM "+t.name)
	if err != nil {
		return has, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		row, err := rows.Values()
		if err != nil {
			return has, nil, err
		}
		seal, _ := row[len(row)-1].([]byte)
		if each != nil {
			if _, seal, err = p.seal(t, row[:len(row)-1]); err != nil {
				return has, nil, err
			}
			each(row, seal)
		} else if !p.sound(t, row) {
			unsound = append(unsound, t.row(row))
		}
		has.Rows++
		has.Sum.Add(seal, false)
	}
	return has, unsound, rows.Err()
}

// row names a row by its key.
func (t *table) row(row []any) string {
	var parts []string
	for _, name := range t.keys {
		switch v := row[slices.Index(t.columns, name)].(type) {
		case []byte:
			parts = append(parts, strings.ToUpper(hex.EncodeToString(v)))
		default:
			parts = append(parts, fmt.Sprint(v))
		}
	}
	return strings.Join(parts, "/")
}

// accept seals every row as it is.
func (p *server) accept(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sealAll)
	defer cancel()
	before, err := p.totals(ctx)
	if err != nil {
		return err
	}
	err = p.within(ctx, func(w writer) error {
		tx := w.(*sealing).tx //nolint:forcetypeassert // it is this engine's
		batch := &pgx.Batch{}
		for _, t := range tables {
			if !t.sealed {
				continue
			}
			text := postgres.Dollars("UPDATE " + t.name + " SET seal = ? WHERE " + strings.Join(t.keys, " = ? AND ") + " = ?")
			has, _, err := p.sum(ctx, t, func(row []any, seal []byte) {
				args := []any{seal}
				for _, name := range t.keys {
					args = append(args, row[slices.Index(t.columns, name)])
				}
				batch.Queue(text, args...)
			})
			if err != nil {
				return err
			}
			if at := slices.IndexFunc(before, func(s totals) bool { return s.Table == t.name }); at >= 0 {
				has.Revision = before[at].Revision
			}
			has.Revision++
			batch.Queue(`INSERT INTO seals (name, columns, rows, revision, sum, seal) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name)
				DO UPDATE SET columns = excluded.columns, rows = excluded.rows, revision = excluded.revision, sum = excluded.sum, seal = excluded.seal`,
				t.name, strings.Join(t.columns, " "), has.Rows, has.Revision, has.Sum[:], p.ofTotals(has, t.columns))
		}
		names := strings.Join(sealedTables(), " ")
		batch.Queue(`INSERT INTO seals (name, columns, rows, revision, sum, seal) VALUES ($1, $2, 0, 0, '', $3) ON CONFLICT (name)
			DO UPDATE SET columns = excluded.columns, seal = excluded.seal`, ofKey, names, p.ofTables(names))
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return err
	}
	p.found = nil
	return database.KeepSealKey(p.dir)
}
