package database_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"durward.internal/services/platform/database"
)

// A database that was cut short, or whose parts do not agree any more, is refused in a sentence that names it, whole or not.
func TestDamagedDatabaseIsRefused(t *testing.T) {
	cfg := database.Config{Path: filepath.Join(t.TempDir(), "sound.db"), Service: "the vault", Migrations: fstest.MapFS{"00001_first.sql": {Data: []byte(
		"-- +goose Up\nCREATE TABLE spent (key TEXT PRIMARY KEY, note TEXT NOT NULL) STRICT;\n")}}}
	db := open(t, cfg)
	for i := range 500 {
		if _, err := db.ExecContext(t.Context(), "INSERT INTO spent VALUES (?, ?)", fmt.Sprintf("operation-%06d/1", i), strings.Repeat("x", 100)); err != nil {
			t.Fatal(err)
		}
	}
	must(t, db.Close())
	sound, err := os.ReadFile(cfg.Path)
	must(t, err)
	key := []byte("operation-000007/1")
	flipped := func(b []byte, at int) []byte {
		b[at] ^= 1
		return b
	}
	for name, tc := range map[string]struct {
		spoil func(b []byte) []byte
		// proved: it is seen without reading everything.
		proved bool
	}{
		"as it was":       {func(b []byte) []byte { return b }, false},
		"short by a byte": {func(b []byte) []byte { return b[:len(b)-1] }, true},
		"short by a page": {func(b []byte) []byte { return b[:len(b)-4096] }, true},
		"half":            {func(b []byte) []byte { return b[:len(b)/2] }, true},
		"no database":     {func(b []byte) []byte { return flipped(b, 0) }, true},
		"a key that its table has otherwise": {func(b []byte) []byte {
			// The index is last; before it may be old copies of the table's page.
			for at := range bytes.LastIndex(b, key) {
				if bytes.HasPrefix(b[at:], key) {
					b = flipped(b, at)
				}
			}
			return b
		}, false},
		"a key that its index has otherwise": {func(b []byte) []byte { return flipped(b, bytes.LastIndex(b, key)) }, false},
		"a page that points to nothing":      {func(b []byte) []byte { return flipped(b, 4096+3) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, proved := range []bool{false, true} {
				spoilt := cfg
				spoilt.Path, spoilt.Proved = filepath.Join(t.TempDir(), "x.db"), proved
				must(t, os.WriteFile(spoilt.Path, tc.spoil(bytes.Clone(sound)), 0o600))
				db, err := database.Open(t.Context(), spoilt)
				switch {
				case name == "as it was":
					if err != nil {
						t.Errorf("proved %v: %v", proved, err)
					}
				case proved && !tc.proved: // nothing is asked of it
				case !errors.Is(err, database.ErrDamaged) || !strings.Contains(err.Error(), spoilt.Path):
					t.Errorf("proved %v: %v", proved, err)
				}
				if err == nil {
					_ = db.Close()
				}
			}
		})
	}
}

// What a killed process left in the write-ahead log is no damage, also where the file itself is still empty.
func TestWriteAheadLogIsNoDamage(t *testing.T) {
	cfg := database.Config{Path: filepath.Join(t.TempDir(), "x.db"), Service: "the vault", Migrations: migrations(2)}
	db := open(t, cfg)
	if _, err := db.ExecContext(t.Context(), "INSERT INTO parent VALUES (1, 'x')"); err != nil {
		t.Fatal(err)
	}
	again := cfg
	again.Path = filepath.Join(t.TempDir(), "x.db")
	for _, suffix := range []string{"", "-wal"} {
		b, err := os.ReadFile(cfg.Path + suffix)
		if err == nil {
			err = os.WriteFile(again.Path+suffix, b, 0o600)
		}
		must(t, err)
	}
	var name string
	if err := open(t, again).QueryRowContext(context.WithoutCancel(t.Context()), "SELECT name FROM parent").Scan(&name); err != nil || name != "x" {
		t.Errorf("%q, %v", name, err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
