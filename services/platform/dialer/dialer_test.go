package dialer_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/platformtest/traps"
)

func TestNewRefuses(t *testing.T) {
	all := func(context.Context, destination.Destination) error { return nil }
	own := func(a netip.AddrPort) bool { return a.Port() == 7001 }
	for name, cfg := range map[string]dialer.Config{
		"no list":                    {},
		"a local address, any port":  {Allow: all, Local: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}},
		"every address":              {Allow: all, Local: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:80")}},
		"a mapped address":           {Allow: all, Local: []netip.AddrPort{netip.MustParseAddrPort("[::ffff:127.0.0.1]:80")}},
		"an address of one link":     {Allow: all, Local: []netip.AddrPort{netip.MustParseAddrPort("[fe80::1%eth0]:80")}},
		"a cloud's metadata":         {Allow: all, Local: []netip.AddrPort{netip.MustParseAddrPort("169.254.169.254:80")}},
		"another cloud's":            {Allow: all, Local: []netip.AddrPort{netip.MustParseAddrPort("[fd00:ec2::254]:80")}},
		"a link-local address":       {Allow: all, Local: []netip.AddrPort{netip.MustParseAddrPort("169.254.7.7:80")}},
		"multicast":                  {Allow: all, Local: []netip.AddrPort{netip.MustParseAddrPort("224.0.0.1:80")}},
		"Durward's own":              {Allow: all, Own: own, Local: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:7001")}},
		"Durward's own as the proxy": {Allow: all, Own: own, Upstream: netip.MustParseAddrPort("127.0.0.1:7001")},
		"a proxy without a port":     {Allow: all, Upstream: netip.MustParseAddrPort("127.0.0.1:0")},
	} {
		if _, err := dialer.New(cfg); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// local returns a dialer that reaches these test servers and nothing else.
func local(t *testing.T, cfg dialer.Config, servers ...*httptest.Server) *dialer.Dialer {
	t.Helper()
	var list []destination.Destination
	cfg.Roots = x509.NewCertPool()
	cfg.Resolver = resolver(traps.ServeNames(t, "127.0.0.1:0", func(q dnsmessage.Question) []dnsmessage.Resource {
		if q.Name.String() != "here.test." {
			return nil
		}
		return traps.Resource(q, q.Name, netip.MustParseAddr("127.0.0.1"))
	}))
	for _, s := range servers {
		addr := addrOf(t, s)
		cfg.Local = append(cfg.Local, addr)
		list = append(list, destination.Destination{Host: addr.Addr().String(), Port: addr.Port()})
		if s.Certificate() != nil {
			cfg.Roots.AddCert(s.Certificate())
		}
	}
	if cfg.Allow == nil {
		cfg.Allow = destination.Only(list...)
	}
	d, err := dialer.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func addrOf(t *testing.T, s *httptest.Server) netip.AddrPort {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return netip.MustParseAddrPort(u.Host)
}

// serve starts a server. Its complaints of clients that give up are not the test's.
func serve(t *testing.T, secure bool, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func say(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

func to(address string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", address)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
}

// TestLocalByExactAddress: of loopback and private addresses a dialer reaches those alone that a human named, with their ports, and
// never Durward's own.
func TestLocalByExactAddress(t *testing.T) {
	named, other := serve(t, false, say("named")), serve(t, false, say("other"))
	any := func(context.Context, destination.Destination) error { return nil }
	d := local(t, dialer.Config{Allow: any, Ports: []uint16{80, 443, addrOf(t, other).Port()}}, named)
	if answer, err := get(d, named.URL); err != nil || string(answer.Body) != "named" || answer.Address != addrOf(t, named) {
		t.Errorf("the named one: %+v, %v", answer, err)
	}
	if _, err := get(d, other.URL); !ruled(err, destination.RuleAddress) {
		t.Errorf("another port of loopback: %v", err)
	}
	if _, err := get(d, fmt.Sprintf("http://here.test:%d/", addrOf(t, other).Port())); !ruled(err, destination.RuleAddress) {
		t.Errorf("another port of loopback, by name: %v", err)
	}
	if _, err := get(d, fmt.Sprintf("http://127.0.0.2:%d/", addrOf(t, named).Port())); err == nil {
		t.Errorf("another address of loopback: %v", err)
	}
	if _, err := get(d, "http://127.0.0.1:1/"); !ruled(err, destination.RulePort) {
		t.Errorf("a port that is not on any list: %v", err)
	}
	var became atomic.Bool
	d = local(t, dialer.Config{Own: func(a netip.AddrPort) bool { return became.Load() && a == addrOf(t, named) }}, named)
	became.Store(true) // a service of the catalogue, say, that was added since
	if _, err := get(d, named.URL); !ruled(err, destination.RuleOwn) {
		t.Errorf("Durward's own: %v", err)
	}
}

// TestRedirects: each hop is judged as the first is, and TLS is never left.
func TestRedirects(t *testing.T) {
	end := serve(t, false, say("end"))
	var again *httptest.Server
	again = serve(t, false, func(w http.ResponseWriter, r *http.Request) { to(again.URL)(w, r) })
	for name, c := range map[string]struct {
		target    string
		redirects int
		want      destination.Rule
	}{
		"none is followed":       {end.URL, 0, destination.RuleRedirect},
		"a loop":                 {again.URL, 5, destination.RuleRedirect},
		"off the list":           {"http://127.0.0.3:" + fmt.Sprint(addrOf(t, end).Port()), 5, destination.RuleDestination},
		"another scheme":         {"file:///etc/passwd", 5, destination.RuleScheme},
		"another spelling":       {"http://0x7f.1:" + fmt.Sprint(addrOf(t, end).Port()), 5, destination.RuleURL},
		"with a user":            {strings.Replace(end.URL, "//", "//a:b@", 1), 5, destination.RuleURL},
		"a name of loopback":     {"http://here.test:" + fmt.Sprint(addrOf(t, end).Port()), 5, destination.RuleDestination},
		"a port that nobody has": {"http://127.0.0.1:1/", 5, destination.RulePort},
	} {
		start := serve(t, false, to(c.target))
		d := local(t, dialer.Config{Redirects: c.redirects}, start, end, again)
		if answer, err := get(d, start.URL); !ruled(err, c.want) {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
	}
	referred := ""
	last := serve(t, false, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		referred = r.Header.Get("Referer")
		_, _ = w.Write(append([]byte("got "), body...))
	})
	start := serve(t, false, to(last.URL+"/there"))
	d := local(t, dialer.Config{Redirects: 1}, start, last)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, start.URL+"/secret", strings.NewReader("this"))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := d.Do(req)
	if err != nil || string(answer.Body) != "got this" || answer.URL.Path != "/there" || answer.Address != addrOf(t, last) || referred != "" {
		t.Errorf("%+v, %v, referred by %q", answer, err, referred)
	}
	answer, err = get(local(t, dialer.Config{Redirects: dialer.AnAnswer}, start, last), start.URL)
	if err != nil || answer.Status/100 != 3 || answer.Header.Get("Location") != last.URL+"/there" {
		t.Errorf("a redirect that is the answer: %+v, %v", answer, err)
	}
	if err := leaveTLS(t); !ruled(err, destination.RuleDowngrade) {
		t.Errorf("from https to http: %v", err)
	}
}

// leaveTLS follows a redirect from https to http.
func leaveTLS(t *testing.T) error {
	t.Helper()
	end := serve(t, false, say("end"))
	start := serve(t, true, to(end.URL))
	_, err := get(local(t, dialer.Config{Redirects: 1}, start, end), start.URL)
	return err
}

// TestTLS: a certificate is verified, for the name that was asked for, and old versions are not spoken.
func TestTLS(t *testing.T) {
	good := serve(t, true, say("good"))
	if answer, err := get(local(t, dialer.Config{}, good), good.URL); err != nil || string(answer.Body) != "good" {
		t.Errorf("%+v, %v", answer, err)
	}
	d, err := dialer.New(dialer.Config{Local: []netip.AddrPort{addrOf(t, good)}, Allow: func(context.Context, destination.Destination) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := get(d, good.URL); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an authority that is not trusted: %v", err)
	}
	if _, err := get(local(t, dialer.Config{Allow: func(context.Context, destination.Destination) error { return nil }}, good), strings.Replace(good.URL, "127.0.0.1", "here.test", 1)); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("another name: %v", err)
	}
	old := httptest.NewUnstartedServer(say("old"))
	old.Config.ErrorLog = log.New(io.Discard, "", 0)
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11}
	old.StartTLS()
	t.Cleanup(old.Close)
	if answer, err := get(local(t, dialer.Config{}, old), old.URL); err == nil {
		t.Errorf("TLS 1.1: %+v", answer)
	}
	plain := serve(t, false, say("plain"))
	if answer, err := get(local(t, dialer.Config{}, plain), strings.Replace(plain.URL, "http:", "https:", 1)); err == nil {
		t.Errorf("a server without TLS: %+v", answer)
	}
}

// zipped is so many zeros, compressed.
func zipped(t *testing.T, size int) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestBounds: an answer is bounded as it comes and decompressed, and in time at each of its phases.
func TestBounds(t *testing.T) {
	bomb, small := zipped(t, 64<<20), zipped(t, 1000)
	gz := func(encoding string, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Encoding"] = []string{encoding}
			_, _ = w.Write(body)
		}
	}
	hold := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		limits  dialer.Limits
		rule    destination.Rule
		want    string
	}{
		"a bomb":            {gz("gzip", bomb), dialer.Limits{}, destination.RuleSize, "larger"},
		"no gzip":           {gz("gzip", []byte("not at all")), dialer.Limits{}, destination.RuleEncoding, "gzip"},
		"cut gzip":          {gz("gzip", small[:len(small)-9]), dialer.Limits{}, destination.RuleEncoding, "gzip"},
		"another encoding":  {gz("br", small), dialer.Limits{}, destination.RuleEncoding, "compressed"},
		"twice encoded":     {gz("gzip, gzip", small), dialer.Limits{}, destination.RuleEncoding, "compressed"},
		"one byte too many": {say(strings.Repeat("a", 101)), dialer.Limits{Body: 100}, destination.RuleSize, "larger than 100"},
		"endless": {func(w http.ResponseWriter, _ *http.Request) {
			for err := error(nil); err == nil; _, err = w.Write(make([]byte, 1<<16)) {
			}
		}, dialer.Limits{}, destination.RuleSize, "larger"},
		"lines without end": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("a", 1<<20)) }, dialer.Limits{}, destination.RuleNone, "not valid HTTP"},
		"lies about its length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("ten"))
		}, dialer.Limits{}, destination.RuleNone, "ended"},
		"no answer": {hold, dialer.Limits{Header: 50 * time.Millisecond}, destination.RuleTime, "within the time"},
		"a body that never ends": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush() // the client may have gone
			hold(w, r)
		}, dialer.Limits{Whole: 200 * time.Millisecond}, destination.RuleTime, "within the time"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, false, c.handler)
			answer, err := get(local(t, dialer.Config{Limits: c.limits}, s), s.URL+"/secret")
			refused := (*destination.Error)(nil)
			if !errors.As(err, &refused) || refused.Rule != c.rule || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%+v, %v", answer, err)
			}
		})
	}
	for name, handler := range map[string]http.HandlerFunc{"gzip": gz("gzip", small), "plain": say(string(make([]byte, 1000)))} {
		s := serve(t, false, handler)
		if answer, err := get(local(t, dialer.Config{Limits: dialer.Limits{Body: 1000}}, s), s.URL); err != nil || len(answer.Body) != 1000 {
			t.Errorf("%s: %+v, %v", name, answer, err)
		}
	}
}

