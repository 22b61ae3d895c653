package identity_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/pki"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/trust"
)

const (
	vault   = optionsv1.Role_ROLE_VAULT
	gateway = optionsv1.Role_ROLE_GATEWAY
)

func TestOpenRefuses(t *testing.T) {
	kit := platformtest.New(t)
	other := platformtest.New(t) // the same trust domain's name, another authority
	good := kit.Files(vault, "main")
	write := func(name string, content []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	revoked := kit.Files(vault, "revoked")
	kit.Revoke(kit.ID(vault, "revoked"))
	short, shortKey, err := kit.CA.Issue(kit.ID(vault, "short"), time.Nanosecond)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		files identity.Files
		says  string
	}{
		"no certificate":    {identity.Files{Certificate: filepath.Join(kit.Dir, "none"), Key: good.Key}, "certificate:"},
		"no key":            {identity.Files{Certificate: good.Certificate, Key: filepath.Join(kit.Dir, "none")}, "private key:"},
		"a folder":          {identity.Files{Certificate: kit.Dir, Key: good.Key}, "regular file"},
		"not PEM":           {identity.Files{Certificate: write("c", []byte("hello")), Key: good.Key}, "certificate"},
		"another's key":     {identity.Files{Certificate: good.Certificate, Key: kit.Files(gateway, "main").Key}, "match"},
		"another authority": {other.Files(vault, "main"), "not valid under the trust folder"},
		"revoked":           {revoked, "revoked"},
		"expired":           {identity.Files{Certificate: write("c", short), Key: write("k", shortKey)}, "not valid under the trust folder"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := identity.Open(tc.files, kit.Trust)
			if err == nil {
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("says %q, not %q", err, tc.says)
			}
		})
	}
	if _, err := identity.Open(good, nil); err == nil {
		t.Error("opened without a trust folder")
	}
}

// handshake connects a client and a server and returns both sides' errors.
func handshake(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	done := make(chan error, 1)
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			done <- err
			return
		}
		defer conn.Close()
		s := tls.Server(conn, server)
		if err := s.Handshake(); err != nil {
			done <- err
			return
		}
		_, err = s.Write([]byte("x"))
		done <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	dialer := &tls.Dialer{Config: client}
	conn, err := dialer.DialContext(ctx, "tcp", lis.Addr().String())
	if err != nil {
		return state, <-done, err
	}
	defer conn.Close()
	// With TLS 1.3 a client learns of a refused certificate when it first reads.
	_, err = conn.Read(make([]byte, 1))
	return conn.(*tls.Conn).ConnectionState(), <-done, err
}

func TestHandshakeRefuses(t *testing.T) {
	kit := platformtest.New(t)
	impostor := platformtest.New(t)
	foreign := platformtest.New(t, platformtest.WithTrustDomain("elsewhere.example"))
	server := kit.Identity(vault, "main")
	id := kit.ID(vault, "main")

	// A server that trusts a second domain's authority as well still lets nobody of it in.
	both := platformtest.New(t)
	both.WriteTrust(trust.FileCA, append(both.CA.CertificatePEM(), foreign.CA.CertificatePEM()...))
	if err := both.Trust.Reload(); err != nil {
		t.Fatal(err)
	}

	lenient := func(c *tls.Config) *tls.Config { // a hostile client skips its own checks
		c = c.Clone()
		c.VerifyPeerCertificate = nil
		return c
	}
	noCert := lenient(kit.Identity(gateway, "main").ClientTLS(id))
	noCert.GetClientCertificate = nil
	old := kit.Identity(gateway, "main").ClientTLS(id)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	kit.Identity(gateway, "fired")
	kit.Revoke(kit.ID(gateway, "fired"))

	for name, tc := range map[string]struct{ server, client *tls.Config }{
		"no certificate":     {server.ServerTLS(), noCert},
		"TLS 1.2":            {server.ServerTLS(), old},
		"another authority":  {server.ServerTLS(), lenient(impostor.Identity(gateway, "main").ClientTLS(id))},
		"another domain":     {both.Identity(vault, "main").ServerTLS(), lenient(foreign.Identity(gateway, "main").ClientTLS(id))},
		"revoked client":     {server.ServerTLS(), lenient(kit.Identity(gateway, "fired").ClientTLS(id))},
		"the wrong server":   {kit.Identity(gateway, "main").ServerTLS(), kit.Identity(gateway, "main").ClientTLS(id)},
		"the wrong instance": {kit.Identity(vault, "spare").ServerTLS(), kit.Identity(gateway, "main").ClientTLS(id)},
		"an impostor server": {impostor.Identity(vault, "main").ServerTLS(), kit.Identity(gateway, "main").ClientTLS(id)},
	} {
		t.Run(name, func(t *testing.T) {
			if _, serverErr, clientErr := handshake(t, tc.server, tc.client); serverErr == nil && clientErr == nil {
				t.Error("connected")
			}
		})
	}
}

