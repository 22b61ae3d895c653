package drill

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// vaultLines are the attacks of somebody who has the vault: its certificate, the key that signs grants, every statement that
// it ever saw, and a Redeem that says yes. He has a gateway that delivers what he signs.
func vaultLines() []Line {
	executor := func(guards string) map[string]string { return map[string]string{harness.Executor: guards} }
	return []Line{
		{"executor-without-vault", executor("redeem"), withoutVault},
		{"vault-no-human", executor("statement"), noHuman},
		{"vault-forged-statement", executor("statement"), forgedStatement},
		{"vault-mutated-paper", executor("statement"), paperMutated},
		{"vault-old-statement", executor("statement"), oldStatement},
		{"vault-expired-statement", executor("statement"), onStart(expired)},
		{"vault-removed-operator", executor("statement"), onStart(removed)},
		{"vault-scope-overuse", executor("uses"), scopeOveruse},
		{"vault-standing", executor("any-subject,dangerous-flag"), vaultStanding},
		{"vault-unconfirmed-danger", executor("confirmed"), vaultUnconfirmed},
		{"vault-ended-standing", executor("ended,uses"), vaultEnded},
		{"vault-hides-standing", executor("uses"), vaultHides},
		{"vault-unattended", executor("unattended-arguments"), vaultUnattended},
		{"vault-spent-key", executor("spent,uses"), spentKey},
		{"vault-changed-target", executor("subject,statement"), changedTarget},
		{"audit-away", executor("intent"), auditAway},
		{"vault-old-epoch", executor("epoch"), onStart(oldEpoch)},
	}
}

// withoutVault uses an approved grant while no vault can redeem it.
func withoutVault(w *world) (trials, effects int) {
	m := w.arrange()
	g := w.approved(w.open(), "start_service", idle)
	w.h.Process(harness.Vault).Kill()
	trials, effects = each(w, slices.Repeat([]*callv1.SignedGrant{g}, 5), func() int { return w.effects(m) }, func(g *callv1.SignedGrant) {
		w.present(g, "start_service", idle)
	})
	w.takeVault()
	return trials, effects
}

// issue signs a grant with the vault's key and has it delivered.
func (w *world) issue(g *callv1.Grant, tool, service string) {
	w.present(w.vaultSigns(g), tool, service)
}

// noHuman issues grants without a human's statement, or with something in its place.
func noHuman(w *world) (trials, effects int) {
	w.takeVault()
	m := w.arrange()
	for _, a := range aims {
		st := w.agentStatement(a.tool, a.service)
		for _, statements := range [][]*callv1.HumanStatement{
			nil,
			{{Statement: []byte("{}"), Signature: []byte("none")}},
			{{Statement: []byte("null"), Signature: []byte("none")}},
		} {
			for _, edit := range []func(*callv1.Grant){
				func(*callv1.Grant) {},
				func(g *callv1.Grant) { g.Dangerous = true },
				func(g *callv1.Grant) { g.SubjectDigest = nil },
				func(g *callv1.Grant) { g.Principal, g.Session = statement.CommandPrincipal(w.h.Operator), "-" },
				func(g *callv1.Grant) { g.Channel = callv1.Channel_CHANNEL_CLI },
				func(g *callv1.Grant) { g.Use = 1000 },
				func(g *callv1.Grant) { g.Epoch += 3 },
			} {
				trials++
				g := w.grantOf(st, a.tool, a.service, statements...)
				g.OperationId = grant.NewID()
				edit(g)
				w.issue(g, a.tool, a.service)
				if effects = w.effects(m); w.caught(effects) {
					return trials, effects
				}
			}
		}
	}
	return trials, effects
}

// forgedStatement issues grants with statements that the operator did not sign, or signed about something else, or for
// another purpose.
func forgedStatement(w *world) (trials, effects int) {
	w.takeVault()
	m := w.arrange()
	good := w.agentStatement("start_service", idle)
	return each(w, w.badStatements(good), func() int { return w.effects(m) }, func(h *callv1.HumanStatement) {
		w.issue(w.grantOf(good, "start_service", idle, h), "start_service", idle)
	})
}

