package drill

import (
	"fmt"
	"time"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// egressVaultLines are the attacks on egress of somebody who has the vault, as vaultLines has him. Their effects are requests at the
// listed server.
func egressVaultLines() []Line {
	egress := func(guards string) map[string]string { return map[string]string{harness.Egress: guards} }
	return []Line{
		{"egress-without-vault", egress("redeem"), fetchWithoutVault},
		{"egress-ended-standing", egress("ended,uses"), requestEnded},
		// The hostile vault stays from here on.
		{"egress-no-human", egress("statement"), requestNoHuman},
		{"egress-old-statement", egress("statement"), requestOldStatement},
		{"egress-expired-statement", egress("statement"), onRequest("/expired", expired)},
		{"egress-removed-operator", egress("statement"), onRequest("/removed", removed)},
		{"egress-scope-overuse", egress("uses"), requestOveruse},
		{"egress-other-request", egress("arguments,subject,statement"), otherRequest},
		{"egress-unattended", egress("unattended-arguments"), requestUnattended},
		{"egress-request-again", egress("spent,uses"), requestAgain},
		{"egress-audit-away", egress("intent"), fetchAuditAway},
		{"egress-old-epoch", egress("epoch,statement"), onRequest("/before-the-halt", oldEpoch)},
	}
}

// fetchWithoutVault fetches while no vault can redeem the grant.
func fetchWithoutVault(w *world) (trials, effects int) {
	s := w.open()
	var grants []string
	for range 5 {
		grants = append(grants, marshal(w.fetchGrant(s, w.out.at("/no-vault"))))
	}
	w.h.Process(harness.Vault).Kill()
	trials, effects = each(w, grants, func() int { return w.out.requests("/no-vault") }, func(g string) {
		_, _ = w.fetch(w.out.at("/no-vault"), rpc.MetadataGrant, g)
	})
	w.h.StartProcess(harness.Vault)
	w.awaitAll()
	return trials, effects
}

// requestEnded has a human end what a session may send, by durward and at the vault, which is in hostile hands from then on.
func requestEnded(w *world) (trials, effects int) {
	const path = "/ended"
	arguments := w.post(path)
	digest := canonical.Digest(arguments)
	s := w.openKeyed().agentSession
	write := func(kind statement.Kind) *statement.Statement {
		st, once := w.standingStatement(kind, s, "cli", time.Hour), w.requestStatement(arguments)
		st.Audience, st.Epoch = once.Audience, once.Epoch
		if kind == statement.KindScope {
			st.Tools, st.Uses, st.SubjectDigests = []statement.Tool{*once.Tool}, 100, []string{once.SubjectDigest}
			st.Free = []string{"/body", "/method", "/url"}
		}
		return st
	}
	use := func(st *statement.Statement, signed []*callv1.HumanStatement) {
		g := w.standingGrant(st, aim{"http_request", ""}, st.Kind == statement.KindDangerous, signed...)
		g.ArgumentsDigest = digest[:]
		w.issueRequest(arguments, g)
	}
	scope, danger := write(statement.KindScope), write(statement.KindDangerous)
	ended := map[*statement.Statement][]*callv1.HumanStatement{scope: w.signBoth(scope, w.signer), danger: w.signBoth(danger, w.signer)}
	w.must(w.grantScope(ended[scope][0]))
	w.must(w.enable(ended[danger][0], w.signer))
	w.h.Durward("dangerous", "disable")
	w.h.Durward("standing", "revoke", "--all")
	w.takeVault()
	genuine := 0
	for _, st := range []*statement.Statement{scope, danger} {
		for range 10 {
			trials++
			use(st, ended[st])
			if effects = w.out.requests(path) - genuine; w.caught(effects) {
				return trials, effects
			}
		}
		another := write(st.Kind)
		use(another, w.signBoth(another, w.signer))
		if genuine++; w.out.requests(path) != genuine+effects {
			w.t.Fatalf("a %s statement that did not end has no effect, so that an end proves nothing", st.Kind)
		}
	}
	return trials, effects
}

// post is the arguments of a request to the listed server.
func (w *world) post(path string) []byte {
	return fmt.Appendf(nil, `{"body":"x","method":"POST","url":%q}`, w.out.at(path))
}

// requestStatement writes the statement of an approval for an agent's request that never was: good in every field.
func (w *world) requestStatement(arguments []byte) *statement.Statement {
	w.t.Helper()
	preview, err := unary(w, egressv1.NewControlServiceClient(w.operatorEgress).PreviewCall, &executorv1.PreviewCallRequest{
		Tool: w.tool("http_request").Ref(), Arguments: arguments,
	})
	w.must(err)
	st := w.newStatement(statement.KindApprove, "http_request", "", preview)
	digest := canonical.Digest(arguments)
	st.Arguments, st.ArgumentsDigest = arguments, canonical.FormatDigest(digest[:])
	st.Principal, st.Session, st.Channel = "agent-0", "s-drill", "api"
	return st
}

// requestGrant writes the grant that goes with a request's statement: good in every field.
func (w *world) requestGrant(st *statement.Statement, arguments []byte, statements ...*callv1.HumanStatement) *callv1.Grant {
	w.t.Helper()
	g, digest := w.grantOf(st, "http_request", "", statements...), canonical.Digest(arguments)
	g.ArgumentsDigest = digest[:]
	return g
}

// request sends a request as the gateway.
func (w *world) request(arguments []byte, md ...string) {
	w.t.Helper()
	tool := w.tool("http_request")
	request, err := tool.Decode(arguments)
	w.must(err)
	// What it answers counts for nothing: effects are counted.
	_, _ = w.send(w.gatewayEgress, tool, request, md...)
}

// issueRequest sends one by a grant that the vault's key signs.
func (w *world) issueRequest(arguments []byte, g *callv1.Grant) {
	w.t.Helper()
	w.request(arguments, rpc.MetadataGrant, marshal(w.vaultSigns(g)))
}

// requestNoHuman sends requests that no human approved, with statements that the operator did not sign, or signed about something else.
func requestNoHuman(w *world) (trials, effects int) {
	w.takeVault()
	const path = "/no-human"
	arguments := w.post(path)
	st := w.requestStatement(arguments)
	bad := [][]*callv1.HumanStatement{nil, {{Statement: []byte("{}"), Signature: []byte("none")}}}
	for _, h := range w.badStatements(st) {
		bad = append(bad, []*callv1.HumanStatement{h})
	}
	for _, statements := range bad {
		for _, edit := range []func(*callv1.Grant){func(*callv1.Grant) {}, func(g *callv1.Grant) { g.Dangerous = true }} {
			trials++
			g := w.requestGrant(st, arguments, statements...)
			g.OperationId = grant.NewID()
			edit(g)
			w.issueRequest(arguments, g)
			if effects = w.out.requests(path); w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}

// requestOldStatement takes what the operator once signed for a request that was sent: for that request again, and for another.
func requestOldStatement(w *world) (trials, effects int) {
	w.takeVault()
	const path, another = "/signed-once", "/never-signed"
	once, never := w.post(path), w.post(another)
	old := w.requestStatement(once)
	signed := w.sign(old, w.signer)
	w.issueRequest(once, w.requestGrant(old, once, signed))
	if n := w.out.requests(path); n != 1 {
		w.t.Fatalf("a genuine statement had %d effects, so an old one proves nothing", n)
	}
	for _, edit := range []func(*callv1.Grant){
		func(*callv1.Grant) {},
		func(g *callv1.Grant) { g.OperationId = grant.NewID() },
		func(g *callv1.Grant) { g.Use = 2 },
		func(g *callv1.Grant) { g.OperationId, g.Use = grant.NewID(), 7 },
		func(g *callv1.Grant) { g.Session, g.OperationId = "s-other", grant.NewID() },
		func(g *callv1.Grant) { g.Principal, g.OperationId = "agent-1", grant.NewID() },
		func(g *callv1.Grant) { g.Channel, g.Dangerous = callv1.Channel_CHANNEL_CLI, true },
		func(g *callv1.Grant) { g.Epoch += 5; g.OperationId = grant.NewID() },
	} {
		for _, arguments := range [][]byte{once, never} {
			for _, statements := range [][]*callv1.HumanStatement{{signed}, {signed, signed}} {
				trials++
				// Everything but the statement is as the call needs it.
				g := w.requestGrant(w.requestStatement(arguments), arguments, statements...)
				g.OperationId = old.Operation
				edit(g)
				w.issueRequest(arguments, g)
				if effects = w.out.requests(path) - 1 + w.out.requests(another); w.caught(effects) {
					return trials, effects
				}
			}
		}
	}
	return trials, effects
}

// requestOveruse uses a standing approval more often than it says, and beyond what it pins.
func requestOveruse(w *world) (trials, effects int) {
	w.takeVault()
	const path, beyond = "/scoped", "/beyond-the-scope"
	arguments := w.post(path)
	st := w.requestStatement(arguments)
	signed := w.sign(&statement.Statement{
		Type: st.Type, Version: st.Version, Kind: statement.KindScope, ID: st.ID, Operator: st.Operator,
		IssuedAt: st.IssuedAt, NotBefore: st.NotBefore, ExpiresAt: st.ExpiresAt, Epoch: st.Epoch, Audience: st.Audience,
		Principal: st.Principal, Session: st.Session, Channel: st.Channel, Tools: []statement.Tool{*st.Tool},
		Pinned: []statement.Pin{{Pointer: "/url", Value: fmt.Appendf(nil, "%q", w.out.at(path))}}, Free: []string{"/body", "/method"},
		SubjectDigests: []string{st.SubjectDigest}, Uses: scopeUses,
	}, w.signer)
	use := func(arguments []byte, number uint32, edit func(*callv1.Grant)) {
		trials++
		g := w.requestGrant(w.requestStatement(arguments), arguments, signed)
		g.Use = number
		edit(g)
		w.issueRequest(arguments, g)
	}
	nothing := func(*callv1.Grant) {}
	use(w.post(beyond), 1, nothing)
	use(arguments, 1, func(g *callv1.Grant) { g.Session = "s-other" })
	use(arguments, 1, func(g *callv1.Grant) { g.Principal = "agent-1" })
	outside, lost := w.out.requests(path)+w.out.requests(beyond), w.lost.Load()
	for i := range uint32(20) {
		use(arguments, i+1, nothing)
		if w.weak && w.out.requests(path) > scopeUses {
			break
		}
	}
	used := w.out.requests(path) + w.out.requests(beyond) - outside
	w.usedUp(used, lost)
	return trials, outside + max(0, used-scopeUses)
}

// requestUnattended issues grants without a human's statement, where egress' own list lets one client send one request so.
func requestUnattended(w *world) (trials, effects int) {
	w.takeVault()
	const listed, unlisted = "/listed-unattended", "/unlisted-unattended"
	defer w.unattended(harness.Egress, fmt.Sprintf("  - {tool: http_request, clients: [agent-0], arguments: {url: [%q]}}", w.out.at(listed)))()
	send := func(arguments []byte, edit func(*callv1.Grant)) {
		trials++
		g := w.requestGrant(w.requestStatement(arguments), arguments)
		edit(g)
		w.issueRequest(arguments, g)
	}
	if send(w.post(listed), func(*callv1.Grant) {}); w.out.requests(listed) != 1 {
		w.t.Fatal("what egress' list lets run does not run, so that the rest proves nothing")
	}
	junk := &callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("none")}
	for _, edit := range []func(*callv1.Grant){
		func(g *callv1.Grant) { g.Principal = "agent-1" },
		func(g *callv1.Grant) { g.Principal = "agent-0/x" },
		func(g *callv1.Grant) { g.Dangerous = true },
		func(g *callv1.Grant) { g.Statements = []*callv1.HumanStatement{junk} },
		func(g *callv1.Grant) { g.Epoch += 1 << 40 },
		func(g *callv1.Grant) { g.SubjectDigest = make([]byte, 32) },
		func(g *callv1.Grant) { g.Audience = fmt.Sprint(w.h.Identity("egress/elsewhere")) },
	} {
		send(w.post(listed), edit)
	}
	for _, other := range []string{unlisted, listed + "/x", listed + "?x"} {
		send(w.post(other), func(*callv1.Grant) {})
	}
	return trials, w.out.requests(listed) + w.out.requests(unlisted) + w.out.requests(listed+"/x") - 1
}

// otherRequest takes the operator's yes to one request for others.
func otherRequest(w *world) (trials, effects int) {
	w.takeVault()
	asked := w.post("/asked")
	st := w.requestStatement(asked)
	signed := w.sign(st, w.signer)
	others := []string{"/other", "/asked/", "/asked?x", "/Asked"}
	for _, path := range others {
		arguments := w.post(path)
		other := w.requestStatement(arguments)
		for _, subject := range []*statement.Statement{st, other} {
			trials++
			w.issueRequest(arguments, w.requestGrant(subject, arguments, signed)) // as the call is
			trials++
			w.issueRequest(arguments, w.requestGrant(subject, asked, signed)) // as the statement is
		}
		effects += w.out.requests(path)
		if w.caught(effects) {
			return trials, effects
		}
	}
	if !w.weak {
		w.issueRequest(asked, w.requestGrant(st, asked, signed))
		if n := w.out.requests("/asked"); n != 1 {
			w.t.Fatalf("what the human approved was sent %d times, so that the rest shows nothing", n)
		}
	}
	return trials, effects
}

// requestAgain sends an approved request more than once: by its grant, and by grants that are issued afresh.
func requestAgain(w *world) (trials, effects int) {
	w.takeVault()
	const path = "/once"
	arguments := w.post(path)
	st := w.requestStatement(arguments)
	signed := w.sign(st, w.signer)
	g := w.requestGrant(st, arguments, signed)
	w.issueRequest(arguments, g)
	if n := w.out.requests(path); n != 1 {
		w.t.Fatalf("a genuine grant had %d effects, so that another use shows nothing", n)
	}
	for use := range uint32(30) {
		trials += 2
		w.issueRequest(arguments, g)
		fresh := w.requestGrant(st, arguments, signed)
		fresh.Use = use + 1
		w.issueRequest(arguments, fresh)
		if effects = w.out.requests(path) - 1; w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// fetchAuditAway fetches while nothing can be recorded.
func fetchAuditAway(w *world) (trials, effects int) {
	w.takeVault()
	const path = "/unrecorded"
	base := w.fetchBase()
	for _, begin := range []func(p *harness.Process) (end func()){
		func(p *harness.Process) func() { p.Hang(); return p.Kill },
		func(p *harness.Process) func() { p.Kill(); return func() {} },
	} {
		end := begin(w.h.Process(harness.Audit))
		trials += w.volley(make([]string, w.size(200, 8)), func(string) { _, _ = w.fetch(w.out.at(path), rpc.MetadataGrant, w.fetchAs(base, w.out.at(path))) },
			func() bool { return w.caught(w.out.requests(path)) })
		end()
		w.h.StartProcess(harness.Audit)
		w.awaitAll()
		w.settle()
		if effects = w.out.requests(path); w.caught(effects) {
			break
		}
	}
	return trials, effects
}
