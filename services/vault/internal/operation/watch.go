package operation

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
)

// maxWatchers bounds how many operators' programs watch at once, and maxNotifiers how many that only tell of what waits.
const (
	maxWatchers  = 64
	maxNotifiers = 16
)

// Kept is how long an operation that is over is remembered.
const Kept = 7 * 24 * time.Hour

// watcher gathers changes for one operator's program. A slow one gets fewer, newer states, and holds nobody up.
type watcher struct {
	changed map[string]*vaultv1.Operation // under Queue.mu
	order   []string
	signal  chan struct{}
}

func (w *watcher) touch(o store.Operation, waiters uint32) {
	if _, known := w.changed[o.ID]; !known {
		w.order = append(w.order, o.ID)
	}
	w.changed[o.ID] = Proto(&o, waiters)
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// Watch sends every operation that waits, oldest first, then each change, until ctx ends or send fails.
func (q *Queue) Watch(ctx context.Context, send func(*vaultv1.Operation) error) error {
	return q.watch(ctx, maxWatchers, q.watchers, func(w *watcher) error {
		q.mu.Lock()
		order, changed := w.order, w.changed
		w.order, w.changed = nil, map[string]*vaultv1.Operation{}
		q.mu.Unlock()
		for _, id := range order {
			if err := send(changed[id]); err != nil {
				return err
			}
		}
		return nil
	})
}

// WatchWaiting sends every operation that waits, oldest first and none where none does, again after each change of which those are.
// Who watches so takes nobody's place at Watch.
func (q *Queue) WatchWaiting(ctx context.Context, send func([]*vaultv1.Operation) error) error {
	var last []string
	return q.watch(ctx, maxNotifiers, q.notifiers, func(w *watcher) error {
		q.mu.Lock()
		w.order, w.changed = nil, map[string]*vaultv1.Operation{}
		var waiting []*vaultv1.Operation
		ids := []string{} // not nil: the first time something is sent in any case
		for _, e := range q.waiting() {
			waiting, ids = append(waiting, Proto(&e.op, e.waiters)), append(ids, e.op.ID)
		}
		q.mu.Unlock()
		if last != nil && slices.Equal(ids, last) {
			return nil
		}
		last = ids
		return send(waiting)
	})
}

// watch is told of what waits now, and calls look then and after each change. Of so many at once who are among those.
func (q *Queue) watch(ctx context.Context, most int, among map[*watcher]struct{}, look func(*watcher) error) error {
	w := &watcher{changed: map[string]*vaultv1.Operation{}, signal: make(chan struct{}, 1)}
	q.mu.Lock()
	if len(among) >= most {
		q.mu.Unlock()
		return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many programs watch already", fault.WithRetry(time.Minute))
	}
	for _, e := range q.waiting() {
		w.touch(e.op, e.waiters)
	}
	among[w] = struct{}{}
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		delete(among, w)
		q.mu.Unlock()
	}()
	for {
		if err := look(w); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.signal:
		}
	}
}

// waiting are the operations that wait, oldest first. It is called with the lock.
func (q *Queue) waiting() []*entry {
	var waiting []*entry
	for _, e := range q.live {
		if e.op.State == pending {
			waiting = append(waiting, e)
		}
	}
	slices.SortFunc(waiting, func(a, b *entry) int {
		if c := a.op.AskedAt.Compare(b.op.AskedAt); c != 0 {
			return c
		}
		return strings.Compare(a.op.ID, b.op.ID)
	})
	return waiting
}

// over reports whether an operation that waits is past its end: by the clock, or since it has waited for so long by a clock that was set back
// meanwhile. One that was asked for later than it is now has waited for nobody knows how long.
func (q *Queue) over(o *store.Operation) bool {
	now := q.Now()
	return !now.Before(o.ExpiresAt) || clock.Passed(o.AskedAt, now) >= o.ExpiresAt.Sub(o.AskedAt) || o.AskedAt.Sub(now) > statement.Skew
}

