// Package dialer is the one way out of this project's processes: every connection to another host is judged on the address that is
// dialled, in the hook that the system calls between the choice of an address and the connection (NETS-1). Between the judgement and
// the connection nothing is resolved again, so a name that changes its address in between changes nothing. Each hop of a redirect is a
// connection of its own.
//
// It runs in whichever process has a reason to dial: egress, and those of notifications and of the log's relay. It trusts its Config, which a
// human's file fills, and the resolver to answer or not; what the resolver answers, and what a server sends, is hostile. No variable of
// the environment names a proxy for it.
package dialer

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"

	"code.dny.dev/ssrf"

	"durward.internal/services/platform/destination"
)

// Config says where a Dialer may go. Only Allow is required.
type Config struct {
	// Allow is asked about each destination, redirects' too, before its name is resolved: a look-up itself tells a stranger
	// something. destination.Only makes one of a list.
	Allow func(context.Context, destination.Destination) error
	// Ports are those of the public network; nil is 80 and 443.
	Ports []uint16
	// Local are loopback, private and other special addresses that a human named, each with its port. Nothing else there is reached, and
	// no link-local address and no cloud's metadata service can be named.
	Local []netip.AddrPort
	// Own reports whether an address is Durward's own, or a service's: never reached, though Local names it. Nil: none is.
	Own func(netip.AddrPort) bool
	// Upstream is an HTTP proxy that a human named. It is asked for judged addresses, never for names. Local ones are dialled directly.
	Upstream netip.AddrPort
	// Redirects is how many are followed in one call; 0: none. AnAnswer: a redirect is the answer.
	Redirects int
	Limits    Limits
	// Roots are the authorities of TLS servers; nil: the system's.
	Roots *x509.CertPool
	// Resolver resolves names; nil: Go's own, as /etc/resolv.conf says.
	Resolver *net.Resolver
}

// Limits bound one call. 0 takes the default.
type Limits struct {
	// Connect covers the look-up of the name and the connection: 10 s. TLS is the handshake: 10 s. Header is the wait for the answer's
	// first byte after the request is written: 20 s. Whole is all of it, redirects and body too: 60 s.
	Connect, TLS, Header, Whole time.Duration
	// Body is the most of an answer, in bytes, as it comes and again decompressed: 1 MiB.
	Body int64
}

// AnAnswer stands in Config.Redirects.
const AnAnswer = -1

// headerBytes is the most that the lines before a body may hold.
const headerBytes = 64 << 10

// Dialer dials. It is safe for concurrent use.
type Dialer struct {
	cfg       Config
	guardian  *ssrf.Guardian
	transport *http.Transport
}

// New returns a dialer. It refuses a Config that names what no dialer may reach.
func New(cfg Config) (*Dialer, error) {
	if cfg.Allow == nil {
		return nil, errors.New("a dialer needs a list of destinations")
	}
	if cfg.Ports == nil {
		cfg.Ports = []uint16{80, 443}
	}
	if cfg.Own == nil {
		cfg.Own = func(netip.AddrPort) bool { return false }
	}
	if cfg.Resolver == nil {
		cfg.Resolver = &net.Resolver{PreferGo: true}
	}
	for _, to := range append(slices.Clone(cfg.Local), cfg.Upstream) {
		switch addr := to.Addr(); {
		case to == netip.AddrPort{}: // no upstream
		case !to.IsValid(), to.Port() == 0, addr.Is4In6(), addr.Zone() != "", addr.IsUnspecified(), addr.IsMulticast():
			return nil, fmt.Errorf("%s is not the address and port of one service", to)
		case addr.IsLinkLocalUnicast(), Special(addr) == metadata:
			return nil, fmt.Errorf("%s is where a cloud tells machines their credentials, or link-local: it is never dialled", to)
		case cfg.Own(to):
			return nil, fmt.Errorf("%s is Durward's own, or a service's: it is never dialled", to)
		}
	}
	l := &cfg.Limits
	l.Connect, l.TLS = cmp.Or(l.Connect, 10*time.Second), cmp.Or(l.TLS, 10*time.Second)
	l.Header, l.Whole = cmp.Or(l.Header, 20*time.Second), cmp.Or(l.Whole, time.Minute)
	l.Body = cmp.Or(l.Body, 1<<20)
	d := &Dialer{cfg: cfg, guardian: ssrf.New(ssrf.WithPorts(cfg.Ports...))}
	d.transport = &http.Transport{
		DialContext:            d.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.Roots},
		TLSHandshakeTimeout:    l.TLS,
		ResponseHeaderTimeout:  l.Header,
		MaxResponseHeaderBytes: headerBytes,
		DisableKeepAlives:      true, // each request's connection is judged
		DisableCompression:     true, // Do decompresses within its bounds
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	return d, nil
}

