package bridge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/proof"
)

const testToken = "durward_test-token"

// gateway is a fake of the gateway's MCP side: it checks what a gateway and a vault would check, and is told what to answer.
type gateway struct {
	t      *testing.T
	server *httptest.Server
	public ed25519.PublicKey

	mu      sync.Mutex
	session int
	// ended: the client ended it.
	ended bool
	// renamed counts how often the vault opened the session again.
	renamed int
	window  *proof.Window
	seen    []string
	// late is how many openings are refused as from before the vault's start.
	late    int
	answers func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool
	// noted gets each notification; nil: none.
	noted func(m message)
	// news is what a session's own stream brings; nil: there is none. asked counts who wanted it.
	news  chan string
	asked int
	// taken is how often it is refused: the gateway has not heard yet that the one before it broke.
	taken int
	// wanted gets a value whenever asked is counted; nil: it does not.
	wanted chan struct{}
	// instances are the names under which stateless requests came, and hung the ids of those whose client hung up.
	instances map[string]bool
	hung      chan string
	// token is the one that is taken; empty: testToken. Another is refused.
	token string
	// agents are what messages said of their agent.
	agents []string
	// handshake is in whose name the session was opened, and openings the proofs of that, with what each was a proof of.
	handshake speaker
	openings  []opening
}

func newGateway(t *testing.T, public ed25519.PublicKey) *gateway {
	g := &gateway{t: t, public: public}
	g.server = httptest.NewServer(g)
	t.Cleanup(g.server.Close)
	return g
}

func (g *gateway) ref() string { return fmt.Sprintf("s-%d-%d", g.session, g.renamed) }

func (g *gateway) log(format string, args ...any) {
	g.seen = append(g.seen, fmt.Sprintf(format, args...))
}

func (g *gateway) events() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return strings.Join(g.seen, "\n")
}

// opening is a proof and the claim that it proved.
type opening struct {
	claim proof.Claim
	proof *callv1.Proof
}

