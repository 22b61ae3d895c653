package mcpserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// What is refused before anybody decides: each with a JSON-RPC error, a plain sentence, a request id, and a record.
func TestRefusedAtTheFront(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	mine := e.connect(t, tokenAgent)
	theirs := e.connect(t, tokenOther)
	list := `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	deep := strings.Repeat(`[`, 60) + strings.Repeat(`]`, 60)
	refused := map[string]int{}
	header := func(k, v string) map[string]string { return map[string]string{k: v} }
	for _, c := range []struct {
		name   string
		send   request
		status int
		rpc    int
		code   string
		id     string
	}{
		{"no token", request{body: list, session: mine, token: "-"}, 401, -32000, "UNAUTHENTICATED", "null"},
		{"no token at the door", request{body: initialize, token: "-"}, 401, -32000, "UNAUTHENTICATED", "null"},
		{"wrong token at the door", request{body: initialize, token: "wrong"}, 401, -32000, "UNAUTHENTICATED", "1"},
		{"token in the query", request{body: initialize, token: "-", query: "?access_token=" + tokenAgent}, 401, -32000, "UNAUTHENTICATED", "null"},
		{"basic authentication", request{body: initialize, token: "-", header: header("Authorization", "Basic YTpi")}, 401, -32000, "UNAUTHENTICATED", "null"},
		{"token with a space", request{body: initialize, token: "-", header: header("Authorization", "Bearer a b")}, 401, -32000, "UNAUTHENTICATED", "null"},
		{"token of 513 characters", request{body: initialize, token: strings.Repeat("a", 513)}, 401, -32000, "UNAUTHENTICATED", "null"},
		{"wrong token in a session", request{body: list, session: mine, token: "wrong"}, 404, -32000, "NOT_FOUND", "null"},
		{"another principal's session", request{body: list, session: theirs}, 404, -32000, "NOT_FOUND", "null"},
		{"made-up session", request{body: list, session: "AAAA"}, 404, -32000, "NOT_FOUND", "null"},
		{"no session", request{body: list}, 400, -32600, "UNAUTHENTICATED", "2"},
		{"delete another's session", request{method: http.MethodDelete, session: theirs}, 404, -32000, "NOT_FOUND", "null"},
		{"evil host", request{body: list, session: mine, host: "evil.example"}, 403, -32000, "DENIED", "null"},
		{"evil host with a loopback port", request{body: list, session: mine, host: "127.0.0.1.evil.example:7430"}, 403, -32000, "DENIED", "null"},
		{"evil origin", request{body: list, session: mine, header: header("Origin", "https://evil.example")}, 403, -32000, "DENIED", "null"},
		{"null origin", request{body: list, session: mine, header: header("Origin", "null")}, 403, -32000, "DENIED", "null"},
		{"origin on another port", request{body: list, session: mine, header: header("Origin", "http://127.0.0.1:1")}, 403, -32000, "DENIED", "null"},
		{"cross-site without origin", request{body: list, session: mine, header: header("Sec-Fetch-Site", "cross-site")}, 403, -32000, "DENIED", "null"},
		{"another path", request{body: list, session: mine, query: "/../admin"}, 404, -32000, "NOT_FOUND", "null"},
		{"PUT", request{method: http.MethodPut, body: list, session: mine}, 405, -32000, "INVALID_ARGUMENT", "null"},
		{"form", request{body: list, session: mine, header: header("Content-Type", "application/x-www-form-urlencoded")}, 415, -32000, "INVALID_ARGUMENT", "null"},
		{"compressed", request{body: list, session: mine, header: header("Content-Encoding", "gzip")}, 415, -32000, "INVALID_ARGUMENT", "null"},
		{"JSON alone accepted", request{body: list, session: mine, header: header("Accept", "application/json")}, 406, -32000, "INVALID_ARGUMENT", "null"},
		{"empty", request{session: mine}, 400, -32700, "INVALID_ARGUMENT", "null"},
		{"2 MB", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"ping","params":{"x":"` + strings.Repeat("a", 2<<20) + `"}}`}, 413, -32600, "TOO_LARGE", "null"},
		{"deep", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"ping","params":{"x":` + deep + `}}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"bad UTF-8", request{session: mine, body: "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"ping\",\"params\":{\"x\":\"\xff\"}}"}, 400, -32700, "INVALID_ARGUMENT", "null"},
		{"lone surrogate", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"ping","params":{"x":"\ud800"}}`}, 400, -32700, "INVALID_ARGUMENT", "null"},
		{"not JSON", request{session: mine, body: `hello`}, 400, -32700, "INVALID_ARGUMENT", "null"},
		{"trailing data", request{session: mine, body: list + `{}`}, 400, -32700, "INVALID_ARGUMENT", "null"},
		{"duplicate key", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gpu_status","name":"start_service"}}`}, 400, -32700, "INVALID_ARGUMENT", "null"},
		{"duplicate key behind an escape", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gpu_status","n\u0061me":"start_service"}}`}, 400, -32700, "INVALID_ARGUMENT", "null"},
		{"duplicate key in the arguments", request{session: mine, body: toolCall(2, "start_service", `{"service_id":"a","service_id":"b"}`)}, 400, -32700, "INVALID_ARGUMENT", "null"},
		{"batch", request{session: mine, body: `[` + list + `]`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"batch without a version", request{session: mine, body: `[` + list + `]`, header: header("Mcp-Protocol-Version", "")}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"unknown member", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"ping","extra":1}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"other case", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"Method":"ping"}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"null id", request{session: mine, body: `{"jsonrpc":"2.0","id":null,"method":"ping"}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"fractional id", request{session: mine, body: `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"long id", request{session: mine, body: `{"jsonrpc":"2.0","id":"` + strings.Repeat("a", 65) + `","method":"ping"}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"request without id", request{session: mine, body: `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"gpu_status"}}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"an answer", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"result":{}}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"GET without a session", request{method: http.MethodGet}, 405, -32000, "INVALID_ARGUMENT", "null"},
		{"GET of a later revision", request{method: http.MethodGet, header: header("Mcp-Protocol-Version", "2026-07-28")}, 405, -32000, "INVALID_ARGUMENT", "null"},
		{"GET of a made-up session", request{method: http.MethodGet, session: "AAAA"}, 404, -32000, "NOT_FOUND", "null"},
		{"GET of another's session", request{method: http.MethodGet, session: theirs}, 404, -32000, "NOT_FOUND", "null"},
		{"GET with a wrong token", request{method: http.MethodGet, session: mine, token: "wrong"}, 404, -32000, "NOT_FOUND", "null"},
		{"GET of JSON", request{method: http.MethodGet, session: mine, header: header("Accept", "application/json")}, 406, -32000, "INVALID_ARGUMENT", "null"},
		{"DELETE without a session", request{method: http.MethodDelete}, 405, -32000, "INVALID_ARGUMENT", "null"},
		{"a long text", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gpu_status","arguments":{"x":"` + strings.Repeat("a", 200_001) + `"}}}`}, 400, -32600, "INVALID_ARGUMENT", "null"},
		{"a key that looks like another", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gpu_status","_Meta":{}}}`}, 200, -32602, "INVALID_ARGUMENT", "2"},
		{"unknown method", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"roots/list","params":{"name":"etc/passwd"}}`}, 200, -32601, "NOT_FOUND", "2"},
		{"params of a wrong type", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":[]}`}, 200, -32602, "INVALID_ARGUMENT", "2"},
		{"name of a wrong type", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":3}}`}, 200, -32602, "INVALID_ARGUMENT", "2"},
		{"unknown param", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gpu_status","inputResponses":{}}}`}, 200, -32602, "INVALID_ARGUMENT", "2"},
		{"a cursor", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"cursor":"AAAA"}}`}, 200, -32602, "INVALID_ARGUMENT", "2"},
		{"malformed proof", request{session: mine, body: `{"jsonrpc":"2.0","id":2,"method":"ping","params":{"_meta":{"durward/proof":{"x":1}}}}`}, 200, -32602, "INVALID_ARGUMENT", "2"},
		{"a second initialize", request{session: mine, body: initialize}, 200, -32600, "INVALID_ARGUMENT", "1"},
		{"old revision", request{session: mine, body: list, header: header("Mcp-Protocol-Version", "2024-11-05")}, 400, -32022, "INVALID_ARGUMENT", "2"},
		{"a later revision in a session's header", request{session: mine, body: list, header: header("Mcp-Protocol-Version", "2026-07-28")}, 400, -32022, "INVALID_ARGUMENT", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := e.send(t, c.send)
			m := r.message
			if r.status != c.status || m.Error == nil || m.Error.Code != c.rpc || m.Error.Data.Code != c.code || string(m.ID) != c.id {
				t.Fatalf("%d %s, want %d, code %d, %s, id %s", r.status, r.raw, c.status, c.rpc, c.code, c.id)
			}
			if m.Error.Data.RequestID == "" || m.Error.Data.RequestID != r.header.Get("Durward-Request-Id") {
				t.Errorf("request id %q", m.Error.Data.RequestID)
			}
			if (c.status == 401) != (r.header.Get("WWW-Authenticate") != "") {
				t.Errorf("WWW-Authenticate %q with status %d", r.header.Get("WWW-Authenticate"), r.status)
			}
			for _, leak := range []string{"etc/passwd", "evil", "goroutine", ".go", "*mcp", "unmarshal", tokenAgent, "wrong\""} {
				if strings.Contains(strings.ReplaceAll(r.raw, m.Error.Data.RequestID, ""), leak) { // which is random, and spells anything in time
					t.Errorf("the answer says %q: %s", leak, r.raw)
				}
			}
		})
		refused[c.code]++
	}
	if diff := cmp.Diff(refused, e.recorded(t)); diff != "" {
		t.Errorf("refusals by code (-want +recorded):\n%s", diff)
	}
	if e.executor.reads != 0 || e.executor.count() != 0 || len(e.vault.asked) != 0 {
		t.Errorf("%d reads, %d effects, %d decisions", e.executor.reads, e.executor.count(), len(e.vault.asked))
	}
}

func TestAllowedHostsAndOrigins(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	s := e.connect(t, tokenAgent)
	ping := `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	for name, r := range map[string]request{
		"loopback name":     {host: "localhost:7430"},
		"IPv6 loopback":     {host: "[::1]:7430"},
		"configured host":   {host: "gateway.example"},
		"own origin":        {host: "localhost:7430", header: map[string]string{"Origin": "http://localhost:7430"}},
		"configured origin": {header: map[string]string{"Origin": "https://console.example", "Sec-Fetch-Site": "cross-site"}},
	} {
		r.body, r.session = ping, s
		if got := e.send(t, r); got.status != 200 || got.message.Error != nil {
			t.Errorf("%s: %d %s", name, got.status, got.raw)
		}
	}
}

