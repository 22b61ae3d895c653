package store

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/pressly/goose/v3"

	"durward.internal/services/platform/database"
)

// TestSQLite runs the suite on the embedded engine.
func TestSQLite(t *testing.T) {
	suite(t, func(t *testing.T) *Store {
		s, err := Open(t.Context(), t.TempDir(), nil)
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	})
}

// Each migration can be taken back, and taken again, without a trace.
func TestMigrationsDownAndUp(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	db, err := database.Open(ctx, database.Config{Path: filepath.Join(dir, File), StateDir: dir, Migrations: Migrations(), Service: "the vault"})
	must(t, err)
	defer db.Close()
	before := schema(t, db)
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, Migrations(), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	must(t, err)
	if _, err := provider.DownTo(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if left := schema(t, db); len(left) != 0 {
		t.Errorf("left after going down: %v", left)
	}
	if _, err := provider.Up(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, schema(t, db)); diff != "" {
		t.Errorf("after down and up (-want +got):\n%s", diff)
	}
}

func schema(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	rows, err := db.QueryContext(context.Background(), `SELECT name, coalesce(sql, '') FROM sqlite_master
		WHERE name NOT LIKE 'goose%' AND name NOT LIKE 'sqlite_%'`)
	must(t, err)
	defer rows.Close()
	out := map[string]string{}
	for rows.Next() {
		var name, text string
		must(t, rows.Scan(&name, &text))
		out[name] = text
	}
	must(t, rows.Err())
	return out
}

func TestNewerStateIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "vault.db")
	newer := fstest.MapFS{"00001_vault.sql": &fstest.MapFile{Data: []byte("-- +goose Up\nSELECT 1;\n")}, "00999_future.sql": &fstest.MapFile{Data: []byte("-- +goose Up\nSELECT 1;\n")}}
	db, err := database.Open(t.Context(), database.Config{Path: path, StateDir: dir, Migrations: newer, Service: "the vault"})
	must(t, err)
	must(t, db.Close())
	_, err = database.Open(t.Context(), database.Config{Path: path, StateDir: dir, Migrations: Migrations(), Service: "the vault"})
	if !errors.Is(err, database.ErrNewerSchema) {
		t.Errorf("error %v", err)
	}
}