// verify returns the purpose of the message's proof, which must be good for the session as it is.
func (g *gateway) verify(m message) callv1.Proof_Purpose {
	var params struct {
		Name      string                     `json:"name"`
		Arguments map[string]json.RawMessage `json:"arguments"`
		Meta      map[string]json.RawMessage `json:"_meta"`
	}
	if len(m.Params) == 0 || json.Unmarshal(m.Params, &params) != nil || params.Meta[metaProof] == nil {
		return callv1.Proof_PURPOSE_UNSPECIFIED
	}
	p := &callv1.Proof{}
	if err := protojson.Unmarshal(params.Meta[metaProof], p); err != nil {
		g.t.Errorf("proof: %v", err)
		return callv1.Proof_PURPOSE_UNSPECIFIED
	}
	if p.GetTime() == 0 {
		g.t.Errorf("a proof of purpose %s has no time", p.GetPurpose())
	}
	claim := proof.Claim{Purpose: p.GetPurpose(), Client: "tester"}
	if p.GetPurpose() == callv1.Proof_PURPOSE_OPEN {
		// As a gateway: the message's own name where it opens a session, else that of the session that is lost.
		by := g.handshake
		if m.Method == "initialize" || params.Meta[metaInstance] != nil {
			by = speakerOf([]byte(fmt.Sprintf(`{"params":%s}`, m.Params)))
		}
		if m.Method == "initialize" {
			g.handshake = by
		}
		claim.Agent, claim.SenderUser, claim.SenderRoom = by.agent, by.user, by.room
		g.openings = append(g.openings, opening{claim, p})
	} else {
		claim.Session = g.ref()
		if !g.window.Accept(p.GetCounter()) {
			g.t.Errorf("counter %d was used before", p.GetCounter())
		}
	}
	if p.GetPurpose() == callv1.Proof_PURPOSE_CALL {
		tool, _ := contract.Lookup(params.Name)
		if tool.TakesReason() {
			delete(params.Arguments, contract.ReasonArgument)
		}
		raw, err := json.Marshal(params.Arguments)
		if err != nil {
			g.t.Error(err)
		}
		decoded, err := tool.Decode(raw)
		if err != nil {
			g.t.Error(err)
		}
		canonical, err := contract.Canonical(decoded)
		if err != nil {
			g.t.Error(err)
		}
		digest := contract.Digest(canonical)
		claim.Tool, claim.ArgumentsDigest = tool.Name, digest[:]
	}
	if err := proof.Verify(g.public, claim, p); err != nil {
		g.t.Errorf("a proof of purpose %s does not verify: %v", p.GetPurpose(), err)
	}
	return p.GetPurpose()
}

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch got := r.Header.Get("Authorization"); {
	case g.token == "" && got != "Bearer "+testToken:
		g.t.Errorf("Authorization %q", got)
	case g.token != "" && got != "Bearer "+g.token:
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	switch r.Method {
	case http.MethodDelete:
		g.log("DELETE %s", r.Header.Get("Mcp-Session-Id"))
		g.ended = true
		return
	case http.MethodGet:
		g.listen(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		g.t.Error(err)
		return
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		g.t.Errorf("%q: %v", body, err)
		return
	}
	var said struct {
		Meta struct {
			Agent string `json:"durward/agent"`
		} `json:"_meta"`
	}
	if json.Unmarshal(m.Params, &said) == nil && said.Meta.Agent != "" {
		g.agents = append(g.agents, m.Method+" "+said.Meta.Agent)
	}
	if r.Header.Get("Mcp-Method") != "" {
		g.serveStateless(w, r, m)
		return
	}
	if m.Method == "initialize" {
		purpose := g.verify(m)
		g.log("initialize %s", purpose)
		if g.late > 0 {
			g.late--
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"sign","data":{"code":"PROOF_REQUIRED"}}}`, m.ID)
			return
		}
		g.session++
		g.ended = false
		g.window = &proof.Window{}
		w.Header().Set("Mcp-Session-Id", fmt.Sprintf("id-%d", g.session))
		writeJSON(w, m.ID, fmt.Sprintf(`{"protocolVersion":"2025-11-25","_meta":{"durward/session":%q}}`, g.ref()))
		return
	}
	if got, want := r.Header.Get("Mcp-Session-Id"), fmt.Sprintf("id-%d", g.session); got != want || g.ended {
		g.log("404 %s", m.Method)
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if got := r.Header.Get("Mcp-Protocol-Version"); got != "2025-11-25" {
		g.t.Errorf("Mcp-Protocol-Version %q", got)
	}
	purpose := g.verify(m)
	g.log("%s %s %s", m.Method, m.ID, purpose)
	if !m.isRequest() {
		if g.noted != nil {
			g.noted(m)
		}
		w.WriteHeader(http.StatusAccepted)
		return
	}
	if g.answers != nil && g.answers(w, m, purpose) {
		return
	}
	writeJSON(w, m.ID, `{"ok":true}`)
}

// lacking is the result of a tool that was refused for want of a proof.
func lacking(needed, session string) string {
	return fmt.Sprintf(`{"isError":true,"structuredContent":{"error":{"code":"PROOF_REQUIRED"}},"_meta":{"durward/proof_needed":%q,"durward/session":%q}}`, needed, session)
}

func writeJSON(w http.ResponseWriter, id json.RawMessage, result string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, "{\"jsonrpc\":\"2.0\",\n\"id\":%s,\"result\":%s}", id, result)
}

// client drives a bridge over pipes.
type client struct {
	t   *testing.T
	in  *io.PipeWriter
	out *bufio.Reader
	end chan error
	// looks makes the bridge look at the permits behind subscriptions.
	looks  chan time.Time
	bridge *Bridge
}

// look has the bridge look at the permits behind subscriptions, and returns when it has done so.
func (c *client) look() {
	c.looks <- time.Time{}
	c.looks <- time.Time{} // taken when the look before is over
}

func start(t *testing.T, g *gateway, key ed25519.PrivateKey, now func() time.Time, configure ...func(*Config)) *client {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	cfg := Config{Endpoint: g.server.URL, Token: testToken, Client: "tester", Key: key, Start: "the command", In: inR, Out: outW, Now: now}
	looks := make(chan time.Time)
	cfg.looks = looks
	for _, c := range configure {
		c(&cfg)
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, in: inW, out: bufio.NewReader(outR), end: make(chan error, 1), looks: looks, bridge: b}
	go func() { c.end <- b.Run(context.Background()) }()
	return c
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) receive() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (c *client) handshake() {
	c.t.Helper()
	c.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","_meta":{"x":1}}}`)
	if got := c.receive(); !strings.Contains(got, `"id":0`) {
		c.t.Fatalf("handshake: %s", got)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

func (c *client) close() {
	c.t.Helper()
	if err := c.in.Close(); err != nil {
		c.t.Fatal(err)
	}
	if err := <-c.end; err != nil {
		c.t.Errorf("Run = %v", err)
	}
}

func testKey(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func TestBadInput(t *testing.T) {
	public, key := testKey(t)
	c := start(t, newGateway(t, public), key, nil)
	for _, in := range []struct{ line, want string }{
		{`{"jsonrpc":"2.0",`, `{"error":{"code":-32700,"message":"the message is not JSON"},"id":null,"jsonrpc":"2.0"}`},
		{`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, `{"error":{"code":-32600,"message":"the message is not one JSON-RPC object"},"id":null,"jsonrpc":"2.0"}`},
	} {
		c.send(in.line)
		if got := c.receive(); got != in.want {
			t.Errorf("%s: %s", in.line, got)
		}
	}
	c.close()
}

func TestGatewayDown(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	g.server.Close()
	c := start(t, g, key, nil)
	c.send(`{"jsonrpc":"2.0","id":"a","method":"initialize","params":{}}`)
	if got := c.receive(); !strings.Contains(got, "Durward is not running. Ask the user to start it: the command") || !strings.Contains(got, `"id":"a"`) || strings.Contains(got, "127.0.0.1") {
		t.Errorf("answer %s", got)
	}
	c.close()
}

// A gateway that takes a connection and never answers is named as what is wrong, when a session is opened and when it is opened again.
func TestGatewayThatOpensNoSession(t *testing.T) {
	public, key := testKey(t)
	for _, begun := range []bool{false, true} {
		g := newGateway(t, public)
		silent := func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the server hears of a client that hangs up once it has read its request
			if begun {
				w.Header().Set("Content-Type", "text/event-stream")
				_ = http.NewResponseController(w).Flush() // a client that hung up hears nothing more
			}
			<-r.Context().Done()
		}
		var quiet atomic.Bool
		g.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			if quiet.Load() && bytes.Contains(body, []byte(`"initialize"`)) {
				silent(w, r)
				return
			}
			g.ServeHTTP(w, r)
		})
		quiet.Store(true)
		c := start(t, g, key, nil, func(cfg *Config) { cfg.openPatience = 200 * time.Millisecond })
		c.send(`{"jsonrpc":"2.0","id":"a","method":"initialize","params":{}}`)
		if got := c.receive(); !strings.Contains(got, "opens no session. Ask the user to look: durward status") || !strings.Contains(got, `"id":"a"`) {
			t.Errorf("answer %s", got)
		}
		quiet.Store(false)
		c.handshake()
		g.mu.Lock()
		g.ended = true
		g.mu.Unlock()
		quiet.Store(true)
		c.send(`{"jsonrpc":"2.0","id":"b","method":"tools/list"}`)
		if got := c.receive(); !strings.Contains(got, "opens no session") || !strings.Contains(got, `"id":"b"`) {
			t.Errorf("answer %s", got)
		}
		c.close()
	}
}

// Requests that find their session lost together wait for its opening together, and not one behind the other.
func TestRequestsWaitTogether(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	const requests = 8
	var lost atomic.Int32
	all, quiet := make(chan struct{}), atomic.Bool{}
	g.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch {
		case quiet.Load() && bytes.Contains(body, []byte(`"initialize"`)):
			<-r.Context().Done()
		case quiet.Load() && r.Method == http.MethodPost:
			if lost.Add(1) == requests {
				close(all)
			}
			<-all // they find it lost at one moment
			fallthrough
		default:
			g.ServeHTTP(w, r)
		}
	})
	c := start(t, g, key, nil, func(cfg *Config) { cfg.openPatience = time.Second })
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":"first","method":"tools/list"}`) // the notification before it has been taken
	c.receive()
	g.mu.Lock()
	g.ended = true
	g.mu.Unlock()
	quiet.Store(true)
	began := time.Now()
	for n := range requests {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, n))
	}
	for range requests {
		if got := c.receive(); !strings.Contains(got, "opens no session") {
			t.Errorf("answer %s", got)
		}
	}
	if took := time.Since(began); took > requests*time.Second/2 {
		t.Errorf("they waited %v", took)
	}
	c.close()
}

// A gateway that does not take a notification keeps nothing of what the client says after it.
func TestGatewayThatTakesNoNotification(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	g.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte(noteInitialized)) {
			<-r.Context().Done()
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		g.ServeHTTP(w, r)
	})
	c := start(t, g, key, nil, func(cfg *Config) { cfg.openPatience = 200 * time.Millisecond })
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":"a","method":"tools/list"}`)
	if got := c.receive(); !strings.Contains(got, `"id":"a"`) || !strings.Contains(got, `"ok":true`) {
		t.Errorf("answer %s", got)
	}
	c.close()
}

