package operation

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
)

// Redeem spends a grant's key for the sink that it is addressed to. It is recorded, then spent durably, then answered:
// of any number of redemptions of one key, at once or over years, one succeeds. A crash in between leaves a record of a
// redemption that did not happen, never the other way round. Errors: CODE_DENIED, CODE_EXPIRED, CODE_HALTED,
// CODE_ALREADY_SPENT, CODE_AUDIT_UNAVAILABLE.
//
// Its cost is one append to the log, which carries the spooled record of the grant's issue along, and one commit here.
func (q *Queue) Redeem(ctx context.Context, signed *callv1.SignedGrant, sink string) (time.Time, error) {
	ctx, cancel := journal.WithPatience(ctx)
	defer cancel()
	g, err := q.Issuer.OpenGrant(signed)
	switch {
	case errors.Is(err, issuer.ErrExpired):
		q.refuseGrant(ctx, nil, sink, err)
		return time.Time{}, fault.New(callv1.Code_CODE_EXPIRED, "the grant has expired; ask again", fault.WithCause(err))
	case err != nil:
		q.refuseGrant(ctx, nil, sink, err)
		return time.Time{}, refusedGrant(err)
	case !sinkIs(g.GetAudience(), sink):
		err := errors.New("the grant is for another sink")
		q.refuseGrant(ctx, g, sink, err)
		return time.Time{}, refusedGrant(err)
	}
	if err := q.stands(g, nil); err != nil {
		q.refuseGrant(ctx, g, sink, err)
		return time.Time{}, err
	}
	release, err := q.reserve(ctx, "redeem\x00"+grant.SpendKey(g))
	if err != nil {
		return time.Time{}, err
	}
	defer release()
	if err := q.Halt.Within(g.GetEpoch(), func() error { return nil }); err != nil {
		return time.Time{}, err
	}
	e, err := q.claimRun(ctx, g)
	if err != nil {
		q.refuseGrant(ctx, g, sink, err)
		return time.Time{}, err
	}
	var at time.Time
	if err = q.stands(g, e); err == nil {
		at, err = q.spend(ctx, g, e)
	} else {
		q.refuseGrant(ctx, g, sink, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if e != nil {
		e.claimed = false
		if err == nil && e.op.State == approved {
			e.op.State, e.op.RedeemedAt = running, at
			q.publishLocked(e)
		}
	}
	return at, err
}

// claimRun finds what the grant is for and reserves it, so that it does not expire in the middle: an approved operation,
// or nothing for a one-call grant of a READ tool, which is not stored.
func (q *Queue) claimRun(ctx context.Context, g *callv1.Grant) (*entry, error) {
	q.mu.Lock()
	e, ok := q.live[g.GetOperationId()]
	if ok && mayRun(e.op.State) && e.op.State != running {
		defer q.mu.Unlock()
		if e.claimed {
			return nil, inState(pending)
		}
		if q.over(&e.op) {
			return nil, errExpired()
		}
		e.claimed = true
		return e, nil
	}
	q.mu.Unlock()
	_, err := q.Store.Spent(ctx, g.GetOperationId(), g.GetUse())
	if err == nil {
		if err := refuseSpent(store.ErrSpent); err != nil {
			return nil, fault.New(callv1.Code_CODE_ALREADY_SPENT, "the grant was spent already", fault.WithCause(err))
		}
		return nil, nil
	}
	if errors.Is(err, store.ErrNotFound) {
		var o *store.Operation
		if o, err = q.Store.Operation(ctx, g.GetOperationId()); err == nil {
			return nil, errNotApproved(o)
		}
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	tool, known := contract.Lookup(g.GetTool().GetName())
	if !known || tool.Tier != optionsv1.Tier_TIER_READ {
		return nil, refusedGrant(errors.New("the grant's operation is not known here"))
	}
	return nil, nil
}

func (q *Queue) spend(ctx context.Context, g *callv1.Grant, e *entry) (time.Time, error) {
	record := &auditv1.Record{
		Kind: auditv1.Kind_KIND_REDEEMED, Status: auditv1.Status_STATUS_OK, OperationId: g.GetOperationId(),
		Tool: g.GetTool().GetName(), Body: &auditv1.Body{
			Principal: g.GetPrincipal(), Session: g.GetSession(), Channel: g.GetChannel(), Source: g.GetTool().GetSource(),
			Confirmed: len(g.GetStatements()) > 0, Dangerous: g.GetDangerous(), Action: "redeem", DecisionSource: g.GetAudience(),
			Details: map[string]string{"grant": g.GetId(), "use": strconv.FormatUint(uint64(g.GetUse()), 10)},
		},
	}
	if e != nil {
		record.Tier, record.Body.ParentRequestId = e.op.Tier, e.op.RequestID
		authority(record, &e.op)
	}
	if e == nil { // a read, as was just made sure of: who verifies the log later may not know the tool any more
		record.Tier = optionsv1.Tier_TIER_READ
		return q.spendRead(ctx, g, record)
	}
	var at time.Time
	err := q.Journal.Do(ctx, record, func() (err error) {
		// Again: audit was waited for, and what a human ended meanwhile has ended.
		if err = q.stands(g, e); err == nil {
			at, err = q.spendWithin(ctx, g)
		}
		return err
	})
	return at, err
}

// spendRead spends a one-call grant of a READ tool. Its record follows, and nothing waits for audit: no human stands behind it that the
// log would have to name first, and a sink has its own record there before a read leaves the host.
func (q *Queue) spendRead(ctx context.Context, g *callv1.Grant, record *auditv1.Record) (time.Time, error) {
	if err := q.Journal.Check(); err != nil {
		return time.Time{}, err
	}
	at, err := q.spendWithin(ctx, g)
	if err == nil {
		err = q.Journal.Follow(ctx, record)
	}
	return at, err
}

// spendWithin spends a grant's key unless the host is halted.
func (q *Queue) spendWithin(ctx context.Context, g *callv1.Grant) (time.Time, error) {
	at := q.Now()
	return at, q.Halt.Within(g.GetEpoch(), func() error {
		return refuseSpent(q.Store.Spend(context.WithoutCancel(ctx), store.Spend{
			OperationID: g.GetOperationId(), Use: g.GetUse(), GrantID: g.GetId(), Audience: g.GetAudience(), At: at,
		}))
	})
}

// stands returns why what a grant rests on is in force no more: its client, and what a human let its session do. e is nil where the
// operation is not known or not stored.
func (q *Queue) stands(g *callv1.Grant, e *entry) error {
	if !q.letIn(g.GetPrincipal()) {
		return refusedGrant(errGone)
	}
	if _, same := contract.Referred(g.GetTool()); !same { // the sink may not have read yet what a human accepted anew
		return refusedGrant(errors.New("the tool is not what the grant is for any more"))
	}
	if e == nil {
		return nil
	}
	_, err := q.holds(&e.op)
	return err
}

// Check returns the operation of a grant that the sink redeemed, if what it rests on still stands: nil for a one-call grant of a
// READ tool, which is not stored. It spends nothing. Errors: CODE_DENIED for a grant that the sink did not redeem, CODE_HALTED,
// CODE_EXPIRED.
func (q *Queue) Check(ctx context.Context, g *callv1.Grant, sink string) (*store.Operation, error) {
	redeemed, err := q.Redeemed(ctx, g, sink)
	if err != nil {
		return nil, err
	}
	if !redeemed {
		return nil, refusedGrant(errors.New("the grant was not redeemed by this sink"))
	}
	if err := q.Halt.Within(g.GetEpoch(), func() error { return nil }); err != nil {
		return nil, err
	}
	if !q.letIn(g.GetPrincipal()) {
		return nil, fault.New(callv1.Code_CODE_EXPIRED, reasonGone, fault.WithCause(errGone))
	}
	o, _, err := q.Lookup(ctx, g.GetOperationId())
	if fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = q.holds(o)
	return o, err
}

// Redeemed reports whether the sink redeemed this very grant.
func (q *Queue) Redeemed(ctx context.Context, g *callv1.Grant, sink string) (bool, error) {
	spend, err := q.Store.Spent(ctx, g.GetOperationId(), g.GetUse())
	if errors.Is(err, store.ErrNotFound) {
		return false, nil
	}
	return err == nil && sinkIs(spend.Audience, sink) && spend.GrantID == g.GetId(), err
}

// Settle says how a redeemed operation ended; the next identical request is a new one. Settling again changes nothing.
// CODE_NOT_FOUND for a spend key that this sink did not redeem.
func (q *Queue) Settle(ctx context.Context, id string, use uint32, ok bool, sink string) error {
	spend, err := q.Store.Spent(ctx, id, use)
	if errors.Is(err, store.ErrNotFound) || err == nil && !sinkIs(spend.Audience, sink) {
		return errNotFound()
	}
	if err != nil {
		return err
	}
	at := q.Now()
	err = q.Store.Settle(context.WithoutCancel(ctx), id, ok, at)
	if errors.Is(err, store.ErrState) {
		return nil // settled before, or a one-call grant
	}
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if e, live := q.live[id]; live {
		e.op.State, e.op.SettledAt, e.op.SettledOK = done, at, ok
		q.publishLocked(e)
	}
	return nil
}

// refuseGrant records a grant that was not accepted, with the reason that its bearer is not told.
func (q *Queue) refuseGrant(ctx context.Context, g *callv1.Grant, sink string, cause error) {
	q.Journal.Note(ctx, &auditv1.Record{
		Kind: auditv1.Kind_KIND_DENIED, Status: auditv1.Status_STATUS_DENIED, OperationId: g.GetOperationId(),
		Tool: g.GetTool().GetName(), Body: &auditv1.Body{
			Principal: g.GetPrincipal(), Session: g.GetSession(), Channel: g.GetChannel(), Action: "redemption-refused",
			Reason: cause.Error(), DecisionSource: sink,
		},
	})
}

func refusedGrant(cause error) error {
	return fault.New(callv1.Code_CODE_DENIED, "the grant is not valid", fault.WithCause(cause))
}

// errNotApproved is why a grant's operation, which is known and not approved, does not run.
func errNotApproved(o *store.Operation) error {
	if o.State == expired {
		return errExpired()
	}
	return inState(o.State)
}
