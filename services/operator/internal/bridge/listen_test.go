package bridge

import (
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
	switch {
	case news == nil:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case r.Header.Get("Mcp-Session-Id") != current:
		w.WriteHeader(http.StatusNotFound)
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
	g.news = second
	g.mu.Unlock()
	close(first)
	second <- updated
	if got := c.receive(); got != updated {
		t.Errorf("after the stream broke: %s", got)
	}
	third := make(chan string)
	g.mu.Lock()
	g.news, g.session = third, g.session+10
	g.mu.Unlock()
	close(second)
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

// A gateway that offers no stream is not asked again.
func TestNoNews(t *testing.T) {
	g := newGateway(t, nil)
	c := start(t, g, nil, nil)
	c.handshake()
	time.Sleep(3 * listenPause)
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
			time.Sleep(watchTick + watchTick/2) // it is not due yet
			g.mu.Lock()
			now = now.Add(50 * time.Second)
			g.mu.Unlock()
			<-renewed
			time.Sleep(2 * watchTick)
			c.close()
			if n := strings.Count(g.events(), name+` "durward-renewal" PURPOSE_RENEW`); n != 1 || strings.Count(g.events(), "durward-renewal") != 1 {
				t.Errorf("events:\n%s", g.events())
			}
		})
	}
}
