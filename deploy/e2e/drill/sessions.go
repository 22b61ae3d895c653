package drill

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// reopen opens another session of the same client.
func (w *world) reopen(s *agentSession) *agentSession {
	w.t.Helper()
	var n int
	if _, err := fmt.Sscanf(s.principal, "agent-%d", &n); err != nil {
		w.t.Fatal(err)
	}
	return w.openAs(n, "")
}

// otherSession tries to get at one client's approved operation from another client's session.
func otherSession(w *world) (trials, effects int) {
	m := w.arrange()
	owner, thief := w.open(), w.open()
	operation := w.ask(owner, "start_service", idle)
	w.approve(operation)
	for range 50 {
		trials += 2
		out, _ := w.wait(thief.permits["vault"], operation)
		w.useGrant(out.GetGrant(), "start_service", idle)
		// The very same request, under the other session.
		asked, _ := w.authorise(thief.handle, "start_service", arguments(idle))
		w.useGrant(asked.GetGrant(), "start_service", idle)
		if effects = w.effects(m); w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// useGrant presents what an attack got hold of, if it did.
func (w *world) useGrant(g *callv1.SignedGrant, tool, service string) {
	if g != nil {
		w.present(g, tool, service)
	}
}

// claimedPrincipal says that it is somebody else, in every place where one could say so.
func claimedPrincipal(w *world) (trials, effects int) {
	m := w.arrange()
	owner, thief := w.open(), w.open()
	operation := w.ask(owner, "start_service", idle)
	w.approve(operation)
	var claims [][]string
	for _, name := range []string{"principal", "session", "session-id", "client", "client-id", "user", "subject", "actor", "channel", "identity", "caller"} {
		for _, prefix := range []string{"", "x-", "durward-", "x-durward-", "x-forwarded-"} {
			for _, value := range []string{owner.principal, owner.ref, owner.handle, statement.CommandPrincipal(w.h.Operator), w.h.OperatorIdentity().String()} {
				claims = append(claims, []string{prefix + name, value})
			}
		}
	}
	claims = append(claims, []string{rpc.MetadataPermit, owner.permits["executor"]}, []string{rpc.MetadataRequestID, owner.ref},
		[]string{"authorization", "Bearer " + owner.handle})
	for _, claim := range claims {
		trials += 2
		out, _ := w.wait(thief.permits["vault"], operation, claim...)
		w.useGrant(out.GetGrant(), "start_service", idle)
		asked, _ := w.authorise(thief.handle, "start_service", arguments(idle), claim...)
		w.useGrant(asked.GetGrant(), "start_service", idle)
		if w.caught(w.effects(m)) {
			return trials, w.effects(m)
		}
	}
	// In fields that the contract does not have.
	for number := protowire.Number(1); number <= 64; number++ {
		for _, value := range []string{owner.principal, owner.ref, owner.handle} {
			trials++
			ctx, cancel := w.ctx(600 * time.Millisecond)
			request := &vaultv1.WaitOperationRequest{OperationId: &operation}
			request.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, number+1, protowire.BytesType), value))
			out, _ := vaultv1.NewToolServiceClient(w.gatewayVault).WaitOperation(
				metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, thief.permits["vault"]), request)
			cancel()
			w.useGrant(out.GetGrant(), "start_service", idle)
		}
	}
	return trials, w.effects(m)
}

// enumerated is how many ids an enumeration tries, and in a sample.
const enumerated, someEnumerated = 10_000, 2_000

// guesses are n ids that somebody would try: small numbers, neighbours of one that he knows, and random ones.
func guesses(known string, n int) []string {
	const digits = "0123456789abcdef"
	var out []string
	for i := range n / 2 {
		out = append(out, fmt.Sprintf("%032x", i))
	}
	for i := range n / 4 {
		neighbour := []byte(known)
		for _, at := range []int{i % 32, i * 7 % 32} {
			neighbour[31-at] = digits[(strings.IndexByte(digits, neighbour[31-at])+1+i/32)%16]
		}
		if string(neighbour) != known {
			out = append(out, string(neighbour))
		}
	}
	for len(out) < n {
		out = append(out, fmt.Sprintf("%016x%016x", mathrand.Uint64(), mathrand.Uint64()))
	}
	return out
}

// enumeratedOperations looks for approved operations of others by trying ids.
func enumeratedOperations(w *world) (trials, effects int) {
	m := w.arrange()
	owner, thief := w.open(), w.open()
	w.approve(w.ask(owner, "start_service", idle))
	own := w.ask(thief, "stop_service", spare)
	trials = w.volley(guesses(own, w.size(enumerated, someEnumerated)), func(id string) {
		out, _ := w.wait(thief.permits["vault"], id)
		w.useGrant(out.GetGrant(), out.GetTool().GetName(), idle)
	}, func() bool { return w.effects(m) > 0 })
	return trials, w.effects(m)
}

