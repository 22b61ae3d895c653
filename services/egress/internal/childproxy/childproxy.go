// Package childproxy is the one way from a sandbox of another's MCP server to other hosts: an HTTP proxy on a Unix socket for each child. The
// socket is the child's identity. The child reaches the domains of its entry and nothing else, by name alone, and none that a human blocked
// for the client that it acts for; each connection is judged on the address that is dialled (NETS-1). What is refused asks nobody.
//
// It runs in egress and trusts the entry that a human signed. All that the child and the other side say is hostile. Within TLS it sees
// nothing: the name in the first record has to be the one that was asked for, and what a server does with an encrypted name (ECH) or with
// another one inside is between the child and that server.
package childproxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
)

// Bounds of one child.
const (
	maxConnections = 64
	// headerTime is how long a request, and a first record of TLS, may take; idleTime how long nothing may pass through a tunnel.
	headerTime = 10 * time.Second
	idleTime   = 5 * time.Minute
	// A child begins this many requests at once, and then one an interval.
	burst    = 200
	interval = 10 * time.Millisecond
	// A verdict that was told is told again at most this often; maxTold are those that are told apart.
	tellAgain = time.Minute
	maxTold   = 256
)

// ruleSNI refuses a connection whose first record names another host, or is none of TLS.
const ruleSNI destination.Rule = "sni"

// Config says how children's connections leave.
type Config struct {
	// Dialer is egress' own way out; its list is replaced by each child's.
	Dialer dialer.Config
	// Gate is the way out of all servers.
	Gate *Gate
	// Domains are the lists in force: what they block is blocked for children too.
	Domains func() *destination.List
	// Record is told of each verdict; it is called from many goroutines, and does not wait.
	Record func(Verdict)
}

// Child is who is on the other end of a socket.
type Child struct {
	Server string
	// User is the client that it acts for, CLIENT/SESSION where it acts for one session alone, or "" where it acts for all.
	User string
	// Domains are those of its entry: "example.com", "*.example.com", with or without a port.
	Domains []string
}

// Verdict is what became of a request.
type Verdict struct {
	Server, User string
	// To is HOST:PORT; empty where the child named no destination that can be read.
	To string
	// Address is what was dialled; empty where nothing answered.
	Address string
	// Rule and Why are why it was refused, or failed; Why is empty where the child got through.
	Rule destination.Rule
	Why  string
	// Begun: it got through, and how much passes is told when it has ended.
	Begun bool
	// Sent and Received are the connection's bytes, TLS' own included; of all those that this verdict tells of.
	Sent, Received int
	// Times is how often this was so since it was last told.
	Times int
}

// Proxy serves children. It is safe for concurrent use.
type Proxy struct{ cfg Config }

// New returns a proxy.
func New(cfg Config) *Proxy { return &Proxy{cfg} }

// Serve serves one child until its listener is closed.
func (p *Proxy) Serve(listener net.Listener, child Child) error {
	list, err := destination.Allowing(child.Domains...)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	client, _, _ := strings.Cut(child.User, "/")
	way := p.cfg.Dialer
	way.Allow = func(_ context.Context, to destination.Destination) error {
		if _, isAddress := to.Addr(); isAddress {
			return destination.Refuse(destination.RuleDestination, "an address is no name: servers reach domains by name")
		}
		if verdict, _ := list.Judge(destination.Party{}, to); verdict != destination.Allowed {
			return destination.Refuse(destination.RuleDestination, "%s is not among the domains of server %s", to, child.Server)
		}
		if _, blocked := p.cfg.Domains().BlockedFor(client, to); blocked {
			return destination.Refuse(destination.RuleDestination, "%s is blocked", to)
		}
		return nil
	}
	out, err := p.cfg.Gate.Dial(way)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	c := &served{proxy: p, child: child, told: map[about]*telling{}}
	c.out = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := out(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &counted{Conn: conn}, nil
	}
	defer c.tellRest()
	of := func(r *http.Request) *target { return r.Context().Value(judged{}).(*target) }
	c.plain = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL = of(r.In).url
			r.Out.Host = r.Out.URL.Host // the name that was judged, and no other
		},
		ModifyResponse: func(answer *http.Response) error {
			to := of(answer.Request)
			to.begun = true
			c.begin(to.to, to.conn)
			return nil
		},
		Transport: &http.Transport{
			DialContext: c.out, DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
		},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler:  func(w http.ResponseWriter, r *http.Request, err error) { c.refuse(w, of(r).to.String(), err) },
	}
	server := &http.Server{
		Handler: c, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: 64 << 10, ErrorLog: log.New(io.Discard, "", 0),
	}
	if err := server.Serve(netutil.LimitListener(listener, maxConnections)); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return server.Close()
}

