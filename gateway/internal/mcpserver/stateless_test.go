package mcpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// modernMeta is what every request of the stateless era says of its client.
const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`

// modernRequest is a request of the stateless era: members are those of params, but _meta; meta is more of that.
func modernRequest(method, name, members, meta string) request {
	if members != "" {
		members += ","
	}
	if meta != "" {
		meta = "," + meta
	}
	header := map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method}
	if name != "" {
		header["Mcp-Name"] = name
	}
	return request{header: header, body: `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + members + `"_meta":{` + modernMeta + meta + `}}}`}
}

func modernCall(name, arguments, meta string) request {
	return modernRequest("tools/call", name, `"name":"`+name+`","arguments":`+arguments, meta)
}

// askModern sends a request of the stateless era with a token and checks what holds for every answer with a result.
func (e *edge) askModern(t testing.TB, token string, r request) reply {
	t.Helper()
	r.token = token
	out := e.send(t, r)
	if out.message.Error == nil {
		var result struct {
			ResultType string `json:"resultType"`
		}
		must(t, json.Unmarshal(out.message.Result, &result))
		if result.ResultType != "complete" || out.status != http.StatusOK {
			t.Errorf("%d, resultType %q: %s", out.status, result.ResultType, out.raw)
		}
	}
	if id := out.header.Get("Mcp-Session-Id"); id != "" {
		t.Errorf("the stateless era has a session: %s", id)
	}
	return out
}

func TestStatelessDiscover(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	r := e.askModern(t, tokenAgent, modernRequest("server/discover", "", "", ""))
	var d struct {
		Meta         map[string]any `json:"_meta"`
		Versions     []string       `json:"supportedVersions"`
		Capabilities map[string]any `json:"capabilities"`
		Instructions string         `json:"instructions"`
		TTL          int            `json:"ttlMs"`
		Scope        string         `json:"cacheScope"`
	}
	must(t, json.Unmarshal(r.message.Result, &d))
	if strings.Join(d.Versions, " ") != "2026-07-28 2025-11-25 2025-06-18" {
		t.Errorf("versions %v", d.Versions)
	}
	if len(d.Instructions) == 0 || len([]rune(d.Instructions)) > 1500 || d.TTL < 60_000 || d.Scope != "private" {
		t.Errorf("%d characters of instructions, kept %d ms, %s", len([]rune(d.Instructions)), d.TTL, d.Scope)
	}
	if d.Capabilities["tools"] == nil || d.Capabilities["logging"] != nil || d.Capabilities["prompts"] == nil || d.Capabilities["elicitation"] != nil || strings.Count(string(r.message.Result), `"listChanged":true`) != 3 {
		t.Errorf("capabilities %v", d.Capabilities)
	}
	if d.Meta["durward/session"] != "s-agent" || d.Meta["durward/client"] != "agent" || d.Meta["durward/request_id"] != r.header.Get("Durward-Request-Id") {
		t.Errorf("meta %v", d.Meta)
	}
	list := e.askModern(t, tokenAgent, modernRequest("tools/list", "", "", ""))
	var l struct {
		Tools []json.RawMessage `json:"tools"`
		TTL   int               `json:"ttlMs"`
		Scope string            `json:"cacheScope"`
	}
	must(t, json.Unmarshal(list.message.Result, &l))
	if len(l.Tools) != len(contract.Tools())-2 || l.TTL < 60_000 || l.Scope != "private" || len(list.message.Result) > 16_000 {
		t.Errorf("%d tools in %d bytes, kept %d ms, %s", len(l.Tools), len(list.message.Result), l.TTL, l.Scope)
	}
}