func TestProofs(t *testing.T) {
	public, key := testKey(t)
	if err := contract.Pin([]contract.Definition{{
		Foreign: contract.Foreign{Server: "desk", Name: "close", Check: func([]byte) error { return nil }}, Tier: optionsv1.Tier_TIER_WRITE,
		Input: map[string]any{"type": "object", "properties": map[string]any{"reason": map[string]any{"type": "string"}}},
	}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = contract.Pin(nil) }) // no tools are always taken
	g := newGateway(t, public)
	now := time.Unix(1_800_000_000, 0)
	c := start(t, g, key, func() time.Time { g.mu.Lock(); defer g.mu.Unlock(); return now })
	c.handshake()
	calls := []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gpu_status"}}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo","reason":"please"}}}`,
		// A proof that the agent made up is taken away, and invalid arguments are the gateway's to refuse.
		`{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"--force"},"_meta":{"durward/proof":{"counter":"1"}}}}`,
		`{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"no_such_tool"}}`,
		// What only looks, and is asked about all the same, takes a reason too.
		`{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"fetch_url","arguments":{"url":"https://docs.example/","reason":"please"}}}`,
		// A server's own argument of that name is what is decided on.
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"desk__close","arguments":{"reason":"done"}}}`,
	}
	for _, line := range calls {
		c.send(line)
		c.receive()
	}
	g.mu.Lock()
	now = now.Add(50 * time.Second)
	g.mu.Unlock()
	for id := 8; id < 10; id++ {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"list_services"}}`, id))
		c.receive()
	}
	c.close()
	want := `initialize PURPOSE_OPEN
