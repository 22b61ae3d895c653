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
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

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
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		if origin != "" {
			r.Header.Set("Origin", origin)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	for _, host := range []string{"", "localhost", "localhost:1", "127.0.0.1", "[::1]", "[::1]:7441"} {
		code, body := get(host, "http://localhost:3000")
		var got telemetry.Health
		if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 {
			t.Errorf("host %q: %d %s", host, code, body)
		}
		if diff := cmp.Diff(telemetry.Health{Status: "ok", Service: "vault", Version: "v1"}, got); diff != "" {
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
