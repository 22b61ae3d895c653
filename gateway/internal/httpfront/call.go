package httpfront

import (
	"context"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"

	"durward.internal/gateway/internal/limit"
	"durward.internal/gateway/internal/metrics"
	"durward.internal/gateway/internal/relay"
	"durward.internal/services/platform/pattern"
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

// A client may say which of its own agents asks (durward/agent, or a header, for programs that cannot write _meta), and a messaging
// client must say for whom (durward/sender). Both are the client's word, which the vault judges when a session opens: it knows which
// agents a client has, and which clients speak for others. They are part of what finds a session, so that nobody is served in the
// session of another agent or sender.

// headerAgent says what durward/agent says.
const headerAgent = "Durward-Agent"

// headerRemote says, with whatever value, that the client's program runs on another machine. It takes away and gives nothing.
const headerRemote = "Durward-Remote"

// maxSender is how long a sender's user and room may be, in characters.
const maxSender = 128

const (
	sentenceAgent  = "The agent must be 1 to 64 letters, digits, dots, dashes or underscores, and begin with a letter or digit."
	sentenceSender = "The durward/sender member of _meta must have a user and a room, each of 1 to 128 characters without control characters," +
		" in Unicode's composed form (NFC), with single plain spaces inside alone."
)

var agentPattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)

// validSender reports whether a sender can be told from every other: what nobody sees is no part of a name, and one that is written
// in two ways is taken in one. It is refused rather than rewritten, since a key-bound client signs for the name as it stands.
func validSender(s relay.Sender) bool {
	for _, name := range []string{s.User, s.Room} {
		if name == "" || utf8.RuneCountInString(name) > maxSender || !norm.NFC.IsNormalString(name) ||
			strings.Contains(name, "  ") || strings.Trim(name, " ") != name {
			return false
		}
		for _, c := range name {
			if c == utf8.RuneError || unicode.IsControl(c) || c != ' ' && unicode.IsSpace(c) || unicode.In(c, unicode.Cf, unicode.Other_Default_Ignorable_Code_Point) {
				return false
			}
		}
	}
	return true
}

// agentOf is the agent that a message comes from: what it says, or what the headers around it say.
func agentOf(h http.Header, frame *Frame) (string, *frameError) {
	values := h.Values(headerAgent)
	switch {
	case len(values) == 0:
		return frame.Agent, nil
	case len(values) > 1 || !agentPattern().MatchString(values[0]):
		return "", invalidParams(sentenceAgent)
	case frame.Agent != "" && frame.Agent != values[0]:
		return "", invalidParams("The header " + headerAgent + " and the durward/agent member of _meta name two agents.")
	}
	return values[0], nil
}

// another says why a request that names an agent or a sender is not served in this session, or returns the empty string. Requests
// of a session for a sender name that sender each time, so that no program takes one person's session for another's. One that names
// no agent is served in any agent's session of the same token: it is the client's own, and the session's agent is what counts.
func another(s *relay.Session, by relay.Caller) string {
	switch {
	case senderRequired() && by.Sender != s.Sender():
		return "This session is for another sender, or for none: a messaging client says durward/sender with each request, and has a session for each of them."
	case by.Agent != "" && by.Agent != s.Agent():
		return "This session is another agent's: start one with initialize for each agent."
	default:
		return ""
	}
}
