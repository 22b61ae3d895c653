package bridge

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rotate gives the gateway another credential of the client, and ends what the old one opened.
func (g *gateway) rotate(token string, public ed25519.PublicKey) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.token, g.public = token, public
	g.session++ // the old id is not known any more
}

// TestRotation: a bridge that runs while its client's credential is replaced goes on with the new one, in both eras, and without
// one it says so.
func TestRotation(t *testing.T) {
	public, key := testKey(t)
	newPublic, newKey := testKey(t)
	for name, call := range map[string]string{
		"sessions":  `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo"}}}`,
		"stateless": `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, public)
			var ready atomic.Bool
			c := start(t, g, key, nil, func(cfg *Config) {
				cfg.Reload = func() (string, ed25519.PrivateKey, error) {
					if !ready.Load() {
						return "", nil, errors.New("not yet")
					}
					return "another", newKey, nil
				}
			})
			if name == "sessions" {
				c.handshake()
			}
			ask := func(id int) string {
				t.Helper()
				c.send(fmt.Sprintf(call, id))
				return c.receive()
			}
			if got := ask(1); !strings.Contains(got, `"ok":true`) {
				t.Fatalf("before: %s", got)
			}
			g.rotate("another", newPublic)
			if got := ask(2); strings.Contains(got, `"ok":true`) {
				t.Fatalf("with the old credential: %s", got)
			}
			ready.Store(true)
			for id := 3; id < 6; id++ {
				if got := ask(id); !strings.Contains(got, `"ok":true`) {
					t.Errorf("with the new credential: %s", got)
				}
			}
			c.close()
		})
	}
}

// TestAgent: the bridge says which agent it speaks for, whatever its program says, where a session can begin.
func TestAgent(t *testing.T) {
	public, key := testKey(t)
	g := newGateway(t, public)
	c := start(t, g, key, nil, func(cfg *Config) { cfg.Agent = "planner" })
	c.send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","_meta":{"durward/agent":"root"}}}`)
	c.receive()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status"}}`)
	c.receive()
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"gpu_status","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`)
	c.receive()
	c.close()
	g.mu.Lock()
	defer g.mu.Unlock()
	if diff := cmp.Diff([]string{"initialize planner", "tools/call planner"}, g.agents); diff != "" {
		t.Error(diff)
	}
}
