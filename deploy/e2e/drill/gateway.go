package drill

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// gatewayLines are the attacks of somebody who has the gateway: its certificate and key, and what passes through it.
func gatewayLines() []Line {
	executor := func(guards string) map[string]string { return map[string]string{harness.Executor: guards} }
	vault := func(guards string) map[string]string { return map[string]string{harness.Vault: guards} }
	return []Line{
		{"gateway-no-grant", executor("required"), noGrant},
		{"gateway-permit-for-write", executor("required"), permitForWrite},
		{"gateway-forged-grant", executor("grant,redeem,statement"), forgedGrant},
		{"gateway-other-arguments", executor("arguments,subject,statement"), otherArguments},
		{"gateway-other-tool", executor("tool,statement"), otherTool},
		{"gateway-other-audience", executor("audience,redeem"), otherAudience},
		{"gateway-replay", map[string]string{harness.Executor: "spent,uses", harness.Vault: "spent"}, replay},
		{"gateway-forged-permit", executor("permit"), forgedPermit},
		{"gateway-permit-other-audience", executor("audience"), permitOtherAudience},
		{"gateway-other-session", vault("owner"), otherSession},
		{"gateway-claimed-principal", vault("owner"), claimedPrincipal},
		{"gateway-enumerated-operations", vault("ids,owner"), enumeratedOperations},
		// The same guards as the line before: a vault that began to count again would meet its own ids.
		{"gateway-enumerated-sessions", vault("ids,owner"), enumeratedSessions},
		{"gateway-relays-only-asking", map[string]string{harness.Vault: "unapproved", harness.Executor: "subject,statement"}, relaysOnly},
		{"gateway-own-approval", vault("callers,approval"), ownApproval},
		{"gateway-forged-records", map[string]string{harness.Audit: "kinds"}, forgedRecords},
	}
}

// lateLines are attacks with what was good when the drill began, once its time is over.
func lateLines() []Line {
	return []Line{
		{"gateway-expired-grant", map[string]string{harness.Executor: "redeem"}, expiredGrant},
		{"gateway-expired-permit", map[string]string{harness.Executor: "in-force"}, expiredPermit},
		// Its control raises the epoch, which voids what was harvested.
		{"gateway-every-rpc", map[string]string{harness.Vault: "callers", harness.Executor: "callers", harness.Audit: "callers"}, everyRPC},
	}
}

// aim is a call that would show: a start of what is stopped, or a stop of what runs.
type aim struct{ tool, service string }

var aims = []aim{{"start_service", idle}, {"stop_service", victim}, {"start_service", spare}}

