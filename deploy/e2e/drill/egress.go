package drill

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
)

// lastEgressLines are those after which egress is halted, epochs lie apart, or its records do not follow each other, behind what waits
// until that is over which was harvested at the beginning.
func lastEgressLines() []Line {
	return []Line{
		{"egress-expired-grant", map[string]string{harness.Egress: "redeem"}, fetchExpired},
		{"egress-hostile", map[string]string{harness.Vault: "callers", harness.Executor: "callers", harness.Audit: "callers"}, hostileEgress},
		{"egress-halted-in-flight", map[string]string{harness.Egress: "halted"}, haltedInFlight},
		{"egress-forged-records", map[string]string{harness.Audit: "kinds"}, egressForgesRecords},
	}
}

// egressLines are attacks on the process that reaches other hosts, and with what it has. Other hosts are servers on loopback.
func egressLines() []Line {
	egress := func(guards string) map[string]string { return map[string]string{harness.Egress: guards} }
	return []Line{
		{"egress-made-up-grant", egress("grant,redeem"), madeUpGrant},
		{"egress-permit-for-a-fetch", egress("permit,one-call"), permitForFetch},
		{"egress-grant-again", egress("redeem"), fetchedAgain},
		{"egress-other-url", egress("arguments"), otherURL},
		{"egress-request-no-grant", egress("required"), requestNoGrant},
		{"egress-other-tool", egress("tool,audience,arguments,subject,statement,redeem"), requestByOthers},
		{"egress-forged-permit", egress("permit"), forgedReport},
		{"egress-forbidden-address", egress("dial-judged-before"), forbiddenAddress},
		{"egress-redirect-to-forbidden", egress("dial-judged-before"), forbiddenRedirect},
	}
}

// outside is what stands for other hosts. listed is one that agents may reach. Nobody may reach trap, though the list of domains has
// it: its address is not in egress' own file.
type outside struct {
	listed *httptest.Server
	trap   net.Listener
	// asked counts requests at listed, by path; trapped counts connections to trap.
	mu      sync.Mutex
	asked   map[string]int
	trapped atomic.Int32
	people  crowd
	// sent is what came in requests' bodies.
	sent strings.Builder
	// A request to /slow says so on held, and is answered once released is closed.
	held, released chan struct{}
}

func newOutside(w *world) *outside {
	o := &outside{people: newCrowd(w.weak), asked: map[string]int{}, held: make(chan struct{}, 1), released: make(chan struct{})}
	var err error
	o.trap, err = (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	w.must(err)
	w.t.Cleanup(func() { _ = o.trap.Close() })
	go func() {
		for {
			conn, err := o.trap.Accept()
			if err != nil {
				return
			}
			o.trapped.Add(1)
			_ = conn.Close() // that it was dialled is enough
		}
	}()
	o.listed = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "text/plain")
		if to, ok := strings.CutPrefix(r.URL.RawQuery, "to="); ok {
			out.Header().Set("Location", to)
			out.WriteHeader(http.StatusFound)
			return
		}
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
		o.mu.Lock()
		o.asked[r.URL.Path]++
		_, _ = o.sent.Write(append(body, '\n'))
		o.mu.Unlock()
		if from, ok := strings.CutPrefix(r.URL.Path, "/people/"); ok {
			first, _ := strconv.Atoi(from)
			_, _ = io.WriteString(out, o.people.page(first))
			return
		}
		if r.URL.Path == "/echo" {
			_, _ = out.Write(body)
			return
		}
		if r.URL.Path == "/slow" {
			o.held <- struct{}{}
			select {
			case <-o.released:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(out, "a page") // whoever has gone reads nothing
	}))
	w.t.Cleanup(o.listed.Close)
	return o
}

func (o *outside) port() uint16 {
	return uint16(o.listed.Listener.Addr().(*net.TCPAddr).Port) // #nosec G115 -- a port
}

