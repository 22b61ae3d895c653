package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/store"
)

// How long a call is held, and how much of the caller's own time that leaves. A permit that was in force when the hold began is
// good for its end.
const (
	maxHold   = 45 * time.Second
	holdSpare = 500 * time.Millisecond
)

// toolService answers the vault's own tools, as a sink: against a permit.
type toolService struct {
	vaultv1.UnimplementedToolServiceServer
	*Server
}

// WaitOperation waits for a human's decision, for the principal of the permit alone. With an operation that may run it
// returns the grant: the call that waits is the live call.
func (s *toolService) WaitOperation(ctx context.Context, req *vaultv1.WaitOperationRequest) (*vaultv1.WaitOperationResponse, error) {
	q := question{method: vaultv1.ToolService_WaitOperation_FullMethodName, operation: req.GetOperationId()}
	op, err := s.observed(ctx, &q, maxHold, func(principal string, hold time.Duration) (*store.Operation, error) {
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
	resp.Halted = operation.Halted(op)
	theirs := s.mayTakeUp(q.permit, op)
	if operation.MayRun(op) && (theirs || op.State == vaultv1.OperationState_OPERATION_STATE_APPROVED) {
		if !theirs { // what became of it the principal may see; what has not begun is another's to begin
			return nil, s.recordRefused(ctx, q.record(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, "operation-not-theirs"), noOperation())
		}
		if rule, allowed := s.stillAllowed(op); !allowed {
			return nil, s.recordRefused(ctx, q.record(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, "policy"), denied(rule))
		}
		resp.Grant, err = s.Queue.Issue(ctx, op)
		if fault.Is(err, callv1.Code_CODE_EXPIRED) && op.State != vaultv1.OperationState_OPERATION_STATE_APPROVED {
			err = nil // it ran in an epoch that is over: what became of it stands, and nothing more is granted
		}
		if err == nil {
			s.confirmed(op)
		}
	}
	if err == nil {
		err = operation.Ended(op)
	}
	if err == nil && resp.GetGrant() == nil { // a grant is recorded where it is issued
		err = s.Journal.Follow(ctx, q.read(op.State))
	}
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// WithdrawOperation takes back what the permit's own session asked for and nobody has decided on. What another session asked for
// too goes on waiting for that one.
func (s *toolService) WithdrawOperation(ctx context.Context, req *vaultv1.WithdrawOperationRequest) (*vaultv1.WithdrawOperationResponse, error) {
	q := question{method: vaultv1.ToolService_WithdrawOperation_FullMethodName, operation: req.GetOperationId()}
	refused := func(action string, err error) error {
		return s.recordRefused(ctx, q.record(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, action), err)
	}
	if err := s.admit(ctx, &q); err != nil {
		return nil, err
	}
	op, err := s.Queue.Withdraw(ctx, req.GetOperationId(), q.opened.Principal, q.opened.Agent, q.opened.Ref, q.dangerous, func(session string) bool {
		_, live := s.Sessions.Live(session)
		return live
	})
	if fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
		return nil, refused("operation-not-theirs", err)
	}
	if err != nil {
		return nil, err
	}
	summary := "The request was taken back; nothing was done, and nobody is asked any more."
	if op.GetState() == vaultv1.OperationState_OPERATION_STATE_PENDING {
		summary = "This session's part was taken back. Another session of this client asked for the same, and for that one it still waits for a human."
	}
	rpc.SetOutcome(ctx, &callv1.Outcome{Summary: summary})
	return &vaultv1.WithdrawOperationResponse{State: op.GetState()}, nil
}

// operationService says where operations stand, against the same permit, and has no grant to give.
type operationService struct {
	vaultv1.UnimplementedOperationServiceServer
	*Server
}

// GetOperation shows an operation of the permit's principal: at once, or when it leaves the state that the caller knows. What
// it shows is recorded; while nothing changed it shows nothing.
func (s *operationService) GetOperation(ctx context.Context, req *vaultv1.GetOperationRequest) (*vaultv1.GetOperationResponse, error) {
	most := time.Duration(0)
	if req.KnownState != nil {
		most = min(time.Duration(req.GetWaitS())*time.Second, maxHold)
	}
	q := question{method: vaultv1.OperationService_GetOperation_FullMethodName, operation: req.GetOperationId()}
	op, err := s.observed(ctx, &q, most, func(principal string, hold time.Duration) (*store.Operation, error) {
		return s.Queue.Observe(ctx, req.GetOperationId(), principal, req.GetKnownState(), hold)
	})
	if err != nil {
		return nil, err
	}
	if req.KnownState != nil && req.GetKnownState() == op.State {
		return &vaultv1.GetOperationResponse{State: op.State}, nil
	}
	if err := s.Journal.Follow(ctx, q.read(op.State)); err != nil {
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

// Most operations that ListSessionOperations shows, and unless told.
const defaultShown = 50

// ListSessionOperations shows the operations of the permit's session.
func (s *operationService) ListSessionOperations(ctx context.Context, req *vaultv1.ListSessionOperationsRequest) (*vaultv1.ListSessionOperationsResponse, error) {
	q := question{method: vaultv1.OperationService_ListSessionOperations_FullMethodName}
	if err := s.admit(ctx, &q); err != nil {
		return nil, err
	}
	ops, err := s.Queue.Store.SessionOperations(ctx, q.permit.GetSession(), int(cmp.Or(req.GetLimit(), defaultShown)), req.GetStates()...)
	if err != nil {
		return nil, err
	}
	r := q.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_OK, "list")
	if err := s.Journal.Follow(ctx, r); err != nil {
		return nil, err
	}
	resp := &vaultv1.ListSessionOperationsResponse{}
	for _, op := range ops {
		shown := &vaultv1.SessionOperation{
			OperationId: op.ID, State: op.State, Tool: op.ToolName, Arguments: op.Arguments, AskedAt: timestamppb.New(op.AskedAt),
			ExpiresAt: timestamppb.New(op.ExpiresAt), Ok: op.SettledOK,
		}
		if op.State == vaultv1.OperationState_OPERATION_STATE_DENIED {
			shown.Reason = op.DecisionReason
		}
		resp.Operations = append(resp.Operations, shown)
	}
	return resp, nil
}

// question is one call that asks about an operation.
type question struct {
	method    string
	operation string
	// permit is what the call came with, once its signature was found good.
	permit *callv1.Permit
	// dangerous: its session is in dangerous mode.
	dangerous bool
	// opened is its session, and client whose that is, once the permit was found to hold.
	opened *session.Session
	client *clients.Client
}

// record begins a record of the question. The tool is named where the RPC is one.
func (q *question) record(kind auditv1.Kind, status auditv1.Status, action string) *auditv1.Record {
	r := journal.Session(kind, status, q.permit.GetPrincipal(), q.permit.GetSession(), q.permit.GetChannel())
	r.OperationId = q.operation
	r.Body.Action, r.Body.Details = action, map[string]string{"method": q.method}
	r.Body.Dangerous = q.dangerous
	if tool, ok := contract.PermitOf(q.method); ok && tool.FullMethod == q.method {
		r.Tool, r.Tier = tool.Name, tool.Tier
	}
	return r
}

// read records an answer that shows the operation in a state, and gives nothing else.
func (q *question) read(state vaultv1.OperationState) *auditv1.Record {
	r := q.record(auditv1.Kind_KIND_READ, auditv1.Status_STATUS_OK, "show")
	r.Body.Details["state"] = state.String()
	return r
}

// observed waits for an operation on behalf of the permit that came with the call, at most so long, and within the caller's
// own time. Whoever was shut out meanwhile gets nothing. What is refused is recorded.
func (s *Server) observed(ctx context.Context, q *question, hold time.Duration, wait func(principal string, hold time.Duration) (*store.Operation, error)) (*store.Operation, error) {
	refused := func(action string, err error) error {
		return s.recordRefused(ctx, q.record(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, action), err)
	}
	if err := s.admit(ctx, q); err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		hold = max(0, min(hold, time.Until(deadline)-holdSpare))
	}
	op, err := wait(q.permit.GetPrincipal(), hold)
	if _, _, gone := s.holds(q.permit, maxHold); gone != nil {
		// The client was shut out while its call was held: it learns nothing more, and gets nothing.
		return nil, refused("permit-refused", gone)
	}
	if err == nil && op.Channel == callv1.Channel_CHANNEL_MESSAGING && op.Session != q.permit.GetSession() {
		// Another person's, who speaks through the same messaging client.
		op, err = nil, noOperation()
	}
	if fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
		return nil, refused("operation-not-theirs", err)
	}
	return op, err
}

func noOperation() error {
	return fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such operation")
}

// mayTakeUp reports whether the permit's session may carry out an operation of its principal: one that nobody approved by itself is
// the session's alone that it was let run for, and what an agent asked for is that agent's.
func (s *Server) mayTakeUp(permit *callv1.Permit, op *store.Operation) bool {
	opened, live := s.Sessions.Live(permit.GetSession())
	return live && opened.Agent == op.Agent && (!operation.Alone(op) || op.Session == permit.GetSession())
}

// admit verifies the permit that came with a call of one of the vault's own tools, or of what takes a tool's permit, and puts it
// into the question. One that is refused is there too, if this vault signed it and its time has not passed. What is refused is recorded.
func (s *Server) admit(ctx context.Context, q *question) error {
	if err := s.permitted(ctx, q); err != nil {
		return s.recordRefused(ctx, q.record(auditv1.Kind_KIND_DENIED, auditv1.Status_STATUS_DENIED, "permit-refused"), err)
	}
	return nil
}

func (s *Server) permitted(ctx context.Context, q *question) error {
	values := metadata.ValueFromIncomingContext(ctx, rpc.MetadataPermit)
	if len(values) != 1 {
		return denied("there is no permit, or more than one")
	}
	signed := &callv1.SignedPermit{}
	if err := proto.Unmarshal([]byte(values[0]), signed); err != nil {
		return denied("the permit cannot be read")
	}
	permit, err := s.Issuer.OpenPermit(signed)
	if errors.Is(err, issuer.ErrExpired) {
		return expiredPermit()
	}
	if err != nil {
		return fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
	}
	q.permit, q.dangerous = permit, s.dangerous(permit.GetSession())
	tool, ok := contract.PermitOf(q.method)
	if !ok || permit.GetAudience() != s.Self.String() || !slices.Contains(permit.GetTools(), tool.Name) {
		return denied("the permit is for something else")
	}
	q.opened, q.client, err = s.holds(permit, 0)
	if err == nil && !calledBy(q.opened.Client, caller(ctx)) {
		err = denied("the permit is another's")
	}
	return err
}

// holds checks that a permit is of this epoch and did not end longer ago than the grace, that its client is still let in with
// the credential that its session was opened with, and that the session is still open. It returns both as they are now.
func (s *Server) holds(permit *callv1.Permit, grace time.Duration) (*session.Session, *clients.Client, error) {
	if permit.GetEpoch() != s.Halt.Now().Epoch || s.Now().After(permit.GetExpiresAt().AsTime().Add(grace)) {
		return nil, nil, expiredPermit()
	}
	client, ok := s.Clients.Lookup(permit.GetPrincipal())
	if !ok {
		return nil, nil, denied("the client is not let in any more")
	}
	opened, ok := s.Sessions.Live(permit.GetSession())
	if !ok {
		return nil, nil, expiredPermit()
	}
	if opened.Principal != client.ID || !letIn(client, opened) {
		return nil, nil, denied("the client's credential is another by now")
	}
	return opened, client, nil
}

func expiredPermit() error {
	return fault.New(callv1.Code_CODE_EXPIRED, "the permit has expired; renew it", fault.WithRetry(0))
}
