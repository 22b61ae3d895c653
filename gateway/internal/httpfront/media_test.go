package httpfront

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"durward.internal/gateway/internal/head"
	"durward.internal/gateway/internal/limit"
)

// TestOneMessageInOneEncodingAtOnePath: what a proxy before the gateway could read in another way than the gateway is refused.
func TestOneMessageInOneEncodingAtOnePath(t *testing.T) {
	e := newEdge(t, limit.Config{RefusalDelayMS: 1})
	post := func(target string, media, encoding []string) int {
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(hello))
		r.Header = http.Header{"Accept": {"application/json, text/event-stream"}, "Authorization": {"Bearer good-ada"}, "Content-Type": media}
		if encoding != nil {
			r.Header["Content-Encoding"] = encoding
		}
		return e.do(r).Code
	}
	const here = "http://127.0.0.1/mcp"
	for _, good := range []string{"application/json", "Application/JSON; charset=utf-8", `application/json;charset="UTF-8"`} {
		if code := post(here, []string{good}, nil); code != http.StatusOK {
			t.Errorf("%s: %d", good, code)
		}
	}
	for _, bad := range [][]string{
		nil, {}, {""}, {"application/json", "application/json"}, {"application/json", "text/plain"}, {"text/plain", "application/json"},
		{"application/json, text/plain"}, {"application/json; charset=latin1"}, {"application/json; charset=utf-16"}, {"application/json; charset="},
		{"application/json; charset=utf-8; charset=utf-16"}, {"application/json; charset=utf-8; boundary=x"}, {"application/json; profile=x"},
		{"application/jsonp"}, {"text/json"},
	} {
		if code := post(here, bad, nil); code != http.StatusUnsupportedMediaType {
			t.Errorf("%q: %d", bad, code)
		}
	}
	for _, bad := range [][]string{{"gzip"}, {"", "gzip"}} {
		if code := post(here, []string{"application/json"}, bad); code != http.StatusUnsupportedMediaType {
			t.Errorf("encoded %q: %d", bad, code)
		}
	}
	for _, path := range []string{"/%6dcp", "/m%63p", "/mcp/", "//mcp", "/mcp/../mcp", "/./mcp", "/mcp%2f", "/MCP", "/mcp;x", "/mcp%00"} {
		if code := post("http://127.0.0.1"+path, []string{"application/json"}, nil); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// TestFoldedHeadersAreRefused: in the words of every refusal, and recorded like one, with the connection's end.
func TestFoldedHeadersAreRefused(t *testing.T) {
	e := newEdge(t, limit.Config{RefusalDelayMS: 1})
	srv := httptest.NewUnstartedServer(head.Handler(e.front))
	srv.Listener = head.Listen(srv.Listener)
	srv.Config.ConnContext = head.Context(func(ctx context.Context, _ net.Conn) context.Context { return ctx })
	srv.Start()
	defer srv.Close()
	for media, want := range map[string]int{"application/json; charset=utf-8": http.StatusOK, "application/json;\r\n charset=utf-8": http.StatusBadRequest} {
		c, err := net.Dial("tcp", srv.Listener.Addr().String())
		must(t, err)
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer good-ada\r\nAccept: application/json, text/event-stream\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
			media, len(hello), hello); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%q: %d %s, %v", media, resp.StatusCode, body, err)
		}
		if want != http.StatusOK && (!resp.Close || !strings.Contains(string(body), `"code":"INVALID_ARGUMENT"`) || !strings.Contains(string(body), resp.Header.Get("Durward-Request-Id"))) {
			t.Errorf("refused with %v %s", resp.Header, body)
		}
	}
	if got := strings.Join(e.records.reasons(), ","); got != "CODE_INVALID_ARGUMENT: folded header " || e.served.Load() != 1 {
		t.Errorf("recorded: %q, served: %d", got, e.served.Load())
	}
}
