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
	"testing/synctest"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

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
		must(t, os.WriteFile(path, content, 0o600))
		return path
	}
	revoked := kit.Files(vault, "revoked")
	kit.Revoke(kit.ID(vault, "revoked"))
	short, shortKey, err := kit.CA.Issue(kit.ID(vault, "short"), time.Nanosecond)
	must(t, err)
	for name, tc := range map[string]struct {
		files identity.Files
		says  string
	}{
		"no certificate":    {identity.Files{Certificate: filepath.Join(kit.Dir, "none"), Key: good.Key}, "certificate:"},
		"no key":            {identity.Files{Certificate: good.Certificate, Key: filepath.Join(kit.Dir, "none")}, "private key:"},
		"a folder":          {identity.Files{Certificate: kit.Dir, Key: good.Key}, "regular file"},
		"not PEM":           {identity.Files{Certificate: write("c", []byte("hello")), Key: good.Key}, "certificate"},
		"another's key":     {identity.Files{Certificate: good.Certificate, Key: kit.Files(gateway, "main").Key}, "match"},
		"another authority": {other.Files(vault, "main"), "no root in ca.pem leads to it"},
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
	must(t, err)
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
	must(t, both.Trust.Reload())

	lenient := func(c *tls.Config) *tls.Config { // a hostile client skips its own checks
		c = c.Clone()
		c.VerifyPeerCertificate = nil
		return c
	}
	noCert := lenient(kit.Identity(gateway, "main").ClientTLS(id))
	noCert.GetClientCertificate = nil
	old := kit.Identity(gateway, "main").ClientTLS(id)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	oldServer := server.ServerTLS()
	oldServer.MinVersion, oldServer.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	kit.Identity(gateway, "fired")
	kit.Revoke(kit.ID(gateway, "fired"))

	for name, tc := range map[string]struct{ server, client *tls.Config }{
		"no certificate":     {server.ServerTLS(), noCert},
		"TLS 1.2":            {server.ServerTLS(), old},
		"a TLS 1.2 server":   {oldServer, kit.Identity(gateway, "main").ClientTLS(id)},
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
	// A domain has no roots in another's source, whatever its folder holds.
	for source, want := range map[*identity.Source]bool{foreign.Identity(vault, "main"): true, both.Identity(vault, "main"): false} {
		if _, err := source.GetX509BundleForTrustDomain(spiffeid.RequireTrustDomainFromString("elsewhere.example")); (err == nil) != want {
			t.Errorf("roots for elsewhere.example: %v", err)
		}
	}
}

// A certificate that leads to a trusted root at the wrong time is told from a stranger's, which may have any time it likes.
func TestWrongClocksAreNoStrangers(t *testing.T) {
	kit, ours, theirs := platformtest.New(t), platformtest.NewCompany(t), platformtest.NewCompany(t)
	kit.WriteTrust(trust.FileCA, append(kit.CA.CertificatePEM(), ours.Root()...))
	must(t, kit.Trust.Reload())
	server, now := kit.Identity(vault, "main"), time.Now()
	for name, c := range map[string]struct {
		of          *platformtest.Company
		from, until time.Time
		says        string // "": nothing of clocks
	}{
		"ended":             {ours, now.Add(-2 * time.Hour), now.Add(-time.Hour), "gateway/main ended 1h"},
		"of the future":     {ours, now.Add(time.Hour), now.Add(2 * time.Hour), "gateway/main is of the future, by "},
		"a stranger's":      {theirs, now.Add(-time.Hour), now.Add(time.Hour), ""},
		"a stranger's end":  {theirs, now.Add(-2 * time.Hour), now.Add(-time.Hour), ""},
		"a stranger's time": {theirs, now.Add(time.Hour), now.Add(2 * time.Hour), ""},
	} {
		pair, err := tls.X509KeyPair(c.of.Issue("spiffe://durward.local/gateway/main", c.from, c.until))
		must(t, err)
		_, refused, _ := handshake(t, server.ServerTLS(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}})
		if refused == nil || errors.Is(refused, identity.ErrTime) != (c.says != "") || !strings.Contains(refused.Error(), c.says) {
			t.Errorf("%s: %v", name, refused)
		}
	}
}

