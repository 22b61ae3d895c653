package sink

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
)

// refusal is what Confirm returns when a call may not have its effect any more. A handler that returns it, wrapped or not, and
// had nothing confirmed before, says that it did nothing.
type refusal struct {
	code  callv1.Code
	cause error
}

func (r *refusal) Error() string { return say(r.code) }

func (r *refusal) Unwrap() error { return r.cause }

// As lets the refusal be seen as the fault that callers get, wherever it ends up.
func (r *refusal) As(target any) bool {
	f, ok := target.(**fault.Error)
	if ok {
		*f = newFault(r.code, r.cause)
	}
	return ok
}

// errUnconfirmed: a handler changed something, or said so, and never asked.
var errUnconfirmed = errors.New("the tool's handler never confirmed its change")

// Confirm is called by a tool's handler once nothing is left to wait for, immediately before it changes anything. It checks
// again what may have changed while the call waited for its turn: that nothing is halted, that the grant's epoch still holds,
// that the human's statement has not ended, and that what the call acts on is what was approved. A call that runs by standing
// authority or unattended, and that waited for more than a moment, it puts to the vault again: a human may have revoked what it
// rests on. If all holds it runs begin, which must not wait for other processes: a halt that is asked for meanwhile answers when begin has returned.
//
// Otherwise begin is not run, and the handler returns the error as it is: CODE_HALTED, CODE_EXPIRED, CODE_CONFLICT,
// CODE_DENIED, CODE_UNAVAILABLE. A handler that answers well and never confirmed is a fault in the program, and its answer is withheld. In a
// context that is not a changing tool's, it refuses.
func Confirm(ctx context.Context, begin func()) error {
	n := noted(ctx)
	if n.confirm == nil {
		return fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(errors.New("a change outside a tool that may change anything")))
	}
	return n.confirm(ctx, false, begin)
}

// Late is Confirm for what it let begin and what was not that far when Confirm had to return, as where a container is made before it
// is started: everything is checked again but what the call acts on, which is on its way by now. If it does not hold, nothing was begun,
// and the handler returns the error as it is.
func Late(ctx context.Context, begin func()) error {
	n := noted(ctx)
	if n.confirm == nil || !n.begun {
		return fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(errors.New("the late beginning of a change that was never confirmed")))
	}
	n.begun = false
	return n.confirm(ctx, true, begin)
}

func (a *Authority) confirm(ctx context.Context, c *call, n *notes, late bool, begin func()) error {
	for confirmRequired() {
		fence := a.fence.Load()
		// What may take a moment comes before the lock, and what may take longest first.
		if r := a.stillStands(ctx, c, fence); r != nil {
			return r
		}
		if r := a.stillApproved(ctx, c, late); r != nil {
			return r
		}
		again, r := a.begin(c, n, fence, begin)
		if r != nil {
			return r
		}
		if !again {
			return nil
		}
	}
	n.begun = true
	begin()
	return nil
}

// begin lets the effect begin unless something ended it. again says that something ended since fence, and that nothing was done yet.
func (a *Authority) begin(c *call, n *notes, fence uint64, begin func()) (again bool, _ *refusal) {
	a.beginning.RLock()
	defer a.beginning.RUnlock()
	switch now := a.Control(); {
	case haltHolds(now.Halted):
		return false, &refusal{callv1.Code_CODE_HALTED, errors.New("halted while the call waited for its turn")}
	case !epochHolds(c.grant.GetEpoch(), now.Epoch):
		return false, &refusal{callv1.Code_CODE_EXPIRED, errors.New("the epoch was raised while the call waited for its turn")}
	case a.endedLocked(c):
		return false, &refusal{callv1.Code_CODE_EXPIRED, errors.New("an operator ended the statement while the call waited for its turn")}
	case endHolds(a.fence.Load() != fence):
		return true, nil
	}
	n.begun = true
	begin()
	return false, nil
}

