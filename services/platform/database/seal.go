package database

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"

	"durward.internal/services/platform/clean"
)

// KeyFile is the name, in the state folder, of the key that rows are sealed with. It is a file of its own: a process's TLS key and the
// vault's grant key are replaced while the state goes on. Who may read the folder can seal what he likes; it is against damage, and
// against copies and edits of the database alone.
const KeyFile = "seal.key"

// pending is appended to the name of a key by which nothing is sealed yet.
const pending = ".new"

// keySize is HMAC-SHA256's.
const keySize = 32

// maxNamed bounds how many damaged rows are named.
const maxNamed = 5

// Seals are keyed digests, one for each row of the tables that carry authority, and for each table the number of its rows, the sum of
// their digests, and how often it was changed. They are written in the transaction that writes the row, by triggers that each
// connection makes for itself, so that no statement can forget them. The schema has a column "seal" in each of these tables, and the
// table seals. Safe for concurrent use.
type Seals struct {
	db     *sql.DB
	dir    string
	key    []byte
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
		return nil, nil, errors.Join(fmt.Errorf("%s database %s: %w", cfg.Service, cfg.Path, damaged(err)), s.db.Close())
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
	path := filepath.Join(s.dir, KeyFile)
	if s.key, err = readKey(path); errors.Is(err, fs.ErrNotExist) && known > 0 {
		// The process may have ended between the first seals and their key's last name.
		if s.key, err = readKey(path + pending); err == nil {
			err = os.Rename(path+pending, path)
		}
	}
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
	if s.key == nil {
		if s.key, err = makeKey(path + pending); err != nil {
			return err
		}
	}
	if err := Migrate(ctx, goose.DialectSQLite3, s.db, cfg.Migrations, cfg.Service); err != nil {
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
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
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
	if err := tx.Commit(); err != nil {
		return err
	}
	s.damage = nil
	path := filepath.Join(s.dir, KeyFile)
	err = os.Rename(path+pending, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has its name
	}
	return err
}

// Sound is an SQL expression over a row of the table: whether it bears its seal. On a nil Seals every row does; of another table none.
func (s *Seals) Sound(table string) string {
	if s == nil || !sealsHold() {
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
	rows, err := s.db.QueryContext(ctx, `SELECT name, rows, revision, sum FROM seals ORDER BY name`)
	if err != nil {
		return State{}, err
	}
	defer rows.Close()
	out, over := State{Rows: map[string]uint64{}}, s.begin("state")
	for rows.Next() {
		var name string
		var n, revision int64
		var sum []byte
		if err := rows.Scan(&name, &n, &revision, &sum); err != nil {
			return State{}, err
		}
		writeValues(over, []driver.Value{name, n, revision, sum})
		out.Revision += uint64(max(revision, 0))
		out.Rows[name] = uint64(max(n, 0))
	}
	out.Digest = hex.EncodeToString(over.Sum(nil))
	return out, rows.Err()
}

// Digest is a keyed digest of values, 128 bits in hex, for what is told apart and not told: the same for as long as the state folder keeps
// its key, and of no use to anybody without it. No two purposes, and no two lists of values, are alike. A row's seal is none of them.
func (s *Seals) Digest(purpose string, values ...string) string {
	over := s.begin("digest")
	writeValues(over, []driver.Value{purpose, int64(len(values))})
	for _, v := range values {
		writeValues(over, []driver.Value{v})
	}
	return hex.EncodeToString(over.Sum(nil)[:16])
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
		var sum total
		sum.add(args[0], false)
		sum.add(args[1], false)
		sum.add(args[2], true)
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

// begin begins a keyed digest of that purpose.
func (s *Seals) begin(purpose string) hash.Hash {
	h := hmac.New(sha256.New, s.key)
	writeValues(h, []driver.Value{purpose})
	return h
}

// writeValues writes values so that no two lists are written alike.
func writeValues(h hash.Hash, values []driver.Value) {
	var head [9]byte
	put := func(kind byte, n uint64) {
		head[0] = kind
		binary.BigEndian.PutUint64(head[1:], n)
		h.Write(head[:])
	}
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			put('n', 0)
		case int64:
			put('i', uint64(v))
		case float64:
			put('f', math.Float64bits(v))
		case string:
			put('t', uint64(len(v)))
			h.Write([]byte(v))
		case []byte:
			put('b', uint64(len(v)))
			h.Write(v)
		default:
			put('?', 0)
		}
	}
}

// total is a sum of digests modulo 2^256, the same in every order.
type total [sha256.Size]byte

// add adds a digest, or takes it away; what is none counts as zero.
func (t *total) add(v driver.Value, away bool) {
	digest, _ := v.([]byte)
	if len(digest) != len(t) {
		return
	}
	var carry uint64
	for at := len(t) - 8; at >= 0; at -= 8 {
		word, other := binary.BigEndian.Uint64(t[at:]), binary.BigEndian.Uint64(digest[at:])
		if away {
			word, carry = bits.Sub64(word, other, carry)
		} else {
			word, carry = bits.Add64(word, other, carry)
		}
		binary.BigEndian.PutUint64(t[at:], word)
	}
}

// sums are what a table's rows amount to.
type sums struct {
	rows int64
	sum  total
}

// queryer is a database or a transaction.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// read reads a table, and tells of each row its name and whether it bears its seal.
func (o *sums) read(ctx context.Context, on queryer, t sealed, tell func(row string, sound bool)) error {
	names := make([]string, len(t.keys))
	for i, key := range t.keys {
		names[i] = "CASE typeof(" + key + ") WHEN 'blob' THEN hex(" + key + ") ELSE " + key + " END"
	}
	rows, err := on.QueryContext(ctx, `SELECT `+strings.Join(names, " || '/' || ")+`, seal, seal IS `+t.digest("")+` FROM `+t.name) // #nosec G202 -- the schema's names
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name sql.NullString
		var seal any
		var sound bool
		if err := rows.Scan(&name, &seal, &sound); err != nil {
			return err
		}
		o.rows++
		o.sum.add(seal, false)
		tell(name.String, sound)
	}
	return rows.Err()
}

