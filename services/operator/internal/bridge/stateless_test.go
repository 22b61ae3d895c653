package bridge

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/proof"
)

// serveStateless checks that the headers say what the body says. The first request opens the session at the vault, whose name
// only the answers of tools tell.
func (g *gateway) serveStateless(w http.ResponseWriter, r *http.Request, m message) {
	var params struct {
		Name   string                     `json:"name"`
		URI    string                     `json:"uri"`
		TaskID string                     `json:"taskId"`
		Meta   map[string]json.RawMessage `json:"_meta"`
	}
	if err := json.Unmarshal(m.Params, &params); err != nil {
		g.t.Error(err)
	}
	if r.Header.Get("Mcp-Session-Id") != "" {
		g.t.Errorf("%s came in a session", m.Method)
	}
	if v := r.Header.Get("Mcp-Protocol-Version"); r.Header.Get("Mcp-Method") != m.Method || string(params.Meta["io.modelcontextprotocol/protocolVersion"]) != `"`+v+`"` {
		g.t.Errorf("%s: headers %v", m.Method, r.Header)
	}
	if got, want := r.Header.Get("Mcp-Name"), params.Name+params.URI+params.TaskID; got != want && !strings.HasPrefix(got, "=?base64?") {
		g.t.Errorf("%s: Mcp-Name %q, want %q", m.Method, got, want)
	}
	var instance string
	if json.Unmarshal(params.Meta[metaInstance], &instance) != nil || !regexp.MustCompile("^[0-9a-f]{32}$").MatchString(instance) {
		g.t.Errorf("%s: instance %s", m.Method, params.Meta[metaInstance])
	}
	if g.instances == nil {
		g.instances = map[string]bool{}
	}
	g.instances[instance] = true
	if g.window == nil {
		g.window = &proof.Window{}
	}
	purpose := g.verify(m)
	g.log("%s %s %s", m.Method, m.ID, purpose)
	if m.Method == "subscriptions/listen" {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\"}\n\n")
		w.(http.Flusher).Flush()
		go func(id string) { <-r.Context().Done(); g.hung <- id }(string(m.ID))
		g.mu.Unlock()
		<-r.Context().Done()
		g.mu.Lock()
		return
	}
	if g.answers != nil && g.answers(w, m, purpose) {
		return
	}
	writeJSON(w, m.ID, `{"ok":true}`)
}

func modern(id int, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","durward/instance":"mine"}}}`, id, method, params)
}

// A client of the stateless era that signs: its first request opens, and what changes something is signed once the session's
// name is known.
func TestStatelessProofs(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
		if m.Method == methodCall && strings.Contains(string(m.Params), "start_service") && purpose != callv1.Proof_PURPOSE_CALL {
			writeJSON(w, m.ID, lacking(needCall, g.ref()))
			return true
		}
		return false
	}
	now := time.Unix(1_800_000_000, 0)
	c := start(t, g, key, func() time.Time { g.mu.Lock(); defer g.mu.Unlock(); return now })
	for _, line := range []string{
		modern(1, "server/discover", ""),
		modern(2, methodCall, `"name":"start_service","arguments":{"service_id":"demo"},`),
		modern(3, "resources/read", `"uri":"durward://gpu",`),
		modern(4, methodCall, `"name":"stop_service","arguments":{"service_id":"demo"},`),
		modern(5, "tasks/get", `"taskId":"00000000000000000000000000000000",`),
		modern(6, "resources/read", `"uri":"durward://caf\u00e9",`),
	} {
		c.send(line)
		if got := c.receive(); !strings.Contains(got, `"ok":true`) {
			t.Errorf("%s: %s", line, got)
		}
	}
	g.mu.Lock()
	now = now.Add(50 * time.Second)
	g.mu.Unlock()
	for _, line := range []string{modern(7, "tasks/get", `"taskId":"00000000000000000000000000000000",`), modern(8, "resources/templates/list", "")} {
		c.send(line)
		c.receive()
	}
	c.close()
	want := `server/discover 1 PURPOSE_OPEN
tools/call 2 PURPOSE_OPEN
tools/call 2 PURPOSE_CALL
resources/read 3 PURPOSE_UNSPECIFIED
tools/call 4 PURPOSE_CALL
tasks/get 5 PURPOSE_UNSPECIFIED
resources/read 6 PURPOSE_UNSPECIFIED
tasks/get 7 PURPOSE_RENEW
resources/templates/list 8 PURPOSE_UNSPECIFIED`
	if got := g.events(); got != want {
		t.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
	if len(g.instances) != 1 || g.instances["mine"] {
		t.Errorf("instances %v, want one of the bridge's own", g.instances)
	}
}

