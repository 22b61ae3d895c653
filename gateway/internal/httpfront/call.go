package httpfront

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/metrics"
	"durward.internal/gateway/internal/relay"
)

// Era is which of the two protocols a message speaks. The front decides it, from the body, and nobody decides it again.
type Era int

const (
	// Stateful is the era of 2025-11-25 and 2025-06-18: a handshake opens a session, and every message names it.
	Stateful Era = iota
	// Stateless is the era of 2026-07-28: every request stands for itself and says what its client is and can do.
	Stateless
)

// String names the era for logs.
func (e Era) String() string {
	if e == Stateless {
		return "stateless"
	}
	return "stateful"
}

// Capabilities are what a client declared on this very request. The stateful era declares nothing that matters here.
type Capabilities struct {
	// Tasks is the extension io.modelcontextprotocol/tasks.
	Tasks bool
}

// Call is what the front knows about one message that it let through.
type Call struct {
	Era       Era
	RequestID string
	// ID is the JSON-RPC id of the request, nil for a notification.
	ID jsontext.Value
	// Session is the principal's session at the vault.
	Session *relay.Session
	// Caller is what this request brought with it.
	Caller       relay.Caller
	Capabilities Capabilities
	// Gone is closed when the client's HTTP request ends.
	Gone <-chan struct{}
	// Seen is what is shown of the request; nil: nothing.
	Seen *metrics.Request

	entry *entry
	front *Front
	by    *visit
}

// Enter takes one of the principal's slots for tool calls under way and reports whether there was one; if so, Leave must
// follow.
func (c *Call) Enter() bool { return c.front.admission.Enter(c.Session.Principal(), limit.Calls) }

// Leave gives back what Enter took.
func (c *Call) Leave() { c.front.admission.Leave(c.Session.Principal(), limit.Calls) }

// Bind ties the session that a handshake opened to the id that the SDK gave it, and reports whether it is admitted. end
// closes the SDK's side of the session. A principal at its cap loses the session that has been idle longest.
func (c *Call) Bind(ctx context.Context, id string, end func()) bool {
	return c.front.admit(ctx, c.entry, key{Stateful, id}, end)
}

// Unbind ends a session that was bound, when the SDK's side of it is gone. It may be called more than once.
func (c *Call) Unbind(ctx context.Context) {
	if c.front.table.remove(c.entry) {
		c.front.shut(ctx, c.entry)
	}
}

// Forget ends a session that the vault accepts no more, as when its client was renamed or removed: nobody finds it, and its
// token is a stranger's from now on. The SDK's side of it ends when this very request is answered.
func (c *Call) Forget() {
	c.front.admission.known.Forget(c.entry.token)
	if c.front.table.remove(c.entry) {
		go func() {
			<-c.Gone
			c.front.shut(context.Background(), c.entry)
		}()
	}
}

type callKey struct{}

// Of returns the call that a request belongs to, or nil.
func Of(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}
