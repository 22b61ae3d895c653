package drill

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	"golang.org/x/crypto/ssh"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/statement"
)

func keyedClient(n int) string { return fmt.Sprintf("keyed-%d", n) }

func keyedToken(n int) string { return fmt.Sprintf("drill-token-keyed-%d", n) }

// keyedEntry is a key-bound client in clients.yaml, as "durward client revoke" can take it out.
func keyedEntry(n int, token, key string) string {
	return fmt.Sprintf("  - id: %s\n    token_sha256: %x\n    key: %s\n    channel: cli\n    tier_ceiling: DESTRUCTIVE\n", keyedClient(n), sha256.Sum256([]byte(token)), key)
}

// keyedSession is a key-bound client with its session: the gateway has all of it but the key.
type keyedSession struct {
	*agentSession
	key     ed25519.PrivateKey
	counter uint64
}

// openKeyed has a key-bound client that no attack has used open a session.
func (w *world) openKeyed() *keyedSession {
	w.t.Helper()
	if w.nextKeyed >= keyedCount {
		w.t.Fatal("the drill needs more key-bound clients")
	}
	n := w.nextKeyed
	w.nextKeyed++
	return w.openKeyedAs(n)
}

func (w *world) openKeyedAs(n int) *keyedSession {
	w.t.Helper()
	p, err := proof.Sign(w.keyed[n], proof.Claim{
		Purpose: callv1.Proof_PURPOSE_OPEN, Client: keyedClient(n), Counter: mathrand.Uint64N(1<<50) + 1, Time: time.Now().Unix(),
	})
	w.must(err)
	out, err := unary(w, vaultv1.NewSessionServiceClient(w.gatewayVault).OpenSession, &vaultv1.OpenSessionRequest{
		Credential: keyedToken(n), ClientName: "drill", Proof: p,
	})
	w.must(err)
	return &keyedSession{agentSession: sessionOf(out), key: w.keyed[n]}
}

// prove is the client's own signature under one call.
func (s *keyedSession) prove(tool, service string) *callv1.Proof {
	s.counter++
	return s.claim(tool, service, s.counter, s.key)
}

func (s *keyedSession) claim(tool, service string, counter uint64, key ed25519.PrivateKey) *callv1.Proof {
	digest := canonical.Digest(arguments(service))
	p, err := proof.Sign(key, proof.Claim{
		Purpose: callv1.Proof_PURPOSE_CALL, Client: s.principal, Session: s.ref, Tool: tool, ArgumentsDigest: digest[:], Counter: counter,
		Time: time.Now().Unix(),
	})
	if err != nil {
		panic(err) // every claim here is well formed
	}
	return p
}

// relay is the gateway: it asks in a session's name, and returns the grant that it got, if any.
func (w *world) relay(handle, tool, service string, p *callv1.Proof, md ...string) *callv1.SignedGrant {
	// What is refused has no grant; effects are counted.
	out, _ := unary(w, vaultv1.NewAuthorityServiceClient(w.gatewayVault).Authorise, &vaultv1.AuthoriseRequest{
		SessionId: handle, Tool: w.tool(tool).Ref(), Arguments: arguments(service), Proof: p,
	}, md...)
	return out.GetGrant()
}

// call is the client's own call, honestly relayed.
func (w *world) call(s *keyedSession, tool, service string, md ...string) *callv1.SignedGrant {
	g := w.relay(s.handle, tool, service, s.prove(tool, service), md...)
	w.useGrant(g, tool, service)
	return g
}

// standingStatement is a statement about a session: good in every field but for what its kind says beyond.
func (w *world) standingStatement(kind statement.Kind, s *agentSession, channel string, life time.Duration) *statement.Statement {
	w.t.Helper()
	preview, err := w.preview("start_service", idle)
	w.must(err)
	now := time.Now()
	st := &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: kind, ID: grant.NewID(), Operator: w.h.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(life)),
		Epoch: preview.GetEpoch(), Audience: preview.GetAudience(), Principal: s.principal, Session: s.ref, Channel: channel,
	}
	if kind == statement.KindDangerous {
		st.Version, st.Uses = statement.VersionConfirmed, 500
	}
	return st
}

