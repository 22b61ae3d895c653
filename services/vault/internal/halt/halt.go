// Package halt is the vault's switch: the epoch, and whether everything is halted. It is durable, and
// what passes through Within is on one side of a halt or the other, never across it.
//
// Halting needs no statement, since stopping is always safe; resuming does, and the server checks it.
package halt

import (
	"context"
	"fmt"
	"sync"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/vault/internal/store"
)

// Switch holds the epoch and the halt. It is safe for concurrent use.
type Switch struct {
	store *store.Store
	mu    sync.RWMutex
	now   store.Control
	// moved is raised when the epoch changes.
	moved clock.Signal
}

// New reads the switch's position from the store: a restart does not end a halt.
func New(ctx context.Context, s *store.Store) (*Switch, error) {
	control, err := s.Control(ctx)
	if err != nil {
		return nil, fmt.Errorf("halt: %w", err)
	}
	return &Switch{store: s, now: control}, nil
}

// Now returns the epoch and the halt as they are.
func (s *Switch) Now() store.Control {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.now
}

// Over reports whether a halt, or a resume after one, ended what was asked for in that epoch.
func (s *Switch) Over(epoch uint64) bool { return holds(s.Now().Epoch != epoch) }

// Moved returns a channel that is closed when the epoch changes next.
func (s *Switch) Moved() <-chan struct{} { return s.moved.Wait() }

func (s *Switch) setLocked(next store.Control) {
	s.now = next
	s.moved.Raise()
}

// Check returns CODE_HALTED during a halt.
func (s *Switch) Check() error {
	if holds(s.Now().Halted) {
		return errHalted()
	}
	return nil
}

// Within runs f if nothing is halted and epoch is the current one; a halt waits for f. f must not wait for other
// processes. Errors: f's, CODE_HALTED, CODE_EXPIRED for another epoch.
func (s *Switch) Within(epoch uint64, f func() error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch {
	case holds(s.now.Halted):
		return errHalted()
	case holds(s.now.Epoch != epoch):
		return fault.New(callv1.Code_CODE_EXPIRED, "this was asked for before an operator's halt; ask again")
	default:
		return f()
	}
}

// Halt stops every grant and raises the epoch. Halting what is halted raises it again: whoever panics is never told that
// it was not needed.
func (s *Switch) Halt(ctx context.Context, by, reason string, at time.Time) (uint64, error) {
	return s.HaltAbove(ctx, 0, by, reason, at)
}

// HaltAbove is Halt, at an epoch that is above another one too. After an error the halt is in force, at the epoch that is returned, and
// ends with the process.
func (s *Switch) HaltAbove(ctx context.Context, epoch uint64, by, reason string, at time.Time) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := store.Control{Epoch: max(s.now.Epoch, epoch) + 1, Halted: true, Reason: reason, ChangedBy: by, ChangedAt: at}
	if err := s.store.SetControl(ctx, next, nil); err != nil {
		// In force at once all the same: a disk that refuses is no reason to go on granting.
		s.setLocked(next)
		return next.Epoch, fmt.Errorf("halt: %w", err)
	}
	s.setLocked(next)
	return next.Epoch, nil
}

// MayResume reports why a resume at that epoch, of the halt at epoch halted, would fail now: CODE_CONFLICT when nothing is halted, there
// was another halt since, or the epoch is not above the current one.
func (s *Switch) MayResume(halted, epoch uint64) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mayResumeLocked(halted, epoch)
}

func (s *Switch) mayResumeLocked(halted, epoch uint64) error {
	if !s.now.Halted {
		return fault.New(callv1.Code_CODE_CONFLICT, "nothing is halted")
	}
	if s.now.Epoch != halted {
		return fault.New(callv1.Code_CODE_CONFLICT, "there was another halt meanwhile, and it goes on")
	}
	if epoch <= s.now.Epoch {
		return fault.New(callv1.Code_CODE_CONFLICT, "the statement names an epoch that is not above the current one")
	}
	return nil
}

// Resume ends the halt at epoch halted, and none that came after it, at an epoch above it, and uses up the statement that says so. Errors:
// MayResume's, store.ErrStatementUsed.
func (s *Switch) Resume(ctx context.Context, halted, epoch uint64, used store.UsedStatement, at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayResumeLocked(halted, epoch); err != nil {
		return err
	}
	next := store.Control{Epoch: epoch, ChangedBy: used.Operator, ChangedAt: at}
	if err := s.store.SetControl(ctx, next, &used); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	s.setLocked(next)
	return nil
}

func errHalted() error {
	return fault.New(callv1.Code_CODE_HALTED, "everything is halted; reading goes on")
}
