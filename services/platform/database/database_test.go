package database_test

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"durward.internal/services/platform/database"
)

func migrations(n int) fs.FS {
	files := fstest.MapFS{"00001_first.sql": {Data: []byte("-- +goose Up\nCREATE TABLE parent (id INTEGER PRIMARY KEY) STRICT;\nCREATE TABLE child (parent INTEGER NOT NULL REFERENCES parent(id)) STRICT;\n")}}
	if n >= 2 {
		files["00002_second.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nALTER TABLE parent ADD COLUMN name TEXT NOT NULL DEFAULT '';\n")}
	}
	return files
}

func open(t *testing.T, cfg database.Config) *sql.DB {
	t.Helper()
	db, err := database.Open(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// TestEmptyLog: whoever empties the write-ahead log does not wait for its readers, with the one connection that writes.
func TestEmptyLog(t *testing.T) {
	cfg := database.Config{Path: filepath.Join(t.TempDir(), "x.db"), Migrations: migrations(1), Service: "x"}
	db := open(t, cfg)
	reader, err := database.OpenReader(t.Context(), cfg)
	must(t, err)
	defer reader.Close()
	reads, err := reader.BeginTx(t.Context(), nil)
	must(t, err)
	defer func() { _ = reads.Rollback() }() // it is over by then, unless the test failed
	var n int
	must(t, reads.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM parent").Scan(&n))
	for _, statement := range []string{"INSERT INTO parent VALUES (1)", "PRAGMA busy_timeout = 86400000"} { // a day
		_, err := db.ExecContext(t.Context(), statement)
		must(t, err)
	}
	tried := make(chan error, 1)
	go func() {
		emptied, err := database.EmptyLog(t.Context(), db)
		if emptied {
			err = errors.New("it is emptied")
		}
		tried <- err
	}()
	select {
	case err := <-tried:
		must(t, err)
	case <-time.After(time.Minute): // nothing ends the wait of SQLite itself
		t.Fatal("it waits for who reads")
	}
	if err := db.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&n); err != nil || n != 86400000 {
		t.Errorf("afterwards it waits for %d ms, %v", n, err)
	}
	must(t, reads.Rollback())
	emptied, err := database.EmptyLog(t.Context(), db)
	if info, unread := os.Stat(cfg.Path + "-wal"); !emptied || err != nil || unread != nil || info.Size() > 0 {
		t.Errorf("nobody reads: %t, %v, %v, %v", emptied, err, info, unread)
	}
}

func TestOpen(t *testing.T) {
	cfg := database.Config{Path: filepath.Join(t.TempDir(), "state", "a?b#c %41.db"), Migrations: migrations(1), Service: "vault"}
	db := open(t, cfg)
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000"} {
		var got string
		if err := db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q, %v", pragma, got, err)
		}
	}
	if _, err := db.ExecContext(t.Context(), "INSERT INTO child VALUES (7)"); err == nil {
		t.Error("a child without a parent")
	}
	if _, err := db.ExecContext(t.Context(), "INSERT INTO parent VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if info, err := os.Stat(cfg.Path + suffix); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", suffix, info, err)
		}
	}
	if info, err := os.Stat(filepath.Dir(cfg.Path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v", info.Mode(), err)
	}

	reader, err := database.OpenReader(t.Context(), cfg)
	must(t, err)
	defer reader.Close()
	// The writer's open transaction does not hold readers up.
	tx, err := db.BeginTx(t.Context(), nil)
	must(t, err)
	if _, err := tx.ExecContext(t.Context(), "INSERT INTO parent VALUES (2)"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := reader.QueryRowContext(t.Context(), "SELECT count(*) FROM parent").Scan(&n); err != nil || n != 1 {
		t.Errorf("the reader sees %d, %v", n, err)
	}
	if _, err := reader.ExecContext(t.Context(), "DELETE FROM parent"); err == nil {
		t.Error("a reader wrote")
	}
	must(t, tx.Commit())
}

func TestSchemaVersions(t *testing.T) {
	cfg := database.Config{Path: filepath.Join(t.TempDir(), "v.db"), Migrations: migrations(1), Service: "vault"}
	must(t, open(t, cfg).Close())
	cfg.Migrations = migrations(2)
	db := open(t, cfg) // migrates
	if _, err := db.ExecContext(t.Context(), "INSERT INTO parent (id, name) VALUES (1, 'x')"); err != nil {
		t.Fatal(err)
	}
	must(t, db.Close())
	cfg.Migrations = migrations(1)
	_, err := database.Open(t.Context(), cfg)
	if !errors.Is(err, database.ErrNewerSchema) || !strings.Contains(err.Error(), "schema 2, and this program knows up to 1") {
		t.Errorf("an older program: %v", err)
	}
	// The refusal changed nothing.
	cfg.Migrations = migrations(2)
	var name string
	if err := open(t, cfg).QueryRowContext(t.Context(), "SELECT name FROM parent").Scan(&name); err != nil || name != "x" {
		t.Errorf("%q, %v", name, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Symlink("/etc", filepath.Join(dir, "escape")))
	must(t, os.WriteFile(filepath.Join(dir, "text"), []byte(strings.Repeat("not a database ", 100)), 0o600))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		path string
		fs   fs.FS
	}{
		"relative":         {t.Context(), "x.db", migrations(1)},
		"outside":          {t.Context(), "/etc/x.db", migrations(1)},
		"link outside":     {t.Context(), filepath.Join(dir, "escape", "x.db"), migrations(1)},
		"a folder":         {t.Context(), dir, migrations(1)},
		"not a database":   {t.Context(), filepath.Join(dir, "text"), migrations(1)},
		"no migrations":    {t.Context(), filepath.Join(dir, "none.db"), fstest.MapFS{}},
		"broken migration": {t.Context(), filepath.Join(dir, "broken.db"), fstest.MapFS{"00001_x.sql": {Data: []byte("-- +goose Up\nCREATE TABEL x;\n")}}},
		"cancelled":        {cancelled, filepath.Join(dir, "c.db"), migrations(1)},
	} {
		if db, err := database.Open(tc.ctx, database.Config{Path: tc.path, Migrations: tc.fs, Service: "vault"}); err == nil {
			t.Errorf("%s: opened", name)
			_ = db.Close()
		}
	}
	if db, err := database.OpenReader(t.Context(), database.Config{Path: filepath.Join(dir, "absent.db"), Service: "vault"}); err == nil {
		t.Error("a reader opened what is not there")
		_ = db.Close()
	}
	if _, err := os.Stat(filepath.Join(dir, "absent.db")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a reader made the file")
	}
}

// A file that others could read is closed to them.
func TestModeIsTightened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	must(t, os.WriteFile(path, nil, 0o644))
	open(t, database.Config{Path: path, Migrations: migrations(1), Service: "vault"})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
