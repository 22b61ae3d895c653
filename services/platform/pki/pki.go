// Package pki is the built-in certificate authority of a trust domain. Only a human's process links it (durward up, the
// renewal oneshot, tests): the authority's key is never behind an RPC. Who runs SPIRE or a company's authority instead
// does not need it. It trusts the folder that holds the authority's key.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/keyfile"
)

const (
	// LeafLife is how long a leaf certificate lives, and the most that Issue gives.
	LeafLife = 24 * time.Hour
	// RenewBefore is how long before its end a leaf is due for renewal.
	RenewBefore = 8 * time.Hour
	// AuthorityLife is how long the authority's own certificate lives.
	AuthorityLife = 10 * 365 * 24 * time.Hour
	// backdate lets peers whose clock is a little behind accept a new certificate.
	backdate = time.Minute
)

// Names of the authority's files in its folder, and of a leaf's files in a role's.
const (
	FileCA          = "ca.pem"
	FileCAKey       = "ca.key"
	FileCertificate = "cert.pem"
	FileKey         = "key.pem"
)

// CA is an authority for one trust domain. It is safe for concurrent use.
type CA struct {
	cert        *x509.Certificate
	key         *ecdsa.PrivateKey
	trustDomain string
}

// NewCA makes a new authority, ECDSA P-256, whose certificate is constrained to the trust domain.
func NewCA(trustDomain string) (*CA, error) {
	td, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil || td.Name() != trustDomain {
		return nil, fmt.Errorf("%q is not a trust domain", trustDomain)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the authority's key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{CommonName: "Durward authority of " + trustDomain},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(AuthorityLife),
		URIs:                  []*url.URL{td.ID().URL()},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		PermittedURIDomains:   []string{trustDomain},

		PermittedDNSDomainsCritical: true, // the name constraints as a whole
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate back: %w", err)
	}
	return &CA{cert: cert, key: key, trustDomain: trustDomain}, nil
}

// TrustDomain returns the domain that the authority is for.
func (c *CA) TrustDomain() string { return c.trustDomain }

// CertificatePEM returns the authority's certificate as trust/ca.pem holds it.
func (c *CA) CertificatePEM() []byte { return encode("CERTIFICATE", c.cert.Raw) }

// Issue makes a key and a certificate for an identity of the authority's trust domain. A ttl of 0 means LeafLife, which
// is also the most; the certificate is valid from a minute ago. Both results are PEM; the key is ECDSA P-256 in PKCS #8.
func (c *CA) Issue(id identity.ID, ttl time.Duration) (certPEM, keyPEM []byte, err error) {
	switch {
	case id.IsZero() || id.TrustDomain() != c.trustDomain:
		return nil, nil, fmt.Errorf("the authority of %s issues nothing for %q", c.trustDomain, id)
	case ttl == 0:
		ttl = LeafLife
	case ttl < 0 || ttl > LeafLife:
		return nil, nil, fmt.Errorf("a certificate lives at most %s", LeafLife)
	}
	now := time.Now()
	switch {
	case now.Before(c.cert.NotBefore): // nobody would accept it, nor any other once the clock is right
		return nil, nil, fmt.Errorf("this host's clock says %s, and the authority was made on %s: set the clock", day(now), day(c.cert.NotBefore))
	case now.After(c.cert.NotAfter):
		return nil, nil, fmt.Errorf("the authority ended on %s: make another, or set this host's clock", day(c.cert.NotAfter))
	}
	uri, err := url.Parse(id.String())
	if err != nil {
		return nil, nil, fmt.Errorf("identity: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{CommonName: identity.RoleName(id.Role()) + "/" + id.Instance()},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(ttl),
		URIs:         []*url.URL{uri},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},

		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, c.cert, key.Public(), c.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a key: %w", err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", keyDER), nil
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// Write stores the authority as ca.pem and ca.key, 0600, in a folder that it makes 0700. It refuses to replace a key.
func (c *CA) Write(dir string) error {
	keyPath := filepath.Join(dir, FileCAKey)
	if _, err := os.Lstat(keyPath); err == nil {
		return fmt.Errorf("%s is there already", keyPath)
	}
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		return fmt.Errorf("encode the authority's key: %w", err)
	}
	// The certificate first: without its key it is made anew, and a key without it would stay and be of no use.
	if err := writeFile(filepath.Join(dir, FileCA), c.CertificatePEM()); err != nil {
		return err
	}
	return writeFile(keyPath, encode("PRIVATE KEY", der))
}