// One vault session per principal, opened once, shared by requests that come together, told apart by instance, and nobody
// else's whatever they claim.
func TestStatelessSessions(t *testing.T) {
	e := newEdge(t, edgeOptions{sessions: 4})
	status := func(token, meta string) string {
		t.Helper()
		return decodeAnswer(t, e.askModern(t, token, modernCall("gpu_status", `{}`, meta))).Status
	}
	opened := func(want int) {
		t.Helper()
		e.vault.mu.Lock()
		defer e.vault.mu.Unlock()
		if e.vault.opened != want {
			t.Errorf("%d sessions were opened, want %d", e.vault.opened, want)
		}
	}
	var together sync.WaitGroup
	for range 6 {
		together.Go(func() {
			if got := status(tokenAgent, ""); got != "ok" {
				t.Errorf("status %s", got)
			}
		})
	}
	together.Wait()
	opened(1)
	const one, two = `"durward/instance":"00000000000000000000000000000001"`, `"durward/instance":"00000000000000000000000000000002"`
	status(tokenAgent, one)
	opened(2)
	status(tokenAgent, one)
	opened(2)
	// The other principal names the same instance, and a session id that is not its own.
	status(tokenOther, one)
	opened(3)
	legacy := e.connect(t, tokenAgent)
	opened(4)
	r := modernCall("gpu_status", `{}`, one)
	r.session = legacy
	if got := decodeAnswer(t, e.askModern(t, tokenOther, withHeader(r))); got.Status != "ok" {
		t.Errorf("a session id of somebody else: %s", got.tool.Structured)
	}
	opened(4)
	// A pending operation of one is nobody else's.
	asked := decodeAnswer(t, e.askModern(t, tokenAgent, modernCall("start_service", `{"service_id":"demo-chat"}`, one)))
	if asked.Status != "pending_approval" {
		t.Fatalf("%s", asked.tool.Structured)
	}
	wait := modernCall("wait_operation", `{"operation_id":"`+asked.OperationID+`"}`, one)
	if got := decodeAnswer(t, e.askModern(t, tokenOther, wait)); got.Error == nil || got.Error.Code != "NOT_FOUND" {
		t.Errorf("another principal waits: %s", got.tool.Structured)
	}
	// The cap: the session that has been idle longest makes room.
	status(tokenAgent, two)
	status(tokenAgent, `"durward/instance":"00000000000000000000000000000003"`)
	opened(6)
	e.closedAtTheVault(t, 1)
}

// Every answer of the stateless era says what kind it is, and a list or a resource for how long it keeps, and for whom.
func TestStatelessAnswersSayTheirKind(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	for name, r := range map[string]request{
		"tools/list":               modernRequest("tools/list", "", "", ""),
		"resources/list":           modernRequest("resources/list", "", "", ""),
		"resources/templates/list": modernRequest("resources/templates/list", "", "", ""),
		"resources/read":           modernRequest("resources/read", "durward://help", `"uri":"durward://help"`, ""),
		"server/discover":          modernRequest("server/discover", "", "", ""),
	} {
		out := e.askModern(t, tokenAgent, r)
		var kept struct {
			TTL   int    `json:"ttlMs"`
			Scope string `json:"cacheScope"`
		}
		if out.message.Error != nil {
			t.Errorf("%s: %s", name, out.raw)
			continue
		}
		must(t, json.Unmarshal(out.message.Result, &kept))
		if kept.TTL <= 0 || kept.Scope != "private" {
			t.Errorf("%s is kept %d ms, %s", name, kept.TTL, kept.Scope)
		}
	}
	for name, r := range map[string]request{
		"an answer of a tool":     modernCall("gpu_status", `{}`, ""),
		"arguments that are none": modernCall("service_info", `{"service_id":"--force"}`, ""),
		"an unknown tool":         modernCall("drop_tables", `{}`, ""),
		"a completion": modernRequest("completion/complete", "",
			`"ref":{"type":"ref/resource","uri":"durward://services/{service_id}{?format}"},"argument":{"name":"service_id","value":"d"}`, ""),
	} {
		if out := e.askModern(t, tokenAgent, r); out.message.Error != nil {
			t.Errorf("%s: %s", name, out.raw)
		}
	}
}