func TestASessionEndsWithDelete(t *testing.T) {
	e := newEdge(t, edgeOptions{})
	s := e.connect(t, tokenAgent)
	if r := e.send(t, request{method: http.MethodDelete, session: s}); r.status != http.StatusNoContent {
		t.Fatalf("DELETE: %d %s", r.status, r.raw)
	}
	if r := e.send(t, request{session: s, body: `{"jsonrpc":"2.0","id":2,"method":"ping"}`}); r.status != http.StatusNotFound {
		t.Errorf("afterwards: %d %s", r.status, r.raw)
	}
	e.closedAtTheVault(t, 1)
}

func TestAPrincipalsOldestSessionMakesRoom(t *testing.T) {
	e := newEdge(t, edgeOptions{sessions: 2})
	first, second := e.connect(t, tokenAgent), e.connect(t, tokenAgent)
	other := e.connect(t, tokenOther)
	third := e.connect(t, tokenAgent)
	for session, want := range map[string]int{first: 404, second: 200, third: 200} {
		if r := e.send(t, request{session: session, body: `{"jsonrpc":"2.0","id":2,"method":"ping"}`}); r.status != want {
			t.Errorf("status %d, want %d", r.status, want)
		}
	}
	if r := e.send(t, request{session: other, token: tokenOther, body: `{"jsonrpc":"2.0","id":2,"method":"ping"}`}); r.status != 200 {
		t.Errorf("another principal's session: %d", r.status)
	}
	e.closedAtTheVault(t, 1)
}

