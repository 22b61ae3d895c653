package httpfront

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/gateway/internal/connlimit"
	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/metrics"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/credential"
	"durward.internal/services/platform/telemetry"
)

// A panic is logged with its stack, and answered without it; half an answer is cut off.
func TestPanicsAreSeen(t *testing.T) {
	e := newEdge(t, limit.Config{RequestsPerPrincipal: 1})
	session := e.connect("good-ada")
	a := e.post("good-ada", session, call("panic"))
	id := a.Header().Get("Durward-Request-Id")
	if a.Code != http.StatusInternalServerError || !strings.Contains(a.Body.String(), `"code":"INTERNAL"`) || !strings.Contains(a.Body.String(), `"request_id":"`+id+`"`) {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	if body := a.Body.String(); strings.Contains(body, "secret") || strings.Contains(body, "goroutine") {
		t.Errorf("the answer says %s", body)
	}
	for _, want := range []string{`"level":"ERROR"`, `"msg":"panic"`, `"panic":"the secret of a handler"`, `"stack":"goroutine `} {
		if !strings.Contains(e.log.String(), want) {
			t.Errorf("the log lacks %s: %s", want, e.log)
		}
	}
	for tool, logged := range map[string]bool{"half": true, "abort": false} {
		e.log.Reset()
		func() {
			defer func() {
				p := recover()
				if err, _ := p.(error); !errors.Is(err, http.ErrAbortHandler) {
					t.Errorf("%s: net/http hears %v", tool, p)
				}
			}()
			e.post("good-ada", session, call(tool))
		}()
		if strings.Contains(e.log.String(), `"msg":"panic"`) != logged {
			t.Errorf("%s: the log says %s", tool, e.log)
		}
	}
	// None of them took room with it.
	if a := e.post("good-ada", session, call("gpu_status")); a.Code != http.StatusOK {
		t.Errorf("afterwards: %d %s", a.Code, a.Body)
	}
}

// A client is its own from the moment that the vault accepts it, in the very request that shows its token first: strangers do
// not push it out, and the request counts as one of its own.
func TestAcceptedInItsFirstRequest(t *testing.T) {
	e := newEdge(t, limit.Config{RequestsPerPrincipal: 1, RefusalDelayMS: 1})
	conns, idle := connlimit.New(e.front.admission.Config()), make(chan struct{}, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := &http.Server{
		ReadHeaderTimeout: time.Minute, ConnContext: conns.Context, Handler: e.front,
		ConnState: func(_ net.Conn, now http.ConnState) {
			if now == http.StateIdle {
				idle <- struct{}{}
			}
		},
	}
	go func() { _ = server.Serve(conns.Listen(l)) }()
	t.Cleanup(func() { _ = server.Close() })

	c, err := net.Dial("tcp", l.Addr().String())
	must(t, err)
	defer c.Close()
	body := modern("tools/call", `"name":"hold","arguments":{}`)
	if _, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer good-ada\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: %s\r\nMcp-Method: tools/call\r\nMcp-Name: hold\r\nContent-Length: %d\r\n\r\n%s",
		modernEra, len(body), body); err != nil {
		t.Fatal(err)
	}
	select {
	case <-e.arrived:
	case <-time.After(30 * time.Second):
		t.Fatal("the request does not arrive")
	}
	if all, strangers, idle := conns.Count(); all != 1 || strangers != 0 || idle != 0 {
		t.Errorf("%d connections, %d of strangers, %d idle", all, strangers, idle)
	}
	if a := e.post("good-ada", "", hello); a.Code != http.StatusTooManyRequests {
		t.Errorf("one more request: %d %s", a.Code, a.Body)
	}
	close(e.release)
	if response, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("%v %+v", err, response)
	}
	<-idle
	if all, strangers, idle := conns.Count(); all != 1 || strangers != 0 || idle != 1 {
		t.Errorf("afterwards %d connections, %d of strangers, %d idle", all, strangers, idle)
	}
	if a := e.post("good-ada", "", hello); a.Code != http.StatusOK {
		t.Errorf("afterwards: %d %s", a.Code, a.Body)
	}
}

// A refusal that is held back takes its place among its client's requests until it is answered.
func TestRefusalsTakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{RequestsPerPrincipal: 1, Rates: limit.Rates{Reads: limit.Rate{PerS: 1, Burst: 1}}})
		session := e.connect("good-ada")
		e.post("good-ada", session, call("gpu_status"))
		var held sync.WaitGroup
		held.Go(func() {
			if a := e.post("good-ada", session, call("gpu_status")); !strings.Contains(a.Body.String(), "RATE_LIMITED") || !slow(a) {
				t.Errorf("the second read: %d %s", a.Code, a.Body)
			}
		})
		synctest.Wait()
		if a := e.post("good-ada", session, call("start_service")); a.Code != http.StatusTooManyRequests {
			t.Errorf("beside it: %d %s", a.Code, a.Body)
		}
		held.Wait()
		if a := e.post("good-ada", session, call("start_service")); a.Code != http.StatusOK {
			t.Errorf("afterwards: %d %s", a.Code, a.Body)
		}
	})
}