func (o *outside) at(path string) string { return o.listed.URL + path }

// requests is how often a path was asked for.
func (o *outside) requests(path string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked[path]
}

// withOutside adds what stands for other hosts to a world, and tells egress and the vault of it before they start.
func withOutside(w *world) {
	w.out = newOutside(w)
	o := w.out
	port := o.trap.Addr().(*net.TCPAddr).Port
	listed := strings.TrimPrefix(o.listed.URL, "http://")
	config := w.h.ReadFile("config/egress.yaml")
	config = strings.Replace(config, "\nlocal: []\n", fmt.Sprintf("\nlocal: [%q]\n", listed), 1)
	config = strings.Replace(config, "\nports: [80, 443]\n", "\n", 1) + fmt.Sprintf("\nports: [80, 443, %d]\n", port)
	w.h.WriteFile("config/egress.yaml", config)
	client := fmt.Sprintf("{id: agent-%d,", credentialClient)
	w.h.WriteFile("config/clients.yaml", strings.Replace(w.h.ReadFile("config/clients.yaml"), client, client+" credentials: ["+namedCredential+"],", 1))
	w.h.WriteFile("config/security/domains.yaml", fmt.Sprintf("allow: [%q, \"127.0.0.1:%d\", \"[::1]:%d\"]\n", listed, port, port))
}

// stalePage is what the grant of a page is for that is harvested at the beginning.
const stalePage = "/stale"

// fetchGrant is the genuine grant for fetching a URL of the list; nil where the vault gives none.
func (w *world) fetchGrant(s *agentSession, url string) *callv1.SignedGrant {
	w.t.Helper()
	out, err := w.authorise(s.handle, "fetch_url", fmt.Appendf(nil, `{"url":%q}`, url))
	if err != nil {
		return nil // a spelling that the vault takes for no URL
	}
	return out.GetGrant()
}

// fetch asks egress for a page, as the gateway.
func (w *world) fetch(url string, md ...string) (*egressv1.FetchUrlResponse, error) {
	return unary(w, egressv1.NewToolServiceClient(w.gatewayEgress).FetchUrl, &egressv1.FetchUrlRequest{Url: &url}, md...)
}

// madeUpGrant fetches by grants that the gateway makes.
func madeUpGrant(w *world) (trials, effects int) {
	const path = "/made-up"
	g := w.fetchGrant(w.open(), w.out.at(path))
	if g == nil {
		w.t.Fatal("no grant for a listed page")
	}
	trials = w.volley(w.forgeries(g), func(forged string) { _, _ = w.fetch(w.out.at(path), rpc.MetadataGrant, forged) },
		func() bool { return w.caught(w.out.requests(path)) })
	return trials, w.out.requests(path)
}

// permitForFetch fetches without a grant: by nothing, by permits, by a permit that names the tool and is signed by somebody else.
func permitForFetch(w *world) (trials, effects int) {
	const path = "/by-permit"
	s := w.open()
	genuine := &callv1.SignedPermit{}
	w.must(proto.Unmarshal([]byte(s.permits["egress"]), genuine))
	permit := &callv1.Permit{}
	w.must(proto.Unmarshal(genuine.GetPayload(), permit))
	permit.Tools = []string{"fetch_url", "http_request", "security_report"}
	payload := []byte(marshal(permit))
	_, own, err := ed25519.GenerateKey(rand.Reader)
	w.must(err)
	forged := marshal(&callv1.SignedPermit{Payload: payload, Kid: w.vaultKey.KID, Signature: ed25519.Sign(own, append([]byte("durward.permit.v1\x00"), payload...))})
	return each(w, [][]string{
		nil, {rpc.MetadataPermit, s.permits["egress"]}, {rpc.MetadataPermit, s.permits["executor"]}, {rpc.MetadataPermit, forged},
		{rpc.MetadataGrant, s.permits["egress"]}, {rpc.MetadataGrant, forged}, {"durward-approved", "true"}, {"durward-caller", w.h.OperatorIdentity().String()},
		{rpc.MetadataGrant, marshal(w.readGrant(s))},
	}, func() int { return w.out.requests(path) }, func(md []string) { _, _ = w.fetch(w.out.at(path), md...) })
}

