package sink

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/recorder"
)

// History is what the log knows of this process; the platform's recorder is one.
type History interface {
	// Last returns this process's own newest record of a kind, of one operation unless that is ""; nil for none.
	Last(ctx context.Context, kind auditv1.Kind, operation string) (*auditv1.Entry, error)
	// LastControl returns what it last recorded of its switch.
	LastControl(ctx context.Context) (recorder.Control, error)
	// LastState returns what it last told of its state, and the record's place; 0 where there is none.
	LastState(ctx context.Context) (recorder.State, uint64, error)
}

// Compare holds the store against what the log knows of this process, once. A store that was lost, or is an older copy, would take
// spent keys, used statements and a halt for new: it is halted, above every epoch that the log knows, until a human's statement
// resumes. An error says that the log did not answer: no change is made before it has.
func (a *Authority) Compare(ctx context.Context) error {
	if a.cfg.History == nil || a.compared.Load() {
		return nil
	}
	a.comparing.Lock()
	defer a.comparing.Unlock()
	if a.compared.Load() {
		return nil
	}
	known, err := a.cfg.History.LastControl(ctx)
	if err != nil {
		return err
	}
	now := a.Control()
	lost := known.Lost(now.Epoch, now.Halted)
	for _, look := range []func(context.Context, uint64) (string, error){a.lostCall, a.lostState} {
		if lost == "" {
			if lost, err = look(ctx, known.Index); err != nil {
				return err
			}
		}
	}
	if lost = lostHolds(lost); lost != "" {
		a.cfg.Logger.ErrorContext(ctx, "HALTED: THE STATE WAS LOST OR IS AN OLDER COPY. Find out why; put the newest back, or go on without it: durward resume", "missing", lost)
		if _, err := a.Halt(ctx, "the state was lost or is an older copy: "+lost, known.Epoch+1); err != nil {
			return err
		}
	}
	a.compared.Store(true)
	return nil
}

// lostState says how the state is older than what was told of it, or another.
func (a *Authority) lostState(ctx context.Context, resumed uint64) (string, error) {
	told, index, err := a.cfg.History.LastState(ctx)
	if err != nil || told.Revision == 0 || index < resumed {
		return "", err
	}
	now, err := a.cfg.Store.State(ctx)
	if err != nil {
		return "", err
	}
	return told.Lost(now), nil
}

// tellState tells the log what the state is.
func (a *Authority) tellState(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	state, err := a.cfg.Store.State(ctx)
	if err == nil && state.Revision > 0 {
		record := state.Record()
		record.Time = timestamppb.New(a.cfg.Now())
		err = a.cfg.Recorder.Spool(ctx, record)
	}
	if err != nil {
		a.cfg.Logger.WarnContext(ctx, "what the state is could not be recorded", "error", err)
	}
}

// HaltDamaged halts for rows that do not bear their seals.
func (a *Authority) HaltDamaged(ctx context.Context, damage []string) error {
	a.cfg.Logger.ErrorContext(ctx, "HALTED: THE STATE IS DAMAGED. Find out why; put the newest backup back, or go on without what is damaged: durward resume", "damage", damage)
	_, err := a.Halt(ctx, "the state is damaged: "+strings.Join(damage, "; "), 0)
	return err
}

// lostCall says which change the log has that the store should know and does not. What a human resumed after is no matter any more.
func (a *Authority) lostCall(ctx context.Context, resumed uint64) (string, error) {
	intent, err := a.cfg.History.Last(ctx, auditv1.Kind_KIND_INTENT, "")
	if err != nil || intent == nil || intent.GetIndex() < resumed {
		return "", err
	}
	at := intent.GetLoggedAt().AsTime()
	if a.cfg.Now().Sub(at) > outcomeRetention-Skew {
		return "", nil // the store may have dropped it
	}
	known, err := a.cfg.Store.Knows(ctx, intent.GetRecord().GetOperationId())
	if err != nil || known {
		return "", err
	}
	return fmt.Sprintf("the log has a change of %s, and the state no spent key of it", at.UTC().Format(time.RFC3339)), nil
}