notifications/initialized  PURPOSE_UNSPECIFIED
tools/list 1 PURPOSE_UNSPECIFIED
tools/call 2 PURPOSE_UNSPECIFIED
tools/call 3 PURPOSE_CALL
tools/call 4 PURPOSE_UNSPECIFIED
tools/call 5 PURPOSE_UNSPECIFIED
tools/call 6 PURPOSE_CALL
tools/call 7 PURPOSE_CALL
tools/call 8 PURPOSE_RENEW
tools/call 9 PURPOSE_UNSPECIFIED
DELETE id-1`
	if got := g.events(); got != want {
		t.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
}

func TestBearerClientSignsNothing(t *testing.T) {
	g := newGateway(t, nil)
	c := start(t, g, nil, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo"}}}`)
	c.receive()
	c.close()
	if got := g.events(); strings.Contains(got, "PURPOSE_OPEN") || strings.Contains(got, "PURPOSE_CALL") {
		t.Errorf("events:\n%s", got)
	}
}

// A vault that restarted asks for an opening first, then for the call's own proof, in a session with another name.
func TestProofNeeded(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	lost := true
	g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
		needed := ""
		switch {
		case lost && purpose != callv1.Proof_PURPOSE_OPEN:
			needed = needOpen
		case purpose == callv1.Proof_PURPOSE_OPEN:
			lost, needed = false, needCall
			g.renamed++
			g.window = &proof.Window{}
		default:
			return false
		}
		writeJSON(w, m.ID, lacking(needed, g.ref()))
		return true
	}
	c := start(t, g, key, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":"w","method":"tools/call","params":{"name":"stop_service","arguments":{"service_id":"demo"}}}`)
	got := c.receive()
	c.close()
	want := "tools/call \"w\" PURPOSE_CALL\ntools/call \"w\" PURPOSE_OPEN\ntools/call \"w\" PURPOSE_CALL"
	if events := g.events(); !strings.Contains(events, want) {
		t.Errorf("events:\n%s", events)
	}
	if !strings.Contains(got, `"ok":true`) {
		t.Errorf("answer %s", got)
	}
}

