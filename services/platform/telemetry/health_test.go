package telemetry_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/health"
	"durward.internal/services/platform/telemetry"
)

func TestHealthRefuses(t *testing.T) {
	handler := telemetry.HealthHandler("vault", "v1", nil, map[string]http.Handler{"/metrics": http.NotFoundHandler()})
	for name, tc := range map[string]struct {
		method, path, host string
		origin             []string
		want               int
	}{
		"another name":          {"GET", "/health", "evil.example", nil, 403},
		"rebound name":          {"GET", "/health", "evil.example:7441", nil, 403},
		"suffix":                {"GET", "/health", "localhost.evil.example", nil, 403},
		"prefix":                {"GET", "/health", "evil-localhost", nil, 403},
		"no host":               {"GET", "/health", "", nil, 403},
		"user in host":          {"GET", "/health", "x@localhost", nil, 403},
		"port that is none":     {"GET", "/health", "localhost:99999", nil, 403},
		"empty port":            {"GET", "/health", "localhost:", nil, 403},
		"another loopback":      {"GET", "/health", "127.0.0.2", nil, 403},
		"IPv6 without brackets": {"GET", "/health", "::1", nil, 403},
		"any address":           {"GET", "/health", "0.0.0.0:7441", nil, 403},
		"origin":                {"GET", "/health", "localhost", []string{"https://evil.example"}, 403},
		"origin null":           {"GET", "/health", "localhost", []string{"null"}, 403},
		"origin empty":          {"GET", "/health", "localhost", []string{""}, 403},
		"origin, file":          {"GET", "/health", "localhost", []string{"file://localhost"}, 403},
		"two origins":           {"GET", "/health", "localhost", []string{"http://localhost", "http://evil.example"}, 403},
		"origin with user":      {"GET", "/health", "localhost", []string{"http://localhost@evil.example"}, 403},
		"another path":          {"GET", "/", "localhost", nil, 404},
		"deeper path":           {"GET", "/health/x", "localhost", nil, 404},
		"POST":                  {"POST", "/health", "localhost", nil, 405},
		"DELETE":                {"DELETE", "/health", "localhost", nil, 405},
	} {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(tc.method, tc.path, nil)
			r.Host = tc.host
			r.Header["Origin"] = tc.origin
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			if w.Code != tc.want {
				t.Errorf("answers %d, not %d", w.Code, tc.want)
			}
			if strings.Contains(w.Body.String(), "v1") {
				t.Errorf("gives the version away: %s", w.Body)
			}
		})
	}
}

func TestServeHealth(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var down atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- telemetry.ServeHealth(ctx, lis, telemetry.HealthHandler("vault", "v1", func() error {
			if down.Load() {
				return errors.New("disk /var/lib is full")
			}
			return nil
		}, nil))
	}()
	get := func(host, origin string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+lis.Addr().String()+"/health", nil)
		must(t, err)
		r.Host = host
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		resp, err := http.DefaultClient.Do(r)
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(b)
	}
	for _, host := range []string{"", "localhost", "localhost:1", "127.0.0.1", "[::1]", "[::1]:7441"} {
		code, body := get(host, "http://localhost:3000")
		var got health.Health
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 {
			t.Errorf("host %q: %d %s", host, code, body)
		}
		if diff := cmp.Diff(health.Health{Status: "ok", Service: "vault", Version: "v1"}, got); diff != "" {
			t.Error(diff)
		}
	}
	down.Store(true)
	if code, body := get("", ""); code != 503 || !strings.Contains(body, `"status":"unavailable"`) || strings.Contains(body, "disk") {
		t.Errorf("not ready: %d %s", code, body)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("ServeHealth: %v", err)
	}
}

// pipes is a listener in memory.
type pipes struct {
	waiting  chan net.Conn
	accepted atomic.Int32
	closed   chan struct{}
	once     sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.waiting:
		p.accepted.Add(1)
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns the client's end of a connection that waits to be accepted.
func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.waiting <- server
	return client
}

// Whoever opens connections, and says nothing or reads nothing, holds few of them and not for long.
func TestHealthConnectionsAreBounded(t *testing.T) {
	const most, more = 32, 8
	synctest.Test(t, func(t *testing.T) {
		lis := &pipes{waiting: make(chan net.Conn, most+more), closed: make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- telemetry.ServeHealth(ctx, lis, telemetry.HealthHandler("vault", "v1", nil, nil)) }()
		for i := range most + more {
			conn := lis.dial()
			defer conn.Close()
			if i%2 == 0 { // half of them ask, and do not read the answer
				go func() { _, _ = io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") }()
			}
		}
		synctest.Wait()
		if n := lis.accepted.Load(); n != most {
			t.Errorf("%d connections, want %d", n, most)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if n := lis.accepted.Load(); n != most+more {
			t.Errorf("%d connections after the first have had their time, want %d", n, most+more)
		}
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// stuck is a peer that reads nothing.
type stuck struct {
	http.ResponseWriter
	release chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	<-s.release
	return s.ResponseWriter.Write(b)
}

// Spans are shown to few at a time.
func TestTracesAreShownToFewAtOnce(t *testing.T) {
	handler := open(t, config.Telemetry{}).Handler(nil)
	synctest.Test(t, func(t *testing.T) {
		request := func() *http.Request {
			r := httptest.NewRequest(http.MethodGet, "/traces", nil)
			r.Host = "localhost"
			return r
		}
		status := func() int {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, request())
			return w.Code
		}
		release := make(chan struct{})
		var asking sync.WaitGroup
		for range 2 {
			asking.Go(func() { handler.ServeHTTP(stuck{httptest.NewRecorder(), release}, request()) })
		}
		synctest.Wait()
		if code := status(); code != http.StatusServiceUnavailable {
			t.Errorf("a third asks: %d", code)
		}
		close(release)
		asking.Wait()
		if code := status(); code != http.StatusOK {
			t.Errorf("afterwards: %d", code)
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
