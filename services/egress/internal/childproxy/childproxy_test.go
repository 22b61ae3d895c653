package childproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/platformtest/traps"
)

// world is a proxy for one child, which may reach allowed.test and what is below wild.test; every name leads to loopback, where two servers
// are let through.
type world struct {
	t           *testing.T
	socket      string
	plain, safe *httptest.Server

	mu      sync.Mutex
	told    []Verdict
	met     []string
	blocked *destination.List
	gate    *Gate
	// held is told of what /hold reads: that it began, and then how it ended.
	held chan error
	// ended are the connections whose bytes were told; close ends the proxy.
	ended chan Verdict
	close func()
}

// block says what a human blocks from now on.
func (w *world) block(text string) {
	w.t.Helper()
	list, err := destination.ParseList(destination.Source{Layer: "user", File: destination.File, User: "somebody"}, []byte(text))
	if err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.blocked = destination.Join(destination.BuiltIn(), list)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, socket: filepath.Join(t.TempDir(), "s"), gate: NewGate(), held: make(chan error, 2), ended: make(chan Verdict, 16)}
	answer := http.HandlerFunc(func(a http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.met = append(w.met, r.Host)
		w.mu.Unlock()
		if r.URL.Path == "/hold" {
			_, err := io.ReadFull(r.Body, make([]byte, piece/4))
			w.held <- err
			_, err = io.Copy(io.Discard, r.Body)
			w.held <- err
		}
		fmt.Fprintf(a, "%s %s from %q via %q", r.Method, r.URL, r.Host, r.Header.Get("Proxy-Authorization"))
	})
	w.plain, w.safe = httptest.NewServer(answer), httptest.NewUnstartedServer(answer)
	w.safe.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.safe.StartTLS()
	t.Cleanup(w.plain.Close)
	t.Cleanup(w.safe.Close)
	names := traps.ServeNames(t, "127.0.0.1:0", func(q dnsmessage.Question) []dnsmessage.Resource {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.met = append(w.met, "dns "+q.Name.String())
		to := "127.0.0.1"
		if q.Name.String() == "rebound.wild.test." {
			to = "127.0.0.2"
		}
		return traps.Resource(q, q.Name, netip.MustParseAddr(to))
	})
	cfg := dialer.Config{
		Local: []netip.AddrPort{addr(t, w.plain), addr(t, w.safe)},
		Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "udp4", names)
		}},
	}
	listener, err := net.Listen("unix", w.socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	w.block("")
	domains := func() *destination.List {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.blocked
	}
	proxy := New(Config{Dialer: cfg, Gate: w.gate, Domains: domains, Record: func(v Verdict) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if v.Why == "" && !v.Begun {
			select {
			case w.ended <- v:
			default:
			}
			return
		}
		w.told = append(w.told, v)
	}})
	go func() {
		served <- proxy.Serve(listener, Child{Server: "demo", User: "ann", Domains: []string{"allowed.test", "*.wild.test", "localhost", "*.google.internal"}})
	}()
	w.close = sync.OnceFunc(func() {
		_ = listener.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.close)
	return w
}

// sinceLast is what was met since it was last asked.
func (w *world) sinceLast() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	met := w.met
	w.met = nil
	return met
}

func addr(t *testing.T, s *httptest.Server) netip.AddrPort {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return netip.MustParseAddrPort(u.Host)
}

func (w *world) dial() net.Conn {
	w.t.Helper()
	conn, err := net.Dial("unix", w.socket)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// client is one that uses the proxy, as programs do.
func (w *world) client(serverName string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		Proxy:             http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy"}),
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", w.socket) },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: serverName},
		DisableKeepAlives: true,
	}}
}

// host is a name at the port of a server.
func host(t *testing.T, name string, s *httptest.Server) string {
	t.Helper()
	return fmt.Sprintf("%s:%d", name, addr(t, s).Port())
}

func TestAllowed(t *testing.T) {
	w := newWorld(t)
	for _, c := range []struct{ scheme, name string }{{"http", "allowed.test"}, {"https", "allowed.test"}, {"https", "a.b.wild.test"}, {"http", "ALLOWED.test"}} {
		s := map[string]*httptest.Server{"http": w.plain, "https": w.safe}[c.scheme]
		answer, err := w.client(c.name).Get(c.scheme + "://" + host(t, c.name, s) + "/x?y")
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if want := fmt.Sprintf("GET /x?y from %q via \"\"", strings.ToLower(host(t, c.name, s))); !strings.EqualFold(string(got), want) {
			t.Errorf("%v: %q, want %q", c, got, want)
		}
	}
	if len(w.told) != 3 || slices.ContainsFunc(w.told, func(v Verdict) bool {
		return !v.Begun || v.Server != "demo" || v.User != "ann" || v.Times != 1 || v.Address != addr(t, w.plain).String() && v.Address != addr(t, w.safe).String()
	}) {
		t.Errorf("told %+v", w.told)
	}
	// The fourth went where the first did, and is told when the proxy ends, which it may do before it.
	for n := range 4 {
		if n == 3 {
			w.close()
		}
		v := <-w.ended
		if v.Server != "demo" || v.User != "ann" || v.Times != 1 || v.Address == "" || v.Sent < 50 || v.Received < 100 {
			t.Errorf("at its end: %+v", v)
		}
	}
}

