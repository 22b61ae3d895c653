package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/platform/downstream"
)

// served is an SDK's server with the tool that pinned has.
func served() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "sdk", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "echo", Description: "says it again", InputSchema: map[string]any{"type": "object"}},
		func(_ context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(request.Params.Arguments)}}}, nil
		})
	return server
}

// remoteManager reaches one server at url with a credential.
func remoteManager(t *testing.T, url string) *Manager {
	t.Helper()
	m := New(Config{
		Remote: &http.Transport{},
		Bearer: func(_ context.Context, server *downstream.Pinned, principal string) (string, error) {
			return server.Entry.Bearer + " of " + principal, nil
		},
	})
	server := pinned("far")
	server.Entry.Program, server.Entry.URL, server.Entry.Bearer = nil, url, "token"
	m.Set([]downstream.Pinned{server})
	t.Cleanup(m.Close)
	return m
}

// TestListTools: a server on another host is asked with the credential of its entry. None is that is not in force or runs here, and none
// while a panic lasts.
func TestListTools(t *testing.T) {
	t.Parallel()
	server := served()
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	var asked atomic.Int32
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if asked.Add(1); request.Header.Get("Authorization") != "Bearer token of" { // of nobody: a header ends without blanks
			http.Error(w, "", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, request)
	}))
	t.Cleanup(front.Close)
	m := remoteManager(t, front.URL)
	listing, err := m.ListTools(t.Context(), "far")
	if err != nil || len(listing.Tools) != 1 || listing.Tools[0].Name != "echo" {
		t.Errorf("%+v, %v", listing, err)
	}
	must(t, m.Freeze())
	before := asked.Load()
	if _, err := m.ListTools(t.Context(), "far"); err == nil || asked.Load() != before {
		t.Errorf("in a panic: %v", err)
	}
	if _, err := m.ListTools(t.Context(), "other"); err == nil {
		t.Error("one that is not in force is asked")
	}
	if _, err := manager(t, pinned("good")).ListTools(t.Context(), "good"); err == nil {
		t.Error("one that runs here is asked without its sandbox")
	}
}

// TestFreezeRemote: a panic ends what leads to a server on another host, a stream that stands too, and afterwards it is called anew.
func TestFreezeRemote(t *testing.T) {
	t.Parallel()
	server, begun, ended := served(), make(chan struct{}, 9), make(chan struct{}, 9)
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		if strings.Contains(string(body), "server/discover") {
			http.Error(w, "no session", http.StatusBadRequest)
			return
		}
		request.Body = io.NopCloser(strings.NewReader(string(body)))
		if request.Method == http.MethodGet {
			begun <- struct{}{}
			defer func() { ended <- struct{}{} }()
		}
		handler.ServeHTTP(w, request)
	}))
	t.Cleanup(front.Close)
	m := remoteManager(t, front.URL)
	if _, err := m.Call(t.Context(), "agent", "far", "echo", []byte(`{}`), sure); err != nil {
		t.Fatal(err)
	}
	<-begun
	if len(ended) > 0 {
		t.Error("no stream stands that a panic could end")
	}
	must(t, m.Freeze())
	<-ended
	if s := status(m, "far", "agent"); s.State == Running || !s.Frozen {
		t.Errorf("frozen: %v", s)
	}
	must(t, m.Thaw())
	if _, err := m.Call(t.Context(), "agent", "far", "echo", []byte(`{}`), sure); err != nil {
		t.Errorf("thawed: %v", err)
	}
}

