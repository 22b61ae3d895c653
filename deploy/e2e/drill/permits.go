package drill

import (
	"crypto/ed25519"
	"crypto/rand"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
)

// lateLines are attacks with what was good when the drill began, once its time is over.
func lateLines() []Line {
	return []Line{
		{"gateway-expired-grant", map[string]string{harness.Executor: "redeem"}, expiredGrant},
		{"gateway-expired-permit", map[string]string{harness.Executor: "in-force"}, expiredPermit},
		// Its control raises the epoch, which voids what was harvested.
		{"gateway-every-rpc", map[string]string{harness.Vault: "callers", harness.Executor: "callers", harness.Audit: "callers"}, everyRPC},
	}
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

// forgedPermit looks without leave. Its effects are answers.
func forgedPermit(w *world) (trials, effects int) {
	s := w.open()
	return w.forgePermits(s.permits["executor"], s.permits["vault"], func(md ...string) int {
		return disclosed(w.execute(w.gatewayExecutor, "service_info", idle, md...))
	})
}

// forgePermits looks by what is made of a genuine permit, by another process's and without one; look returns how much it sees.
func (w *world) forgePermits(permit, another string, look func(md ...string) int) (trials, effects int) {
	raw := []byte(permit)
	w.until("a genuine permit discloses something, without which a forged one proves nothing", func() bool { return look(rpc.MetadataPermit, permit) == 1 })
	_, own, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	genuine := &callv1.SignedPermit{}
	w.must(proto.Unmarshal(raw, genuine))
	forged := []string{"", "\x00", marshal(&callv1.SignedPermit{}), another}
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
		answers.Add(int64(look(rpc.MetadataPermit, p)))
	}, func() bool { return answers.Load() > 0 })
	for range 5 {
		trials++
		answers.Add(int64(look()))
	}
	return trials, int(answers.Load())
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
	return each(w, slices.Repeat([]*callv1.SignedGrant{w.stale.grant}, 50), func() int { return w.effects(m) }, func(g *callv1.SignedGrant) {
		w.present(g, "start_service", idle)
	})
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
