package installdir

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"durward.internal/services/operator/internal/notify"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/platformtest"
)

// TestInitNotify: what is written is what durward-notify takes, and it never dials this installation; the certificate is made where the
// authority lies, and renewed with the others; what was edited is kept.
func TestInitNotify(t *testing.T) {
	h := Home{Dir: filepath.Join(t.TempDir(), "home")}
	if _, err := h.Init(Options{Development: true, Operator: "alice", BasePort: 8430}); err != nil {
		t.Fatal(err)
	}
	cfg, err := h.Load()
	must(t, err)
	for _, c := range h.Certificates() {
		if c.Role == notifier {
			t.Error("there is a notifier before anybody asked for one")
		}
	}
	path, made, err := h.InitNotify(cfg, "durward --home /x")
	if err != nil || !made || path != h.Config("notify") {
		t.Fatal(path, made, err)
	}
	got, err := notify.Load(path)
	must(t, err)
	if got.TLS.Key != h.TLS(notifier, pki.FileKey) || got.Vault.Address != cfg.Vault.Address || got.Vault.Identity != cfg.Vault.Identity || got.Command != "durward --home /x" || len(got.Durward) != 8 || len(got.Destinations) != 1 {
		t.Errorf("%+v", got)
	}
	leaf, err := pki.ReadPair(h.TLS(notifier, ""))
	if err != nil || leaf.ID.String() != "spiffe://durward.local/notifier/alice" {
		t.Errorf("%+v, %v", leaf, err)
	}
	must(t, os.WriteFile(path, []byte("# mine\n"), 0o600))
	if _, made, err = h.InitNotify(cfg, "durward"); err != nil || made {
		t.Error(made, err)
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "# mine\n" {
		t.Errorf("%s, %v", raw, err)
	}
	renewed, err := h.RenewCertificates("alice", leaf.NotAfter, false)
	if err != nil || !strings.Contains(strings.Join(renewed, " "), notifier) {
		t.Errorf("renewed %v, %v", renewed, err)
	}

	// Where root issues certificates there is no authority in the operator's folder.
	installed := Home{Dir: filepath.Join(t.TempDir(), "member")}
	must(t, os.MkdirAll(filepath.Dir(installed.Config("notify")), 0o700))
	cfg.TLS.Certificate = "/etc/durward/tls/operators/alice/cert.pem"
	cfg.Vault.Address = "unix:/run/durward/vault/grpc.sock,user=durward-vault"
	path, _, err = installed.InitNotify(cfg, "durward")
	must(t, err)
	got, err = notify.Load(path)
	must(t, err)
	if got.TLS.Certificate != "/etc/durward/tls/notifiers/alice/cert.pem" || got.Vault.Address != cfg.Vault.Address || len(got.Durward) != 7 {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(installed.TLS(notifier, "")); err == nil {
		t.Error("a certificate is issued by nobody")
	}
}

// TestNotifierOfAWorkloadAPI: its certificate is among the others, as the operator's user gets it, and nobody renews it.
func TestNotifierOfAWorkloadAPI(t *testing.T) {
	h := Home{Dir: filepath.Join(t.TempDir(), "home")}
	if _, err := h.Init(Options{Development: true, Operator: "alice", BasePort: 8430}); err != nil {
		t.Fatal(err)
	}
	ca, err := pki.Load(h.PKI())
	must(t, err)
	id, err := ProcessIdentity(notifier, "alice")
	must(t, err)
	certificate, key, err := ca.Issue(id, 0)
	must(t, err)
	api := platformtest.NewWorkloadAPI(t)
	api.Send(id.String(), certificate, key)
	must(t, os.WriteFile(h.Config("notify"), fmt.Appendf(nil, "tls: {workload_api: %q}\n", api.Address()), 0o600))
	all := h.Certificates()
	if c := all[len(all)-1]; c.Role != notifier || c.Identity != id.String() || c.Problem != "" || c.NotAfter.IsZero() {
		t.Errorf("%+v", c)
	}
	renewed, err := h.RenewCertificates("alice", time.Now(), true)
	if err != nil || slices.Contains(renewed, notifier) {
		t.Errorf("renewed %v, %v", renewed, err)
	}
}
