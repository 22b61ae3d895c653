package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/rollback"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/store"
)

// newKeeper holds this vault's state against what the log knows of it.
func (s *Server) newKeeper() *rollback.Keeper {
	return rollback.New(rollback.Config{
		History: s.History, Now: s.Now, Logger: s.Logger, Missing: s.lostApproval,
		Control: func() (uint64, bool) { now := s.Halt.Now(); return now.Epoch, now.Halted },
		State:   func(ctx context.Context) (recorder.State, error) { return s.Queue.Store.State(ctx) },
		Halt: func(ctx context.Context, reason string, above uint64) error {
			epoch, err := s.Halt.HaltAbove(ctx, above, s.Self.String(), reason, s.Now())
			s.halted(ctx, epoch, s.Self.String(), reason)
			return err
		},
		Tell: s.Journal.Follow,
	})
}

// Compare holds the state against what the log knows of this vault, once; see rollback.Keeper. Run does until the log has answered.
func (s *Server) Compare(ctx context.Context) error { return s.keeper.Compare(ctx) }

// HaltDamaged halts everything, durably, where rows of the state do not bear their seals; see rollback.Damaged.
func HaltDamaged(ctx context.Context, state *store.Store, control *halt.Switch, log *journal.Journal, by string, logger *slog.Logger) error {
	return rollback.Damaged(ctx, logger, state.Damage(), func(ctx context.Context, reason string) error {
		reason = clean.Line(reason, 500)
		epoch, err := control.Halt(ctx, by, reason, time.Now())
		if err == nil {
			noteHalt(ctx, log, epoch, by, reason)
		}
		return err
	}, state.Accept)
}

// lostApproval says which approval the log has of whose operation the state knows nothing, where no human resumed since.
func (s *Server) lostApproval(ctx context.Context, resumed uint64) (string, error) {
	e, err := s.History.Last(ctx, auditv1.Kind_KIND_APPROVED, "")
	if err != nil || e == nil || e.GetIndex() < resumed || e.GetRecord().GetOperationId() == "" {
		return "", err
	}
	at := e.GetLoggedAt().AsTime()
	if s.Now().Sub(at) > operation.Kept/2 {
		return "", nil // it may have been pruned
	}
	if _, err := s.Queue.Store.Operation(ctx, e.GetRecord().GetOperationId()); !errors.Is(err, store.ErrNotFound) {
		return "", err
	}
	if known, err := s.knowsLastSpend(ctx, e); known || err != nil {
		return "", err
	}
	return fmt.Sprintf("the log has an approval of %s, and the state no operation of it", at.UTC().Format(time.RFC3339)), nil
}

// knowsLastSpend reports whether the state has the newest redemption that the log has. Then it is no older copy: a vault that ended, or
// lost its database, between the record of an approval and the operation itself leaves as much, and nothing can be redeemed by it. A
// redemption that may have been pruned misses nowhere: what it spent has expired. With none, the log must say that the approval was given up.
func (s *Server) knowsLastSpend(ctx context.Context, approval *auditv1.Entry) (bool, error) {
	e, err := s.History.Last(ctx, auditv1.Kind_KIND_REDEEMED, "")
	if err == nil && e == nil {
		e, err = s.History.Last(ctx, auditv1.Kind_KIND_DENIED, approval.GetRecord().GetOperationId())
		return journal.GaveUp(e, approval), err
	} else if err != nil {
		return false, err
	}
	use, err := strconv.ParseUint(e.GetRecord().GetBody().GetDetails()["use"], 10, 32)
	if err != nil {
		return false, nil //nolint:nilerr // the log does not say which it was
	}
	if _, err = s.Queue.Store.Spent(ctx, e.GetRecord().GetOperationId(), uint32(use)); errors.Is(err, store.ErrNotFound) {
		return s.Now().Sub(e.GetLoggedAt().AsTime()) > operation.Kept/2, nil
	}
	return err == nil, err
}

// halted records a halt, ends what does not survive one, and has the state told. A halt that is not durable is no other: it is in force, and
// the next process finds it in the log, and halts.
func (s *Server) halted(ctx context.Context, epoch uint64, by, reason string) {
	noteHalt(ctx, s.Journal, epoch, by, reason)
	s.keeper.Soon()
	s.Standing.Sweep(context.WithoutCancel(ctx))
	s.Desktop.Kill("")
}

func noteHalt(ctx context.Context, log *journal.Journal, epoch uint64, by, reason string) {
	r := journal.Session(auditv1.Kind_KIND_HALTED, auditv1.Status_STATUS_OK, "", "", 0)
	r.Body.Action, r.Body.Reason, r.Body.DecisionSource, r.Body.Persistent = "halt", reason, by, true
	r.Body.Details = map[string]string{"epoch": strconv.FormatUint(epoch, 10)}
	log.Note(ctx, r)
}