// What the protocol says about headers and bodies that disagree, seen over HTTP. Nothing of it reaches the SDK, the vault or a
// sink, and each is recorded.
func TestStatelessProbes(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	call := func(change func(r *request)) request {
		r := modernCall("gpu_status", `{}`, "")
		change(&r)
		return r
	}
	header := func(name, value string) func(r *request) { return func(r *request) { r.header[name] = value } }
	body := func(from, to string) func(r *request) {
		return func(r *request) { r.body = strings.Replace(r.body, from, to, 1) }
	}
	refused := map[string]int{}
	later := call(body("2026-07-28", "2099-01-01"))
	later.header["Mcp-Protocol-Version"] = "2099-01-01"
	for name, c := range map[string]struct {
		r           request
		status, rpc int
		id          string
	}{
		"meta without header":        {call(header("Mcp-Protocol-Version", "")), 400, -32020, "7"},
		"header without meta":        {call(body(modernMeta, "")), 400, -32602, "7"},
		"header of another era":      {call(header("Mcp-Protocol-Version", "2025-11-25")), 400, -32020, "7"},
		"a later revision":           {later, 400, -32022, "7"},
		"no Mcp-Method":              {call(header("Mcp-Method", "")), 400, -32020, "7"},
		"another Mcp-Method":         {call(header("Mcp-Method", "tools/list")), 400, -32020, "7"},
		"no Mcp-Name":                {call(header("Mcp-Name", "")), 400, -32020, "7"},
		"another Mcp-Name":           {call(header("Mcp-Name", "start_service")), 400, -32020, "7"},
		"unknown method":             {modernRequest("tools/describe", "", "", ""), 404, -32601, "7"},
		"a method of the older era":  {modernRequest("ping", "", "", ""), 404, -32601, "7"},
		"a batch":                    {call(func(r *request) { r.body = "[" + r.body + "]" }), 400, -32600, "null"},
		"bad arguments of the SDK's": {modernRequest("subscriptions/listen", "", `"notifications":[]`, ""), 400, -32602, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			out := e.send(t, c.r)
			if out.status != c.status || out.message.Error == nil || out.message.Error.Code != c.rpc || string(out.message.ID) != c.id {
				t.Fatalf("%d %s, want %d %d, id %s", out.status, out.raw, c.status, c.rpc, c.id)
			}
			if c.rpc == -32022 && strings.Join(out.message.Error.Data.Supported, " ") != "2026-07-28 2025-11-25 2025-06-18" {
				t.Errorf("supported %v", out.message.Error.Data.Supported)
			}
		})
		if c.rpc != -32022 { // clients of a later revision ask so before they fall back
			refused[map[bool]string{true: "NOT_FOUND", false: "INVALID_ARGUMENT"}[c.rpc == -32601]]++
		}
	}
	if diff := cmp.Diff(refused, e.recorded(t)); diff != "" {
		t.Errorf("refusals by code (-want +recorded):\n%s", diff)
	}
	if e.vault.opened != 0 || e.executor.reads != 0 {
		t.Errorf("%d sessions, %d reads", e.vault.opened, e.executor.reads)
	}
}

// withHeader puts the session id among the headers without the older era's revision beside it.
func withHeader(r request) request {
	r.header["Mcp-Session-Id"] = r.session
	r.session = ""
	return r
}

func TestStatelessSessionsEndWhenIdle(t *testing.T) {
	e := newEdge(t, edgeOptions{idle: 100 * time.Millisecond})
	for opened := 1; opened <= 2; opened++ {
		if a := decodeAnswer(t, e.askModern(t, tokenAgent, modernCall("gpu_status", `{}`, ""))); a.Status != "ok" || e.vault.opened != opened {
			t.Fatalf("%d sessions, %s", e.vault.opened, a.tool.Structured)
		}
		e.closedAtTheVault(t, opened)
	}
}

// A vault that restarted knows the session no more; a token that was revoked opens no other.
func TestStatelessSessionsOfAVaultThatForgot(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	call := func() answer {
		t.Helper()
		return decodeAnswer(t, e.askModern(t, tokenAgent, modernCall("start_service", `{"service_id":"demo-chat"}`, "")))
	}
	call()
	e.vault.mu.Lock()
	clear(e.vault.sessions)
	e.vault.mu.Unlock()
	if a := call(); a.Status != "pending_approval" || e.vault.opened != 2 {
		t.Errorf("%d sessions, %s", e.vault.opened, a.tool.Structured)
	}
	// The client was renamed: its session is nobody's now, and the next one is the new name's.
	e.vault.mu.Lock()
	clear(e.vault.sessions)
	e.vault.principals[tokenAgent] = "renamed"
	e.vault.mu.Unlock()
	if a := call(); a.Error == nil || a.Error.Code != "UNAUTHENTICATED" {
		t.Errorf("renamed: %s", a.tool.Structured)
	}
	e.vault.mu.Lock()
	if len(e.vault.sessions) != 0 {
		t.Errorf("%d sessions are nobody's", len(e.vault.sessions))
	}
	e.vault.mu.Unlock()
	if a := call(); a.Status != "pending_approval" {
		t.Errorf("renamed, again: %s", a.tool.Structured)
	}
	e.vault.mu.Lock()
	clear(e.vault.sessions)
	delete(e.vault.principals, tokenAgent)
	e.vault.mu.Unlock()
	if a := call(); a.Error == nil || a.Error.Code != "UNAUTHENTICATED" || !strings.Contains(a.Summary, "Ask the operator for a new one") {
		t.Errorf("removed: %s", a.tool.Structured)
	}
	if out := e.askModern(t, tokenAgent, modernCall("gpu_status", `{}`, "")); out.status != http.StatusUnauthorized {
		t.Errorf("removed, again: %d %s", out.status, out.raw)
	}
}

