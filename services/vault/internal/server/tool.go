package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/store"
)

// How long WaitOperation holds a call, and how much of the caller's own time it leaves.
const (
	maxHold   = 45 * time.Second
	holdSpare = 500 * time.Millisecond
)

const waitOperation = "wait_operation"

// toolService answers the vault's own tools, as a sink: against a permit.
type toolService struct {
	vaultv1.UnimplementedToolServiceServer
	*Server
}

// WaitOperation waits for a human's decision, for the principal of the permit alone. With an operation that may run it
// returns the grant: the call that waits is the live call.
func (s *toolService) WaitOperation(ctx context.Context, req *vaultv1.WaitOperationRequest) (*vaultv1.WaitOperationResponse, error) {
	op, err := s.observed(ctx, vaultv1.ToolService_WaitOperation_FullMethodName, maxHold, func(principal string, hold time.Duration) (*store.Operation, error) {
		return s.Queue.Wait(ctx, req.GetOperationId(), principal, hold)
	})
	if err != nil {
		return nil, err
	}
	resp := &vaultv1.WaitOperationResponse{
		State: op.State, Tool: op.ToolRef(), Arguments: op.Arguments, ExpiresAt: timestamppb.New(op.ExpiresAt),
	}
	if op.State == vaultv1.OperationState_OPERATION_STATE_DENIED {
		resp.Reason = op.DecisionReason
	}
	if !operation.MayRun(op) {
		return resp, nil
	}
	resp.Grant, err = s.Queue.Issue(ctx, op)
	if fault.Is(err, callv1.Code_CODE_EXPIRED) && op.State != vaultv1.OperationState_OPERATION_STATE_APPROVED {
		return resp, nil // it ran in an epoch that is over: what became of it stands, and nothing more is granted
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// operationService says where operations stand, against the same permit, and has no grant to give.
type operationService struct {
	vaultv1.UnimplementedOperationServiceServer
	*Server
}

// GetOperation shows an operation of the permit's principal: at once, or when it leaves the state that the caller knows.
func (s *operationService) GetOperation(ctx context.Context, req *vaultv1.GetOperationRequest) (*vaultv1.GetOperationResponse, error) {
	most := time.Duration(0)
	if req.KnownState != nil {
		most = min(time.Duration(req.GetWaitS())*time.Second, maxHold)
	}
	op, err := s.observed(ctx, vaultv1.OperationService_GetOperation_FullMethodName, most, func(principal string, hold time.Duration) (*store.Operation, error) {
		return s.Queue.Observe(ctx, req.GetOperationId(), principal, req.GetKnownState(), hold)
	})
	if err != nil {
		return nil, err
	}
	resp := &vaultv1.GetOperationResponse{
		State: op.State, Tool: op.ToolRef(), Arguments: op.Arguments,
		AskedAt: timestamppb.New(op.AskedAt), ExpiresAt: timestamppb.New(op.ExpiresAt),
	}
	if op.State == vaultv1.OperationState_OPERATION_STATE_DENIED {
		resp.Reason = op.DecisionReason
	}
	return resp, nil
}

// observed waits for an operation on behalf of the permit that came with the call, at most so long, and within the caller's
// own time. Whoever was shut out meanwhile gets nothing. What is refused is recorded.
func (s *Server) observed(ctx context.Context, method string, hold time.Duration, wait func(principal string, hold time.Duration) (*store.Operation, error)) (*store.Operation, error) {
	permit, err := s.permit(ctx, method)
	if err != nil {
		return nil, s.refused(ctx, "permit-refused", waitOperation, nil, err)
	}
	if deadline, ok := ctx.Deadline(); ok {
		hold = max(0, min(hold, time.Until(deadline)-holdSpare))
	}
	op, err := wait(permit.GetPrincipal(), hold)
	if gone := s.holds(permit); gone != nil {
		// The client was shut out while its call was held: it learns nothing more, and gets nothing.
		return nil, s.refused(ctx, "permit-refused", waitOperation, nil, gone)
	}
	if fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
		return nil, s.refused(ctx, "operation-not-theirs", waitOperation, nil, err)
	}
	return op, err
}

// permit verifies the permit that came with a call of one of the vault's own tools, or of what takes a tool's permit.
func (s *Server) permit(ctx context.Context, method string) (*callv1.Permit, error) {
	values := metadata.ValueFromIncomingContext(ctx, rpc.MetadataPermit)
	if len(values) != 1 {
		return nil, denied("there is no permit, or more than one")
	}
	signed := &callv1.SignedPermit{}
	if err := proto.Unmarshal([]byte(values[0]), signed); err != nil {
		return nil, denied("the permit cannot be read")
	}
	permit, err := s.Issuer.OpenPermit(signed)
	if errors.Is(err, issuer.ErrExpired) {
		return nil, expiredPermit()
	}
	if err != nil {
		return nil, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
	}
	tool, ok := contract.PermitOf(method)
	if !ok || permit.GetAudience() != s.Self.String() || !slices.Contains(permit.GetTools(), tool.Name) {
		return nil, denied("the permit is for something else")
	}
	if permit.GetEpoch() != s.Halt.Now().Epoch {
		return nil, expiredPermit()
	}
	if err := s.holds(permit); err != nil {
		return nil, err
	}
	return permit, nil
}

// holds checks that the client of a permit is still let in with the credential that its session was opened with, and that
// the session is still open.
func (s *Server) holds(permit *callv1.Permit) error {
	client, ok := s.Clients.Lookup(permit.GetPrincipal())
	if !ok {
		return denied("the client is not let in any more")
	}
	opened, ok := s.Sessions.Live(permit.GetSession())
	if !ok {
		return expiredPermit()
	}
	if opened.Principal != client.ID || !client.SameCredential(opened.Client) {
		return denied("the client's credential is another by now")
	}
	return nil
}

func expiredPermit() error {
	return fault.New(callv1.Code_CODE_EXPIRED, "the permit has expired; renew it", fault.WithRetry(0))
}
