package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
)

// KeyFile is the name, in the state folder, of the key that rows are sealed with. It is a file of its own: a process's TLS key and the
// vault's grant key are replaced while the state goes on. Who may read the folder can seal what he likes; it is against damage, and
// against copies and edits of the database alone.
const KeyFile = "seal.key"

// Seals are keyed digests, one for each row of the tables that carry authority, and for each table the number of its rows, the sum of
// their digests, and how often it was changed. They are written in the transaction that writes the row, by triggers that each
// connection makes for itself, so that no statement can forget them. The schema has a column "seal" in each of these tables, and the
// table seals. Safe for concurrent use.
type Seals struct {
	db  *sql.DB
	dir string
	SealKey
	tables []sealed
	// setup makes a connection's triggers.
	setup  []string
	damage []string
}

// sealed is a table with its columns but the seal.
type sealed struct {
	name          string
	columns, keys []string
}

// OpenSealed is Open for a database whose tables of those names are sealed. A row that does not bear its seal, or a table that lost
// one, does not keep it from opening: Damage tells. The caller then halts what acts by these tables, durably, and calls Accept.
func OpenSealed(ctx context.Context, cfg Config, tables ...string) (*sql.DB, *Seals, error) {
	s := &Seals{dir: cfg.StateDir}
	var err error
	if s.db, err = open(ctx, cfg, s.connect()); err != nil {
		return nil, nil, err
	}
	if err = s.open(ctx, cfg, tables); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%s database %s: %w", cfg.Service, cfg.Path, unopened(err)), s.db.Close())
	}
	return s.db, s, nil
}

// open checks the seals as the schema was, migrates, and seals what was not sealed before.
func (s *Seals) open(ctx context.Context, cfg Config, tables []string) error {
	was, err := s.schema(ctx, tables)
	if err != nil {
		return err
	}
	var known int
	if len(was) > 0 {
		if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM seals`).Scan(&known); err != nil {
			return err
		}
	}
	s.SealKey, err = ReadSealKey(s.dir, known > 0)
	switch missing := errors.Is(err, fs.ErrNotExist); {
	case err != nil && !missing:
		return err
	case missing && known > 0:
		s.damage = []string{KeyFile + ": it is missing"}
	case !missing && known == 0:
		s.damage = []string{"the database: it was never sealed, and " + KeyFile + " says that the state was"}
	case !missing:
		if s.damage, err = s.verify(ctx, was); err != nil {
			return err
		}
	}
	if s.SealKey == nil {
		if s.SealKey, err = MakeSealKey(s.dir); err != nil {
			return err
		}
	}
	if err := Migrate(ctx, goose.DialectSQLite3, s.db, cfg.Migrations, cfg.Service, Newest); err != nil {
		return err
	}
	if s.tables, err = s.schema(ctx, tables); err != nil {
		return err
	}
	if len(s.tables) != len(tables) {
		return fmt.Errorf("of the tables %s not all have a column for their seals", strings.Join(tables, ", "))
	}
	setup := []string{"PRAGMA temp_store = MEMORY"}
	for _, t := range s.tables {
		setup = append(setup, t.triggers()...)
	}
	for _, statement := range setup {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	s.setup = setup
	if len(s.damage) == 0 && (known == 0 || !slices.EqualFunc(was, s.tables, func(a, b sealed) bool { return slices.Equal(a.columns, b.columns) })) {
		return s.Accept(ctx)
	}
	return nil
}

// Damage names what does not bear its seal, by table and row; empty where all of it does.
func (s *Seals) Damage() []string {
	if !sealsHold() {
		return nil
	}
	return s.damage
}

// Accept seals everything as it is. It is called when what acts by these tables is halted, at an epoch that leaves nothing of them in
// force, for Damage names nothing at the next start.
func (s *Seals) Accept(ctx context.Context) error {
	err := Within(ctx, s.db, func(tx *sql.Tx) error {
		for _, t := range s.tables {
			if _, err := tx.ExecContext(ctx, `UPDATE `+t.name+` SET seal = `+t.digest("")); err != nil { // #nosec G202 -- the schema's names
				return err
			}
			var of sums
			if err := of.read(ctx, tx, t, func(string, bool) {}); err != nil {
				return err
			}
			var revision sql.NullInt64
			if err := tx.QueryRowContext(ctx, `SELECT revision FROM seals WHERE name = ?`, t.name).Scan(&revision); err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO seals (name, rows, revision, sum, seal)
				VALUES (?1, ?2, ?3, ?4, durward_seal('seals', ?1, ?2, ?3, ?4))`, t.name, of.rows, max(revision.Int64, 0)+1, of.sum[:]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.damage = nil
	return KeepSealKey(s.dir)
}

// Sound is an SQL expression over a row of the table: whether it bears its seal. Of another table none does.
func (s *Seals) Sound(table string) string {
	if !sealsHold() {
		return "1"
	}
	for _, t := range s.tables {
		if t.name == table {
			return "seal IS " + t.digest("")
		}
	}
	return "0"
}

// State is what the sealed tables were at one time.
type State struct {
	// Revision counts all changes of them: an older copy has a lower one.
	Revision uint64
	// Digest is keyed, over all of them.
	Digest string
	// Rows counts rows by table.
	Rows map[string]uint64
}

// State returns what the tables are now.
func (s *Seals) State(ctx context.Context) (State, error) {
	var totals []Totals
	err := Each(ctx, s.db, func(scan func(...any) error) error {
		var t Totals
		var sum []byte
		err := scan(&t.Table, &t.Rows, &t.Revision, &sum)
		copy(t.Sum[:], sum)
		totals = append(totals, t)
		return err
	}, `SELECT name, rows, revision, sum FROM seals ORDER BY name`)
	if err != nil {
		return State{}, err
	}
	return s.SealKey.State(totals), nil
}

// connect returns a driver whose connections know the seals' functions, and make their triggers once these are known.
func (s *Seals) connect() *sqlite.Driver {
	d := &sqlite.Driver{}
	d.MustRegisterDeterministicScalarFunction("durward_seal", -1, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		over := s.begin("row")
		writeValues(over, args)
		return over.Sum(nil), nil
	})
	d.MustRegisterDeterministicScalarFunction("durward_sum", 3, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		var sum Sum
		sum.Add(args[0], false)
		sum.Add(args[1], false)
		sum.Add(args[2], true)
		return sum[:], nil
	})
	d.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, _ string) error {
		for _, statement := range s.setup {
			if _, err := conn.ExecContext(context.Background(), statement, nil); err != nil {
				return err
			}
		}
		return nil
	})
	return d
}