// A token that was revoked is nobody's any more: its sessions of the older era are gone with it, and it opens no other.
func TestSessionsOfARevokedToken(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	session := e.connect(t, tokenAgent)
	ping := request{session: session, body: `{"jsonrpc":"2.0","id":2,"method":"ping"}`}
	e.vault.mu.Lock()
	was := e.vault.principals[tokenAgent]
	clear(e.vault.sessions)
	delete(e.vault.principals, tokenAgent)
	e.vault.mu.Unlock()
	if a := e.call(t, session, "start_service", `{"service_id":"demo-chat"}`); a.Error == nil || a.Error.Code != "UNAUTHENTICATED" || !strings.Contains(a.Summary, "Ask the operator for a new one") {
		t.Errorf("revoked: %s", a.tool.Structured)
	}
	if out := e.send(t, ping); out.status != http.StatusNotFound {
		t.Errorf("its session: %d %s", out.status, out.raw)
	}
	if out := e.send(t, request{body: initialize}); out.status != http.StatusUnauthorized {
		t.Errorf("another: %d %s", out.status, out.raw)
	}
	e.vault.mu.Lock()
	e.vault.principals[tokenAgent] = was
	e.vault.mu.Unlock()
	if out := e.send(t, request{session: e.connect(t, tokenAgent), body: ping.body}); out.status != http.StatusOK {
		t.Errorf("let in again: %d %s", out.status, out.raw)
	}
}

