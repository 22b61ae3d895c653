package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// adoptEpoch takes over a higher epoch from the vault, durably.
func (a *Authority) adoptEpoch(ctx context.Context, c *call, epoch uint64) error {
	now := a.Control().Epoch
	if epoch <= now {
		return nil
	}
	if epoch > grant.EpochWithin(now) {
		return a.refuse(ctx, c, callv1.Code_CODE_DENIED, fmt.Errorf("epoch %d is too far above %d here to be taken up without a human: durward resume, where this process was added after a restore", epoch, now))
	}
	if err := a.change(ctx, func(now Control) (Control, error) {
		now.Epoch = max(now.Epoch, epoch)
		return now, nil
	}); err != nil {
		return a.refuse(ctx, c, callv1.Code_CODE_INTERNAL, err)
	}
	return nil
}

// change replaces the control state, first on disk.
func (a *Authority) change(ctx context.Context, next func(Control) (Control, error)) error {
	a.controlMu.Lock()
	defer a.controlMu.Unlock()
	before := a.Control()
	after, err := next(before)
	if err != nil || after == before {
		return err
	}
	// A caller that hangs up does not leave the switch half thrown.
	if err := a.cfg.Store.SetControl(context.WithoutCancel(ctx), after); err != nil {
		return err
	}
	a.control.Store(&after)
	a.streams.moved.Raise()
	return nil
}

// Halt stops every further change here, durably, and raises the epoch to at least one more than it was and, within
// grant.EpochWithin, to atLeast. It waits for no other process: the fact is spooled for audit, and
// what the state is follows. What runs keeps running; an effect
// that is beginning has begun when Halt returns, and none begins afterwards. An error says that the halt is not durable; it is
// in force all the same.
func (a *Authority) Halt(ctx context.Context, reason string, atLeast uint64) (uint64, error) {
	a.controlMu.Lock()
	now := a.Control()
	after := Control{
		Epoch: max(now.Epoch+1, min(atLeast, grant.EpochWithin(now.Epoch))), Halted: true,
		Reason: clean.Line(reason, 500), By: a.haltedBy(ctx), At: a.cfg.Now(),
	}
	// In force at once: a disk that is slow or refuses is no reason to go on.
	a.control.Store(&after)
	a.streams.moved.Raise()
	a.leaving.end()
	a.desktop.Kill("")
	err := a.cfg.Store.SetControl(context.WithoutCancel(ctx), after)
	a.controlMu.Unlock()
	a.spoolControl(ctx, a.controlRecord(ctx, auditv1.Kind_KIND_HALTED, after.Reason, after.Epoch, nil))
	a.keeper.Soon()
	a.beginning.Lock()
	defer a.beginning.Unlock()
	if err != nil {
		return 0, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(fmt.Errorf("halted, but not durably: %w", err)))
	}
	return after.Epoch, nil
}

// haltedBy is the caller's identity; this sink's own where nobody called.
func (a *Authority) haltedBy(ctx context.Context) string {
	if caller, ok := rpc.Caller(ctx); ok {
		return caller.String()
	}
	return a.self
}

// Resume ends a halt, on a human's statement that is for this sink, or all, and names an epoch above the current one. It is in the
// log before it is in force: CODE_AUDIT_UNAVAILABLE, and the halt goes on, while nothing can be recorded.
func (a *Authority) Resume(ctx context.Context, h *callv1.HumanStatement) (uint64, error) {
	before := a.Control() // what was signed is the end of this halt: none that comes after it ends by it, whatever epoch it names
	deny := func(cause error) error {
		a.spoolControl(ctx, a.controlRecord(ctx, auditv1.Kind_KIND_SINK_REFUSED, clean.Line("resume: "+cause.Error(), 500), a.Control().Epoch, nil))
		return fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(cause))
	}
	if err := a.keeper.Compare(ctx); err != nil { // after the resumption what it looks for would be no matter any more
		return 0, newFault(callv1.Code_CODE_AUDIT_UNAVAILABLE, err)
	}
	defer a.keeper.Apart()() // from another resumption too: of two, the second is refused before it is recorded
	v, err := statement.Verify(h, a.cfg.Trust.Current().AllowedSigners, a.cfg.Now())
	switch {
	case err != nil:
		return 0, deny(err)
	case v.Kind != statement.KindResume:
		return 0, deny(errors.New("the statement is not of kind resume"))
	case !a.cfg.Self.AddressedBy(v.Audience):
		return 0, deny(errors.New("the statement wakes another process"))
	case v.Epoch <= before.Epoch || a.Control() != before:
		return 0, deny(errOldEpoch)
	case v.Epoch > grant.MaxEpoch:
		return 0, deny(errors.New("the epoch is out of bounds"))
	}
	// Not under the lock: a halt waits for no other process.
	if _, err := recordNow(ctx, a.controlRecord(ctx, auditv1.Kind_KIND_RESUMED, "resumed by "+v.Operator, v.Epoch, h), a.cfg.Recorder.Record); err != nil {
		a.notResumed(ctx, "it was not recorded in time")
		return 0, newFault(callv1.Code_CODE_AUDIT_UNAVAILABLE, err)
	}
	err = a.change(ctx, func(now Control) (Control, error) {
		if now != before {
			return now, errOldEpoch
		}
		return Control{Epoch: v.Epoch}, nil
	})
	switch {
	case errors.Is(err, errOldEpoch):
		a.notResumed(ctx, "another halt came first")
		return 0, deny(err)
	case err != nil:
		a.notResumed(ctx, "it could not be written down")
		return 0, newFault(callv1.Code_CODE_INTERNAL, err)
	}
	return v.Epoch, nil
}

