package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"durward.internal/services/platform/trust"
)

// Source is a process's identity as it is now: its certificate and key, from files that are read again when they change or from
// a Workload API, and the roots it trusts. It is safe for concurrent use. It is go-spiffe's x509svid.Source and x509bundle.Source.
type Source struct {
	id     ID // is zero until the first certificate was taken up
	issued supply
	roots  *trust.Folder
	// supplied are the roots that came with the certificate; nil: none did.
	supplied atomic.Pointer[x509bundle.Bundle]

	// rooted are the verdicts on chains, by leaf, under one state of the roots.
	rootedMu sync.Mutex
	under    authorities
	rooted   map[*x509.Certificate]error
}

// supply is where a process's certificate comes from: a Pair of files, or a workload.
type supply interface {
	// Get returns the certificate in use.
	Get() *x509svid.SVID
	// Reload returns why what came last could not be taken up, or nil.
	Reload() error
}

// authorities are one state of the roots.
type authorities struct {
	folder   *trust.Snapshot
	supplied *x509bundle.Bundle
}

func (a authorities) bundle(td spiffeid.TrustDomain) *x509bundle.Bundle {
	bundle := x509bundle.FromX509Authorities(td, a.folder.Bundle)
	if a.supplied != nil && a.supplied.TrustDomain() == td {
		for _, root := range a.supplied.X509Authorities() {
			bundle.AddX509Authority(root)
		}
	}
	return bundle
}

func (s *Source) authorities() authorities { return authorities{s.roots.Current(), s.supplied.Load()} }

var (
	_ x509svid.Source   = (*Source)(nil)
	_ x509bundle.Source = (*Source)(nil)
)

// Open reads the certificate and key, checks the chain against the trust folder, and watches the files until Close.
// There is no way to start with a certificate that is expired, foreign, revoked or without an identity of ours. The folder
// stays the caller's to close, after the source. members are as keyfile.Read has them.
func Open(files Files, roots *trust.Folder, members ...uint32) (*Source, error) {
	if roots == nil {
		return nil, errors.New("identity: no trust folder")
	}
	s := &Source{roots: roots}
	pair, err := OpenPair(files, func(certificate, key []byte) (*x509svid.SVID, error) {
		svid, err := x509svid.Parse(certificate, key)
		if err != nil {
			return nil, err
		}
		return svid, s.accept(svid, s.authorities())
	}, members...)
	if err != nil {
		return nil, err
	}
	s.issued = pair
	s.id, err = Parse(pair.Get().ID.String())
	return s, err
}

// ID returns who this process is. It never changes while the source lives: a renewed certificate for somebody else is
// not taken up.
func (s *Source) ID() ID { return s.id }

// Lifetime returns from when to when the certificate in use is valid.
func (s *Source) Lifetime() (from, until time.Time) {
	leaf := s.issued.Get().Certificates[0]
	return leaf.NotBefore, leaf.NotAfter
}

// Err returns why the files as they are now, or what the Workload API sent last, could not be taken up, or nil.
func (s *Source) Err() error { return s.issued.Reload() }

// Ending returns when the certificate in use ends, as an error, once that is near: nothing newer came in its place. Near is as in the alert
// DurwardCertificateExpiring.
func (s *Source) Ending() error {
	from, until := s.Lifetime()
	if time.Until(until) >= min(4*time.Hour, until.Sub(from)/6) {
		return nil
	}
	return fmt.Errorf("no newer certificate came, and this one ends at %s", until.UTC().Format(time.RFC3339))
}

// Revoked reports whether the trust folder no longer lets the identity in.
func (s *Source) Revoked(id ID) bool { return s.roots.Current().Revoked(id.String()) }

// maxRooted bounds the verdicts that are remembered: there is one for each certificate that is in use.
const maxRooted = 256

// Rooted returns why a chain that a handshake let in no longer leads to a root of the trust folder as it is now, or nil. A
// connection outlives a change of the roots; a chain is verified once under each state of them, so that this is cheap.
func (s *Source) Rooted(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return errors.New("there is no certificate")
	}
	s.rootedMu.Lock()
	defer s.rootedMu.Unlock()
	if now := s.authorities(); s.under != now || len(s.rooted) >= maxRooted {
		s.under, s.rooted = now, map[*x509.Certificate]error{}
	}
	verdict, known := s.rooted[chain[0]]
	if !known {
		_, _, verdict = x509svid.Verify(chain, s.under.bundle(s.issued.Get().ID.TrustDomain()))
		s.rooted[chain[0]] = verdict
	}
	return verdict
}

// ServerTLS returns the configuration of a listener: TLS 1.3 alone, a client certificate required, its chain in the
// current bundle, its identity one of ours, with a known role, in our trust domain, not revoked.
func (s *Source) ServerTLS() *tls.Config {
	cfg := s.timely(tlsconfig.MTLSServerConfig(s, s, s.authorise(ID{})))
	cfg.MinVersion = tls.VersionTLS13
	// A resumed session skips VerifyPeerCertificate, and with it every check above.
	cfg.SessionTicketsDisabled = true
	return cfg
}

