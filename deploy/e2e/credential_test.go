package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// needy is the service that needs a credential. It writes a digest of what it got, never that itself.
const needy = "needy"

func needyCatalog(h *harness.Host) string {
	program, seen := filepath.Join(h.Dir, "needy.sh"), filepath.Join(h.Dir, "seen")
	h.WriteFile("needy.sh", `#!/bin/sh
for value in "$(cat "$HF_TOKEN_PATH")" "$SECOND"; do printf %s "$value" | sha256sum | cut -d' ' -f1; done >"$1.new"
mv "$1.new" "$1"
exec "$2" -port "$3" -touch "$1.began"
`)
	if err := os.Chmod(program, 0o755); err != nil {
		panic(err)
	}
	entry := func(id, credentials string, n int) string {
		return fmt.Sprintf("  - {id: %s, name: %s, driver: process, argv: [%q, %q, %q, \"%d\"], writes: [%q, %q], credentials: %s, port: %d, health: {path: /health}}\n",
			id, id, program, seen, filepath.Join(h.Bin, "durward-demo"), h.Port(n), seen, seen+".began", credentials, h.Port(n))
	}
	return "version: 1\nservices:\n" + entry(needy, "[hf-token, second]", 0) + entry("other", "[hf-token]", 1)
}

// TestCredentials is the walk-through of deploy/docs/credentials.md: a program that needs two credentials is granted them, an agent starts
// it, it works, and the values are nowhere that the agent, the gateway, the executor, audit or a log could show them.
func TestCredentials(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{Catalog: needyCatalog})
	agent := h.Connect(h.AddClient("agent"))
	first, second, third := canary("first"), canary("second"), canary("third")

	// Not stored, not granted: it does not start, and the agent is told a sentence that names nothing.
	refused := start(t, h, agent, needy)
	if refused.Status != "error" || refused.Error.Code != "FAILED" || !strings.Contains(refused.Error.Message, "not stored, or not granted") {
		t.Fatalf("without credentials: %s", refused.Raw)
	}
	if out := h.Run(first, "credential", "add", "hf-token", "--path-variable", "HF_TOKEN_PATH", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	importing := h.Command(filepath.Join(h.Bin, "durward"), "--home", h.Dir, "credential", "import-env", "SECOND", "--yes")
	importing.Env = append(importing.Env, "SECOND="+second)
	if out, err := importing.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("deprecated")) || bytes.Contains(out, []byte(second)) {
		t.Fatalf("import-env: %v\n%s", err, out)
	}
	h.Durward("credential", "grant", "second", needy, "--yes")
	if refused := start(t, h, agent, needy); refused.Status != "error" {
		t.Fatalf("one of two is not granted: %s", refused.Raw)
	}
	h.Durward("credential", "grant", "hf-token", needy, "--yes")
	if started := start(t, h, agent, needy); started.Status != "ok" {
		t.Fatalf("with both: %s", started.Raw)
	}
	got(t, h, first, second)

	// The entry of another service names it, and no human granted it there.
	if refused := start(t, h, agent, "other"); refused.Status != "error" {
		t.Errorf("another service: %s", refused.Raw)
	}

	// Rotated: what runs keeps its value, the next start has the new one, also after a restart of the vault and with new keys.
	if out := h.Run(third+"\n", "credential", "rotate", "hf-token", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("rotate: %+v", out)
	}
	h.Durward("vault", "rotate-keys")
	h.Process(harness.Vault).Stop()
	h.StartProcess(harness.Vault)
	agent = h.Connect(h.AddClient("again"))
	h.Durward("stop", needy, "--yes")
	h.Durward("start", needy, "--yes")
	got(t, h, third, second)
	if list := h.Durward("credential", "list"); !strings.Contains(list, "hf-token") || !strings.Contains(list, "by "+needy) {
		t.Errorf("list:\n%s", list)
	}
	for place, value := range h.Disclosed(first, second, third) {
		t.Errorf("%s holds %s", place, value)
	}
	if log := h.Durward("audit", "search", "--kind", "credential-used", "--json"); strings.Count(log, `"domain"`) < 4 || !strings.Contains(log, needy) {
		t.Errorf("the log does not tell each use:\n%s", log)
	}

	// Revoked: said who holds it still, and the next start gets nothing.
	if out := h.Durward("credential", "revoke", "hf-token"); !strings.Contains(out, needy+" got version 2") {
		t.Errorf("revoke:\n%s", out)
	}
	h.Durward("stop", needy, "--yes")
	if refused := start(t, h, agent, needy); refused.Status != "error" {
		t.Errorf("after it was revoked: %s", refused.Raw)
	}
	h.Durward("credential", "remove", "hf-token", "--version", "1", "--yes")
	h.Durward("credential", "remove", "hf-token", "--yes")
	h.Durward("audit", "verify")
}

