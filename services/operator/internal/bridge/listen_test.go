package bridge

import (
	"crypto/ed25519"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// listen is the session's own stream; the caller holds mu.
func (g *gateway) listen(w http.ResponseWriter, r *http.Request) {
	news, current := g.news, fmt.Sprintf("id-%d", g.session)
	g.asked++
	if g.wanted != nil {
		g.wanted <- struct{}{}
	}
	switch {
	case news == nil:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case r.Header.Get("Mcp-Session-Id") != current || g.ended:
		w.WriteHeader(http.StatusNotFound)
		return
	case g.taken > 0:
		g.taken--
		w.WriteHeader(http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	g.mu.Unlock()
	defer g.mu.Lock()
	for {
		select {
		case text, more := <-news:
			if !more {
				return
			}
			_, _ = fmt.Fprintf(w, "data: %s\n\n", text)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// wantCaughtUp: what may have been said while there was no stream is told as changed: the lists, and what the client subscribed to still.
func (c *client) wantCaughtUp(when string) {
	c.t.Helper()
	for _, want := range []string{`tools/list_changed"}`, `prompts/list_changed"}`, `resources/list_changed"}`, `resources/updated","params":{"uri":"durward://services"}}`} {
		if got := c.receive(); got != `{"jsonrpc":"2.0","method":"notifications/`+want {
			c.t.Errorf("%s: got %s, not %s", when, got, want)
		}
	}
}

// wantAmong is one message among those that tell what may have changed, which come when the stream does.
func (c *client) wantAmong(want string) {
	c.t.Helper()
	for got := c.receive(); !strings.Contains(got, want); got = c.receive() {
		if !strings.Contains(got, "/list_changed") && !strings.Contains(got, `"params":{"uri":"durward://services"}`) {
			c.t.Errorf("got %s, not %s", got, want)
			return
		}
	}
}

// What the gateway says of its own accord reaches the client, also after the stream broke; a session that is lost comes back
// with what the client subscribed to.
func TestNewsReachTheClient(t *testing.T) {
	g := newGateway(t, nil)
	first := make(chan string)
	g.news = first
	c := start(t, g, nil, nil)
	c.handshake()
	subscribe := `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"durward://services"}}`
	c.send(subscribe)
	c.receive()
	c.send(strings.ReplaceAll(strings.Replace(subscribe, `"id":1`, `"id":2`, 1), "services", "gpu"))
	c.receive()
	c.send(`{"jsonrpc":"2.0","id":3,"method":"resources/unsubscribe","params":{"uri":"durward://gpu"}}`)
	c.receive()
	updated := `{"jsonrpc":"2.0","method":"notifications/resources/updated"}`
	first <- updated
	if got := c.receive(); got != updated {
		t.Errorf("got %s", got)
	}
	second := make(chan string)
	g.mu.Lock()
	g.news, g.taken = second, 1
	g.mu.Unlock()
	close(first)
	c.wantCaughtUp("after the stream broke")
	second <- updated
	if got := c.receive(); got != updated {
		t.Errorf("after the stream broke: %s", got)
	}
	third := make(chan string)
	g.mu.Lock()
	g.news, g.session = third, g.session+10
	g.mu.Unlock()
	close(second)
	c.wantCaughtUp("after the session was lost")
	third <- updated
	if got := c.receive(); got != updated {
		t.Errorf("after the session was lost: %s", got)
	}
	c.close()
	_, after, found := strings.Cut(g.events(), "initialize PURPOSE_UNSPECIFIED\nnotifications/initialized  PURPOSE_UNSPECIFIED\nresources/subscribe 1")
	_, after, again := strings.Cut(after, "initialize PURPOSE_UNSPECIFIED\nnotifications/initialized  PURPOSE_UNSPECIFIED\nresources/subscribe 1")
	if !found || !again || strings.Contains(after, "resources/subscribe 2") {
		t.Errorf("events:\n%s", g.events())
	}
}

// A client that unsubscribed has nothing signed for it any more, even if the gateway refuses to let it go.
func TestUnsubscribedWhateverTheGatewaySays(t *testing.T) {
	for name, refusal := range map[string]func(w http.ResponseWriter, m message){
		"an error": func(w http.ResponseWriter, m message) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"Internal error."}}`, m.ID)
		},
		"no answer": func(w http.ResponseWriter, _ message) { w.WriteHeader(http.StatusBadGateway) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			public, key := testKey(t)
			g := newGateway(t, public)
			g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
				if m.Method != methodUnsubscribe {
					return false
				}
				refusal(w, m)
				return true
			}
			now := time.Unix(1_800_000_000, 0)
			c := start(t, g, key, func() time.Time { g.mu.Lock(); defer g.mu.Unlock(); return now })
			c.handshake()
			c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"durward://services"}}`)
			c.receive()
			c.send(`{"jsonrpc":"2.0","id":2,"method":"resources/unsubscribe","params":{"uri":"durward://services"}}`)
			if got := c.receive(); !strings.Contains(got, `"error"`) {
				t.Errorf("answer %s", got)
			}
			g.mu.Lock()
			now = now.Add(50 * time.Second)
			g.mu.Unlock()
			c.look()
			c.close()
			if strings.Contains(g.events(), "durward-renewal") {
				t.Errorf("events:\n%s", g.events())
			}
		})
	}
}

// A session that is lost while it cannot be opened again, as when the vault starts later than the gateway, is opened once it can be,
// without a request of the client's.
func TestNewsAfterAnOpeningThatFailed(t *testing.T) {
	g := newGateway(t, nil)
	first := make(chan string)
	g.news = first
	c := start(t, g, nil, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"durward://services"}}`)
	c.receive()
	second := make(chan string)
	g.mu.Lock()
	g.news, g.session, g.late = second, g.session+10, 1
	g.mu.Unlock()
	close(first)
	updated := `{"jsonrpc":"2.0","method":"notifications/resources/updated"}`
	c.wantCaughtUp("when the session is back")
	second <- updated
	if got := c.receive(); got != updated {
		t.Errorf("got %s", got)
	}
	c.close()
	if got := strings.Count(g.events(), "resources/subscribe 1"); got != 2 {
		t.Errorf("events:\n%s", g.events())
	}
}

// A session that can be opened and not subscribed in is opened again ever more rarely.
func TestSubscribingThatFails(t *testing.T) {
	g := newGateway(t, nil)
	first, second := make(chan string), make(chan string)
	g.news = first
	c := start(t, g, nil, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"durward://services"}}`)
	c.receive()
	var failed []time.Time
	g.mu.Lock()
	g.news, g.session = second, g.session+10
	g.answers = func(_ http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		if m.Method != methodSubscribe || len(failed) == 2 {
			return false
		}
		failed = append(failed, time.Now())
		panic(http.ErrAbortHandler) // the connection breaks
	}
	g.mu.Unlock()
	close(first)
	updated := `{"jsonrpc":"2.0","method":"notifications/resources/updated"}`
	c.wantCaughtUp("when the session is back")
	second <- updated
	if got := c.receive(); got != updated {
		t.Errorf("got %s", got)
	}
	c.close()
	if between := failed[1].Sub(failed[0]); between < listenPause {
		t.Errorf("it was opened again after %s", between)
	}
}

