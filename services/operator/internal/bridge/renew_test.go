package bridge

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/proof"
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

// TestOpeningsNameWhoTheyAreFor: the vault sees under the client's signature for which agent and sender a session is opened. A
// gateway that drops the name, or puts another there, opens nothing with the proof; nor does a program that speaks as another agent
// than the bridge's, or as another one than opened the session.
func TestOpeningsNameWhoTheyAreFor(t *testing.T) {
	const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","_meta":{%s}}}`
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gpu_status","_meta":{%s}}}`
	const modernEra = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
	const ada, bob = `"durward/sender":{"user":"ada","room":"ops"}`, `"durward/sender":{"user":"bob","room":"ops"}`
	intern, lead := speaker{agent: "intern"}, speaker{agent: "lead"}
	for name, c := range map[string]struct {
		agent string // the bridge's
		lines []string
		want  []speaker
	}{
		"nobody in particular":            {"", []string{fmt.Sprintf(initialize, "")}, []speaker{{}}},
		"the bridge's agent":              {"intern", []string{fmt.Sprintf(initialize, "")}, []speaker{intern}},
		"whatever its program says":       {"intern", []string{fmt.Sprintf(initialize, `"durward/agent":"lead"`)}, []speaker{intern}},
		"the program's agent":             {"", []string{fmt.Sprintf(initialize, `"durward/agent":"lead"`)}, []speaker{lead}},
		"a lost session":                  {"", []string{fmt.Sprintf(initialize, `"durward/agent":"intern"`), fmt.Sprintf(call, "")}, []speaker{intern, intern}},
		"a lost session, by another":      {"", []string{fmt.Sprintf(initialize, `"durward/agent":"intern"`), fmt.Sprintf(call, `"durward/agent":"lead"`)}, []speaker{intern, intern}},
		"a sender":                        {"", []string{fmt.Sprintf(initialize, ada)}, []speaker{{user: "ada", room: "ops"}}},
		"requests that stand alone":       {"intern", []string{fmt.Sprintf(call, modernEra+","+ada), fmt.Sprintf(call, modernEra+","+bob)}, []speaker{{"intern", "ada", "ops"}, {"intern", "bob", "ops"}}},
		"half a sender is none":           {"", []string{fmt.Sprintf(initialize, `"durward/sender":{"user":"ada"}`)}, []speaker{{}}},
		"a number is nobody's name":       {"", []string{fmt.Sprintf(initialize, `"durward/agent":7`)}, []speaker{{}}},
		"a name that only looks like one": {"", []string{fmt.Sprintf(initialize, `"Durward/Agent":"lead"`)}, []speaker{{}}},
	} {
		t.Run(name, func(t *testing.T) {
			public, key := testKey(t)
			g := newGateway(t, public)
			g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
				if purpose == callv1.Proof_PURPOSE_OPEN && m.statelessHeaders() == nil {
					g.renamed++
					g.window = &proof.Window{}
					return false
				}
				if purpose != callv1.Proof_PURPOSE_OPEN {
					writeJSON(w, m.ID, lacking(needOpen, g.ref()))
					return true
				}
				return false
			}
			b := start(t, g, key, nil, func(cfg *Config) { cfg.Agent = c.agent })
			for _, line := range c.lines {
				b.send(line)
				b.receive()
			}
			b.close()
			g.mu.Lock()
			defer g.mu.Unlock()
			var got []speaker
			for _, o := range g.openings {
				by := speaker{o.claim.Agent, o.claim.SenderUser, o.claim.SenderRoom}
				got = append(got, by)
				for _, other := range []speaker{{}, intern, lead, {user: "bob", room: "ops"}, {"intern", "ada", "ops"}} {
					spoilt := o.claim
					spoilt.Agent, spoilt.SenderUser, spoilt.SenderRoom = other.agent, other.user, other.room
					if err := proof.Verify(public, spoilt, o.proof); (err == nil) != (other == by) {
						t.Errorf("an opening for %+v opens one for %+v: %v", by, other, err)
					}
				}
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(speaker{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestCountedReads: a tool that only looks, and that a human's rules count or ask about, is called with a proof that the gateway
// asks for, in both eras, however often; the model is told nothing of it.
func TestCountedReads(t *testing.T) {
	for name, meta := range map[string]string{"sessions": "", "stateless": `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`} {
		t.Run(name, func(t *testing.T) {
			public, key := testKey(t)
			g := newGateway(t, public)
			g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
				if purpose == callv1.Proof_PURPOSE_CALL {
					return false
				}
				writeJSON(w, m.ID, lacking(needCall, g.ref()))
				return true
			}
			now := time.Unix(1_800_000_000, 0)
			c := start(t, g, key, func() time.Time { g.mu.Lock(); defer g.mu.Unlock(); return now })
			if name == "sessions" {
				c.handshake()
			}
			for id := 1; id <= 4; id++ {
				c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"list_modes","arguments":{}%s}}`, id, meta))
				if got := c.receive(); !strings.Contains(got, `"ok":true`) {
					t.Errorf("call %d: %s", id, got)
				}
				g.mu.Lock()
				now = now.Add(20 * time.Second) // from the third on a renewal is due
				g.mu.Unlock()
			}
			// Arguments that are wrong are for the gateway to refuse, with or without a proof.
			c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"list_modes","arguments":{"reason":"x"}%s}}`, meta))
			if got := c.receive(); !strings.Contains(got, "PROOF_REQUIRED") {
				t.Errorf("arguments that are wrong: %s", got)
			}
			c.close()
			if n := strings.Count(g.events(), "PURPOSE_CALL"); n != 4 {
				t.Errorf("%d proofs for 4 calls:\n%s", n, g.events())
			}
		})
	}
}

// TestPermitsBeforeACall: a call that a human may have to decide on is held by the session's permits. Where they have run out since
// the last request, the bridge renews them before it; where they have not, it asks nothing more.
func TestPermitsBeforeACall(t *testing.T) {
	for name, c := range map[string]struct{ meta, renewal string }{
		"sessions":  {"", "ping"},
		"stateless": {`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`, "tools/list"},
	} {
		t.Run(name, func(t *testing.T) {
			public, key := testKey(t)
			g := newGateway(t, public)
			g.answers = func(w http.ResponseWriter, m message, purpose callv1.Proof_Purpose) bool {
				if m.Method != methodCall || purpose == callv1.Proof_PURPOSE_CALL {
					return false
				}
				writeJSON(w, m.ID, lacking(needCall, g.ref()))
				return true
			}
			now := time.Unix(1_800_000_000, 0)
			b := start(t, g, key, func() time.Time { g.mu.Lock(); defer g.mu.Unlock(); return now })
			if name == "sessions" {
				b.handshake()
			}
			for id := 1; id <= 3; id++ {
				b.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"start_service","arguments":{"service_id":"demo"}%s}}`, id, c.meta))
				if got := b.receive(); !strings.Contains(got, `"ok":true`) {
					t.Errorf("call %d: %s", id, got)
				}
				g.mu.Lock()
				if now = now.Add(20 * time.Second); id == 2 {
					now = now.Add(time.Minute)
				}
				g.mu.Unlock()
			}
			b.close()
			want := "tools/call 2 PURPOSE_CALL\n" + c.renewal + ` "durward-renewal" PURPOSE_RENEW` + "\ntools/call 3 PURPOSE_CALL"
			if !strings.Contains(g.events(), want) || strings.Count(g.events(), "PURPOSE_RENEW") != 1 {
				t.Errorf("events:\n%s", g.events())
			}
		})
	}
}
