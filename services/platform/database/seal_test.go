package database_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/platformtest/testfile"
)

// vault has two tables that carry authority, and one that does not.
func vault(dir string, steps int) database.Config {
	files := fstest.MapFS{"00001_first.sql": {Data: []byte(`-- +goose Up
CREATE TABLE spent (key TEXT PRIMARY KEY, use INTEGER NOT NULL, state TEXT NOT NULL, note BLOB) WITHOUT ROWID;
CREATE TABLE control (id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, halted INTEGER NOT NULL);
CREATE TABLE other (id INTEGER PRIMARY KEY);
INSERT INTO control VALUES (1, 1, 0);
`)}}
	if steps > 1 {
		files["00002_seals.sql"] = &fstest.MapFile{Data: []byte(`-- +goose Up
ALTER TABLE spent ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
ALTER TABLE control ADD COLUMN seal BLOB NOT NULL DEFAULT x'';
CREATE TABLE seals (name TEXT PRIMARY KEY, rows INTEGER NOT NULL, revision INTEGER NOT NULL, sum BLOB NOT NULL, seal BLOB NOT NULL) WITHOUT ROWID;
`)}
	}
	if steps > 2 {
		files["00003_more.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nALTER TABLE spent ADD COLUMN more TEXT NOT NULL DEFAULT '';\nUPDATE spent SET more = 'x';\n")}
	}
	return database.Config{Path: filepath.Join(dir, "vault.db"), StateDir: dir, Migrations: files, Service: "the vault"}
}

func openSealed(t *testing.T, cfg database.Config) (*sql.DB, *database.Seals) {
	t.Helper()
	db, seals, err := database.OpenSealed(t.Context(), cfg, "spent", "control")
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db, seals
}