// Sweep expires what is past its end, of an epoch that is over or of a client that is gone, and forgets redeemed
// operations that nobody settled. It is to be called every second, and after a resume.
func (q *Queue) Sweep(ctx context.Context) error {
	now := q.Now()
	over := map[vaultv1.OperationState][]*entry{}
	ended := q.ended()
	q.mu.Lock()
	for _, e := range q.live {
		switch e.op.State {
		case pending, approved:
			voided := q.Halt.Over(e.op.Epoch)
			if (voided || q.over(&e.op) || !q.letIn(e.op.Principal) || ended[e.op.ID]) && !e.claimed {
				e.claimed = true
				over[e.op.State] = append(over[e.op.State], e)
			}
		case running:
			if now.Sub(e.op.RedeemedAt) >= JoinRunning {
				delete(q.live, e.op.ID)
			}
		default: // it is over
		}
	}
	q.mu.Unlock()
	var errs []error
	for from, entries := range over {
		errs = append(errs, q.expire(ctx, from, entries, now))
	}
	return errors.Join(errs...)
}

// ended names the operations that wait for a live call by standing authority that is over. It judges them outside the lock.
func (q *Queue) ended() map[string]bool {
	q.mu.Lock()
	var waiting []store.Operation
	for _, e := range q.live {
		if e.op.State == approved && e.op.Standing() {
			waiting = append(waiting, e.op)
		}
	}
	q.mu.Unlock()
	out := map[string]bool{}
	for i := range waiting {
		if _, err := q.holds(&waiting[i]); err != nil {
			out[waiting[i].ID] = true
		}
	}
	return out
}

func (q *Queue) expire(ctx context.Context, from vaultv1.OperationState, entries []*entry, now time.Time) error {
	ended := make([]*store.Operation, len(entries))
	for i, e := range entries {
		o := e.op
		o.State, o.DecidedAt, o.DecisionReason = expired, now, "nobody decided in time"
		if from == approved {
			o.DecisionReason = "nobody came for the approval in time"
			o.DecidedAt = e.op.DecidedAt
		}
		switch {
		case q.over(&o):
		case !q.letIn(o.Principal):
			o.DecisionReason = reasonGone
		case o.Standing() && o.Epoch == q.Halt.Now().Epoch:
			o.DecisionReason = reasonEnded
		default:
			o.DecisionReason = reasonHalted
		}
		ended[i] = &o
	}
	if err := q.Store.End(ctx, from, ended...); err != nil {
		if errors.Is(err, store.ErrState) {
			return q.expireEach(ctx, from, entries, now)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, e := range entries {
			e.claimed = false // the next sweep tries again
		}
		return err
	}
	for i, e := range entries {
		record := journal.Operation(auditv1.Kind_KIND_EXPIRED, auditv1.Status_STATUS_DENIED, ended[i])
		record.Body.Action, record.Body.Reason = "expire", ended[i].DecisionReason
		record.RequestId = ended[i].RequestID
		q.Journal.Note(ctx, record)
		_, _ = q.settleClaim(e, ended[i], nil)
	}
	return nil
}

// expireEach is expire where one of them stands elsewhere in the store, as after a change that was written down and whose answer was
// lost: that one is read again, for the next sweep to judge, and keeps none of the others.
func (q *Queue) expireEach(ctx context.Context, from vaultv1.OperationState, entries []*entry, now time.Time) error {
	var errs []error
	for i, e := range entries {
		if len(entries) > 1 {
			errs = append(errs, q.expire(ctx, from, entries[i:i+1], now))
			continue
		}
		o, err := q.Store.Operation(ctx, e.op.ID)
		_, _ = q.settleClaim(e, o, err)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Prune forgets operations that were asked for longer than Kept ago.
func (q *Queue) Prune(ctx context.Context) error { return q.Store.Prune(ctx, q.Now().Add(-Kept)) }

// Proto writes an operation as operators see it.
func Proto(o *store.Operation, waiters uint32) *vaultv1.Operation {
	out := &vaultv1.Operation{
		OperationId: o.ID, State: o.State, Principal: o.Principal, Session: o.Session, Channel: o.Channel,
		ClientName: o.ClientName, KeyBound: o.KeyBound, Tool: o.ToolRef(), Tier: o.Tier, Arguments: o.Arguments,
		AgentReason: o.AgentReason, Audience: o.Audience, Epoch: o.Epoch, AskedAt: timestamppb.New(o.AskedAt),
		ExpiresAt: timestamppb.New(o.ExpiresAt), DecidedBy: o.DecidedBy, DecisionReason: o.DecisionReason,
		RequestId: o.RequestID, Waiters: waiters, Joined: o.Joined, Statement: o.HumanStatement(),
		PolicyTier: o.PolicyTier, Rule: o.Rule,
	}
	if !o.DecidedAt.IsZero() {
		out.DecidedAt = timestamppb.New(o.DecidedAt)
	}
	return out
}
