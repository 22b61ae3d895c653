package httpfront

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"durward.internal/services/platform/identity"
)

// Certificate is what the MCP listener shows to clients over TLS: a chain and its key, read again when the files change. It
// is safe for concurrent use.
type Certificate struct {
	pair *identity.Pair[*tls.Certificate]
}

// OpenCertificate reads a PEM chain and its key. One that is expired, or does not fit its key, is an error.
func OpenCertificate(files identity.Files) (*Certificate, error) {
	pair, err := identity.OpenPair(files, unexpired)
	if err != nil {
		return nil, fmt.Errorf("for MCP clients: %w", err)
	}
	return &Certificate{pair}, nil
}

func unexpired(certificate, key []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, err
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		return nil, errors.New("has expired")
	}
	return &pair, nil
}

// TLS returns the configuration of a listener: TLS 1.3 alone, and HTTP/1.1 inside it.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS13,
		NextProtos:     []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Get(), nil },
	}
}

// Err takes up the files if they changed and returns why they could not be taken up, or nil. The last good pair stays in use.
func (c *Certificate) Err() error { return c.pair.Reload() }
