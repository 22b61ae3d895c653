// Package platformtest gives tests a whole trust domain in a temporary folder: an authority, a trust folder with every
// kind of key, identities, and real mutual-TLS servers and connections in a line each. Only tests link it.
package platformtest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/mod/sumdb/note"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
)

// Operator is the name in allowed_signers of the kit's operator.
const Operator = "alice"

// Kit is one trust domain. Its methods may be called from several goroutines; what they open is closed when the test ends.
type Kit struct {
	TrustDomain string
	// Dir is the test's folder; TrustDir the trust folder in it, whose files a test may rewrite.
	Dir, TrustDir string
	CA            *pki.CA
	Trust         *trust.Folder
	// GrantKey has the kid "test" and is trusted from a day ago until in a year.
	GrantKey grant.Key
	// OperatorSigner and OperatorKey are the same key, which allowed_signers names for Operator.
	OperatorSigner ssh.Signer
	OperatorKey    ed25519.PrivateKey
	// LogSigner signs checkpoints of the log of audit/main; LogKey is its text form, as a key file holds it.
	LogSigner note.Signer
	LogKey    string
	// Deadline is that of connections' calls which have none of their own; 0: rpc.DefaultDeadline.
	Deadline time.Duration

	t        testing.TB
	inMemory bool
	mu       sync.Mutex
	sources  map[identity.ID]*identity.Source
	// listeners are those in memory, by their addresses.
	listeners map[string]*bufconn.Listener
	revoked   []identity.ID
}

// Option changes a kit that New makes.
type Option func(*Kit)

// WithTrustDomain names the trust domain; without it, it is durward.local.
func WithTrustDomain(name string) Option { return func(k *Kit) { k.TrustDomain = name } }

// InMemory keeps the kit's connections within the process: with them a test runs in a synctest bubble, where a goroutine that
// waits for the network would hold the clock.
func InMemory() Option { return func(k *Kit) { k.inMemory = true } }

// New makes a trust domain for the test.
func New(t testing.TB, opts ...Option) *Kit {
	t.Helper()
	k := &Kit{TrustDomain: identity.DefaultTrustDomain, Dir: t.TempDir(), t: t, sources: map[identity.ID]*identity.Source{}, listeners: map[string]*bufconn.Listener{}}
	for _, opt := range opts {
		opt(k)
	}
	k.TrustDir = filepath.Join(k.Dir, "trust")
	var err error
	k.CA, err = pki.NewCA(k.TrustDomain)
	k.must(err)
	k.GrantKey, err = grant.GenerateKey("test")
	k.must(err)
	_, k.OperatorKey, err = ed25519.GenerateKey(rand.Reader)
	k.must(err)
	k.OperatorSigner, err = ssh.NewSignerFromKey(k.OperatorKey)
	k.must(err)
	logKey, verifier, err := note.GenerateKey(rand.Reader, logproof.Origin(k.ID(optionsv1.Role_ROLE_AUDIT, "main").String()))
	k.must(err)
	k.LogKey = logKey
	k.LogSigner, err = note.NewSigner(logKey)
	k.must(err)

	k.WriteTrust(trust.FileCA, k.CA.CertificatePEM())
	k.WriteTrust(trust.FileGrantSigners, trust.FormatGrantSigners([]trust.GrantSigner{{
		KID:       k.GrantKey.KID,
		Key:       k.GrantKey.Private.Public().(ed25519.PublicKey),
		NotBefore: time.Now().Add(-24 * time.Hour),
		NotAfter:  time.Now().Add(365 * 24 * time.Hour),
	}}))
	k.WriteTrust(trust.FileAllowedSigners, []byte(trust.FormatSigner(Operator, k.OperatorSigner.PublicKey(), statement.Namespace)+"\n"))
	k.WriteTrust(trust.FileLogKeys, []byte(verifier+"\n"))
	k.WriteTrust(trust.FileRevoked, []byte("revoked: []\n"))
	k.Trust, err = trust.Open(k.TrustDir)
	k.must(err)
	t.Cleanup(k.Trust.Close)
	return k
}

// ID returns an identity of the kit's trust domain.
func (k *Kit) ID(role optionsv1.Role, instance string) identity.ID {
	k.t.Helper()
	id, err := identity.New(k.TrustDomain, role, instance)
	k.must(err)
	return id
}

