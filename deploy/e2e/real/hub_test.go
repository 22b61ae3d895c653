//go:build real

package real

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
)

// TestGatedModel: Hugging Face's own client, as a service of the catalogue, fetches a gated model with a token that a human stored and
// granted, and is started by an agent. The hub, on loopback, wants the token of that day.
func TestGatedModel(t *testing.T) {
	const model = `{"architectures":["Tried"]}`
	var token atomic.Pointer[string]
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/org/gated/resolve/main/config.json":
			http.NotFound(w, r)
		case r.Header.Get("Authorization") != "Bearer "+*token.Load():
			http.Error(w, "gated", http.StatusUnauthorized)
		default:
			w.Header().Set("ETag", `"1"`)
			http.ServeContent(w, r, "config.json", time.Unix(1, 0), strings.NewReader(model))
		}
	}))
	defer hub.Close()
	script, err := filepath.Abs("hub.mjs")
	must(t, err)
	h := harness.Start(t, harness.Options{Catalog: func(h *harness.Host) string {
		return fmt.Sprintf("version: 1\nservices:\n  - {id: llm, name: llm, driver: process, argv: [%q, %q, %q, %q, \"%d\"], writes: [%q, %q], credentials: [hf-token], port: %d, health: {path: /}}\n",
			node(t), script, hub.URL, h.Path("model"), h.Port(0), h.Path("model"), h.Path("model.new"), h.Port(0))
	}})
	agent := h.Connect(h.AddClient("agent"))
	first, second := "hf_"+rand.Text(), "hf_"+rand.Text()
	begin := func() harness.Envelope {
		asked := agent.Ask("start_service", map[string]any{"service_id": "llm"})
		if asked.Status != "pending_approval" {
			t.Fatalf("start_service: %s", asked.Raw)
		}
		h.Approve(asked.OperationID)
		return agent.Ask("wait_operation", asked.Next.Arguments)
	}
	store := func(value string, line ...string) {
		t.Helper()
		if out := h.Run(value, append([]string{"credential"}, append(line, "--stdin", "--yes")...)...); out.Code != 0 {
			t.Fatalf("%s: %+v", line, out)
		}
	}
	token.Store(&first)
	store(first, "add", "hf-token", "--path-variable", "HF_TOKEN_PATH")
	h.Durward("credential", "grant", "hf-token", "llm", "--yes")
	if started := begin(); started.Status != "ok" || h.ReadFile("model") != model {
		t.Fatalf("with its token: %s", started.Raw)
	}

	// Rotated: the value of before opens nothing any more, and the next start has the new one.
	h.Durward("stop", "llm", "--yes")
	token.Store(&second)
	if refused := begin(); refused.Status == "ok" {
		t.Errorf("the old token works: %s", refused.Raw)
	}
	store(second, "rotate", "hf-token")
	if started := begin(); started.Status != "ok" {
		t.Fatalf("with the new token: %s", started.Raw)
	}
	for place, value := range h.Disclosed(first, second) {
		t.Errorf("%s holds %s", place, value)
	}

	// Revoked: said who holds it still, and the next start gets nothing.
	if out := h.Durward("credential", "revoke", "hf-token"); !strings.Contains(out, "llm got version 2") {
		t.Errorf("revoke:\n%s", out)
	}
	h.Durward("stop", "llm", "--yes")
	if refused := begin(); refused.Status != "error" {
		t.Errorf("after it was revoked: %s", refused.Raw)
	}
}
