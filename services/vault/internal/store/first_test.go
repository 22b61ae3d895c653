package store

import (
	"embed"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/database"
)

//go:embed testdata/first/*.sql
var firstState embed.FS

// TestFirstState: a state of the first schema, which testdata/first keeps as it was, opens. What was spent and used then is so still, a
// halt stays, and the tables are those of a new state: no migration that landed was changed.
func TestFirstState(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	cfg := database.Config{Path: filepath.Join(dir, File), StateDir: dir, Migrations: database.Embedded(firstState, "testdata/first"), Service: "the vault"}
	db, err := database.Open(ctx, cfg)
	must(t, err)
	must(t, db.Close())
	s, err := Open(ctx, dir, nil)
	must(t, err)
	still(t, s)
	must(t, s.Close())

	tables := func(dir string) map[string]string {
		db, err := database.Open(ctx, database.Config{Path: filepath.Join(dir, File), StateDir: dir, Migrations: Migrations(), Service: "the vault"})
		must(t, err)
		defer db.Close()
		return schema(t, db)
	}
	if diff := cmp.Diff(tables(t.TempDir()), tables(dir)); diff != "" {
		t.Errorf("its tables beside a new state's (-want +got):\n%s", diff)
	}
}

// still checks that a state which testdata/first keeps is taken for what it was.
func still(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	if damage := s.Damage(); len(damage) > 0 {
		t.Errorf("it is taken for damaged: %q", damage)
	}
	if c, err := s.Control(ctx); err != nil || c.Epoch != 7 || !c.Halted || c.Reason != "looks strange" {
		t.Errorf("control is %+v, %v", c, err)
	}
	if err := s.Spend(ctx, Spend{OperationID: "OLDOPERATION", Use: 1}); !errors.Is(err, ErrSpent) {
		t.Errorf("a use that was redeemed is redeemed again: %v", err)
	}
	if used, err := s.StatementUsed(ctx, []byte{0x0a, 0x0b}); err != nil || !used {
		t.Errorf("a statement that was used counts as unused: %v, %v", used, err)
	}
	if o, err := s.Operation(ctx, "OLDOPERATION"); err != nil || o.DecidedBy != "ada" {
		t.Errorf("its operation: %+v, %v", o, err)
	}
}