// Load reads an authority that Write stored. A key file that others can read is refused.
func Load(dir string) (*CA, error) {
	certPEM, err := os.ReadFile(filepath.Join(dir, FileCA))
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	keyPath := filepath.Join(dir, FileCAKey)
	keyPEM, err := keyfile.Read(keyPath)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return parse(certPEM, keyPEM)
}

func parse(certPEM, keyPEM []byte) (*CA, error) {
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, errors.New("authority: the files hold no PEM")
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(keyBlock.Bytes)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("authority: key and certificate do not belong together")
	}
	if !cert.IsCA || len(cert.URIs) != 1 {
		return nil, errors.New("authority: the certificate is not an authority's for one trust domain")
	}
	td, err := spiffeid.TrustDomainFromURI(cert.URIs[0])
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	if !time.Now().Before(cert.NotAfter) {
		return nil, errors.New("authority: the certificate has expired")
	}
	return &CA{cert: cert, key: key, trustDomain: td.Name()}, nil
}

// WriteLeaf stores a leaf as cert.pem and key.pem, 0600, each replaced whole. Between the two a reader may find a pair
// that does not fit: identity.Source then keeps the pair it has, and ReadPair says so to whoever renews.
func WriteLeaf(dir string, certPEM, keyPEM []byte) error {
	if err := writeFile(filepath.Join(dir, FileKey), keyPEM); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, FileCertificate), certPEM)
}

// OwnerOf returns to whom a file belongs.
func OwnerOf(path string) (durable.Owner, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return durable.Owner{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return durable.Owner{}, fmt.Errorf("%s is not a regular file", path)
	}
	return durable.Owner{UID: int(stat.Uid), GID: int(stat.Gid), Mode: info.Mode().Perm()}, nil
}

// WriteLeafFor is WriteLeaf for files that belong to another user, in a folder that is there and is ours. The owner's mode is both files',
// and must not let everybody in.
func WriteLeafFor(dir string, certPEM, keyPEM []byte, owner durable.Owner) error {
	if owner.Mode&0o007 != 0 {
		return errors.New("certificate: its key would be everybody's to read")
	}
	if err := durable.ReplaceAs(owner, filepath.Join(dir, FileKey), keyPEM, nil); err != nil {
		return err
	}
	return durable.ReplaceAs(owner, filepath.Join(dir, FileCertificate), certPEM, nil)
}

// Leaf is what a certificate file says.
type Leaf struct {
	ID                  identity.ID
	NotBefore, NotAfter time.Time
}

// Due reports whether the leaf should be renewed at now: it ends soon, or a clock that was ahead issued it, and nobody accepts it yet.
func (l Leaf) Due(now time.Time) bool {
	return now.Before(l.NotBefore) || now.Add(RenewBefore).After(l.NotAfter)
}

// ErrMismatch means that a certificate and the key beside it do not belong together, as a writer leaves them that was killed
// between the two.
var ErrMismatch = errors.New("certificate: it is another key's")

// ReadPair is ReadLeaf for the certificate in a folder of WriteLeaf's, and ErrMismatch where the key is another one's.
func ReadPair(dir string) (Leaf, error) {
	leaf, err := ReadLeaf(filepath.Join(dir, FileCertificate))
	if err != nil {
		return Leaf{}, err
	}
	if _, err := tls.LoadX509KeyPair(filepath.Join(dir, FileCertificate), filepath.Join(dir, FileKey)); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return Leaf{}, fmt.Errorf("certificate: %w", err)
		}
		return Leaf{}, ErrMismatch
	}
	return leaf, nil
}

// ReadLeaf reads a certificate file; it does not judge the certificate.
func ReadLeaf(path string) (Leaf, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Leaf{}, fmt.Errorf("certificate: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return Leaf{}, fmt.Errorf("certificate: %s holds no certificate", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return Leaf{}, fmt.Errorf("certificate: %w", err)
	}
	if len(cert.URIs) != 1 {
		return Leaf{}, fmt.Errorf("certificate: %s names no identity", path)
	}
	id, err := identity.Parse(cert.URIs[0].String())
	if err != nil {
		return Leaf{}, fmt.Errorf("certificate: %w", err)
	}
	return Leaf{ID: id, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter}, nil
}

// newSerial returns 127 random bits, never 0.
func newSerial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[0] = b[0]&0x7F | 0x40
	return new(big.Int).SetBytes(b[:])
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeFile replaces path by a file of mode 0600, whole or not at all, in a folder that it makes.
func writeFile(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return durable.Replace(path, data)
}
