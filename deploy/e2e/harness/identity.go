package harness

import (
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/trust"
)

// identities are the processes' own, as the configuration of a development installation names them.
var identities = map[string]string{
	Gateway: "gateway/main", Vault: "vault/main", Executor: "executor/local", Egress: "egress/local", Audit: "audit/main", Standby: "audit/main", SecondVault: "vault/main",
}

// Identity returns the identity "ROLE/INSTANCE" of the installation's trust domain; the name of a process alone means that
// process.
func (h *Host) Identity(name string) identity.ID {
	h.t.Helper()
	if whole, ok := identities[name]; ok {
		name = whole
	}
	id, err := identity.Parse("spiffe://" + identity.DefaultTrustDomain + "/" + name)
	h.must(err)
	return id
}

// OperatorIdentity is the identity of the operator's program.
func (h *Host) OperatorIdentity() identity.ID { return h.Identity("operator/" + h.Operator) }

// CA is the installation's certificate authority.
func (h *Host) CA() *pki.CA {
	h.t.Helper()
	ca, err := pki.Load(h.Path("pki"))
	h.must(err)
	return ca
}

// Issue makes a certificate for an identity; ttl 0 means a day.
func Issue(t testing.TB, ca *pki.CA, id identity.ID, ttl time.Duration) tls.Certificate {
	t.Helper()
	cert, key, err := ca.Issue(id, ttl)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// Trust opens the installation's trust folder, until the test ends.
func (h *Host) Trust() *trust.Folder {
	h.t.Helper()
	folder, err := trust.Open(h.Path("trust"))
	h.must(err)
	h.t.Cleanup(folder.Close)
	return folder
}

// DialAs connects to a process with a certificate that the installation's authority issues for an identity, through the
// same client as the processes use: calls end with *fault.Error.
func (h *Host) DialAs(id identity.ID, server string) *grpc.ClientConn {
	h.t.Helper()
	conn, err := rpc.Dial(rpc.ClientConfig{
		Identity: h.Source(id), Address: h.Address(server), Server: h.Identity(server), Logger: slog.New(slog.DiscardHandler),
	})
	h.must(err)
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Source is a certificate that the installation's authority issues for an identity.
func (h *Host) Source(id identity.ID) *identity.Source {
	h.t.Helper()
	cert, key, err := h.CA().Issue(id, 0)
	h.must(err)
	dir := h.t.TempDir()
	files := identity.Files{Certificate: filepath.Join(dir, pki.FileCertificate), Key: filepath.Join(dir, pki.FileKey)}
	for path, data := range map[string][]byte{files.Certificate: cert, files.Key: key} {
		h.must(os.WriteFile(path, data, 0o600))
	}
	source, err := identity.Open(files, h.Trust())
	h.must(err)
	return source
}

// DialWith connects to a process with any certificate, or with none, as a stranger's program would: it does not check who
// answers, and calls end with gRPC's own errors.
func (h *Host) DialWith(certificate *tls.Certificate, server string) *grpc.ClientConn {
	h.t.Helper()
	cfg := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true,
		NextProtos:         []string{"h2"},
	}
	if certificate != nil {
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	conn, err := grpc.NewClient("passthrough:///"+h.Address(server), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	h.must(err)
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
