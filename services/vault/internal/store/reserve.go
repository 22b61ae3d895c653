package store

import (
	"context"
	"errors"

	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/reserve"
)

// Damage names rows that do not bear their seals; everything is halted before Accept takes them as they are.
func (s *Store) Damage() []string { return s.engine.damage() }

// Accept seals every row as it is.
func (s *Store) Accept(ctx context.Context) error {
	return s.keeping(always, func() error { return s.engine.accept(ctx) })
}

// State is what all of it is now.
func (s *Store) State(ctx context.Context) (recorder.State, error) { return s.engine.state(ctx) }

// distrust halts a switch that does not bear its seal, or is not there: its epoch says nothing.
func (s *Store) distrust(ctx context.Context) error {
	if len(s.Damage()) == 0 {
		return nil
	}
	return s.write(ctx, always, func(w writer) error {
		_, sound, err := findControl(ctx, w)
		if sound || err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		if err := w.remove(ctx, control, "id = id"); err != nil {
			return err
		}
		_, err = w.insert(ctx, control, 1, 1, true, "", "", 0)
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

// keeping runs a durable write, out of the reserve if it has to and is entitled, which is looked at only then.
func (s *Store) keeping(entitled func() bool, write func() error) error {
	if !s.kept.Tight() {
		if err := write(); !reserve.Full(err) {
			return err
		}
	}
	return s.kept.Write(entitled(), write)
}

// write runs a transaction, which may use the reserve if it is entitled.
func (s *Store) write(ctx context.Context, entitled func() bool, f func(writer) error) error {
	return s.keeping(entitled, func() error { return s.engine.transact(ctx, f) })
}