// A session that a request found lost goes on to bring news when that request is over.
func TestNewsAfterARequestOpenedTheSession(t *testing.T) {
	g := newGateway(t, nil)
	first, second := make(chan string), make(chan string)
	g.news = first
	c := start(t, g, nil, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"durward://services"}}`)
	c.receive()
	g.mu.Lock()
	g.news, g.session = second, g.session+10
	g.mu.Unlock()
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
	c.wantAmong(`"id":2`)
	c.send(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
	c.wantAmong(`"id":3`)
	updated := `{"jsonrpc":"2.0","method":"notifications/resources/updated"}`
	select {
	case second <- updated:
		c.wantAmong(updated)
	case <-time.After(10 * time.Second):
		t.Error("nobody listens to the session any more")
	}
	close(first)
	c.close()
}

// A session that was opened again but could not be subscribed in is no session: the next request has it opened once more.
func TestASessionWithoutItsSubscriptions(t *testing.T) {
	g := newGateway(t, nil)
	c := start(t, g, nil, nil)
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"durward://services"}}`)
	c.receive()
	g.mu.Lock()
	g.session += 10
	broken := false
	g.answers = func(_ http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		if broken || m.Method != methodSubscribe {
			return false
		}
		broken = true
		panic(http.ErrAbortHandler) // the connection breaks
	}
	g.mu.Unlock()
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"start_service"}}`)
	if got := c.receive(); !strings.Contains(got, `"error"`) {
		t.Errorf("got %s", got)
	}
	c.send(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
	if got := c.receive(); !strings.Contains(got, `"id":3,"result"`) {
		t.Errorf("got %s", got)
	}
	c.close()
	if got := strings.Count(g.events(), "resources/subscribe 1"); got != 3 {
		t.Errorf("the client is subscribed in %d sessions, want the first, one that ended and the last:\n%s", got, g.events())
	}
}

// What the client subscribed to is asked for again as anything else is: without a proof that the client made up. One that the
// gateway refuses then is reported, and forgotten.
func TestSubscriptionsAreTakenUpAgain(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	refuse := false
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		if !refuse || m.Method != methodSubscribe || !strings.Contains(string(m.Params), "gpu") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"no"}}`, m.ID)
		return true
	}
	reports := make(chan string, 10)
	c := start(t, g, key, nil, func(cfg *Config) { cfg.Report = func(line string) { reports <- line } })
	c.handshake()
	for id, uri := range []string{"durward://services", "durward://gpu"} {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"s%d","method":"resources/subscribe","params":{"uri":%q,"_meta":{"durward/proof":{"counter":"1"}}}}`, id, uri))
		c.receive()
	}
	lose := func(id int) {
		g.mu.Lock()
		g.session += 10
		g.mu.Unlock()
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, id))
		if got := c.receive(); !strings.Contains(got, fmt.Sprintf(`"id":%d`, id)) {
			t.Errorf("what is the bridge's own reached the client: %s", got)
		}
	}
	g.mu.Lock()
	refuse = true
	g.mu.Unlock()
	lose(1)
	lose(2)
	c.close()
	close(reports)
	var refused []string
	for line := range reports {
		if strings.Contains(line, "refused") {
			refused = append(refused, line)
		}
	}
	if len(refused) != 1 || strings.Contains(refused[0], "gpu") {
		t.Errorf("reported %q, want one line", refused)
	}
	services, gpu := `resources/subscribe "s0" PURPOSE_UNSPECIFIED`, `resources/subscribe "s1" PURPOSE_UNSPECIFIED`
	if strings.Count(g.events(), services) != 3 || strings.Count(g.events(), gpu) != 2 {
		t.Errorf("events:\n%s", g.events())
	}
}

// A client that only listens hears on when its token is replaced: no request of its own has to find that out.
func TestNewsAfterARotation(t *testing.T) {
	g := newGateway(t, nil)
	g.news = make(chan string)
	c := start(t, g, nil, nil, func(cfg *Config) {
		cfg.Reload = func() (string, ed25519.PrivateKey, error) { return "another", nil, nil }
	})
	c.handshake()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"durward://services"}}`)
	c.receive()
	const news = `{"jsonrpc":"2.0","method":"notifications/message"}`
	g.news <- news
	if got := c.receive(); got != news {
		t.Fatal(got)
	}
	g.rotate("another", nil)
	close(g.news) // the stream ends with the session
	c.wantCaughtUp("after the rotation")
	c.close()
	if n := strings.Count(g.events(), methodSubscribe); n != 2 {
		t.Errorf("events:\n%s", g.events())
	}
}

