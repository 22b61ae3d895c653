package drill

import (
	"crypto/ed25519"
	"crypto/sha256"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/rpc"
)

// overlap is how long a rotated credential still counts here.
const overlap = 8 * time.Second

// rotatedClient goes on with a credential that a human has had replaced, key and all, when its time is over: with the sessions that it
// had, with what those were let do, and with new ones. Its effects are changes, and sessions and permits that it got.
func rotatedClient(w *world) (trials, effects int) {
	const file = "config/clients.yaml"
	s := w.openKeyed()
	n := w.nextKeyed - 1
	before := w.h.ReadFile(file)
	fresh, raw := newKey(w.t)
	parsed, err := ssh.ParseRawPrivateKey(raw)
	w.must(err)
	const freshToken = "drill-token-rotated"
	until := time.Now().Add(overlap).Truncate(time.Second)
	old, err := ssh.NewSignerFromKey(s.key)
	w.must(err)
	key := func(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }
	entry := keyedEntry(n, keyedToken(n), key(old.PublicKey()))
	rotated := strings.Replace(before, entry, keyedEntry(n, freshToken, key(fresh.PublicKey()))+
		fmt.Sprintf("    previous: {token_sha256: %x, key: %s, until: %q}\n", sha256.Sum256([]byte(keyedToken(n))), key(old.PublicKey()), until.UTC().Format(time.RFC3339)), 1)
	if rotated == before {
		w.t.Fatal("the client is not in clients.yaml")
	}
	w.adopted(harness.Vault, func() { w.h.WriteFile(file, rotated) })
	defer w.adopted(harness.Vault, func() { w.h.WriteFile(file, before) })
	w.must(w.grantScope(w.sign(w.scopeOf(s.agentSession, "cli", time.Hour, 100, "start_service", idle, spare), w.signer)))
	m := w.arrange()
	if w.call(s, "start_service", idle); w.effects(m) != 1 {
		w.t.Fatal("the old credential does not count while it should, so that its end proves nothing")
	}
	w.kill(idle)
	m = w.arrange()
	late := s.prove("start_service", spare)
	held := w.relay(s.handle, "start_service", idle, s.prove("start_service", idle))
	if held == nil || !time.Now().Before(until) {
		w.t.Fatal("the old credential has nothing to go on with, so that its end proves nothing")
	}
	w.pause(w.t.Context(), time.Until(until)+100*time.Millisecond)

	w.useGrant(held, "start_service", idle)
	w.useGrant(w.relay(s.handle, "start_service", spare, late), "start_service", spare)
	trials += 2
	for _, a := range aims {
		trials += 2
		w.call(s, a.tool, a.service)
		_, _ = w.execute(w.gatewayExecutor, a.tool, a.service, rpc.MetadataPermit, s.permits["executor"])
	}
	sessions := vaultv1.NewSessionServiceClient(w.gatewayVault)
	got := 0
	open := func(token string, key ed25519.PrivateKey) error {
		p, err := proof.Sign(key, proof.Claim{
			Purpose: callv1.Proof_PURPOSE_OPEN, Client: keyedClient(n), Counter: mathrand.Uint64N(1<<50) + 1, Time: time.Now().Unix(),
		})
		w.must(err)
		_, err = unary(w, sessions.OpenSession, &vaultv1.OpenSessionRequest{Credential: token, ClientName: "drill", Proof: p})
		return err
	}
	own := *parsed.(*ed25519.PrivateKey)
	for _, mixed := range []struct {
		token string
		key   ed25519.PrivateKey
	}{{keyedToken(n), s.key}, {keyedToken(n), own}, {freshToken, s.key}} {
		for range 5 {
			trials++
			if open(mixed.token, mixed.key) == nil {
				got++
			}
		}
	}
	for range 5 {
		trials++
		s.counter++
		p, err := proof.Sign(s.key, proof.Claim{
			Purpose: callv1.Proof_PURPOSE_RENEW, Client: s.principal, Session: s.ref, Counter: s.counter, Time: time.Now().Unix(),
		})
		w.must(err)
		ctx, cancel := w.ctx(callTime)
		if _, err := sessions.RenewPermits(ctx, &vaultv1.RenewPermitsRequest{SessionId: s.handle, Proof: p}); err == nil {
			got++
		}
		cancel()
	}
	effects = got + w.effects(m)
	if !w.weak {
		harness.Eventually(w.t, "the new credential counts", func() error { return open(freshToken, own) })
	}
	w.denyAll()
	return trials, effects
}
