package mcpserver_test

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// A client hears that lists changed, and what it lists then has what was pinned, however young the vault's word was (the vault is not
// asked about a young one otherwise: TestWhatIsPinnedLaterIsListed).
func TestClientsHearThatListsChanged(t *testing.T) {
	for era := range readerEras {
		t.Run(era, func(t *testing.T) {
			e := newEdge(t, edgeOptions{fresh: time.Hour})
			r := e.reader(t, tokenAgent, era)
			if r.listed("fs__read") {
				t.Error("listed before it is pinned")
			}
			pin(t, 1)
			e.vault.said <- &vaultv1.WatchSessionsResponse{ListsChanged: true}
			var got []string
			for range 3 {
				select {
				case what := <-r.changed:
					got = append(got, what)
				case <-time.After(patience):
					t.Fatalf("heard of %v", got)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, []string{"prompts", "resources", "tools"}) {
				t.Errorf("heard of %v", got)
			}
			if !r.listed("fs__read") {
				t.Error("not listed after the client heard that lists changed")
			}
		})
	}
}

// A stream on which nothing is told is not silent, since proxies would cut it.
func TestStreamsAreNotSilent(t *testing.T) {
	for name, stream := range map[string]func(e *edge) request{"sessions": sessionStream(tokenAgent), "stateless": statelessStream} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, edgeOptions{silence: 20 * time.Millisecond})
			r := stream(e)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			comments := &awaited{text: "\n\n:\n\n:\n\n", seen: make(chan struct{})}
			r.follow = comments
			over := make(chan struct{})
			go func() {
				defer close(over)
				_, _ = e.try(ctx, r) // it is cut off below
			}()
			select {
			case <-comments.seen:
			case <-over:
				t.Error("the stream is silent")
			}
			cancel()
			<-over
		})
	}
}

// sessionStream opens a session, and returns the request for its stream.
func sessionStream(token string) func(e *edge) request {
	opening := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"},` +
		`"_meta":{"durward/proof":{"purpose":"PURPOSE_OPEN","counter":"1","time":"1","signature":"` + strings.Repeat("A", 86) + `=="}}}}`
	return func(e *edge) request {
		opened, _ := e.try(context.Background(), request{body: opening, token: token}) // without a session there is no stream
		return request{method: http.MethodGet, token: token, session: opened.header.Get("Mcp-Session-Id"), header: map[string]string{"Accept": "text/event-stream"}}
	}
}

func statelessStream(*edge) request {
	return request{body: `{"jsonrpc":"2.0","id":5,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		header: map[string]string{"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}}
}

// The stream of a client that was revoked ends, and its session with it, though the client asks for nothing; that of a bearer client
// whose session the vault lost goes on.
func TestARevokedClientHearsNothing(t *testing.T) {
	changed, ended := &vaultv1.WatchSessionsResponse{ListsChanged: true}, &vaultv1.WatchSessionsResponse{Session: "s-signer", Ended: true}
	for name, c := range map[string]struct {
		stream   func(e *edge) request
		revoked  *vaultv1.WatchSessionsResponse
		outlives bool
	}{
		"a bearer client's session":    {sessionStream(tokenAgent), changed, true},
		"a bearer client's request":    {statelessStream, changed, true},
		"a key-bound client's session": {sessionStream(tokenSigner), ended, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, edgeOptions{})
			l := e.listen(t, c.stream(e))
			over, listens := l.over, func() { l.hears(t, e) }
			listens()
			lose := func(principals ...string) {
				e.vault.mu.Lock()
				defer e.vault.mu.Unlock()
				clear(e.vault.sessions)
				for _, token := range principals {
					delete(e.vault.principals, token)
				}
			}
			if c.outlives {
				lose()
				listens()
				listens()
			}
			lose(tokenAgent, tokenSigner)
			e.vault.said <- c.revoked
			select {
			case <-over:
			case <-time.After(patience):
				t.Fatal("the stream goes on")
			}
			if n := e.front.Sessions(); n != 0 {
				t.Errorf("%d sessions are left", n)
			}
		})
	}
}

// While the gateway could not hear it, the vault let a client go that signs, or was started anew without it: its stream ends once the
// gateway hears the vault again. Those of the clients that are still let in go on, though the vault lost their sessions.
func TestAClientThatWasRevokedUnheardHearsNothing(t *testing.T) {
	for name, lost := range map[string]bool{"the watch broke off": false, "the vault started anew": true} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, edgeOptions{})
			revoked := e.listen(t, sessionStream(tokenSigner)(e))
			rest := []*listening{e.listen(t, sessionStream(tokenSecond)(e)), e.listen(t, sessionStream(tokenAgent)(e))}
			for _, l := range append(rest, revoked) {
				l.hears(t, e)
			}
			change := func(deaf bool, also func()) {
				e.vault.mu.Lock()
				defer e.vault.mu.Unlock()
				e.vault.deaf = deaf
				also()
				e.vault.news.Raise()
			}
			change(true, func() {
				delete(e.vault.principals, tokenSigner)
				for handle, principal := range e.vault.sessions {
					if lost || principal == "signer" {
						delete(e.vault.sessions, handle)
					}
				}
				e.vault.unsigned = 0
			})
			e.vault.news.await(t, "the watch breaks off", func() bool {
				e.vault.mu.Lock()
				defer e.vault.mu.Unlock()
				return e.vault.watches == 0
			})
			change(false, func() {})
			select {
			case <-revoked.over:
			case <-time.After(patience):
				t.Fatal("the stream of the client that was revoked goes on")
			}
			e.vault.news.await(t, "the vault is asked whether the other client that signs is let in", func() bool {
				e.vault.mu.Lock()
				defer e.vault.mu.Unlock()
				return e.vault.unsigned > 0
			})
			for _, l := range rest {
				l.hears(t, e)
			}
			if n := e.front.Sessions(); n != 2 {
				t.Errorf("%d sessions are left, want 2", n)
			}
		})
	}
}

// listening is a client's stream.
type listening struct {
	heard, over chan struct{}
}

func (e *edge) listen(t *testing.T, r request) *listening {
	l := &listening{make(chan struct{}, 100), make(chan struct{})}
	r.follow = writer(func(p []byte) (int, error) {
		for range bytes.Count(p, []byte("list_changed")) {
			l.heard <- struct{}{}
		}
		return len(p), nil
	})
	go func() {
		defer close(l.over)
		_, _ = e.try(t.Context(), r) // it ends without an answer in the one era
	}()
	return l
}

// hears has the vault say that lists changed until the client hears so.
func (l *listening) hears(t *testing.T, e *edge) {
	t.Helper()
	for len(l.heard) > 0 {
		<-l.heard // of before
	}
	for {
		e.vault.said <- &vaultv1.WatchSessionsResponse{ListsChanged: true}
		select {
		case <-l.heard:
			return
		case <-l.over:
			t.Fatal("the stream ended")
		case <-time.After(time.Second): // it may not be open yet
		}
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
