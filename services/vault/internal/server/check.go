package server

import (
	"context"
	"errors"
	"slices"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/policy"
	"durward.internal/services/vault/internal/decision"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/store"
)

// checkService says whether what was issued still stands: a redeemed grant, for a sink that let the call wait for its turn, and an internal
// program's permit.
type checkService struct {
	vaultv1.UnimplementedCheckServiceServer
	*Server
}

// CheckGrant asks nothing but whether: the grant is the caller's and redeemed by it, and its time is over long since.
func (s *checkService) CheckGrant(ctx context.Context, req *vaultv1.CheckGrantRequest) (*vaultv1.CheckGrantResponse, error) {
	g, err := s.Issuer.KnownGrant(req.GetGrant())
	if err == nil {
		err = s.stands(ctx, g)
	} else {
		err = fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
	}
	if err != nil {
		r := journal.Session(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, g.GetPrincipal(), g.GetSession(), g.GetChannel())
		r.OperationId, r.Tool = g.GetOperationId(), g.GetTool().GetName()
		r.Body.Action = "check-refused"
		return nil, s.recordRefused(ctx, r, err)
	}
	return &vaultv1.CheckGrantResponse{}, nil
}

// CheckPermit holds a permit to its session, its client and the rules as they are now.
func (s *checkService) CheckPermit(ctx context.Context, req *vaultv1.CheckPermitRequest) (*vaultv1.CheckPermitResponse, error) {
	p, err := s.Issuer.OpenPermit(req.GetPermit())
	switch {
	case errors.Is(err, issuer.ErrExpired):
		return nil, expiredPermit() // the sink keeps the record of the read
	case err != nil:
		err = fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
	default:
		err = s.stillPermits(ctx, p, req.GetTool())
	}
	if err != nil {
		r := journal.Session(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, p.GetPrincipal(), p.GetSession(), p.GetChannel())
		r.Tool, r.Body.Action = req.GetTool(), "check-refused"
		return nil, s.recordRefused(ctx, r, err)
	}
	return &vaultv1.CheckPermitResponse{}, nil
}

// stillPermits returns why a permit lets the caller answer a tool no more.
func (s *Server) stillPermits(ctx context.Context, p *callv1.Permit, name string) error {
	if p.GetAudience() != caller(ctx).String() || !slices.Contains(p.GetTools(), name) {
		return denied("the permit is for something else")
	}
	opened, client, err := s.holds(p, 0)
	if err != nil {
		return err
	}
	if tool, ok := contract.Lookup(name); !ok || !s.judge(opened, client).Permitted(tool, false) {
		return denied("the rules do not let it run any more")
	}
	return nil
}

// stands returns why what a grant rests on is in force no more. What a human approved by itself rests on no session; what ran
// without rests on the one that it was let run for, and on the rules as they are now.
func (s *Server) stands(ctx context.Context, g *callv1.Grant) error {
	op, err := s.Queue.Check(ctx, g, caller(ctx).String())
	if err != nil {
		return err
	}
	if op != nil && !operation.Alone(op) {
		return nil
	}
	opened, live := s.Sessions.Live(g.GetSession())
	if !live || opened.Principal != g.GetPrincipal() || !s.stillLetIn(opened) {
		return ended("the session has ended")
	}
	if op != nil && !s.stillRuns(op) {
		return ended("the rules do not let it run any more")
	}
	return nil
}

// stillRuns reports whether the rules let an operation run without an approval of its own. What a human's statement lets run they
// need not let run unasked, and they must not deny it.
func (s *Server) stillRuns(op *store.Operation) bool {
	d, ok := s.again(op)
	if ok && op.Authority == store.ByUnattended {
		return decision.Verdict(d) == policy.Run
	}
	return ok && (decision.Verdict(d) != policy.Deny || d.RetryAfter > 0)
}

func ended(cause string) error {
	return fault.New(callv1.Code_CODE_EXPIRED, "what let this call run has ended; ask again", fault.WithCause(errors.New(cause)))
}
