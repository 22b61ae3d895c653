package drill

import (
	"crypto/ed25519"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
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
		{"gateway-unsigned-client", vault("proof"), unsignedClient},
		{"gateway-relays-only-asking", map[string]string{harness.Vault: "unapproved", harness.Executor: "subject,statement"}, relaysOnly},
		{"gateway-own-approval", vault("callers,approval"), ownApproval},
		{"gateway-forged-records", map[string]string{harness.Audit: "kinds"}, forgedRecords},
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
	return w.demand(w.gatewayExecutor, m, [][]string{
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
	})
}

// readGrant is a genuine one-call grant for a tool that only looks.
func (w *world) readGrant(s *agentSession) *callv1.SignedGrant {
	w.t.Helper()
	out, err := w.authorise(s.handle, "list_services", []byte("{}"))
	w.must(err)
	return out.GetGrant()
}

// permitForWrite uses permits for reads to change something.
func permitForWrite(w *world) (trials, effects int) {
	m := w.arrange()
	s := w.open()
	var metadata [][]string
	for _, permit := range []string{s.permits["executor"], s.permits["vault"], s.permits["executor"] + s.permits["vault"]} {
		metadata = append(metadata,
			[]string{rpc.MetadataPermit, permit},
			[]string{rpc.MetadataGrant, permit},
			[]string{rpc.MetadataPermit, permit, rpc.MetadataGrant, permit},
			[]string{rpc.MetadataPermit, permit, rpc.MetadataPermit, permit})
	}
	return w.demand(w.gatewayExecutor, m, metadata)
}

// demand makes each call that would show, with each metadata.
func (w *world) demand(conn *grpc.ClientConn, m mark, metadata [][]string) (trials, effects int) {
	w.t.Helper()
	for _, md := range metadata {
		for _, a := range aims {
			trials++
			_, _ = w.execute(conn, a.tool, a.service, md...)
			if effects = w.effects(m); w.caught(effects) {
				return trials, effects
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

// volley makes calls, several at a time, until there are no more or, in a control, enough is seen.
func (w *world) volley(items []string, call func(string), enough func() bool) (made int) {
	size := len(items)
	if w.weak {
		size = 64
	}
	for chunk := range slices.Chunk(items, size) {
		var next atomic.Int64
		var done sync.WaitGroup
		for range 4 {
			done.Go(func() {
				for i := next.Add(1) - 1; i < int64(len(chunk)); i = next.Add(1) - 1 {
					call(chunk[i])
				}
			})
		}
		done.Wait()
		if made += len(chunk); w.weak && enough() {
			break
		}
	}
	return made
}

// each makes an attempt with each item, one after the other, until there are no more or, in a control, an effect is seen.
func each[T any](w *world, items []T, seen func() int, attempt func(T)) (trials, effects int) {
	for _, item := range items {
		trials++
		attempt(item)
		if effects = seen(); w.caught(effects) {
			break
		}
	}
	return trials, effects
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
		trials, effects = each(w, slices.Repeat([]string{g}, 20), func() int { return w.effects(m) }, func(g string) {
			_, _ = w.execute(conn, "start_service", idle, rpc.MetadataGrant, g)
		})
	})
	return trials, effects
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

func operationOf(w *world, g *callv1.SignedGrant) string {
	payload := &callv1.Grant{}
	w.must(proto.Unmarshal(g.GetPayload(), payload))
	return payload.GetOperationId()
}