func exec(t *testing.T, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// What is written in every way that SQL has bears its seal at the next start.
func TestWhatIsWrittenIsSealed(t *testing.T) {
	dir := t.TempDir()
	db, seals := openSealed(t, vault(dir, 2))
	first, err := seals.State(t.Context())
	must(t, err)
	exec(t, db,
		`INSERT INTO spent (key, use, state, note) VALUES ('a/1', 1, 'spent', x'00ff'), ('b/1', 1, 'spent', NULL)`,
		`INSERT INTO spent (key, use, state) VALUES ('a/1', 9, 'spent') ON CONFLICT DO NOTHING`,
		`INSERT INTO spent (key, use, state) VALUES ('b/1', 9, 'spent') ON CONFLICT (key) DO UPDATE SET use = use + 1 RETURNING use`,
		`UPDATE spent SET state = 'done' WHERE key = 'a/1'`,
		`UPDATE control SET epoch = 7, halted = 1`,
		`INSERT INTO spent (key, use, state) VALUES ('c/1', 1, 'spent')`,
		`DELETE FROM spent WHERE key = 'c/1'`,
		`INSERT INTO other VALUES (1)`)
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	if _, err := tx.ExecContext(t.Context(), `DELETE FROM spent`); err != nil {
		t.Fatal(err)
	}
	must(t, tx.Rollback())
	before, err := seals.State(t.Context())
	if err != nil || before.Rows["spent"] != 2 || before.Rows["control"] != 1 || before.Revision <= first.Revision || before.Digest == first.Digest {
		t.Errorf("%+v after %+v, %v", before, first, err)
	}
	for range 2 {
		must(t, db.Close())
		db, seals = openSealed(t, vault(dir, 2))
		if d := seals.Damage(); len(d) != 0 {
			t.Errorf("damaged: %q", d)
		}
		if now, err := seals.State(t.Context()); err != nil || now.Revision != before.Revision || now.Digest != before.Digest {
			t.Errorf("after a restart %+v, before %+v; %v", now, before, err)
		}
	}
	// A schema that has more columns is no damage, nor is one that had no seals.
	must := func(cfg database.Config) {
		t.Helper()
		_ = db.Close()
		if db, seals = openSealed(t, cfg); len(seals.Damage()) != 0 {
			t.Errorf("damaged: %q", seals.Damage())
		}
	}
	must(vault(dir, 3))
	must(vault(dir, 3))
	old := vault(t.TempDir(), 1)
	exec(t, open(t, old), `INSERT INTO spent VALUES ('a/1', 1, 'spent', NULL)`)
	must(vault(old.StateDir, 3))
	must(vault(old.StateDir, 3))
	if info, err := os.Stat(filepath.Join(dir, database.KeyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
}

// What was changed, removed or put back while the process was down is named, by table and row; once it is accepted, no more. Without
// the seals all of it is served.
func TestChangedRowsAreNamed(t *testing.T) {
	remove := func(name string) func(*testing.T, string, *sql.DB) {
		return func(t *testing.T, dir string, _ *sql.DB) {
			must(t, os.Remove(filepath.Join(dir, name)))
		}
	}
	run := func(statements ...string) func(*testing.T, string, *sql.DB) {
		return func(t *testing.T, _ string, db *sql.DB) { exec(t, db, statements...) }
	}
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string, db *sql.DB)
		want  string
	}{
		"a key":            {run(`UPDATE spent SET key = 'z/1' WHERE key = 'a/1'`), "spent: the row z/1 was changed"},
		"a state":          {run(`UPDATE spent SET state = 'spent' WHERE key = 'a/1'`), "spent: the row a/1 was changed"},
		"a type":           {run(`UPDATE spent SET note = 'x' WHERE key = 'a/1'`), "spent: the row a/1 was changed"},
		"an epoch":         {run(`UPDATE control SET epoch = 3`), "control: the row 1 was changed"},
		"a halt":           {run(`UPDATE control SET halted = 1`), "control: the row 1 was changed"},
		"a row less":       {run(`DELETE FROM spent WHERE key = 'a/1'`), "spent: it has 1 rows of 2"},
		"no control":       {run(`DELETE FROM control`), "control: it has 0 rows of 1"},
		"a row more":       {run(`INSERT INTO spent (key, use, state) VALUES ('n/1', 1, 'spent')`), "spent: the row n/1 was changed"},
		"another's seal":   {run(`UPDATE spent SET seal = (SELECT seal FROM spent WHERE key = 'b/1')`), "spent: the row a/1 was changed"},
		"an older copy":    {run(`UPDATE spent SET state = (SELECT state FROM old), seal = (SELECT seal FROM old) WHERE key = 'a/1'`), "spent: a row of it is an older copy"},
		"a count":          {run(`UPDATE seals SET rows = 1 WHERE name = 'spent'`), "seals: the row spent was changed or is missing"},
		"a revision":       {run(`UPDATE seals SET revision = 1 WHERE name = 'spent'`), "seals: the row spent was changed or is missing"},
		"no sums":          {run(`DELETE FROM seals`), "it was never sealed"},
		"no key":           {remove(database.KeyFile), "seal.key: it is missing"},
		"no database":      {remove("vault.db"), "it was never sealed"},
		"nothing":          {run(), ""},
		"what is no right": {run(`INSERT INTO other VALUES (1)`), ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := vault(t.TempDir(), 2)
			db, seals := openSealed(t, cfg)
			exec(t, db, `INSERT INTO spent (key, use, state) VALUES ('a/1', 1, 'spent'), ('b/1', 1, 'spent')`,
				`CREATE TABLE old AS SELECT * FROM spent WHERE key = 'a/1'`, `UPDATE spent SET state = 'done' WHERE key = 'a/1'`)
			before, err := seals.State(t.Context())
			must(t, err)
			_ = db.Close()
			plain := open(t, cfg)
			c.spoil(t, cfg.StateDir, plain)
			_ = plain.Close()
			// The control: nothing else notices.
			if err := open(t, cfg).Close(); err != nil {
				t.Errorf("without the seals: %v", err)
			}
			db, seals = openSealed(t, cfg)
			if got := strings.Join(seals.Damage(), "; "); !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("it names %q, want %q", got, c.want)
			}
			if c.want == "" {
				return
			}
			// Nothing that is written meanwhile washes a row clean.
			if name != "a revision" && name != "a count" {
				exec(t, db, `UPDATE spent SET use = 2`)
			}
			_ = db.Close()
			if db, seals = openSealed(t, cfg); len(seals.Damage()) == 0 {
				t.Error("it is forgotten")
			}
			if err := seals.Accept(t.Context()); err != nil || len(seals.Damage()) != 0 {
				t.Errorf("accepted: %v, %q", err, seals.Damage())
			}
			if after, err := seals.State(t.Context()); err != nil || name != "no sums" && name != "no database" && name != "a revision" && after.Revision <= before.Revision {
				t.Errorf("%+v after %+v, %v", after, before, err)
			}
			exec(t, db, `INSERT INTO spent (key, use, state) VALUES ('d/1', 1, 'spent')`)
			_ = db.Close()
			if _, seals = openSealed(t, cfg); len(seals.Damage()) != 0 {
				t.Errorf("after it was accepted: %q", seals.Damage())
			}
		})
	}
}