// raw starts a TCP server that answers one connection after the other.
func raw(t *testing.T, answer func(net.Conn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				answer(conn)
			}()
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

// TestErrorsRepeatNothing: what a server writes, and what a URL says, is in no error.
func TestErrorsRepeatNothing(t *testing.T) {
	for _, answer := range []string{"", "EVIL\r\n\r\n", "HTTP/1.1 EVIL EVIL\r\n\r\n", "HTTP/1.1 200 OK\r\nEVIL\r\n\r\n", "HTTP/1.1 302 OK\r\nLocation: http://EVIL:EVIL/\r\n\r\n", "HTTP/1.1 302 OK\r\nLocation: http://\x7fEVIL/\r\n\r\n"} {
		at := raw(t, func(conn net.Conn) {
			_, _ = bufio.NewReader(conn).ReadString('\n') // whatever it asks
			_, _ = io.WriteString(conn, answer)           // the client may have gone
		})
		d, err := dialer.New(dialer.Config{Local: []netip.AddrPort{at}, Redirects: 3, Allow: func(context.Context, destination.Destination) error { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		got, err := get(d, fmt.Sprintf("http://%s/hidden?token=hidden", at))
		if err == nil || strings.Contains(err.Error(), "EVIL") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: %+v, %v", answer, got, err)
		}
	}
}

// TestNoProxyOfTheEnvironment: a variable that names a proxy changes nothing.
func TestNoProxyOfTheEnvironment(t *testing.T) {
	var asked atomic.Int32
	proxy := serve(t, false, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	s := serve(t, false, say("direct"))
	if answer, err := get(local(t, dialer.Config{}, s), s.URL); err != nil || string(answer.Body) != "direct" || asked.Load() != 0 {
		t.Errorf("%+v, %v; the proxy was asked %d times", answer, err, asked.Load())
	}
	if _, err := get(local(t, dialer.Config{Allow: func(context.Context, destination.Destination) error { return nil }}, s), "http://10.0.0.1/"); !ruled(err, destination.RuleAddress) {
		t.Error(err)
	}
	if asked.Load() != 0 {
		t.Error("the proxy was asked")
	}
}

// TestUpstreamGetsJudgedAddresses: a proxy that a human named is asked for an address and a port, never for a name, and for no address
// that would not be dialled without it.
func TestUpstreamGetsJudgedAddresses(t *testing.T) {
	var asked atomic.Value
	asked.Store("")
	end := serve(t, false, say("end"))
	proxy := raw(t, func(conn net.Conn) {
		req, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		asked.Store(req.Method + " " + req.RequestURI)
		far, err := net.Dial("tcp4", addrOf(t, end).String())
		if err != nil {
			return
		}
		defer func() { _ = far.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 Connected\r\n\r\n") // as far as it goes
		go func() { _, _ = io.Copy(far, conn) }()                     // until either ends
		_, _ = io.Copy(conn, far)                                     // until either ends
	})
	any := func(context.Context, destination.Destination) error { return nil }
	d := local(t, dialer.Config{Allow: any, Upstream: proxy}, end)
	answer, err := get(d, "http://93.184.216.34/x")
	if err != nil || string(answer.Body) != "end" || asked.Load() != "CONNECT 93.184.216.34:80" || answer.Address.String() != "93.184.216.34:80" {
		t.Errorf("%+v, %v; asked for %q", answer, err, asked.Load())
	}
	asked.Store("")
	for raw, want := range map[string]destination.Rule{"http://10.0.0.1/": destination.RuleAddress, "http://127.0.0.1/": destination.RuleAddress, "http://here.test/": destination.RuleAddress, "http://[64:ff9b::7f00:1]/": destination.RuleAddress, "http://93.184.216.34:22/": destination.RulePort} {
		if _, err := get(d, raw); !ruled(err, want) {
			t.Errorf("%s: %v", raw, err)
		}
	}
	if answer, err := get(d, end.URL); err != nil || string(answer.Body) != "end" || asked.Load() != "" {
		t.Errorf("a local one: %+v, %v; the proxy was asked for %q", answer, err, asked.Load())
	}
	var became atomic.Bool
	d = local(t, dialer.Config{Allow: any, Upstream: proxy, Own: func(a netip.AddrPort) bool { return became.Load() && a == proxy }})
	became.Store(true)
	if answer, err := get(d, "http://93.184.216.34/"); !ruled(err, destination.RuleOwn) || asked.Load() != "" {
		t.Errorf("through what became Durward's own: %+v, %v; it was asked for %q", answer, err, asked.Load())
	}
	for _, answer := range []string{"HTTP/1.1 403 no EVIL\r\n\r\n", "EVIL\r\n\r\n", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("EVIL", 1<<16), ""} {
		bad := raw(t, func(conn net.Conn) {
			_, _ = bufio.NewReader(conn).ReadString('\n') // whatever it asks
			_, _ = io.WriteString(conn, answer)           // the client may have gone
		})
		if _, err := get(local(t, dialer.Config{Allow: any, Upstream: bad}), "http://93.184.216.34/"); err == nil || strings.Contains(err.Error(), "EVIL") || !strings.Contains(err.Error(), "upstream proxy") {
			t.Errorf("a proxy that answers %.30q: %v", answer, err)
		}
	}
}
