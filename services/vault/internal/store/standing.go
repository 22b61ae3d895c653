package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Standing is the evidence of what a human let a session do without being asked each time. It is history: what is in force is in
// memory alone, and ends with the process.
type Standing struct {
	ID     string
	Digest []byte
	// Kind is the statement's: "scope" or "dangerous".
	Kind      string
	Operator  string
	Principal string
	Session   string
	GrantedAt time.Time
	Statement []byte
	Signature []byte
	// Used is how many calls ran by it, as of its end.
	Used uint32
	// EndedAt is zero until it ended, and EndedWhy says by what.
	EndedAt  time.Time
	EndedWhy string
}

// UseStatement uses up a statement that approves no operation by itself; ErrStatementUsed.
func (s *Store) UseStatement(ctx context.Context, used UsedStatement) error {
	return s.engine.transact(ctx, func(w writer) error { return use(ctx, w, used) })
}

// UseOpening uses up the proof by which a key-bound client opens a session, out of the reserve if need be: without a session no agent asks
// that something be stopped. ErrStatementUsed.
func (s *Store) UseOpening(ctx context.Context, client string, digest []byte, at time.Time) error {
	return s.write(ctx, always, func(w writer) error {
		return use(ctx, w, UsedStatement{Digest: digest, Kind: "open", Operator: client, UsedAt: at})
	})
}

// StatementUsed reports whether a statement was used before.
func (s *Store) StatementUsed(ctx context.Context, digest []byte) (used bool, err error) {
	err = s.engine.find(ctx, statements, "WHERE digest = ?", []any{digest}, func(scanner) (bool, error) {
		used = true
		return false, nil
	})
	if err != nil {
		return false, fmt.Errorf("read statement: %w", err)
	}
	return used, nil
}

// InsertStanding keeps what a human granted, and uses up its statement where used is not nil; ErrStatementUsed.
func (s *Store) InsertStanding(ctx context.Context, g *Standing, used *UsedStatement) error {
	return s.engine.transact(ctx, func(w writer) error {
		if used != nil {
			if err := use(ctx, w, *used); err != nil {
				return err
			}
		}
		added, err := w.insert(ctx, standing, g.ID, g.Digest, g.Kind, g.Operator, g.Principal, g.Session, nanos(g.GrantedAt),
			blob(g.Statement), blob(g.Signature), g.Used, nanos(g.EndedAt), g.EndedWhy)
		if err == nil && !added {
			err = errors.New("there is one of that id")
		}
		if err != nil {
			return fmt.Errorf("insert standing: %w", err)
		}
		return nil
	})
}

// EndStanding says how it ended; what ended before stays as it was.
func (s *Store) EndStanding(ctx context.Context, id string, used uint32, why string, when time.Time) error {
	err := s.write(ctx, always, func(w writer) error {
		_, err := w.update(ctx, standing, []column{{"used", used}, {"ended_at", nanos(when)}, {"ended_why", why}}, "standing_id = ? AND ended_at = 0", id)
		return err
	})
	if err != nil {
		return fmt.Errorf("end standing: %w", err)
	}
	return nil
}

// OpenStanding returns what nobody has said the end of: in a process that starts, what ended with the one before.
func (s *Store) OpenStanding(ctx context.Context) ([]*Standing, error) {
	return s.standing(ctx, "ended_at = 0")
}

// StandingOf returns the evidence of a session, oldest first.
func (s *Store) StandingOf(ctx context.Context, session string) ([]*Standing, error) {
	return s.standing(ctx, "session = ?", session)
}

func (s *Store) standing(ctx context.Context, where string, args ...any) ([]*Standing, error) {
	var out []*Standing
	err := s.engine.find(ctx, standing, "WHERE "+where+" ORDER BY granted_at, standing_id", args, func(scan scanner) (bool, error) {
		var (
			g              Standing
			granted, ended int64
		)
		_, err := scan(&g.ID, &g.Digest, &g.Kind, &g.Operator, &g.Principal, &g.Session, &granted, &g.Statement, &g.Signature,
			&g.Used, &ended, &g.EndedWhy)
		g.GrantedAt, g.EndedAt = at(granted), at(ended)
		out = append(out, &g)
		return true, err
	})
	if err != nil {
		return nil, fmt.Errorf("read standing: %w", err)
	}
	return out, nil
}
