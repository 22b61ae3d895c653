package store

import (
	"errors"
	"path/filepath"
	"testing"

	"durward.internal/services/platform/database"
)

// An operation that changed on the disk while the vault runs is not served.
func TestARowWithoutItsSealIsNotRead(t *testing.T) {
	dir := t.TempDir()
	db, seals, err := database.OpenSealed(t.Context(), database.Config{
		Path: filepath.Join(dir, "vault.db"), StateDir: dir, Migrations: Migrations(), Service: "the vault",
	}, Sealed()...)
	must(t, err)
	defer db.Close()
	s, err := New(t.Context(), db, WithSeals(seals))
	must(t, err)
	must(t, s.Insert(t.Context(), full("one")))
	if _, err := s.Operation(t.Context(), "one"); err != nil {
		t.Error(err)
	}
	_, err = db.ExecContext(t.Context(), `DROP TRIGGER temp.seal_operations_update; UPDATE operations SET principal = 'other'`)
	must(t, err)
	if _, err := s.Operation(t.Context(), "one"); !errors.Is(err, database.ErrDamaged) {
		t.Errorf("it is served: %v", err)
	}
	if _, err := s.Operations(t.Context(), 10, pending); !errors.Is(err, database.ErrDamaged) {
		t.Errorf("it is listed: %v", err)
	}
}
