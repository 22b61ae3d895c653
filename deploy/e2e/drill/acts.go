package drill

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// agentSession is a bearer client's session, in the gateway's hands.
type agentSession struct {
	principal, handle, ref string
	// permits are serialised, by the role that they are for.
	permits map[string]string
}

// open opens a session for a client that no attack has used.
func (w *world) open() *agentSession {
	w.t.Helper()
	if w.nextClient >= clientCount {
		w.t.Fatal("the drill needs more clients")
	}
	n := w.nextClient
	w.nextClient++
	return w.openAs(n, "")
}

// openAs opens a session of a client, in the place of one that a vault of before had, where its handle is given.
func (w *world) openAs(client int, replaces string) *agentSession {
	w.t.Helper()
	out, err := unary(w, vaultv1.NewSessionServiceClient(w.gatewayVault).OpenSession, &vaultv1.OpenSessionRequest{
		Credential: token(client), ClientName: "drill", ClientVersion: "1", Replaces: replaces,
	})
	w.must(err)
	return sessionOf(out)
}

func sessionOf(out *vaultv1.OpenSessionResponse) *agentSession {
	s := &agentSession{principal: out.GetPrincipal(), handle: out.GetSessionId(), ref: out.GetSession(), permits: map[string]string{}}
	for _, p := range out.GetPermits() {
		s.permits[strings.ToLower(strings.TrimPrefix(p.GetRole().String(), "ROLE_"))] = marshal(p.GetPermit())
	}
	return s
}

func marshal(m proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(err) // every message here is well formed
	}
	return string(b)
}

func arguments(service string) []byte { return fmt.Appendf(nil, `{"service_id":%q}`, service) }

func (w *world) tool(name string) contract.Tool {
	w.t.Helper()
	tool, ok := contract.Lookup(name)
	if !ok {
		w.t.Fatalf("there is no tool %s", name)
	}
	return tool
}

// ask asks for a mutation as an agent does, and returns the operation's id.
func (w *world) ask(s *agentSession, tool, service string) string {
	w.t.Helper()
	out, err := w.authorise(s.handle, tool, arguments(service))
	w.must(err)
	return out.GetOperationId()
}

// authorise is the gateway: it asks in a session's name.
func (w *world) authorise(handle, tool string, arguments []byte, md ...string) (*vaultv1.AuthoriseResponse, error) {
	return unary(w, vaultv1.NewAuthorityServiceClient(w.gatewayVault).Authorise, &vaultv1.AuthoriseRequest{
		SessionId: handle, Tool: w.tool(tool).Ref(), Arguments: arguments,
	}, md...)
}

// wait asks for an operation's grant under a permit.
func (w *world) wait(permit, operation string, md ...string) (*vaultv1.WaitOperationResponse, error) {
	// Just over what the vault keeps for itself, so that what is pending is answered at once.
	return w.waitFor(600*time.Millisecond, permit, operation, md...)
}

func (w *world) waitFor(limit time.Duration, permit, operation string, md ...string) (*vaultv1.WaitOperationResponse, error) {
	ctx, cancel := w.ctx(limit)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, append([]string{rpc.MetadataPermit, permit}, md...)...)
	return vaultv1.NewToolServiceClient(w.gatewayVault).WaitOperation(ctx, &vaultv1.WaitOperationRequest{OperationId: &operation})
}

// approved lets an agent ask, the operator approve, and returns the grant that the live call gets.
func (w *world) approved(s *agentSession, tool, service string) *callv1.SignedGrant {
	w.t.Helper()
	id := w.ask(s, tool, service)
	w.approve(id)
	out, err := w.waitFor(callTime, s.permits["vault"], id)
	w.must(err)
	if out.GetGrant() == nil {
		w.t.Fatalf("an approved operation has no grant: %v", out.GetState())
	}
	return out.GetGrant()
}