// A gateway that has no session for the client says so in an error, before there is a result to say it in: it wants another
// proof than one from before the vault's start, and knows nobody who does not prove that.
func TestStatelessOpeningIsProvedAgain(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	refusals := []string{"PROOF_REQUIRED", "", "", "UNAUTHENTICATED", "", "UNAUTHENTICATED", "UNAUTHENTICATED"}
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		code := refusals[0]
		if refusals = refusals[1:]; code == "" {
			writeJSON(w, m.ID, fmt.Sprintf(`{"ok":true,"_meta":{"durward/session":%q}}`, g.ref()))
			return true
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"no","data":{"code":%q}}}`, m.ID, code)
		return true
	}
	now := time.Unix(1_800_000_000, 0)
	c := start(t, g, key, func() time.Time { g.mu.Lock(); defer g.mu.Unlock(); return now })
	for _, want := range []string{`"ok":true`, `"ok":true`, `"ok":true`, "UNAUTHENTICATED"} {
		c.send(modern(1, "tools/list", ""))
		if got := c.receive(); !strings.Contains(got, want) {
			t.Errorf("answer %s, want %s", got, want)
		}
	}
	c.close()
	want := `tools/list 1 PURPOSE_OPEN
tools/list 1 PURPOSE_OPEN
tools/list 1 PURPOSE_UNSPECIFIED
tools/list 1 PURPOSE_UNSPECIFIED
tools/list 1 PURPOSE_OPEN
tools/list 1 PURPOSE_UNSPECIFIED
tools/list 1 PURPOSE_OPEN`
	if got := g.events(); got != want {
		t.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
}

// A client that was silent for long opens again: the gateway has ended its session.
func TestStatelessSilence(t *testing.T) {
	_, key := testKey(t)
	now := time.Unix(1_800_000_000, 0)
	p := newProver("tester", key, func() time.Time { return now }, newInstance())
	list := func() bool {
		t.Helper()
		got, err := p.request([]byte(modern(1, "tools/list", "")), message{Method: "tools/list"}, "")
		if err != nil {
			t.Fatal(err)
		}
		p.answer([]byte(`{"result":{"_meta":{"durward/session":"s-1"}}}`), got)
		return got.opening
	}
	for _, step := range []struct {
		after   time.Duration
		opening bool
	}{{0, true}, {9 * time.Minute, false}, {9 * time.Minute, false}, {11 * time.Minute, true}, {0, false}} {
		now = now.Add(step.after)
		if got := list(); got != step.opening {
			t.Errorf("after %v: opening %t", step.after, got)
		}
	}
}

// One process serves messages of both eras by what each says, and a bearer's stateless requests are told apart by process too.
func TestBothErasInOneProcess(t *testing.T) {
	g := newGateway(t, nil)
	c := start(t, g, nil, nil)
	c.send(modern(1, "server/discover", ""))
	c.receive()
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	c.receive()
	c.send(modern(3, methodCall, `"name":"gpu_status",`))
	c.receive()
	c.close()
	want := `server/discover 1 PURPOSE_UNSPECIFIED
