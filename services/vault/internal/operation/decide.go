package operation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
)

// CommandSession stands for a session in a human's own command, which has none.
const CommandSession = "-"

// Approve lets a pending operation run once, if the statement is a human's, signed, of kind "approve" and for exactly this
// operation. caller is the identity that brought it. The approval is recorded before it takes effect. Errors:
// CODE_NOT_FOUND, CODE_CONFLICT, CODE_EXPIRED, CODE_DENIED, CODE_HALTED, CODE_AUDIT_UNAVAILABLE.
func (q *Queue) Approve(ctx context.Context, id string, h *callv1.HumanStatement, caller string) (*vaultv1.Operation, error) {
	e, err := q.claim(id, pending)
	if err != nil {
		return nil, err
	}
	o, err := q.approve(ctx, e.op, h, statement.KindApprove, caller)
	return q.settleClaim(e, o, err)
}

// ApproveUnder lets a pending operation run once by a scope that a human granted, as one of its uses, which the caller has taken.
// Errors are Approve's.
func (q *Queue) ApproveUnder(ctx context.Context, id string, scope *callv1.HumanStatement, caller string) (*vaultv1.Operation, error) {
	e, err := q.claim(id, pending)
	if err != nil {
		return nil, err
	}
	o, err := q.approve(ctx, e.op, scope, statement.KindScope, caller)
	return q.settleClaim(e, o, err)
}

func (q *Queue) approve(ctx context.Context, o store.Operation, h *callv1.HumanStatement, kind statement.Kind, caller string) (*store.Operation, error) {
	if err := q.Halt.Within(o.Epoch, func() error { return nil }); err != nil {
		return nil, err
	}
	v, err := q.approval(&o, h, kind)
	if v, err = humanAgreed(h, v, err); err != nil {
		q.refuseStatement(ctx, &o, caller, err)
		return nil, fault.New(callv1.Code_CODE_DENIED, consent.Sentence(err, "the statement does not approve this operation"), fault.WithCause(err))
	}
	used := &store.UsedStatement{Digest: v.Digest[:], OperationID: o.ID, Kind: string(v.Kind), Operator: v.Operator, UsedAt: q.Now()}
	o.Authority = store.ByApproval
	if kind == statement.KindScope {
		o.Authority, used = store.ByScope, nil // its grant used it up
	} else {
		// Statement.check parsed the digest before; a statement without one approves nothing at a sink.
		o.SubjectDigest, _ = canonical.ParseDigest(v.SubjectDigest)
	}
	o.State, o.DecidedAt, o.DecidedBy = approved, q.Now(), v.Operator
	o.Statement, o.Signature = h.GetStatement(), h.GetSignature()
	if v.Ends.Before(o.ExpiresAt) {
		o.ExpiresAt = v.Ends // the sink judges the statement's end as well
	}
	record := journal.Operation(auditv1.Kind_KIND_APPROVED, auditv1.Status_STATUS_OK, &o)
	decision(record, h, v, caller)
	err = q.Journal.Do(ctx, record, func() error {
		return q.Halt.Within(o.Epoch, func() error { return q.Store.Approve(context.WithoutCancel(ctx), &o, used) })
	})
	if err != nil {
		return nil, err
	}
	return &o, nil
}

