package mcpserver_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
)

// A client hears that lists changed, and what it lists then has what was pinned, however young the vault's word was (the vault is not
// asked about a young one otherwise: TestWhatIsPinnedLaterIsListed).
func TestClientsHearThatListsChanged(t *testing.T) {
	for era, version := range readerEras {
		t.Run(era, func(t *testing.T) {
			e := newEdge(t, edgeOptions{fresh: time.Hour})
			heard := make(chan string, 10)
			client := mcp.NewClient(&mcp.Implementation{Name: "go-client", Version: "1"}, &mcp.ClientOptions{
				ToolListChangedHandler:     func(context.Context, *mcp.ToolListChangedRequest) { heard <- "tools" },
				PromptListChangedHandler:   func(context.Context, *mcp.PromptListChangedRequest) { heard <- "prompts" },
				ResourceListChangedHandler: func(context.Context, *mcp.ResourceListChangedRequest) { heard <- "resources" },
			})
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: e.url, HTTPClient: &http.Client{Transport: bearer{tokenAgent}},
			}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			must(t, err)
			t.Cleanup(func() { _ = session.Close() }) // the server may have gone first
			listed := func() bool {
				list, err := session.ListTools(t.Context(), nil)
				must(t, err)
				return slices.ContainsFunc(list.Tools, func(tool *mcp.Tool) bool { return tool.Name == "fs__read" })
			}
			if listed() {
				t.Error("listed before it is pinned")
			}
			pin(t, 1)
			e.vault.said <- &vaultv1.WatchSessionsResponse{ListsChanged: true}
			var got []string
			for range 3 {
				select {
				case what := <-heard:
					got = append(got, what)
				case <-time.After(patience):
					t.Fatalf("heard of %v", got)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, []string{"prompts", "resources", "tools"}) {
				t.Errorf("heard of %v", got)
			}
			if !listed() {
				t.Error("not listed after the client heard that lists changed")
			}
		})
	}
}
