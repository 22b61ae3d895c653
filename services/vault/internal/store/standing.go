package store

import (
	"context"
	"database/sql"
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
	return use(ctx, s.db, used)
}

// StatementUsed reports whether a statement was used before.
func (s *Store) StatementUsed(ctx context.Context, digest []byte) (bool, error) {
	var n int
	if err := s.db.QueryRowContext(ctx, `SELECT count(*) FROM statements WHERE digest = ?`, digest).Scan(&n); err != nil {
		return false, fmt.Errorf("read statement: %w", err)
	}
	return n > 0, nil
}

// InsertStanding keeps what a human granted, and uses up its statement where used is not nil; ErrStatementUsed.
func (s *Store) InsertStanding(ctx context.Context, g *Standing, used *UsedStatement) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		if used != nil {
			if err := use(ctx, tx, *used); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO standing (standing_id, digest, kind, operator, principal, session, granted_at,
			statement, signature) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			g.ID, g.Digest, g.Kind, g.Operator, g.Principal, g.Session, nanos(g.GrantedAt), blob(g.Statement), blob(g.Signature))
		if err != nil {
			return fmt.Errorf("insert standing: %w", err)
		}
		return nil
	})
}

// EndStanding says how it ended; what ended before stays as it was.
func (s *Store) EndStanding(ctx context.Context, id string, used uint32, why string, when time.Time) error {
	err := s.keeping(always, func() error {
		_, err := s.db.ExecContext(ctx, `UPDATE standing SET used = ?, ended_at = ?, ended_why = ? WHERE standing_id = ? AND ended_at = 0`,
			used, nanos(when), why, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("end standing: %w", err)
	}
	return nil
}

// OpenStanding returns what nobody has said the end of: in a process that starts, what ended with the one before.
func (s *Store) OpenStanding(ctx context.Context) ([]*Standing, error) {
	return s.standing(ctx, `WHERE ended_at = 0`)
}

// StandingOf returns the evidence of a session, oldest first.
func (s *Store) StandingOf(ctx context.Context, session string) ([]*Standing, error) {
	return s.standing(ctx, `WHERE session = ?`, session)
}

func (s *Store) standing(ctx context.Context, where string, args ...any) ([]*Standing, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT standing_id, digest, kind, operator, principal, session, granted_at, statement, signature,
		used, ended_at, ended_why FROM standing `+where+` ORDER BY granted_at, standing_id`, args...) // #nosec G202 -- constants
	if err != nil {
		return nil, fmt.Errorf("read standing: %w", err)
	}
	defer rows.Close()
	var out []*Standing
	for rows.Next() {
		var (
			g              Standing
			granted, ended int64
		)
		if err := rows.Scan(&g.ID, &g.Digest, &g.Kind, &g.Operator, &g.Principal, &g.Session, &granted, &g.Statement, &g.Signature,
			&g.Used, &ended, &g.EndedWhy); err != nil {
			return nil, fmt.Errorf("read standing: %w", err)
		}
		g.GrantedAt, g.EndedAt = at(granted), at(ended)
		out = append(out, &g)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read standing: %w", err)
	}
	return out, nil
}
