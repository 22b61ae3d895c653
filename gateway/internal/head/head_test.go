package head

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

const plain = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"a\":\r\n \"b\"}\n"

// seen scans bytes in pieces, and returns what is known afterwards.
func seen(text string, piece int) (folded, last bool) {
	var s scanner
	for b := []byte(text); len(b) > 0; {
		n := min(piece, len(b))
		s.scan(b[:n])
		b = b[n:]
	}
	return s.folded.Load(), s.last.Load()
}

// TestFoldedHeadersAreSeen: in whatever pieces they come, behind whatever else came on the connection, and nowhere but in heads.
func TestFoldedHeadersAreSeen(t *testing.T) {
	t.Parallel()
	const folded = "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json;\r\n charset=utf-7\r\nContent-Length: 2\r\n\r\n{}"
	for name, c := range map[string]struct {
		text         string
		folded, last bool
	}{
		"none":                            {plain, false, false},
		"several requests":                {plain + plain + plain, false, false},
		"nothing":                         {"", false, false},
		"no head":                         {"GET /", false, false},
		"with a space":                    {folded, true, true},
		"with a tab":                      {strings.ReplaceAll(folded, "\r\n charset", "\r\n\tcharset"), true, true},
		"with bare newlines":              {strings.ReplaceAll(folded, "\r\n", "\n"), true, true},
		"of nothing but spaces":           {strings.ReplaceAll(folded, ";\r\n charset=utf-7", "\r\n  "), true, true},
		"at the first line":               {"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n", true, true},
		"in the second request":           {plain + folded, true, true},
		"behind a request without a body": {"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n" + folded, true, true},
		"behind an empty body":            {"POST /mcp HTTP/1.1\r\nContent-Length: 0\r\n\r\n" + folded, true, true},
		"behind blank lines":              {plain + "\r\n\r\n" + folded, true, true},
		"a body that looks so":            {"POST / HTTP/1.1\r\ncontent-LENGTH: \t 24 \r\n\r\n" + "GET / HTTP/1.1\r\nA: b\r\n c" + plain, false, false},
		"another header of a name that begins so": {"POST / HTTP/1.1\r\nContent-Length-Of: 5\r\n\r\n" + plain, false, false},
		"chunked":                           {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + plain, false, true},
		"two lengths":                       {"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", false, true},
		"a list of lengths":                 {"POST / HTTP/1.1\r\nContent-Length: 2, 2\r\n\r\n{}", false, true},
		"no length":                         {"POST / HTTP/1.1\r\nContent-Length: \r\n\r\n{}", false, true},
		"a signed length":                   {"POST / HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}", false, true},
		"a length beyond any":               {"POST / HTTP/1.1\r\nContent-Length: 9223372036854775808\r\n\r\n{}", false, true},
		"a length behind more than is kept": {"POST / HTTP/1.1\r\nContent-Length: " + strings.Repeat(" ", 60) + "2\r\n\r\n{}", false, true},
	} {
		for piece := 1; piece <= len(c.text)+1; piece++ {
			if folded, last := seen(c.text, piece); folded != c.folded || last != c.last {
				t.Errorf("%s, in pieces of %d: folded %t, the last one %t", name, piece, folded, last)
				break
			}
		}
		for at := range c.text {
			var s scanner
			s.scan([]byte(c.text[:at]))
			s.scan([]byte(c.text[at:]))
			if s.folded.Load() != c.folded || s.last.Load() != c.last {
				t.Errorf("%s, split at %d: folded %t, the last one %t", name, at, s.folded.Load(), s.last.Load())
				break
			}
		}
	}
}

// served starts a server as the gateway's is, which answers 200 with the body to what is not folded, and returns its address.
func served(t *testing.T, start func(*httptest.Server)) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if Folded(r.Context()) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Connection", "keep-alive") // as the MCP SDK does for a stream
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%s|%v", body, err)
	})))
	srv.Config.ConnContext = Context(func(ctx context.Context, nc net.Conn) context.Context {
		if _, mine := nc.(*conn); mine {
			t.Error("what counts connections gets another one")
		}
		return ctx
	})
	start(srv)
	t.Cleanup(srv.Close)
	return srv
}

// statuses are those that a server answers to bytes on one connection, until it ends that.
func statuses(t *testing.T, c interface {
	net.Conn
	CloseWrite() error
}, text string,
) string {
	t.Helper()
	defer c.Close()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	var out []string
	for in := bufio.NewReader(c); ; {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return strings.Join(out, " ")
		}
		body, _ := io.ReadAll(resp.Body)
		out = append(out, fmt.Sprint(resp.StatusCode, string(body)))
	}
}