// A gateway that asks for signatures without end gets one of each.
func TestDemandsAreMetOnce(t *testing.T) {
	for name, c := range map[string]struct{ needed, method, tool, want string }{
		"a call's": {needCall, "tools/call", "start_service", "CALL CALL"},
		"a renewal that is not due, and for a call before": {needRenew, "tools/call", "gpu_status", "UNSPECIFIED RENEW"},
		"an opening":                                     {needOpen, "tools/call", "gpu_status", "UNSPECIFIED OPEN"},
		"a call's, for what only looks":                  {needCall, "tools/call", "service_info", "UNSPECIFIED CALL"},
		"a call's, for what takes none of the arguments": {needCall, "tools/call", "gpu_status", "UNSPECIFIED UNSPECIFIED"},
		"for what needs none":                            {needOpen, "resources/templates/list", "", "UNSPECIFIED"},
		"what there is not":                              {"grant", "tools/call", "gpu_status", "UNSPECIFIED"},
	} {
		t.Run(name, func(t *testing.T) {
			public, key := testKey(t)
			g := newGateway(t, public)
			var got []string
			g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
				got = append(got, strings.TrimPrefix(purpose.String(), "PURPOSE_"))
				writeJSON(w, m.ID, lacking(c.needed, g.ref()))
				return true
			}
			c1 := start(t, g, key, nil)
			c1.handshake()
			line := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"name":%q,"arguments":{"service_id":"demo"}}}`, c.method, c.tool)
			c1.send(line)
			if answer := c1.receive(); !strings.Contains(answer, "proof_needed") {
				t.Errorf("answer %s", answer)
			}
			g.mu.Lock()
			if joined := strings.Join(got, " "); joined != c.want {
				t.Errorf("signed %s, want %s", joined, c.want)
			}
			got = nil
			g.mu.Unlock()
			if c.needed == needRenew {
				// The one that was signed early counts for the requests after it, too.
				c1.send(line)
				c1.receive()
				g.mu.Lock()
				if joined := strings.Join(got, " "); joined != "UNSPECIFIED" {
					t.Errorf("then signed %s", joined)
				}
				g.mu.Unlock()
			}
			c1.close()
		})
	}
	t.Run("a session that is always lost", func(t *testing.T) {
		public, key := testKey(t)
		g := newGateway(t, public)
		c := start(t, g, key, nil)
		c.handshake()
		g.answers = func(w http.ResponseWriter, _ message, _ callv1.Proof_Purpose) bool {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status"}}`)
		if got := c.receive(); !strings.Contains(got, "the session has ended") {
			t.Errorf("answer %s", got)
		}
		c.close()
		if n := strings.Count(g.events(), "initialize PURPOSE_OPEN"); n != 2 {
			t.Errorf("%d handshakes, want 2:\n%s", n, g.events())
		}
	})
}

// One request that changes something is signed twice at most, whatever a gateway makes of it: each proof can become an
// operation that waits for an approval.
func TestCallProofsAreBounded(t *testing.T) {
	const lost, demand, opening = "lost", needCall, needOpen
	for name, c := range map[string]struct {
		answers []string
		want    string
	}{
		"good":                                {nil, "CALL"},
		"asked again and again":               {[]string{demand, demand, demand}, "CALL CALL"},
		"an opening between":                  {[]string{opening, demand, demand}, "CALL OPEN CALL"},
		"asked again, then lost":              {[]string{demand, lost, demand}, "CALL CALL"},
		"lost, then asked again":              {[]string{lost, demand, demand}, "CALL CALL"},
		"lost, an opening, asked again":       {[]string{lost, opening, demand, demand}, "CALL CALL OPEN"},
		"a success that asks for another":     {[]string{`{"_meta":{"durward/proof_needed":"call"}}`, demand}, "CALL"},
		"another refusal that asks for one":   {[]string{`{"isError":true,"structuredContent":{"error":{"code":"DENIED"}},"_meta":{"durward/proof_needed":"call"}}`, demand}, "CALL"},
		"a refusal without a code that does":  {[]string{`{"isError":true,"_meta":{"durward/proof_needed":"call"}}`, demand}, "CALL"},
		"a refusal that does not say by what": {[]string{`{"isError":true,"structuredContent":{"error":{"code":"PROOF_REQUIRED"}}}`, demand, demand}, "CALL OPEN CALL"},
	} {
		t.Run(name, func(t *testing.T) {
			public, key := testKey(t)
			g := newGateway(t, public)
			var got []string
			g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
				got = append(got, strings.TrimPrefix(purpose.String(), "PURPOSE_"))
				if len(c.answers) == 0 {
					return false
				}
				next := c.answers[0]
				c.answers = c.answers[1:]
				switch next {
				case lost:
					w.WriteHeader(http.StatusNotFound)
				case demand, opening:
					writeJSON(w, m.ID, lacking(next, g.ref()))
				default:
					writeJSON(w, m.ID, next)
				}
				return true
			}
			client := start(t, g, key, nil)
			client.handshake()
			client.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo"}}}`)
			client.receive()
			client.close()
			if joined := strings.Join(got, " "); joined != c.want {
				t.Errorf("signed %s, want %s", joined, c.want)
			}
		})
	}
}

