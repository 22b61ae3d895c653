package store

import (
	"context"
	"fmt"
	"time"
)

// Token is a reference and the value that it stands for, encrypted under the key of its session.
type Token struct {
	Ref   string
	Value []byte
	At    time.Time
}

// KeepTokens adds a session's references; one that is there already stays as it is.
func (s *Store) KeepTokens(ctx context.Context, session string, list []Token) error {
	return s.engine.transact(ctx, func(w writer) error {
		for _, t := range list {
			if _, err := w.insert(ctx, tokens, session, t.Ref, blob(t.Value), nanos(t.At)); err != nil {
				return fmt.Errorf("keep a reference: %w", err)
			}
		}
		return nil
	})
}

// Tokens returns a session's references. Their values are authenticated by their own encryption.
func (s *Store) Tokens(ctx context.Context, session string) ([]Token, error) {
	var out []Token
	err := s.engine.find(ctx, tokens, "WHERE session = ? ORDER BY made_at, ref", []any{session}, func(scan scanner) (bool, error) {
		var t Token
		var made int64
		_, err := scan(&session, &t.Ref, &t.Value, &made)
		t.At = at(made)
		out = append(out, t)
		return true, err
	})
	if err != nil {
		return nil, fmt.Errorf("read references: %w", err)
	}
	return out, nil
}

// TokenSessions returns the sessions that have references.
func (s *Store) TokenSessions(ctx context.Context) ([]string, error) {
	var out []string
	err := s.engine.find(ctx, tokens, "WHERE ref = (SELECT MIN(other.ref) FROM tokens AS other WHERE other.session = tokens.session)", nil,
		func(scan scanner) (bool, error) {
			var t Token
			var session string
			var made int64
			_, err := scan(&session, &t.Ref, &t.Value, &made)
			out = append(out, session)
			return true, err
		})
	if err != nil {
		return nil, fmt.Errorf("read references: %w", err)
	}
	return out, nil
}

// ForgetTokens removes all references of sessions; it may use the reserve.
func (s *Store) ForgetTokens(ctx context.Context, sessions ...string) error {
	return s.write(ctx, always, func(w writer) error {
		for _, session := range sessions {
			if err := w.remove(ctx, tokens, "session = ?", session); err != nil {
				return err
			}
		}
		return nil
	})
}