// noGrant calls the tools that change something with everything but a grant for it.
func noGrant(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	read := w.readGrant(s)
	for _, md := range [][]string{
		nil,
		{rpc.MetadataGrant, ""},
		{rpc.MetadataGrant, "\x00"},
		{rpc.MetadataGrant, strings.Repeat("A", 4096)},
		{rpc.MetadataGrant, marshal(&callv1.SignedGrant{})},
		{rpc.MetadataGrant, marshal(&callv1.SignedGrant{Payload: []byte{}, Kid: w.vaultKey.KID, Signature: make([]byte, 64)})},
		{rpc.MetadataGrant, marshal(read)},
		{rpc.MetadataGrant, marshal(read), rpc.MetadataGrant, marshal(read)},
		{rpc.MetadataGrant, marshal(read), rpc.MetadataPermit, s.permits["executor"]},
		{"durward-grant", "1"},
		{"durward-approved", "true", "durward-confirm", "yes"},
		{"durward-principal", statement.CommandPrincipal(w.h.Operator)},
		{"durward-caller", w.h.OperatorIdentity().String()},
		{"x-forwarded-client-cert", "URI=" + w.h.OperatorIdentity().String()},
		{"authorization", "Bearer " + token(0)},
	} {
		for _, a := range aims {
			trials++
			_, _ = w.execute(w.gatewayExecutor, a.tool, a.service, md...)
			if effects = w.effects(m); w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}

// readGrant is a genuine one-call grant for a tool that only looks.
func (w *world) readGrant(s *agentSession) *callv1.SignedGrant {
	w.t.Helper()
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	out, err := vaultv1.NewAuthorityServiceClient(w.gatewayVault).Authorise(ctx, &vaultv1.AuthoriseRequest{
		SessionId: s.handle, Tool: w.tool("list_services").Ref(), Arguments: []byte("{}"),
	})
	w.must(err)
	return out.GetGrant()
}

// permitForWrite uses permits for reads to change something.
func permitForWrite(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	for _, permit := range []string{s.permits["executor"], s.permits["vault"], s.permits["executor"] + s.permits["vault"]} {
		for _, md := range [][]string{
			{rpc.MetadataPermit, permit},
			{rpc.MetadataGrant, permit},
			{rpc.MetadataPermit, permit, rpc.MetadataGrant, permit},
			{rpc.MetadataPermit, permit, rpc.MetadataPermit, permit},
		} {
			for _, a := range aims {
				trials++
				_, _ = w.execute(w.gatewayExecutor, a.tool, a.service, md...)
				if effects = w.effects(m); w.caught(effects) {
					return trials, effects
				}
			}
		}
	}
	return trials, effects
}

// forgedGrant changes a genuine grant, and makes others up.
func forgedGrant(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	genuine := w.approved(s, "start_service", idle)
	forged := w.forgeries(genuine)
	raw := []byte(marshal(genuine))
	// One bit of every byte, and every bit of the ends, where the key's name and the signature are.
	for i := range raw {
		bits := []int{i % 8}
		if i < 16 || i > len(raw)-96 {
			bits = []int{0, 1, 2, 3, 4, 5, 6, 7}
		}
		for _, bit := range bits {
			flipped := slices.Clone(raw)
			flipped[i] ^= 1 << bit
			forged = append(forged, string(flipped))
		}
	}
	for i := 0; i < len(raw); i += 7 {
		forged = append(forged, string(raw[:i]))
	}
	n := w.volley(forged, func(g string) {
		_, _ = w.execute(w.gatewayExecutor, "start_service", idle, rpc.MetadataGrant, g)
	}, func() bool { return w.caught(w.effects(m)) })
	return n, w.effects(m)
}

// volley makes calls, several at a time, until there are no more or enough is seen.
func (w *world) volley(items []string, call func(string), enough func() bool) int {
	var next atomic.Int64
	var done sync.WaitGroup
	for range 4 {
		done.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(items) || w.weak && i%16 == 0 && enough() {
					return
				}
				call(items[i])
			}
		})
	}
	done.Wait()
	return min(int(next.Load()), len(items))
}

// forgeries are grants that somebody without the vault's key makes of a genuine one, each different in one thing.
func (w *world) forgeries(genuine *callv1.SignedGrant) []string {
	w.t.Helper()
	_, own, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	base := &callv1.Grant{}
	w.must(proto.Unmarshal(genuine.GetPayload(), base))
	edits := []func(*callv1.Grant){
		func(*callv1.Grant) {},
		func(g *callv1.Grant) { g.Id = grant.NewID() },
		func(g *callv1.Grant) { g.OperationId = grant.NewID() },
		func(g *callv1.Grant) { g.Use = 2 },
		func(g *callv1.Grant) { g.Principal = statement.CommandPrincipal(w.h.Operator) },
		func(g *callv1.Grant) { g.Session = "-" },
		func(g *callv1.Grant) { g.Channel = callv1.Channel_CHANNEL_CLI },
		func(g *callv1.Grant) { g.Dangerous = true },
		func(g *callv1.Grant) { g.Statements = nil },
		func(g *callv1.Grant) { g.Epoch += 1000 },
		func(g *callv1.Grant) { g.Version = 2 },
		func(g *callv1.Grant) { g.SubjectDigest = nil },
		func(g *callv1.Grant) {
			now := time.Now()
			g.Id, g.IssuedAt, g.NotBefore = grant.NewID(), timestamppb.New(now), timestamppb.New(now)
			g.ExpiresAt = timestamppb.New(now.Add(time.Minute))
		},
		func(g *callv1.Grant) { g.ExpiresAt = timestamppb.New(time.Now().Add(time.Hour)) },
		func(g *callv1.Grant) {
			g.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
		},
	}
	kids := []string{w.vaultKey.KID, "", "test", "vault", "vault-main", strings.ToUpper(w.vaultKey.KID), w.vaultKey.KID + "\x00", w.vaultKey.KID + " "}
	var out []string
	for _, edit := range edits {
		g := proto.CloneOf(base)
		edit(g)
		payload := []byte(marshal(g))
		for _, kid := range kids {
			for _, domain := range []string{"durward.grant.v1\x00", "durward.permit.v1\x00", ""} {
				out = append(out, marshal(&callv1.SignedGrant{
					Payload: payload, Kid: kid, Signature: ed25519.Sign(own, append([]byte(domain), payload...)),
				}))
			}
			out = append(out,
				marshal(&callv1.SignedGrant{Payload: payload, Kid: kid, Signature: make([]byte, 64)}),
				marshal(&callv1.SignedGrant{Payload: payload, Kid: kid}))
			if kid != w.vaultKey.KID || string(payload) != string(genuine.GetPayload()) {
				// The genuine signature, over something else or under another key's name.
				out = append(out, marshal(&callv1.SignedGrant{Payload: payload, Kid: kid, Signature: genuine.GetSignature()}))
			}
		}
	}
	return out
}

