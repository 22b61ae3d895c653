package store

import (
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/sink"
)

// What was edited in the executor's database while it was down is named; a switch that was edited is a halt at an epoch that says
// nothing. Without the seals all of it is served.
func TestEditedRowsAreNamed(t *testing.T) {
	for edit, c := range map[string]struct {
		named   string
		control sink.Control
	}{
		`DELETE FROM spent`:                                              {"spent: it has 0 rows of 1", sink.Control{Epoch: 7}},
		`UPDATE spent SET key = 'b/1'`:                                   {"spent: the row b/1 was changed", sink.Control{Epoch: 7}},
		`UPDATE statement_use SET used = 0`:                              {"statement_use: the row 07", sink.Control{Epoch: 7}},
		`DELETE FROM statement_use`:                                      {"statement_use: it has 0 rows of 1", sink.Control{Epoch: 7}},
		`UPDATE control SET epoch = 2`:                                   {"control: the row 1 was changed", sink.Control{Epoch: 1, Halted: true}},
		`DELETE FROM control`:                                            {"control: it has 0 rows of 1", sink.Control{Epoch: 1, Halted: true}},
		`UPDATE host_mode SET mode = 'other'`:                            {"host_mode: the row 1 was changed", sink.Control{Epoch: 7}},
		`UPDATE switch SET work = '{"start":["other"]}'`:                 {"switch: the row 1 was changed", sink.Control{Epoch: 7}},
		`UPDATE switch SET ended_at = NULL`:                              {"", sink.Control{Epoch: 7}}, // it was NULL
		`UPDATE switch_step SET service = 'other'`:                       {"switch_step: the row 1/1 was changed", sink.Control{Epoch: 7}},
		`UPDATE spent SET state = 'done', response = x'00', settled = 1`: {"spent: the row a/1 was changed", sink.Control{Epoch: 7}},
	} {
		t.Run(edit, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			must(t, s.SetControl(t.Context(), sink.Control{Epoch: 7}))
			must(t, s.Spend(t.Context(), spend("a/1", &sink.Use{Digest: [32]byte{7}, Limit: 3, Until: time.Now()})))
			id, err := s.BeginSwitch(t.Context(), &Switch{Operation: "o", Mode: "m", Work: []byte("{}"), BeganAt: time.Now()})
			must(t, err)
			must(t, s.NoteSteps(t.Context(), id, nil, &Step{Number: 1, Service: "chat"}))
			must(t, s.Close())
			plain, err := sql.Open("sqlite", filepath.Join(dir, File))
			must(t, err)
			_, err = plain.ExecContext(t.Context(), edit)
			must(t, errors.Join(err, plain.Close()))
			s = open(t, dir)
			if got := strings.Join(s.Damage(), "; "); c.named == "" && got != "" || !strings.Contains(got, c.named) {
				t.Errorf("it names %q, want %q", got, c.named)
			}
			if got, err := s.Control(t.Context()); err != nil || got != c.control {
				t.Errorf("it is %+v, %v", got, err)
			}
			must(t, s.Accept(t.Context()))
			must(t, s.Close())
			if s = open(t, dir); len(s.Damage()) != 0 {
				t.Errorf("after it was accepted: %q", s.Damage())
			}
		})
	}
}

// A spent key that changed on the disk while the executor runs is not served.
func TestARowWithoutItsSealIsNotRead(t *testing.T) {
	s := open(t, t.TempDir())
	must(t, s.Spend(t.Context(), spend("a/1", nil)))
	_, err := s.DB.ExecContext(t.Context(), `DROP TRIGGER temp.seal_spent_update; UPDATE spent SET arguments = x'00'`)
	must(t, err)
	if _, err := s.Lookup(t.Context(), "a/1"); !errors.Is(err, database.ErrDamaged) {
		t.Errorf("it is served: %v", err)
	}
}
