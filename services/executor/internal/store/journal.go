package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/database"
)

// keepSwitches is how many switches are remembered.
const keepSwitches = 1000

// Switch is one switch of modes, as the journal has it.
type Switch struct {
	// ID is the journal's own number.
	ID        int64
	Operation string
	Mode      string
	// From is the mode before, "" where there was none.
	From       string
	PlanDigest string
	// Work is what is to be done and what was there before, in the switcher's own form: whoever recovers needs nothing else.
	Work    []byte
	BeganAt time.Time
	Steps   []Step
	// EndedAt is zero while it goes on.
	EndedAt time.Time
	Ending
}

// Step is one step of a switch.
type Step struct {
	// Number is 1 for the first and counts on through what undoes earlier ones.
	Number       int
	Action       executorv1.PlanAction
	Service      string
	Compensation bool
	// Ended: it came to an end, well if Done. A step that has not ended was interrupted or goes on.
	Ended, Done bool
	Took        time.Duration
}

// Ending is how a switch ended.
type Ending struct {
	Outcome       executorv1.SwitchOutcome
	FailedService string
	// Cause is one of a fixed set of sentences.
	Cause string
	// NotRunning are services that should run by the outcome and do not.
	NotRunning []string
	// Log are the failed service's last lines: its own words.
	Log []string
	// Recovered: the executor was restarted in the middle.
	Recovered bool
	// Current is the mode that the host is in afterwards; it is not part of the history.
	Current string
}

// BeginSwitch notes, before anything is done, what a switch will do. Only one can be open.
func (s *Store) BeginSwitch(ctx context.Context, w *Switch) (int64, error) {
	var id int64
	err := s.Within(ctx, func(tx *sql.Tx) error {
		var open int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM switch WHERE ended_at IS NULL`).Scan(&open); err != nil {
			return err
		}
		if open > 0 {
			return errors.New("another switch is open")
		}
		done, err := tx.ExecContext(ctx, `INSERT INTO switch (operation, mode, from_mode, plan_digest, work, began_at)
			VALUES (?, ?, ?, ?, ?, ?)`, w.Operation, w.Mode, w.From, w.PlanDigest, w.Work, w.BeganAt.UnixNano())
		if err != nil {
			return err
		}
		if id, err = done.LastInsertId(); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM switch WHERE ended_at IS NOT NULL AND id <= ?`, id-keepSwitches)
		return err
	})
	return id, err
}