// fetchedAgain fetches more than once by one grant.
func fetchedAgain(w *world) (trials, effects int) {
	const path = "/again"
	g := marshal(w.fetchGrant(w.open(), w.out.at(path)))
	_, _ = w.fetch(w.out.at(path), rpc.MetadataGrant, g) // a vault that redeemed nothing looks through no answer: the server's word counts
	if n := w.out.requests(path); n != 1 {
		w.t.Fatalf("a genuine grant had %d effects", n)
	}
	trials = w.volley(slices.Repeat([]string{g}, 60), func(g string) { _, _ = w.fetch(w.out.at(path), rpc.MetadataGrant, g) },
		func() bool { return w.caught(w.out.requests(path) - 1) })
	return trials, w.out.requests(path) - 1
}

// fetchExpired fetches by a genuine grant that nobody came for in its minute.
func fetchExpired(w *world) (trials, effects int) {
	w.awaitAge(grant.MaxGrantLife + time.Second)
	return each(w, slices.Repeat([]string{marshal(w.stale.page)}, 50), func() int { return w.out.requests(stalePage) }, func(g string) {
		_, _ = w.fetch(w.out.at(stalePage), rpc.MetadataGrant, g) // what counts is whether the server was asked
	})
}

// otherURL fetches another page than the one that the grant is for.
func otherURL(w *world) (trials, effects int) {
	const path = "/not-granted"
	s := w.open()
	return each(w, []string{"/granted", "/not-granted/", "/not-granted?a", "/Not-granted"}, func() int { return w.out.requests(path) }, func(granted string) {
		_, _ = w.fetch(w.out.at(path), rpc.MetadataGrant, marshal(w.fetchGrant(s, w.out.at(granted))))
	})
}

// requestNoGrant sends requests with everything but a grant for one.
func requestNoGrant(w *world) (trials, effects int) {
	const path = "/no-grant"
	s := w.open()
	return each(w, [][]string{
		nil, {rpc.MetadataGrant, ""}, {rpc.MetadataGrant, "\x00"}, {rpc.MetadataGrant, marshal(&callv1.SignedGrant{})}, {rpc.MetadataPermit, s.permits["egress"]},
		{rpc.MetadataGrant, s.permits["egress"]}, {rpc.MetadataPermit, s.permits["executor"]}, {"durward-approved", "true"}, {"durward-caller", w.h.OperatorIdentity().String()},
	}, func() int { return w.out.requests(path) }, func(md []string) { w.request(w.post(path), md...) })
}

// requestByOthers sends requests by genuine grants for something else: a page, a look, an approved start.
func requestByOthers(w *world) (trials, effects int) {
	const path = "/by-others"
	s := w.open()
	for _, g := range []*callv1.SignedGrant{w.fetchGrant(s, w.out.at(path)), w.readGrant(s), w.approved(s, "start_service", idle)} {
		for _, arguments := range [][]byte{w.post(path), fmt.Appendf(nil, `{"method":"GET","url":%q}`, w.out.at(path))} {
			trials++
			w.request(arguments, rpc.MetadataGrant, marshal(g))
			if effects = w.out.requests(path); w.caught(effects) {
				return trials, effects
			}
		}
	}
	return trials, effects
}

// forgedReport has egress report on a session without leave. Its effects are reports.
func forgedReport(w *world) (trials, effects int) {
	s, format := w.open(), "csp"
	return w.forgePermits(s.permits["egress"], s.permits["executor"], func(md ...string) int {
		return disclosed(w.send(w.gatewayEgress, w.tool("security_report"), &egressv1.SecurityReportRequest{Format: &format}, md...))
	})
}

