package store

import (
	"embed"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/sink"
)

//go:embed testdata/first/*.sql
var firstState embed.FS

// TestFirstState: a state of the first schema, which testdata/first keeps as it was, opens. What was spent and used then is so still, and
// a halt stays.
func TestFirstState(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	db, err := database.Open(ctx, database.Config{Path: filepath.Join(dir, File), StateDir: dir, Migrations: database.Embedded(firstState, "testdata/first"), Service: "executor"})
	must(t, err)
	must(t, db.Close())
	s := open(t, dir)
	if damage := s.Damage(); len(damage) > 0 {
		t.Errorf("it is taken for damaged: %q", damage)
	}
	if c, err := s.Control(ctx); err != nil || c.Epoch != 7 || !c.Halted {
		t.Errorf("control is %+v, %v", c, err)
	}
	if err := s.Spend(ctx, spend("OLDOPERATION/1", nil)); !errors.Is(err, sink.ErrSpent) {
		t.Errorf("a key that was spent is spent again: %v", err)
	}
	used := sink.Use{Digest: [32]byte{30: 0x0a, 31: 0x0b}, Limit: 2, Until: time.Unix(0, 4e18)}
	if err := s.Spend(ctx, spend("another", &used)); !errors.Is(err, sink.ErrUsedUp) {
		t.Errorf("a statement that was used up is used again: %v", err)
	}
	if used.Limit = 3; s.Spend(ctx, spend("another", &used)) != nil {
		t.Error("control: a statement that was not used up is refused")
	}
	if _, err := s.CurrentMode(ctx); err != nil {
		t.Errorf("a table that came later: %v", err)
	}
}