// A company's authority, whose intermediate stands in the files, can issue what a process is; what it issues for somebody else or another time,
// and what another issues, leaves the certificate in use.
func TestFilesOfACompany(t *testing.T) {
	kit, company, stranger := platformtest.New(t), platformtest.NewCompany(t), platformtest.NewCompany(t)
	files := kit.Files(vault, "main")
	source, err := identity.Open(files, kit.Trust)
	must(t, err)
	kit.WriteTrust(trust.FileCA, append(kit.CA.CertificatePEM(), company.Root()...))
	must(t, kit.Trust.Reload())
	const self = "spiffe://durward.local/vault/main"
	now := time.Now()
	from, until := now.Add(-time.Hour), now.Add(90*24*time.Hour).Truncate(time.Second)
	put := func(chain, key []byte) {
		for path, content := range map[string][]byte{files.Key: key, files.Certificate: chain} {
			must(t, errors.Join(os.WriteFile(path+".new", content, 0o600), os.Rename(path+".new", path)))
		}
		_ = source.Err() // takes the files up; what is refused is looked at below
	}
	put(company.Issue(self, from, until))
	if err := source.Err(); err != nil || !ends(source).Equal(until) {
		t.Fatalf("the company's certificate is not taken up: %v, %v", err, ends(source))
	}
	chain, key := company.Issue(self, from, until.Add(time.Hour))
	leaf := chain[:strings.Index(string(chain), "-----END CERTIFICATE-----\n")+len("-----END CERTIFICATE-----\n")]
	strangers, strangersKey := stranger.Issue(self, from, until)
	others, othersKey := company.Issue("spiffe://durward.local/gateway/main", from, until)
	domains, domainsKey := company.Issue("spiffe://elsewhere.example/vault/main", from, until)
	ended, endedKey := company.Issue(self, from.Add(-time.Hour), from)
	future, futureKey := company.Issue(self, now.Add(time.Hour), until)
	for name, c := range map[string]struct {
		chain, key []byte
		says       string
	}{
		"without its intermediate": {leaf, key, "no root in ca.pem leads to it"},
		"another company's":        {strangers, strangersKey, "no root in ca.pem leads to it"},
		"another process's":        {others, othersKey, "and this process is " + self},
		"another trust domain's":   {domains, domainsKey, "and this process is " + self},
		"ended":                    {ended, endedKey, "ended 1h"},
		"of the future":            {future, futureKey, "of the future"},
		"another's key":            {chain, othersKey, "match"},
	} {
		put(c.chain, c.key)
		if err := source.Err(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if !ends(source).Equal(until) {
			t.Errorf("%s: it is in use", name)
		}
	}
	put(chain, key)
	if err := source.Err(); err != nil || !ends(source).Equal(until.Add(time.Hour)) {
		t.Errorf("another of the company's: %v, %v", err, ends(source))
	}
}

// A certificate that is refused for what is not in its files is taken up once that has come: its root, or its time.
func TestRefusedForNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kit, company := platformtest.New(t), platformtest.NewCompany(t)
		files := kit.Files(vault, "main")
		source, err := identity.Open(files, kit.Trust)
		must(t, err)
		refused := func(says string, from time.Time) (until time.Time) {
			until = from.Add(48 * time.Hour).Truncate(time.Second)
			chain, key := company.Issue("spiffe://durward.local/vault/main", from, until)
			must(t, errors.Join(os.WriteFile(files.Key, key, 0o600), os.WriteFile(files.Certificate, chain, 0o600)))
			if err := source.Err(); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v; want %q", err, says)
			}
			return until
		}
		until := refused("no root in ca.pem leads to it", time.Now().Add(-time.Hour))
		kit.WriteTrust(trust.FileCA, append(kit.CA.CertificatePEM(), company.Root()...))
		time.Sleep(2 * time.Second)
		if err := source.Err(); err != nil || !ends(source).Equal(until) {
			t.Errorf("with its root: %v", err)
		}
		until = refused("of the future", time.Now().Add(time.Minute))
		time.Sleep(2 * time.Minute)
		if err := source.Err(); err != nil || !ends(source).Equal(until) {
			t.Errorf("in its time: %v", err)
		}
	})
}

func TestHandshake(t *testing.T) {
	kit := platformtest.New(t)
	serverTLS := kit.Identity(vault, "main").ServerTLS()
	clientTLS := kit.Identity(gateway, "main").ClientTLS(kit.ID(vault, "main"))
	clientTLS.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	clientTLS.SessionTicketsDisabled = false // a client that would resume if it could
	for range 3 {
		state, serverErr, clientErr := handshake(t, serverTLS, clientTLS)
		must(t, errors.Join(serverErr, clientErr))
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
	company := platformtest.NewCompany(t)
	chain, key := company.Issue("spiffe://durward.local/superuser/main", time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	kit.WriteTrust(trust.FileCA, append(kit.CA.CertificatePEM(), company.Root()...))
	must(t, kit.Trust.Reload())
	pair, err := tls.X509KeyPair(chain, key)
	must(t, err)
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
	must(t, err)
	serial := func() string {
		svid, err := s.GetX509SVID() // as a handshake does
		must(t, err)
		return svid.Certificates[0].SerialNumber.String()
	}
	put := func(id identity.ID) {
		cert, key, err := kit.CA.Issue(id, time.Hour)
		must(t, err)
		must(t, pki.WriteLeaf(filepath.Dir(files.Certificate), cert, key))
	}
	first := serial()

	put(kit.ID(gateway, "main"))
	second := serial()
	if second == first || s.Err() != nil {
		t.Fatalf("the renewed certificate was not taken up: %v", s.Err())
	}
	if until := time.Until(ends(s)); until > time.Hour {
		t.Errorf("expires in %s", until)
	}

	put(kit.ID(gateway, "other"))
	if serial() != second || s.Err() == nil {
		t.Error("a certificate for another identity was taken up")
	}
	must(t, os.WriteFile(files.Certificate, []byte("half writ"), 0o600))
	if serial() != second || s.Err() == nil {
		t.Error("a broken file was taken up")
	}
	must(t, os.Remove(files.Key))
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
	must(t, err)
	before := ends(s)
	cert, key, err := kit.CA.Issue(s.ID(), time.Hour)
	must(t, err)
	must(t, pki.WriteLeaf(filepath.Dir(files.Certificate), cert, key))
	if ends(s).Equal(before) {
		t.Error("the certificate that was there before is still in use")
	}
}

// TestEnding: a certificate in whose place nothing newer came says so before it ends, and no longer once something came.
func TestEnding(t *testing.T) {
	kit := platformtest.New(t)
	files := kit.Files(gateway, "main")
	s, err := identity.Open(files, kit.Trust)
	must(t, err)
	for _, tc := range []struct {
		life time.Duration
		ends bool
	}{{10 * time.Second, true}, {time.Hour, false}} {
		cert, key, err := kit.CA.Issue(s.ID(), tc.life)
		if err == nil {
			err = pki.WriteLeaf(filepath.Dir(files.Certificate), cert, key)
		}
		must(t, err)
		if err := s.Ending(); (err != nil) != tc.ends {
			t.Errorf("of a certificate that lives for %s it says %v", tc.life, err)
		}
	}
}

func ends(s *identity.Source) time.Time {
	_, until := s.Lifetime()
	return until
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
