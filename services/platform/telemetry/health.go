package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/netutil"

	"durward.internal/services/platform/health"
)

// Bounds of the health listener: small questions, few at a time. It shares descriptors and memory with what the process is
// there for.
const (
	healthTimeout     = 2 * time.Second
	healthHeaderBytes = 4 << 10
	healthConnections = 32
)

// ServeHealth serves HealthHandler's handler on lis until ctx ends. At most 32 connections are open, each for one request
// that is asked and answered within seconds; who comes on top waits in the kernel's queue.
func ServeHealth(ctx context.Context, lis net.Listener, handler http.Handler) error {
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: healthTimeout,
		ReadTimeout:       healthTimeout,
		WriteTimeout:      healthTimeout,
		MaxHeaderBytes:    healthHeaderBytes,
		ErrorLog:          log.New(io.Discard, "", 0), // it repeats what strangers send
	}
	srv.SetKeepAlivesEnabled(false) // a connection that waits for a second question holds up somebody's first
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(netutil.LimitListener(lis, healthConnections)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health: %w", err)
	}
	return nil
}

// HealthHandler answers GET and HEAD /health: 200 while ready returns nil, 503 otherwise. Why it is not ready is not said:
// the listener knows nobody. ready may be nil; it must be quick and safe for concurrent use. pages answer GET and HEAD of
// other paths. Host and Origin must name loopback, so that a page in a browser cannot ask through a name of its own (NET-1).
func HealthHandler(service, version string, ready func() error, pages map[string]http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		page := pages[r.URL.Path]
		switch {
		case localRequired() && !localRequest(r):
			http.Error(w, "forbidden", http.StatusForbidden)
			return
		case page == nil && r.URL.Path != "/health":
			http.Error(w, "not found", http.StatusNotFound)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		case page != nil:
			page.ServeHTTP(w, r)
			return
		}
		answer := health.Health{Status: "ok", Service: service, Version: version}
		code := http.StatusOK
		if ready != nil && ready() != nil {
			answer.Status, code = "unavailable", http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(answer) // the peer may have gone
	})
}

// localRequest reports whether a request's Host, and its Origin if it has one, name this machine's loopback: 127.0.0.1,
// localhost or [::1], with any port.
func localRequest(r *http.Request) bool {
	if !localHost(r.Host) {
		return false
	}
	origins := r.Header.Values("Origin")
	if len(origins) == 0 {
		return true
	}
	if len(origins) > 1 {
		return false
	}
	u, err := url.Parse(origins[0])
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.User == nil && u.Path == "" && localHost(u.Host)
}

func localHost(hostport string) bool {
	switch hostport {
	case "127.0.0.1", "localhost", "[::1]":
		return true
	}
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return false
	}
	if _, err := net.LookupPort("tcp", port); err != nil || port == "" {
		return false
	}
	return host == "127.0.0.1" || host == "localhost" || host == "::1"
}