// What strangers and clients are refused for is counted for each by itself.
func TestRefusalsAreOfTheirPrincipal(t *testing.T) {
	e := newEdge(t, limit.Config{RefusalDelayMS: 1})
	e.connect("good-ada")
	e.connect("good-grace")
	for range 300 {
		e.post("", "", hello)
	}
	for range 3 {
		e.post("good-ada", "", "nonsense")
	}
	e.post("good-grace", "", "nonsense")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e.refused.Run(ctx, time.Second)
	got := map[string]int{}
	for _, line := range e.records.reasons() {
		got[line]++
	}
	want := map[string]int{
		"CODE_UNAUTHENTICATED: no token ": 1, "CODE_UNAUTHENTICATED: no token  +299": 1,
		"CODE_INVALID_ARGUMENT: frame ada": 1, "CODE_INVALID_ARGUMENT: frame ada +2": 1, "CODE_INVALID_ARGUMENT: frame grace": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// A session that opens while the front closes is closed at the vault too, by whoever opened it.
func TestSessionsThatOpenWhileItCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{})
		e.connect("good-ada")
		e.vault.took = time.Second
		var late sync.WaitGroup
		for range 3 {
			late.Go(func() { e.post("good-grace", "", hello) })
			late.Go(func() { e.stateless("good-grace", "tools/list", "", "") })
		}
		synctest.Wait()
		e.front.Close(t.Context())
		if n := e.vault.closed.Load(); n != 1 {
			t.Errorf("%d sessions are closed when Close returns, want one", n)
		}
		late.Wait()
		if opened, closed := e.vault.opened.Load(), e.vault.closed.Load(); opened < 3 || opened != closed {
			t.Errorf("%d sessions were opened and %d closed", opened, closed)
		}
	})
}

// Nobody who is turned away leaves a span that could push out another's, whatever was asked for.
func TestWhoIsTurnedAwayIsNotTraced(t *testing.T) {
	ratio := 1.0
	seen, err := telemetry.Open(telemetry.Config{Service: "gateway", Settings: config.Telemetry{SampleRatio: &ratio}, Lifetime: func() (from, until time.Time) { return time.Now(), time.Now() }, Methods: Methods()})
	must(t, err)
	defer seen.Close()
	e := newEdge(t, limit.Config{RefusalDelayMS: 1, Rates: limit.Rates{Tools: limit.Rate{PerS: 0.1, Burst: 1}}})
	e.front.conf.Metrics = metrics.New(seen, Methods())
	for range 5 {
		e.stateless("bad", "tools/call", "start_service", `"name":"start_service"`)
		e.stateless("good-ada", "tools/call", "start_service", `"name":"start_service"`)
	}
	r := httptest.NewRequest(http.MethodGet, "http://localhost/traces", nil)
	w := httptest.NewRecorder()
	seen.Handler(nil).ServeHTTP(w, r)
	var shown telemetry.Traces
	if err := json.Unmarshal(w.Body.Bytes(), &shown); err != nil || len(shown.Spans) != 1 || shown.Spans[0].Attributes["durward.status"] != "ok" || e.served.Load() != 1 {
		t.Errorf("%d were served: %v %s", e.served.Load(), err, w.Body)
	}
}

// A session that the vault accepts no more is found by nobody, and its token is a stranger's, at once; the SDK's side of it
// ends when the request that learned so is answered.
func TestForgottenSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{})
		session := e.connect("good-ada")
		token := sha256.Sum256([]byte("good-ada"))
		found := e.front.table.acquire(key{Stateful, session}, token)
		answered, ended := make(chan struct{}), false
		found.end = func() { ended = true }
		call := &Call{Gone: answered, entry: found, front: e.front}
		call.Forget()
		call.Forget()
		synctest.Wait()
		if _, known := e.front.admission.known.Principal(token); known || e.front.Sessions() != 0 || ended {
			t.Errorf("known is %t, %d sessions, ended is %t", known, e.front.Sessions(), ended)
		}
		close(answered)
		synctest.Wait()
		if n := e.vault.closed.Load(); !ended || n != 1 {
			t.Errorf("ended is %t, and the vault heard of it %d times", ended, n)
		}
	})
}

// A token one of whose sessions ended is its client's again with the next request of another.
func TestOneSessionsEndLeavesTheOthers(t *testing.T) {
	e := newEdge(t, limit.Config{RefusalDelayMS: 1})
	ended, other := e.connect("good-ada"), e.connect("good-ada")
	token := sha256.Sum256([]byte("good-ada"))
	answered := make(chan struct{})
	close(answered)
	found := e.front.table.acquire(key{Stateful, ended}, token)
	found.end = func() {}
	(&Call{Gone: answered, entry: found, front: e.front}).Forget()
	for _, known := range []bool{false, true} {
		if principal, is := e.front.admission.known.Principal(token); is != known || known && principal != "ada" {
			t.Errorf("the token is %q's, known: %t, want %t", principal, is, known)
		}
		if a := e.post("good-ada", other, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); a.Code != http.StatusOK {
			t.Errorf("in the other session: %d %s", a.Code, a.Body)
		}
	}
}

