package identity

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/spiffetls/tlsconfig"
	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"durward.internal/services/platform/trust"
)

// pollInterval is how soon a renewed certificate is taken up without a handshake.
const pollInterval = time.Second

// maxFile bounds a certificate or key file.
const maxFile = 1 << 20

// Files name a process's own certificate chain and private key, both PEM.
type Files struct {
	Certificate string
	Key         string
}

// Source is a process's identity as it is now: its certificate and key, read again when the files change, and the roots it
// trusts. It is safe for concurrent use. It is go-spiffe's x509svid.Source and x509bundle.Source.
type Source struct {
	id      ID
	files   Files
	roots   *trust.Folder
	current atomic.Pointer[x509svid.SVID]

	mu      sync.Mutex // guards mark and failure
	mark    string
	failure error

	stop    chan struct{}
	stopped sync.WaitGroup
	once    sync.Once
}

var (
	_ x509svid.Source   = (*Source)(nil)
	_ x509bundle.Source = (*Source)(nil)
)

// Open reads the certificate and key, checks the chain against the trust folder, and watches the files until Close.
// There is no way to start with a certificate that is expired, foreign, revoked or without an identity of ours. The folder
// stays the caller's to close, after the source.
func Open(files Files, roots *trust.Folder) (*Source, error) {
	if roots == nil {
		return nil, errors.New("identity: no trust folder")
	}
	s := &Source{files: files, roots: roots, stop: make(chan struct{})}
	s.mark = files.stamp()
	svid, id, err := s.read()
	if err != nil {
		return nil, err
	}
	s.id = id
	s.current.Store(svid)
	s.stopped.Add(1)
	go s.watch()
	return s, nil
}

// ID returns who this process is. It never changes while the source lives: a renewed certificate for somebody else is
// not taken up.
func (s *Source) ID() ID { return s.id }

// NotAfter returns when the certificate in use expires.
func (s *Source) NotAfter() time.Time { return s.current.Load().Certificates[0].NotAfter }

// Err returns why the files as they are now could not be taken up, or nil.
func (s *Source) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// Revoked reports whether the trust folder no longer lets the identity in.
func (s *Source) Revoked(id ID) bool { return s.roots.Current().Revoked(id.String()) }

// Close stops watching. The last certificate stays in use.
func (s *Source) Close() {
	s.once.Do(func() { close(s.stop) })
	s.stopped.Wait()
}

// ServerTLS returns the configuration of a listener: TLS 1.3 alone, a client certificate required, its chain in the
// current bundle, its identity one of ours, with a known role, in our trust domain, not revoked.
func (s *Source) ServerTLS() *tls.Config {
	cfg := tlsconfig.MTLSServerConfig(s, s, s.authorise(ID{}))
	cfg.MinVersion = tls.VersionTLS13
	// A resumed session skips VerifyPeerCertificate, and with it every check above.
	cfg.SessionTicketsDisabled = true
	return cfg
}

// ClientTLS returns the configuration of a connection to exactly that server.
func (s *Source) ClientTLS(server ID) *tls.Config {
	cfg := tlsconfig.MTLSClientConfig(s, s, s.authorise(server))
	cfg.MinVersion = tls.VersionTLS13
	cfg.SessionTicketsDisabled = true
	return cfg
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
func (s *Source) GetX509SVID() (*x509svid.SVID, error) {
	s.Reload()
	return s.current.Load(), nil
}

// GetX509BundleForTrustDomain returns the current roots for our own trust domain and for no other.
func (s *Source) GetX509BundleForTrustDomain(td spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	if td.Name() != s.id.TrustDomain() {
		return nil, fmt.Errorf("no roots for the trust domain %q", td.Name())
	}
	return x509bundle.FromX509Authorities(td, s.roots.Current().Bundle), nil
}

// Reload takes up the files now if they changed. A pair that does not fit (a renewal half written, another identity) is
// left, and the last good one stays in use; Err says why.
func (s *Source) Reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	mark := s.files.stamp()
	if mark == s.mark {
		return
	}
	s.mark = mark
	svid, id, err := s.read()
	if err == nil && id != s.id {
		err = fmt.Errorf("the certificate is for %s, and this process is %s", id, s.id)
	}
	s.failure = err
	if err == nil {
		s.current.Store(svid)
	}
}

func (s *Source) watch() {
	defer s.stopped.Done()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.Reload()
		}
	}
}

// read loads the pair and checks that a peer with our own roots would accept it.
func (s *Source) read() (*x509svid.SVID, ID, error) {
	cert, err := readFile(s.files.Certificate)
	if err != nil {
		return nil, ID{}, fmt.Errorf("certificate: %w", err)
	}
	key, err := readFile(s.files.Key)
	if err != nil {
		return nil, ID{}, fmt.Errorf("private key: %w", err)
	}
	svid, err := x509svid.Parse(cert, key)
	if err != nil {
		return nil, ID{}, fmt.Errorf("certificate %s: %w", s.files.Certificate, err)
	}
	id, err := Parse(svid.ID.String())
	if err != nil {
		return nil, ID{}, fmt.Errorf("certificate %s: %w", s.files.Certificate, err)
	}
	snapshot := s.roots.Current()
	bundle := x509bundle.FromX509Authorities(svid.ID.TrustDomain(), snapshot.Bundle)
	if _, _, err := x509svid.Verify(svid.Certificates, bundle); err != nil {
		return nil, ID{}, fmt.Errorf("certificate %s is not valid under the trust folder: %w", s.files.Certificate, err)
	}
	if snapshot.Revoked(id.String()) {
		return nil, ID{}, fmt.Errorf("certificate %s: the identity %s is revoked", s.files.Certificate, id)
	}
	return svid, id, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file of at most 1 MB")}
	}
	return os.ReadFile(path)
}

// stamp is a cheap fingerprint of both files.
func (f Files) stamp() string {
	mark := ""
	for _, path := range []string{f.Certificate, f.Key} {
		info, err := os.Stat(path)
		if err != nil {
			mark += "-;"
			continue
		}
		mark += fmt.Sprintf("%d:%d;", info.Size(), info.ModTime().UnixNano())
	}
	return mark
}