// confirmation is the second statement of dangerous mode, as of a time.
func (w *world) confirmation(first *callv1.HumanStatement, at time.Time, by ssh.Signer) *callv1.HumanStatement {
	w.t.Helper()
	st, err := statement.Parse(first.GetStatement())
	w.must(err)
	return w.sign(statement.Confirmation(st, first.GetStatement(), grant.NewID(), at), by)
}

// signBoth signs all that a human signs for a statement: dangerous mode has a second one, dated as if the human had waited.
func (w *world) signBoth(st *statement.Statement, by ssh.Signer) []*callv1.HumanStatement {
	w.t.Helper()
	signed := []*callv1.HumanStatement{w.sign(st, by)}
	if st.Kind == statement.KindDangerous {
		made, err := time.Parse(time.RFC3339, st.IssuedAt)
		w.must(err)
		second := statement.Confirmation(st, signed[0].GetStatement(), grant.NewID(), made.Add(statement.ConfirmAfter))
		signed = append(signed, w.sign(second, by))
	}
	return signed
}

// scopeOf lets a session make one tool's calls on these services.
func (w *world) scopeOf(s *agentSession, channel string, life time.Duration, uses int, tool string, services ...string) *statement.Statement {
	w.t.Helper()
	st := w.standingStatement(statement.KindScope, s, channel, life)
	st.Tools, st.Uses = []statement.Tool{statement.ToolOf(w.tool(tool).Ref())}, uses
	for _, service := range services {
		preview, err := w.preview(tool, service)
		w.must(err)
		digest := canonical.Digest(preview.GetSubject().GetEntry())
		st.SubjectDigests = append(st.SubjectDigests, canonical.FormatDigest(digest[:]))
	}
	if len(services) == 1 {
		st.Pinned = []statement.Pin{{Pointer: "/service_id", Value: json.RawMessage(fmt.Sprintf("%q", services[0]))}}
	} else {
		st.Free = []string{"/service_id"}
	}
	return st
}

func (w *world) operatorStanding() vaultv1.StandingServiceClient {
	return vaultv1.NewStandingServiceClient(w.operatorVault)
}

// grantScope brings a scope to the vault.
func (w *world) grantScope(h *callv1.HumanStatement) error {
	_, err := unary(w, w.operatorStanding().GrantScope, &vaultv1.GrantScopeRequest{Statement: h})
	return err
}

// propose brings a dangerous statement to the vault; at is when it may be confirmed.
func (w *world) propose(h *callv1.HumanStatement) (id string, at time.Time, err error) {
	out, err := unary(w, w.operatorStanding().ProposeDangerous, &vaultv1.ProposeDangerousRequest{Statement: h})
	return out.GetStandingId(), out.GetNotBefore().AsTime(), err
}

func (w *world) confirm(second *callv1.HumanStatement) error {
	_, err := unary(w, w.operatorStanding().ConfirmDangerous, &vaultv1.ConfirmDangerousRequest{Statement: second})
	return err
}

// enable puts a session into dangerous mode as a human does, both signatures and the time between them included.
func (w *world) enable(h *callv1.HumanStatement, by ssh.Signer) error {
	_, at, err := w.propose(h)
	if err != nil {
		return err
	}
	w.pause(w.t.Context(), time.Until(at)+50*time.Millisecond)
	return w.confirm(w.confirmation(h, time.Now().Add(time.Second), by))
}

// revoke ends what a session has, at once.
func (w *world) revoke(session string) {
	w.t.Helper()
	out, err := unary(w, w.operatorStanding().RevokeStanding, &vaultv1.RevokeStandingRequest{Session: session})
	w.must(err)
	var statements []*callv1.HumanStatement
	for _, one := range out.GetEnded() {
		statements = append(statements, one.GetStatement())
	}
	w.endAtExecutor(statements...)
}

// endAtExecutor is the operator's word to the executor itself.
func (w *world) endAtExecutor(statements ...*callv1.HumanStatement) {
	w.t.Helper()
	_, err := unary(w, executorv1.NewControlServiceClient(w.operatorExecutor).EndStanding, &executorv1.EndStandingRequest{Statements: statements})
	w.must(err)
}
