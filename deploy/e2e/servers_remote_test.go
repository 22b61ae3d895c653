package e2e

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
)

// TestAServerThatListsNothingWithout its credential is added in two steps: an operator signs where the credential goes, and egress asks it for
// the tools that the operator then accepts. The credential is seen by that server and by nobody before.
func TestAServerThatListsNothingWithout(t *testing.T) {
	t.Parallel()
	secret := canary("far")
	server := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "look", Description: "Looks."}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "seen from afar"}}}, nil, nil
	})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil)
	var shown atomic.Int32
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		shown.Add(1)
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(far.Close)
	h := harness.New(t, harness.Options{Egress: true})
	h.WriteFile("config/egress.yaml", strings.Replace(h.ReadFile("config/egress.yaml"), "\nlocal: []\n", "\nlocal: [\""+far.Listener.Addr().String()+"\"]\n", 1))
	token := h.AddClient("agent")
	h.StartAll()
	if out := h.Run(secret, "credential", "add", "far-token", "--variable", "FAR_TOKEN", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	added := h.Ask("server", "add", far.URL, "--id", "far", "--bearer", "far-token", "--read", "look", "--yes")
	if added.Code != 0 || !strings.Contains(added.Stdout+added.Stderr, "durward server accept far") || shown.Load() != 0 {
		t.Fatalf("%+v; it was asked %d times with its credential", added, shown.Load())
	}
	h.Durward("credential", "grant", "far-token", "--server", "far", "--yes")
	harness.Eventually(t, "egress has the entry in force, and asks the server", func() error {
		out := h.Ask("server", "accept", "far", "--yes")
		if out.Code != 0 || !strings.Contains(out.Stdout, "far__look") {
			return errors.New(out.Stdout + out.Stderr)
		}
		return nil
	})
	if text := h.Durward("server", "list"); !strings.Contains(text, "in force") {
		t.Errorf("server list says %s", text)
	}
	agent := h.Connect(token)
	harness.Eventually(t, "its tool is called", func() error {
		if e := agent.Ask("far__look", map[string]any{}); e.Status != "ok" || !strings.Contains(string(e.Raw), "seen from afar") {
			return errors.New(string(e.Raw))
		}
		return nil
	})
}
