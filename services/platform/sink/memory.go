package sink

import (
	"context"
	"fmt"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/rollback"
)

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
	if a.cfg.Now().Sub(at) > outcomeRetention-Skew {
		return "", nil // the store may have dropped it
	}
	known, err := a.cfg.Store.Knows(ctx, intent.GetRecord().GetOperationId())
	if err != nil || known {
		return "", err
	}
	return fmt.Sprintf("the log has a change of %s, and the state no spent key of it", at.UTC().Format(time.RFC3339)), nil
}
