package store

import (
	"context"
	"database/sql"
	"errors"

	"durward.internal/services/platform/database"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/reserve"
)

// Option changes a store that New makes.
type Option func(*Store)

// WithReserve makes the store give up the reserve, when the disk is full, for what stops things: a halt, a refusal, an end of
// standing authority, and calls of tools that take load off the host. Everything else is then refused with reserve.Refused.
func WithReserve(kept *reserve.Reserve) Option { return func(s *Store) { s.kept = kept } }

// WithSeals makes the store refuse rows that do not bear their seals. Sealed are the tables that have them.
func WithSeals(seals *database.Seals) Option { return func(s *Store) { s.seals = seals } }

// Sealed returns the tables that carry authority, for database.OpenSealed.
func Sealed() []string { return []string{"operations", "statements", "spent", "standing", "control"} }

// Damage names rows that do not bear their seals; everything is halted before Accept takes them as they are.
func (s *Store) Damage() []string {
	if s.seals == nil {
		return nil
	}
	return s.seals.Damage()
}

// Accept seals every row as it is.
func (s *Store) Accept(ctx context.Context) error {
	return s.keeping(always, func() error { return s.seals.Accept(ctx) })
}

// State is what all of it is now; nothing without seals.
func (s *Store) State(ctx context.Context) (recorder.State, error) {
	if s.seals == nil {
		return recorder.State{}, nil
	}
	state, err := s.seals.State(ctx)
	return recorder.State(state), err
}

// distrust halts a switch that does not bear its seal, or is not there: its epoch says nothing.
func (s *Store) distrust(ctx context.Context) error {
	if len(s.Damage()) == 0 {
		return nil
	}
	return s.transactKept(ctx, always, func(tx *sql.Tx) error {
		var sound bool
		err := tx.QueryRowContext(ctx, `SELECT `+s.seals.Sound("control")+` FROM control WHERE id = 1`).Scan(&sound) // #nosec G202 -- constants
		if sound || err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		_, err = tx.ExecContext(ctx, `DELETE FROM control;
			INSERT INTO control (id, epoch, halted, reason, changed_by, changed_at) VALUES (1, 1, 1, '', '', 0)`)
		return err
	})
}

func always() bool { return true }

// relieves reports whether the operation's call takes load off the host.
func relieves(o *Operation) func() bool { return func() bool { return reserve.Relieves(o.ToolName) } }

// relievesOf is relieves for an operation that is stored.
func (s *Store) relievesOf(ctx context.Context, operationID string) func() bool {
	return func() bool {
		o, err := s.Operation(ctx, operationID)
		return err == nil && reserve.Relieves(o.ToolName)
	}
}

// keeping runs a write, out of the reserve if it has to and is entitled, which is looked at only then.
func (s *Store) keeping(entitled func() bool, write func() error) error {
	if !s.kept.Tight() {
		if err := write(); !reserve.Full(err) {
			return err
		}
	}
	return s.kept.Write(entitled(), write)
}

// transactKept is transact that may use the reserve.
func (s *Store) transactKept(ctx context.Context, entitled func() bool, f func(*sql.Tx) error) error {
	return s.keeping(entitled, func() error { return s.transact(ctx, f) })
}
