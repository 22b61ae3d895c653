// Package listchange tells clients that their lists of tools, prompts or resources may have changed, and never how: whoever wants to know
// lists again. It runs in the gateway, the untrusted edge.
//
// Lists change while clients have them: humans pin and unpin tools of other people's servers, and write rules. Every client that listens is
// told, whether its own lists changed or not.
package listchange

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/clock"
)

// Client is one end that listens: a session of the stateful era, or one stream of the other.
type Client struct {
	Session *mcp.ServerSession
	// Wants are the lists that it is told of, Meta what each notification has.
	Wants mcp.NotificationSubscriptions
	Meta  mcp.Meta
	// Send sends it a notification, as soon as it may be told anything. A client that does not read holds up nobody but itself.
	Send func(method string, notification mcp.Request)
	// Again returns a channel that is closed when this client alone is to be told once more.
	Again func() <-chan struct{}
}

// All are all the lists.
func All() mcp.NotificationSubscriptions {
	return mcp.NotificationSubscriptions{ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true}
}

// Clients are those who are told. The zero value is ready; it is safe for concurrent use.
type Clients struct {
	mu     sync.Mutex
	listen map[*Client]struct{}
}

// Add has a client told until remove is called, which is called once.
func (c *Clients) Add(one Client) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listen == nil {
		c.listen = map[*Client]struct{}{}
	}
	c.listen[&one] = struct{}{}
	removed := make(chan struct{})
	next := one.Again() // from now on, not from when the goroutine runs
	go func() {
		for {
			select {
			case <-removed:
				return
			case <-next:
				next = one.Again()
				one.tell()
			}
		}
	}()
	return func() {
		close(removed)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listen, &one)
	}
}

// gather is how long further changes are waited for before clients are told of the first: vault and gateway read the same files, each by
// itself.
const gather = 200 * time.Millisecond

// Run tells every client each time that a channel of moved's is closed, until ctx ends.
func (c *Clients) Run(ctx context.Context, moved func() <-chan struct{}) {
	for next := moved(); ; {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		if !clock.Sleep(ctx, gather) {
			return
		}
		next = moved() // after the wait, which one word does for, and before anybody is told, so that no later change is missed
		c.mu.Lock()
		for one := range c.listen {
			go one.tell()
		}
		c.mu.Unlock()
	}
}

func (c *Client) tell() {
	if c.Wants.ToolsListChanged {
		c.Send("notifications/tools/list_changed", &mcp.ServerRequest[*mcp.ToolListChangedParams]{
			Session: c.Session, Params: &mcp.ToolListChangedParams{Meta: c.Meta},
		})
	}
	if c.Wants.PromptsListChanged {
		c.Send("notifications/prompts/list_changed", &mcp.ServerRequest[*mcp.PromptListChangedParams]{
			Session: c.Session, Params: &mcp.PromptListChangedParams{Meta: c.Meta},
		})
	}
	if c.Wants.ResourcesListChanged {
		c.Send("notifications/resources/list_changed", &mcp.ServerRequest[*mcp.ResourceListChangedParams]{
			Session: c.Session, Params: &mcp.ResourceListChangedParams{Meta: c.Meta},
		})
	}
}
