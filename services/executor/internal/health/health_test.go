package health

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

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
	srv := httptest.NewServer(mux)
	defer srv.Close()
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(at.Host)
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")

	for path, ok := range map[string]bool{
		"/ok": true, "/limit": true, "/large": false, "/redirect": false, "/busy": false, "/slow": false, "/drip": false, "/none": false,
	} {
		began := time.Now()
		err := New().Check(t.Context(), uint32(address.Port()), path, 200*time.Millisecond)
		if (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("%s took %s", path, took)
		}
	}
	if elsewhere != 0 {
		t.Error("a redirect was followed")
	}
}

func TestOnlyLoopbackIsDialled(t *testing.T) {
	for _, url := range []string{"http://192.0.2.1:80/", "http://169.254.169.254/latest", "http://[2001:db8::1]/", "http://0.0.0.0:80/"} {
		if err := New().get(t.Context(), url, time.Second); !errors.Is(err, ErrNotLoopback) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
