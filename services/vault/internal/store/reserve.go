package store

import (
	"context"
	"database/sql"

	"durward.internal/services/platform/reserve"
)

// Option changes a store that New makes.
type Option func(*Store)

// WithReserve makes the store give up the reserve, when the disk is full, for what stops things: a halt, a refusal, an end of
// standing authority, and calls of tools that take load off the host. Everything else is then refused with reserve.Refused.
func WithReserve(kept *reserve.Reserve) Option { return func(s *Store) { s.kept = kept } }

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