// ClientTLS returns the configuration of a connection to exactly that server.
func (s *Source) ClientTLS(server ID) *tls.Config {
	cfg := s.timely(tlsconfig.MTLSClientConfig(s, s, s.authorise(server)))
	cfg.MinVersion = tls.VersionTLS13
	cfg.SessionTicketsDisabled = true
	return cfg
}

// ErrTime is why a certificate is refused that leads to a trusted root, and whose time alone is wrong: nobody renewed it, or a clock is
// wrong, this host's or its own. No stranger's certificate is refused for that.
var ErrTime = errors.New("the clock of one of the two is wrong, or the certificate was not renewed")

// timely has a handshake tell wrong clocks from strangers.
func (s *Source) timely(cfg *tls.Config) *tls.Config {
	verify := cfg.VerifyPeerCertificate
	//nolint:gosec // no session is resumed: SessionTicketsDisabled
	cfg.VerifyPeerCertificate = func(raw [][]byte, chains [][]*x509.Certificate) error {
		err := verify(raw, chains)
		if err == nil {
			return nil
		}
		var chain []*x509.Certificate
		for _, der := range raw {
			certificate, parsing := x509.ParseCertificate(der)
			if parsing != nil {
				return err
			}
			chain = append(chain, certificate)
		}
		return told(chain, s.authorities(), err)
	}
	return cfg
}

// told is why a chain was refused: with ErrTime where another time would have let it in.
func told(chain []*x509.Certificate, roots authorities, refused error) error {
	now := time.Now()
	if len(chain) == 0 || !now.Before(chain[0].NotBefore) && !now.After(chain[0].NotAfter) {
		return refused
	}
	id, err := x509svid.IDFromCert(chain[0])
	if err != nil {
		return refused
	}
	then := chain[0].NotBefore.Add(chain[0].NotAfter.Sub(chain[0].NotBefore) / 2)
	if _, _, err := x509svid.Verify(chain, roots.bundle(id.TrustDomain()), x509svid.WithTime(then)); err != nil {
		return refused
	}
	if now.Before(chain[0].NotBefore) {
		return fmt.Errorf("the certificate of %s is of the future, by %s: %w", id, chain[0].NotBefore.Sub(now).Round(time.Second), ErrTime)
	}
	return fmt.Errorf("the certificate of %s ended %s ago: %w", id, now.Sub(chain[0].NotAfter).Round(time.Second), ErrTime)
}

// authorise admits the expected peer, or anyone of the trust domain if expected is zero.
func (s *Source) authorise(expected ID) tlsconfig.Authorizer {
	return func(actual spiffeid.ID, _ [][]*x509.Certificate) error {
		id, err := Parse(actual.String())
		switch {
		case err != nil:
			return err
		case id.TrustDomain() != s.id.TrustDomain():
			return fmt.Errorf("the peer is of another trust domain: %s", id)
		case !expected.IsZero() && id != expected:
			return fmt.Errorf("the peer is %s, not %s", id, expected)
		case s.Revoked(id):
			return fmt.Errorf("the peer's identity is revoked: %s", id)
		}
		return nil
	}
}

// GetX509SVID returns the certificate in use, reading changed files first; a handshake calls it.
func (s *Source) GetX509SVID() (*x509svid.SVID, error) { return s.issued.Get(), nil }

// GetX509BundleForTrustDomain returns the current roots for our own trust domain and for no other.
func (s *Source) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	if td.Name() != s.id.TrustDomain() {
		return nil, fmt.Errorf("no roots for the trust domain %q", td.Name())
	}
	return s.authorities().bundle(td), nil
}

// ErrRoot is why a certificate is not taken up that no authority issued whose root is trusted.
var ErrRoot = errors.New("no root in " + trust.FileCA + " leads to it, through what follows it in its file")

// accept checks that a peer with these roots would accept a certificate, and that it is for whom the first one was for.
func (s *Source) accept(svid *x509svid.SVID, roots authorities) error {
	id, err := Parse(svid.ID.String())
	if err != nil {
		return err
	}
	var unknown x509.UnknownAuthorityError
	switch _, _, err := x509svid.Verify(svid.Certificates, roots.bundle(svid.ID.TrustDomain())); {
	case errors.As(err, &unknown):
		return fmt.Errorf("is not valid under the trust folder: %w", ErrRoot)
	case err != nil:
		return fmt.Errorf("is not valid under the trust folder: %w", told(svid.Certificates, roots, err))
	case roots.folder.Revoked(id.String()):
		return fmt.Errorf("the identity %s is revoked", id)
	case !s.id.IsZero() && id != s.id:
		return fmt.Errorf("is for %s, and this process is %s", id, s.id)
	}
	return nil
}