// served is one child.
type served struct {
	proxy *Proxy
	child Child
	out   dial
	plain *httputil.ReverseProxy

	mu   sync.Mutex
	next time.Time
	told map[about]*telling
	over bool // what ends now is told at once
}

// about are the verdicts that are told as one.
type about struct {
	to         string
	rule       destination.Rule
	begun, got bool
}

// telling is a verdict, of as many as were not told yet.
type telling struct {
	Verdict

	last time.Time
}

// counted is a connection whose bytes are counted.
type counted struct {
	net.Conn

	sent, received atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}

// Write counts before it sends: an answer may end the request before this has returned.
func (c *counted) Write(p []byte) (int, error) {
	c.sent.Add(int64(len(p)))
	n, err := c.Conn.Write(p)
	c.sent.Add(int64(n - len(p)))
	return n, err
}

// CloseWrite says that nothing more is sent.
func (c *counted) CloseWrite() error { return closeWrite(c.Conn) }

// target is where a plain request goes; judged is its key in the request's context.
type target struct {
	url   *url.URL
	to    destination.Destination
	conn  net.Conn // when there is one
	begun bool
}

type judged struct{}

// ServeHTTP answers one request.
func (c *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.pace()
	if r.Method == http.MethodConnect {
		c.connect(w, r)
		return
	}
	to, where, err := destination.ParseURL(r.RequestURI)
	if err == nil && to.Scheme != "http" {
		err = destination.Refuse(destination.RuleScheme, "this is a proxy: https is asked for by CONNECT")
	}
	if err != nil {
		c.refuse(w, "", err)
		return
	}
	goal := &target{url: to, to: where}
	ctx := httptrace.WithClientTrace(context.WithValue(r.Context(), judged{}, goal), &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { goal.conn = got.Conn },
	})
	defer func() { // an answer that breaks off panics
		if goal.begun {
			c.end(goal.to, goal.conn)
		}
	}()
	c.plain.ServeHTTP(w, r.WithContext(ctx))
}

// connect opens a tunnel, in which TLS has to begin with the name that was asked for.
func (c *served) connect(w http.ResponseWriter, r *http.Request) {
	to, err := destination.Of(&url.URL{Scheme: "https", Host: r.Host})
	if err != nil {
		c.refuse(w, "", err)
		return
	}
	far, err := c.out(r.Context(), "tcp", to.String())
	if err != nil {
		c.refuse(w, to.String(), err)
		return
	}
	defer far.Close()
	near, read, err := http.NewResponseController(w).Hijack()
	if err != nil {
		c.refuse(w, to.String(), err)
		return
	}
	defer near.Close()
	_ = near.SetDeadline(time.Now().Add(headerTime))
	if _, err := io.WriteString(near, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	first, name := hello(read.Reader)
	if host, err := destination.ParseHost(name); err != nil || host != to.Host {
		c.fail(to.String(), destination.Refuse(ruleSNI, "the connection does not begin with TLS for %s", to.Host))
		return
	}
	c.begin(to, far)
	defer c.end(to, far)
	if _, err := far.Write(first); err == nil {
		tunnel(near, read.Reader, far)
	}
}

// hello reads TLS' first message, and returns the bytes that it read and the name in there.
func hello(from *bufio.Reader) (first []byte, name string) {
	var seen bytes.Buffer
	server := tls.Server(readOnly{io.TeeReader(from, &seen)}, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name = h.ServerName
			return nil, errors.New("that is all")
		},
	})
	_ = server.HandshakeContext(context.Background()) // it ends with the error above, or with the deadline of the connection
	return seen.Bytes(), name
}

// readOnly is a connection of which only reading is of interest.
type readOnly struct{ io.Reader }

