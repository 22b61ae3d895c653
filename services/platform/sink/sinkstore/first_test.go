package sinkstore

import (
	"embed"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/sink"
)

//go:embed testdata/first/*.sql
var firstState embed.FS

// TestFirstState: egress' state of the first schema, which testdata/first keeps as its first program wrote it, opens undamaged with the key of
// that time. What was spent and used then is so still, and a halt stays.
func TestFirstState(t *testing.T) {
	const key = "ea2e611fb7da3055535ba4ad243e2ced7473d2122657927bc00c9491d5258e66"
	ctx := t.Context()
	first := func(key string) *Store {
		dir := t.TempDir()
		cfg := database.Config{Path: filepath.Join(dir, "egress.db"), StateDir: dir, Migrations: database.Embedded(firstState, "testdata/first"), Service: "egress"}
		db, err := database.Open(ctx, cfg)
		must(t, err)
		must(t, db.Close())
		raw, err := hex.DecodeString(key)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, database.KeyFile), raw, 0o600))
		s, err := Open(ctx, Config{Service: "egress", StateDir: dir})
		must(t, err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s := first(key)
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
	if len(first(key[2:]+"00").Damage()) == 0 {
		t.Error("control: another key's seals are taken for its own")
	}
}
