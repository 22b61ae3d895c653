package drill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/rpc"
)

// Internal programs: one that is robbed, the attacker, and two that are taken away.
const (
	victimProgram = "program-victim"
	thiefProgram  = "program-thief"
	goneProgram   = "program-gone"
)

// programEntries are the internal programs in clients.yaml.
func programEntries(h *harness.Host) string {
	return programEntry(h, victimProgram, "list_services, service_info, start_service") + programEntry(h, thiefProgram, "list_services") +
		programEntry(h, goneProgram, "list_services")
}

func programEntry(h *harness.Host, name, may string) string {
	return fmt.Sprintf("  - {id: %s, identity: %s, may: [%s], channel: api, tier_ceiling: DESTRUCTIVE}\n", name, h.Identity("tool/"+name), may)
}

// programLines are attacks by an internal program, which has a certificate and calls the processes itself.
func programLines() []Line {
	return []Line{
		{"tool-others", map[string]string{harness.Vault: "called-by,owner", harness.Executor: "presented"}, othersOperations},
		{"tool-beyond-may", map[string]string{harness.Vault: "may"}, beyondMay},
		{"tool-taken-away", map[string]string{harness.Executor: "check"}, takenAway},
		{"tool-every-rpc", map[string]string{harness.Vault: "callers", harness.Executor: "callers", harness.Audit: "callers"}, programsEveryRPC},
	}
}

// internal is an internal program with its session and its connections.
type internal struct {
	*agentSession
	vault, executor *grpc.ClientConn
}

func (w *world) program(name string) *internal {
	w.t.Helper()
	id := w.h.Identity("tool/" + name)
	p := &internal{vault: w.h.DialAs(id, harness.Vault), executor: w.h.DialAs(id, harness.Executor)}
	out, err := unary(w, vaultv1.NewSessionServiceClient(p.vault).OpenSession, &vaultv1.OpenSessionRequest{ClientName: "drill"})
	w.must(err)
	p.agentSession = sessionOf(out)
	return p
}

// asks has it ask for a change, and returns the operation's id.
func (p *internal) asks(w *world, tool, service string) string {
	w.t.Helper()
	out, err := unary(w, vaultv1.NewAuthorityServiceClient(p.vault).Authorise, &vaultv1.AuthoriseRequest{
		SessionId: p.handle, Tool: w.tool(tool).Ref(), Arguments: arguments(service),
	})
	w.must(err)
	return out.GetOperationId()
}

// othersOperations is an internal program that knows the session, permits, grant and operations of another and of an agent. Its
// effects are what it is told of them, what it ends, and what it starts.
func othersOperations(w *world) (trials, effects int) {
	m := w.arrange()
	victims, agent, thief := w.program(victimProgram), w.open(), w.program(thiefProgram)
	type target struct {
		*agentSession
		pending, approved string
		grant             *callv1.SignedGrant
	}
	targets := []target{
		{
			agentSession: victims.agentSession, pending: victims.asks(w, "start_service", idle), approved: victims.asks(w, "start_service", spare),
		},
		{agentSession: agent, pending: w.ask(agent, "start_service", idle), approved: w.ask(agent, "start_service", spare)},
	}
	for i, from := range []*grpc.ClientConn{victims.vault, w.gatewayVault} {
		w.approve(targets[i].approved)
		out, err := unary(w, vaultv1.NewToolServiceClient(from).WaitOperation, &vaultv1.WaitOperationRequest{OperationId: &targets[i].approved}, rpc.MetadataPermit, targets[i].permits["vault"])
		w.must(err)
		if targets[i].grant = out.GetGrant(); targets[i].grant == nil {
			w.t.Fatal("an approved call has no grant, so that the thief's failure proves nothing")
		}
	}
	sessions, authority := vaultv1.NewSessionServiceClient(thief.vault), vaultv1.NewAuthorityServiceClient(thief.vault)
	operations, waits := vaultv1.NewOperationServiceClient(thief.vault), vaultv1.NewToolServiceClient(thief.vault)
	told := 0
	try := func(out proto.Message, err error) {
		trials++
		told += disclosed(out, err)
	}
	for _, t := range targets {
		for _, md := range [][]string{
			{rpc.MetadataPermit, thief.permits["vault"]}, {rpc.MetadataPermit, t.permits["vault"]},
			{rpc.MetadataPermit, thief.permits["vault"], "durward-session", t.ref},
		} {
			ctx, cancel := w.ctx(callTime)
			ctx = metadata.AppendToOutgoingContext(ctx, md...)
			// Of its own session there is nothing to tell.
			try(operations.ListSessionOperations(ctx, &vaultv1.ListSessionOperationsRequest{}))
			for _, id := range []string{t.pending, t.approved} {
				brief, stop := w.ctx(600 * time.Millisecond)
				try(waits.WaitOperation(metadata.AppendToOutgoingContext(brief, md...), &vaultv1.WaitOperationRequest{OperationId: &id}))
				stop()
				try(operations.GetOperation(ctx, &vaultv1.GetOperationRequest{OperationId: &id}))
				try(waits.WithdrawOperation(ctx, &vaultv1.WithdrawOperationRequest{OperationId: &id}))
			}
			cancel()
		}
		for _, md := range [][]string{
			{rpc.MetadataPermit, t.permits["executor"]}, {rpc.MetadataGrant, marshal(t.grant)},
			{rpc.MetadataPermit, thief.permits["executor"], rpc.MetadataGrant, marshal(t.grant)},
		} {
			try(w.execute(thief.executor, "service_info", idle, md...))
			try(w.execute(thief.executor, "start_service", spare, md...))
		}
		ctx, cancel := w.ctx(callTime)
		try(authority.Authorise(ctx, &vaultv1.AuthoriseRequest{SessionId: t.handle, Tool: w.tool("start_service").Ref(), Arguments: arguments(idle)}))
		try(sessions.RenewPermits(ctx, &vaultv1.RenewPermitsRequest{SessionId: t.handle}))
		trials++
		_, _ = sessions.CloseSession(ctx, &vaultv1.CloseSessionRequest{SessionId: t.handle}) // its answer is empty: looked for below
		cancel()
		// The other way round: the gateway with what is the program's.
		try(w.wait(victims.permits["vault"], targets[0].approved))
		try(w.authorise(victims.handle, "start_service", arguments(idle)))
		if effects = told + w.effects(m); w.caught(effects) {
			break
		}
	}
	// All that waited waits, and the sessions are open.
	for i, t := range targets {
		for _, id := range []string{t.pending, t.approved} {
			if w.query(harness.Vault, `SELECT count(*) FROM operations WHERE operation_id = ? AND state IN (1, 2)`, id) == 0 {
				told++
			}
		}
		ctx, cancel := w.ctx(callTime)
		conn := []*grpc.ClientConn{victims.vault, w.gatewayVault}[i]
		if _, err := vaultv1.NewSessionServiceClient(conn).RenewPermits(ctx, &vaultv1.RenewPermitsRequest{SessionId: t.handle}); err != nil {
			told++
		}
		cancel()
	}
	w.denyAll()
	return trials, told + w.effects(m)
}