// stillStands asks the vault whether what the call rests on holds, where it waited and no human approved it as it is, and wherever
// something ended since it was redeemed: its scope or dangerous mode may have been revoked, its client taken out, its session ended.
// Without an answer it does not hold.
func (a *Authority) stillStands(ctx context.Context, c *call, fence uint64) *refusal {
	rests := c.unattended || c.agreed != nil && standing(c.agreed.Kind)
	waited := a.cfg.Now().Sub(c.redeemed)
	if due := rests && (waited < 0 || waited > patience) || fence != c.fence; !checkRequired() || !due {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, vaultTimeout)
	defer cancel()
	_, err := a.cfg.Vault.CheckGrant(ctx, &vaultv1.CheckGrantRequest{Grant: c.signedGrant})
	if err == nil {
		return nil
	}
	f := fault.From(err)
	cause := fmt.Errorf("while the call waited for its turn: the vault does not hold the grant to stand: %s: %w", fault.CodeName(f.Code), f)
	switch f.Code {
	case callv1.Code_CODE_EXPIRED, callv1.Code_CODE_HALTED, callv1.Code_CODE_DENIED:
		return &refusal{f.Code, cause}
	default:
		return &refusal{callv1.Code_CODE_UNAVAILABLE, cause}
	}
}

// stillApproved checks the statement and, unless the call is late, the subject as they are now.
func (a *Authority) stillApproved(ctx context.Context, c *call, late bool) *refusal {
	if c.statement != nil {
		switch err := c.agreed.Stands(a.cfg.Trust.Current().AllowedSigners, a.cfg.Now()); {
		case errors.Is(err, statement.ErrTime):
			return &refusal{callv1.Code_CODE_EXPIRED, fmt.Errorf("while the call waited for its turn: %w", err)}
		case err != nil:
			return &refusal{callv1.Code_CODE_DENIED, fmt.Errorf("while the call waited for its turn: %w", err)}
		}
	}
	if c.unattended {
		if arguments, err := c.canonical(); err != nil || !a.unattended(c, arguments) {
			return &refusal{callv1.Code_CODE_DENIED, errors.New("what may run unattended changed or ended while the call waited for its turn")}
		}
	}
	if late {
		return nil
	}
	// Once more, last before the effect, though a switch has planned under the host's lease by now: since then the call may have
	// waited for the vault, and meanwhile a service can end by itself or its program be replaced.
	subject, err := c.subjects.Subject(ctx, c.tool, c.request)
	if err != nil {
		return &refusal{callv1.Code_CODE_CONFLICT, fmt.Errorf("the subject is gone: %w", err)}
	}
	if digest := sha256.Sum256(subject.GetEntry()); !subjectMatches(c.subject[:], digest[:]) {
		return &refusal{callv1.Code_CODE_CONFLICT, errors.New("the subject changed while the call waited for its turn")}
	}
	return nil
}

// Continue is called before each later step of a change whose first was confirmed: a switch of modes stops and starts one
// service after the other, and what it acts on is by then no longer what was approved, because of what it did itself. It
// checks that nothing is halted meanwhile, nor was for a moment, and runs begin, which must not wait for other processes. In a
// change that nothing confirmed, or a context that is no changing tool's, it refuses.
func Continue(ctx context.Context, begin func()) error {
	n := noted(ctx)
	if n.proceed == nil || !n.begun {
		return fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(errors.New("a step of a change that was never confirmed")))
	}
	return n.proceed(begin)
}

// Proceed runs begin unless the sink is halted: for what an earlier, confirmed change left to be done after a restart, where
// no call waits any more. Otherwise it returns CODE_HALTED. begin must not wait for other processes.
func (a *Authority) Proceed(begin func()) error { return a.proceed(nil, begin) }

// proceed is Proceed for a call, if it is not nil, whose grant ends when the epoch is raised: a halt that is over again still ended it.
func (a *Authority) proceed(c *call, begin func()) error {
	a.beginning.RLock()
	defer a.beginning.RUnlock()
	if now := a.Control(); haltHolds(now.Halted) || c != nil && !epochHolds(c.grant.GetEpoch(), now.Epoch) {
		return &refusal{callv1.Code_CODE_HALTED, errors.New("halted, or the epoch raised, in the middle of a change")}
	}
	begin()
	return nil
}