// What is signed names the session that was opened, whatever a gateway says meanwhile. One that speaks of another and asks for a
// proof in it gets an opening, after which it can say which session that made.
func TestTheSessionIsPinned(t *testing.T) {
	elsewhere := `"_meta":{"durward/session":"s-elsewhere"}`
	list, change := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"stop_service","arguments":{"service_id":"demo"}}}`
	for name, told := range map[string]string{
		"a success":         `"result":{` + elsewhere + `}`,
		"a refused tool":    `"result":{"isError":true,"structuredContent":{"error":{"code":"DENIED"}},` + elsewhere + `}`,
		"an error":          `"error":{"code":-32000,"message":"no","data":{"code":"DENIED","durward/session":"s-elsewhere"}}`,
		"a demanded call":   `"error":{"code":-32000,"message":"no","data":{"code":"PROOF_REQUIRED","durward/proof_needed":"call","durward/session":"s-elsewhere"}}`,
		"a demanded re-new": `"error":{"code":-32000,"message":"no","data":{"code":"PROOF_REQUIRED","durward/proof_needed":"renew","durward/session":"s-elsewhere"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			public, key := testKey(t)
			g := newGateway(t, public)
			g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
				if m.Method != methodListTools || purpose == callv1.Proof_PURPOSE_OPEN {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,%s}`, m.ID, told)
				return true
			}
			c := start(t, g, key, nil)
			c.handshake()
			c.send(list)
			c.receive()
			c.send(change) // the fake verifies its proof for the session that it opened
			if got := c.receive(); !strings.Contains(got, `"ok":true`) {
				t.Errorf("answer %s", got)
			}
			c.close()
			events := g.events()
			if opened := strings.Contains(events, "tools/list 1 PURPOSE_OPEN"); opened != strings.Contains(name, "demanded") || strings.Contains(events, "RENEW") ||
				!strings.Contains(events, "tools/call 2 PURPOSE_CALL") {
				t.Errorf("events:\n%s", events)
			}
		})
	}
}

// A proof that the client made up goes nowhere, with a notification either.
func TestMadeUpProofsInNotifications(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	c := start(t, g, key, nil)
	c.handshake()
	for _, method := range []string{"notifications/initialized", "notifications/progress", "tools/call"} {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{"name":"start_service","arguments":{"service_id":"demo"},"_meta":{"durward/proof":{"counter":"1"}}}}`, method))
	}
	c.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	c.receive()
	c.close()
	events := g.events()
	for _, method := range []string{"notifications/progress", "tools/call"} {
		if !strings.Contains(events, method+"  PURPOSE_UNSPECIFIED") {
			t.Errorf("events:\n%s", events)
		}
	}
}

// While a renewal is due every read carries one, until one of them was answered well: several at once do not rely on each
// other.
func TestRenewalIsDueUntilItWasUsed(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	now := time.Unix(1_800_000_000, 0)
	fail := true
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		if fail {
			writeJSON(w, m.ID, `{"isError":true}`)
		}
		return fail
	}
	c := start(t, g, key, func() time.Time { g.mu.Lock(); defer g.mu.Unlock(); return now })
	c.handshake()
	g.mu.Lock()
	now = now.Add(2 * time.Minute)
	g.mu.Unlock()
	for id := range 4 {
		g.mu.Lock()
		fail = id < 2
		g.mu.Unlock()
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"gpu_status"}}`, id))
		c.receive()
	}
	c.close()
	want := "tools/call 0 PURPOSE_RENEW\ntools/call 1 PURPOSE_RENEW\ntools/call 2 PURPOSE_RENEW\ntools/call 3 PURPOSE_UNSPECIFIED"
	if got := g.events(); !strings.Contains(got, want) {
		t.Errorf("events:\n%s", got)
	}
}

// An opening from before the vault's start is proved again, once, in a later second.
func TestOpeningIsProvedAgain(t *testing.T) {
	for late, want := range map[int]string{1: `"result"`, 2: "PROOF_REQUIRED"} {
		public, key := testKey(t)
		g := newGateway(t, public)
		g.late = late
		c := start(t, g, key, nil)
		c.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
		if got := c.receive(); !strings.Contains(got, want) {
			t.Errorf("%d times late: %s", late, got)
		}
		c.close()
		if n := strings.Count(g.events(), "initialize PURPOSE_OPEN"); n != 2 {
			t.Errorf("%d times late: %d openings, want 2", late, n)
		}
	}
}

func TestLostSessionIsOpenedAgain(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	c := start(t, g, key, nil)
	c.handshake()
	g.mu.Lock()
	g.session += 10
	g.mu.Unlock()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status"}}`)
	if got := c.receive(); !strings.Contains(got, `"ok":true`) {
		t.Errorf("answer %s", got)
	}
	c.close()
	want := "404 tools/call\ninitialize PURPOSE_OPEN\nnotifications/initialized  PURPOSE_UNSPECIFIED\ntools/call 1 PURPOSE_UNSPECIFIED"
	if got := g.events(); !strings.Contains(got, want) {
		t.Errorf("events:\n%s", got)
	}
}

