package drill

import (
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// standingLines are attacks on what a human lets a session do without being asked each time, and on how that begins and ends.
func standingLines() []Line {
	vault := func(guards string) map[string]string { return map[string]string{harness.Vault: guards} }
	return []Line{
		{"gateway-standing", vault("proof"), gatewayStanding},
		{"bearer-standing", vault("key-bound"), bearerStanding},
		{"self-approval", vault("self-approval"), selfApproval},
		{"dangerous-shortcuts", map[string]string{harness.Vault: "confirm-delay,confirm-key", harness.Executor: "confirmed"}, dangerousShortcuts},
		{"halt-outlives", map[string]string{harness.Vault: "standing-epoch,approval", harness.Executor: "statement,epoch,redeem"}, haltOutlives},
		{"rotated-client", vault("rotation-end"), rotatedClient},
	}
}

// keyedCount is how many clients sign what they ask for.
const keyedCount = 24

// messenger is a client that speaks for people on a messaging platform.
const (
	messenger      = "messenger"
	messengerToken = "drill-token-messenger"
)

// gatewayStanding is the gateway while one client's session has a scope and another's is in dangerous mode. Its effects are starts and
// stops beyond those that the clients themselves signed, and those that they signed and that came when it was over.
func gatewayStanding(w *world) (trials, effects int) {
	owner, risky, thief := w.openKeyed(), w.openKeyed(), w.open()
	sibling := w.openKeyedAs(w.nextKeyed - 2) // the owner's other session
	w.must(w.grantScope(w.sign(w.scopeOf(owner.agentSession, "cli", time.Hour, 500, "start_service", idle, spare), w.signer)))
	w.must(w.enable(w.sign(w.standingStatement(statement.KindDangerous, risky.agentSession, "cli", time.Hour), w.signer), w.signer))
	// The clients themselves, once each.
	m := w.arrange()
	genuine := []*callv1.Proof{owner.prove("start_service", idle), risky.prove("stop_service", victim)}
	observed := []*callv1.SignedGrant{
		w.relay(owner.handle, "start_service", idle, genuine[0]), w.relay(risky.handle, "stop_service", victim, genuine[1]),
	}
	w.useGrant(observed[0], "start_service", idle)
	w.useGrant(observed[1], "stop_service", victim)
	if n := w.effects(m); n != 2 {
		w.t.Fatalf("what was let run had %d effects, so the gateway's failure proves nothing", n)
	}
	m = w.arrange()
	proofs := append([]*callv1.Proof{nil}, genuine...)
	for _, p := range genuine {
		later, older := proto.CloneOf(p), proto.CloneOf(p)
		later.Counter, older.Time = 1000, p.GetTime()-1
		proofs = append(proofs, later, older)
	}
	renewal, err := proof.Sign(owner.key, proof.Claim{
		Purpose: callv1.Proof_PURPOSE_RENEW, Client: owner.principal, Session: owner.ref, Counter: 900, Time: time.Now().Unix(),
	})
	w.must(err)
	renewal.Purpose = callv1.Proof_PURPOSE_CALL
	proofs = append(proofs, renewal)
	for _, handle := range []string{owner.handle, risky.handle, sibling.handle, thief.handle} {
		for i, a := range aims {
			for _, p := range append(proofs[:len(proofs):len(proofs)], owner.claim(a.tool, a.service, uint64(2000+i), risky.key), risky.claim(a.tool, a.service, uint64(2000+i), owner.key)) {
				trials++
				w.useGrant(w.relay(handle, a.tool, a.service, p), a.tool, a.service)
			}
			trials++
			w.useGrant(w.relay(handle, a.tool, a.service, nil, "durward-session", risky.ref, "durward-principal", risky.principal), a.tool, a.service)
			if effects = w.effects(m); w.caught(effects) {
				return trials, effects
			}
		}
	}
	// What passed through it, again, for that call and for others, as a grant and as a permit, and issued afresh.
	for i, g := range observed {
		holder := []*keyedSession{owner, risky}[i]
		out, _ := w.wait(holder.permits["vault"], operationOf(w, g))
		other, _ := w.wait(thief.permits["vault"], operationOf(w, g))
		for _, a := range aims {
			for _, each := range []*callv1.SignedGrant{g, out.GetGrant(), other.GetGrant()} {
				trials++
				w.useGrant(each, a.tool, a.service)
			}
			trials++
			_, _ = w.execute(w.gatewayExecutor, a.tool, a.service, rpc.MetadataPermit, marshal(g), rpc.MetadataGrant, risky.permits["executor"])
		}
	}
	trials += w.held(risky, func() { w.revoke(risky.ref) })
	trials += w.held(owner, func() { w.revoke(owner.ref) })
	for _, end := range []func(s *keyedSession){
		func(s *keyedSession) {
			_, err := unary(w, vaultv1.NewSessionServiceClient(w.gatewayVault).CloseSession, &vaultv1.CloseSessionRequest{SessionId: s.handle})
			w.must(err)
		},
		func(*keyedSession) { w.pause(w.t.Context(), 6*time.Second) },
		func(*keyedSession) { w.halt(); w.resumed(m) },
	} {
		s := w.openKeyed()
		// As long as the second of these waits for its end.
		w.must(w.grantScope(w.sign(w.scopeOf(s.agentSession, "cli", 5*time.Second, 50, "start_service", idle, spare), w.signer)))
		trials += w.held(s, func() { end(s) })
	}
	return trials, w.effects(m)
}

// held keeps a grant and two signed calls back until what let them run has ended, and then delivers them.
func (w *world) held(s *keyedSession, end func()) (trials int) {
	w.t.Helper()
	late := []*callv1.Proof{s.prove("start_service", spare), s.prove("start_service", idle)}
	g := w.relay(s.handle, "start_service", idle, s.prove("start_service", idle))
	if g == nil {
		w.t.Fatal("what a human let run has no grant, so its end proves nothing")
	}
	end()
	w.useGrant(g, "start_service", idle)
	w.useGrant(w.relay(s.handle, "start_service", spare, late[0]), "start_service", spare)
	w.useGrant(w.relay(s.handle, "start_service", idle, late[1]), "start_service", idle)
	out, _ := w.wait(s.permits["vault"], operationOf(w, g))
	w.useGrant(out.GetGrant(), "start_service", idle)
	return 4
}

// resumed ends a halt, and leaves the effects of that to nobody.
func (w *world) resumed(m mark) {
	w.t.Helper()
	// Resuming carries out commands of the human's own: what they stop and start is no effect, and the mark must hold.
	before := w.effects(m)
	w.resumeOnly()
	if after := w.effects(m); after != before {
		w.t.Fatalf("a resume had %d effects", after-before)
	}
}

// bearerStanding has a human's own signature under scopes and dangerous mode for clients that do not sign, by mistake or by deceit, and
// then the gateway, which has their tokens, use it.
func bearerStanding(w *world) (trials, effects int) {
	m := w.arrange()
	s, keyed := w.open(), w.openKeyed()
	try := func(handle string) bool {
		for _, a := range aims {
			for range 3 {
				trials++
				w.useGrant(w.relay(handle, a.tool, a.service, nil), a.tool, a.service)
			}
			// What was refused is not to wait for the human either.
			w.denyAll()
		}
		effects = w.effects(m)
		return w.caught(effects)
	}
	mixed := *keyed.agentSession
	mixed.ref = s.ref
	for _, c := range []struct {
		session *agentSession
		channel string
	}{{s, "api"}, {s, "cli"}, {&mixed, "cli"}, {&agentSession{principal: s.principal, ref: keyed.ref}, "cli"}} {
		trials += 2
		_ = w.grantScope(w.sign(w.scopeOf(c.session, c.channel, time.Hour, 100, "start_service", idle, spare), w.signer))
		_ = w.enable(w.sign(w.standingStatement(statement.KindDangerous, c.session, c.channel, time.Hour), w.signer), w.signer)
		if try(s.handle) {
			return trials, effects
		}
	}
	// A key-bound client's token alone opens nothing, and its session, which has both, is of no use without its key.
	w.must(w.grantScope(w.sign(w.scopeOf(keyed.agentSession, "cli", time.Hour, 100, "start_service", idle, spare), w.signer)))
	w.must(w.enable(w.sign(w.standingStatement(statement.KindDangerous, keyed.agentSession, "cli", time.Hour), w.signer), w.signer))
	trials++
	out, err := unary(w, vaultv1.NewSessionServiceClient(w.gatewayVault).OpenSession, &vaultv1.OpenSessionRequest{Credential: keyedToken(w.nextKeyed - 1), ClientName: "drill"})
	if err == nil {
		effects++
		try(out.GetSessionId())
	}
	try(keyed.handle)
	w.revoke("")
	return trials, effects
}

// denyAll refuses what waits, so that one attempt does not stand in for the next.
func (w *world) denyAll() {
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	approvals := vaultv1.NewApprovalServiceClient(w.operatorVault)
	list, err := approvals.ListOperations(ctx, &vaultv1.ListOperationsRequest{Limit: 1000})
	w.must(err)
	for _, op := range list.GetOperations() {
		_, _ = approvals.DenyOperation(ctx, &vaultv1.DenyOperationRequest{OperationId: op.GetOperationId(), Reason: "drill"})
	}
}

// selfApproval finds a client's own key among the operators', by somebody's mistake, as operator mallory: the client approves what it
// asks for itself. Its effects are decisions in the vault's store, what is in force then, and starts and stops.
func selfApproval(w *world) (trials, effects int) {
	const file, mallory = "trust/allowed_signers", "mallory"
	m := w.arrange()
	s, neighbour := w.openKeyed(), w.open()
	own, err := ssh.NewSignerFromKey(s.key)
	w.must(err)
	before := w.h.ReadFile(file)
	w.h.WriteFile(file, before+allowed(mallory, own))
	w.pause(w.t.Context(), trustPatience)
	defer w.h.WriteFile(file, before) // nobody is in the way of the next attack by being trusted a moment longer
	decided := func() int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE decided_by = ?`, mallory) +
			w.query(harness.Vault, `SELECT count(*) FROM standing WHERE operator = ?`, mallory) + w.effects(m)
	}
	was := decided()
	sign := func(st *statement.Statement) *callv1.HumanStatement {
		st.Operator = mallory
		if st.Kind == statement.KindCommand {
			st.Principal = statement.CommandPrincipal(mallory)
		}
		return w.sign(st, own)
	}
	approvals := vaultv1.NewApprovalServiceClient(w.operatorVault)
	for _, a := range aims {
		w.relay(s.handle, a.tool, a.service, s.prove(a.tool, a.service))
		for _, id := range []string{w.ask(neighbour, a.tool, a.service), w.waiting(s.principal, a)} {
			trials += 2
			ctx, cancel := w.ctx(callTime)
			_, _ = approvals.ApproveOperation(ctx, &vaultv1.ApproveOperationRequest{OperationId: id, Statement: sign(w.statementFor(w.operation(id)))})
			_, _ = w.operatorStanding().GrantScope(ctx, &vaultv1.GrantScopeRequest{
				Statement: sign(w.scopeOf(s.agentSession, "cli", time.Hour, 100, a.tool, a.service)), OperationId: id,
			})
			cancel()
		}
		trials += 2
		_ = w.grantScope(sign(w.scopeOf(s.agentSession, "cli", time.Hour, 100, a.tool, a.service)))
		preview, err := w.preview(a.tool, a.service)
		w.must(err)
		command := w.newStatement(statement.KindCommand, a.tool, a.service, preview)
		command.Session, command.Channel = "-", "cli"
		out, _ := unary(w, approvals.GrantCommand, &vaultv1.GrantCommandRequest{Statement: sign(command)})
		if g := out.GetGrant(); g != nil {
			_, _ = w.execute(w.operatorExecutor, a.tool, a.service, rpc.MetadataGrant, marshal(g))
		}
		if effects = decided() - was; w.caught(effects) {
			return trials, effects
		}
	}
	trials++
	_ = w.enable(sign(w.standingStatement(statement.KindDangerous, s.agentSession, "cli", time.Hour)), own)
	for _, a := range aims {
		trials += 2
		w.call(s, a.tool, a.service)
		out, _ := w.wait(neighbour.permits["vault"], w.ask(neighbour, a.tool, a.service))
		w.useGrant(out.GetGrant(), a.tool, a.service)
	}
	w.denyAll()
	return trials, decided() - was
}

// waiting is the operation of a principal that waits for that call.
func (w *world) waiting(principal string, a aim) string {
	w.t.Helper()
	list, err := unary(w, vaultv1.NewApprovalServiceClient(w.operatorVault).ListOperations, &vaultv1.ListOperationsRequest{Limit: 1000})
	w.must(err)
	for _, op := range list.GetOperations() {
		if op.GetPrincipal() == principal && op.GetTool().GetName() == a.tool && serviceOf(op.GetArguments()) == a.service {
			return op.GetOperationId()
		}
	}
	w.t.Fatalf("nothing of %s waits", principal)
	return ""
}

// haltOutlives uses what was good before a panic, while it lasts and when it is over. Its effects are changes.
func haltOutlives(w *world) (trials, effects int) {
	m := w.arrange()
	scoped, risky, asked := w.openKeyed(), w.openKeyed(), w.open()
	w.must(w.grantScope(w.sign(w.scopeOf(scoped.agentSession, "cli", time.Hour, 100, "start_service", idle, spare), w.signer)))
	w.must(w.enable(w.sign(w.standingStatement(statement.KindDangerous, risky.agentSession, "cli", time.Hour), w.signer), w.signer))
	try := func(held []*callv1.SignedGrant) bool {
		for i, g := range held {
			trials++
			w.useGrant(g, "start_service", []string{idle, spare, idle}[i%3])
		}
		for _, s := range []*keyedSession{scoped, risky} {
			for _, a := range aims {
				trials++
				w.call(s, a.tool, a.service)
			}
		}
		effects = w.effects(m)
		return w.caught(effects)
	}
	hold := func() []*callv1.SignedGrant {
		held := []*callv1.SignedGrant{
			w.relay(scoped.handle, "start_service", idle, scoped.prove("start_service", idle)),
			w.relay(risky.handle, "start_service", spare, risky.prove("start_service", spare)),
			w.approved(asked, "start_service", idle),
		}
		if held[0] == nil || held[1] == nil {
			w.t.Fatal("what a human let run has no grant, so its end proves nothing")
		}
		return held
	}
	held := hold()
	w.halt()
	if try(held) {
		w.resume()
		return trials, effects
	}
	w.resumeOnly()
	if try(held) {
		w.settle()
		return trials, effects
	}
	// The same before the vault dies: its sessions, and what they were let do, die with it.
	scoped, risky, asked = w.openKeyed(), w.openKeyedAs(w.nextKeyed-1), w.open()
	w.must(w.grantScope(w.sign(w.scopeOf(scoped.agentSession, "cli", time.Hour, 100, "start_service", idle, spare), w.signer)))
	w.must(w.enable(w.sign(w.standingStatement(statement.KindDangerous, risky.agentSession, "cli", time.Hour), w.signer), w.signer))
	held = hold()[:2] // what a human approved by itself outlives a restart, as it should
	w.h.Process(harness.Vault).Kill()
	w.restart(harness.Vault, w.guards(harness.Vault)...)
	try(held)
	again := w.openKeyedAs(w.nextKeyed - 1)
	for _, a := range aims {
		trials++
		w.call(again, a.tool, a.service)
	}
	w.denyAll()
	effects = w.effects(m)
	w.settle()
	return trials, effects
}