// notResumed says behind a resumption that may be in the log that there was none: the next process would find its state behind the log.
func (a *Authority) notResumed(ctx context.Context, cause string) {
	if now := a.Control(); now.Halted {
		a.spoolControl(ctx, a.controlRecord(ctx, auditv1.Kind_KIND_HALTED, "resume: "+cause+", and the halt goes on", now.Epoch, nil))
		a.keeper.Soon() // what was told before it would be no matter
	}
}

var errOldEpoch = errors.New("the statement does not name an epoch above the current one, or there was another halt meanwhile")

func (a *Authority) spoolControl(ctx context.Context, record *auditv1.Record) {
	if err := a.cfg.Recorder.Spool(context.WithoutCancel(ctx), record); err != nil {
		a.cfg.Logger.ErrorContext(ctx, "a halt, a resume or the end of a statement could not be recorded", "kind", record.GetKind().String(), "statement", record.GetBody().GetDetails()["statement"], "error", err)
	}
}

func (a *Authority) controlRecord(ctx context.Context, kind auditv1.Kind, summary string, epoch uint64, h *callv1.HumanStatement) *auditv1.Record {
	caller, _ := rpc.Caller(ctx)
	record := &auditv1.Record{
		Kind:      kind,
		Time:      timestamppb.New(a.cfg.Now()),
		RequestId: rpc.RequestID(ctx),
		Status:    auditv1.Status_STATUS_OK,
		Body: &auditv1.Body{
			Principal: statement.CommandPrincipal(caller.Instance()),
			Summary:   summary,
			Statement: h,
			Details:   map[string]string{"epoch": fmt.Sprint(epoch), "caller": caller.String()},
		},
	}
	if kind == auditv1.Kind_KIND_SINK_REFUSED {
		record.Status, record.Body.Reason = auditv1.Status_STATUS_DENIED, summary
	}
	return record
}

// Recover looks after calls that an earlier process began and did not end: it finds out what is there now, says so in the
// log, and keeps that for whoever asks again. It is called once, before serving.
func (a *Authority) Recover(ctx context.Context, finder Finder) error {
	return a.recoverCalls(ctx, finder, func(*Entry) bool { return true })
}

// Settle does what Recover does for the one call of an earlier process that its finder could not say anything of yet.
func (a *Authority) Settle(ctx context.Context, operation string, finder Finder) error {
	return a.recoverCalls(ctx, finder, func(e *Entry) bool { return e.Operation == operation })
}

