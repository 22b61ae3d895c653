package relay

import (
	"context"
	"sync/atomic"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
)

// lists is when what clients may call may have changed last: by what humans pin, or by rules. The zero value is ready.
type lists struct {
	changed atomic.Pointer[time.Time]
	moved   clock.Signal
}

// knows reports whether the vault was asked for a permit since then.
func (l *lists) knows(p permit) bool {
	at := l.changed.Load()
	return at == nil || !p.got.Before(*at)
}

// ListsChanged says that what clients may call may have changed: what is listed next is what the vault says then.
func (r *Relay) ListsChanged() {
	now := time.Now()
	r.lists.changed.Store(&now)
	r.lists.moved.Raise()
}

// ListsMoved returns a channel that is closed when that happens next.
func (r *Relay) ListsMoved() <-chan struct{} { return r.lists.moved.Wait() }

// Relisted returns a channel that is closed when a key-bound session, whose permits were of a time before lists changed, has later ones: what
// it listed in between may be old.
func (s *Session) Relisted() <-chan struct{} { return s.relisted.Wait() }

// raise wakes who waits for a session's next state.
func (r *Relay) raise(s *Session, before *state) {
	const role = optionsv1.Role_ROLE_VAULT
	s.renewed.Raise()
	if now := s.state.Load(); now.keyBound && !r.lists.knows(before.permits[role]) && r.lists.knows(now.permits[role]) {
		s.relisted.Raise()
	}
}

// listener is a stream of a session; ended is closed when the vault says that the session has ended.
type listener struct {
	session *Session
	ended   chan struct{}
}

// sessionEnded tells the streams of a session that the vault ended it.
func (r *Relay) sessionEnded(ref string) {
	r.listeners.Range(func(key, _ any) bool {
		if l, ok := key.(*listener); ok && l.session.Ref() == ref {
			if _, first := r.listeners.LoadAndDelete(l); first {
				close(l.ended)
			}
		}
		return true
	})
}

// Refused returns true when the vault takes a caller no more who listens and asks for nothing, and false when ctx or the session ends.
// The vault is asked when rules or clients may have changed, also when it could not be heard for a while. A key-bound client, or a
// messaging one, is refused too when the vault says that it ended the session: the next request opens another.
func (r *Relay) Refused(ctx context.Context, s *Session, by Caller) bool {
	by = Caller{Credential: by.Credential} // a proof is for the request that brought it
	l := &listener{s, make(chan struct{})}
	r.listeners.Store(l, nil)
	defer r.listeners.Delete(l)
	for ended, moved := l.ended, r.ListsMoved(); ; {
		select {
		case <-ctx.Done():
			return false
		case <-s.Done():
			return false
		case <-ended:
			if s.KeyBound() || s.sender != (Sender{}) {
				return true
			}
			ended = nil // it may have made room for another, which opening it again would end
		case <-moved:
			moved = r.ListsMoved()
			if fault.Is(r.show(ctx, s, by), callv1.Code_CODE_UNAUTHENTICATED) {
				return true
			}
		}
	}
}

// show shows the credential of a client that listens again: CODE_UNAUTHENTICATED where the vault takes it no more. For a key-bound client,
// whom nobody signs for here, CODE_PROOF_REQUIRED says that the proof is all that it lacks. That of a messaging client is not shown: opening
// a session again ends its sender's other one.
func (r *Relay) show(ctx context.Context, s *Session, by Caller) error {
	const role = optionsv1.Role_ROLE_VAULT
	switch now := s.state.Load(); {
	case now.keyBound:
		return r.reopen(ctx, s, by, now)
	case s.sender != (Sender{}):
		return nil
	default:
		_, err := r.permit(ctx, s, by, role, now.permits[role].signed)
		return err
	}
}