// DialContext connects to HOST:PORT over TCP. Its errors are *destination.Error.
func (d *Dialer) DialContext(ctx context.Context, _, address string) (net.Conn, error) {
	to, err := destination.Of(&url.URL{Scheme: "http", Host: address})
	if err != nil {
		return nil, err
	}
	if err := d.admit(ctx, to); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Limits.Connect)
	defer cancel()
	conn, err := d.dial(ctx, to)
	if err != nil {
		return nil, d.explain(err, to)
	}
	return conn, nil
}

// admit judges a destination before its name is resolved.
func (d *Dialer) admit(ctx context.Context, to destination.Destination) error {
	if err := d.port(to); err != nil {
		return err
	}
	return d.cfg.Allow(ctx, to)
}

// port judges a destination's port.
func (d *Dialer) port(to destination.Destination) error {
	local := func(a netip.AddrPort) bool { return a.Port() == to.Port }
	if !slices.Contains(d.cfg.Ports, to.Port) && !slices.ContainsFunc(d.cfg.Local, local) {
		return destination.Refuse(destination.RulePort, "port %d is not one that is dialled", to.Port)
	}
	return nil
}

// connecting is asked by the system's side of a connection when its address is settled.
func (d *Dialer) connecting(_ context.Context, network, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return destination.Refuse(destination.RuleAddress, "that is no address of a TCP service")
	}
	return d.judge(to)
}

// judge is the judgement on an address: the table of this package and the library must both let it pass.
func (d *Dialer) judge(to netip.AddrPort) error {
	switch what := Special(to.Addr()); {
	case d.cfg.Own(to):
		return destination.Refuse(destination.RuleOwn, "%s is Durward's own, or a service's", to)
	case slices.Contains(d.cfg.Local, to):
		return nil
	case !slices.Contains(d.cfg.Ports, to.Port()):
		return destination.Refuse(destination.RulePort, "port %d is not one that is dialled", to.Port())
	case what != "":
		return destination.Refuse(destination.RuleAddress, "the address %s is not public: it is %s", to.Addr(), what)
	case d.guardian.SafeAddrPort(to) != nil:
		return destination.Refuse(destination.RuleAddress, "the address %s is not public", to.Addr())
	}
	return nil
}

// lookup returns a destination's addresses, as the resolver orders them.
func (d *Dialer) lookup(ctx context.Context, to destination.Destination) ([]netip.AddrPort, error) {
	if addr, ok := to.Addr(); ok {
		return []netip.AddrPort{netip.AddrPortFrom(addr, to.Port)}, nil
	}
	addrs, err := d.cfg.Resolver.LookupNetIP(ctx, "ip", to.Host+".")
	if err != nil {
		return nil, err
	}
	all := make([]netip.AddrPort, len(addrs))
	for i, addr := range addrs {
		all[i] = netip.AddrPortFrom(addr.Unmap(), to.Port)
	}
	return all, nil
}

// through connects by way of the upstream proxy. The proxy gets an address, so that it resolves nothing.
func (d *Dialer) through(ctx context.Context, to destination.Destination) (net.Conn, error) {
	addrs, err := d.lookup(ctx, to)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if err = d.judge(addr); err != nil {
			continue
		}
		if slices.Contains(d.cfg.Local, addr) {
			return d.direct(ctx, addr.String())
		}
		var conn net.Conn
		if conn, err = d.tunnel(ctx, addr); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (d *Dialer) tunnel(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	if d.cfg.Own(d.cfg.Upstream) {
		return nil, destination.Refuse(destination.RuleOwn, "the upstream proxy %s is Durward's own, or a service's", d.cfg.Upstream)
	}
	var plain net.Dialer // to an address that a human's file names
	conn, err := plain.DialContext(ctx, "tcp", d.cfg.Upstream.String())
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	if err == nil {
		err = connected(conn)
	}
	if err != nil || !stop() {
		_ = conn.Close()
		return nil, &destination.Error{Why: fmt.Sprintf("the upstream proxy %s does not connect to %s", d.cfg.Upstream, to), Cause: err}
	}
	return tunnelled{conn, net.TCPAddrFromAddrPort(to)}, nil
}

// connected reads a proxy's answer to CONNECT, and not a byte of what follows.
func connected(conn net.Conn) error {
	one := bufio.NewReaderSize(io.LimitReader(oneByte{conn}, headerBytes), 16)
	answer, err := http.ReadResponse(one, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // its body is the tunnel
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", answer.StatusCode)
	}
	return nil
}

// oneByte reads a byte at a time.
type oneByte struct{ net.Conn }

func (o oneByte) Read(p []byte) (int, error) { return o.Conn.Read(p[:min(1, len(p))]) }

// tunnelled is a connection whose other end is behind a proxy.
type tunnelled struct {
	net.Conn

	to net.Addr
}

func (t tunnelled) RemoteAddr() net.Addr { return t.to }

// Spelled judges what a URL says by itself, before any list and any look-up: its port, and its address where it is no name.
func (d *Dialer) Spelled(to destination.Destination) error {
	if addr, is := to.Addr(); is {
		return d.judge(netip.AddrPortFrom(addr, to.Port))
	}
	return d.port(to)
}