// NoteSteps writes down, in one go, how the step that went on ended and that the next one begins; either may be nil. What it
// says of the next is on disk before the step is done.
func (s *Store) NoteSteps(ctx context.Context, id int64, ended, next *Step) error {
	return s.Within(ctx, func(tx *sql.Tx) error {
		if err := noteEnded(ctx, tx, id, ended); err != nil || next == nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO switch_step (switch, number, action, service, compensation) VALUES (?, ?, ?, ?, ?)`,
			id, next.Number, int32(next.Action), next.Service, next.Compensation)
		return err
	})
}

func noteEnded(ctx context.Context, tx *sql.Tx, id int64, ended *Step) error {
	if ended == nil {
		return nil
	}
	_, err := tx.ExecContext(ctx, `UPDATE switch_step SET ended = 1, done = ?, took_ms = ? WHERE switch = ? AND number = ?`,
		ended.Done, ended.Took.Milliseconds(), id, ended.Number)
	return err
}

// EndSwitch writes down, in one go, how the last step ended, how the switch did, and which mode the host is in now.
func (s *Store) EndSwitch(ctx context.Context, id int64, last *Step, at time.Time, e *Ending) error {
	notRunning, err := json.Marshal(e.NotRunning)
	log, bad := json.Marshal(e.Log)
	if err := errors.Join(err, bad); err != nil {
		return failed(err)
	}
	return s.Within(ctx, func(tx *sql.Tx) error {
		if err := noteEnded(ctx, tx, id, last); err != nil {
			return err
		}
		done, err := tx.ExecContext(ctx, `UPDATE switch SET ended_at = ?, outcome = ?, failed_service = ?, cause = ?, not_running = ?,
			log = ?, recovered = ? WHERE id = ? AND ended_at IS NULL`, at.UnixNano(), int32(e.Outcome), e.FailedService, e.Cause,
			notRunning, log, e.Recovered, id)
		if err != nil {
			return err
		}
		if n, err := done.RowsAffected(); err != nil {
			return err
		} else if n == 0 {
			return errors.New("the switch is not open")
		}
		_, err = tx.ExecContext(ctx, `UPDATE host_mode SET mode = ? WHERE only = 1`, e.Current)
		return err
	})
}

// SwitchOf returns the switch of an operation, without its Work, or nil.
func (s *Store) SwitchOf(ctx context.Context, operation string) (*Switch, error) {
	found, err := s.switches(ctx, selectSwitch+` WHERE operation = ? ORDER BY id DESC LIMIT 1`, operation)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	found[0].Work = nil
	return found[0], nil
}

// OpenSwitch returns the switch that has not ended, or nil.
func (s *Store) OpenSwitch(ctx context.Context) (*Switch, error) {
	found, err := s.switches(ctx, selectSwitch+` WHERE ended_at IS NULL ORDER BY id LIMIT 1`)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	return found[0], nil
}

// Switches returns the newest ones, the newest first, without their Work.
func (s *Store) Switches(ctx context.Context, limit int) ([]*Switch, error) {
	found, err := s.switches(ctx, selectSwitch+` ORDER BY id DESC LIMIT ?`, limit)
	for _, w := range found {
		w.Work = nil
	}
	return found, err
}

const selectSwitch = `SELECT id, operation, mode, from_mode, plan_digest, work, began_at, ended_at, outcome, failed_service, cause,
	not_running, log, recovered FROM switch`

func (s *Store) switches(ctx context.Context, query string, args ...any) ([]*Switch, error) {
	out, err := s.readSwitches(ctx, query, args...)
	if err != nil {
		return nil, failed(err)
	}
	// The store has one connection, so one answer is read to its end before the next question.
	for _, w := range out {
		if w.Steps, err = s.readSteps(ctx, w.ID); err != nil {
			return nil, failed(err)
		}
	}
	return out, nil
}

func (s *Store) readSwitches(ctx context.Context, query string, args ...any) (out []*Switch, err error) {
	err = database.Each(ctx, s.DB, func(scan func(...any) error) error {
		w := &Switch{}
		var began int64
		var ended sql.NullInt64
		var outcome int32
		var notRunning, log []byte
		if err := scan(&w.ID, &w.Operation, &w.Mode, &w.From, &w.PlanDigest, &w.Work, &began, &ended, &outcome, &w.FailedService,
			&w.Cause, &notRunning, &log, &w.Recovered); err != nil {
			return err
		}
		w.BeganAt, w.Outcome = time.Unix(0, began), executorv1.SwitchOutcome(outcome)
		if ended.Valid {
			w.EndedAt = time.Unix(0, ended.Int64)
		}
		out = append(out, w)
		return errors.Join(json.Unmarshal(notRunning, &w.NotRunning), json.Unmarshal(log, &w.Log))
	}, query, args...)
	return out, err
}

func (s *Store) readSteps(ctx context.Context, id int64) (out []Step, err error) {
	err = database.Each(ctx, s.DB, func(scan func(...any) error) error {
		var t Step
		var action int32
		var took int64
		err := scan(&t.Number, &action, &t.Service, &t.Compensation, &t.Ended, &t.Done, &took)
		t.Action, t.Took = executorv1.PlanAction(action), time.Duration(took)*time.Millisecond
		out = append(out, t)
		return err
	}, `SELECT number, action, service, compensation, ended, done, took_ms FROM switch_step WHERE switch = ? ORDER BY number`, id)
	return out, err
}

// Took returns how long the newest n steps of that kind took that went well, the oldest first.
func (s *Store) Took(ctx context.Context, action executorv1.PlanAction, service string, n int) (out []time.Duration, err error) {
	err = database.Each(ctx, s.DB, func(scan func(...any) error) error {
		var took int64
		err := scan(&took)
		out = append(out, time.Duration(took)*time.Millisecond)
		return err
	}, `SELECT took_ms FROM (SELECT switch, number, took_ms FROM switch_step
		WHERE service = ? AND action = ? AND done = 1 ORDER BY switch DESC, number DESC LIMIT ?) ORDER BY switch, number`,
		service, int32(action), n)
	return out, failed(err)
}

// CurrentMode is the mode that the host was switched to last, or "".
func (s *Store) CurrentMode(ctx context.Context) (mode string, err error) {
	err = s.DB.QueryRowContext(ctx, `SELECT mode FROM host_mode WHERE only = 1`).Scan(&mode)
	return mode, failed(err)
}

// SetCurrentMode notes the mode that the host is in without a switch: its boot rule was followed.
func (s *Store) SetCurrentMode(ctx context.Context, mode string) error {
	_, err := s.DB.ExecContext(ctx, `UPDATE host_mode SET mode = ? WHERE only = 1`, mode)
	return failed(err)
}

// Booted is the newest boot of the host whose boot rule was followed to its end; "" where there is none.
func (s *Store) Booted(ctx context.Context) (boot string, err error) {
	err = s.DB.QueryRowContext(ctx, `SELECT boot FROM host_mode WHERE only = 1`).Scan(&boot)
	return boot, failed(err)
}

// SetBooted notes that the boot rule was followed in a boot of the host.
func (s *Store) SetBooted(ctx context.Context, boot string) error {
	_, err := s.DB.ExecContext(ctx, `UPDATE host_mode SET boot = ? WHERE only = 1`, boot)
	return failed(err)
}
