// Package syslogtest is a receiver of syslog over TLS (RFC 5424, framed as in RFC 5425) for tests: it reads strictly, keeps what it reads
// at once, and can be killed in the middle of a batch and started again at its address.
package syslogtest

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"durward.internal/services/platform/pattern"
)

// Message is a message of RFC 5424.
type Message struct {
	Raw                                     string
	Priority                                int
	Time, Host, App, Process, ID, Text, SDs string
	// Parameters are those of the one element.
	Parameters map[string]string
}

var header = pattern.New(`^<(\d{1,3})>1 (\S+) ([!-~]{1,255}) ([!-~]{1,48}) ([!-~]{1,128}) ([!-~]{1,32}) \[([!-Z^-~]{1,32}) `)

// Parse reads a message with exactly one element of structured data, and nothing that a receiver could take for the end of it.
func Parse(raw string) (Message, error) {
	m := Message{Raw: raw, Parameters: map[string]string{}}
	head := header().FindStringSubmatch(raw)
	if head == nil {
		return m, fmt.Errorf("no header of RFC 5424: %.200q", raw)
	}
	m.Priority, _ = strconv.Atoi(head[1])
	m.Time, m.Host, m.App, m.Process, m.ID, m.SDs = head[2], head[3], head[4], head[5], head[6], head[7]
	rest := raw[len(head[0]):]
	for {
		name, after, found := strings.Cut(rest, `="`)
		if !found || name == "" || len(name) > 32 || strings.ContainsAny(name, "= ]\"\x00") {
			return m, fmt.Errorf("no parameter: %.200q", rest)
		}
		if _, twice := m.Parameters[name]; twice {
			return m, fmt.Errorf("the parameter %q stands there twice", name)
		}
		var value strings.Builder
		for {
			i := strings.IndexAny(after, `\"]`)
			if i < 0 || after[i] == ']' {
				return m, fmt.Errorf("a value that does not end: %.200q", after)
			}
			value.WriteString(after[:i])
			if after[i] == '"' {
				after = after[i+1:]
				break
			}
			if i+1 == len(after) || !strings.ContainsRune(`\"]`, rune(after[i+1])) {
				return m, fmt.Errorf("a backslash that escapes nothing: %.200q", after[i:])
			}
			value.WriteByte(after[i+1])
			after = after[i+2:]
		}
		m.Parameters[name] = value.String()
		if strings.HasPrefix(after, "] ") {
			m.Text = after[2:]
			break
		}
		if !strings.HasPrefix(after, " ") {
			return m, fmt.Errorf("neither another parameter nor the end: %.200q", after)
		}
		rest = after[1:]
	}
	if i := strings.IndexFunc(raw, func(r rune) bool {
		return r < ' ' || r >= 0x7f && r < 0xa0 || r == '\u2028' || r == '\u2029' || r == '\uFFFD'
	}); i >= 0 {
		return m, fmt.Errorf("a control character or what is no text at byte %d: %.200q", i, raw[i:])
	}
	return m, nil
}

// Receiver is one. Its methods are safe for concurrent use.
type Receiver struct {
	t testing.TB
	// CA is a file with its authority, Address where it listens.
	CA, Address string
	// Unsaid makes it end connections without close_notify, as some receivers do. Leaves makes it end each in order, with close_notify, behind the
	// first message.
	Unsaid, Leaves bool

	cert tls.Certificate
	wait sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener
	open     map[net.Conn]bool
	got      []Message
	broken   []string
	// dieAfter is how many messages more it reads until it dies; negative: it lives.
	dieAfter int
}

// New starts a receiver on loopback, until the test ends.
func New(t testing.TB) *Receiver {
	t.Helper()
	r := &Receiver{t: t, CA: filepath.Join(t.TempDir(), "ca.pem"), open: map[net.Conn]bool{}, dieAfter: -1}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "receiver"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	r.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	if err := os.WriteFile(r.CA, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Address = "127.0.0.1:0"
	r.Start()
	t.Cleanup(func() { r.Kill(); r.wait.Wait() })
	return r
}

// TLS is what a sender of the same process takes.
func (r *Receiver) TLS() *tls.Config {
	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(r.cert.Certificate[0])
	if err != nil {
		r.t.Fatal(err)
	}
	roots.AddCert(leaf)
	return &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
}

// Start starts it again at its address.
func (r *Receiver) Start() {
	r.t.Helper()
	lis, err := net.Listen("tcp", r.Address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.Address, r.listener, r.dieAfter = lis.Addr().String(), lis, -1
	r.mu.Unlock()
	r.wait.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			r.open[conn] = true
			r.mu.Unlock()
			r.wait.Go(func() { r.serve(conn) })
		}
	})
}

// Kill ends it as a signal does: its connections end in the middle of what they are at.
func (r *Receiver) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kill()
}

func (r *Receiver) kill() {
	_ = r.listener.Close()
	for conn := range r.open {
		_ = conn.Close()
	}
	clear(r.open)
}

// DieAfter kills it when it has read so many messages more.
func (r *Receiver) DieAfter(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dieAfter = n
}

// Dead reports whether it was killed.
func (r *Receiver) Dead() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dieAfter == 0
}

// Got is every message that it read, in order, and what it read that is none.
func (r *Receiver) Got() (messages []Message, broken []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Message(nil), r.got...), append([]string(nil), r.broken...)
}

func (r *Receiver) serve(raw net.Conn) {
	defer func() { _ = raw.Close() }()
	conn := tls.Server(raw, &tls.Config{Certificates: []tls.Certificate{r.cert}, MinVersion: tls.VersionTLS12})
	in := bufio.NewReader(conn)
	for {
		frame, err := readFrame(in)
		if errors.Is(err, io.EOF) {
			if !r.Unsaid {
				_ = conn.Close() // with its close_notify
			}
			return
		}
		r.mu.Lock()
		if !r.open[raw] {
			r.mu.Unlock()
			return // it was killed
		}
		var m Message
		if err == nil {
			m, err = Parse(frame)
		}
		if err != nil {
			var network net.Error
			if !errors.As(err, &network) && !errors.Is(err, io.ErrUnexpectedEOF) {
				r.broken = append(r.broken, err.Error())
			}
			r.mu.Unlock()
			return
		}
		r.got = append(r.got, m)
		if r.dieAfter > 0 {
			if r.dieAfter--; r.dieAfter == 0 {
				r.kill()
			}
		}
		r.mu.Unlock()
		if r.Leaves {
			_ = conn.Close()
			return
		}
	}
}

// readFrame reads MSG-LEN SP SYSLOG-MSG.
func readFrame(in *bufio.Reader) (string, error) {
	length, err := in.ReadString(' ')
	if err != nil {
		if length != "" && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return "", err
	}
	n, err := strconv.Atoi(strings.TrimSuffix(length, " "))
	if err != nil || n < 1 || n > 1<<20 || length[0] == '0' {
		return "", fmt.Errorf("no length of a message: %.100q", length)
	}
	frame := make([]byte, n)
	_, err = io.ReadFull(in, frame)
	return string(frame), err
}
