package server

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

const internal = optionsv1.Role_ROLE_TOOL

// addTool enters an internal program in clients.yaml.
func (v *vault) addTool(name, may string) {
	v.t.Helper()
	b, err := os.ReadFile(v.clients)
	v.must(err)
	v.must(os.WriteFile(v.clients, append(b, v.toolEntry(name, may)...), 0o600))
	v.must(v.server.Clients.Reload())
}

func (v *vault) toolEntry(name, may string) string {
	return fmt.Sprintf("  - id: %s\n    identity: %s\n    may: [%s]\n    channel: api\n    tier_ceiling: WRITE\n", name, v.ID(internal, name), may)
}

// internalProgram is a session of one, and its connection.
type internalProgram struct {
	*vaultv1.OpenSessionResponse
	conn *grpc.ClientConn
}

func (v *vault) openTool(name string) internalProgram {
	v.t.Helper()
	conn := v.as(internal, name)
	opened, err := vaultv1.NewSessionServiceClient(conn).OpenSession(v.t.Context(), &vaultv1.OpenSessionRequest{ClientName: "test"})
	v.must(err)
	return internalProgram{opened, conn}
}

func (p internalProgram) permit() *callv1.SignedPermit {
	return permitFor(optionsv1.Role_ROLE_VAULT, p.GetPermits())
}