// operation returns what the operator sees of an operation.
func (w *world) operation(id string) *vaultv1.Operation {
	w.t.Helper()
	list, err := unary(w, vaultv1.NewApprovalServiceClient(w.operatorVault).ListOperations, &vaultv1.ListOperationsRequest{
		States: []vaultv1.OperationState{vaultv1.OperationState_OPERATION_STATE_PENDING, vaultv1.OperationState_OPERATION_STATE_APPROVED}, Limit: 1000,
	})
	w.must(err)
	for _, op := range list.GetOperations() {
		if op.GetOperationId() == id {
			return op
		}
	}
	w.t.Fatalf("operation %s is not in the list", id)
	return nil
}

// approve is the human: it shows nothing, and signs.
func (w *world) approve(id string) {
	w.t.Helper()
	op := w.operation(id)
	if op.GetState() == vaultv1.OperationState_OPERATION_STATE_APPROVED {
		return
	}
	_, err := unary(w, vaultv1.NewApprovalServiceClient(w.operatorVault).ApproveOperation, &vaultv1.ApproveOperationRequest{
		OperationId: id, Statement: w.sign(w.statementFor(op), w.signer),
	})
	w.must(err)
}

// command carries out a human's own command.
func (w *world) command(tool, service string) error {
	st, err := w.commandStatement(tool, service)
	if err != nil {
		return err
	}
	signed := w.sign(st, w.signer)
	if w.fake != nil {
		g := w.grantOf(st, tool, service, signed)
		_, err := w.execute(w.operatorExecutor, tool, service, rpc.MetadataGrant, marshal(w.vaultSigns(g)))
		return err
	}
	return w.carryOut(signed, tool, service)
}

// commandStatement is a human's own command before it is signed.
func (w *world) commandStatement(tool, service string) (*statement.Statement, error) {
	preview, err := w.preview(tool, service)
	if err != nil {
		return nil, err
	}
	st := w.newStatement(statement.KindCommand, tool, service, preview)
	st.Principal, st.Session, st.Channel = statement.CommandPrincipal(w.h.Operator), "-", "cli"
	return st, nil
}

// carryOut carries a signed command out.
func (w *world) carryOut(signed *callv1.HumanStatement, tool, service string) error {
	out, err := unary(w, vaultv1.NewApprovalServiceClient(w.operatorVault).GrantCommand, &vaultv1.GrantCommandRequest{Statement: signed})
	if err != nil {
		return err
	}
	_, err = w.execute(w.operatorExecutor, tool, service, rpc.MetadataGrant, marshal(out.GetGrant()))
	return err
}

func (w *world) preview(tool, service string) (*executorv1.PreviewCallResponse, error) {
	return unary(w, executorv1.NewControlServiceClient(w.operatorExecutor).PreviewCall, &executorv1.PreviewCallRequest{
		Tool: w.tool(tool).Ref(), Arguments: arguments(service),
	})
}

// execute calls a tool at the executor, with metadata.
func (w *world) execute(conn *grpc.ClientConn, tool, service string, md ...string) (proto.Message, error) {
	t, ok := contract.Lookup(tool)
	if !ok {
		return nil, errors.New("no such tool")
	}
	request, err := t.Decode(arguments(service))
	if err != nil {
		return nil, err
	}
	return w.send(conn, t, request, md...)
}

func (w *world) send(conn *grpc.ClientConn, t contract.Tool, request proto.Message, md ...string) (proto.Message, error) {
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	response := t.NewResponse()
	if err := conn.Invoke(metadata.AppendToOutgoingContext(ctx, md...), t.FullMethod, request, response); err != nil {
		if code := fault.From(err).Code; code == callv1.Code_CODE_AUDIT_UNAVAILABLE || code == callv1.Code_CODE_UNAVAILABLE {
			w.lost.Add(1)
		}
		return nil, err
	}
	return response, nil
}

// present calls a tool as the gateway, with a grant.
func (w *world) present(g *callv1.SignedGrant, tool, service string) {
	// What it answers counts for nothing: effects are counted.
	_, _ = w.execute(w.gatewayExecutor, tool, service, rpc.MetadataGrant, marshal(g))
}
