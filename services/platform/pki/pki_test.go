package pki_test

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
)

func id(t *testing.T, domain string) identity.ID {
	t.Helper()
	id, err := identity.New(domain, optionsv1.Role_ROLE_VAULT, "main")
	must(t, err)
	return id
}

func parse(t *testing.T, b []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(b)
	cert, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	return cert
}

func TestIssueRefuses(t *testing.T) {
	ca, err := pki.NewCA("durward.local")
	must(t, err)
	for name, tc := range map[string]struct {
		id  identity.ID
		ttl time.Duration
	}{
		"nobody":           {identity.ID{}, time.Hour},
		"another domain":   {id(t, "elsewhere.example"), time.Hour},
		"longer than 24 h": {id(t, "durward.local"), 24*time.Hour + 1},
		"negative":         {id(t, "durward.local"), -1},
	} {
		if _, _, err := ca.Issue(tc.id, tc.ttl); err == nil {
			t.Errorf("%s: issued", name)
		}
	}
	for _, domain := range []string{"", "UPPER", "a b", "spiffe://x", "x/y"} {
		if _, err := pki.NewCA(domain); err == nil {
			t.Errorf("an authority for %q", domain)
		}
	}
}

// A host that was restored with a clock of years ago, or whose authority is older than its life, is told so.
func TestIssueOutsideTheAuthoritysTime(t *testing.T) {
	ca, err := pki.NewCA("durward.local")
	must(t, err)
	synctest.Test(t, func(t *testing.T) { // its clock begins in the year 2000
		if _, _, err := ca.Issue(id(t, "durward.local"), 0); err == nil || !strings.Contains(err.Error(), "set the clock") {
			t.Errorf("before the authority was made: %v", err)
		}
		time.Sleep(50 * 365 * 24 * time.Hour)
		if _, _, err := ca.Issue(id(t, "durward.local"), 0); err == nil || !strings.Contains(err.Error(), "ended on") {
			t.Errorf("after the authority's end: %v", err)
		}
	})
}

func TestIssue(t *testing.T) {
	ca, err := pki.NewCA("durward.local")
	must(t, err)
	certPEM, keyPEM, err := ca.Issue(id(t, "durward.local"), 0)
	must(t, err)
	leaf, root := parse(t, certPEM), parse(t, ca.CertificatePEM())
	if got := time.Until(leaf.NotAfter); got > 24*time.Hour || got < 23*time.Hour {
		t.Errorf("lives %s", got)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "spiffe://durward.local/vault/main" || leaf.IsCA {
		t.Errorf("leaf for %v, CA %v", leaf.URIs, leaf.IsCA)
	}
	if block, _ := pem.Decode(keyPEM); block == nil || block.Type != "PRIVATE KEY" {
		t.Error("the key is not PKCS #8")
	}
	roots := x509.NewCertPool()
	roots.AddCert(root)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots}); err != nil {
		t.Error(err)
	}
	if !root.MaxPathLenZero || !root.IsCA || len(root.PermittedURIDomains) != 1 {
		t.Errorf("the authority is not constrained: %+v", root.PermittedURIDomains)
	}
}

func TestWriteAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	ca, err := pki.NewCA("durward.local")
	must(t, err)
	// What ends between the two files leaves none that keeps the next from being made.
	must(t, os.MkdirAll(filepath.Join(dir, pki.FileCA), 0o700))
	if err := ca.Write(dir); err == nil {
		t.Error("a folder was replaced by a certificate")
	}
	must(t, os.Remove(filepath.Join(dir, pki.FileCA)))
	must(t, ca.Write(dir))
	if err := ca.Write(dir); err == nil {
		t.Error("replaced an authority's key")
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, pki.FileCAKey): 0o600, filepath.Join(dir, pki.FileCA): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	loaded, err := pki.Load(dir)
	must(t, err)
	certPEM, keyPEM, err := loaded.Issue(id(t, "durward.local"), time.Hour)
	if err != nil || loaded.TrustDomain() != "durward.local" {
		t.Fatalf("%q, %v", loaded.TrustDomain(), err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.CertificatePEM())
	if _, err := parse(t, certPEM).Verify(x509.VerifyOptions{Roots: roots}); err != nil {
		t.Error(err)
	}

	leafDir := filepath.Join(t.TempDir(), "tls", "vault")
	must(t, pki.WriteLeaf(leafDir, certPEM, keyPEM))
	leaf, err := pki.ReadLeaf(filepath.Join(leafDir, pki.FileCertificate))
	if err != nil || leaf.ID != id(t, "durward.local") || !leaf.Due(time.Now()) {
		t.Errorf("%+v, %v", leaf, err)
	}
	if left, err := filepath.Glob(filepath.Join(leafDir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDue(t *testing.T) {
	now := time.Now()
	leaf := pki.Leaf{NotBefore: now, NotAfter: now.Add(pki.LeafLife)}
	for at, want := range map[time.Duration]bool{
		-time.Second:                   true, // it was issued by a clock that was ahead
		0:                              false,
		pki.LeafLife - pki.RenewBefore: false,
		pki.LeafLife - pki.RenewBefore + time.Second: true,
		pki.LeafLife + time.Second:                   true,
	} {
		if got := leaf.Due(now.Add(at)); got != want {
			t.Errorf("%s after its beginning: %v", at, got)
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	fresh := func(t *testing.T) string {
		dir := t.TempDir()
		ca, err := pki.NewCA("durward.local")
		must(t, err)
		must(t, ca.Write(dir))
		return dir
	}
	for name, spoil := range map[string]func(dir string) error{
		"no key":             func(dir string) error { return os.Remove(filepath.Join(dir, pki.FileCAKey)) },
		"no certificate":     func(dir string) error { return os.Remove(filepath.Join(dir, pki.FileCA)) },
		"readable by others": func(dir string) error { return os.Chmod(filepath.Join(dir, pki.FileCAKey), 0o644) },
		"not PEM":            func(dir string) error { return os.WriteFile(filepath.Join(dir, pki.FileCA), []byte("x"), 0o600) },
		"another's key": func(dir string) error {
			return os.Rename(filepath.Join(fresh(t), pki.FileCAKey), filepath.Join(dir, pki.FileCAKey))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := fresh(t)
			must(t, spoil(dir))
			if _, err := pki.Load(dir); err == nil {
				t.Error("loaded")
			}
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