// Files writes a fresh certificate and key for an identity and returns where.
func (k *Kit) Files(role optionsv1.Role, instance string) identity.Files {
	k.t.Helper()
	cert, key, err := k.CA.Issue(k.ID(role, instance), 0)
	k.must(err)
	dir := filepath.Join(k.Dir, "tls", identity.RoleName(role), instance)
	k.must(pki.WriteLeaf(dir, cert, key))
	return identity.Files{Certificate: filepath.Join(dir, pki.FileCertificate), Key: filepath.Join(dir, pki.FileKey)}
}

// Identity returns the open identity of a role's instance, the same one each time.
func (k *Kit) Identity(role optionsv1.Role, instance string) *identity.Source {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	id := k.ID(role, instance)
	if s, ok := k.sources[id]; ok {
		return s
	}
	s, err := identity.Open(k.Files(role, instance), k.Trust)
	k.must(err)
	k.sources[id] = s
	return s
}

// Serve starts a real server as that identity and returns its address; it is stopped when t ends. configure may change
// the server's configuration, which has identity and logger set.
func (k *Kit) Serve(t testing.TB, role optionsv1.Role, instance string, register func(grpc.ServiceRegistrar), configure ...func(*rpc.ServerConfig)) (addr string) {
	t.Helper()
	cfg := rpc.ServerConfig{Identity: k.Identity(role, instance), Logger: Logger()}
	for _, c := range configure {
		c(&cfg)
	}
	server := rpc.NewServer(cfg)
	register(server)
	lis, addr := k.Listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, lis) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("server %s/%s: %v", identity.RoleName(role), instance, err)
		}
	})
	return addr
}

// Listen returns a listener and the address at which Dial finds it, on loopback or in memory.
func (k *Kit) Listen(t testing.TB) (lis net.Listener, addr string) {
	t.Helper()
	if !k.inMemory {
		lis, err := rpc.Listen("127.0.0.1:0", false)
		k.must(err)
		return lis, lis.Addr().String()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	addr = fmt.Sprintf("memory:%d", len(k.listeners)+1)
	return k.listenLocked(addr), addr
}

// ListenAgain is Listen at an address in memory whose listener is closed.
func (k *Kit) ListenAgain(addr string) net.Listener {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.listenLocked(addr)
}

func (k *Kit) listenLocked(addr string) net.Listener {
	lis := bufconn.Listen(1 << 16)
	k.listeners[addr] = lis
	return lis
}

// dial connects to a listener in memory.
func (k *Kit) dial(ctx context.Context, addr string) (net.Conn, error) {
	k.mu.Lock()
	lis := k.listeners[addr]
	k.mu.Unlock()
	if lis == nil {
		return nil, &net.OpError{Op: "dial", Net: "memory", Err: syscall.ECONNREFUSED}
	}
	return lis.DialContext(ctx)
}

// Dial returns a connection as one identity of the kit to another; it is closed when t ends.
func (k *Kit) Dial(t testing.TB, as identity.ID, addr string, server identity.ID) *grpc.ClientConn {
	t.Helper()
	return k.DialWith(t, k.Identity(as.Role(), as.Instance()), addr, server)
}

// DialWith is Dial with any identity.
func (k *Kit) DialWith(t testing.TB, as *identity.Source, addr string, server identity.ID) *grpc.ClientConn {
	t.Helper()
	cfg := rpc.ClientConfig{Identity: as, Address: addr, Server: server, Logger: Logger(), Deadline: k.Deadline}
	if k.inMemory {
		cfg.Dialer = k.dial
	}
	conn, err := rpc.Dial(cfg)
	k.must(err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Revoke adds identities to the revoked list, at once.
func (k *Kit) Revoke(ids ...identity.ID) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.revoked = append(k.revoked, ids...)
	var b bytes.Buffer
	b.WriteString("revoked:\n")
	for _, id := range k.revoked {
		fmt.Fprintf(&b, "  - %s\n", id)
	}
	k.WriteTrust(trust.FileRevoked, b.Bytes())
	k.must(k.Trust.Reload())
}

// WriteTrust replaces one file of the trust folder; call Trust.Reload to have it taken up at once.
func (k *Kit) WriteTrust(name string, content []byte) {
	k.t.Helper()
	k.must(os.MkdirAll(k.TrustDir, 0o700))
	tmp := filepath.Join(k.TrustDir, "."+name)
	k.must(os.WriteFile(tmp, content, 0o600))
	k.must(os.Rename(tmp, filepath.Join(k.TrustDir, name)))
}

// Logger returns a logger that keeps nothing.
func Logger() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func (k *Kit) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatalf("platformtest: %v", err)
	}
}
