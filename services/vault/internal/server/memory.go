package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/store"
)

// History is what the log knows of this vault; the platform's recorder is one.
type History interface {
	// Last returns the vault's own newest record of a kind, of one operation unless that is ""; nil for none.
	Last(ctx context.Context, kind auditv1.Kind, operation string) (*auditv1.Entry, error)
	// LastControl returns what it last recorded of its switch.
	LastControl(ctx context.Context) (recorder.Control, error)
	// LastState returns what it last told of its state, and the record's place; 0 where there is none.
	LastState(ctx context.Context) (recorder.State, uint64, error)
}

// compareEvery is how often a log that did not answer is asked again.
const compareEvery = time.Second

// Compare holds the state against what the log knows of this vault. State that was lost, or is an older copy, would take spent
// keys, used statements and a halt for new: everything is halted, above every epoch that the log knows, until a human's statement
// resumes. An error says that the log did not answer.
func (s *Server) Compare(ctx context.Context, history History) error {
	known, err := history.LastControl(ctx)
	if err != nil {
		return err
	}
	now := s.Halt.Now()
	lost := known.Lost(now.Epoch, now.Halted)
	for _, look := range []func(context.Context, History, uint64) (string, error){s.lostApproval, s.lostState} {
		if lost == "" {
			if lost, err = look(ctx, history, known.Index); err != nil {
				return err
			}
		}
	}
	if lost = lostHolds(lost); lost == "" {
		return nil
	}
	s.Logger.ErrorContext(ctx, "HALTED: THE STATE WAS LOST OR IS AN OLDER COPY. Find out why; put the newest back, or go on without it: durward resume", "missing", lost)
	reason, by := "the state was lost or is an older copy: "+lost, s.Self.String()
	epoch, err := s.Halt.HaltAbove(ctx, known.Epoch, by, reason, s.Now())
	s.noteHalt(ctx, epoch, by, reason)
	return err
}

// HaltDamaged halts everything, durably, where rows of the state do not bear their seals, and takes them as they are then: at
// another epoch nothing of them is in force. It is called before anything acts by the state.
func HaltDamaged(ctx context.Context, state *store.Store, control *halt.Switch, log *journal.Journal, by string, logger *slog.Logger) error {
	damage := state.Damage()
	if len(damage) == 0 {
		return nil
	}
	logger.ErrorContext(ctx, "HALTED: THE STATE IS DAMAGED. Find out why; put the newest backup back, or go on without what is damaged: durward resume", "damage", damage)
	reason := clean.Line("the state is damaged: "+strings.Join(damage, "; "), 500)
	epoch, err := control.Halt(ctx, by, reason, time.Now())
	if err != nil {
		return err
	}
	noteHalt(ctx, log, epoch, by, reason)
	return state.Accept(ctx)
}

// lostState says how the state is older than what was told of it, or another.
func (s *Server) lostState(ctx context.Context, history History, resumed uint64) (string, error) {
	told, index, err := history.LastState(ctx)
	if err != nil || told.Revision == 0 || index < resumed {
		return "", err
	}
	now, err := s.Queue.Store.State(ctx)
	if err != nil {
		return "", err
	}
	return told.Lost(now), nil
}

// tellState tells the log what the state is.
func (s *Server) tellState(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	state, err := s.Queue.Store.State(ctx)
	if err != nil {
		s.Logger.WarnContext(ctx, "what the state is could not be recorded", "error", err)
	} else if state.Revision > 0 {
		s.Journal.Note(ctx, state.Record())
	}
}

// lostApproval says which approval the log has of whose operation the state knows nothing. What a human resumed after is no matter
// any more.
func (s *Server) lostApproval(ctx context.Context, history History, resumed uint64) (string, error) {
	e, err := history.Last(ctx, auditv1.Kind_KIND_APPROVED, "")
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
	return fmt.Sprintf("the log has an approval of %s, and the state no operation of it", at.UTC().Format(time.RFC3339)), nil
}

// CompareUntil compares until the log has answered, or ctx ends.
func (s *Server) CompareUntil(ctx context.Context, history History) {
	for s.Compare(ctx, history) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(compareEvery):
		}
	}
}

// noteHalt records a halt.
func (s *Server) noteHalt(ctx context.Context, epoch uint64, by, reason string) {
	noteHalt(ctx, s.Journal, epoch, by, reason)
	s.tellState(ctx)
}

func noteHalt(ctx context.Context, log *journal.Journal, epoch uint64, by, reason string) {
	r := journal.Session(auditv1.Kind_KIND_HALTED, auditv1.Status_STATUS_OK, "", "", 0)
	r.Body.Action, r.Body.Reason, r.Body.DecisionSource, r.Body.Persistent = "halt", reason, by, true
	r.Body.Details = map[string]string{"epoch": strconv.FormatUint(epoch, 10)}
	log.Note(ctx, r)
}
