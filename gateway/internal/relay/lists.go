package relay

import (
	"sync/atomic"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/clock"
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