func (readOnly) Write(p []byte) (int, error)      { return len(p), nil }
func (readOnly) Close() error                     { return nil }
func (readOnly) LocalAddr() net.Addr              { return nil }
func (readOnly) RemoteAddr() net.Addr             { return nil }
func (readOnly) SetDeadline(time.Time) error      { return nil }
func (readOnly) SetReadDeadline(time.Time) error  { return nil }
func (readOnly) SetWriteDeadline(time.Time) error { return nil }

// tunnel carries bytes both ways until both ends are done, or nothing passes for a while.
func tunnel(near net.Conn, buffered io.Reader, far net.Conn) {
	var both sync.WaitGroup
	carry := func(to net.Conn, from io.Reader) {
		p := make([]byte, 32<<10)
		for {
			until := time.Now().Add(idleTime)
			_, _ = near.SetDeadline(until), far.SetDeadline(until)
			n, err := from.Read(p)
			if n > 0 {
				if _, err := to.Write(p[:n]); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_ = closeWrite(to)
	}
	both.Go(func() { carry(far, buffered) })
	both.Go(func() { carry(near, far) })
	both.Wait()
}

// refuse answers with a sentence, and closes the connection: Node.js waits for ever on one that stays open after a refused CONNECT.
func (c *served) refuse(w http.ResponseWriter, to string, err error) {
	c.fail(to, err)
	status, why := http.StatusBadGateway, "the other side does not answer"
	if e := (*destination.Error)(nil); errors.As(err, &e) {
		if why = e.Why; e.Rule != destination.RuleNone && e.Rule != destination.RuleTime {
			status = http.StatusForbidden
		}
	}
	w.Header().Set("Connection", "close")
	http.Error(w, "Durward: "+why, status)
}

// pace bounds how often a child begins a request.
func (c *served) pace() {
	c.mu.Lock()
	now := time.Now()
	if earliest := now.Add(-burst * interval); c.next.Before(earliest) {
		c.next = earliest
	}
	c.next = c.next.Add(interval)
	wait := c.next.Sub(now)
	c.mu.Unlock()
	time.Sleep(wait)
}

// begin and end tell that a child got through, and how much passed when that is over. fail tells of what it did not get.
func (c *served) begin(to destination.Destination, conn net.Conn) {
	c.tell(Verdict{To: to.String(), Address: conn.RemoteAddr().String(), Begun: true})
}

func (c *served) end(to destination.Destination, conn net.Conn) {
	v := Verdict{To: to.String(), Address: conn.RemoteAddr().String()}
	if bytes, ok := conn.(*counted); ok {
		v.Sent, v.Received = int(bytes.sent.Load()), int(bytes.received.Load())
	}
	c.tell(v)
}

func (c *served) fail(to string, err error) {
	v := Verdict{To: to, Why: "the connection failed"}
	if e := (*destination.Error)(nil); errors.As(err, &e) {
		v.Rule, v.Why = e.Rule, e.Why
	}
	c.tell(v)
}

// tell tells a verdict. The same one is counted, and told again after a while, or when the child is served no more.
func (c *served) tell(v Verdict) {
	v.Server, v.User = c.child.Server, c.child.User
	key := about{v.To, v.Rule, v.Begun, v.Why == ""}
	c.mu.Lock()
	if c.told[key] == nil && len(c.told) >= maxTold {
		key.to, v.To, v.Address = "", "", "" // a child that makes up names does not fill this memory
	}
	seen := c.told[key]
	if seen == nil {
		seen = &telling{}
		c.told[key] = seen
	}
	v.Times, v.Sent, v.Received = seen.Times+1, seen.Sent+v.Sent, seen.Received+v.Received
	seen.Verdict = v
	due := c.over || time.Since(seen.last) >= tellAgain
	if due {
		seen.told()
	}
	c.mu.Unlock()
	if due {
		c.record(v)
	}
}

func (t *telling) told() { t.last, t.Times, t.Sent, t.Received = time.Now(), 0, 0, 0 }

// tellRest tells of what ended and was not told yet.
func (c *served) tellRest() {
	var rest []Verdict
	c.mu.Lock()
	c.over = true
	for key, seen := range c.told {
		if key.got && !key.begun && seen.Times > 0 {
			rest = append(rest, seen.Verdict)
			seen.told()
		}
	}
	c.mu.Unlock()
	for _, v := range rest {
		c.record(v)
	}
}

func (c *served) record(v Verdict) {
	if c.proxy.cfg.Record != nil {
		c.proxy.cfg.Record(v)
	}
}
