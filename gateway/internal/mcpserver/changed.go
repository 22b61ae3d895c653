package mcpserver

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/httpfront"
	"durward.internal/services/platform/clock"
)

// Lists change while clients have them: humans pin and unpin tools of other people's servers, and write rules. Every client that listens is
// told, whether its own lists changed or not, and hears nothing else: what it lists next is what it may call.

// stream is a stream of notifications of the stateless era.
type stream struct {
	session *mcp.ServerSession
	wants   mcp.NotificationSubscriptions
	meta    mcp.Meta
	// acked is closed when the client knows that it is subscribed, done when the stream ends.
	acked, done <-chan struct{}
}

// streams are those that are open. The zero value is ready.
type streams struct {
	mu   sync.Mutex
	open map[*stream]struct{}
}

// add returns what takes the stream away again.
func (s *streams) add(one *stream) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[*stream]struct{}{}
	}
	s.open[one] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.open, one)
	}
}

func (s *streams) all() (list []*stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range s.open {
		list = append(list, one)
	}
	return list
}

// listGather is how long further changes are waited for before clients are told of the first: vault and gateway read the same files, each
// by itself.
const listGather = 200 * time.Millisecond

// TellLists tells clients when lists change, until ctx ends.
func (s *Server) TellLists(ctx context.Context) {
	for moved := s.conf.Relay.ListsMoved(); ; {
		select {
		case <-ctx.Done():
			return
		case <-moved:
		}
		moved = s.conf.Relay.ListsMoved() // before anybody is told, so that no change after this one is missed
		if !clock.Sleep(ctx, listGather) {
			return
		}
		for session := range s.sdk[httpfront.Stateful].Sessions() {
			if session.InitializeParams() != nil {
				go s.tellLists(httpfront.Stateful, &stream{session: session, wants: mcp.NotificationSubscriptions{
					ToolsListChanged: true, PromptsListChanged: true, ResourcesListChanged: true,
				}})
			}
		}
		for _, one := range s.streams.all() {
			go func() {
				select {
				case <-one.acked:
					s.tellLists(httpfront.Stateless, one)
				case <-one.done:
				}
			}()
		}
	}
}

// tellLists tells one client. One that has no stream open, or does not read it, misses it.
func (s *Server) tellLists(era httpfront.Era, to *stream) {
	ctx, cancel := context.WithTimeout(context.Background(), notifyTimeout)
	defer cancel()
	send := s.resources.send[era]
	if to.wants.ToolsListChanged {
		_, _ = send(ctx, "notifications/tools/list_changed", &mcp.ServerRequest[*mcp.ToolListChangedParams]{
			Session: to.session, Params: &mcp.ToolListChangedParams{Meta: to.meta},
		})
	}
	if to.wants.PromptsListChanged {
		_, _ = send(ctx, "notifications/prompts/list_changed", &mcp.ServerRequest[*mcp.PromptListChangedParams]{
			Session: to.session, Params: &mcp.PromptListChangedParams{Meta: to.meta},
		})
	}
	if to.wants.ResourcesListChanged {
		_, _ = send(ctx, "notifications/resources/list_changed", &mcp.ServerRequest[*mcp.ResourceListChangedParams]{
			Session: to.session, Params: &mcp.ResourceListChangedParams{Meta: to.meta},
		})
	}
}