func TestHandshake(t *testing.T) {
	kit := platformtest.New(t)
	serverTLS := kit.Identity(vault, "main").ServerTLS()
	clientTLS := kit.Identity(gateway, "main").ClientTLS(kit.ID(vault, "main"))
	clientTLS.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	clientTLS.SessionTicketsDisabled = false // a client that would resume if it could
	for range 3 {
		state, serverErr, clientErr := handshake(t, serverTLS, clientTLS)
		if err := errors.Join(serverErr, clientErr); err != nil {
			t.Fatal(err)
		}
		if state.Version != tls.VersionTLS13 || state.DidResume {
			t.Errorf("version %x, resumed %v", state.Version, state.DidResume)
		}
	}
	// The same configurations notice a revocation at the next handshake.
	kit.Revoke(kit.ID(gateway, "main"))
	if _, serverErr, _ := handshake(t, serverTLS, clientTLS); serverErr == nil {
		t.Error("a revoked client got in")
	}
}

func TestUnknownRoleIsRefused(t *testing.T) {
	// Our own authority signs, for an identity whose role this version does not know.
	kit := platformtest.New(t)
	cert, key := issueURI(t, "spiffe://durward.local/superuser/main")
	kit.WriteTrust(trust.FileCA, append(kit.CA.CertificatePEM(), cert.authority...))
	if err := kit.Trust.Reload(); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert.leaf, key)
	if err != nil {
		t.Fatal(err)
	}
	client := &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS13} // the attacker's side
	_, serverErr, _ := handshake(t, kit.Identity(vault, "main").ServerTLS(), client)
	if serverErr == nil || !errors.Is(serverErr, identity.ErrInvalid) {
		t.Errorf("the server says %v", serverErr)
	}
}

func TestReload(t *testing.T) {
	kit := platformtest.New(t)
	files := kit.Files(gateway, "main")
	s, err := identity.Open(files, kit.Trust)
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string {
		svid, err := s.GetX509SVID() // as a handshake does
		if err != nil {
			t.Fatal(err)
		}
		return svid.Certificates[0].SerialNumber.String()
	}
	put := func(id identity.ID) {
		cert, key, err := kit.CA.Issue(id, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if err := pki.WriteLeaf(filepath.Dir(files.Certificate), cert, key); err != nil {
			t.Fatal(err)
		}
	}
	first := serial()

	put(kit.ID(gateway, "main"))
	second := serial()
	if second == first || s.Err() != nil {
		t.Fatalf("the renewed certificate was not taken up: %v", s.Err())
	}
	if until := time.Until(s.NotAfter()); until > time.Hour {
		t.Errorf("expires in %s", until)
	}

	put(kit.ID(gateway, "other"))
	if serial() != second || s.Err() == nil {
		t.Error("a certificate for another identity was taken up")
	}
	if err := os.WriteFile(files.Certificate, []byte("half writ"), 0o600); err != nil {
		t.Fatal(err)
	}
	if serial() != second || s.Err() == nil {
		t.Error("a broken file was taken up")
	}
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	if serial() != second || s.Err() == nil {
		t.Error("a missing key went unnoticed")
	}
	put(kit.ID(gateway, "main"))
	if serial() == second || s.Err() != nil {
		t.Errorf("the repaired pair was not taken up: %v", s.Err())
	}
	if s.ID() != kit.ID(gateway, "main") {
		t.Errorf("the identity is now %s", s.ID())
	}
}

// A changed pair is taken up without any handshake.
func TestNotAfterIsOfTheFiles(t *testing.T) {
	kit := platformtest.New(t)
	files := kit.Files(gateway, "main")
	s, err := identity.Open(files, kit.Trust)
	if err != nil {
		t.Fatal(err)
	}
	before := s.NotAfter()
	cert, key, err := kit.CA.Issue(s.ID(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.WriteLeaf(filepath.Dir(files.Certificate), cert, key); err != nil {
		t.Fatal(err)
	}
	if s.NotAfter().Equal(before) {
		t.Error("the certificate that was there before is still in use")
	}
}