// TestBytes: what a child sends and gets is counted to the byte, and told when the connection has ended: once for what ends within a minute.
func TestBytes(t *testing.T) {
	var told []Verdict
	c := &served{child: Child{Server: "demo"}, told: map[about]*telling{}, proxy: New(Config{Record: func(v Verdict) { told = append(told, v) }})}
	to := destination.Destination{Host: "allowed.test", Port: 443}
	for n := range 3 {
		here, there := net.Pipe()
		far := &counted{Conn: here}
		c.begin(to, far)
		go func() {
			_, _ = io.CopyN(io.Discard, there, 1000) // what is counted here is compared below
			_, _ = there.Write(make([]byte, 300+n))  // likewise
			_ = there.Close()
		}()
		if _, err := far.Write(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(far); err != nil {
			t.Fatal(err)
		}
		c.end(to, far)
	}
	c.tellRest()
	c.tellRest()
	begun := Verdict{Server: "demo", To: "allowed.test:443", Address: "pipe", Begun: true, Times: 1}
	first, rest := begun, begun
	first.Begun, first.Sent, first.Received = false, 1000, 300
	rest.Begun, rest.Sent, rest.Received, rest.Times = false, 2000, 603, 2
	if want := []Verdict{begun, first, rest}; !slices.Equal(told, want) {
		t.Errorf("told %+v, want %+v", told, want)
	}
}

// What is refused is answered with a sentence, on a connection that closes, and no name is looked up for it.
func TestRefused(t *testing.T) {
	w := newWorld(t)
	safe, plain := addr(t, w.safe).Port(), addr(t, w.plain).Port()
	connect := func(to string) string { return "CONNECT " + to + " HTTP/1.1\r\nHost: " + to + "\r\n\r\n" }
	get := func(to string) string { return "GET " + to + " HTTP/1.1\r\nHost: allowed.test\r\n\r\n" }
	for _, c := range []struct {
		request, says string
		rule          destination.Rule
	}{
		{connect(fmt.Sprintf("other.test:%d", safe)), "is not among the domains", destination.RuleDestination},
		{connect(fmt.Sprintf("wild.test:%d", safe)), "is not among the domains", destination.RuleDestination},
		{connect(fmt.Sprintf("notallowed.test:%d", safe)), "is not among the domains", destination.RuleDestination},
		{connect(fmt.Sprintf("127.0.0.1:%d", safe)), "an address is no name", destination.RuleDestination},
		{connect(fmt.Sprintf("[::1]:%d", safe)), "an address is no name", destination.RuleDestination},
		{connect(fmt.Sprintf("2130706433:%d", safe)), "unusual spelling", destination.RuleURL},
		{connect(fmt.Sprintf("0x7f.1:%d", safe)), "unusual spelling", destination.RuleURL},
		{connect("allowed.test:22"), "port 22", destination.RulePort},
		{connect(fmt.Sprintf("rebound.wild.test:%d", safe)), "is not one that is dialled", destination.RulePort},
		{connect("localhost:443"), "is not public", destination.RuleAddress},
		{connect("metadata.google.internal:80"), "is blocked", destination.RuleDestination},
		{get(fmt.Sprintf("http://other.test:%d/", plain)), "is not among the domains", destination.RuleDestination},
		{get(fmt.Sprintf("http://127.0.0.1:%d/", plain)), "an address is no name", destination.RuleDestination},
		{get(fmt.Sprintf("http://user@allowed.test:%d/", plain)), "a user or a password", destination.RuleURL},
		{get("https://allowed.test/"), "by CONNECT", destination.RuleScheme},
		{get("ftp://allowed.test/"), "only http and https", destination.RuleScheme},
		{get("/x"), "only http and https", destination.RuleScheme},
	} {
		conn := w.dial()
		if _, err := io.WriteString(conn, c.request); err != nil {
			t.Fatal(err)
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%q: %v", c.request, err)
			continue
		}
		said, err := io.ReadAll(answer.Body)
		if _, more := conn.Read(make([]byte, 1)); answer.StatusCode != http.StatusForbidden || !answer.Close || err != nil || more == nil {
			t.Errorf("%q: %s, it closes: %v, %v", c.request, answer.Status, answer.Close, more)
		}
		_ = answer.Body.Close()
		w.mu.Lock()
		if told := func(v Verdict) bool { return v.Rule == c.rule && v.Why != "" }; !strings.Contains(string(said), c.says) || !slices.ContainsFunc(w.told, told) {
			t.Errorf("%q: %q, told %+v", c.request, said, w.told)
		}
		w.mu.Unlock()
	}
	if slices.ContainsFunc(w.met, func(m string) bool {
		return !strings.HasPrefix(m, "dns rebound.wild.test") && !strings.HasPrefix(m, "dns localhost")
	}) {
		t.Errorf("met %q", w.met)
	}
}

// TestBlocked: what a human blocked is reached by no server, though its entry has the domain, and the name is not looked up. The control
// is a list that blocks it for another client.
func TestBlocked(t *testing.T) {
	w := newWorld(t)
	for list, may := range map[string]bool{
		`block: ["*.wild.test"]`: false, `block: [{domain: bad.wild.test, clients: [ann]}]`: false,
		`block: [{domain: bad.wild.test, clients: [bob]}]`: true,
	} {
		w.block(list)
		w.sinceLast()
		for scheme, s := range map[string]*httptest.Server{"http": w.plain, "https": w.safe} {
			answer, err := w.client("bad.wild.test").Get(scheme + "://" + host(t, "bad.wild.test", s))
			if got := err == nil && answer.StatusCode == http.StatusOK; got != may {
				t.Errorf("%s, %s: reached is %v, %v", list, scheme, got, err)
			}
			if err == nil {
				_ = answer.Body.Close()
			}
		}
		if met := w.sinceLast(); !may && len(met) > 0 {
			t.Errorf("%s: met %q", list, met)
		}
	}
}

// piece is what TestHalt sends at once: more than is kept back anywhere.
const piece = 64 << 10

// TestHalt: a panic ends the connections that stand, refuses others and looks up no name until it is over, and a domain that is blocked
// ends those that lead there. The control is a connection that nobody ends.
func TestHalt(t *testing.T) {
	w := newWorld(t)
	body := strings.Repeat("x", piece)
	for _, c := range []struct {
		name       string
		stop, undo func()
	}{
		{"panic", w.gate.Shut, w.gate.Open},
		{"blocked", func() { w.block("block: [allowed.test]") }, func() { w.block("") }},
		{"control", func() {}, func() {}},
	} {
		for scheme, s := range map[string]*httptest.Server{"http": w.plain, "https": w.safe} {
			url, rest := scheme+"://"+host(t, "allowed.test", s), make(chan string)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/hold", io.MultiReader(strings.NewReader(body), later(rest)))
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan error, 1)
			go func() {
				answer, err := w.client("allowed.test").Do(request)
				if err == nil {
					err = answer.Body.Close()
				}
				sent <- err
			}()
			if err := <-w.held; err != nil {
				t.Fatal(c.name, scheme, err)
			}
			c.stop()
			rest <- body
			stands := c.name == "control"
			if err := <-w.held; (err == nil) != stands {
				t.Errorf("%s, %s: the other side read to the end: %v", c.name, scheme, err)
			}
			<-sent
			w.sinceLast()
			answer, err := w.client("allowed.test").Get(url)
			if got, met := err == nil && answer.StatusCode == http.StatusOK, w.sinceLast(); got != stands || !stands && len(met) > 0 {
				t.Errorf("%s, %s: another is let through: %v, met %q", c.name, scheme, got, met)
			}
			c.undo()
			if answer, err = w.client("allowed.test").Get(url); err != nil || answer.StatusCode != http.StatusOK {
				t.Errorf("%s, %s: afterwards: %v", c.name, scheme, err)
			}
		}
	}
}