// A bit that flips anywhere in the file is refused, named, or changes nothing that is served. Without the seals some are served.
func TestEachFlippedBitIsSeen(t *testing.T) {
	t.Parallel()
	cfg := vault(t.TempDir(), 2)
	db, _ := openSealed(t, cfg)
	for i := range 20 {
		exec(t, db, fmt.Sprintf(`INSERT INTO spent (key, use, state, note) VALUES ('operation-%02d/1', %d, 'spent', x'0102030405')`, i, i))
	}
	exec(t, db, `UPDATE control SET epoch = 7, halted = 1`, `PRAGMA wal_checkpoint(TRUNCATE)`)
	_ = db.Close()
	sound := testfile.Read(t, cfg.Path)
	key := testfile.Read(t, filepath.Join(cfg.StateDir, database.KeyFile))
	// serves returns what a process acts by.
	serves := func(db *sql.DB) (string, error) {
		var out bytes.Buffer
		for _, q := range []string{`SELECT key, use, state, note FROM spent ORDER BY key`, `SELECT id, epoch, halted, '' FROM control`} {
			rows, err := db.QueryContext(t.Context(), q)
			if err != nil {
				return "", err
			}
			for rows.Next() {
				var a, b, c, d any
				if err := rows.Scan(&a, &b, &c, &d); err != nil {
					return "", err
				}
				fmt.Fprintf(&out, "%#v %#v %#v %#v\n", a, b, c, d)
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				return "", err
			}
		}
		return out.String(), nil
	}
	pages := map[int]bool{}
	for at := range sound {
		if bytes.HasPrefix(sound[at:], []byte("operation-")) || bytes.HasPrefix(sound[at:], []byte("control")) {
			pages[at/4096] = true
		}
	}
	db, _ = openSealed(t, cfg)
	want, err := serves(db)
	must(t, err)
	_ = db.Close()
	refused, named, served, harmless := 0, 0, 0, 0
	attempt := func(at int, bit byte) {
		dir := t.TempDir()
		bad := bytes.Clone(sound)
		bad[at] ^= 1 << bit
		again := vault(dir, 2)
		for path, b := range map[string][]byte{again.Path: bad, filepath.Join(dir, database.KeyFile): key} {
			testfile.Write(t, path, b)
		}
		db, err := database.Open(context.Background(), again)
		if err != nil {
			refused++
			return
		}
		unsealed, err := serves(db)
		_ = db.Close()
		if err != nil {
			refused++
			return
		}
		db, seals, err := database.OpenSealed(context.Background(), again, "spent", "control")
		switch {
		case err != nil:
			refused++
			return
		case len(seals.Damage()) > 0:
			named++
			if unsealed != want {
				served++
			}
		case unsealed != want:
			t.Errorf("bit %d of byte %d: served otherwise, and nothing says so", bit, at)
		default:
			harmless++
		}
		_ = db.Close()
	}
	for page := range pages {
		for at := page * 4096; at < (page+1)*4096 && at < len(sound); at++ {
			if sound[at] != 0 && at%17 == 0 || at%499 == 0 {
				attempt(at, byte(at%8))
			}
		}
	}
	t.Logf("%d refused, %d named, %d harmless", refused, named, harmless)
	if served < 5 {
		t.Errorf("the control: without the seals %d would be served", served)
	}
}

// BenchmarkSealedRow is what one insert, and one update, take with their seals and without; each alone is on the disk.
func BenchmarkSealedRow(b *testing.B) {
	for _, sealed := range []bool{false, true} {
		b.Run(fmt.Sprintf("sealed=%v", sealed), func(b *testing.B) {
			cfg := vault(b.TempDir(), 2)
			db, err := database.Open(b.Context(), cfg)
			if sealed && err == nil {
				_ = db.Close()
				db, _, err = database.OpenSealed(b.Context(), cfg, "spent", "control")
			}
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			tx, err := db.BeginTx(b.Context(), nil)
			if err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				key := fmt.Sprintf("operation-%06d/1", i)
				if _, err := tx.ExecContext(b.Context(), `INSERT INTO spent (key, use, state, note) VALUES (?, 1, 'spent', ?)`, key, make([]byte, 500)); err != nil {
					b.Fatal(err)
				}
				if _, err := tx.ExecContext(b.Context(), `UPDATE spent SET state = 'done' WHERE key = ?`, key); err != nil {
					b.Fatal(err)
				}
			}
			if err := tx.Commit(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// Digests stay the same over restarts, for one purpose and one list of values, and another installation's are others.
func TestDigestsAreOfOneInstallation(t *testing.T) {
	dir := t.TempDir()
	db, seals := openSealed(t, vault(dir, 2))
	seen := map[string]bool{}
	for _, of := range [][]string{{"user", "a", "b"}, {"user", "ab"}, {"user", "a", "b", ""}, {"user", "", "ab"}, {"room", "a", "b"}, {"user"}, {""}} {
		digest := seals.Digest(of[0], of[1:]...)
		if len(digest) != 32 || seen[digest] || digest != seals.Digest(of[0], of[1:]...) {
			t.Errorf("%q: %s", of, digest)
		}
		seen[digest] = true
	}
	must(t, db.Close())
	_, again := openSealed(t, vault(dir, 2))
	_, other := openSealed(t, vault(t.TempDir(), 2))
	if one := again.Digest("user", "a", "b"); !seen[one] || one == other.Digest("user", "a", "b") {
		t.Error("a digest is another after a restart, or the same elsewhere")
	}
}