// A front lacks none of its parts, and no bound of its sessions is nothing.
func TestWhatAFrontIsMadeOf(t *testing.T) {
	whole := newEdge(t, limit.Config{}).front.conf
	for name, spoil := range map[string]func(*Config){
		"no sessions":            func(c *Config) { c.Sessions = nil },
		"no handler for one era": func(c *Config) { c.Stateless = nil },
		"no refusals":            func(c *Config) { c.Refusals = nil },
		"no logger":              func(c *Config) { c.Logger = nil },
		"no session":             func(c *Config) { c.SessionsPerPrincipal = 0 },
		"no time":                func(c *Config) { c.SessionIdle = 0 },
	} {
		conf := whole
		spoil(&conf)
		if f, err := New(conf); err == nil {
			f.Close(t.Context())
			t.Errorf("%s: made", name)
		}
	}
}

// What has no session, or another era's headers, neither ends nor opens a stream.
func TestStreamsAndEndsAreOfASession(t *testing.T) {
	e := newEdge(t, limit.Config{RefusalDelayMS: 1})
	session := e.connect("good-ada")
	for name, c := range map[string]struct {
		method, session, revision string
		status                    int
	}{
		"an end of none":            {http.MethodDelete, "", "2025-11-25", http.StatusMethodNotAllowed},
		"a stream of none":          {http.MethodGet, "", "2025-11-25", http.StatusMethodNotAllowed},
		"a stream of the other era": {http.MethodGet, session, modernEra, http.StatusBadRequest},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		r := httptest.NewRequest(c.method, "http://127.0.0.1/mcp", nil).WithContext(ctx)
		r.Header.Set("Accept", "text/event-stream")
		r.Header.Set("Authorization", "Bearer good-ada")
		r.Header.Set("Mcp-Protocol-Version", c.revision)
		if c.session != "" {
			r.Header.Set(headerSession, c.session)
		}
		if a := e.do(r); a.Code != c.status {
			t.Errorf("%s: %d %s", name, a.Code, a.Body)
		}
		cancel()
	}
}

// Of two requests of a session with one id at once the second is refused; once the first is answered the id is free.
func TestAnIDIsUsedOnceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{})
		session := e.connect("good-ada")
		var held sync.WaitGroup
		held.Go(func() { e.post("good-ada", session, numbered(1, "hold")) })
		synctest.Wait()
		if a := e.post("good-ada", session, numbered(1, "gpu_status")); !strings.Contains(a.Body.String(), "id is under way") {
			t.Errorf("the same id: %s", a.Body)
		}
		close(e.release)
		held.Wait()
		if a := e.post("good-ada", session, numbered(1, "gpu_status")); strings.Contains(a.Body.String(), "under way") {
			t.Errorf("afterwards: %s", a.Body)
		}
	})
}

// A connection that is not there any more serves nobody: not a client that is known, nor one that its first request shows.
func TestAConnectionThatIsGoneServesNobody(t *testing.T) {
	e := newEdge(t, limit.Config{RefusalDelayMS: 1})
	conns := connlimit.New(e.front.admission.Config())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	counted := conns.Listen(l)
	defer counted.Close()
	gone := func() context.Context {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		must(t, err)
		defer c.Close()
		accepted, err := counted.Accept()
		must(t, err)
		ctx := conns.Context(t.Context(), accepted)
		_ = accepted.Close()
		return ctx
	}
	session := e.connect("good-ada") // from here on ada is known
	forgotten := e.connect("good-eve")
	e.front.admission.known.Forget(credential.Digest("good-eve"))
	for name, c := range map[string]struct{ token, session, body string }{
		"a client that was forgotten":      {"good-eve", forgotten, call("gpu_status")},
		"a known client":                   {"good-ada", session, call("gpu_status")},
		"a client's first request, hello":  {"good-grace", "", hello},
		"a client's first, without a past": {"good-bob", "", ""},
	} {
		served := e.served.Load()
		r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(c.body))
		if c.body == "" {
			body := modern("tools/call", `"name":"gpu_status","arguments":{}`)
			r = httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(body))
			r.Header.Set("Mcp-Protocol-Version", modernEra)
			r.Header.Set("Mcp-Method", "tools/call")
			r.Header.Set("Mcp-Name", "gpu_status")
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		r.Header.Set("Authorization", "Bearer "+c.token)
		if c.session != "" {
			r.Header.Set(headerSession, c.session)
		}
		if a := e.do(r.WithContext(gone())); e.served.Load() != served || !strings.Contains(a.Body.String(), "RATE_LIMITED") {
			t.Errorf("%s: %d %s", name, a.Code, a.Body)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/mcp", nil)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Authorization", "Bearer good-eve")
	r.Header.Set(headerSession, forgotten)
	e.front.admission.known.Forget(credential.Digest("good-eve"))
	served := e.served.Load()
	if a := e.do(r.WithContext(gone())); e.served.Load() != served || a.Code != http.StatusTooManyRequests {
		t.Errorf("a stream: %d %s", a.Code, a.Body)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