// sums are what a table's rows amount to.
type sums struct {
	rows int64
	sum  Sum
}

// read reads a table, and tells of each row its name and whether it bears its seal.
func (o *sums) read(ctx context.Context, on queryer, t sealed, tell func(row string, sound bool)) error {
	names := make([]string, len(t.keys))
	for i, key := range t.keys {
		names[i] = "CASE typeof(" + key + ") WHEN 'blob' THEN hex(" + key + ") ELSE " + key + " END"
	}
	return Each(ctx, on, func(scan func(...any) error) error {
		var name sql.NullString
		var seal any
		var sound bool
		if err := scan(&name, &seal, &sound); err != nil {
			return err
		}
		o.rows++
		o.sum.Add(seal, false)
		tell(name.String, sound)
		return nil
	}, `SELECT `+strings.Join(names, " || '/' || ")+`, seal, seal IS `+t.digest("")+` FROM `+t.name) // #nosec G202 -- the schema's names
}

// verify names what does not bear its seal.
func (s *Seals) verify(ctx context.Context, tables []sealed) ([]string, error) {
	var found []string
	for _, t := range tables {
		var of sums
		var unsound []string
		if err := of.read(ctx, s.db, t, func(row string, sound bool) {
			if !sound {
				unsound = append(unsound, row)
			}
		}); err != nil {
			return nil, err
		}
		var said Totals
		var sum []byte
		var sound bool
		err := s.db.QueryRowContext(ctx, `SELECT rows, sum, seal IS durward_seal('seals', name, rows, revision, sum) FROM seals WHERE name = ?`, t.name).
			Scan(&said.Rows, &sum, &sound)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		sound = sound && copy(said.Sum[:], sum) == len(said.Sum)
		found = append(found, Damage(Totals{Table: t.name, Rows: of.rows, Sum: of.sum}, said, sound, unsound)...)
	}
	return Named(found), nil
}

// schema returns those of the tables that are there and have a column for their seals, with their columns.
func (s *Seals) schema(ctx context.Context, tables []string) ([]sealed, error) {
	var out []sealed
	for _, name := range tables {
		t, has := sealed{name: name}, false
		if err := Each(ctx, s.db, func(scan func(...any) error) error {
			var column string
			var key int
			if err := scan(&column, &key); err != nil {
				return err
			}
			if column == "seal" {
				has = true
				return nil
			}
			t.columns = append(t.columns, column)
			if key > 0 {
				t.keys = append(t.keys, column)
			}
			return nil
		}, `SELECT name, pk FROM pragma_table_info(?) ORDER BY cid`, name); err != nil {
			return nil, err
		}
		if has {
			out = append(out, t)
		}
	}
	return out, nil
}

// digest is an SQL expression: the seal that a row should bear. of is "new.", "old." or nothing.
func (t sealed) digest(of string) string {
	return "durward_seal('" + t.name + "', " + of + strings.Join(t.columns, ", "+of) + ")"
}

// row is an SQL condition: the row that is new or old.
func (t sealed) row(of string) string {
	var parts []string
	for _, key := range t.keys {
		parts = append(parts, key+" IS "+of+"."+key)
	}
	return strings.Join(parts, " AND ")
}

// triggers seal what is written. An update of a row that did not bear its seal leaves it without: damage is found, not washed away.
func (t sealed) triggers() []string {
	trigger := func(suffix, when, do string, rows int, plus, minus string) string {
		sum := "durward_sum(sum, " + plus + ", " + minus + ")"
		return fmt.Sprintf(`CREATE TEMP TRIGGER IF NOT EXISTS seal_%[1]s_%[2]s AFTER %[3]s ON main.%[1]s BEGIN %[4]s
			UPDATE seals SET rows = rows + (%[5]d), revision = revision + 1, sum = %[6]s,
				seal = durward_seal('seals', name, rows + (%[5]d), revision + 1, %[6]s) WHERE name = '%[1]s'; END`,
			t.name, suffix, when, do, rows, sum)
	}
	written := "(SELECT seal FROM " + t.name + " WHERE " + t.row("new") + ")"
	return []string{
		trigger("insert", "INSERT", "UPDATE "+t.name+" SET seal = "+t.digest("new.")+" WHERE "+t.row("new")+";", 1, written, "NULL"),
		trigger("update", "UPDATE OF "+strings.Join(t.columns, ", "), "UPDATE "+t.name+" SET seal = CASE WHEN old.seal IS "+t.digest("old.")+
			" THEN "+t.digest("new.")+" ELSE x'' END WHERE "+t.row("new")+";", 0, written, "old.seal"),
		trigger("delete", "DELETE", "", -1, "NULL", "old.seal"),
	}
}
