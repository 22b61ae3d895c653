package mcpserver_test

import (
	"slices"
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