// TestLostSessionIsRefused: a client whose token was revoked meanwhile is told what the gateway says of it.
func TestLostSessionIsRefused(t *testing.T) {
	g := newGateway(t, nil)
	c := start(t, g, nil, nil)
	c.handshake()
	g.mu.Lock()
	g.session, g.late = g.session+10, 1
	g.mu.Unlock()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status"}}`)
	if got, want := c.receive(), `{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"sign","data":{"code":"PROOF_REQUIRED"}}}`; got != want {
		t.Errorf("answer %s", got)
	}
	c.close()
}

func TestStreamedAnswer(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, ": hello\nid: 1\ndata: \n\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"method\":\"notifications/progress\"}\n\ndata:{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", m.ID)
		return true
	}
	c := start(t, g, key, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if got, want := c.receive(), `{"jsonrpc":"2.0","method":"notifications/progress"}`; got != want {
		t.Errorf("got %s", got)
	}
	if got, want := c.receive(), `{"jsonrpc":"2.0","id":1,"result":{}}`; got != want {
		t.Errorf("got %s", got)
	}
	c.close()
}

// A client that shakes hands again has one session, the new one.
func TestAnotherHandshake(t *testing.T) {
	g := newGateway(t, nil)
	c := start(t, g, nil, nil)
	c.handshake()
	c.handshake()
	c.close()
	want := strings.Repeat("initialize PURPOSE_UNSPECIFIED\nnotifications/initialized  PURPOSE_UNSPECIFIED\nDELETE id-%d\n", 2)
	if got := g.events() + "\n"; got != fmt.Sprintf(want, 1, 2) {
		t.Errorf("events:\n%s", got)
	}
}

// What comes before the handshake is the gateway's to refuse, also where there is nothing yet that could be signed for.
func TestBeforeTheHandshake(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	c := start(t, g, key, nil)
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo"}}}`,
	} {
		c.send(line)
		c.receive()
	}
	c.close()
	if got, want := g.events(), "404 ping\n404 tools/list\n404 tools/call"; got != want {
		t.Errorf("events:\n%s", got)
	}
}

// A client that reads no more and waits for the bridge's end gets it, and its session ends.
func TestAClientThatDoesNotRead(t *testing.T) {
	g := newGateway(t, nil)
	answering := make(chan struct{}, 2)
	g.answers = func(http.ResponseWriter, message, callv1.Proof_Purpose) bool {
		answering <- struct{}{}
		return false
	}
	c := start(t, g, nil, nil)
	c.handshake()
	for id := range cap(answering) {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, id))
		<-answering
	}
	c.close()
	if !strings.HasSuffix(g.events(), "\nDELETE id-1") {
		t.Errorf("events:\n%s", g.events())
	}
}

// An answer is the client's whatever escapes its id came back with, and the client gets the id as it wrote it. A gateway that was
// not understood has been asked for the change all the same.
func TestIDsComeBackSpelledOtherwise(t *testing.T) {
	for id, back := range map[string]string{`"a\/b"`: `"a/b"`, `"a\u0026b"`: `"a&b"`, `"a&b"`: `"a\u0026b"`, `"\u0041"`: `"A"`} {
		public, key := testKey(t)
		g := newGateway(t, public)
		g.answers = func(w http.ResponseWriter, _ message, _ callv1.Proof_Purpose) bool {
			writeJSON(w, json.RawMessage(back), `{"ok":true}`)
			return true
		}
		c := start(t, g, key, nil)
		c.handshake()
		c.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo"}}}`)
		if got, want := c.receive(), `{"jsonrpc":"2.0","id":`+id+`,"result":{"ok":true}}`; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		c.close()
	}
}

