package drill

import (
	"fmt"
	"time"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// drillParty is whom the hostile vault's grants are for.
func drillParty() *agentSession { return &agentSession{principal: "agent-0", ref: "s-drill"} }

// standingGrant is a grant as the vault issues it under a standing statement: it names no subject, which the vault does not know.
func (w *world) standingGrant(st *statement.Statement, a aim, dangerous bool, statements ...*callv1.HumanStatement) *callv1.Grant {
	w.t.Helper()
	bare := *st
	bare.SubjectDigest, bare.Operation = "", ""
	g := w.grantOf(&bare, a.tool, a.service, statements...)
	g.OperationId, g.Dangerous = grant.NewID(), dangerous
	return g
}

// vaultStanding has the hostile vault stretch what a human let a session do: to other sessions, tools, arguments and definitions, beyond
// its time, and into dangerous mode. Its effects are what that changed.
func vaultStanding(w *world) (trials, effects int) {
	w.takeVault()
	m := w.arrange()
	start := aim{"start_service", idle}
	edited := func(st *statement.Statement, edit func(*statement.Statement)) *statement.Statement {
		edit(st)
		return st
	}
	scope := func() *statement.Statement {
		return w.scopeOf(drillParty(), "api", time.Hour, 100, "start_service", idle)
	}
	danger := func() *statement.Statement {
		return w.standingStatement(statement.KindDangerous, drillParty(), "api", time.Hour)
	}
	window := func(from, until time.Duration) func(*statement.Statement) {
		return func(st *statement.Statement) {
			now := time.Now()
			st.IssuedAt, st.NotBefore = statement.FormatTime(now.Add(from)), statement.FormatTime(now.Add(from))
			st.ExpiresAt = statement.FormatTime(now.Add(until))
		}
	}
	nothing := func(*callv1.Grant) {}
	epoch := danger().Epoch
	other := w.scopeOf(drillParty(), "api", time.Hour, 100, "start_service", spare).SubjectDigests
	type attack struct {
		st        *statement.Statement
		a         aim
		dangerous bool
		edit      func(*callv1.Grant)
	}
	attacks := []attack{
		// Pinned arguments, and a definition that is not the one that the human saw.
		{edited(scope(), func(st *statement.Statement) { st.SubjectDigests = other }), start, false, nothing},
		{edited(scope(), func(st *statement.Statement) { st.Pinned, st.Free = nil, []string{"/service_id"} }), aim{"start_service", spare}, false, nothing},
		{scope(), aim{"start_service", spare}, false, nothing},
		{scope(), aim{"stop_service", victim}, false, nothing},
		{edited(scope(), func(st *statement.Statement) { st.Pinned = nil }), start, false, nothing},
		// The flag of dangerous mode.
		{danger(), start, false, nothing},
		{danger(), aim{"stop_service", victim}, false, nothing},
		{scope(), start, true, nothing},
		{scope(), start, true, func(g *callv1.Grant) { g.Session = "s-other" }},
	}
	for _, kind := range []func() *statement.Statement{scope, danger} {
		dangerous := kind().Kind == statement.KindDangerous
		for _, edit := range []func(*callv1.Grant){
			func(g *callv1.Grant) { g.Session = "s-other" },
			func(g *callv1.Grant) { g.Principal = "agent-1" },
			func(g *callv1.Grant) { g.Channel = callv1.Channel_CHANNEL_CLI },
			func(g *callv1.Grant) { g.Channel = callv1.Channel_CHANNEL_MESSAGING },
			func(g *callv1.Grant) { g.Audience = w.h.Identity("executor/elsewhere").String() },
			func(g *callv1.Grant) { g.Statements = nil },
			func(g *callv1.Grant) { g.Principal, g.Session = statement.CommandPrincipal(w.h.Operator), "-" },
		} {
			attacks = append(attacks, attack{kind(), start, dangerous, edit})
		}
		for _, edit := range []func(*statement.Statement){
			window(-time.Hour, -6*time.Minute), window(-7*time.Hour, -10*time.Minute), window(6*time.Minute, time.Hour), window(24*time.Hour, 25*time.Hour),
			func(st *statement.Statement) { st.Epoch++ }, func(st *statement.Statement) { st.Epoch += 7 },
			func(st *statement.Statement) { st.Operator = "mallory" },
			func(st *statement.Statement) { st.Session = "s-other" }, func(st *statement.Statement) { st.Principal = "agent-1" },
		} {
			st := edited(kind(), edit)
			g := attack{st, start, dangerous, func(g *callv1.Grant) {
				now := drillParty()
				g.Principal, g.Session, g.Epoch = now.principal, now.ref, epoch
			}}
			attacks = append(attacks, g)
		}
	}
	// Last, since the executor goes with the vault to an epoch ahead of its own.
	for _, kind := range []func() *statement.Statement{scope, danger} {
		st := kind()
		attacks = append(attacks, attack{st, start, st.Kind == statement.KindDangerous, func(g *callv1.Grant) { g.Epoch++ }})
	}
	for i, x := range attacks {
		for _, by := range []int{0, 1} {
			before := effects
			signed := w.signBoth(x.st, w.signer)
			if by == 1 {
				signed = w.signBoth(x.st, w.other)
			}
			trials++
			g := w.standingGrant(x.st, x.a, x.dangerous, signed...)
			x.edit(g)
			w.issue(g, x.a.tool, x.a.service)
			if effects = w.effects(m); effects > before {
				w.t.Logf("attack %d on a statement of kind %s: %d effects", i, x.st.Kind, effects-before)
			}
			if w.caught(effects) {
				return trials, effects
			}
		}
	}
	// An approval shows one definition: a grant under it that names none is for nothing.
	for _, a := range aims {
		trials++
		st := w.agentStatement(a.tool, a.service)
		g := w.grantOf(st, a.tool, a.service, w.sign(st, w.signer))
		g.SubjectDigest = nil
		w.issue(g, a.tool, a.service)
	}
	effects = w.effects(m)
	if w.weak {
		return trials, effects
	}
	// What the human did let the session do is carried out: it was the stretching that was in the way.
	for _, st := range []*statement.Statement{scope(), danger()} {
		before := w.effects(m)
		g := w.vaultSigns(w.standingGrant(st, start, st.Kind == statement.KindDangerous, w.signBoth(st, w.signer)...))
		_, err := w.execute(w.gatewayExecutor, start.tool, start.service, rpc.MetadataGrant, marshal(g))
		w.must(err)
		harness.Eventually(w.t, fmt.Sprintf("a genuine %s statement has an effect, without which a stretched one proves nothing", st.Kind), func() error {
			if n := w.effects(m) - before; n != 1 {
				return fmt.Errorf("%d effects", n)
			}
			return nil
		})
		w.kill(idle)
	}
	return trials, effects
}

// vaultUnconfirmed has a hostile vault use what a human signed once and then did not confirm: the first statement of dangerous mode.
func vaultUnconfirmed(w *world) (trials, effects int) {
	w.takeVault()
	m := w.arrange()
	start := aim{"start_service", idle}
	first := func() *callv1.HumanStatement {
		return w.sign(w.standingStatement(statement.KindDangerous, drillParty(), "api", time.Hour), w.signer)
	}
	use := func(statements ...*callv1.HumanStatement) bool {
		trials++
		st, err := statement.Parse(statements[0].GetStatement())
		w.must(err)
		w.issue(w.standingGrant(st, start, true, statements...), start.tool, start.service)
		effects = w.effects(m)
		return w.caught(effects)
	}
	later := time.Now().Add(statement.ConfirmAfter + time.Second)
	h := first()
	for _, statements := range [][]*callv1.HumanStatement{
		{h}, {h, h}, {h, first()}, {h, w.confirmation(first(), later, w.signer)}, {h, w.confirmation(h, later, w.other)},
		{h, w.confirmation(h, time.Now(), w.signer)}, {w.confirmation(h, later, w.signer)},
		{h, w.sign(w.scopeOf(drillParty(), "api", time.Hour, 100, "stop_service", victim), w.signer)},
	} {
		if use(statements...) {
			return trials, effects
		}
	}
	if !w.weak {
		if use(h, w.confirmation(h, later, w.signer)); effects != 1 {
			w.t.Fatalf("what a human confirmed had %d effects, so that the rest proves nothing", effects)
		}
		effects = 0
	}
	return trials, effects
}

// vaultEnded has a hostile vault go on with what a human ended: the operator's program told the executor itself.
func vaultEnded(w *world) (trials, effects int) {
	w.takeVault()
	start := aim{"start_service", idle}
	for _, st := range []*statement.Statement{
		w.scopeOf(drillParty(), "api", time.Hour, 100, "start_service", idle),
		w.standingStatement(statement.KindDangerous, drillParty(), "api", time.Hour),
	} {
		signed := w.signBoth(st, w.signer)
		use := func() {
			w.issue(w.standingGrant(st, start, st.Kind == statement.KindDangerous, signed...), start.tool, start.service)
		}
		m := w.arrange()
		if use(); w.effects(m) != 1 {
			w.t.Fatalf("a genuine %s statement has no effect, so that its end proves nothing", st.Kind)
		}
		m = w.arrange()
		w.endAtExecutor(signed[0])
		for i := range 10 {
			if i == 5 {
				w.restart(harness.Executor, w.guards(harness.Executor)...)
			}
			trials++
			use()
			if n := w.effects(m); w.caught(n) {
				return trials, n
			}
		}
		effects += w.effects(m)
	}
	return trials, effects
}

// vaultHides has a hostile vault hide from the human what is in force, and use it more often than the human signed. That many times it
// can: that is no effect.
func vaultHides(w *world) (trials, effects int) {
	w.takeVault()
	start := aim{"start_service", idle}
	for _, st := range []*statement.Statement{
		w.scopeOf(drillParty(), "api", time.Hour, scopeUses, "start_service", idle),
		w.standingStatement(statement.KindDangerous, drillParty(), "api", time.Hour),
	} {
		st.Uses = scopeUses
		dangerous := st.Kind == statement.KindDangerous
		signed := w.signBoth(st, w.signer)
		m := w.arrange()
		for i := range 4 * scopeUses {
			switch i {
			case 1:
				w.endAtExecutor() // what the human ends, where the vault shows nothing
			case 2 * scopeUses:
				w.restart(harness.Executor, w.guards(harness.Executor)...)
			}
			if dangerous { // confirmed anew each time
				signed[1] = w.confirmation(signed[0], time.Now().Add(statement.ConfirmAfter+time.Second), w.signer)
			}
			trials++
			w.issue(w.standingGrant(st, start, dangerous, signed...), start.tool, start.service)
			w.kill(idle)
		}
		if effects += max(0, w.used(m)-scopeUses); w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// vaultUnattended issues grants without a human's statement, where the executor's own list lets one client start one service so.
func vaultUnattended(w *world) (trials, effects int) {
	w.takeVault()
	defer w.unattended(harness.Executor, "  - {tool: start_service, clients: [agent-0], arguments: {service_id: ["+spare+"]}}")()
	base := w.standingStatement(statement.KindScope, drillParty(), "api", time.Hour)
	listed := aim{"start_service", spare}
	m := w.arrange()
	w.issue(w.standingGrant(base, listed, false), listed.tool, listed.service)
	if w.effects(m) != 1 {
		w.t.Fatal("what the executor's list lets run does not run, so that the rest proves nothing")
	}
	m = w.arrange()
	junk := &callv1.HumanStatement{Statement: []byte("{}"), Signature: []byte("none")}
	st := w.scopeOf(drillParty(), "api", time.Hour, 1, "start_service", idle)
	for _, x := range []struct {
		a    aim
		edit func(*callv1.Grant)
	}{
		{aim{"start_service", idle}, func(*callv1.Grant) {}},
		{aim{"stop_service", victim}, func(*callv1.Grant) {}},
		{aim{"stop_service", spare}, func(*callv1.Grant) {}},
		{listed, func(g *callv1.Grant) { g.Principal = "agent-1" }},
		{listed, func(g *callv1.Grant) { g.Principal = "agent-00" }},
		{listed, func(g *callv1.Grant) { g.Principal = "agent-0/x" }},
		{listed, func(g *callv1.Grant) { g.Principal = statement.CommandPrincipal(w.h.Operator) }},
		{listed, func(g *callv1.Grant) { g.Dangerous = true }},
		{listed, func(g *callv1.Grant) { g.Statements = []*callv1.HumanStatement{junk} }},
		{listed, func(g *callv1.Grant) { g.Statements = []*callv1.HumanStatement{w.sign(st, w.other)} }},
		{listed, func(g *callv1.Grant) { g.Epoch += 1 << 40 }},
		{listed, func(g *callv1.Grant) { g.SubjectDigest = make([]byte, 32) }},
		{listed, func(g *callv1.Grant) { g.Audience = fmt.Sprint(w.h.Identity("executor/elsewhere")) }},
	} {
		for _, dangerous := range []bool{false, true} {
			trials++
			g := w.standingGrant(base, x.a, dangerous)
			x.edit(g)
			w.issue(g, x.a.tool, x.a.service)
			if effects = w.effects(m); w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}
