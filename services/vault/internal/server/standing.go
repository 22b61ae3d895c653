package server

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/vault/internal/store"
)

// standingService is what humans let sessions do without being asked each time, for operators' programs. What grants is the
// signature under a statement, whoever brings it; ending takes the certificate alone.
type standingService struct {
	vaultv1.UnimplementedStandingServiceServer
	*Server
}

// GrantScope puts a scope into force. An operation that waits and is named is approved as its first use: both or neither.
func (s *standingService) GrantScope(ctx context.Context, req *vaultv1.GrantScopeRequest) (*vaultv1.GrantScopeResponse, error) {
	by := caller(ctx).String()
	var first *store.Operation
	if id := req.GetOperationId(); id != "" {
		op, _, err := s.Queue.Lookup(ctx, id)
		if err != nil {
			return nil, err
		}
		if op.State != vaultv1.OperationState_OPERATION_STATE_PENDING {
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "this operation does not wait for a decision any more")
		}
		if err := s.refusedByNow(ctx, op); err != nil {
			return nil, err
		}
		first = op
	}
	granted, err := s.Standing.GrantScope(ctx, req.GetStatement(), first, by)
	if err != nil {
		return nil, err
	}
	resp := &vaultv1.GrantScopeResponse{Standing: granted}
	if first == nil {
		return resp, nil
	}
	scope, _, ok := s.Standing.UseOf(granted.GetStandingId(), first)
	if ok {
		resp.Operation, err = s.Queue.ApproveUnder(ctx, first.ID, scope, by)
	} else {
		err = fault.New(callv1.Code_CODE_CONFLICT, "the scope ended before the operation could use it")
	}
	if err != nil {
		// Both or neither: an error that leaves a permission behind would be read as none.
		_, _ = s.Standing.Revoke(context.WithoutCancel(ctx), granted.GetStandingId(), "", "the operation that it was granted for was not approved", by)
		return nil, err
	}
	resp.Standing.UsesLeft--
	return resp, nil
}

// ProposeDangerous takes a statement; nothing is in force until it is confirmed.
func (s *standingService) ProposeDangerous(ctx context.Context, req *vaultv1.ProposeDangerousRequest) (*vaultv1.ProposeDangerousResponse, error) {
	id, from, until, err := s.Standing.ProposeDangerous(ctx, req.GetStatement(), caller(ctx).String())
	if err != nil {
		return nil, err
	}
	return &vaultv1.ProposeDangerousResponse{StandingId: id, NotBefore: timestamppb.New(from), NotAfter: timestamppb.New(until)}, nil
}

// ConfirmDangerous puts a proposal into force.
func (s *standingService) ConfirmDangerous(ctx context.Context, req *vaultv1.ConfirmDangerousRequest) (*vaultv1.ConfirmDangerousResponse, error) {
	granted, err := s.Standing.ConfirmDangerous(ctx, req.GetStatement(), caller(ctx).String())
	return &vaultv1.ConfirmDangerousResponse{Standing: granted}, err
}

// ListStanding shows what is in force, and who is muted.
func (s *standingService) ListStanding(context.Context, *vaultv1.ListStandingRequest) (*vaultv1.ListStandingResponse, error) {
	standing, muted := s.Standing.List()
	return &vaultv1.ListStandingResponse{Standing: standing, Muted: muted}, nil
}

// RevokeStanding ends it at once, and what was approved by it and did not begin.
func (s *standingService) RevokeStanding(ctx context.Context, req *vaultv1.RevokeStandingRequest) (*vaultv1.RevokeStandingResponse, error) {
	ended, err := s.Standing.Revoke(ctx, req.GetStandingId(), req.GetSession(), clean.Line(req.GetReason(), 500), caller(ctx).String())
	return &vaultv1.RevokeStandingResponse{Ended: ended}, err
}

// MutePrincipal refuses what a client asks a human for, for a while, and denies what of it waits.
func (s *standingService) MutePrincipal(ctx context.Context, req *vaultv1.MutePrincipalRequest) (*vaultv1.MutePrincipalResponse, error) {
	reason, by := clean.Line(req.GetReason(), 500), caller(ctx).String()
	mute, err := s.Standing.Mute(ctx, req.GetPrincipal(), time.Duration(req.GetForS())*time.Second, reason, by)
	if err != nil || mute == nil {
		return &vaultv1.MutePrincipalResponse{}, err
	}
	reason = cmp.Or(reason, "the operator does not want to be asked for a while")
	denied, err := s.Queue.DenyAll(ctx, req.GetPrincipal(), reason, by)
	return &vaultv1.MutePrincipalResponse{Mute: mute, Denied: count(denied)}, err
}

// ListSessions shows the sessions that are open, of clients that are let in.
func (s *standingService) ListSessions(context.Context, *vaultv1.ListSessionsRequest) (*vaultv1.ListSessionsResponse, error) {
	resp := &vaultv1.ListSessionsResponse{}
	for _, open := range s.Sessions.List() {
		client, ok := s.Clients.Lookup(open.Principal)
		if !ok || !letIn(client, open) {
			continue
		}
		shown := &vaultv1.OpenSession{
			Session: open.Ref, Principal: open.Principal, Agent: open.Agent, ClientName: open.ClientName, Channel: open.Client.Channel,
			KeyBound: open.Client.KeyBound(), OpenedAt: timestamppb.New(open.OpenedAt), ExpiresAt: timestamppb.New(open.ExpiresAt()),
			TierCeiling: open.Ceiling(client.Ceiling),
		}
		if until, ok := s.Standing.Dangerous(open.Ref); ok {
			shown.DangerousUntil = timestamppb.New(until)
		}
		if open.Sender != nil {
			shown.Sender = &vaultv1.Sender{User: open.Sender.User, Room: open.Sender.Room}
		}
		resp.Sessions = append(resp.Sessions, shown)
	}
	return resp, nil
}