// TestRemoteStreamBreaks: a server whose stream ends, and does not begin again, is spoken to anew by the next call. One that is under way hears
// what became of it.
func TestRemoteStreamBreaks(t *testing.T) {
	t.Parallel()
	server, streams, slow := served(), atomic.Int32{}, make(chan struct{})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		request.Body = io.NopCloser(strings.NewReader(string(body)))
		switch {
		case strings.Contains(string(body), "server/discover"):
			http.Error(w, "no session", http.StatusBadRequest)
		case strings.Contains(string(body), "slow"):
			close(slow)
			<-request.Context().Done()
		case request.Method != http.MethodGet:
			handler.ServeHTTP(w, request)
		case streams.Add(1)%2 == 1: // each session has a stream that ends, and another one that does not begin
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			if streams.Load() > 1 {
				<-slow
			}
		default:
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	t.Cleanup(front.Close)
	m := remoteManager(t, front.URL)
	if _, err := call(m, "far"); err != nil {
		t.Fatal(err)
	}
	for range 10_000 {
		if status(m, "far", "agent").State != Running {
			break
		}
		time.Sleep(time.Millisecond) // the SDK gives up in a moment, and says so to nobody else
	}
	if _, err := call(m, "far"); err != nil {
		t.Errorf("the next call: %v", err)
	}
	_, err := m.Call(t.Context(), "agent", "far", "echo", []byte(`{"slow":true}`), sure)
	if err == nil || err.Error() != "server far: the connection to it broke" {
		t.Errorf("a call that was under way: %v", err)
	}
	if _, err := call(m, "far"); err != nil || status(m, "far", "agent").Reason != errLost.Error() {
		t.Errorf("afterwards: %v, %v", err, status(m, "far", "agent"))
	}
}

// TestRemote calls a server over Streamable HTTP in both revisions, with answers as JSON and as events.
func TestRemote(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		for _, plain := range []bool{false, true} {
			t.Run(fmt.Sprintf("legacy %v, plain %v", legacy, plain), func(t *testing.T) {
				t.Parallel()
				server := served()
				handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{JSONResponse: plain, Stateless: !legacy})
				var version atomic.Value
				front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
					if got := request.Header.Get("Authorization"); got != "Bearer token of agent" {
						t.Errorf("%s carries %q", request.Method, got)
					}
					body, _ := io.ReadAll(request.Body)
					if legacy && strings.Contains(string(body), "server/discover") {
						http.Error(w, "no session", http.StatusBadRequest)
						return
					}
					version.Store(request.Header.Get("Mcp-Protocol-Version"))
					request.Body = io.NopCloser(strings.NewReader(string(body)))
					handler.ServeHTTP(w, request)
				}))
				t.Cleanup(front.Close)
				m := remoteManager(t, front.URL)
				result, err := m.Call(t.Context(), "agent", "far", "echo", []byte(`{"a":"<"}`), sure)
				must(t, err)
				if diff := cmp.Diff(Result{Content: []Content{{Kind: Text, Text: `{"a":"<"}`}}}, result); diff != "" {
					t.Error(diff)
				}
				if want := map[bool]string{true: "2025-11-25", false: "2026-07-28"}[legacy]; version.Load() != want {
					t.Errorf("the revision was %v, want %s", version.Load(), want)
				}
				server.AddTool(&mcp.Tool{Name: "echo", Description: "says it again, and more", InputSchema: map[string]any{"type": "object"}},
					func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
						return &mcp.CallToolResult{}, nil
					})
				if plain {
					return // nothing tells of it
				}
				for range 5000 {
					if _, err = m.Call(t.Context(), "agent", "far", "echo", []byte(`{}`), sure); err != nil {
						break
					}
					time.Sleep(time.Millisecond) // the notification is on its way, and nothing else tells of it
				}
				if err == nil || !strings.Contains(err.Error(), "is not what was accepted") {
					t.Errorf("a call after the change: %v", err)
				}
			})
		}
	}
}