// What the front says before a session is open: HTTP has the word about credentials, a called tool answers in its envelope.
func TestStatelessRefusals(t *testing.T) {
	t.Run("wrong token", func(t *testing.T) {
		e := newEdge(t, edgeOptions{})
		for _, r := range []request{modernCall("gpu_status", `{}`, ""), modernRequest("server/discover", "", "", "")} {
			out := e.askModern(t, "wrong", r)
			if out.status != http.StatusUnauthorized || out.header.Get("WWW-Authenticate") == "" || out.message.Error.Data.Code != "UNAUTHENTICATED" || string(out.message.ID) != "7" {
				t.Errorf("%d %s", out.status, out.raw)
			}
		}
	})
	t.Run("no vault", func(t *testing.T) {
		e := newEdge(t, edgeOptions{vaultDown: true})
		began := time.Now()
		a := decodeAnswer(t, e.askModern(t, tokenAgent, modernCall("gpu_status", `{}`, "")))
		if a.Error == nil || a.Error.Code != "UNAVAILABLE" || !a.Error.Retryable || !strings.Contains(a.Summary, "vault cannot be reached") {
			t.Errorf("%s", a.tool.Structured)
		}
		if out := e.askModern(t, tokenAgent, modernRequest("tools/list", "", "", "")); out.message.Error == nil || out.message.Error.Data.Code != "UNAVAILABLE" {
			t.Errorf("%d %s", out.status, out.raw)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("it took %v", took)
		}
	})
	t.Run("no proof", func(t *testing.T) {
		e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
		proof := func(purpose string) string {
			return `"durward/proof":{"purpose":"` + purpose + `","counter":"1","time":"1","signature":"` + strings.Repeat("A", 86) + `=="}`
		}
		a := decodeAnswer(t, e.askModern(t, tokenSigner, modernCall("gpu_status", `{}`, "")))
		if a.Error == nil || a.Error.Code != "PROOF_REQUIRED" || a.tool.Meta["durward/proof_needed"] != "open" {
			t.Errorf("%s %v", a.tool.Structured, a.tool.Meta)
		}
		if out := e.askModern(t, tokenSigner, modernRequest("server/discover", "", "", "")); out.message.Error == nil || out.message.Error.Data.Code != "PROOF_REQUIRED" {
			t.Errorf("%d %s", out.status, out.raw)
		}
		if out := e.askModern(t, tokenSigner, modernRequest("server/discover", "", "", proof("PURPOSE_OPEN"))); out.message.Error != nil || e.vault.opened != 1 {
			t.Errorf("%d sessions, %s", e.vault.opened, out.raw)
		}
		a = decodeAnswer(t, e.askModern(t, tokenSigner, modernCall("start_service", `{"service_id":"demo-chat"}`, "")))
		if a.Error == nil || a.tool.Meta["durward/proof_needed"] != "call" || a.tool.Meta["durward/session"] != "s-signer" {
			t.Errorf("%s %v", a.tool.Structured, a.tool.Meta)
		}
		if a = decodeAnswer(t, e.askModern(t, tokenSigner, modernCall("start_service", `{"service_id":"demo-chat"}`, proof("PURPOSE_CALL")))); a.Status != "pending_approval" {
			t.Errorf("%s", a.tool.Structured)
		}
	})
	t.Run("unknown tool", func(t *testing.T) {
		e := newEdge(t, edgeOptions{})
		if a := decodeAnswer(t, e.askModern(t, tokenAgent, modernCall("drop_tables", `{}`, ""))); a.Status != "denied" || a.Reason != "not_available" {
			t.Errorf("%s", a.tool.Structured)
		}
	})
	t.Run("notification", func(t *testing.T) {
		e := newEdge(t, edgeOptions{})
		r := request{header: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "notifications/cancelled"},
			body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`}
		if out := e.send(t, r); out.status != http.StatusAccepted || out.raw != "" || e.vault.opened != 0 {
			t.Errorf("%d %s", out.status, out.raw)
		}
	})
}

// In the stateless era the request is the call: whoever closes it has left.
func TestStatelessClientThatLeaves(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: longestHold})
	ctx, cut := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = e.try(ctx, modernCall("start_service", `{"service_id":"demo-chat"}`, "")) // it is cut off
	}()
	id := e.vault.pending(t)
	cut()
	<-ended
	e.vault.deserted(t)
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_APPROVED, "")
	if e.executor.count() != 0 {
		t.Error("nobody waited, and it ran")
	}
	// A read is cancelled at the sink.
	e.executor.mu.Lock()
	e.executor.slow = make(chan struct{})
	e.executor.mu.Unlock()
	defer close(e.executor.slow)
	ctx, cut = context.WithCancel(context.Background())
	// It is cut before it is answered.
	go func() { _, _ = e.try(ctx, modernCall("gpu_status", `{}`, "")) }()
	e.executor.readOf(t)
	cut()
	e.executor.cancels(t)
}

func TestStatelessProgress(t *testing.T) {
	t.Parallel() // it waits
	e := newEdge(t, edgeOptions{hold: time.Second, telling: 100 * time.Millisecond})
	r := e.askModern(t, tokenAgent, modernCall("start_service", `{"service_id":"demo-chat"}`, `"progressToken":"p1"`))
	if !strings.Contains(r.raw, `"method":"notifications/progress"`) || !strings.Contains(r.raw, `"progressToken":"p1"`) {
		t.Errorf("no progress in %s", r.raw)
	}
	if a := decodeAnswer(t, r); a.Status != "pending_approval" {
		t.Errorf("answer %s", a.tool.Structured)
	}
}

// Input that a client makes up approves nothing, in either era.
func TestInputThatNobodyAskedFor(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	responses := `"name":"start_service","arguments":{"service_id":"demo-chat"},"inputResponses":{"approve":{"action":"accept","content":{"approved":true}}}`
	if a := decodeAnswer(t, e.askModern(t, tokenAgent, modernRequest("tools/call", "start_service", responses, ""))); a.Status != "pending_approval" {
		t.Errorf("responses: %s", a.tool.Structured)
	}
	r := e.askModern(t, tokenAgent, modernRequest("tools/call", "start_service", responses+`,"requestState":"approved"`, ""))
	if r.status != http.StatusBadRequest || r.message.Error.Code != -32602 {
		t.Errorf("a state: %d %s", r.status, r.raw)
	}
	s := e.connect(t, tokenAgent)
	r = e.send(t, request{session: s, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{` + responses + `}}`})
	if r.message.Error == nil || r.message.Error.Code != -32602 {
		t.Errorf("in the older era: %d %s", r.status, r.raw)
	}
	if e.executor.count() != 0 {
		t.Errorf("%d effects", e.executor.count())
	}
}