// TestAProgramThatNeedsItsToken: a program fetches a gated model from a hub, which wants the token of that day, and serves only then. It
// comes back by its rule without a call once a human said that it may, and not before.
func TestAProgramThatNeedsItsToken(t *testing.T) {
	t.Parallel()
	var token atomic.Pointer[string]
	fetched := make(chan struct{}, 16)
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+*token.Load() {
			http.Error(w, "gated", http.StatusUnauthorized)
			return
		}
		fetched <- struct{}{}
		fmt.Fprint(w, "the weights")
	}))
	defer hub.Close()
	h := harness.Start(t, harness.Options{Catalog: func(h *harness.Host) string {
		h.WriteFile("hub.sh", `#!/bin/sh
set -e
curl -fsS -H @- "$1/model" >"$2" <<TOKEN
Authorization: Bearer $(cat "$HF_TOKEN_PATH")
TOKEN
exec "$3" -port "$4" -touch "$2.began"
`)
		if err := os.Chmod(h.Path("hub.sh"), 0o755); err != nil {
			panic(err)
		}
		return fmt.Sprintf("version: 1\nservices:\n  - {id: llm, name: llm, driver: process, argv: [%q, %q, %q, %q, \"%d\"], writes: [%q, %q], credentials: [hf-token], port: %d, health: {path: /health}, restart: {max: 10, within_s: 600}}\n",
			h.Path("hub.sh"), hub.URL, h.Path("weights"), filepath.Join(h.Bin, "durward-demo"), h.Port(0), h.Path("weights"), h.Path("weights.began"), h.Port(0))
	}})
	agent := h.Connect(h.AddClient("agent"))
	first, second := canary("hub-1"), canary("hub-2")
	token.Store(&first)
	if out := h.Run(first, "credential", "add", "hf-token", "--path-variable", "HF_TOKEN_PATH", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	h.Durward("credential", "grant", "hf-token", "llm", "--yes")
	if started := start(t, h, agent, "llm"); started.Status != "ok" || h.ReadFile("weights") != "the weights" {
		t.Fatalf("with its token: %s", started.Raw)
	}
	<-fetched

	// It ends by itself. Its rule would start it again, and it gets no token without a call.
	end := func() {
		t.Helper()
		pids := h.ServicePIDs()
		if len(pids) != 1 {
			t.Fatalf("programs: %v", pids)
		}
		must(t, syscall.Kill(pids[0], syscall.SIGKILL))
	}
	end()
	harness.Eventually(t, "its failure is told", func() error {
		if out := h.Durward("audit", "search", "--json"); !strings.Contains(out, "not granted to it unattended") {
			return errors.New(out)
		}
		return nil
	})
	// A human lets it, for a time. The hub wants another token by now, which a human stores.
	h.Durward("credential", "grant", "hf-token", "llm", "--unattended", "--for", "1h", "--yes")
	token.Store(&second)
	if out := h.Run(second, "credential", "rotate", "hf-token", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("rotate: %+v", out)
	}
	h.Durward("start", "llm", "--yes")
	<-fetched
	end()
	<-fetched // without a call
	harness.Eventually(t, "the use is recorded", func() error {
		if log := h.Durward("audit", "search", "--kind", "credential-used", "--json"); !strings.Contains(log, `"unattended": "yes"`) {
			return errors.New(log)
		}
		return nil
	})
	for place, value := range h.Disclosed(first, second) {
		t.Errorf("%s holds %s", place, value)
	}
	if out := h.Durward("credential", "revoke", "hf-token"); !strings.Contains(out, "llm got version 2") {
		t.Errorf("revoke:\n%s", out)
	}
}