func TestInternalProgram(t *testing.T) {
	v := newVault(t)
	v.addTool("reporter", "list_services, start_service")
	v.addTool("idler", "")
	v.addTool("removed", "gpu_status, list_services")
	own, idler, agent := v.openTool("reporter"), v.openTool("idler"), v.open(bearer)
	if !own.GetKeyBound() || own.GetPrincipal() != "reporter" || own.GetChannel() != callv1.Channel_CHANNEL_API {
		t.Errorf("opened %v", own.OpenSessionResponse)
	}
	for program, want := range map[*internalProgram]string{&own: "list_services", &idler: ""} {
		payload := &callv1.Permit{}
		v.must(proto.Unmarshal(permitFor(executor, program.GetPermits()).GetPayload(), payload))
		if got := strings.Join(payload.GetTools(), " "); got != want {
			t.Errorf("%s is permitted %q", program.GetPrincipal(), got)
		}
	}
	authorise := func(conn *grpc.ClientConn, session, tool, service string) (*vaultv1.AuthoriseResponse, error) {
		return vaultv1.NewAuthorityServiceClient(conn).Authorise(t.Context(), request(session, tool, service))
	}
	for _, c := range []struct {
		name    string
		program internalProgram
		tool    string
		want    vaultv1.AuthoriseResponse_Decision
	}{
		{"what its entry names asks", own, "start_service", vaultv1.AuthoriseResponse_DECISION_PENDING},
		{"what it does not name is denied", own, "stop_service", vaultv1.AuthoriseResponse_DECISION_DENIED},
		{"an entry that names nothing", idler, "start_service", vaultv1.AuthoriseResponse_DECISION_DENIED},
	} {
		got, err := authorise(c.program.conn, c.program.GetSessionId(), c.tool, "a")
		v.must(err)
		if got.GetDecision() != c.want || got.GetReason() != "" {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	asked, err := authorise(own.conn, own.GetSessionId(), "start_service", "b")
	v.must(err)
	v.approve(asked.GetOperationId())

	t.Run("its own operations alone", func(t *testing.T) {
		v.ask(agent.GetSessionId(), "c")
		second := v.openTool("reporter")
		for _, c := range []struct {
			of   internalProgram
			want int
		}{{own, 2}, {second, 0}, {idler, 0}} {
			list, err := vaultv1.NewOperationServiceClient(c.of.conn).ListSessionOperations(withPermit(t.Context(), c.of.permit()), &vaultv1.ListSessionOperationsRequest{})
			v.must(err)
			if len(list.GetOperations()) != c.want {
				t.Errorf("%s sees %v", c.of.GetPrincipal(), list)
			}
		}
		approved, err := vaultv1.NewOperationServiceClient(own.conn).ListSessionOperations(withPermit(t.Context(), own.permit()), &vaultv1.ListSessionOperationsRequest{
			States: []vaultv1.OperationState{vaultv1.OperationState_OPERATION_STATE_APPROVED}, Limit: 1,
		})
		v.must(err)
		if ops := approved.GetOperations(); len(ops) != 1 || ops[0].GetOperationId() != asked.GetOperationId() || ops[0].GetTool() != "start_service" || string(ops[0].GetArguments()) != string(arguments("b")) {
			t.Errorf("approved: %v", ops)
		}
	})

	t.Run("another's session", func(t *testing.T) {
		stranger := v.as(internal, "stranger")
		for name, c := range map[string]struct {
			conn    *grpc.ClientConn
			session string
		}{
			"by another program":     {idler.conn, own.GetSessionId()},
			"by one that is unknown": {stranger, own.GetSessionId()},
			"by the gateway":         {v.as(gateway, "main"), own.GetSessionId()},
			"an agent's":             {own.conn, agent.GetSessionId()},
		} {
			sessions := vaultv1.NewSessionServiceClient(c.conn)
			_, renew := sessions.RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: c.session})
			_, ask := authorise(c.conn, c.session, "start_service", "d")
			_, end := sessions.CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: c.session})
			if !fault.Is(renew, callv1.Code_CODE_UNAUTHENTICATED) || !fault.Is(ask, callv1.Code_CODE_UNAUTHENTICATED) || !fault.Is(end, callv1.Code_CODE_DENIED) {
				t.Errorf("%s: %v, %v, %v", name, renew, ask, end)
			}
		}
		id := asked.GetOperationId()
		for name, c := range map[string]struct {
			conn   *grpc.ClientConn
			permit *callv1.SignedPermit
		}{
			"a program's permit at another's connection": {idler.conn, own.permit()},
			"a program's permit at the gateway's":        {v.as(gateway, "main"), own.permit()},
			"an agent's permit":                          {own.conn, permitFor(optionsv1.Role_ROLE_VAULT, agent.GetPermits())},
		} {
			_, err := vaultv1.NewToolServiceClient(c.conn).WaitOperation(withPermit(t.Context(), c.permit), &vaultv1.WaitOperationRequest{OperationId: &id})
			if !fault.Is(err, callv1.Code_CODE_DENIED) {
				t.Errorf("%s: %v", name, err)
			}
		}
		_, err := vaultv1.NewToolServiceClient(idler.conn).WaitOperation(withPermit(t.Context(), idler.permit()), &vaultv1.WaitOperationRequest{OperationId: &id})
		wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
		got, err := vaultv1.NewToolServiceClient(own.conn).WaitOperation(withPermit(t.Context(), own.permit()), &vaultv1.WaitOperationRequest{OperationId: &id})
		v.must(err)
		if got.GetGrant() == nil {
			t.Error("the program gets no grant for its own operation")
		}
	})

	t.Run("opening", func(t *testing.T) {
		for name, c := range map[string]struct {
			conn  *grpc.ClientConn
			token string
		}{
			"no such program":           {v.as(internal, "stranger"), ""},
			"a client with a token":     {v.as(internal, bearer), ""},
			"another's token":           {own.conn, tokenOf(bearer)},
			"the gateway without one":   {v.as(gateway, "main"), ""},
			"a role that opens nothing": {v.as(executor, "reporter"), ""},
		} {
			_, err := vaultv1.NewSessionServiceClient(c.conn).OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: c.token})
			if !fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED) && !fault.Is(err, callv1.Code_CODE_DENIED) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})

	t.Run("its permit at a sink", func(t *testing.T) {
		check := func(role optionsv1.Role, p internalProgram, tool string) error {
			_, err := vaultv1.NewCheckServiceClient(v.as(role, "local")).CheckPermit(t.Context(), &vaultv1.CheckPermitRequest{
				Permit: permitFor(executor, p.GetPermits()), Tool: tool,
			})
			return err
		}
		removed := v.openTool("removed")
		v.must(check(executor, removed, "list_services"))
		v.must(check(executor, own, "list_services"))
		for name, err := range map[string]error{
			"at another sink":            check(egress, own, "list_services"),
			"for what it does not name":  check(executor, own, "service_info"),
			"for what its entry has not": check(executor, idler, "list_services"),
		} {
			if !fault.Is(err, callv1.Code_CODE_DENIED) {
				t.Errorf("%s: %v", name, err)
			}
		}
		v.rewrite("may: [gpu_status, list_services]", "may: [gpu_status]")
		if err := check(executor, removed, "list_services"); !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("what was taken from its entry: %v", err)
		}
		v.must(check(executor, removed, "gpu_status"))
		v.rewrite(v.toolEntry("removed", "gpu_status"), "")
		if err := check(executor, removed, "gpu_status"); !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("without an entry: %v", err)
		}
		v.must(check(executor, own, "list_services"))
	})

	t.Run("taken away", func(t *testing.T) {
		v.revoke("reporter")
		_, err := vaultv1.NewSessionServiceClient(own.conn).RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: own.GetSessionId()})
		wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
		_, err = vaultv1.NewSessionServiceClient(own.conn).OpenSession(t.Context(), &vaultv1.OpenSessionRequest{})
		wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
	})
	if n := len(v.audit.of(auditv1.Kind_KIND_DENIED)); n == 0 {
		t.Error("no refusal was recorded")
	}
}
