package store

import (
	"errors"
	"path/filepath"
	"testing"

	"durward.internal/services/platform/database"
)

// An operation that changed on the disk while the vault runs is not served.
func TestARowWithoutItsSealIsNotRead(t *testing.T) {
	s, err := Open(t.Context(), t.TempDir(), nil)
	must(t, err)
	defer s.Close()
	must(t, s.Insert(t.Context(), full("one")))
	if _, err := s.Operation(t.Context(), "one"); err != nil {
		t.Error(err)
	}
	_, err = s.engine.(*sqlite).db.ExecContext(t.Context(), `DROP TRIGGER temp.seal_operations_update; UPDATE operations SET principal = 'other'`)
	must(t, err)
	if _, err := s.Operation(t.Context(), "one"); !errors.Is(err, database.ErrDamaged) {
		t.Errorf("it is served: %v", err)
	}
	if _, _, err := s.Operations(t.Context(), Page{Limit: 10}, pending); !errors.Is(err, database.ErrDamaged) {
		t.Errorf("it is listed: %v", err)
	}
}

// TestASwitchThatBearsItsSealStays: damage elsewhere does not take the epoch back, which grants of before a halt are judged by.
func TestASwitchThatBearsItsSealStays(t *testing.T) {
	for spoil, want := range map[string]Control{
		`UPDATE operations SET principal = 'other'`: {Epoch: 7},
		`UPDATE control SET epoch = 2`:              {Epoch: 1, Halted: true},
		`DELETE FROM control`:                       {Epoch: 1, Halted: true},
	} {
		dir := t.TempDir()
		s, err := Open(t.Context(), dir, nil)
		must(t, err)
		must(t, s.Insert(t.Context(), full("one")))
		must(t, s.SetControl(t.Context(), Control{Epoch: 7}, nil))
		must(t, s.Close())
		plain, err := database.Open(t.Context(), database.Config{Path: filepath.Join(dir, File), StateDir: dir, Migrations: Migrations(), Service: "the vault"})
		must(t, err)
		_, err = plain.ExecContext(t.Context(), spoil)
		must(t, errors.Join(err, plain.Close()))
		again, err := Open(t.Context(), dir, nil)
		must(t, err)
		if c, err := again.Control(t.Context()); err != nil || c != want || len(again.Damage()) == 0 {
			t.Errorf("%s: %+v, %v, damage %q", spoil, c, err, again.Damage())
		}
		must(t, again.Close())
	}
}

// TestWhatCannotBeReadOrWrittenIsNotDone: a spend whose operation cannot be moved is none, and a spend key that cannot be read is not one
// that was never redeemed.
func TestWhatCannotBeReadOrWrittenIsNotDone(t *testing.T) {
	ctx := t.Context()
	s, err := Open(ctx, t.TempDir(), nil)
	must(t, err)
	must(t, s.Insert(ctx, full("one")))
	must(t, s.Approve(ctx, full("one"), nil))
	_, err = s.engine.(*sqlite).db.ExecContext(ctx, `CREATE TRIGGER broken BEFORE UPDATE ON operations BEGIN SELECT RAISE(ABORT, 'broken'); END`)
	must(t, err)
	if err := s.Spend(ctx, Spend{OperationID: "one", Use: 1}); err == nil || errors.Is(err, ErrState) {
		t.Errorf("the operation stays approved: %v", err)
	}
	if _, err := s.Spent(ctx, "one", 1); !errors.Is(err, ErrNotFound) {
		t.Errorf("the spend key: %v", err)
	}
	must(t, s.Close())
	if _, err := s.Spent(ctx, "one", 1); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("a spend key that cannot be read: %v", err)
	}
}