// approval verifies a statement and holds it to the operation, field by field: what a sink will do with the grant.
func (q *Queue) approval(o *store.Operation, h *callv1.HumanStatement, kind statement.Kind) (*statement.Verified, error) {
	v, err := q.Consent.Verify(h, o.Principal)
	if err != nil {
		return nil, err
	}
	if v.Kind != kind {
		return nil, fmt.Errorf("%w: it is of kind %s", statement.ErrCover, v.Kind)
	}
	var subject []byte // of a single call; what a scope or dangerous mode may act on the sink judges, which alone knows it
	if kind == statement.KindApprove {
		if subject, err = canonical.ParseDigest(v.SubjectDigest); err != nil {
			return nil, err
		}
	} else if !boundEnough(o.KeyBound) {
		return nil, errUnbound
	}
	err = v.Covers(&callv1.Grant{
		OperationId: o.ID, Use: 1, Principal: o.Principal, Session: o.Session, Channel: o.Channel, Tool: o.ToolRef(),
		ArgumentsDigest: o.ArgumentsDigest, SubjectDigest: subject, Audience: o.Audience, Epoch: o.Epoch, Dangerous: o.Dangerous,
	}, o.ToolRef(), o.Tier, o.Arguments, nil)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// errUnbound: nothing but a client's own key shows that a call without a human's look at it is the client's.
var errUnbound = errors.New("the client does not sign its requests")

// Deny ends an operation with the operator's words: one that waits, or one with an approval of its own that nobody has come for. A grant of
// it that is out cannot be redeemed any more. It needs no statement: refusing is always safe, with or without audit, and during a halt.
func (q *Queue) Deny(ctx context.Context, id, reason, caller string) (*vaultv1.Operation, error) {
	return q.deny(ctx, id, reason, caller, pending, approved)
}

func (q *Queue) deny(ctx context.Context, id, reason, caller string, from ...vaultv1.OperationState) (*vaultv1.Operation, error) {
	e, err := q.claim(id, from...)
	if err != nil {
		return nil, err
	}
	before := e.op
	o := before
	o.State, o.DecidedAt, o.DecidedBy, o.DecisionReason = denied, q.Now(), caller, reason
	if err := q.Store.End(context.WithoutCancel(ctx), before.State, &o); err != nil {
		return q.settleClaim(e, nil, err)
	}
	record := journal.Operation(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, &o)
	record.Body.Action, record.Body.Reason, record.Body.DecisionSource = "deny", reason, caller
	if before.State == approved {
		record.Body.Summary, record.Body.Details["approved_by"] = "a human took the approval back", before.DecidedBy
	}
	q.Journal.Note(ctx, record)
	return q.settleClaim(e, &o, nil)
}

// Withdraw takes back a session's part of a pending operation. It ends the operation, unless another session that is live still asks
// for the same: then it goes on waiting for that one. What another principal asked for, or another session that is live and still waits, is
// CODE_NOT_FOUND, exactly as what never was. It needs no audit, as a refusal does not: nothing happens by it.
func (q *Queue) Withdraw(ctx context.Context, id, principal, agent, session string, dangerous bool, live func(session string) bool) (*vaultv1.Operation, error) {
	o, _, err := q.Lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	if !ownedBy(o, principal) || !q.asked(o, agent, session, live) {
		return nil, errNotFound()
	}
	e, err := q.claim(id, pending)
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	asks, asked := e.askers[session]
	e.askers[session] = false
	shared := e.wanted(live)
	if asked && !asks && shared {
		e.claimed = false
		q.mu.Unlock()
		return nil, inState(withdrawn)
	}
	if !shared {
		clear(e.askers) // nobody joins it from here on
	}
	ended := e.op
	q.mu.Unlock()
	if shared {
		record := journal.Operation(auditv1.Kind_KIND_ASKED, auditv1.Status_STATUS_PENDING, &ended)
		record.Body.Action, record.Body.Session, record.Body.Dangerous = "withdraw-part", session, dangerous
		q.Journal.Note(ctx, record)
		return q.settleClaim(e, &ended, nil)
	}
	ended.State, ended.DecidedAt = withdrawn, q.Now()
	if err := q.Store.End(context.WithoutCancel(ctx), pending, &ended); err != nil {
		q.mu.Lock()
		e.askers[session] = true
		q.mu.Unlock()
		return q.settleClaim(e, nil, err)
	}
	record := journal.Operation(auditv1.Kind_KIND_WITHDRAWN, auditv1.Status_STATUS_OK, &ended)
	record.Body.Action, record.Body.Session, record.Body.Dangerous = "withdraw", session, dangerous
	q.Journal.Note(ctx, record)
	return q.settleClaim(e, &ended, nil)
}

// asked reports whether a session is one of those that asked for an operation, or of its agent where none of those that ask is live any more,
// as after a restart. Of one that is over the first alone is known; what became of it each session of the client is told, as by Wait, but for
// other people's who speak through the same messaging client.
func (q *Queue) asked(o *store.Operation, agent, session string, live func(session string) bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	others := o.Channel != callv1.Channel_CHANNEL_MESSAGING
	if e, ok := q.live[o.ID]; ok {
		_, asked := e.askers[session]
		return asked || others && e.op.State == pending && o.Agent == agent && !e.wanted(live)
	}
	return o.Session == session || others
}

// wanted reports whether a session that is live asks for the operation. It is called with the queue's lock.
func (e *entry) wanted(live func(session string) bool) bool {
	for session, asks := range e.askers {
		if asks && live(session) {
			return true
		}
	}
	return false
}

// DenyAll denies what waits of a principal, with the operator's words, and returns how many there were.
func (q *Queue) DenyAll(ctx context.Context, principal, reason, caller string) (int, error) {
	q.mu.Lock()
	var ids []string
	for id, e := range q.live {
		if e.op.State == pending && e.op.Principal == principal {
			ids = append(ids, id)
		}
	}
	q.mu.Unlock()
	n := 0
	var errs []error
	for _, id := range ids {
		switch _, err := q.deny(ctx, id, reason, caller, pending); {
		case err == nil:
			n++
		case !fault.Is(err, callv1.Code_CODE_CONFLICT): // a human decides on it at this moment, or did
			errs = append(errs, err)
		}
	}
	return n, errors.Join(errs...)
}

// claim reserves an operation in one of these states for one decision.
func (q *Queue) claim(id string, from ...vaultv1.OperationState) (*entry, error) {
	q.mu.Lock()
	e, ok := q.live[id]
	if ok {
		defer q.mu.Unlock()
		switch {
		case !slices.Contains(from, e.op.State):
			return nil, inState(e.op.State)
		case e.claimed:
			return nil, inState(pending)
		case e.op.State == approved && alone(&e.op):
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "this operation has no approval of its own: end what lets it run")
		case q.over(&e.op):
			return nil, inState(expired)
		}
		e.claimed = true
		return e, nil
	}
	q.mu.Unlock()
	o, _, err := q.Lookup(context.Background(), id)
	if err != nil {
		return nil, err
	}
	return nil, q.notAs(o, inState(o.State))
}