func (a *Authority) recoverCalls(ctx context.Context, finder Finder, chosen func(*Entry) bool) error {
	interrupted, err := a.cfg.Store.Interrupted(ctx)
	if err != nil {
		return err
	}
	for _, e := range interrupted {
		if !chosen(e) {
			continue
		}
		found := finder.Found(ctx, e.Tool, e.Operation, e.Arguments)
		if found == "" {
			continue
		}
		ended, err := a.outcomeRecorded(ctx, e)
		if err != nil {
			a.cfg.Logger.WarnContext(ctx, "the log does not say yet whether an interrupted call has ended", "operation", e.Operation, "error", err)
			a.mu.Lock()
			a.unasked, a.finder = append(a.unasked, e.Operation), finder
			a.mu.Unlock()
			continue
		}
		tool, _ := contract.Native(e.Tool)
		record := &auditv1.Record{
			Kind:        auditv1.Kind_KIND_RECOVERED,
			Time:        timestamppb.New(a.cfg.Now()),
			RequestId:   e.RequestID,
			OperationId: e.Operation,
			Tool:        e.Tool,
			Tier:        tool.Tier,
			Status:      auditv1.Status_STATUS_UNKNOWN,
			Body: &auditv1.Body{
				Principal: e.Principal,
				Session:   e.Session,
				Channel:   e.Channel,
				Source:    tool.Source,
				Arguments: string(e.Arguments),
				Confirmed: e.Statement != nil,
				Dangerous: e.Dangerous,
				Summary:   "unknown: found " + found,
			},
		}
		if ended {
			a.cfg.Logger.InfoContext(ctx, "an interrupted call had ended, as its record says", "operation", e.Operation)
		} else if err := a.cfg.Recorder.Spool(ctx, record); err != nil {
			// It stays as it is: whoever asks again hears that the outcome is unknown, and the next start tries again.
			a.cfg.Logger.ErrorContext(ctx, "an interrupted call could not be recorded", "operation", e.Operation, "error", err)
			continue
		}
		outcome, err := proto.Marshal(&callv1.Outcome{OperationId: e.Operation, Summary: foundSentence(found)})
		if err != nil {
			return err
		}
		if err := a.cfg.Store.Finish(ctx, e.Key, &Result{State: StateUnknown, Found: found, Outcome: outcome}); err != nil {
			return err
		}
		a.cfg.Logger.WarnContext(ctx, "a call was interrupted", "operation", e.Operation, "tool", e.Tool, "found", found)
	}
	return nil
}

// askAgain looks after the interrupted calls of which the log did not say whether they had ended.
func (a *Authority) askAgain(ctx context.Context) {
	a.mu.Lock()
	unasked, finder := a.unasked, a.finder
	a.unasked = nil
	a.mu.Unlock()
	for _, operation := range unasked {
		if err := a.Settle(ctx, operation, finder); err != nil {
			a.cfg.Logger.ErrorContext(ctx, "an interrupted call could not be settled", "operation", operation, "error", err)
		}
	}
}

// outcomeRecorded reports whether the outcome of an interrupted call was recorded: the process ended between that and its own note
// of it. An operation has one end.
func (a *Authority) outcomeRecorded(ctx context.Context, e *Entry) (bool, error) {
	if a.cfg.History == nil {
		return false, nil
	}
	end, err := a.cfg.History.Last(ctx, auditv1.Kind_KIND_OUTCOME, e.Operation)
	return end != nil && end.GetRecord().GetRequestId() == e.RequestID, err
}

func foundSentence(found string) string {
	return "the process was interrupted while it did this; afterwards it was found " + found
}

// Unsettled counts the calls whose outcome the vault has not heard, or that have none.
func (a *Authority) Unsettled(ctx context.Context) (int, error) {
	waiting, err := a.cfg.Store.Unsettled(ctx)
	if err != nil {
		return 0, err
	}
	open, err := a.cfg.Store.Interrupted(ctx)
	return len(waiting) + len(open), err
}

// newKeeper holds this sink's store against what the log knows of it.
func (a *Authority) newKeeper() *rollback.Keeper {
	return rollback.New(rollback.Config{
		History: a.cfg.History, Now: a.cfg.Now, Logger: a.cfg.Logger, Missing: a.lostCall,
		Control: func() (uint64, bool) { now := a.Control(); return now.Epoch, now.Halted },
		State:   func(ctx context.Context) (recorder.State, error) { return a.cfg.Store.State(ctx) },
		Halt: func(ctx context.Context, reason string, above uint64) error {
			_, err := a.Halt(ctx, reason, above+1)
			return err
		},
		Tell: func(ctx context.Context, record *auditv1.Record) error { return a.cfg.Recorder.Spool(ctx, record) },
	})
}

// Compare holds the store against what the log knows of this process, once; see rollback.Keeper. An error says that the log did not
// answer: no change is made before it has.
func (a *Authority) Compare(ctx context.Context) error { return a.keeper.Compare(ctx) }

// lostCall says which change the log has that the store should know and does not. What a human resumed after is no matter any more.
func (a *Authority) lostCall(ctx context.Context, resumed uint64) (string, error) {
	intent, err := a.cfg.History.Last(ctx, auditv1.Kind_KIND_INTENT, "")
	if err != nil || intent == nil || intent.GetIndex() < resumed {
		return "", err
	}
	at := intent.GetLoggedAt().AsTime()
	if a.cfg.Now().Sub(at) > outcomeRetention-statement.Skew {
		return "", nil // the store may have dropped it
	}
	known, err := a.cfg.Store.Knows(ctx, intent.GetRecord().GetOperationId())
	if err != nil || known {
		return "", err
	}
	return fmt.Sprintf("the log has a change of %s, and the state no spent key of it", at.UTC().Format(time.RFC3339)), nil
}
