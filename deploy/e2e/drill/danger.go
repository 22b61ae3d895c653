package drill

import (
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// dangerousShortcuts looks for a way into dangerous mode, or back into it, that is shorter than the human's. Its effects are changes
// that nobody was asked about.
func dangerousShortcuts(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.openKeyed()
	// The client asks for what would show; each is its own, signed, and would wait for a human.
	try := func(what string, md ...string) bool {
		before := w.effects(m)
		for _, a := range aims {
			trials++
			w.call(s, a.tool, a.service, md...)
		}
		w.denyAll()
		effects = w.effects(m)
		if effects > before {
			w.t.Logf("%s: %d effects", what, effects-before)
		}
		return w.caught(effects)
	}
	fresh := func() *callv1.HumanStatement {
		return w.sign(w.standingStatement(statement.KindDangerous, s.agentSession, "cli", time.Hour), w.signer)
	}
	// Confirmed at once, twice, by another statement's, and not at all.
	first := fresh()
	_, _, err := w.propose(first)
	w.must(err)
	trials += 3
	_ = w.confirm(w.confirmation(first, time.Now(), w.signer))
	_ = w.confirm(w.confirmation(first, time.Now(), w.signer))
	_ = w.confirm(w.confirmation(fresh(), time.Now(), w.signer))
	if try("a proposal confirmed at once") {
		return trials, effects
	}
	var at time.Time
	for early := false; !early; early = time.Now().Before(at) { // on a slow machine it may have been too late for that
		w.revoke("")
		first = fresh()
		_, at, err = w.propose(first)
		w.must(err)
		_, _, _ = w.propose(fresh()) // a second one must not hurry the first
		w.pause(w.t.Context(), time.Until(at)-500*time.Millisecond)
		trials++
		_ = w.confirm(w.confirmation(first, time.Now().Add(5*time.Second), w.signer))
	}
	try("a proposal confirmed a little early")
	w.pause(w.t.Context(), time.Second)
	// By whatever has the operator's certificate, and no key: with the first once more, and with keys of its own.
	own, err := ssh.NewSignerFromKey(s.key)
	w.must(err)
	for _, second := range []*callv1.HumanStatement{
		first, fresh(), w.confirmation(first, time.Now(), w.other), w.confirmation(first, time.Now(), own),
		w.confirmation(fresh(), time.Now(), w.signer),
		{Statement: w.confirmation(first, time.Now(), own).GetStatement(), Signature: first.GetSignature()},
	} {
		trials++
		_ = w.confirm(second)
	}
	try("a proposal that its human did not confirm")
	w.revoke("") // takes the proposal back
	trials++
	_ = w.confirm(w.confirmation(first, time.Now(), w.signer))
	try("a proposal that was taken back")

	// As an agent's word.
	for _, name := range []string{"durward-dangerous", "durward-dangerous-bin", "x-dangerous", "durward-mode", "durward-confirm", "durward-standing", "dangerous", rpc.MetadataGrant} {
		try("metadata "+name, name, "true")
	}
	// Over messaging, and for a session that is another's.
	w.messaging(&trials)
	// By a file.
	w.inFiles(&trials, try)

	// Used once, ended, and used again.
	used := fresh()
	w.must(w.enable(used, w.signer))
	n := w.effects(m)
	w.call(s, "start_service", idle)
	if got := w.effects(m) - n; got != 1 {
		w.t.Fatalf("dangerous mode had %d effects, so its end proves nothing", got)
	}
	w.kill(idle)
	m = w.arrange()
	late := s.prove("start_service", spare)
	w.revoke(s.ref)
	trials++
	w.useGrant(w.relay(s.handle, "start_service", spare, late), "start_service", spare)
	try("after it was ended")
	trials++
	_ = w.enable(used, w.signer)
	try("a statement used before")
	// Written down as evidence, and not read back.
	w.must(w.enable(fresh(), w.signer))
	w.h.Process(harness.Vault).Kill()
	w.restart(harness.Vault, w.guards(harness.Vault)...)
	try("the session from before a restart")
	for n := range w.keyed {
		if keyedClient(n) == s.principal {
			s = w.openKeyedAs(n)
		}
	}
	trials++
	_ = w.enable(used, w.signer)
	try("after a restart")
	w.settle()
	return trials, effects
}

// messaging tries dangerous mode for a client that speaks for people on a messaging platform.
func (w *world) messaging(trials *int) {
	out, err := unary(w, vaultv1.NewSessionServiceClient(w.gatewayVault).OpenSession, &vaultv1.OpenSessionRequest{
		Credential: messengerToken, ClientName: "drill", Sender: &vaultv1.Sender{User: "u", Room: "r"},
	})
	w.must(err)
	s := sessionOf(out)
	for _, channel := range []string{"cli", "api", "desktop_ui"} {
		*trials++
		_ = w.enable(w.sign(w.standingStatement(statement.KindDangerous, s, channel, time.Hour), w.signer), w.signer)
		for _, a := range aims {
			*trials++
			w.useGrant(w.relay(s.handle, a.tool, a.service, nil), a.tool, a.service)
		}
	}
	// A statement that says messaging is none at all, whoever signs it.
	st := w.standingStatement(statement.KindDangerous, s, "cli", time.Hour)
	raw, err := st.Marshal()
	w.must(err)
	*trials++
	_, _, _ = w.propose(w.signAs([]byte(strings.Replace(string(raw), `"channel":"cli"`, `"channel":"messaging"`, 1)), w.signer, statement.Namespace, "sha512"))
	for _, a := range aims {
		*trials++
		w.useGrant(w.relay(s.handle, a.tool, a.service, nil), a.tool, a.service)
	}
}

// inFiles writes dangerous mode into every file that the vault reads.
func (w *world) inFiles(trials *int, try func(what string, md ...string) bool) {
	clients := w.h.ReadFile("config/clients.yaml")
	for _, f := range []struct{ file, text string }{
		{"config/clients.yaml", strings.Replace(clients, "channel: cli, ", "channel: cli, dangerous: true, ", keyedCount)},
		{"config/security/security.yaml", "dangerous.enabled: true\n"},
		{"config/security/security.yaml", "dangerous: {allowed: true, enabled: true, max_s: 28800, always: true}\n"},
		{"config/security/security.yaml", "dangerous: true\n"},
		{"config/security/tools.yaml", "tools:\n  start_service: {dangerous: true}\n  stop_service: {dangerous: true}\n"},
		{"config/security/policy/mode.cedar", `permit (principal, action in Action::"dangerous", resource);`},
		{"config/security/policy/mode.cedar", `permit (principal, action in Action::"callWithoutApproval", resource) when { context.dangerous };`},
	} {
		before, was := w.fileOr(f.file)
		w.h.WriteFile(f.file, f.text)
		w.pause(w.t.Context(), rulesPatience)
		*trials++
		try(f.file)
		w.restoreFile(f.file, before, was)
	}
	w.pause(w.t.Context(), rulesPatience)
}