// TestRemoteHostile are responses that end in one clear error.
func TestRemoteHostile(t *testing.T) {
	answer := func(w http.ResponseWriter, kind, body string) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, body)
	}
	for name, c := range map[string]struct {
		want string
		send func(w http.ResponseWriter, id string)
	}{
		"redirect": {"it redirects, which is not followed: it leads to http://127.0.0.1:1/mcp/", func(w http.ResponseWriter, _ string) {
			w.Header().Set("Location", "http://127.0.0.1:1/mcp/?state=x")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}},
		"redirect to a program": {"it redirects, which is not followed", func(w http.ResponseWriter, _ string) {
			w.Header().Set("Location", "javascript:alert(1)")
			w.WriteHeader(http.StatusFound)
		}},
		"large": {"it sent a message of more than 4 MiB", func(w http.ResponseWriter, id string) {
			answer(w, "application/json", `{"jsonrpc":"2.0","id":`+id+`,"result":{"a":"`+strings.Repeat("a", 5<<20)+`"}}`)
		}},
		"large event": {"it sent a message of more than 4 MiB", func(w http.ResponseWriter, _ string) {
			answer(w, "text/event-stream", "data: "+strings.Repeat("a", 5<<20)+"\n\n")
		}},
		"large event in lines": {"it sent a message of more than 4 MiB", func(w http.ResponseWriter, _ string) {
			answer(w, "text/event-stream", strings.Repeat("data: "+strings.Repeat("a", 1<<20)+"\n", 5)+"\n")
		}},
		"comments": {"it sent more than 1000 messages within a second that answer nothing", func(w http.ResponseWriter, _ string) {
			answer(w, "text/event-stream", strings.Repeat(": hello\n", 5000))
		}},
		"another's id": {"its answer is to no call that waits", func(w http.ResponseWriter, _ string) {
			answer(w, "application/json", `{"jsonrpc":"2.0","id":99,"result":{}}`)
		}},
		"batch": {"its answer is to no call that waits", func(w http.ResponseWriter, id string) {
			answer(w, "application/json", `[{"jsonrpc":"2.0","id":`+id+`,"result":{}}]`)
		}},
		"number": {"what it sent has the number 1e999, which is out of range", func(w http.ResponseWriter, id string) {
			answer(w, "text/event-stream", `data: {"jsonrpc":"2.0","id":`+id+`,"result":{"structuredContent":1e999}}`+"\n\n")
		}},
		"refusal": {"it answered with the error -32603: HTTP 401 text/plain", func(w http.ResponseWriter, _ string) {
			http.Error(w, "token expired, see \x1b[31m", http.StatusUnauthorized)
		}},
		"busy": {"it answered with the error -32603: HTTP 503", func(w http.ResponseWriter, _ string) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}},
		"page": {"it answered with the error -32603: HTTP 200 text/html", func(w http.ResponseWriter, _ string) {
			answer(w, "text/html", "<h1>Sign in</h1>")
		}},
		"no answer at all": {"it answered with the error -32603: HTTP 204", func(w http.ResponseWriter, _ string) {
			w.WriteHeader(http.StatusNoContent)
		}},
		"refusal with a reason": {"it answered with the error -32001: no", func(w http.ResponseWriter, _ string) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"n\u200bo"}}`)
		}},
		"no answer": {"its answer is not one that MCP knows", func(w http.ResponseWriter, _ string) {
			answer(w, "text/event-stream", ": bye\n\n")
		}},
		"for ever": {"it did not answer within 500ms", func(w http.ResponseWriter, _ string) {
			for range 20 {
				answer(w, "text/event-stream", "data: a")
				w.(http.Flusher).Flush()
				time.Sleep(50 * time.Millisecond) // the server dribbles
			}
		}},
		"gone": {"it ended the session", func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusNotFound) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := served()
			handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				body, _ := io.ReadAll(request.Body)
				_, id, _ := strings.Cut(string(body), `"id":`)
				id, _, _ = strings.Cut(id, ",")
				switch {
				case strings.Contains(string(body), "server/discover"):
					w.WriteHeader(http.StatusNotFound)
				case strings.Contains(string(body), "tools/call"):
					c.send(w, id)
				default:
					request.Body = io.NopCloser(strings.NewReader(string(body)))
					handler.ServeHTTP(w, request)
				}
			}))
			t.Cleanup(front.Close)
			m := remoteManager(t, front.URL)
			if name == "for ever" {
				server := *m.servers["far"]
				server.Entry.Timeouts.Call = 500 * time.Millisecond
				m.Set([]downstream.Pinned{server})
			}
			_, err := m.Call(t.Context(), "agent", "far", "echo", []byte(`{}`), sure)
			var told *Error
			if !errors.As(err, &told) || told.Text != c.want || told.Server != "far" {
				t.Errorf("the call ended with %v, want %s", err, c.want)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		front := httptest.NewServer(nil)
		front.Close()
		m := remoteManager(t, front.URL)
		if _, err := call(m, "far"); err == nil || !strings.Contains(err.Error(), "it cannot be reached: dial tcp") {
			t.Errorf("the call ended with %v", err)
		}
	})
}

// TestRemoteUndiscovered: a server that leaves the newest revision's first question open and refuses the next one is told of in our words.
func TestRemoteUndiscovered(t *testing.T) {
	t.Parallel()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if raw, _ := io.ReadAll(request.Body); strings.Contains(string(raw), "server/discover") {
			w.Header().Set("Content-Type", "text/event-stream")
			return
		}
		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(front.Close)
	_, err := call(remoteManager(t, front.URL), "far")
	if want := "server far: it answered with the error -32603: HTTP 403"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestRemoteNoted: a server that answers a notification with 200, and with a body that is no frame, is spoken to all the same.
func TestRemoteNoted(t *testing.T) {
	t.Parallel()
	for kind, body := range map[string]string{"application/json": "{}", "application/json; charset=utf-8": "", "text/event-stream": "\n", "text/plain": "OK"} {
		server := served()
		handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			raw, _ := io.ReadAll(request.Body)
			request.Body = io.NopCloser(strings.NewReader(string(raw)))
			switch {
			case strings.Contains(string(raw), "server/discover"):
				w.WriteHeader(http.StatusNotFound)
			case strings.Contains(string(raw), "notifications/"):
				handler.ServeHTTP(httptest.NewRecorder(), request)
				w.Header().Set("Content-Type", kind)
				_, _ = io.WriteString(w, body)
			default:
				handler.ServeHTTP(w, request)
			}
		}))
		t.Cleanup(front.Close)
		if _, err := call(remoteManager(t, front.URL), "far"); err != nil {
			t.Errorf("%s %q: %v", kind, body, err)
		}
	}
}

// TestRemoteForgets: a session that a server forgot while nobody called is begun anew, and the call that finds that out is answered.
func TestRemoteForgets(t *testing.T) {
	t.Parallel()
	server := served()
	serve := func() http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	}
	var handler atomic.Value
	handler.Store(serve())
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		raw, _ := io.ReadAll(request.Body)
		request.Body = io.NopCloser(strings.NewReader(string(raw)))
		if request.Method == http.MethodGet || strings.Contains(string(raw), "server/discover") {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		handler.Load().(http.Handler).ServeHTTP(w, request)
	}))
	t.Cleanup(front.Close)
	m := remoteManager(t, front.URL)
	if _, err := call(m, "far"); err != nil {
		t.Fatal(err)
	}
	handler.Store(serve()) // it was started again
	m.mu.Lock()
	r := m.instances[key{"far", "agent"}].run
	r.listed = r.listed.Add(-relist)
	m.mu.Unlock()
	if _, err := call(m, "far"); err != nil {
		t.Errorf("the next call: %v", err)
	}
	if s := status(m, "far", "agent"); s.Reason != "it ended the session" || s.Calls != 0 {
		t.Errorf("%+v", s)
	}
}

// TestRemoteUnsent: a call that is not sent, or whose answer breaks off, waits for nothing.
func TestRemoteUnsent(t *testing.T) {
	t.Parallel()
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "{")
	}))
	t.Cleanup(front.Close)
	for _, token := range []error{nil, errors.New("the credential is not granted")} {
		r := &remote{frames: &frames{}, dialed: &http.Transport{}, failed: func(error) {}, bearer: func(context.Context) (string, error) { return "token", token }}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`))
		must(t, err)
		if response, err := r.RoundTrip(request); err == nil {
			response.Body.Close()
			t.Errorf("with the credential's error %v: it is answered", token)
		}
		if len(r.pending) > 0 {
			t.Errorf("with the credential's error %v: %d calls wait for an answer", token, len(r.pending))
		}
	}
}
