package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"durward.internal/services/platform/identity"
)

// writePair makes a self-signed certificate for localhost and returns it.
func writePair(t *testing.T, dir string, serial int64, ends time.Time) *x509.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: ends.Add(-2 * time.Hour), NotAfter: ends, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	for name, block := range map[string]*pem.Block{"cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: raw}} {
		must(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return cert
}

func openPair(dir string) (*certificate, error) {
	return openCertificate(identity.Files{Certificate: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")})
}

func TestCertificatesThatAreNotOpened(t *testing.T) {
	dir := t.TempDir()
	if _, err := openPair(dir); err == nil {
		t.Error("no files")
	}
	writePair(t, dir, 1, time.Now().Add(-time.Minute))
	if _, err := openPair(dir); err == nil {
		t.Error("an expired certificate")
	}
	writePair(t, dir, 1, time.Now().Add(time.Hour))
	other := t.TempDir()
	writePair(t, other, 2, time.Now().Add(time.Hour))
	if _, err := openCertificate(identity.Files{Certificate: filepath.Join(dir, "cert.pem"), Key: filepath.Join(other, "key.pem")}); err == nil {
		t.Error("a key of another certificate")
	}
	must(t, os.Truncate(filepath.Join(dir, "cert.pem"), 2<<20))
	if _, err := openPair(dir); err == nil || !strings.Contains(err.Error(), "regular file of at most 1 MB") {
		t.Errorf("a file of 2 MB: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "cert.pem")))
	must(t, syscall.Mkfifo(filepath.Join(dir, "cert.pem"), 0o600))
	if _, err := openPair(dir); err == nil || !strings.Contains(err.Error(), "regular file of at most 1 MB") {
		t.Errorf("a named pipe, whose reading would never end: %v", err)
	}
}

// A renewed pair is shown from the next connection on; a broken one is left, and said.
func TestCertificateIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	first := writePair(t, dir, 1, time.Now().Add(time.Hour))
	c, err := openPair(dir)
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	web := &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Second}
	go func() { _ = web.Serve(tls.NewListener(l, listenTLS(c))) }()
	t.Cleanup(func() { _ = web.Close() })
	shown := func(root *x509.Certificate, most uint16) (int64, error) {
		roots := x509.NewCertPool()
		roots.AddCert(root)
		conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots, ServerName: "localhost", MaxVersion: most})
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
	}
	if n, err := shown(first, 0); n != 1 || err != nil {
		t.Errorf("certificate %d, %v", n, err)
	}
	if _, err := shown(first, tls.VersionTLS12); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
	second := writePair(t, dir, 22, time.Now().Add(time.Hour))
	if n, err := shown(second, 0); n != 22 || err != nil {
		t.Errorf("renewed: certificate %d, %v", n, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "cert.pem"), []byte("half"), 0o600))
	if n, err := shown(second, 0); n != 22 || err != nil || c.Reload() == nil {
		t.Errorf("broken: certificate %d, %v, says %v", n, err, c.Reload())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
