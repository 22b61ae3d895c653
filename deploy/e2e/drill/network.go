package drill

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/platformtest/traps"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// NetworkLine attacks egress in a network of its own, in which every address answers: the whole installation runs there.
const NetworkLine = "egress-network"

// RunNetwork carries NetworkLine out, as Run does with others, one world after the other.
func RunNetwork(t *testing.T, full bool) {
	harness.Binaries(t, harness.Build{})
	harness.Binaries(t, harness.Build{Weak: true})
	trap := traps.New(t)
	if trap == nil {
		return
	}
	board := NewBoard(func(line string) { _, _ = fmt.Fprintln(platformtest.Outer(), line) })
	board.Expect(NetworkLine, 2)
	listed := func(w *world) { w.h.WriteFile("config/security/domains.yaml", listOf(trap)) }
	t.Run("shipped", func(t *testing.T) {
		w := newWorld(t, false, full, listed)
		trials, effects := w.trapped(trap)
		w.settle()
		board.Note(t, NetworkLine, Result{Trials: trials, Effects: effects, Note: w.note})
	})
	t.Run("weak", func(t *testing.T) {
		w := newWorld(t, true, full, listed)
		w.weaken(map[string]string{harness.Egress: "dial-judged-before"})
		_, effects := w.trapped(trap)
		board.Note(t, NetworkLine, Result{Control: effects})
	})
	board.Judge(t)
}

// listOf is a list of domains that allows all that an attack names, as far as a list can.
func listOf(trap *traps.Traps) string {
	var b strings.Builder
	fmt.Fprintf(&b, "allow:\n  - \"*.%s\"\n", traps.Names)
	for _, host := range trap.Addresses() {
		if _, to, err := destination.ParseURL("http://" + host + "/"); err == nil {
			fmt.Fprintf(&b, "  - %q\n", to)
		}
	}
	return b.String()
}

// everyFourth is a sample: the ways to one target are not a multiple of four.
func everyFourth(urls []string) (some []string) {
	for i := 0; i < len(urls); i += 4 {
		some = append(some, urls[i])
	}
	return some
}

// trapped fetches what may be fetched, by grants of the real vault, and then what may not, by grants that a hostile vault signs: the list
// allows each, so that nothing stands in the way but what egress judges itself. The effects are allowed pages that are not answered, and
// packets to addresses that may not be dialled.
func (w *world) trapped(trap *traps.Traps) (trials, effects int) {
	own := func(to netip.AddrPort) bool {
		return to.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) && to.Port() > 1024 // the processes themselves
	}
	trap.Asked()
	trap.Forbidden(own)
	s := w.open()
	allowed := w.size(1000, 100)
	refused := 0
	for i := range allowed {
		url := traps.Allowed(i)
		if answer, err := w.fetch(url, rpc.MetadataGrant, marshal(w.fetchGrant(s, url))); err != nil || answer.GetStatus() != 200 {
			w.t.Logf("%s: %v %v", url, answer, err)
			refused++
		}
	}
	w.takeVault()
	base := w.fetchBase()
	urls := trap.Attacks()
	if !w.full {
		urls = everyFourth(urls)
	}
	if w.weak {
		urls = trap.Rebinding()
	}
	packets := 0
	trials = w.volley(urls, func(url string) {
		_, _ = w.fetch(url, rpc.MetadataGrant, w.fetchAs(base, url)) // whatever it answers, packets are counted
	}, func() bool {
		packets += trap.Forbidden(own)
		return packets > 0
	})
	packets += trap.Forbidden(own)
	if looked := len(trap.Asked()); !w.weak && (trials < w.size(20_000, 1_000) || looked < len(urls)/20) {
		w.t.Fatalf("%d attacks, for which %d names were looked up: they show nothing", trials, looked)
	}
	w.note = fmt.Sprintf("%d packets to forbidden addresses; of %d allowed pages %d not answered", packets, allowed, refused)
	return trials, packets + refused
}

// fetchBase is what grants for pages have in common.
func (w *world) fetchBase() *callv1.Grant {
	w.t.Helper()
	status, err := unary(w, egressv1.NewControlServiceClient(w.operatorEgress).GetStatus, &egressv1.GetStatusRequest{})
	w.must(err)
	return w.grantOf(&statement.Statement{
		Principal: "agent-0", Session: "s-drill", Audience: w.h.Identity(harness.Egress).String(), Epoch: status.GetEpoch(),
	}, "fetch_url", "")
}

// fetchAs is a grant for a page that the vault's key signs, though the vault gives none.
func (w *world) fetchAs(base *callv1.Grant, url string) string {
	g, now := proto.CloneOf(base), time.Now()
	raw, err := contract.Canonical(&egressv1.FetchUrlRequest{Url: &url})
	w.must(err)
	digest := contract.Digest(raw)
	g.Id, g.OperationId, g.ArgumentsDigest = grant.NewID(), grant.NewID(), digest[:]
	g.IssuedAt, g.NotBefore, g.ExpiresAt = timestamppb.New(now), timestamppb.New(now), timestamppb.New(now.Add(grant.MaxGrantLife))
	return marshal(w.vaultSigns(g))
}