// TestConnectionsEndAtWhatCannotBeMeasured: what follows on a connection is served where it is known to begin, and nowhere else.
func TestConnectionsEndAtWhatCannotBeMeasured(t *testing.T) {
	t.Parallel()
	srv := served(t, func(srv *httptest.Server) {
		srv.Listener = Listen(srv.Listener)
		srv.Start()
	})
	ask := func(text string) string {
		c, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return statuses(t, c.(*net.TCPConn), text)
	}
	const (
		chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
		first   = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
		folded  = "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"
	)
	for name, c := range map[string]struct{ text, want string }{
		"requests behind one another":  {first + first, "200{}|<nil> 200{}|<nil>"},
		"a chunked one":                {chunked, "200{}|<nil>"},
		"a request behind it":          {chunked + first, "200{}|<nil>"},
		"a folded one":                 {folded, "400"},
		"a request behind it, folded":  {chunked + folded, "200{}|<nil>"},
		"nothing is served behind one": {folded + first, "400"},
	} {
		if got := ask(c.text); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	// The first of two may be answered or refused, by how soon the second came.
	if got := ask(first + folded); got != "200{}|<nil> 400" && got != "400" {
		t.Errorf("a folded one behind another: %q", got)
	}
}

// TestOverTLS: what is looked at is what is in it, and a client that speaks without is told so.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	certified := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(certified.Close)
	srv := served(t, func(srv *httptest.Server) {
		srv.Listener = Listen(tls.NewListener(srv.Listener, certified.TLS))
		srv.Start()
	})
	client := certified.Client()
	for header, want := range map[string]string{"one": "200|<nil>", "folded\r\n over two": "400"} {
		c, err := tls.Dial("tcp", srv.Listener.Addr().String(), client.Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		if got := statuses(t, c, "GET / HTTP/1.1\r\nHost: a\r\nX: "+header+"\r\n\r\n"); got != want {
			t.Errorf("%s: %q", header, got)
		}
	}
	resp, err := http.Get("http://" + srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "HTTPS server") {
		t.Errorf("without TLS: %d %s", resp.StatusCode, text)
	}
}

// TestNoMemory: a request like most is looked at without allocating.
func TestNoMemory(t *testing.T) {
	var s scanner
	text := []byte(plain)
	if n := testing.AllocsPerRun(100, func() { s.scan(text) }); n > 0 {
		t.Errorf("%v allocations for a request", n)
	}
	if s.last.Load() {
		t.Error("it is not like most")
	}
}

func BenchmarkScan(b *testing.B) {
	var s scanner
	text := []byte("POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:7777\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: 217\r\nAccept: application/json, text/event-stream\r\n" +
		"Authorization: Bearer drill-token-0001-drill-token-0001-drill-token\r\nContent-Type: application/json\r\nMcp-Protocol-Version: 2025-11-25\r\n" +
		"Mcp-Session-Id: ABCDEFGHIJKLMNOPQRSTUVWXYZ\r\nAccept-Encoding: gzip\r\n\r\n" + strings.Repeat("x", 217))
	b.ReportAllocs()
	for b.Loop() {
		s.scan(text)
	}
}

// fold is one as RFC 9112 has it, in a head that net/http has read whole.
var fold = regexp.MustCompile(`\n[ \t]`)

// FuzzFramesAsNetHTTP: of bytes that net/http takes for requests one behind another, no head with a fold passes unseen, until the
// connection would have ended; and where there is no fold in any byte, none is seen.
func FuzzFramesAsNetHTTP(f *testing.F) {
	for _, seed := range []string{
		plain + plain, "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", plain + "\r\n\n" + plain,
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
		"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\nHost: a\nX: a\n\tb\n\n",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nabcdeGET / HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		f.Add([]byte(seed), uint8(7))
	}
	f.Fuzz(func(t *testing.T, text []byte, piece uint8) {
		src := bytes.NewReader(text)
		in := bufio.NewReader(src)
		at := func() int { return len(text) - src.Len() - in.Buffered() }
		var s scanner
		scanned := 0
		upTo := func(n int) {
			for scanned < n {
				next := min(scanned+int(piece)+1, n)
				s.scan(text[scanned:next])
				scanned = next
			}
		}
		for !s.last.Load() {
			begin := at()
			r, err := http.ReadRequest(in)
			if err != nil {
				break
			}
			head := text[begin:at()]
			upTo(at())
			if fold.Match(head) != s.folded.Load() {
				t.Fatalf("a fold in %q: %t", head, s.folded.Load())
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				break
			}
			if upTo(at()); s.state != between && !s.last.Load() {
				t.Fatalf("%q ends elsewhere", text[begin:at()])
			}
			// net/http overlooks blank lines here.
			for b, err := in.Peek(1); err == nil && (b[0] == '\r' || b[0] == '\n'); b, err = in.Peek(1) {
				_, _ = in.Discard(1) // it was peeked at
			}
		}
		if upTo(len(text)); s.folded.Load() && !fold.Match(text) {
			t.Fatalf("%q has no fold", text)
		}
	})
}
