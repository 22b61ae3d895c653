package server

import (
	"context"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
)

// controlService halts and resumes, for operators' programs.
type controlService struct {
	vaultv1.UnimplementedControlServiceServer
	*Server
}

// GetStatus is deep health.
func (s *controlService) GetStatus(ctx context.Context, _ *vaultv1.GetStatusRequest) (*vaultv1.GetStatusResponse, error) {
	control, digest := s.Server.Halt.Now(), s.rules().Digest()
	resp := &vaultv1.GetStatusResponse{
		Halted: control.Halted, Epoch: control.Epoch, AuditReachable: s.Audit.Reachable(),
		Sessions: count(s.Sessions.Count()), Pending: count(s.Queue.PendingCount()), Clients: count(s.Clients.Count()),
		SpooledRecords: count(s.Audit.Depth()), PolicyDigest: canonical.FormatDigest(digest[:]), Version: s.Version,
		StartedAt: timestamppb.New(s.started), Checkpoint: s.Audit.Checkpoint(),
		Problems: s.Deep.Problems(ctx), Gateways: s.gateways.list(),
	}
	if control.Halted {
		resp.HaltedReason, resp.HaltedBy, resp.HaltedAt = control.Reason, control.ChangedBy, timestamppb.New(control.ChangedAt)
	}
	for _, sink := range s.Sinks {
		resp.Audiences = append(resp.Audiences, sink.String())
	}
	return resp, nil
}

// Halt stops every grant at once, with or without audit, and is durable when it returns.
func (s *controlService) Halt(ctx context.Context, req *vaultv1.HaltRequest) (*vaultv1.HaltResponse, error) {
	reason, by := clean.Line(req.GetReason(), 500), caller(ctx).String()
	epoch, err := s.Server.Halt.Halt(context.WithoutCancel(ctx), by, reason, s.Now())
	s.halted(ctx, epoch, by, reason)
	return &vaultv1.HaltResponse{Epoch: epoch}, err
}

// Resume ends a halt, if a human's statement says so. What was asked for before the halt is void.
func (s *controlService) Resume(ctx context.Context, req *vaultv1.ResumeRequest) (*vaultv1.ResumeResponse, error) {
	by, before := caller(ctx).String(), s.Server.Halt.Now() // of halts this ends that one, and none that comes meanwhile
	v, err := s.resumption(req.GetStatement())
	if err != nil {
		r := journal.Session(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, "", "", 0)
		r.Body.Action, r.Body.Reason, r.Body.DecisionSource = "resume-refused", err.Error(), by
		s.Journal.Note(ctx, r)
		return nil, fault.New(callv1.Code_CODE_DENIED, "the statement does not end this halt", fault.WithCause(err))
	}
	// What it looks for is no matter any more after the resumption. A halt that it makes goes on.
	if err := s.keeper.Compare(ctx); err != nil {
		return nil, fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "the state is not held against the log yet, therefore the halt goes on", fault.WithCause(err))
	}
	// Before it is recorded, so that a replay, or the second of two at once, does not look like a resumption.
	defer s.keeper.Apart()()
	if err := s.Server.Halt.MayResume(before.Epoch, v.Epoch); err != nil {
		return nil, err
	}
	r := journal.Session(auditv1.Kind_KIND_RESUMED, auditv1.Status_STATUS_OK, statement.CommandPrincipal(v.Operator), "", callv1.Channel_CHANNEL_CLI)
	r.Body.Action, r.Body.Statement, r.Body.Confirmed, r.Body.Persistent = "resume", req.GetStatement(), true, true
	r.Body.DecisionSource = v.Operator
	r.Body.Details = map[string]string{"epoch": strconv.FormatUint(v.Epoch, 10), "caller": by, "statement": v.ID}
	if err = s.Journal.Must(ctx, r); err == nil {
		// That it was used before is told by its epoch.
		err = s.Server.Halt.Resume(context.WithoutCancel(ctx), before.Epoch, v.Epoch, store.UsedStatement{
			Digest: v.Digest[:], Kind: string(v.Kind), Operator: v.Operator, UsedAt: s.Now(),
		}, s.Now())
	}
	if err != nil {
		// Behind a resumption that may be in the log: else the next process finds its state behind the log.
		if now := s.Server.Halt.Now(); now.Halted {
			noteHalt(ctx, s.Journal, now.Epoch, now.ChangedBy, now.Reason)
			s.keeper.Soon() // what was told before it would be no matter
		}
		return nil, err
	}
	if err := s.Queue.Sweep(context.WithoutCancel(ctx)); err != nil {
		s.Logger.ErrorContext(ctx, "operations from before the halt are still to be put away", "error", err)
	}
	return &vaultv1.ResumeResponse{Epoch: v.Epoch}, nil
}

// resumption verifies a statement of kind "resume" that is for this vault, or for the whole trust domain.
func (s *Server) resumption(h *callv1.HumanStatement) (*statement.Verified, error) {
	v, err := s.Consent.Verify(h, "")
	if err != nil {
		return nil, err
	}
	if v.Kind != statement.KindResume || !s.Self.AddressedBy(v.Audience) {
		return nil, fmt.Errorf("%w: it is of kind %s for %s", statement.ErrCover, v.Kind, v.Audience)
	}
	return v, nil
}

func count(n int) uint32 {
	return uint32(max(n, 0))
}
