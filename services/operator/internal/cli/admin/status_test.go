package admin

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/platformtest"
)

// TestUnsettled: what runs now, and what the vault has not heard the end of, is not called interrupted.
func TestUnsettled(t *testing.T) {
	for n, want := range map[uint32]string{0: "epoch 7", 1: "epoch 7, 1 operation not settled yet", 2: "epoch 7, 2 operations not settled yet"} {
		d := deep{executor: &executorv1.GetStatusResponse{Epoch: 7, VaultReachable: true, AuditReachable: true, Unsettled: n}}
		if got := d.detail("executor", time.Time{}); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}

// TestHalt: while the vault grants, a sink that is not known to be halted acts on.
func TestHalt(t *testing.T) {
	vault := func(halted bool) *vaultv1.GetStatusResponse { return &vaultv1.GetStatusResponse{Halted: halted} }
	executor := func(halted bool) *executorv1.GetStatusResponse { return &executorv1.GetStatusResponse{Halted: halted} }
	egress := func(halted bool) *egressv1.GetStatusResponse { return &egressv1.GetStatusResponse{Halted: halted} }
	four := []processStatus{{Role: "audit"}, {Role: "vault"}, {Role: "executor"}, {Role: "gateway"}}
	five := append(four, processStatus{Role: "egress"})
	const whole = "HALTED: nothing that changes anything runs. End it with: durward resume"
	part := func(halted, others string) string {
		return "HALTED IN PART: " + halted + "; NOT HALTED: " + others + ". Halt all with: durward panic; end it with: durward resume"
	}
	for name, c := range map[string]struct {
		processes []processStatus
		d         deep
		want      string
	}{
		"none":               {five, deep{vault: vault(false), executor: executor(false), egress: egress(false)}, ""},
		"none answers":       {five, deep{}, ""},
		"all":                {five, deep{vault: vault(true), executor: executor(true), egress: egress(true)}, whole},
		"the vault":          {five, deep{vault: vault(true), executor: executor(false)}, whole},
		"the executor":       {four, deep{vault: vault(false), executor: executor(true)}, whole},
		"both sinks":         {five, deep{executor: executor(true), egress: egress(true)}, whole},
		"one of two sinks":   {five, deep{vault: vault(false), executor: executor(true), egress: egress(false)}, part("executor", "egress")},
		"the other":          {five, deep{vault: vault(false), executor: executor(false), egress: egress(true)}, part("egress", "executor")},
		"one, one is silent": {five, deep{egress: egress(true)}, part("egress", "executor (does not answer)")},
	} {
		if got := c.d.halt(c.processes, "durward"); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestStatusJSON: every process that an installation has is in the document with its own answer, and null where there is none.
func TestStatusJSON(t *testing.T) {
	h, err := installdir.At(t.TempDir())
	must(t, err)
	core, _, _ := clitest.Printing(true)
	core.Home = h
	a := &app{core}
	four := []processStatus{{Role: "audit"}, {Role: "vault"}, {Role: "executor"}, {Role: "gateway"}}
	five := append(four, processStatus{Role: "egress"})
	for name, c := range map[string]struct {
		processes []processStatus
		egress    *egressv1.GetStatusResponse
		want      string // "": the document has no egress
	}{
		"none":        {four, nil, ""},
		"it answers":  {five, &egressv1.GetStatusResponse{Epoch: 7, Halted: true}, `"halted":true`},
		"it does not": {five, nil, "null"},
	} {
		value, err := a.statusJSON(c.processes, deep{egress: c.egress}, installdir.Process{}, false)
		must(t, err)
		said, has := value["egress"]
		text, err := json.Marshal(said)
		must(t, err)
		if has != (c.want != "") || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: %v, %s", name, has, text)
		}
	}
}

// TestWhyNotWell: what does not run is to be started, what runs is not.
func TestWhyNotWell(t *testing.T) {
	h, err := installdir.At(t.TempDir())
	must(t, err)
	if _, err := h.Init(installdir.Options{Development: true, Operator: "alice", BasePort: platformtest.ClaimPorts(t)}); err != nil {
		t.Fatal(err)
	}
	_, err = h.RenewCertificates("alice", time.Now(), true)
	must(t, err)
	core, _, _ := clitest.Printing(false)
	core.Home = h
	a := &app{core}
	if got := a.whyNot(processStatus{Role: "vault", Address: "127.0.0.1:0"}); !strings.HasPrefix(got, "Start it: durward up --development. Why it stopped: ") {
		t.Errorf("%q", got)
	}
	if got := a.whyNot(processStatus{Role: "gateway", answers: true}); strings.Contains(got, "Start it") || !strings.HasPrefix(got, "It runs. Why it is not well: ") {
		t.Errorf("%q", got)
	}
	must(t, os.Remove(h.TLS("vault", "key.pem")))
	if got := a.whyNot(processStatus{Role: "vault", answers: true}); !strings.HasPrefix(got, "Its certificate cannot be used. ") || !strings.Contains(got, "durward cert renew") {
		t.Errorf("%q", got)
	}

	// What hangs has its port, and answers nothing.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	cfg, err := h.Load()
	must(t, err)
	cfg.Health.Vault = l.Addr().String()
	got := map[string]processStatus{}
	for _, p := range a.health(t.Context(), cfg) {
		got[p.Role] = p
	}
	if p := got["audit"]; p.Health != "down" || p.silent {
		t.Errorf("nothing runs: %+v", p)
	}
	hangs := got["vault"]
	if hangs.Health != "no answer" || !hangs.silent || hangs.answers {
		t.Errorf("it hangs: %+v", hangs)
	}
	strange := hangs
	strange.silent, strange.Health = false, "answered by another"
	for _, p := range []processStatus{hangs, strange} {
		// The program that listens is this test's.
		if got := a.whyNot(p); !strings.Contains(got, l.Addr().String()+" is in use by ") || !strings.Contains(got, fmt.Sprint(os.Getpid())) || !strings.HasSuffix(got, ". Mend that; then: durward up --development") {
			t.Errorf("%q", got)
		}
	}
	self, err := installdir.Self(true)
	if err == nil {
		err = h.WriteProcess(self)
	}
	must(t, err)
	if got := a.whyNot(hangs); !strings.HasPrefix(got, "It runs and hangs. Start all again: durward down; durward up --development. ") {
		t.Errorf("%q", got)
	}
}

// TestVaultWithoutItsDatabase: a vault that shares a database and cannot use it answers nobody, and its counts say why.
func TestVaultWithoutItsDatabase(t *testing.T) {
	for counts, want := range map[string]bool{"durward_vault_leads 0\n": true, "durward_vault_leads 1\n": false, "": false} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				_, _ = io.WriteString(w, counts) // the client refuses a reply that is cut short
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"status":"unavailable","service":"vault"}`)
		}))
		core, out, _ := clitest.Printing(false)
		core.Home = installdir.Home{Dir: t.TempDir()}
		cfg := installdir.Config{}
		cfg.Health.Vault = strings.TrimPrefix(server.URL, "http://")
		if err := (&app{core}).status(t.Context(), cfg, nil); err == nil {
			t.Error("it is well")
		}
		if got := strings.Contains(out.String(), "it stands by: its database cannot be used"); got != want {
			t.Errorf("%q:\n%s", counts, out)
		}
		server.Close()
	}
}

// TestOwnCertificate: where this program's certificate is of no use the processes are well, and their logs say nothing of it.
func TestOwnCertificate(t *testing.T) {
	h, err := installdir.At(t.TempDir())
	must(t, err)
	if _, err := h.Init(installdir.Options{Development: true, Operator: "alice"}); err != nil {
		t.Fatal(err)
	}
	core, _, errs := clitest.Printing(false)
	core.Home = h
	cfg, err := h.Load()
	must(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"status":"ok","service":"audit"}`) // the client refuses a reply that is cut short
	}))
	defer server.Close()
	cfg.Health.Audit = strings.TrimPrefix(server.URL, "http://")
	err = (&app{core}).status(t.Context(), cfg, nil)
	if code := core.Explain(err); code != cli.ExitUnreachable || !strings.Contains(errs.String(), "durward cert renew") || !strings.Contains(errs.String(), "operator/cert.pem") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}
