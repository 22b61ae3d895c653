package health

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"durward.internal/services/platform/catalog"
)

// serve answers on loopback, not at 127.0.0.1, and returns where.
func serve(t *testing.T, mux *http.ServeMux) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: mux}}
	srv.Start()
	t.Cleanup(srv.Close)
	return netip.MustParseAddrPort(l.Addr().String())
}

func TestCheck(t *testing.T) {
	elsewhere := 0
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(strings.Repeat("x", maxBody+1))) })
	mux.HandleFunc("/limit", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(strings.Repeat("x", maxBody))) })
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) })
	mux.HandleFunc("/elsewhere", func(http.ResponseWriter, *http.Request) { elsewhere++ })
	mux.HandleFunc("/busy", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("a"))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = w.Write([]byte("{}"))
	})
	mux.HandleFunc("/untyped", func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = w.Write([]byte("fine"))
	})
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>it works</html>")) })
	at := serve(t, mux)
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")

	var checking sync.WaitGroup // together, since some wait until their time is out
	for _, c := range []struct {
		path, contentType string
		want              error
		ok                bool
	}{
		{path: "/large", want: ErrTooLarge},
		{path: "/redirect", want: ErrNotServed},
		{path: "/busy", want: ErrStatus},
		{path: "/none", want: ErrNotServed},
		{path: "/slow"},
		{path: "/drip"},
		{path: "/page", contentType: "application/json", want: ErrContentType},
		{path: "/page", want: ErrContentType},
		{path: "/page", contentType: "text/html", ok: true},
		{path: "/page", contentType: catalog.AnyContentType, ok: true},
		{path: "/json", ok: true},
		{path: "/untyped", ok: true},
		{path: "/untyped", contentType: "text/plain", want: ErrContentType},
		{path: "/ok", contentType: "application/json", want: ErrContentType},
		{path: "/../ok", want: ErrPath},
		{path: "/ok/..", want: ErrPath},
		{path: "ok", want: ErrPath},
		{path: "/ok?admin=1", want: ErrPath},
		{path: "@192.0.2.1/", want: ErrPath},
		{path: "/ok", ok: true},
		{path: "/limit", ok: true},
		{path: "/json", contentType: "application/json", ok: true},
	} {
		checking.Go(func() {
			began, timeout := time.Now(), uint32(30)
			if c.path == "/slow" || c.path == "/drip" {
				timeout = 1
			}
			_, err := New().Check(t.Context(), at, &catalog.Health{Path: c.path, TimeoutS: timeout, ContentType: c.contentType})
			if (err == nil) != c.ok || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("%s: %v", c.path, err)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("%s took %s", c.path, took)
			}
		})
	}
	checking.Wait()
	if elsewhere != 0 {
		t.Error("a redirect was followed")
	}
}

// TestMark: what a service answers while it loads shows whether it gets on; that it answers the same, or not at all, does not.
func TestMark(t *testing.T) {
	body, status := "10 %", http.StatusServiceUnavailable
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})
	at := serve(t, mux)
	h := &catalog.Health{Path: "/health", TimeoutS: 2}
	first, err := New().Check(t.Context(), at, h)
	if !errors.Is(err, ErrStatus) || first == "" {
		t.Errorf("%q, %v", first, err)
	}
	if same, _ := New().Check(t.Context(), at, h); same != first {
		t.Error("the same answer has another mark")
	}
	body = "20 %"
	second, _ := New().Check(t.Context(), at, h)
	status = http.StatusOK
	third, err := New().Check(t.Context(), at, h)
	if second == first || third == second || err != nil {
		t.Errorf("marks %s %s %s, %v", first, second, third, err)
	}
	if none, err := New().Check(t.Context(), netip.MustParseAddrPort("127.0.0.1:1"), h); none != "" || err == nil {
		t.Errorf("nobody answers, and yet %q, %v", none, err)
	}
}

func TestOnlyLoopbackIsDialled(t *testing.T) {
	for _, url := range []string{"http://192.0.2.1:80/", "http://169.254.169.254/latest", "http://[2001:db8::1]/", "http://0.0.0.0:80/", "http://[::ffff:192.0.2.1]:80/"} {
		if _, err := New().get(t.Context(), url, time.Second, ""); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
