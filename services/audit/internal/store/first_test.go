package store_test

import (
	"embed"
	"path/filepath"
	"testing"

	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/database"
)

//go:embed testdata/first/*.sql
var firstState embed.FS

// TestFirstState: a log of the first schema, which testdata/first keeps as it was, opens with its record and its writer's last sequence.
func TestFirstState(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	old, err := database.Open(ctx, database.Config{Path: filepath.Join(dir, store.File), StateDir: dir, Migrations: database.Embedded(firstState, "testdata/first"), Service: "audit", Proved: true})
	if err == nil {
		err = old.Close()
	}
	must(t, err)
	s, err := store.Open(ctx, dir)
	must(t, err)
	defer s.Close()
	still(t, s)
}

// still checks that a log which testdata/first keeps is taken for what it was.
func still(t *testing.T, s *store.Store) {
	t.Helper()
	ctx := t.Context()
	const vault = "spiffe://durward.local/vault/main"
	if head, err := s.Head(ctx); err != nil || head.Entries != 1 || head.Hashes != 1 || head.Last[vault] != 1 {
		t.Errorf("it ends at %+v, %v", head, err)
	}
	if e, err := s.BySequence(ctx, vault, 1); err != nil || e.GetRecord().GetOperationId() != "OLDOPERATION" {
		t.Errorf("its record: %v, %v", e, err)
	}
}
