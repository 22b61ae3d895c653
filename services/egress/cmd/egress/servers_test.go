package main

import (
	"testing"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/downstream"
)

// Other hosts are reached for the servers there that are in force, and not where a human blocked them.
func TestAccepted(t *testing.T) {
	t.Parallel()
	list, err := destination.ParseList(destination.Source{}, []byte("allow: [stranger.example]\nblock: [bad.example, {domain: good.example, clients: [one]}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	var servers []downstream.Pinned
	for _, url := range []string{"", "https://good.example/mcp", "https://bad.example/mcp"} {
		servers = append(servers, downstream.Pinned{Entry: downstream.Entry{URL: url}})
	}
	for url, may := range map[string]bool{"https://good.example/": true, "https://bad.example/": false, "https://stranger.example/": false} {
		_, to, err := destination.ParseURL(url)
		if err != nil {
			t.Fatal(err)
		}
		if err := accepted(servers, list, to); (err == nil) != may {
			t.Errorf("%s: %v", url, err)
		}
	}
}