// enumeratedSessions looks for sessions of others by trying handles. Its effects are operations that the store then holds
// in others' names, and starts.
func enumeratedSessions(w *world) (trials, effects int) {
	m := w.arrange()
	owner, thief := w.open(), w.open()
	w.approve(w.ask(owner, "start_service", idle))
	owned := func() int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE tool_name = 'stop_service' AND arguments = CAST(? AS BLOB) AND principal = ?`,
			string(arguments(victim)), owner.principal)
	}
	before := owned()
	trials = w.volley(guesses(thief.handle, w.size(enumerated, someEnumerated)), func(handle string) {
		out, err := unary(w, vaultv1.NewSessionServiceClient(w.gatewayVault).RenewPermits, &vaultv1.RenewPermitsRequest{SessionId: handle})
		if err != nil || handle == thief.handle {
			return
		}
		for _, p := range out.GetPermits() {
			_, _ = w.execute(w.gatewayExecutor, "service_info", idle, rpc.MetadataPermit, marshal(p.GetPermit()))
		}
		_, _ = w.authorise(handle, "stop_service", arguments(victim))
		asked, _ := w.authorise(handle, "start_service", arguments(idle))
		w.useGrant(asked.GetGrant(), "start_service", idle)
	}, func() bool { return w.effects(m)+owned()-before > 0 })
	return trials, w.effects(m) + owned() - before
}

// relaysOnly relays what bearer clients may ask for, and tries to have it without the human.
func relaysOnly(w *world) (trials, effects int) {
	m := w.arrange()
	for range 8 {
		s := w.open()
		for _, a := range aims {
			asked, err := w.authorise(s.handle, a.tool, arguments(a.service))
			w.must(err)
			trials++
			w.useGrant(asked.GetGrant(), a.tool, a.service)
			out, _ := w.wait(s.permits["vault"], asked.GetOperationId())
			w.useGrant(out.GetGrant(), a.tool, a.service)
			if effects = w.effects(m); w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}

// unsignedClient speaks for a key-bound client without its key, with proofs that went through the gateway before. Its effects
// are operations that the store then holds in the client's name.
func unsignedClient(w *world) (trials, effects int) {
	m := w.arrange()
	asked := func() int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE principal = ?`, boundClient) + w.effects(m)
	}
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	ctx, cancel := w.ctx(time.Minute)
	defer cancel()
	sessions := vaultv1.NewSessionServiceClient(w.gatewayVault)
	open := func(p *callv1.Proof) (*vaultv1.OpenSessionResponse, error) {
		return sessions.OpenSession(ctx, &vaultv1.OpenSessionRequest{Credential: boundToken, ClientName: "drill", Proof: p})
	}
	ask := func(handle string, a aim, p *callv1.Proof) {
		// What it answers counts for nothing: operations are counted.
		_, _ = vaultv1.NewAuthorityServiceClient(w.gatewayVault).Authorise(ctx, &vaultv1.AuthoriseRequest{
			SessionId: handle, Tool: w.tool(a.tool).Ref(), Arguments: arguments(a.service), Proof: p,
		})
	}
	prove := func(key ed25519.PrivateKey, c proof.Claim) *callv1.Proof {
		p, err := proof.Sign(key, c)
		w.must(err)
		return p
	}
	// The client itself, once.
	opening := proof.Claim{Purpose: callv1.Proof_PURPOSE_OPEN, Client: boundClient, Counter: mathrand.Uint64N(1<<50) + 1, Time: time.Now().Unix()}
	opened, err := open(prove(*w.clientKey, opening))
	w.must(err)
	digest := canonical.Digest(arguments(spare))
	call := proof.Claim{
		Purpose: callv1.Proof_PURPOSE_CALL, Client: boundClient, Session: opened.GetSession(), Tool: "stop_service", ArgumentsDigest: digest[:], Counter: 1,
		Time: time.Now().Unix(),
	}
	genuine := prove(*w.clientKey, call)
	ask(opened.GetSessionId(), aim{"stop_service", spare}, genuine)
	before := asked()
	if before == 0 {
		w.t.Fatal("the client itself cannot ask, so the gateway's failure proves nothing")
	}
	later := proto.CloneOf(genuine)
	later.Counter = 2
	renewal := prove(*w.clientKey, proof.Claim{Purpose: callv1.Proof_PURPOSE_RENEW, Client: boundClient, Session: opened.GetSession(), Counter: 3, Time: time.Now().Unix()})
	relabelled := proto.CloneOf(renewal)
	relabelled.Purpose = callv1.Proof_PURPOSE_CALL
	handles := []string{opened.GetSessionId()}
	for _, p := range []*callv1.Proof{nil, prove(*w.clientKey, opening), prove(stranger, opening), genuine, {Purpose: callv1.Proof_PURPOSE_OPEN, Counter: 9, Time: time.Now().Unix(), Signature: make([]byte, 64)}} {
		trials++
		if out, err := open(p); err == nil {
			handles = append(handles, out.GetSessionId())
		}
	}
	for _, handle := range handles {
		for i, a := range aims {
			digest := canonical.Digest(arguments(a.service))
			forged := call
			forged.Tool, forged.ArgumentsDigest, forged.Counter = a.tool, digest[:], uint64(10+i)
			for _, p := range []*callv1.Proof{nil, genuine, later, renewal, relabelled, prove(stranger, forged), prove(stranger, call)} {
				trials++
				ask(handle, a, p)
			}
		}
		if effects = asked() - before; w.caught(effects) {
			break
		}
	}
	return trials, effects
}
