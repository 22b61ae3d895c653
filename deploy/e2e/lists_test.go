package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
)

// TestListsFollowTheFiles: clients of both eras, over HTTP and through the bridge for a client that signs, hear it when a human pins a
// server's tools and when clients.yaml lets them call less. What they list then is so; for one that signs once its permits are renewed, which
// this test does not wait for.
func TestListsFollowTheFiles(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Egress: true})
	token := h.AddClient("agent")
	h.AddKeyBound("signer")
	h.StartAll()
	bridge := func() mcp.Transport { return &mcp.CommandTransport{Command: h.Command(h.StdioCommand("signer")...)} }
	type listener struct {
		*mcp.ClientSession
		name  string
		heard chan struct{}
		signs bool
	}
	var listeners []listener
	for _, c := range []struct {
		name, revision string
		transport      mcp.Transport
	}{
		{"sessions", "2025-11-25", h.Transport(token)},
		{"stateless", "2026-07-28", h.Transport(token)},
		{"the bridge, sessions", "2025-11-25", bridge()},
		{"the bridge, stateless", "2026-07-28", bridge()},
	} {
		heard := make(chan struct{}, 100)
		client := mcp.NewClient(&mcp.Implementation{Name: "listener", Version: "1"}, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { heard <- struct{}{} },
		})
		session, err := client.Connect(t.Context(), c.transport, &mcp.ClientSessionOptions{ProtocolVersion: c.revision})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		t.Cleanup(func() { _ = session.Close() })
		listeners = append(listeners, listener{session, c.name, heard, strings.HasPrefix(c.name, "the bridge")})
	}
	lists := func(l listener) bool {
		list, err := l.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
		return slices.ContainsFunc(list.Tools, func(tool *mcp.Tool) bool { return tool.Name == "notes__read" })
	}
	// Nobody lists but who heard, and each process reads the files by itself: the last one to do so makes the list right.
	until := func(want bool) {
		t.Helper()
		for _, l := range listeners {
			for right, end := false, time.After(harness.Patience); !right; {
				select {
				case <-l.heard:
					right = lists(l) == want || l.signs
				case <-end:
					t.Fatalf("%s: no word that lists changed was followed by a list that is right (notes__read: %v)", l.name, want)
				}
			}
		}
	}
	for _, l := range listeners {
		if lists(l) {
			t.Errorf("%s: notes__read is listed before it is pinned", l.name)
		}
	}
	pinNotes(t, h, h.Path("notes.txt"), "Adds a note.")
	until(true)
	clients := h.ReadFile("config/clients.yaml")
	for _, id := range []string{"agent", "signer"} {
		clients = strings.Replace(clients, "- id: "+id+"\n", "- id: "+id+"\n    may: [gpu_status, notes__add]\n", 1)
	}
	h.WriteFile("config/clients.yaml", clients)
	until(false)
}
