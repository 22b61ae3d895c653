package bridge

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// A cancellation reaches the gateway while as many requests as may are under way, and one of a request that waits for its turn keeps
// that from ever being sent.
func TestCancelledBehindManyRequests(t *testing.T) {
	g := newGateway(t, nil)
	held, release := make(chan struct{}, maxParallel), make(chan struct{})
	cancelled := make(chan struct{})
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		g.mu.Unlock()
		held <- struct{}{}
		<-release
		g.mu.Lock()
		return false
	}
	g.noted = func(m message) {
		if m.Method == noteCancelled {
			close(cancelled)
		}
	}
	c := start(t, g, nil, nil)
	c.handshake()
	for id := range maxParallel {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, id))
	}
	for range maxParallel {
		<-held
	}
	c.send(`{"jsonrpc":"2.0","id":"waits","method":"tools/list"}`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"waits"}}`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	<-cancelled
	close(release)
	for range maxParallel {
		c.receive()
	}
	c.close()
	if strings.Contains(g.events(), `"waits"`) {
		t.Errorf("events:\n%s", g.events())
	}
}

// What the gateway answers may be longer than a message of the client's, in both of its forms.
func TestLongAnswers(t *testing.T) {
	g := newGateway(t, nil)
	text := strings.Repeat("x", maxMessage+1)
	g.answers = func(w http.ResponseWriter, m message, _ callv1.Proof_Purpose) bool {
		form := "%s"
		if w.Header().Set("Content-Type", "application/json"); m.Method == "ping" {
			w.Header().Set("Content-Type", "text/event-stream")
			form = "data: %s\n\n"
		}
		_, _ = fmt.Fprintf(w, form, `{"jsonrpc":"2.0","id":`+string(m.ID)+`,"result":{"text":"`+text+`"}}`)
		return true
	}
	c := start(t, g, nil, nil)
	c.handshake()
	for _, method := range []string{"ping", "tools/list"} {
		c.send(`{"jsonrpc":"2.0","id":7,"method":"` + method + `"}`)
		if got := c.receive(); !strings.Contains(got, text) {
			t.Errorf("%s: %.200s", method, got)
		}
	}
	c.close()
}

// What is too large is refused, by its id where that can be read, and the bridge goes on.
func TestTooLarge(t *testing.T) {
	c := start(t, newGateway(t, nil), nil, nil)
	c.handshake()
	for size, id := range map[int]string{maxMessage: "7", 2 * maxLine: "null"} {
		c.send(`{"method":"tools/call","params":{"name":"` + strings.Repeat("x", size) + `"},"jsonrpc":"2.0","id":7}`)
		want := `{"error":{"code":-32600,"message":"the message is too large, the most is 4 MiB"},"id":` + id + `,"jsonrpc":"2.0"}`
		if got := c.receive(); got != want {
			t.Errorf("%d bytes: %s", size, got)
		}
	}
	c.send(`{"jsonrpc":"2.0","id":8,"method":"ping"}`)
	if got := c.receive(); !strings.Contains(got, `"id":8`) {
		t.Errorf("after it: %s", got)
	}
	c.close()
}
