// Package child is what egress does with other people's MCP servers: it starts each when it is first called, speaks MCP with it, compares
// what it lists with what a human pinned, and passes on calls and results.
//
// It trusts what is pinned, and who starts a server. Everything that a server says is hostile: each frame is bounded and built anew from
// the fields that are known, an answer counts only for a call that waits, and nothing that a server says changes a tier, a schema or a
// description. A server that breaks a bound is ended, and what waited for it ends with one error that names it; no other server notices.
//
// The SDK's client speaks the protocol in both its revisions, behind transports of ours. It declares no sampling, and
// elicitation to servers whose entry lets them ask. It validates nothing with a schema of the server's but with what is left of a form.
package child

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"durward.internal/services/platform/downstream"
)

// Process is a child that was started.
type Process struct {
	Stdin          io.WriteCloser
	Stdout, Stderr io.ReadCloser
	// Wait returns when the process has ended, and why. Kill ends it, and everything that it started. Freeze stops and continues it.
	Wait   func() error
	Kill   func()
	Freeze func(bool) error
}

// Config is what a Manager works with.
type Config struct {
	// Start starts a server's process for a user; what it returns outlives ctx.
	Start func(ctx context.Context, server *downstream.Pinned, user string, env map[string]string) (*Process, error)
	// Env returns the variables of a server's process for a principal: those of its entry, and its credentials.
	Env func(ctx context.Context, server *downstream.Pinned, principal string) (map[string]string, error)
	// Remote judges and dials remote servers, and Bearer returns what each request to one carries; empty: nothing.
	Remote http.RoundTripper
	Bearer func(ctx context.Context, server *downstream.Pinned, principal string) (string, error)
	// Ended hears of each process that is no more, but for those that end with the Manager; nil: nobody does. Close waits for it.
	Ended func(End)
}

// End is the end of a server's process.
type End struct {
	Server, Principal string
	// Why is a sentence; Wanted: Durward or a human ended it.
	Why    string
	Wanted bool
	// Said is the last of what the process wrote to its standard error and logged: cleaned, at most journal.MaxSince bytes, without the credentials
	// that it was given.
	Said string
}

// Error is why a call has no result. It names the server, and is safe to show.
type Error struct {
	Server, Text string
	// Sent: the call had left, so that it may have had its effect.
	Sent bool
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("server %s: %s", e.Server, e.Text) }

// Result is what a tool answered: cleaned, bounded and of known kinds.
type Result struct {
	Content []Content
	// Structured is canonical JSON, or empty.
	Structured []byte
	IsError    bool
	// Question: the call is not over. The server asks what Content says, a sentence and a JSON Schema; it is the name to answer it by.
	Question string
}

// Kind is what a piece of content is.
type Kind string

// The kinds. What a client must not get, a text stands for.
const (
	Text     Kind = "text"
	Resource Kind = "resource" // a text with its URI, if that is https or http
	Link     Kind = "link"     // a URI, https or http, with a name
	Image    Kind = "image"
)

// Content is one piece of a result.
type Content struct {
	Kind      Kind
	Text      string // of a link: its name
	URI, MIME string
	Data      []byte // of an image
}

// State is what a server's process is doing.
type State string

// The states.
const (
	Idle     State = "idle"     // it starts with the next call
	Starting State = "starting" // it was started, and is not ready
	Running  State = "running"
	Waiting  State = "waiting" // it ended, and is not started again before a while
	Stopped  State = "stopped" // it ended too often, and is not started again
)

// Presence is what became of a pinned tool.
type Presence string

// Only a present tool is called.
const (
	Present Presence = "present"
	Absent  Presence = "absent"
	Changed Presence = "changed"
)

// Status is one instance of a server.
type Status struct {
	Server string
	// Principal is whose instance it is; empty for a shared one, and for a server that has none.
	Principal string
	State     State
	// Since is when it became ready; Reason says why it ended last.
	Since  time.Time
	Reason string
	// Tools are as they were compared last; empty before the first time.
	Tools map[string]Presence
	// Calls are those in flight, and Dropped the messages that were not passed on.
	Calls, Dropped int
	Frozen         bool
}

// Log is what an instance wrote to its standard error and logged, the last of it.
type Log struct{ Principal, Text string }
