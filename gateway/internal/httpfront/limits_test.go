package httpfront

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

// vault accepts tokens that begin with "good-"; the rest names the principal. It takes a while.
type vault struct {
	took        time.Duration
	asked, most atomic.Int32
	inside      atomic.Int32
	revoked     atomic.Bool
	opened      atomic.Int32
	closed      atomic.Int32
	// judge may refuse an opening for what else it says; nil: nothing.
	judge func(*vaultv1.OpenSessionRequest) error
	// idle is after how many seconds without use it ends sessions, as it says.
	idle uint32
}

// Invoke implements grpc.ClientConnInterface.
func (v *vault) Invoke(_ context.Context, method string, in, out any, _ ...grpc.CallOption) error {
	if _, ends := in.(*vaultv1.CloseSessionRequest); ends {
		v.closed.Add(1)
	}
	request, ok := in.(*vaultv1.OpenSessionRequest)
	if !ok {
		return nil
	}
	v.asked.Add(1)
	if n := v.inside.Add(1); n > v.most.Load() {
		v.most.Store(n)
	}
	defer v.inside.Add(-1)
	time.Sleep(v.took) // in a bubble of synctest, which takes no time
	principal, good := strings.CutPrefix(request.GetCredential(), "good-")
	if !good || v.revoked.Load() {
		return fault.New(callv1.Code_CODE_UNAUTHENTICATED, fault.NotAllowed)
	}
	if v.judge != nil {
		if err := v.judge(request); err != nil {
			return err
		}
	}
	response, ok := out.(*vaultv1.OpenSessionResponse)
	if !ok {
		return errors.New("unexpected response of " + method)
	}
	v.opened.Add(1)
	response.SessionId, response.Session, response.Principal = "h-"+principal, "s-"+principal, principal
	response.IdleTimeoutS = v.idle
	return nil
}

// NewStream implements grpc.ClientConnInterface.
func (*vault) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams here")
}

// spool keeps the records of refusals.
type spool struct {
	mu   sync.Mutex
	list []*auditv1.Record
}

// Spool implements refusal.Spooler.
func (s *spool) Spool(_ context.Context, r *auditv1.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, r)
	return nil
}

func (s *spool) reasons() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, r := range s.list {
		line := r.GetBody().GetReason() + " " + r.GetBody().GetPrincipal()
		if n := r.GetBody().GetDetails()["count"]; n != "" {
			line += " +" + n
		}
		out = append(out, line)
	}
	return out
}

// edge is a front with fakes around it. Both eras answer 200 at once, or when release is closed for tools named "hold"; they
// panic for those named "panic", "half" in the middle of an answer and "abort" as handlers do that give up.
type edge struct {
	t       *testing.T
	front   *Front
	vault   *vault
	records *spool
	log     *bytes.Buffer
	refused *refusal.Recorder
	served  atomic.Int32
	arrived chan struct{} // has a value when something was served
	release chan struct{}
}

func newEdge(t *testing.T, conf limit.Config) *edge {
	t.Helper()
	e := &edge{t: t, vault: new(vault), records: new(spool), log: new(bytes.Buffer), release: make(chan struct{}), arrived: make(chan struct{}, 1)}
	logger := slog.New(slog.NewJSONHandler(e.log, nil))
	var err error
	if e.refused, err = refusal.New(e.records, logger); err != nil {
		t.Fatal(err)
	}
	peers, err := relay.New(relay.Config{Vault: e.vault, Waits: e.vault, Executor: e.vault, Logger: logger})
	must(t, err)
	sdk := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.served.Add(1)
		select {
		case e.arrived <- struct{}{}:
		default:
		}
		call := Of(r.Context())
		w.Header().Set("Served-As", call.Session.Agent()+"|"+call.Session.Sender().User+"|"+call.Session.Sender().Room)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(body), `"initialize"`) {
			id := fmt.Sprint("id-", e.served.Load())
			call.Bind(r.Context(), id, func() {})
			w.Header().Set(headerSession, id)
		}
		if strings.Contains(string(body), `"hold"`) {
			<-e.release
		}
		switch {
		case strings.Contains(string(body), `"panic"`):
			panic("the secret of a handler")
		case strings.Contains(string(body), `"half"`):
			_, _ = w.Write([]byte("{"))
			panic("in the middle")
		case strings.Contains(string(body), `"abort"`):
			panic(http.ErrAbortHandler)
		}
	})
	e.front, err = New(Config{
		Sessions: peers, Stateful: sdk, Stateless: sdk, Refusals: e.refused, Logger: logger,
		SessionsPerPrincipal: 32, SessionIdle: time.Hour, Limits: conf,
	})
	must(t, err)
	t.Cleanup(func() { e.front.Close(context.Background()) })
	return e
}

