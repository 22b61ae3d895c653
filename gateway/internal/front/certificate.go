package front

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Certificate is what the MCP listener shows to clients over TLS: a chain and its key, read again when the files change. It
// is safe for concurrent use.
type Certificate struct {
	certificate, key string

	mu      sync.Mutex
	mark    string
	current *tls.Certificate
	failure error
}

// OpenCertificate reads a PEM chain and its key. One that is expired, or does not fit its key, is an error.
func OpenCertificate(certificate, key string) (*Certificate, error) {
	c := &Certificate{certificate: certificate, key: key}
	c.reload()
	return c, c.failure
}

// TLS returns the configuration of a listener: TLS 1.3 alone, and HTTP/1.1 inside it.
func (c *Certificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reload()
			return c.current, nil
		},
	}
}

// Err takes up the files if they changed and returns why they could not be taken up, or nil. The last good pair stays in use.
func (c *Certificate) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reload()
	return c.failure
}

// reload reads the files if they changed since the last look. A pair that does not fit, such as a renewal half written, is
// left.
func (c *Certificate) reload() {
	mark := stamp(c.certificate) + stamp(c.key)
	if mark == c.mark {
		return
	}
	c.mark = mark
	pair, err := tls.LoadX509KeyPair(c.certificate, c.key)
	switch {
	case err != nil:
		c.failure = fmt.Errorf("the certificate for MCP clients: %w", err)
	case time.Now().After(pair.Leaf.NotAfter):
		c.failure = errors.New("the certificate for MCP clients has expired")
	default:
		c.current, c.failure = &pair, nil
	}
}

// stamp is a cheap fingerprint of a file.
func stamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "-;"
	}
	return fmt.Sprintf("%d:%d;", info.Size(), info.ModTime().UnixNano())
}
