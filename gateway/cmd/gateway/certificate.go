package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"durward.internal/services/platform/identity"
)

// certificate is what the MCP listener shows to clients over TLS: a chain and its key, read again when the files change.
type certificate = identity.Pair[*tls.Certificate]

// openCertificate reads a PEM chain and its key. One that is expired, or does not fit its key, is an error.
func openCertificate(files identity.Files) (*certificate, error) {
	pair, err := identity.OpenPair(files, func(chain, key []byte) (*tls.Certificate, error) {
		pair, err := tls.X509KeyPair(chain, key)
		if err == nil && time.Now().After(pair.Leaf.NotAfter) {
			err = errors.New("has expired")
		}
		return &pair, err
	})
	if err != nil {
		return nil, fmt.Errorf("for MCP clients: %w", err)
	}
	return pair, nil
}

// listenTLS is the configuration of a listener: TLS 1.3 alone, and HTTP/1.1 inside it.
func listenTLS(shown *certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown.Get(), nil },
	}
}
