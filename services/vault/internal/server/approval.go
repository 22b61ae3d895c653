package server

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/decision"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/store"
)

// defaultList is how many operations a list holds unless told.
const defaultList = 50

// listBytes is how long one message's operations may be. What they would disclose comes on top of it, and gRPC carries 16 MiB.
const listBytes = 4 << 20

// approvalService is the human's side of the queue, for operators' programs. The certificate on the connection lets a
// program look and deny; what approves is the signature under a statement, whoever brings it.
type approvalService struct {
	vaultv1.UnimplementedApprovalServiceServer
	*Server
}

// ListOperations lists operations, newest first.
func (s *approvalService) ListOperations(ctx context.Context, req *vaultv1.ListOperationsRequest) (*vaultv1.ListOperationsResponse, error) {
	page := store.Page{Limit: int(cmp.Or(req.GetLimit(), defaultList)), Bytes: listBytes, After: req.GetAfter()}
	ops, more, err := s.Queue.List(ctx, page, req.GetStates()...)
	if err != nil {
		return nil, err
	}
	for i := range ops {
		ops[i] = s.shown(ctx, ops[i])
	}
	return &vaultv1.ListOperationsResponse{Operations: ops, More: more}, nil
}

// WatchOperations sends what waits, then each change.
func (s *approvalService) WatchOperations(_ *vaultv1.WatchOperationsRequest, stream grpc.ServerStreamingServer[vaultv1.WatchOperationsResponse]) error {
	return s.Queue.Watch(stream.Context(), func(o *vaultv1.Operation) error {
		return stream.Send(&vaultv1.WatchOperationsResponse{Operation: s.shown(stream.Context(), o)})
	})
}

// ApproveOperation takes a human's statement for one operation.
func (s *approvalService) ApproveOperation(ctx context.Context, req *vaultv1.ApproveOperationRequest) (*vaultv1.ApproveOperationResponse, error) {
	waiting, _, err := s.Queue.Lookup(ctx, req.GetOperationId())
	if err != nil {
		return nil, err
	}
	if err := s.refusedByNow(ctx, waiting); err != nil {
		return nil, err
	}
	op, err := s.Queue.Approve(ctx, req.GetOperationId(), req.GetStatement(), caller(ctx).String())
	return &vaultv1.ApproveOperationResponse{Operation: op}, err
}

// DenyOperation ends an operation with the operator's words.
func (s *approvalService) DenyOperation(ctx context.Context, req *vaultv1.DenyOperationRequest) (*vaultv1.DenyOperationResponse, error) {
	op, err := s.Queue.Deny(ctx, req.GetOperationId(), clean.Line(req.GetReason(), 500), caller(ctx).String())
	return &vaultv1.DenyOperationResponse{Operation: op}, err
}

// ClaimOperation returns the grant of an approved operation when no agent waits for it.
func (s *approvalService) ClaimOperation(ctx context.Context, req *vaultv1.ClaimOperationRequest) (*vaultv1.ClaimOperationResponse, error) {
	op, waiters, err := s.Queue.Lookup(ctx, req.GetOperationId())
	if err != nil {
		return nil, err
	}
	if err := s.refusedByNow(ctx, op); err != nil {
		return nil, err
	}
	signed, err := s.Queue.Issue(ctx, op)
	return &vaultv1.ClaimOperationResponse{Grant: signed, Operation: operation.Proto(op, waiters)}, err
}

// refusedByNow refuses an operation that the rules deny by now, and names the rule: who asks is an operator.
func (s *Server) refusedByNow(ctx context.Context, op *store.Operation) error {
	rule, allowed := s.stillAllowed(op)
	if allowed || rule == decision.Gone { // the queue has a sentence for who is gone
		return nil
	}
	r := journal.Operation(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, op)
	r.Body.Action, r.Body.Reason, r.Body.DecisionSource = "policy", rule, caller(ctx).String()
	s.Journal.Note(ctx, r)
	return fault.New(callv1.Code_CODE_DENIED, "the rules deny this by now: "+clean.Line(rule, 200))
}

// GrantCommand turns a human's own signed command into an approved operation and its grant.
func (s *approvalService) GrantCommand(ctx context.Context, req *vaultv1.GrantCommandRequest) (*vaultv1.GrantCommandResponse, error) {
	v, err := s.Consent.Verify(req.GetStatement(), "")
	if err != nil {
		return nil, s.refuseCommand(ctx, err)
	}
	if v.Kind != statement.KindCommand || v.Session != operation.CommandSession || !operation.IsID(v.Operation) ||
		v.Channel != statement.ChannelName(callv1.Channel_CHANNEL_CLI) {
		return nil, s.refuseCommand(ctx, fmt.Errorf("%w: it is of kind %s", statement.ErrCover, v.Kind))
	}
	definition, err := canonical.ParseDigest(v.Tool.DefinitionDigest)
	if err != nil {
		return nil, s.refuseCommand(ctx, err)
	}
	tool, sink, ok := s.tool(&callv1.ToolRef{Name: v.Tool.Name, Source: v.Tool.Source, DefinitionDigest: definition})
	if !ok {
		return nil, s.refuseCommand(ctx, fmt.Errorf("%w: the tool is not known here", statement.ErrCover))
	}
	arguments, err := decode(tool, v.Arguments)
	if err != nil {
		return nil, err
	}
	argumentsDigest, policyDigest := contract.Digest(v.Arguments), s.rules().Digest()
	op, err := s.Queue.Command(ctx, store.Operation{
		Channel: callv1.Channel_CHANNEL_CLI, ToolName: tool.Name, ToolSource: tool.Source, ToolDigest: definition,
		Tier: tool.Tier, Arguments: v.Arguments, ArgumentsDigest: argumentsDigest[:], Audience: sink.String(),
		PolicyDigest: policyDigest[:], RequestID: rpc.RequestID(ctx),
	}, arguments, req.GetStatement(), v, caller(ctx).String())
	if err != nil {
		return nil, err
	}
	signed, err := s.Queue.Issue(ctx, op)
	return &vaultv1.GrantCommandResponse{Grant: signed, OperationId: op.ID}, err
}

func (s *approvalService) refuseCommand(ctx context.Context, cause error) error {
	r := journal.Session(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, "", "", 0)
	r.Body.Action, r.Body.Reason, r.Body.DecisionSource = "command-refused", cause.Error(), caller(ctx).String()
	s.Journal.Note(ctx, r)
	return fault.New(callv1.Code_CODE_DENIED, "the statement does not allow this command", fault.WithCause(cause))
}