// beyondMay calls what its entry does not name. Its effects are answers, operations that a human would be asked about, and what starts.
func beyondMay(w *world) (trials, effects int) {
	m, p := w.arrange(), w.program(thiefProgram)
	asked := func() int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE principal = ?`, thiefProgram)
	}
	before, answers := asked(), 0
	for _, tool := range contract.Tools() {
		if tool.Sink != optionsv1.Role_ROLE_EXECUTOR || tool.Name == "list_services" {
			continue
		}
		for _, request := range w.requests(tool.Method.Input(), p.ref, nil, nil) {
			args, err := contract.Canonical(request)
			w.must(err)
			trials++
			out, err := unary(w, vaultv1.NewAuthorityServiceClient(p.vault).Authorise, &vaultv1.AuthoriseRequest{SessionId: p.handle, Tool: tool.Ref(), Arguments: args})
			if err == nil && (out.GetGrant() != nil || out.GetOperationId() != "") {
				answers++
			}
			for _, md := range [][]string{
				nil, {rpc.MetadataPermit, p.permits["executor"]}, {rpc.MetadataPermit, p.permits["vault"]}, {rpc.MetadataGrant, marshal(out.GetGrant())},
			} {
				trials++
				answers += disclosed(w.send(p.executor, tool, request, md...))
			}
			w.pause(w.t.Context(), 100*time.Millisecond) // so that none is refused for how often it calls
		}
		if effects = answers + asked() - before + w.effects(m); w.caught(effects) {
			break
		}
	}
	w.denyAll()
	return trials, effects
}

// takenAway is an internal program whose entry a human took out of clients.yaml by hand: its certificate is good, and its permit for
// its minute. Its effects are answers after a second, and a stream that goes on.
func takenAway(w *world) (trials, effects int) {
	p := w.program(goneProgram)
	permit := []string{rpc.MetadataPermit, p.permits["executor"]}
	list := &executorv1.ListServicesRequest{}
	look := func() bool {
		trials++
		return disclosed(w.send(p.executor, w.tool("list_services"), list, permit...)) > 0
	}
	if !look() {
		w.t.Fatal("its permit shows nothing before it is taken away, so that what it shows afterwards proves nothing")
	}
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	stream, err := executorv1.NewEventServiceClient(p.executor).WatchServices(metadata.AppendToOutgoingContext(ctx, permit...), &executorv1.WatchServicesRequest{})
	w.must(err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	const file = "config/clients.yaml"
	before := w.h.ReadFile(file)
	var last time.Duration
	over := 0
	_, lag := w.h.Strain(func() {
		// A human's own edit: nobody announces it.
		w.h.WriteFile(file, strings.Replace(before, programEntry(w.h, goneProgram, "list_services"), "", 1))
		for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(20 * time.Millisecond) {
			if look() {
				last = time.Since(began)
			}
		}
		select {
		case <-ended:
		default:
			over++
		}
	})
	w.h.WriteFile(file, before)
	w.note = fmt.Sprintf("out after %s", last.Round(10*time.Millisecond))
	if last > time.Second+10*lag {
		over++
	}
	return trials, over
}

// programsEveryRPC calls, of every process, every RPC that the contract does not open to internal programs.
func programsEveryRPC(w *world) (trials, effects int) {
	p, id := w.program(victimProgram), w.h.Identity("tool/"+victimProgram)
	return w.everyRPC(optionsv1.Role_ROLE_TOOL, p.vault, p.executor, w.h.DialAs(id, harness.Audit), slices.Sorted(maps.Values(p.permits))...)
}