// TestSealedCredentials needs a passphrase after each start of the vault.
func TestSealedCredentials(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{Catalog: needyCatalog})
	h.WriteFile("config/vault.yaml", h.ReadFile("config/vault.yaml")+"\ncredentials: {key: passphrase}\n")
	h.StartAll()
	add := []string{"credential", "add", "hf-token", "--path-variable", "HF_TOKEN_PATH", "--stdin", "--yes"}
	if out := h.Run("x", add...); out.Code != 4 || !strings.Contains(out.Stderr, "durward vault unseal") {
		t.Errorf("add while it is sealed: %+v", out)
	}
	unseal := func(passphrase string) int { return h.Run(passphrase, "vault", "unseal", "--stdin").Code }
	if code := unseal("correct horse"); code != 0 {
		t.Fatalf("the first passphrase: %d", code)
	}
	value := canary("sealed")
	if out := h.Run(value, add...); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	if out := h.Run("s", "credential", "add", "second", "--variable", "SECOND", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	for _, name := range []string{"hf-token", "second"} {
		h.Durward("credential", "grant", name, needy, "--yes")
	}
	h.Process(harness.Vault).Stop()
	h.StartProcess(harness.Vault)
	agent := h.Connect(h.AddClient("agent"))
	if sealed := start(t, h, agent, needy); sealed.Status != "error" || sealed.Error.Code != "SEALED" {
		t.Errorf("a start while it is sealed: %s", sealed.Raw)
	}
	if list := agent.Ask("list_services", nil); list.Status != "ok" {
		t.Errorf("what needs no credential: %s", list.Raw)
	}
	told := func() bool {
		return strings.Contains(h.Run("", "status").Stdout, "sealed: what needs a stored credential does not start")
	}
	if !told() {
		t.Error("status does not say that the credentials are sealed")
	}
	if code := unseal("wrong horse"); code != 4 {
		t.Errorf("a wrong passphrase: %d", code)
	}
	if out := h.Run("wrong horse", "vault", "rotate-keys", "--stdin"); out.Code == 0 {
		t.Errorf("keys changed by a wrong passphrase: %+v", out)
	}
	if code := unseal("correct horse"); code != 0 {
		t.Fatalf("the passphrase: %d", code)
	}
	if told() {
		t.Error("status says that they are sealed, and they are not")
	}
	if out := h.Run("correct horse", "vault", "rotate-keys", "--stdin"); out.Code != 0 {
		t.Errorf("rotate: %+v", out)
	}
	if started := start(t, h, agent, needy); started.Status != "ok" {
		t.Fatalf("unsealed: %s", started.Raw)
	}
	got(t, h, value, "s")
	undumped(t, h.Process(harness.Vault).PID())
	for place, what := range h.Disclosed(value, "correct horse") {
		t.Errorf("%s holds %s", place, what)
	}
}

// undumped has a process that holds keys leave no core, and let no other of its user look into it: the kernel gives what /proc says of it to
// root, which tells nothing where root runs this.
func undumped(t *testing.T, pid int) {
	t.Helper()
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil || !regexp.MustCompile(`Max core file size +0 +0 `).Match(limits) {
		t.Errorf("a core may be dumped: %v\n%s", err, limits)
	}
	info, err := os.Stat(fmt.Sprintf("/proc/%d/environ", pid))
	must(t, err)
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != 0 {
		t.Errorf("user %d may look into the process", owner)
	}
}

// TestCredentialsWithoutTheHandover is the search's control: an executor that opens what is sealed for the launcher holds the value.
func TestCredentialsWithoutTheHandover(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{
		Catalog: needyCatalog, Build: harness.Build{Weak: true}, Flags: map[string][]string{harness.Executor: {"-weaken", "handover"}},
	})
	value := canary("weak")
	if out := h.Run(value, "credential", "add", "hf-token", "--path-variable", "HF_TOKEN_PATH", "--stdin", "--yes"); out.Code != 0 {
		t.Fatalf("add: %+v", out)
	}
	h.Durward("credential", "grant", "hf-token", "other", "--yes")
	h.Durward("start", "other", "--yes")
	if found := h.Disclosed(value); found["memory of the executor"] == "" {
		t.Errorf("the search finds no value in an executor that holds one: %v", found)
	}
}

// start has an agent ask for a start and the operator approve it, and returns how it ended.
func start(t *testing.T, h *harness.Host, agent *harness.Client, service string) harness.Envelope {
	t.Helper()
	asked := agent.Ask("start_service", map[string]any{"service_id": service})
	if asked.Status != "pending_approval" {
		t.Fatalf("start_service: %s", asked.Raw)
	}
	h.Approve(asked.OperationID)
	return agent.Ask("wait_operation", asked.Next.Arguments)
}

// canary is a value that is found nowhere by chance, made anew so that no file of this test holds it.
func canary(name string) string {
	sum := sha256.Sum256([]byte(fmt.Sprint(name, os.Getpid())))
	return name + "-canary-" + hex.EncodeToString(sum[:12])
}

// got waits until the service has written digests of these values.
func got(t *testing.T, h *harness.Host, values ...string) {
	t.Helper()
	var want string
	for _, v := range values {
		want += fmt.Sprintf("%x\n", sha256.Sum256([]byte(v)))
	}
	harness.Eventually(t, "the service has its credentials", func() error {
		if raw, err := os.ReadFile(filepath.Join(h.Dir, "seen")); err != nil || string(raw) != want {
			return fmt.Errorf("it saw %q, not %q: %w", raw, want, err)
		}
		return nil
	})
}