// verify names what does not bear its seal.
func (s *Seals) verify(ctx context.Context, tables []sealed) ([]string, error) {
	var found []string
	for _, t := range tables {
		var of sums
		before := len(found)
		if err := of.read(ctx, s.db, t, func(row string, sound bool) {
			if !sound {
				found = append(found, t.name+": the row "+clean.Line(row, 100)+" was changed")
			}
		}); err != nil {
			return nil, err
		}
		var rows int64
		var sum []byte
		var sound bool
		err := s.db.QueryRowContext(ctx, `SELECT rows, sum, seal IS durward_seal('seals', name, rows, revision, sum) FROM seals WHERE name = ?`, t.name).
			Scan(&rows, &sum, &sound)
		switch {
		case errors.Is(err, sql.ErrNoRows) || err == nil && !sound:
			found = append(found, "seals: the row "+t.name+" was changed or is missing")
		case err != nil:
			return nil, err
		case rows != of.rows:
			found = append(found, fmt.Sprintf("%s: it has %d rows of %d", t.name, of.rows, rows))
		case len(found) == before && string(sum) != string(of.sum[:]):
			found = append(found, t.name+": a row of it is an older copy")
		}
	}
	if more := len(found) - maxNamed; more > 0 {
		found = append(found[:maxNamed], fmt.Sprintf("and %d more", more))
	}
	return found, nil
}

// schema returns those of the tables that are there and have a column for their seals, with their columns.
func (s *Seals) schema(ctx context.Context, tables []string) ([]sealed, error) {
	var out []sealed
	for _, name := range tables {
		rows, err := s.db.QueryContext(ctx, `SELECT name, pk FROM pragma_table_info(?) ORDER BY cid`, name)
		if err != nil {
			return nil, err
		}
		t, has := sealed{name: name}, false
		for rows.Next() {
			var column string
			var key int
			if err := rows.Scan(&column, &key); err != nil {
				return nil, errors.Join(err, rows.Close())
			}
			if column == "seal" {
				has = true
				continue
			}
			t.columns = append(t.columns, column)
			if key > 0 {
				t.keys = append(t.keys, column)
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
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

// readKey reads a key that only its owner may read.
func readKey(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: it is not a file that its owner alone may read: chmod 600", path)
	}
	key, err := os.ReadFile(path) // #nosec G304 -- in the state folder
	if err == nil && len(key) != keySize {
		// As good as none; its name stays for whoever finds out why.
		return nil, fmt.Errorf("%s: it has %d bytes of %d. Put back a backup, or move it away to begin without it; then run durward resume", path, len(key), keySize)
	}
	return key, err
}

// makeKey makes a key, durably.
func makeKey(path string) ([]byte, error) {
	key := make([]byte, keySize)
	rand.Read(key)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // #nosec G304 -- in the state folder
	if err != nil {
		return nil, err
	}
	_, err = f.Write(key)
	return key, errors.Join(err, f.Sync(), f.Close())
}
