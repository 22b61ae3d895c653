package platformtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"
)

// Company is somebody else's authority: a root, and an intermediate that issues what the built-in one refuses to.
type Company struct {
	t             testing.TB
	root, issuing *x509.Certificate
	key           *ecdsa.PrivateKey // the intermediate's
}

// NewCompany makes one.
func NewCompany(t testing.TB) *Company {
	t.Helper()
	c := &Company{t: t}
	authority := func(serial int64, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-10 * 365 * 24 * time.Hour), NotAfter: time.Now().Add(10 * 365 * 24 * time.Hour),
			KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		}
		return c.sign(template, parent, by)
	}
	root, rootKey := authority(1, nil, nil)
	c.root = root
	c.issuing, c.key = authority(2, root, rootKey)
	return c
}

// sign makes a certificate and its key; without a parent it signs itself.
func (c *Company) sign(template, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	c.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Fatal(err)
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		c.t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return certificate, key
}

// Root is its root, as it belongs into a bundle.
func (c *Company) Root() []byte { return encode("CERTIFICATE", c.root.Raw) }

// Issue makes a certificate for any URI and time, with the intermediate behind it, and its key.
func (c *Company) Issue(uri string, from, until time.Time) (chain, key []byte) {
	c.t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		c.t.Fatal(err)
	}
	leaf, secret := c.sign(&x509.Certificate{
		SerialNumber: big.NewInt(3), NotBefore: from, NotAfter: until, URIs: []*url.URL{u},
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
	}, c.issuing, c.key)
	der, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		c.t.Fatal(err)
	}
	return append(encode("CERTIFICATE", leaf.Raw), encode("CERTIFICATE", c.issuing.Raw)...), encode("PRIVATE KEY", der)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
