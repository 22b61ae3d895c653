//go:build real

package real

import (
	"context"
	"errors"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
)

// gosdk is a client of the official Go SDK.
type gosdk struct {
	t       *testing.T
	session *mcp.ClientSession
	tools   []*mcp.Tool
	updates chan string
	// relists holds a word for each time that the client heard that its tools changed.
	relists chan struct{}

	mu       sync.Mutex
	progress []string
}

// bearer puts a token on every request.
type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

func startGo(t *testing.T, transport mcp.Transport, revision string) *gosdk {
	t.Helper()
	c := &gosdk{t: t, updates: make(chan string, 100), relists: make(chan struct{}, 100)}
	client := mcp.NewClient(&mcp.Implementation{Name: "go-sdk", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.progress = append(c.progress, r.Params.Message)
		},
		ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { c.relists <- struct{}{} },
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { c.updates <- r.Params.URI },
	})
	var err error
	if c.session, err = client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.session.Close() }) // the server may have gone first
	list, err := c.session.ListTools(t.Context(), nil)
	must(t, err)
	c.tools = list.Tools
	return c
}

func (c *gosdk) Revision() string   { return c.session.InitializeResult().ProtocolVersion }
func (c *gosdk) Tools() []*mcp.Tool { return c.tools }

func (c *gosdk) Call(tool string, arguments map[string]any, times int) ([]*mcp.CallToolResult, []string) {
	c.t.Helper()
	c.mu.Lock()
	c.progress = nil
	c.mu.Unlock()
	results, errs := make([]*mcp.CallToolResult, times), make([]error, times)
	var calls sync.WaitGroup
	for i := range times {
		calls.Go(func() {
			params := &mcp.CallToolParams{Name: tool, Arguments: arguments}
			params.SetProgressToken("progress " + tool)
			results[i], errs[i] = c.session.CallTool(c.t.Context(), params)
		})
	}
	calls.Wait()
	if err := errors.Join(errs...); err != nil {
		c.t.Fatalf("%s: %v", tool, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return results, c.progress
}

func (c *gosdk) Cut(tool string, arguments map[string]any) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := c.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments}); err == nil {
		c.t.Errorf("%s was answered though it was cancelled", tool)
	}
}

func (c *gosdk) List() (resources, templates []string) {
	c.t.Helper()
	list, err := c.session.ListResources(c.t.Context(), nil)
	must(c.t, err)
	for _, r := range list.Resources {
		resources = append(resources, r.URI)
	}
	families, err := c.session.ListResourceTemplates(c.t.Context(), nil)
	must(c.t, err)
	for _, f := range families.ResourceTemplates {
		templates = append(templates, f.URITemplate)
	}
	return resources, templates
}

func (c *gosdk) Read(uri string) string {
	c.t.Helper()
	result, err := c.session.ReadResource(c.t.Context(), &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		c.t.Fatalf("%s: %v", uri, err)
	}
	var text strings.Builder
	for _, part := range result.Contents {
		text.WriteString(part.Text)
	}
	return text.String()
}

func (c *gosdk) Complete(uri, name, value string) []string {
	c.t.Helper()
	result, err := c.session.Complete(c.t.Context(), &mcp.CompleteParams{
		Ref: &mcp.CompleteReference{Type: "ref/resource", URI: uri}, Argument: mcp.CompleteParamsArgument{Name: name, Value: value},
	})
	must(c.t, err)
	return result.Completion.Values
}

func (c *gosdk) Subscribe(uri string) {
	c.t.Helper()
	if err := c.session.Subscribe(c.t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
		c.t.Fatalf("subscribe to %s: %v", uri, err)
	}
}

func (c *gosdk) Updated() string {
	c.t.Helper()
	select {
	case uri := <-c.updates:
		return uri
	case <-time.After(harness.Patience):
		c.t.Fatal("no update came")
		return ""
	}
}

// TestGoSDK runs the official Go SDK's client in both eras, over HTTP with a bearer token and through the bridge, which signs.
func TestGoSDK(t *testing.T) {
	t.Parallel()
	var table results
	t.Run("clients", func(t *testing.T) {
		for _, revision := range []string{"2025-06-18", "2025-11-25", "2026-07-28"} {
			for _, transport := range []string{"http", "stdio"} {
				name := "go, " + revision + ", " + transport
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					h := harness.Start(t, harness.Options{HoldS: 1, Limits: harness.DefaultLimits})
					var way mcp.Transport
					if transport == "stdio" {
						h.AddKeyBound("agent")
						line := h.StdioCommand("agent")
						way = &mcp.CommandTransport{Command: exec.Command(line[0], line[1:]...)}
					} else {
						way = &mcp.StreamableClientTransport{Endpoint: h.MCPURL(), HTTPClient: &http.Client{Transport: bearer{h.AddClient("agent")}}}
					}
					c := startGo(t, way, revision)
					if c.Revision() != revision {
						t.Errorf("the client speaks %s, want %s", c.Revision(), revision)
					}
					lead(t, h, c, func(what string) { table.did(name, what) })
				})
			}
		}
	})
	t.Logf("\n%s", &table)
}

// TestNewsAfterPermitsEnded: a client that signs, waits for news and asks for nothing else hears them when the permits of its
// session, which live for a minute, would have ended; and that its lists changed once more, when they are others.
func TestNewsAfterPermitsEnded(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{HoldS: 1, Limits: harness.DefaultLimits})
			h.AddKeyBound("agent")
			line := h.StdioCommand("agent")
			c := startGo(t, &mcp.CommandTransport{Command: exec.Command(line[0], line[1:]...)}, revision)
			service := "durward://services/" + harness.DemoService
			c.Subscribe(service)
			h.WriteFile("config/clients.yaml", h.ReadFile("config/clients.yaml")+"# read anew\n")
			time.Sleep(10 * time.Second) // until word of that is over
			told := len(c.relists)
			time.Sleep(55 * time.Second) // a permit lives for a minute of another process's clock
			// What it listed when it heard of the change may be of before.
			if now := len(c.relists); told == 0 || now == told {
				t.Errorf("the client heard %d times that lists changed, and %d times once its permits were others", told, now-told)
			}
			other := h.Connect(h.AddClient("other"))
			asked := other.Call("start_service", demo)
			h.Approve(asked.OperationID)
			if e := other.Call("wait_operation", asked.Next.Arguments); e.Status != "ok" {
				t.Fatalf("wait_operation: %s", e.Raw)
			}
			if uri := c.Updated(); uri != service {
				t.Errorf("the client was told that %s changed, want %s", uri, service)
			}
		})
	}
}