// The official client, in the era that it prefers by itself.
func TestGoClientSpeaksTheStatelessEra(t *testing.T) {
	e := newEdge(t, edgeOptions{hold: 100 * time.Millisecond})
	session := e.client(t, "")
	if v := session.InitializeResult().ProtocolVersion; v != "2026-07-28" || session.ID() != "" {
		t.Errorf("it speaks %s, in session %q", v, session.ID())
	}
	if _, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: "gpu_status"}); err != nil {
		t.Error(err)
	}
	if e.vault.opened != 1 {
		t.Errorf("%d sessions at the vault", e.vault.opened)
	}
}

// The one standalone stream of a session: it opens for whoever opened the session, once, keeps nothing alive and ends with it.
func TestStandaloneStream(t *testing.T) {
	open := func(e *edge, session string) *http.Response {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, e.url, nil)
		must(t, err)
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Authorization", "Bearer "+tokenAgent)
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	ends := func(resp *http.Response) {
		t.Helper()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			}
		}()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("the stream goes on")
		}
	}
	t.Run("with the session", func(t *testing.T) {
		e := newEdge(t, edgeOptions{})
		s := e.connect(t, tokenAgent)
		stream := open(e, s)
		if stream.StatusCode != http.StatusOK || !strings.HasPrefix(stream.Header.Get("Content-Type"), "text/event-stream") {
			t.Fatalf("%d %v", stream.StatusCode, stream.Header)
		}
		if second := open(e, s); second.StatusCode != http.StatusConflict {
			t.Errorf("a second stream: %d", second.StatusCode)
		}
		if a := e.call(t, s, "gpu_status", `{}`); a.Status != "ok" {
			t.Errorf("a call beside it: %s", a.tool.Structured)
		}
		if r := e.send(t, request{method: http.MethodDelete, session: s}); r.status != http.StatusNoContent {
			t.Fatalf("DELETE: %d", r.status)
		}
		ends(stream)
	})
	t.Run("with idleness", func(t *testing.T) {
		e := newEdge(t, edgeOptions{idle: 200 * time.Millisecond})
		ends(open(e, e.connect(t, tokenAgent)))
		e.closedAtTheVault(t, 1)
	})
	t.Run("with its client", func(t *testing.T) {
		e := newEdge(t, edgeOptions{})
		s := e.connect(t, tokenAgent)
		must(t, open(e, s).Body.Close())
		poll(t, "a second stream after the first was closed", func() bool { return open(e, s).StatusCode == http.StatusOK })
	})
	t.Run("with the process", func(t *testing.T) {
		e := newEdge(t, edgeOptions{})
		stream := open(e, e.connect(t, tokenAgent))
		e.front.EndStreams()
		ends(stream)
	})
}

// Whoever names two sessions names none, also where both are their own.
func TestTwoSessionsInOneRequest(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	ids := []string{e.connect(t, tokenAgent), e.connect(t, tokenAgent)}
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		req, err := http.NewRequest(method, e.url, strings.NewReader(`{"jsonrpc":"2.0","id":2,"method":"ping"}`))
		must(t, err)
		req.Header = http.Header{"Mcp-Session-Id": ids, "Authorization": {"Bearer " + tokenAgent}, "Content-Type": {"application/json"},
			"Accept": {"application/json, text/event-stream"}}
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		must(t, resp.Body.Close())
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", method, resp.StatusCode)
		}
	}
}

func TestTooManyStatelessSessionsAtTheVault(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	e.vault.mu.Lock()
	e.vault.full = true
	e.vault.mu.Unlock()
	a := decodeAnswer(t, e.askModern(t, tokenAgent, modernCall("gpu_status", `{}`, "")))
	if a.Error == nil || a.Error.Code != fault.CodeName(callv1.Code_CODE_RATE_LIMITED) || !a.Error.Retryable {
		t.Errorf("%s", a.tool.Structured)
	}
}