// oldStatement takes what the operator once signed for another call.
func oldStatement(w *world) (trials, effects int) {
	w.takeVault()
	m := w.arrange()
	// Signed, carried out, over: a start of the spare service.
	old := w.agentStatement("start_service", spare)
	signed := w.sign(old, w.signer)
	w.issue(w.grantOf(old, "start_service", spare, signed), "start_service", spare)
	if w.effects(m) != 1 {
		w.t.Fatal("a genuine statement had no effect, so an old one proves nothing")
	}
	w.kill(spare)
	m = w.arrange()
	for _, c := range []struct {
		aim
		edit func(*callv1.Grant)
	}{
		{aim{"start_service", spare}, func(g *callv1.Grant) { g.OperationId = grant.NewID() }},
		{aim{"start_service", spare}, func(g *callv1.Grant) { g.Use = 2 }},
		{aim{"start_service", spare}, func(g *callv1.Grant) { g.OperationId, g.Use = grant.NewID(), 7 }},
		{aim{"start_service", spare}, func(g *callv1.Grant) { g.Session = "s-other" }},
		{aim{"start_service", spare}, func(g *callv1.Grant) { g.Principal, g.OperationId = "agent-1", grant.NewID() }},
		{aim{"start_service", spare}, func(g *callv1.Grant) { g.Channel, g.Dangerous = callv1.Channel_CHANNEL_CLI, true }},
		{aim{"start_service", spare}, func(g *callv1.Grant) { g.Epoch += 5; g.OperationId = grant.NewID() }},
		{aim{"start_service", idle}, func(g *callv1.Grant) { g.OperationId = grant.NewID() }},
		{aim{"start_service", idle}, func(*callv1.Grant) {}},
		{aim{"stop_service", victim}, func(g *callv1.Grant) { g.OperationId = grant.NewID() }},
		{aim{"stop_service", victim}, func(*callv1.Grant) {}},
	} {
		// Everything but the statement is as the call needs it.
		wanted := w.agentStatement(c.tool, c.service)
		for _, statements := range [][]*callv1.HumanStatement{{signed}, {signed, signed}} {
			trials++
			g := w.grantOf(wanted, c.tool, c.service, statements...)
			g.OperationId = old.Operation
			c.edit(g)
			w.issue(g, c.tool, c.service)
			if effects = w.effects(m); w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}

// trustPatience is longer than any process takes to see a change of its trust folder.
const trustPatience = 1300 * time.Millisecond

// withoutOperator does something while the operator's key is not in allowed_signers, and every process has seen that.
func (w *world) withoutOperator(do func()) {
	w.t.Helper()
	const file = "trust/" + trust.FileAllowedSigners
	before := w.h.ReadFile(file)
	w.h.WriteFile(file, allowed("somebody", w.other))
	time.Sleep(trustPatience)
	do()
	w.h.WriteFile(file, before)
	w.settle()
}

func allowed(operator string, key ssh.Signer) string {
	return trust.FormatSigner(operator, key.PublicKey(), statement.Namespace) + "\n"
}

// scopeUses is how often the scope of scopeOveruse may be used.
const scopeUses = 3

// scopeOveruse uses a standing approval more often than it says, and beyond what it pins.
func scopeOveruse(w *world) (trials, effects int) {
	w.takeVault()
	st := w.agentStatement("start_service", idle)
	stop, err := w.preview("stop_service", idle)
	w.must(err)
	subject := canonical.Digest(stop.GetSubject().GetEntry())
	scope := &statement.Statement{
		Type: st.Type, Version: st.Version, Kind: statement.KindScope, ID: st.ID, Operator: st.Operator,
		IssuedAt: st.IssuedAt, NotBefore: st.NotBefore, ExpiresAt: st.ExpiresAt, Epoch: st.Epoch, Audience: st.Audience,
		Principal: st.Principal, Session: st.Session, Channel: st.Channel,
		Tools:          []statement.Tool{*st.Tool},
		Pinned:         []statement.Pin{{Pointer: "/service_id", Value: fmt.Appendf(nil, "%q", idle)}},
		SubjectDigests: []string{canonical.FormatDigest(subject[:])},
		Uses:           scopeUses,
	}
	signed := w.sign(scope, w.signer)
	m := w.arrange()
	use := func(tool, service string, number uint32, edit func(*callv1.Grant)) {
		trials++
		g := w.grantOf(w.agentStatement(tool, service), tool, service, signed)
		g.Use = number
		edit(g)
		w.issue(g, tool, service)
	}
	// Beyond what is pinned.
	nothing := func(*callv1.Grant) {}
	use("start_service", spare, 1, nothing)
	use("stop_service", victim, 1, nothing)
	use("start_service", idle, 1, func(g *callv1.Grant) { g.Session = "s-other" })
	use("start_service", idle, 1, func(g *callv1.Grant) { g.Principal = "agent-1" })
	outside := w.effects(m)
	// More often than it says; each time it can be seen, since the service is ended in between.
	for i := range uint32(20) {
		use("start_service", idle, i+1, nothing)
		w.kill(idle)
		if effects = w.effects(m); w.weak && effects > scopeUses {
			break
		}
	}
	return trials, outside + max(0, w.used(m)-outside-scopeUses)
}

// spentKey delivers one genuine grant again and again, and issues it afresh for the same use.
func spentKey(w *world) (trials, effects int) {
	w.takeVault()
	m := w.arrange()
	st := w.agentStatement("start_service", idle)
	signed := w.sign(st, w.signer)
	g := w.vaultSigns(w.grantOf(st, "start_service", idle, signed))
	for i := range 50 {
		trials += 2
		w.present(g, "start_service", idle)
		w.issue(w.grantOf(st, "start_service", idle, signed), "start_service", idle)
		w.kill(idle)
		if i == 0 && w.effects(m) == 0 {
			w.t.Fatal("a genuine grant had no effect, so another use proves nothing")
		}
		if effects = w.effects(m) - 1; w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// changedTarget uses an approval after a human changed what it was for.
func changedTarget(w *world) (trials, effects int) {
	w.takeVault()
	m := w.arrange()
	const file = "config/catalogue.yaml"
	before := w.h.ReadFile(file)
	for _, change := range [][2]string{
		{"name: " + idle, "name: Something else"}, {"stop_timeout_s: 2", "stop_timeout_s: 3"},
		{"-touch, ", "-model, other, -touch, "},
	} {
		st := w.agentStatement("start_service", idle)
		g := w.vaultSigns(w.grantOf(st, "start_service", idle, w.sign(st, w.signer)))
		w.h.WriteFile(file, strings.Replace(before, change[0], change[1], 1))
		harness.Eventually(w.t, "the executor has the changed catalogue", func() error {
			now, err := w.preview("start_service", idle)
			if err != nil {
				return err
			}
			if digest := canonical.Digest(now.GetSubject().GetEntry()); canonical.FormatDigest(digest[:]) == st.SubjectDigest {
				return fmt.Errorf("it is the same still")
			}
			return nil
		})
		for range 5 {
			trials++
			w.present(g, "start_service", idle)
		}
		w.h.WriteFile(file, before)
		harness.Eventually(w.t, "the executor has the catalogue again", func() error {
			now, err := w.preview("start_service", idle)
			if err != nil {
				return err
			}
			if digest := canonical.Digest(now.GetSubject().GetEntry()); canonical.FormatDigest(digest[:]) != st.SubjectDigest {
				return fmt.Errorf("it is another still")
			}
			return nil
		})
		if effects = w.effects(m); w.caught(effects) {
			break
		}
	}
	return trials, effects
}

func otherArgumentsOf(service string) ([]byte, string) {
	raw := arguments(service)
	digest := canonical.Digest(raw)
	return raw, canonical.FormatDigest(digest[:])
}
