package operation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
)

// Request is a mutation that a principal asks for. The operation is complete but for what the queue gives it: id, state,
// epoch and times.
type Request struct {
	Operation store.Operation
	// Arguments are the decoded form of Operation.Arguments, for the record.
	Arguments proto.Message
	// PendingLimit is how many operations the principal may have waiting.
	PendingLimit int
	// Rule is the policy's rule that asks.
	Rule string
	// InDangerous: the session is in dangerous mode, whatever becomes of this request; records say so.
	InDangerous bool
	// Wait is how long it may wait, at most Life; 0 means Life.
	Wait time.Duration
	// JoinOnly: where there is no identical one to join, nothing comes to be.
	JoinOnly bool
}

// noneToJoin is the answer to a request that may only join.
func noneToJoin() error {
	return fault.New(callv1.Code_CODE_CONFLICT, "no identical call waits or runs, and as things are it would be refused")
}

// Ask returns the operation of the request: a new one that waits, or the identical one that is pending, approved or running
// already (joined). A new one is recorded before it exists. Errors: CODE_TOO_MANY_PENDING, CODE_AUDIT_UNAVAILABLE,
// CODE_HALTED, and CODE_CONFLICT for a request that may only join and finds none.
func (q *Queue) Ask(ctx context.Context, r Request) (_ *store.Operation, joined bool, _ error) {
	// An operation's arguments, tool definition, principal and its agent make identical requests one.
	key := r.Operation.Principal + "\x00" + r.Operation.Agent + "\x00" + hex.EncodeToString(r.Operation.ToolDigest) +
		hex.EncodeToString(r.Operation.ArgumentsDigest)
	ctx, cancel := journal.WithPatience(ctx)
	defer cancel()
	for {
		control := q.Halt.Now()
		if err := q.Halt.Check(); err != nil {
			return nil, false, err
		}
		q.mu.Lock()
		if e := q.identicalLocked(&r.Operation, control.Epoch); e != nil {
			o := e.op
			q.mu.Unlock()
			record := journal.Operation(auditv1.Kind_KIND_ASKED, auditv1.Status_STATUS_PENDING, &o)
			record.Body.Session = r.Operation.Session
			record.Body.Action, record.Body.Dangerous = "joined", r.InDangerous
			record.Body.DecisionSource = r.Rule
			// Before the session counts as an asker: one that is told of an error asks for nothing.
			if err := q.Journal.Follow(ctx, record); err != nil {
				return nil, false, err
			}
			q.mu.Lock()
			if len(e.askers) == 0 { // the last that asked for it took it back meanwhile
				q.mu.Unlock()
				continue
			}
			e.op.Joined++
			e.askers[r.Operation.Session] = true
			o = e.op
			q.mu.Unlock()
			return &o, true, nil
		}
		if err := q.mutedLocked(r.Operation.Principal); err != nil {
			q.mu.Unlock()
			return nil, false, err
		}
		if other, ok := q.busy[key]; ok {
			q.mu.Unlock()
			select {
			case <-other.done:
				continue
			case <-ctx.Done():
				return nil, false, context.Cause(ctx)
			}
		}
		if r.JoinOnly {
			q.mu.Unlock()
			return nil, false, noneToJoin()
		}
		all, own := q.pendingLocked(r.Operation.Principal)
		if own >= r.PendingLimit || all >= q.PendingCap {
			q.mu.Unlock()
			return nil, false, fault.New(callv1.Code_CODE_TOO_MANY_PENDING, "too many operations wait for a human already",
				fault.WithRetry(time.Minute))
		}
		q.busy[key] = busy{principal: r.Operation.Principal, done: make(chan struct{})}
		q.mu.Unlock()
		o, err := q.ask(ctx, r, control.Epoch)
		q.mu.Lock()
		if err == nil {
			q.publishLocked(newEntry(*o))
		}
		q.releaseLocked(key)
		q.mu.Unlock()
		if err == nil {
			err = q.mutedMeanwhile(ctx, o)
		}
		return o, false, err
	}
}

func (q *Queue) mutedLocked(principal string) error {
	if q.Standing == nil {
		return nil
	}
	until, muted := q.Standing.Muted(principal)
	if !muted {
		return nil
	}
	return fault.New(callv1.Code_CODE_MUTED, "an operator does not want to be asked by this client for a while",
		fault.WithRetry(until.Sub(q.Now()).Round(time.Second)))
}

// mutedMeanwhile denies what came to wait while an operator muted its principal, which found nothing to deny.
func (q *Queue) mutedMeanwhile(ctx context.Context, o *store.Operation) error {
	err := q.mutedLocked(o.Principal)
	if err == nil {
		return nil
	}
	if _, failed := q.deny(ctx, o.ID, "muted", "mute", pending); failed != nil && !fault.Is(failed, callv1.Code_CODE_CONFLICT) {
		return failed
	}
	return err
}

func (q *Queue) ask(ctx context.Context, r Request, epoch uint64) (*store.Operation, error) {
	o := r.Operation
	now := q.Now()
	o.ID, o.State, o.Epoch, o.AskedAt, o.Rule = grant.NewID(), pending, epoch, now, r.Rule
	// Whole seconds, as a statement writes them.
	o.ExpiresAt = now.Add(min(cmp.Or(r.Wait, Life), Life)).Truncate(time.Second)
	arguments, err := journal.Arguments(r.Arguments)
	if err != nil {
		return nil, err
	}
	record := journal.Operation(auditv1.Kind_KIND_ASKED, auditv1.Status_STATUS_PENDING, &o)
	record.Body.Arguments = arguments
	record.Body.Reason = o.AgentReason
	record.Body.DecisionSource = r.Rule
	record.Body.Action, record.Body.Dangerous = "ask", r.InDangerous
	err = q.Journal.Do(ctx, record, func() error {
		return q.Halt.Within(epoch, func() error { return q.Store.Insert(context.WithoutCancel(ctx), &o) })
	})
	if err != nil {
		return nil, err
	}
	return &o, nil
}

// Alone reports whether an operation runs without an approval of its own: it is its session's, and no other's.
func Alone(o *store.Operation) bool { return alone(o) }

// alone reports whether an operation runs without an approval of its own.
func alone(o *store.Operation) bool { return o.Standing() || o.Authority == store.ByUnattended }

// identicalLocked finds the operation that an identical request joins: one that may run before one that waits.
func (q *Queue) identicalLocked(want *store.Operation, epoch uint64) *entry {
	var waiting *entry
	for _, e := range q.live {
		if e.op.Principal != want.Principal || e.op.Agent != want.Agent || e.op.Epoch != epoch || !bytes.Equal(e.op.ToolDigest, want.ToolDigest) ||
			!bytes.Equal(e.op.ArgumentsDigest, want.ArgumentsDigest) {
			continue
		}
		// What nobody approved by itself is its own session's alone: no other session gets a grant that names it.
		// So is what a person on a messaging platform asked for: the others there speak through the same client.
		personal := want.Channel == callv1.Channel_CHANNEL_MESSAGING
		if (alone(&e.op) || alone(want) || personal) && e.op.Session != want.Session {
			continue
		}
		switch e.op.State {
		case pending:
			if !q.over(&e.op) && len(e.askers) > 0 {
				waiting = e
			}
		case approved:
			if !q.over(&e.op) {
				return e
			}
		case running:
			if q.Now().Sub(e.op.RedeemedAt) < JoinRunning {
				return e
			}
		default: // it is over
		}
	}
	return waiting
}

func (q *Queue) releaseLocked(key string) {
	if b, ok := q.busy[key]; ok {
		delete(q.busy, key)
		close(b.done)
	}
}