// otherArguments uses a grant for one service on others.
func otherArguments(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	for _, c := range []struct {
		granted aim
		used    []aim
	}{
		{aim{"start_service", idle}, []aim{{"start_service", spare}, {"start_service", "Demo-Idle"}, {"start_service", spare}}},
		{aim{"stop_service", idle}, []aim{{"stop_service", victim}, {"stop_service", "demo-victim2"}, {"stop_service", victim}}},
	} {
		g := w.approved(s, c.granted.tool, c.granted.service)
		for _, a := range c.used {
			for range 20 {
				trials++
				w.present(g, a.tool, a.service)
				if effects = w.effects(m); w.caught(effects) {
					return trials, effects
				}
			}
		}
	}
	return trials, effects
}

// otherTool uses a grant to start for stopping, and the other way round.
func otherTool(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	for _, c := range []struct{ granted, used aim }{
		{aim{"start_service", victim}, aim{"stop_service", victim}},
		{aim{"stop_service", idle}, aim{"start_service", idle}},
	} {
		g := w.approved(s, c.granted.tool, c.granted.service)
		for range 20 {
			trials++
			w.present(g, c.used.tool, c.used.service)
			if effects = w.effects(m); w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}

// moveExecutor restarts the executor as another instance, with a store of its own, calls do with a connection to it, and
// moves it back.
func (w *world) moveExecutor(do func(conn *grpc.ClientConn)) {
	w.t.Helper()
	const elsewhere = "executor/elsewhere"
	config := w.h.ReadFile("config/executor.yaml")
	certificate, key := w.h.ReadFile("tls/executor/cert.pem"), w.h.ReadFile("tls/executor/key.pem")
	moved := strings.ReplaceAll(config, w.h.Path("state", "executor"), w.h.Path("state", "elsewhere"))
	w.h.Process(harness.Executor).Kill()
	w.h.WriteFile("config/executor.yaml", moved)
	cert, private, err := w.h.CA().Issue(w.h.Identity(elsewhere), 0)
	w.must(err)
	w.must(pki.WriteLeaf(w.h.Path("tls", "executor"), cert, private))
	w.h.StartProcess(harness.Executor)
	conn := w.dial(w.source(harness.Gateway), harness.Executor, w.h.Identity(elsewhere))
	w.reconnect(conn)
	do(conn)
	w.h.Process(harness.Executor).Kill()
	w.h.WriteFile("config/executor.yaml", config)
	w.h.WriteFile("tls/executor/cert.pem", certificate)
	w.h.WriteFile("tls/executor/key.pem", key)
	w.h.StartProcess(harness.Executor)
	w.awaitAll()
	w.settle()
}

// otherAudience uses a grant for one executor at another.
func otherAudience(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	g := marshal(w.approved(s, "start_service", idle))
	w.moveExecutor(func(conn *grpc.ClientConn) {
		for range 20 {
			trials++
			_, _ = w.execute(conn, "start_service", idle, rpc.MetadataGrant, g)
			if effects = w.effects(m); w.caught(effects) {
				return
			}
		}
	})
	return trials, effects
}

// permitOtherAudience uses permits at processes that they are not for.
func permitOtherAudience(w *world) (trials, effects int) {
	s := w.open()
	operation := w.ask(s, "start_service", idle)
	// At the vault: a permit for the executor.
	for range 20 {
		trials++
		if out, err := w.wait(s.permits["executor"], operation); err == nil && out != nil {
			effects++
		}
	}
	w.moveExecutor(func(conn *grpc.ClientConn) {
		for _, permit := range []string{s.permits["executor"], s.permits["vault"]} {
			for range 20 {
				trials++
				effects += disclosed(w.execute(conn, "service_info", idle, rpc.MetadataPermit, permit))
			}
		}
	})
	return trials, effects
}

// disclosed is 1 for an answer that holds anything.
func disclosed(m proto.Message, err error) int {
	if err != nil || m == nil || proto.Size(m) == 0 {
		return 0
	}
	return 1
}

// replay carries out one approved call, and then tries to have it again.
func replay(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	g := w.approved(s, "start_service", idle)
	operation := operationOf(w, g)
	w.present(g, "start_service", idle)
	if w.effects(m) != 1 {
		w.t.Fatalf("an approved call had %d effects", w.effects(m))
	}
	again := func(times int) bool {
		// What was started is ended, so that another start would show.
		w.kill(idle)
		grants := []string{marshal(g)}
		if out, err := w.wait(s.permits["vault"], operation); err == nil && out.GetGrant() != nil {
			grants = append(grants, marshal(out.GetGrant())) // issued afresh, for the same use
		}
		var items []string
		for range times {
			items = append(items, grants...)
		}
		trials += w.volley(items, func(g string) {
			_, _ = w.execute(w.gatewayExecutor, "start_service", idle, rpc.MetadataGrant, g)
		}, func() bool { return w.effects(m) > 1 })
		effects = w.effects(m) - 1
		return w.caught(effects)
	}
	if again(100) {
		return trials, effects
	}
	if !w.weak {
		// What was spent is spent after a restart of either side, and of both.
		w.restart(harness.Executor)
		again(20)
		w.restart(harness.Vault)
		s.permits = w.reopen(s).permits
		again(20)
		w.settle()
	}
	return trials, effects
}

// reopen opens another session of the same client.
func (w *world) reopen(s *agentSession) *agentSession {
	w.t.Helper()
	var n int
	if _, err := fmt.Sscanf(s.principal, "agent-%d", &n); err != nil {
		w.t.Fatal(err)
	}
	return w.openAs(n)
}

func operationOf(w *world, g *callv1.SignedGrant) string {
	payload := &callv1.Grant{}
	w.must(proto.Unmarshal(g.GetPayload(), payload))
	return payload.GetOperationId()
}

// forgedPermit looks without leave. Its effects are answers.
func forgedPermit(w *world) (trials, effects int) {
	s := w.open()
	raw := []byte(s.permits["executor"])
	if disclosed(w.execute(w.gatewayExecutor, "service_info", idle, rpc.MetadataPermit, string(raw))) != 1 {
		w.t.Fatal("a genuine permit discloses nothing, so a forged one proves nothing")
	}
	_, own, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	genuine := &callv1.SignedPermit{}
	w.must(proto.Unmarshal(raw, genuine))
	forged := []string{"", "\x00", marshal(&callv1.SignedPermit{}), s.permits["vault"]}
	for _, kid := range []string{w.vaultKey.KID, "", "test"} {
		for _, domain := range []string{"durward.permit.v1\x00", "durward.grant.v1\x00", ""} {
			forged = append(forged, marshal(&callv1.SignedPermit{
				Payload: genuine.GetPayload(), Kid: kid, Signature: ed25519.Sign(own, append([]byte(domain), genuine.GetPayload()...)),
			}))
		}
	}
	for i := range raw {
		for bit := range 8 {
			flipped := slices.Clone(raw)
			flipped[i] ^= 1 << bit
			forged = append(forged, string(flipped))
		}
	}
	var answers atomic.Int64
	trials = w.volley(forged, func(p string) {
		answers.Add(int64(disclosed(w.execute(w.gatewayExecutor, "service_info", idle, rpc.MetadataPermit, p))))
	}, func() bool { return answers.Load() > 0 })
	for range 5 {
		trials++
		answers.Add(int64(disclosed(w.execute(w.gatewayExecutor, "service_info", idle))))
	}
	return trials, int(answers.Load())
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
		asked, _ := w.authorise(thief.handle, "start_service", idle)
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
		asked, _ := w.authorise(thief.handle, "start_service", idle, claim...)
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

// enumerated is how many ids an enumeration tries.
const enumerated = 10000

// guesses are ids that somebody would try: small numbers, neighbours of one that he knows, and random ones.
func guesses(known string) []string {
	var out []string
	for i := range enumerated / 2 {
		out = append(out, fmt.Sprintf("%032x", i))
	}
	for i := range enumerated / 4 {
		b := []byte(known)
		b[31-i%32] = "0123456789abcdef"[(i/32+strings.IndexByte("0123456789abcdef", b[31-i%32])+1)%16]
		b[31-(i*7)%32] = "0123456789abcdef"[i%16]
		out = append(out, string(b))
	}
	for len(out) < enumerated {
		out = append(out, fmt.Sprintf("%016x%016x", mathrand.Uint64(), mathrand.Uint64()))
	}
	return slices.DeleteFunc(out, func(id string) bool { return id == known })
}

// enumeratedOperations looks for approved operations of others by trying ids.
func enumeratedOperations(w *world) (trials, effects int) {
	m := w.arrange()
	owner, thief := w.open(), w.open()
	w.approve(w.ask(owner, "start_service", idle))
	own := w.ask(thief, "stop_service", spare)
	trials = w.volley(guesses(own), func(id string) {
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
	trials = w.volley(guesses(thief.handle), func(handle string) {
		if handle == owner.handle && !w.weak {
			return // a guess that was told
		}
		ctx, cancel := w.ctx(callTime)
		defer cancel()
		out, err := vaultv1.NewSessionServiceClient(w.gatewayVault).RenewPermits(ctx, &vaultv1.RenewPermitsRequest{SessionId: handle})
		if err != nil || handle == thief.handle {
			return
		}
		for _, p := range out.GetPermits() {
			_, _ = w.execute(w.gatewayExecutor, "service_info", idle, rpc.MetadataPermit, marshal(p.GetPermit()))
		}
		_, _ = w.authorise(handle, "stop_service", victim)
		asked, _ := w.authorise(handle, "start_service", idle)
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
			asked, err := w.authorise(s.handle, a.tool, a.service)
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

// ownApproval decides in the human's place. Its effects are decisions that the vault's store holds, and what they start.
func ownApproval(w *world) (trials, effects int) {
	return w.decide(w.gatewayVault, w.gatewayExecutor, true)
}

// decide tries to approve an agent's operation over a connection, with every statement but the operator's own. Denials count
// where denial is not the caller's right.
func (w *world) decide(vault, executor *grpc.ClientConn, mayNotDeny bool) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	id := w.ask(s, "start_service", idle)
	op := w.operation(id)
	good := w.statementFor(op)
	approvals := vaultv1.NewApprovalServiceClient(vault)
	decided := func() int {
		return w.query(harness.Vault, `SELECT count(*) FROM operations WHERE operation_id = ? AND state != 1`, id) +
			w.query(harness.Vault, `SELECT count(*) FROM operations WHERE principal = ? AND state != 5`, statement.CommandPrincipal("mallory")) +
			w.effects(m)
	}
	ctx, cancel := w.ctx(2 * time.Minute)
	defer cancel()
	for _, h := range w.badStatements(good) {
		trials += 3
		_, _ = approvals.ApproveOperation(ctx, &vaultv1.ApproveOperationRequest{OperationId: id, Statement: h})
		if out, err := approvals.ClaimOperation(ctx, &vaultv1.ClaimOperationRequest{OperationId: id}); err == nil {
			_, _ = w.execute(executor, "start_service", idle, rpc.MetadataGrant, marshal(out.GetGrant()))
		}
		if out, err := approvals.GrantCommand(ctx, &vaultv1.GrantCommandRequest{Statement: h}); err == nil {
			_, _ = w.execute(executor, "start_service", idle, rpc.MetadataGrant, marshal(out.GetGrant()))
		}
		if effects = decided(); w.caught(effects) {
			return trials, effects
		}
	}
	if mayNotDeny {
		trials++
		_, _ = approvals.DenyOperation(ctx, &vaultv1.DenyOperationRequest{OperationId: id, Reason: "mine"})
	}
	return trials, decided()
}

// everyRPC calls every method that is not the gateway's, of every process, with empty and with plausible requests. Its
// effects are answers that disclose something, and every change of the vault's, the executor's and the log's state.
func everyRPC(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	id := w.ask(s, "start_service", idle)
	signed := w.sign(w.statementFor(w.operation(id)), w.other)
	granted := w.readGrant(s)
	state := func() int {
		return w.query(harness.Vault, `SELECT epoch + halted FROM control`) + w.query(harness.Executor, `SELECT epoch + halted FROM control`) +
			w.query(harness.Vault, `SELECT count(*) FROM operations WHERE state != 1`) + w.query(harness.Vault, `SELECT count(*) FROM statements`) +
			w.query(harness.Vault, `SELECT count(*) FROM spent`)
	}
	before, answers := state(), 0
	for _, process := range []struct {
		conn  *grpc.ClientConn
		files []protoreflect.FileDescriptor
	}{
		{w.gatewayVault, []protoreflect.FileDescriptor{vaultv1.File_durward_vault_v1_session_proto, vaultv1.File_durward_vault_v1_operator_proto, vaultv1.File_durward_vault_v1_redeem_proto}},
		{w.gatewayExecutor, []protoreflect.FileDescriptor{executorv1.File_durward_executor_v1_control_proto, executorv1.File_durward_executor_v1_tools_proto}},
		{w.gatewayAudit, []protoreflect.FileDescriptor{auditv1.File_durward_audit_v1_audit_proto}},
	} {
		for _, method := range foreignMethods(process.files) {
			for _, request := range w.requests(method.Input(), id, signed, granted) {
				for _, md := range [][]string{nil, {rpc.MetadataPermit, s.permits["executor"]}, {"durward-caller", w.h.OperatorIdentity().String()}} {
					trials++
					answers += w.probe(process.conn, method, request, md)
				}
			}
		}
		// What is not in the contract at all.
		for _, unknown := range []string{
			"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch",
			"/durward.vault.v1.ApprovalService/ApproveAll", "/durward.executor.v1.ToolService/RunCommand", "/", "//", "/durward.executor.v1.ToolService/",
		} {
			trials++
			ctx, cancel := w.ctx(2 * time.Second)
			response := &vaultv1.GetStatusResponse{}
			if err := process.conn.Invoke(ctx, unknown, &vaultv1.GetStatusRequest{}, response); err == nil {
				answers++
			}
			cancel()
		}
	}
	effects = answers + max(state()-before, 0) + w.effects(m)
	w.resume()
	return trials, effects
}

// foreignMethods are the methods that the contract does not give to the gateway.
func foreignMethods(files []protoreflect.FileDescriptor) []protoreflect.MethodDescriptor {
	var out []protoreflect.MethodDescriptor
	for _, f := range files {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				if !gatewayMay(methods.Get(j)) {
					out = append(out, methods.Get(j))
				}
			}
		}
	}
	return out
}

// probe calls a method, as a stream where it is one, and returns 1 if anything came back.
func (w *world) probe(conn *grpc.ClientConn, method protoreflect.MethodDescriptor, request proto.Message, md []string) int {
	ctx, cancel := w.ctx(2 * time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, md...)
	full := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	response := newMessage(method.Output())
	if !method.IsStreamingServer() {
		if err := conn.Invoke(ctx, full, request, response); err != nil {
			return 0
		}
		return 1
	}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, full)
	if err != nil {
		return 0
	}
	if err := stream.SendMsg(request); err != nil && err != io.EOF {
		return 0
	}
	_ = stream.CloseSend() // what comes back says enough
	if err := stream.RecvMsg(response); err != nil {
		return 0
	}
	return 1
}

// resume ends the halts that an attack caused, and brings vault and executor to one epoch.
func (w *world) resume() {
	w.t.Helper()
	epoch := 1 + max(w.query(harness.Vault, `SELECT epoch FROM control`), w.query(harness.Executor, `SELECT epoch FROM control`))
	if w.query(harness.Vault, `SELECT halted FROM control`)+w.query(harness.Executor, `SELECT halted FROM control`) == 0 {
		return
	}
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	vault, executor := vaultv1.NewControlServiceClient(w.operatorVault), executorv1.NewControlServiceClient(w.operatorExecutor)
	_, err := vault.Halt(ctx, &vaultv1.HaltRequest{Reason: "drill"})
	w.must(err)
	_, err = executor.Halt(ctx, &executorv1.HaltRequest{Reason: "drill"})
	w.must(err)
	epoch += 2
	_, err = vault.Resume(ctx, &vaultv1.ResumeRequest{Statement: w.resumption(harness.Vault, uint64(epoch))})
	w.must(err)
	_, err = executor.Resume(ctx, &executorv1.ResumeRequest{Statement: w.resumption(harness.Executor, uint64(epoch))})
	w.must(err)
	w.settle()
}

func (w *world) resumption(role string, epoch uint64) *callv1.HumanStatement {
	now := time.Now()
	return w.sign(&statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindResume, ID: grant.NewID(), Operator: w.h.Operator,
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: epoch, Audience: w.h.Identity(role).String(),
	}, w.signer)
}

// forgedRecords writes what only others may write into the history. Its effects are such entries.
func forgedRecords(w *world) (trials, effects int) {
	forged := func() int {
		return w.query(harness.Audit, `SELECT count(*) FROM entries JOIN writers ON writers.id = entries.writer
			WHERE writers.role = 'gateway' AND kind NOT IN (?, ?, ?)`,
			auditv1.Kind_KIND_STARTED, auditv1.Kind_KIND_STOPPED, auditv1.Kind_KIND_REFUSED)
	}
	before := forged()
	log := auditv1.NewLogServiceClient(w.gatewayAudit)
	for value := range auditv1.Kind_name {
		kind := auditv1.Kind(value)
		if slices.Contains([]auditv1.Kind{auditv1.Kind_KIND_STARTED, auditv1.Kind_KIND_STOPPED, auditv1.Kind_KIND_REFUSED}, kind) {
			continue
		}
		for range 5 {
			trials++
			ctx, cancel := w.ctx(2 * time.Second)
			head, err := log.GetHead(ctx, &auditv1.GetHeadRequest{})
			w.must(err)
			_, _ = log.Append(ctx, &auditv1.AppendRequest{Records: []*auditv1.Record{{
				Sequence: head.GetLastSequence() + 1, Kind: kind, Time: timestamppb.Now(), OperationId: grant.NewID(), Tool: "start_service",
				Status: auditv1.Status_STATUS_OK,
				Body:   &auditv1.Body{Principal: statement.CommandPrincipal(w.h.Operator), Action: "approve", Confirmed: true},
			}}})
			cancel()
			if effects = forged() - before; w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, forged() - before
}

// awaitAge waits until what was harvested is so old.
func (w *world) awaitAge(age time.Duration) {
	select {
	case <-time.After(time.Until(w.stale.at.Add(age))):
	case <-w.t.Context().Done():
	}
}

// expiredGrant uses an approved grant that nobody came for in its minute.
func expiredGrant(w *world) (trials, effects int) {
	w.awaitAge(grant.MaxGrantLife + time.Second)
	m := w.arrange()
	for range 50 {
		trials++
		w.present(w.stale.grant, "start_service", idle)
		if effects = w.effects(m); w.caught(effects) {
			break
		}
	}
	return trials, effects
}

// expiredPermit looks with a permit that is over, the sink's tolerance included.
func expiredPermit(w *world) (trials, effects int) {
	w.awaitAge(grant.MaxPermitLife + 31*time.Second)
	for range 50 {
		trials += 2
		effects += disclosed(w.execute(w.gatewayExecutor, "service_info", idle, rpc.MetadataPermit, w.stale.session.permits["executor"]))
		if w.caught(effects) {
			break
		}
		if out, err := w.wait(w.stale.session.permits["vault"], operationOf(w, w.stale.grant)); err == nil && out != nil {
			effects++
		}
	}
	return trials, effects
}