// TestOnlyWhatWasAskedFor: a hostile gateway, or whoever speaks through it, has the client do nothing.
func TestOnlyWhatWasAskedFor(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	hostile := []string{
		`{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"messages":[]}}`,
		`{"jsonrpc":"2.0","id":"a","method":"elicitation/create","params":{"message":"your password?"}}`,
		`{"jsonrpc":"2.0","id":8,"method":"roots/list"}`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`,
		`{"jsonrpc":"2.0","method":"notifications/made/up"}`,
		`{"jsonrpc":"2.0","method":"sampling/createMessage","Method":"notifications/progress","ID":9}`,
		`{"jsonrpc":"2.0","id":99,"result":{"not":"asked for"}}`,
		`{"jsonrpc":"2.0","id":1}`,
		`[{"jsonrpc":"2.0","id":9,"method":"roots/list"}]`,
		`"text"`,
	}
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, data := range hostile {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
		}
		// What a reader of the first of two keys would take for a request, and one of the last for a notification or an answer.
		_, _ = fmt.Fprintf(w, "data: %s\n\n", `{"jsonrpc":"2.0","method":"sampling/createMessage","params":{},"method":"notifications/progress"}`)
		_, _ = fmt.Fprintf(w, `data: {"jsonrpc":"2.0","id":%s,"result":{"the":"answer"},"method":"roots/list","method":""}`+"\n\n", m.ID)
		_, _ = fmt.Fprintf(w, `data: {"jsonrpc":"2.0","id":%s,"result":{"once":"more"}}`+"\n\n", m.ID)
		return true
	}
	c := start(t, g, key, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	for _, want := range []string{`{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`, `{"jsonrpc":"2.0","id":1,"result":{"the":"answer"}}`} {
		if got := c.receive(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	c.close()
	if n := c.bridge.kept.Load(); n != int64(len(hostile))+1 {
		t.Errorf("%d messages were kept from the client, want %d", n, len(hostile)+1)
	}
}

// A broken connection is no reason to repeat what changes something.
func TestBrokenAnswer(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	broken := map[string]bool{}
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		if broken[string(m.ID)] {
			return false
		}
		broken[string(m.ID)] = true
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, ": and then nothing\n\n")
		return true
	}
	c := start(t, g, key, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status"}}`)
	if got := c.receive(); !strings.Contains(got, `"ok":true`) {
		t.Errorf("a read was not repeated: %s", got)
	}
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo"}}}`)
	if got := c.receive(); !strings.Contains(got, `"error"`) {
		t.Errorf("answer %s", got)
	}
	c.close()
	if n := strings.Count(g.events(), "tools/call 2"); n != 1 {
		t.Errorf("a change was sent %d times", n)
	}
}

func TestRefusedBeforeTheIDWasRead(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	g.answers = func(w http.ResponseWriter, _ message, _ callv1.Proof_Purpose) bool {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"No."}}`)
		return true
	}
	c := start(t, g, key, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":7,"method":"ping"}`)
	if got, want := c.receive(), `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"No."}}`; got != want {
		t.Errorf("got %s", got)
	}
	c.close()
}

// What is written anew says what the client said, with the proof; what cannot be is left alone.
func FuzzSetMeta(f *testing.F) {
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"progressToken":1e2}}}`)
	f.Add(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","name":"y"}}`)
	f.Add(`{"method":"x","params":[]}`)
	f.Add(`{"method":"x","params":{"_meta":null}}`)
	f.Add(`{"method":"x","pArAms":[]}`)
	f.Add(`{}`)
	f.Fuzz(func(t *testing.T, line string) {
		out, err := setMeta([]byte(line), map[string]json.RawMessage{metaProof: json.RawMessage(`{"counter":"1"}`), metaInstance: nil})
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if string(out) == line {
			return
		}
		var members [2]map[string]json.RawMessage
		for i, raw := range [][]byte{[]byte(line), out} {
			whole, isObject := object(raw)
			params, hasParams := object(whole["params"])
			if members[i] = params; !isObject || !hasParams || canonical.Strict(raw) != nil {
				t.Fatalf("%q became %q", line, out)
			}
		}
		meta, _ := object(members[1]["_meta"])
		if string(meta[metaProof]) != `{"counter":"1"}` {
			t.Fatalf("%q became %q, without the proof", line, out)
		}
		delete(members[0], "_meta")
		delete(members[1], "_meta")
		if len(members[0]) != len(members[1]) {
			t.Fatalf("%q became %q", line, out)
		}
	})
}