initialize PURPOSE_UNSPECIFIED
notifications/initialized  PURPOSE_UNSPECIFIED
tools/list 2 PURPOSE_UNSPECIFIED
tools/call 3 PURPOSE_UNSPECIFIED
DELETE id-1`
	if got := g.events(); got != want {
		t.Errorf("events:\n%s\nwant:\n%s", got, want)
	}
	if len(g.instances) != 1 {
		t.Errorf("instances %v", g.instances)
	}
}

// Over standard input a client cancels with a notification, over HTTP by hanging up.
func TestStatelessCancellation(t *testing.T) {
	g := newGateway(t, nil)
	g.hung = make(chan string, 1)
	c := start(t, g, nil, nil)
	c.send(modern(9, "subscriptions/listen", `"notifications":{},`))
	if got := c.receive(); !strings.Contains(got, "acknowledged") {
		t.Errorf("got %s", got)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":8}}`) // names nothing
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`)
	if id := <-g.hung; id != "9" {
		t.Errorf("the request %s was cancelled", id)
	}
	c.send(modern(10, "tools/list", ""))
	if got := c.receive(); !strings.Contains(got, `"id":10`) {
		t.Errorf("after a cancellation: %s", got)
	}
	c.close()
	if strings.Contains(g.events(), noteCancelled) {
		t.Errorf("the notification went to the gateway:\n%s", g.events())
	}
}

// A cancellation is heard while a session is being opened, whatever looks at the permits behind subscriptions meanwhile.
func TestCancellationDuringAnOpening(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	g.hung = make(chan string, 1)
	c := start(t, g, key, nil)
	c.send(modern(9, "subscriptions/listen", `"notifications":{},`))
	if got := c.receive(); !strings.Contains(got, "acknowledged") {
		t.Errorf("got %s", got)
	}
	c.bridge.mu.Lock() // as an opening holds it that the gateway does not answer
	c.looks <- time.Time{}
	c.send("{") // once it is answered, the look is under way
	c.receive()
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`)
	select {
	case <-g.hung:
	case <-time.After(10 * time.Second):
		t.Error("the cancellation waits for the opening")
	}
	c.bridge.mu.Unlock()
	c.close()
}

// A message that is not strict goes out as it came, for the gateway to refuse it: written anew it would be another one.
func TestNotStrictIsNotRewritten(t *testing.T) {
	_, key := testKey(t)
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"start_service","name":"gpu_status"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a\xff"}}`,
	} {
		p := newProver("tester", key, time.Now, newInstance())
		var m message
		_ = json.Unmarshal([]byte(line), &m) // as far as it goes
		if got, err := p.request([]byte(line), m, ""); err != nil || string(got.body) != line {
			t.Errorf("%q became %q, %v", line, got.body, err)
		}
	}
}

func TestHeaderValue(t *testing.T) {
	for in, want := range map[string]string{
		"durward://gpu":   "durward://gpu",
		"a b":             "a b",
		" a":              "=?base64?IGE=?=",
		"caf\u00e9":       "=?base64?Y2Fmw6k=?=",
		"a\r\nX: y":       "=?base64?YQ0KWDogeQ==?=",
		"=?base64?YQ==?=": "=?base64?PT9iYXNlNjQ/WVE9PT89?=",
	} {
		if got := headerValue(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// Whatever a message says, its headers are ones that HTTP carries, and say the same.
func FuzzStatelessHeaders(f *testing.F) {
	f.Add("tools/call", "start_service", "2026-07-28")
	f.Add("resources/read", "durward://caf\u00e9\r\nX: y", "2026-07-28\n")
	f.Add("tasks/get", "=?base64?YQ==?=", " ")
	f.Fuzz(func(t *testing.T, method, name, protocol string) {
		params, err := json.Marshal(map[string]any{
			"name": name, "uri": name, "taskId": name, "_meta": map[string]any{"io.modelcontextprotocol/protocolVersion": protocol},
		})
		if err != nil {
			t.Fatal(err)
		}
		headers := message{Method: method, Params: params}.statelessHeaders()
		if (headers == nil) != (protocol == "") {
			t.Fatalf("revision %q: headers %v", protocol, headers)
		}
		for header, values := range headers {
			if len(values) != 1 || strings.ContainsFunc(values[0], func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("%s: %q", header, values)
			}
		}
		if got, sent := headers.Get("Mcp-Name"), string([]rune(name)); got != "" && got != headerValue(sent) {
			t.Errorf("Mcp-Name %q for %q", got, sent)
		}
	})
}