// notAs is why an operation cannot be taken further: the halt that ended it, while that lasts, or why.
func (q *Queue) notAs(o *store.Operation, why error) error {
	if Halted(o) {
		if err := q.Halt.Check(); err != nil {
			return err
		}
	}
	return why
}

// settleClaim ends a claim: with the changed operation, or with the error that left it as it was.
func (q *Queue) settleClaim(e *entry, o *store.Operation, err error) (*vaultv1.Operation, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e.claimed = false
	if err != nil {
		return nil, err
	}
	joined := e.op.Joined // requests may have joined meanwhile
	e.op = *o
	e.op.Joined = joined
	q.publishLocked(e)
	return Proto(&e.op, e.waiters), nil
}

// Command turns a human's own command, a statement of kind "command", into an operation that is approved already.
// template holds what the contract and the configuration say of the call: tool, tier, audience, policy digest, channel.
// arguments is the decoded form. Errors: CODE_DENIED, CODE_ALREADY_SPENT, CODE_HALTED, CODE_EXPIRED,
// CODE_AUDIT_UNAVAILABLE.
func (q *Queue) Command(ctx context.Context, template store.Operation, arguments proto.Message, h *callv1.HumanStatement,
	v *statement.Verified, caller string,
) (*store.Operation, error) {
	ctx, cancel := journal.WithPatience(ctx)
	defer cancel()
	o := template
	now := q.Now()
	o.ID, o.State, o.Session, o.Principal = v.Operation, approved, CommandSession, v.Principal
	o.Authority = store.ByCommand
	o.Epoch, o.AskedAt, o.DecidedAt, o.DecidedBy = v.Epoch, now, now, v.Operator
	o.ExpiresAt = v.Ends
	if latest := now.Add(Life).Truncate(time.Second); latest.Before(o.ExpiresAt) {
		o.ExpiresAt = latest
	}
	o.Statement, o.Signature = h.GetStatement(), h.GetSignature()
	var err error
	if o.SubjectDigest, err = canonical.ParseDigest(v.SubjectDigest); err != nil {
		return nil, refusedCommand(err)
	}
	err = v.Covers(&callv1.Grant{
		OperationId: o.ID, Use: 1, Principal: o.Principal, Session: o.Session, Channel: o.Channel, Tool: o.ToolRef(),
		ArgumentsDigest: o.ArgumentsDigest, SubjectDigest: o.SubjectDigest, Audience: o.Audience, Epoch: o.Epoch,
	}, o.ToolRef(), o.Tier, o.Arguments, nil)
	if err != nil {
		q.refuseStatement(ctx, &o, caller, err)
		return nil, refusedCommand(err)
	}
	release, err := q.reserve(ctx, "command\x00"+o.ID)
	if err != nil {
		return nil, err
	}
	defer release()
	// Before anything is recorded, so that a replay does not look like an approval.
	switch _, err := q.Store.Operation(ctx, o.ID); {
	case err == nil:
		return nil, fault.New(callv1.Code_CODE_ALREADY_SPENT, "this statement was used before; sign another")
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	}
	if err := q.Halt.Within(o.Epoch, func() error { return nil }); err != nil {
		return nil, err
	}
	record := journal.Operation(auditv1.Kind_KIND_APPROVED, auditv1.Status_STATUS_OK, &o)
	if record.Body.Arguments, err = journal.Arguments(arguments); err != nil {
		return nil, err
	}
	decision(record, h, v, caller)
	used := store.UsedStatement{Digest: v.Digest[:], OperationID: o.ID, Kind: string(v.Kind), Operator: v.Operator, UsedAt: now}
	err = q.Journal.Do(ctx, record, func() error {
		return q.Halt.Within(o.Epoch, func() error { return q.Store.InsertCommand(context.WithoutCancel(ctx), &o, used) })
	})
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	q.publishLocked(newEntry(o))
	q.mu.Unlock()
	return &o, nil
}