type reply struct {
	*httptest.ResponseRecorder
	took time.Duration
}

func (e *edge) post(token, session, body string) reply {
	e.t.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if session != "" {
		r.Header.Set(headerSession, session)
	}
	return e.do(r)
}

func (e *edge) do(r *http.Request) reply {
	w, began := httptest.NewRecorder(), time.Now()
	e.front.ServeHTTP(w, r)
	return reply{w, time.Since(began)}
}

// slow reports whether an answer was held back as refusals are.
func slow(a reply) bool { return a.took >= 200*time.Millisecond && a.took < 300*time.Millisecond }

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`

// connect opens a session.
func (e *edge) connect(token string) string {
	e.t.Helper()
	a := e.post(token, "", hello)
	id := a.Header().Get(headerSession)
	if a.Code != http.StatusOK || id == "" {
		e.t.Fatalf("initialize: %d %s", a.Code, a.Body)
	}
	return id
}

// stateless posts a message of the era without sessions.
func (e *edge) stateless(token, method, name, params string) reply {
	e.t.Helper()
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	if params != "" {
		params += ","
	}
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(
		fmt.Sprintf(`{"jsonrpc":"2.0","id":"a","method":%q,"params":{%s%s}}`, method, params, meta)))
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + token,
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method,
	} {
		r.Header.Set(k, v)
	}
	if name != "" {
		r.Header.Set("Mcp-Name", name)
	}
	return e.do(r)
}

// listen asks for a stream about so many resources.
func (e *edge) listen(token string, resources int) reply {
	e.t.Helper()
	var uris []string
	for i := range resources {
		uris = append(uris, fmt.Sprintf("%q", fmt.Sprintf("durward://services/s%d", i)))
	}
	return e.stateless(token, "subscriptions/listen", "", `"notifications":{"resourceSubscriptions":[`+strings.Join(uris, ",")+`]}`)
}

func call(tool string) string { return numbered(7, tool) }

func numbered(id int, tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, id, tool)
}

func request(name, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, name, params)
}

// limited reads the envelope's error out of an answer, wherever it stands.
func limited(t *testing.T, a reply) (failure struct {
	Code, Message string
	Retryable     bool
	RetryAfterS   int `json:"retry_after_s"`
}, tool bool) {
	t.Helper()
	var m struct {
		Error *struct {
			Message string
			Data    struct{ Error json.RawMessage }
		}
		Result *struct {
			ResultType        string
			IsError           bool
			Content           []struct{ Text string }
			StructuredContent json.RawMessage
		}
	}
	if err := json.Unmarshal(a.Body.Bytes(), &m); err != nil {
		t.Fatalf("%s: %v", a.Body, err)
	}
	raw := json.RawMessage("null")
	if m.Error != nil {
		raw = m.Error.Data.Error
	}
	if m.Result != nil {
		if tool = true; !m.Result.IsError || m.Result.Content[0].Text != string(m.Result.StructuredContent) {
			t.Errorf("the result is no error, or text and structured content differ: %s", a.Body)
		}
		var envelope struct {
			Status string
			Error  json.RawMessage
		}
		if err := json.Unmarshal(m.Result.StructuredContent, &envelope); err != nil || envelope.Status != "error" {
			t.Fatalf("%s: %v", a.Body, err)
		}
		raw = envelope.Error
	}
	if err := json.Unmarshal(raw, &failure); err != nil {
		t.Fatalf("%s: %v", a.Body, err)
	}
	return failure, tool
}

// Every kind of request has its own bucket, in both eras, and whoever is over it hears so where its client looks (SEC-R2,
// SEC-R3).
func TestRateLimits(t *testing.T) {
	for name, c := range map[string]struct {
		send func(e *edge, session string) reply
		// burst is how many pass at once; a known client that opens another session has spent one of the lists on it.
		burst, status int
		tool          bool
	}{
		"reads":         {func(e *edge, s string) reply { return e.post("good-ada", s, call("gpu_status")) }, 20, 200, true},
		"changes":       {func(e *edge, s string) reply { return e.post("good-ada", s, call("start_service")) }, 20, 200, true},
		"waits":         {func(e *edge, s string) reply { return e.post("good-ada", s, call("wait_operation")) }, 20, 200, true},
		"unknown tools": {func(e *edge, s string) reply { return e.post("good-ada", s, call("nothing")) }, 20, 200, true},
		"lists":         {func(e *edge, s string) reply { return e.post("good-ada", s, request("tools/list", `{}`)) }, 20, 200, false},
		"resources": {func(e *edge, s string) reply {
			return e.post("good-ada", s, request("resources/read", `{"uri":"durward://gpu"}`))
		}, 20, 200, false},
		"handshakes":         {func(e *edge, _ string) reply { return e.post("good-ada", "", hello) }, 20, 200, false},
		"messages":           {func(e *edge, s string) reply { return e.post("good-ada", s, request("ping", `{}`)) }, 100, 429, false},
		"malformed messages": {func(e *edge, s string) reply { return e.post("good-ada", s, `{"id":`) }, 100, 429, false},
		"modern reads": {func(e *edge, _ string) reply {
			return e.stateless("good-ada", "tools/call", "gpu_status", `"name":"gpu_status","arguments":{}`)
		}, 20, 200, true},
		// A stream about ten resources costs what ten subscriptions cost.
		"streams":      {func(e *edge, _ string) reply { return e.listen("good-ada", 10) }, 2, 429, false},
		"modern lists": {func(e *edge, _ string) reply { return e.stateless("good-ada", "tools/list", "", "") }, 19, 429, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEdge(t, limit.Config{})
				session := e.connect("good-ada")
				for i := range c.burst {
					if a := c.send(e, session); strings.Contains(a.Body.String(), "RATE_LIMITED") {
						t.Fatalf("request %d is too much: %s", i, a.Body)
					}
				}
				served := e.served.Load()
				a := c.send(e, session)
				failure, tool := limited(t, a)
				if a.Code != c.status || tool != c.tool {
					t.Errorf("status %d, by the tool: %t: %s", a.Code, tool, a.Body)
				}
				if failure.Code != "RATE_LIMITED" || failure.Message != "Rate limit exceeded" || !failure.Retryable || failure.RetryAfterS != 1 {
					t.Errorf("%+v", failure)
				}
				if a.Header().Get("Retry-After") != "1" || !slow(a) {
					t.Errorf("Retry-After %q, after %v", a.Header().Get("Retry-After"), a.took)
				}
				if e.served.Load() != served {
					t.Error("it was served all the same")
				}
				// Nobody else notices, and after a while the client may go on.
				other := e.connect("good-grace")
				if a := e.post("good-grace", other, call("gpu_status")); a.Code != 200 || strings.Contains(a.Body.String(), "RATE_LIMITED") {
					t.Errorf("another client: %d %s", a.Code, a.Body)
				}
				time.Sleep(time.Second)
				if a := c.send(e, session); strings.Contains(a.Body.String(), "RATE_LIMITED") {
					t.Errorf("a second later: %s", a.Body)
				}
			})
		})
	}
}

// A flood makes one record and a count, however long it goes on (OBS-2).
func TestFloodIsRecordedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { e.refused.Run(ctx, 10*time.Second) })
		session := e.connect("good-ada")
		var flood sync.WaitGroup
		for id := range 8 {
			flood.Go(func() {
				for began := time.Now(); time.Since(began) < 90*time.Second; {
					e.post("good-ada", session, numbered(id, "gpu_status"))
				}
			})
		}
		flood.Wait()
		cancel()
		running.Wait()
		var reads, counted int
		for _, line := range e.records.reasons() {
			if strings.HasPrefix(line, "CODE_RATE_LIMITED: limit: reads ada") {
				reads++
				if strings.Contains(line, "+") {
					counted++
				}
			}
		}
		if reads != 3 || counted != 2 {
			t.Errorf("%d records, %d of them counts: %q", reads, counted, e.records.reasons())
		}
		if n := len(e.records.reasons()); n > 6 {
			t.Errorf("%d records in a minute and a half", n)
		}
		// 8 clients that are held back for 200 ms cannot ask 45 times a second, and 10 a second are served.
		if served := e.served.Load(); served < 880 || served > 930 {
			t.Errorf("%d were served in a minute and a half, want 920", served)
		}
	})
}

func TestRequestsOfAPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{RequestsPerPrincipal: 3})
		session := e.connect("good-ada")
		var held sync.WaitGroup
		for id := range 3 {
			held.Go(func() { e.post("good-ada", session, numbered(id, "hold")) })
		}
		synctest.Wait()
		if a := e.post("good-ada", session, call("gpu_status")); a.Code != http.StatusTooManyRequests || a.Header().Get("Retry-After") != "1" {
			t.Errorf("a fourth: %d %s", a.Code, a.Body)
		}
		other := e.connect("good-grace")
		if a := e.post("good-grace", other, call("gpu_status")); a.Code != http.StatusOK {
			t.Errorf("another client: %d", a.Code)
		}
		close(e.release)
		held.Wait()
		if a := e.post("good-ada", session, call("gpu_status")); a.Code != http.StatusOK {
			t.Errorf("afterwards: %d %s", a.Code, a.Body)
		}
	})
}

// Whoever guesses tokens gets slow answers that all look alike, keeps the vault no busier than the gate lets it, and locks no
// client out that was let in before.
func TestGuessing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{StrangersAtOnce: 2})
		e.vault.took = 50 * time.Millisecond
		session := e.connect("good-ada")
		asked := e.vault.asked.Load()
		answers := map[string]int{}
		var mu sync.Mutex
		var guessing sync.WaitGroup
		began := time.Now()
		for i := range 64 {
			guessing.Go(func() {
				for n := 0; time.Since(began) < 10*time.Second; n++ {
					a := e.post(fmt.Sprintf("guess-%d-%d", i, n), "", hello)
					if a.took < 200*time.Millisecond {
						t.Errorf("an answer after %v", a.took)
					}
					mu.Lock()
					answers[fmt.Sprint(a.Code)]++
					mu.Unlock()
				}
			})
		}
		for time.Since(began) < 9*time.Second {
			if a := e.post("good-ada", session, call("gpu_status")); a.Code != http.StatusOK || a.took != 0 {
				t.Errorf("the client that works: %d after %v", a.Code, a.took)
			}
			// New sessions of known clients pass the gate by.
			if a := e.post("good-ada", "", hello); a.Code != http.StatusOK || a.took != 50*time.Millisecond {
				t.Errorf("a new session of a known client: %d after %v", a.Code, a.took)
			}
			time.Sleep(300 * time.Millisecond)
		}
		guessing.Wait()
		if n := e.vault.asked.Load() - asked; n > 130+30 {
			t.Errorf("the vault was asked %d times in ten seconds", n)
		}
		if n := e.vault.most.Load(); n > 2+1 {
			t.Errorf("%d were before the vault at once", n)
		}
		if answers["401"] == 0 || answers["429"] == 0 || len(answers) != 2 {
			t.Errorf("answers %v", answers)
		}
	})
}

// A token that is unknown and one that was revoked are answered alike, and a revoked one passes no gate by.
func TestUnknownAndRevokedLookAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{})
		e.connect("good-ada")
		e.vault.revoked.Store(true)
		strip := func(a reply) string {
			var m map[string]any
			must(t, json.Unmarshal(a.Body.Bytes(), &m))
			failure, _ := m["error"].(map[string]any)
			data, _ := failure["data"].(map[string]any)
			delete(data, "request_id")
			b, err := json.Marshal(m)
			must(t, err)
			h := a.Header().Clone()
			h.Del("Durward-Request-Id")
			return fmt.Sprint(a.Code, h, string(b))
		}
		revoked, unknown := e.post("good-ada", "", hello), e.post("bad", "", hello)
		if revoked.Code != http.StatusUnauthorized || strip(revoked) != strip(unknown) || !slow(revoked) || !slow(unknown) {
			t.Errorf("revoked\n%s\nunknown\n%s", strip(revoked), strip(unknown))
		}
		if _, known := e.front.admission.known.Principal([32]byte{}); known {
			t.Error("an unknown token is known")
		}
		for range 20 {
			e.post("bad", "", hello)
		}
		for range 20 {
			e.post("good-ada", "", hello)
		}
		e.vault.revoked.Store(false)
		// Known no more: it has to queue with the others.
		if asked := e.vault.asked.Load(); asked > 50 {
			t.Errorf("the vault was asked %d times", asked)
		}
	})
}

// A session's id is worth nothing without its token, and the answer takes as long as every answer to a stranger.
func TestStrangersWithASessionAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{})
		session := e.connect("good-ada")
		for _, id := range []string{session, "nonsense"} {
			a := e.post("bad", id, call("gpu_status"))
			if a.Code != http.StatusNotFound || !slow(a) {
				t.Errorf("%d after %v", a.Code, a.took)
			}
		}
	})
}

// A large message costs more of the bucket than a small one, announced or not, so that a flood of them is no more than one
// of small ones.
func TestLargeMessagesCostMore(t *testing.T) {
	for name, length := range map[string]int64{"announced": 0, "not announced": -1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEdge(t, limit.Config{})
				e.connect("good-ada")
				post := func(size int) reply {
					r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", strings.NewReader(strings.Repeat(" ", size)))
					if length != 0 {
						r.ContentLength = length
					}
					r.Header.Set("Content-Type", "application/json")
					r.Header.Set("Accept", "*/*")
					r.Header.Set("Authorization", "Bearer good-ada")
					return e.do(r)
				}
				if a := post(1 << 20); a.Code != http.StatusBadRequest {
					t.Fatalf("the first: %d %s", a.Code, a.Body)
				}
				if a := post(1 << 20); a.Code != http.StatusTooManyRequests || a.Header().Get("Retry-After") != "1" {
					t.Errorf("the second: %d %s", a.Code, a.Body)
				}
				if a := post(1 << 10); a.Code != http.StatusBadRequest {
					t.Errorf("a small one: %d %s", a.Code, a.Body)
				}
				var passed int
				for began := time.Now(); time.Since(began) < 10*time.Second; {
					if a := post(1 << 20); a.Code == http.StatusBadRequest {
						passed++
					}
				}
				// What is not announced is paid for as it comes, also when there is not enough for all of it.
				if passed > 8 || passed == 0 && length == 0 {
					t.Errorf("%d megabytes were read in ten seconds", passed)
				}
			})
		})
	}
}

// Of large messages two of a principal are in memory at a time.
func TestLargeMessagesAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{Rates: limit.Rates{Messages: limit.Rate{PerS: 1000, Burst: 1000}}})
		e.connect("good-ada")
		trickled := func() int {
			r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", &trickle{chunk: 64 << 10, every: 500 * time.Millisecond, left: 8})
			r.ContentLength = 8 * 64 << 10
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "*/*")
			r.Header.Set("Authorization", "Bearer good-ada")
			return e.do(r).Code
		}
		var mu sync.Mutex
		answers := map[int]int{}
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				code := trickled()
				mu.Lock()
				defer mu.Unlock()
				answers[code]++
			})
		}
		all.Wait()
		if answers[http.StatusBadRequest] != 2 || answers[http.StatusTooManyRequests] != 3 {
			t.Errorf("answers %v, want two that are read and three that are too many", answers)
		}
		if code := trickled(); code != http.StatusBadRequest {
			t.Errorf("afterwards: %d", code)
		}
	})
}

// A stranger's message is small.
func TestStrangersMessagesAreSmall(t *testing.T) {
	e := newEdge(t, limit.Config{RefusalDelayMS: 1})
	big := strings.Replace(hello, `"name":"x"`, `"name":"`+strings.Repeat("x", maxFromStranger)+`"`, 1)
	if a := e.post("good-ada", "", big); a.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", a.Code, a.Body)
	}
	e.connect("good-ada")
	if a := e.post("good-ada", "", big); a.Code == http.StatusRequestEntityTooLarge {
		t.Errorf("a known client's: %d %s", a.Code, a.Body)
	}
}

// What is refused before anybody asks who is calling is answered at once, unless there is a crowd of it.
func TestCrowdsOutsideAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, limit.Config{})
		var slow int
		for range 40 {
			a := e.post("", "", hello)
			if a.Code != http.StatusUnauthorized {
				t.Fatalf("%d", a.Code)
			}
			if a.took > 0 {
				slow++
			}
		}
		if slow == 0 || slow > 20 {
			t.Errorf("%d of 40 were held back", slow)
		}
	})
}

// A body must keep coming, and a client that does not read its answer loses its connection's time, not ours.
func TestSlowBodies(t *testing.T) {
	for name, c := range map[string]struct {
		chunk  int
		every  time.Duration
		chunks int
		want   int
	}{
		"a byte a second":       {1, time.Second, 30, http.StatusRequestTimeout},
		"nothing":               {1, time.Hour, 2, http.StatusRequestTimeout},
		"slow, and fast enough": {32 << 10, 400 * time.Millisecond, 20, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEdge(t, limit.Config{})
				e.connect("good-ada")
				body := &trickle{chunk: c.chunk, every: c.every, left: c.chunks}
				r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", body)
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Accept", "*/*")
				r.Header.Set("Authorization", "Bearer good-ada")
				w := &deadlined{httptest.NewRecorder(), body}
				began := time.Now()
				e.front.ServeHTTP(w, r)
				if took := time.Since(began); w.Code != c.want || took > 20*time.Second {
					t.Errorf("%d after %v, want %d: %s", w.Code, took, c.want, w.Body)
				}
			})
		})
	}
}

// trickle is a body that comes in small pieces, until its deadline.
type trickle struct {
	chunk, left int
	every       time.Duration
	due         time.Time
}

// Read implements io.Reader.
func (b *trickle) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if !b.due.IsZero() && time.Until(b.due) < b.every {
		time.Sleep(time.Until(b.due)) // in a bubble of synctest, which takes no time
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(b.every) // in a bubble of synctest, which takes no time
	b.left--
	n := min(b.chunk, len(p))
	for i := range n {
		p[i] = ' '
	}
	return n, nil
}

// deadlined is a response writer whose read deadline is the body's.
type deadlined struct {
	*httptest.ResponseRecorder
	body *trickle
}

// SetReadDeadline is for http.ResponseController.
func (d *deadlined) SetReadDeadline(t time.Time) error {
	d.body.due = t
	return nil
}
