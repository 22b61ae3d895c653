package operation

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
)

const (
	// RunLife is how long an operation that nobody was asked about may wait to be redeemed: a live call has it already.
	RunLife = time.Minute
	// runCap is how many operations of one principal may wait so.
	runCap = 64
)

// Run returns an operation that is approved already: by h, what a human let the session do (a scope of which the caller has taken
// a use, or dangerous mode), or by a human's file alone when h is nil. It is recorded before it exists, has RunLife to be
// redeemed, and is spent once like any other. With joined it is the identical one of this session that is approved or runs
// already, and nothing new came to be: like after an error, the caller gives the use back. Errors: CODE_DENIED,
// CODE_TOO_MANY_PENDING, CODE_AUDIT_UNAVAILABLE, CODE_HALTED, CODE_EXPIRED, and CODE_CONFLICT as Ask.
func (q *Queue) Run(ctx context.Context, r Request, h *callv1.HumanStatement, dangerous bool) (_ *store.Operation, joined bool, _ error) {
	ctx, cancel := journal.WithPatience(ctx)
	defer cancel()
	control := q.Halt.Now()
	if err := q.Halt.Check(); err != nil {
		return nil, false, err
	}
	o := r.Operation
	now := q.Now()
	o.ID, o.State, o.Epoch, o.Rule, o.Dangerous = grant.NewID(), approved, control.Epoch, r.Rule, dangerous
	o.AskedAt, o.DecidedAt, o.ExpiresAt = now, now, now.Add(RunLife)
	v, err := q.authorised(&o, h)
	if err != nil {
		q.refuseStatement(ctx, &o, "run", err)
		return nil, false, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
	}
	key := "run\x00" + o.Session + "\x00" + hex.EncodeToString(o.ToolDigest) + hex.EncodeToString(o.ArgumentsDigest)
	release, err := q.reserve(ctx, key)
	if err != nil {
		return nil, false, err
	}
	defer release()
	q.mu.Lock()
	e := q.identicalLocked(&o, control.Epoch)
	if e != nil && e.op.State != pending {
		e.op.Joined++
		same := e.op
		q.mu.Unlock()
		record := journal.Operation(auditv1.Kind_KIND_ASKED, auditv1.Status_STATUS_PENDING, &same)
		record.Body.Action, record.Body.DecisionSource, record.Body.Dangerous = "joined", r.Rule, r.InDangerous
		if err := q.Journal.Follow(ctx, record); err != nil {
			return nil, false, err
		}
		return &same, true, nil
	}
	if r.JoinOnly {
		q.mu.Unlock()
		return nil, false, noneToJoin()
	}
	waiting := q.runningLocked(o.Principal)
	if waiting < runCap {
		q.busy[key] = busy{runs: o.Principal, done: q.busy[key].done} // it counts while it is recorded
	}
	q.mu.Unlock()
	if waiting >= runCap {
		return nil, false, fault.New(callv1.Code_CODE_TOO_MANY_PENDING, "too many calls of this client have not begun yet", fault.WithRetry(RunLife))
	}
	record := journal.Operation(auditv1.Kind_KIND_APPROVED, auditv1.Status_STATUS_OK, &o)
	if record.Body.Arguments, err = journal.Arguments(r.Arguments); err != nil {
		return nil, false, err
	}
	record.Body.Action, record.Body.DecisionSource, record.Body.Statement, record.Body.Confirmed = o.Authority, o.DecidedBy, h, h != nil
	record.Body.Reason, record.Body.Details["rule"] = o.AgentReason, r.Rule
	if v != nil {
		record.Body.Details["statement"] = v.ID
	}
	err = q.Journal.Do(ctx, record, func() error {
		return q.Halt.Within(o.Epoch, func() error { return q.Store.Insert(context.WithoutCancel(ctx), &o) })
	})
	if err != nil {
		return nil, false, err
	}
	q.mu.Lock()
	q.publishLocked(newEntry(o))
	q.busy[key] = busy{done: q.busy[key].done} // from here on the live one counts
	q.mu.Unlock()
	return &o, false, nil
}

// authorised holds an operation to what lets it run, and writes that into it.
func (q *Queue) authorised(o *store.Operation, h *callv1.HumanStatement) (*statement.Verified, error) {
	if h == nil {
		if o.Dangerous {
			return nil, errors.New("dangerous mode is a human's statement")
		}
		if !boundEnough(o.KeyBound) {
			return nil, errUnbound
		}
		o.Authority, o.DecidedBy = store.ByUnattended, o.Rule
		return nil, nil
	}
	kind := statement.KindScope
	if o.Dangerous {
		kind = statement.KindDangerous
	}
	v, err := q.approval(o, h, kind)
	if v, err = humanAgreed(h, v, err); err != nil {
		return nil, err
	}
	o.Authority, o.DecidedBy = string(kind), v.Operator
	o.Statement, o.Signature = h.GetStatement(), h.GetSignature()
	if v.Ends.Before(o.ExpiresAt) {
		o.ExpiresAt = v.Ends
	}
	return v, nil
}

// runningLocked counts a principal's operations that nobody was asked about and that are not redeemed, with those that are about to be.
func (q *Queue) runningLocked(principal string) (n int) {
	for _, e := range q.live {
		if e.op.State == approved && e.op.Principal == principal && alone(&e.op) {
			n++
		}
	}
	for _, b := range q.busy {
		if b.runs == principal {
			n++
		}
	}
	return n
}

// authority says in a record in whose name an operation runs, where that is not its own approval.
func authority(r *auditv1.Record, o *store.Operation) {
	if !alone(o) {
		return
	}
	r.Body.Dangerous = o.Dangerous
	r.Body.Details["authority"] = o.Authority
	if len(o.Statement) > 0 {
		r.Body.Details["statement_digest"] = canonical.DigestText(o.Statement)
	}
}