// reserve makes its caller the only one that works on the key until it calls the function that it gets.
func (q *Queue) reserve(ctx context.Context, key string) (release func(), _ error) {
	for {
		q.mu.Lock()
		other, taken := q.busy[key]
		if !taken {
			q.busy[key] = busy{done: make(chan struct{})}
			q.mu.Unlock()
			return func() {
				q.mu.Lock()
				defer q.mu.Unlock()
				q.releaseLocked(key)
			}, nil
		}
		q.mu.Unlock()
		select {
		case <-other.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func decision(r *auditv1.Record, h *callv1.HumanStatement, v *statement.Verified, caller string) {
	r.Body.Action = string(v.Kind)
	r.Body.Confirmed = true
	r.Body.Statement = h
	r.Body.DecisionSource = v.Operator
	r.Body.Details["caller"] = caller
	r.Body.Details["statement"] = v.ID
	r.Body.Details["subject_digest"] = v.SubjectDigest
}

// refuseStatement records a statement that was not accepted, with the reason that its bearer is not told.
func (q *Queue) refuseStatement(ctx context.Context, o *store.Operation, caller string, cause error) {
	record := journal.Operation(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, o)
	record.Body.Action, record.Body.Reason, record.Body.DecisionSource = "statement-refused", cause.Error(), caller
	q.Journal.Note(ctx, record)
}

func refusedCommand(cause error) error {
	return fault.New(callv1.Code_CODE_DENIED, "the statement does not allow this command", fault.WithCause(cause))
}