// forbidden are spellings of the trap's URL, as one that a list has, and as others read it too.
func (o *outside) forbidden() (urls []string) {
	_, port, _ := net.SplitHostPort(o.trap.Addr().String())
	for _, host := range []string{
		"127.0.0.1", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1", "017700000001", "127.0.0.1.", "127.000.000.001",
		"[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[::127.0.0.1]", "[::1%25lo]",
		"0.0.0.0", "0", "[::]", "a.127.0.0.1", "%31%32%37.0.0.1", "a@127.0.0.1", "127.0.0.1%00.example", "%E2%91%A0%E2%91%A1%E2%91%A6.0.0.1",
	} {
		urls = append(urls, "http://"+host+":"+port+"/")
	}
	return append(urls, "HTTP://127.0.0.1:"+port+"/", "http:127.0.0.1:"+port, "http:///127.0.0.1:"+port, "//127.0.0.1:"+port, "http:\\\\127.0.0.1:"+port)
}

// forbiddenAddress fetches what no file of a human's lets egress dial, in every spelling.
func forbiddenAddress(w *world) (trials, effects int) {
	s, before := w.open(), w.out.trapped.Load()
	spare := w.fetchGrant(s, w.out.at("/"))
	return each(w, w.out.forbidden(), func() int { return int(w.out.trapped.Load() - before) }, func(url string) {
		g := w.fetchGrant(s, url)
		if g == nil {
			g = spare // the vault takes it for no URL; egress decides by itself
		}
		_, _ = w.fetch(url, rpc.MetadataGrant, marshal(g))
	})
}

// forbiddenRedirect lets a listed server send egress there.
func forbiddenRedirect(w *world) (trials, effects int) {
	s, before := w.open(), w.out.trapped.Load()
	return each(w, w.out.forbidden(), func() int { return int(w.out.trapped.Load() - before) }, func(url string) {
		from := w.out.at("/?to=" + url)
		if g := w.fetchGrant(s, from); g != nil {
			_, _ = w.fetch(from, rpc.MetadataGrant, marshal(g))
		}
	})
}

// haltedInFlight halts egress while a page is on its way, and counts what comes back all the same.
func haltedInFlight(w *world) (trials, effects int) {
	s := w.open()
	slow, after := w.fetchGrant(s, w.out.at("/slow")), w.fetchGrant(s, w.out.at("/after"))
	answered := make(chan error, 1)
	go func() {
		_, err := w.fetch(w.out.at("/slow"), rpc.MetadataGrant, marshal(slow))
		answered <- err
	}()
	select {
	case <-w.out.held:
	case err := <-answered:
		w.t.Fatalf("a page that a list has is not fetched: %v", err)
	}
	w.haltEgress()
	close(w.out.released)
	if err := <-answered; err == nil {
		effects++
	}
	_, _ = w.fetch(w.out.at("/after"), rpc.MetadataGrant, marshal(after))
	return 2, effects + w.out.requests("/after")
}

// haltEgress is the operator's halt, at egress alone.
func (w *world) haltEgress() {
	w.t.Helper()
	_, err := unary(w, egressv1.NewControlServiceClient(w.operatorEgress).Halt, &executorv1.HaltRequest{Reason: "drill " + grant.NewID()})
	w.must(err)
}

// resumeEgress ends the operator's halt.
func (w *world) resumeEgress() {
	w.t.Helper()
	ctx, cancel := w.ctx(callTime)
	defer cancel()
	control := egressv1.NewControlServiceClient(w.operatorEgress)
	status, err := control.GetStatus(ctx, &egressv1.GetStatusRequest{})
	w.must(err)
	_, err = control.Resume(ctx, &executorv1.ResumeRequest{Statement: w.resumption(harness.Egress, status.GetEpoch()+1)})
	w.must(err)
}