// A gateway that offers no stream is not asked again.
func TestNoNews(t *testing.T) {
	g := newGateway(t, nil)
	g.wanted = make(chan struct{}, 10)
	c := start(t, g, nil, nil)
	c.handshake()
	<-g.wanted
	c.bridge.background.Wait() // nothing goes on that could ask again
	c.close()
	if g.asked != 1 {
		t.Errorf("the stream was asked for %d times, want 1", g.asked)
	}
}

// A client that signs and waits for news renews the permits behind them without being asked for anything, once while they last.
func TestRenewalsBehindSubscriptions(t *testing.T) {
	for name, subscribe := range map[string]func(c *client){
		"ping": func(c *client) {
			c.handshake()
			c.send(`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"durward://services"}}`)
		},
		"tools/list": func(c *client) {
			c.send(modern(1, methodCall, `"name":"gpu_status",`))
			c.receive()
			c.send(modern(2, methodListen, `"notifications":{},`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			public, key := testKey(t)
			g := newGateway(t, public)
			g.hung = make(chan string, 1)
			renewed := make(chan struct{}, 10)
			g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
				if string(m.ID) == `"durward-renewal"` {
					renewed <- struct{}{}
				}
				writeJSON(w, m.ID, fmt.Sprintf(`{"_meta":{"durward/session":%q}}`, g.ref()))
				return true
			}
			now := time.Unix(1_800_000_000, 0)
			c := start(t, g, key, func() time.Time { g.mu.Lock(); defer g.mu.Unlock(); return now })
			subscribe(c)
			c.receive()
			c.look() // it is not due yet
			g.mu.Lock()
			now = now.Add(50 * time.Second)
			g.mu.Unlock()
			c.look()
			<-renewed
			c.look()
			c.close()
			if n := strings.Count(g.events(), name+` "durward-renewal" PURPOSE_RENEW`); n != 1 || strings.Count(g.events(), "durward-renewal") != 1 {
				t.Errorf("events:\n%s", g.events())
			}
		})
	}
}