// A session that is busy makes no room: the principal's next handshake is refused, and works again when the call has ended.
func TestBusySessionsMakeNoRoom(t *testing.T) {
	t.Parallel()
	e := newEdge(t, edgeOptions{sessions: 1, hold: longestHold})
	only := e.connect(t, tokenAgent)
	called := make(chan reply, 1)
	go func() {
		called <- e.send(t, request{session: only, body: toolCall(1, "start_service", `{"service_id":"demo-chat"}`)})
	}()
	id := e.vault.pending(t)
	if r := e.send(t, request{body: initialize}); r.message.Error == nil || r.message.Error.Data.Code != "RATE_LIMITED" {
		t.Errorf("a second session: %d %s", r.status, r.raw)
	}
	e.closedAtTheVault(t, 1)
	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_DENIED, "no")
	if a := decodeAnswer(t, <-called); a.Status != "denied" {
		t.Errorf("the busy session's call: %+v", a)
	}
	e.connect(t, tokenAgent)
}

// Of two requests of one session with one id at once the second is refused, in the words of every answer: its answer could be
// taken for the first's. How the id is written does not matter, and afterwards it may be used again.
func TestAnIDInFlightIsRefused(t *testing.T) {
	t.Parallel()
	e := newEdge(t, edgeOptions{hold: longestHold})
	mine, other := e.connect(t, tokenAgent), e.connect(t, tokenAgent)
	first := make(chan reply, 1)
	go func() {
		first <- e.send(t, request{session: mine, body: toolCall(0, "start_service", `{"service_id":"demo-chat"}`)})
	}()
	id := e.vault.pending(t)

	for _, again := range []string{`"id":0`, `"id":-0`} {
		body := strings.Replace(toolCall(0, "gpu_status", `{}`), `"id":0`, again, 1)
		if a := decodeAnswer(t, e.send(t, request{session: mine, body: body})); a.Error == nil || a.Error.Code != "INVALID_ARGUMENT" || a.Error.Retryable {
			t.Errorf("%s: %+v", again, a)
		}
	}
	list := `{"jsonrpc":"2.0","id":0,"method":"tools/list"}`
	if r := e.send(t, request{session: mine, body: list}); r.status != http.StatusOK || r.message.Error == nil || r.message.Error.Code != -32600 {
		t.Errorf("tools/list: %d %s", r.status, r.raw)
	}
	if diff := cmp.Diff(map[string]int{"INVALID_ARGUMENT": 3}, e.recorded(t)); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	// Another id, another session, and the same id as a text are other requests.
	for _, r := range []request{{session: other, body: list}, {session: mine, body: strings.Replace(list, `"id":0`, `"id":"0"`, 1)}} {
		if got := e.send(t, r); got.message.Error != nil {
			t.Errorf("%s: %s", r.body, got.raw)
		}
	}

	e.vault.set(id, vaultv1.OperationState_OPERATION_STATE_DENIED, "no")
	if a := decodeAnswer(t, <-first); a.Status != "denied" {
		t.Errorf("the first: %+v", a)
	}
	if r := e.send(t, request{session: mine, body: list}); r.message.Error != nil {
		t.Errorf("afterwards: %s", r.raw)
	}
}