// later reads the one text that is given later.
func later(text <-chan string) io.Reader {
	in, out := io.Pipe()
	go func() { _, err := io.WriteString(out, <-text); _ = out.CloseWithError(err) }() // nil is the end
	return in
}

// A tunnel begins with TLS for the name that was asked for; nothing else gets to the other side.
func TestSNI(t *testing.T) {
	w := newWorld(t)
	to := host(t, "allowed.test", w.safe)
	for name, say := range map[string]func(net.Conn) error{
		"another name": func(c net.Conn) error {
			return tls.Client(c, &tls.Config{ServerName: "other.test", InsecureSkipVerify: true}).Handshake()
		},
		"no name": func(c net.Conn) error {
			return tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake()
		},
		"no TLS": func(c net.Conn) error {
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: allowed.test\r\n\r\n"); err != nil {
				return err
			}
			_, err := io.ReadFull(c, make([]byte, 1))
			return err
		},
	} {
		conn := w.dial()
		fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
		if answer, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), &http.Request{Method: http.MethodConnect}); err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v", name, err)
		}
		if err := say(conn); err == nil {
			t.Errorf("%s gets through", name)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(w.met, to) || len(w.told) != 1 || w.told[0].Rule != ruleSNI {
		t.Errorf("met %q, told %+v", w.met, w.told)
	}
}

// A child that makes up names is counted, and fills neither memory nor records.
func TestFlood(t *testing.T) {
	c := &served{proxy: New(Config{}), told: map[about]*telling{}}
	told, times := 0, 0
	c.proxy.cfg.Record = func(v Verdict) { told++; times += v.Times }
	for i := range 5000 {
		c.fail(fmt.Sprint(i), destination.Refuse(destination.RuleDestination, "%d", i))
	}
	if len(c.told) != maxTold+1 || told != maxTold+1 || times != told {
		t.Errorf("%d kept, %d told, %d counted", len(c.told), told, times)
	}
	for range burst + 10 {
		c.pace()
	}
}
