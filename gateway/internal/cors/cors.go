// Package cors lets pages of the allowed web origins call the gateway from a browser. A browser asks before it sends a token to another
// origin, in a request without one, and shows a page no answer that does not name the page's origin
// (https://fetch.spec.whatwg.org/#http-cors-protocol).
//
// It runs in the untrusted edge, before the front, and admits nothing: the front judges the origin of every request that does more than
// ask, whatever a browser was told. Requests of programs, and of pages of any other origin, are not touched.
package cors

import (
	"net/http"
	"slices"
	"sync/atomic"
)

// What pages may send, and what they may read beside the body.
const (
	methods  = "POST, GET, DELETE"
	sent     = "Accept, Authorization, Content-Type, Durward-Agent, Durward-Remote, Last-Event-Id, Mcp-Method, Mcp-Name, Mcp-Protocol-Version, Mcp-Session-Id, Traceparent"
	readable = "Durward-Request-Id, Mcp-Session-Id, Retry-After, Www-Authenticate"
)

// Handler is an http.Handler. It is safe for concurrent use.
type Handler struct {
	next    http.Handler
	origins atomic.Pointer[[]string]
}

// New returns a Handler that serves by next, for pages of the origins.
func New(origins []string, next http.Handler) *Handler {
	h := &Handler{next: next}
	h.SetOrigins(origins)
	return h
}

// SetOrigins replaces the origins.
func (h *Handler) SetOrigins(origins []string) {
	origins = slices.Clone(origins)
	h.origins.Store(&origins)
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := r.Header.Values("Origin")
	if len(from) != 1 || !slices.Contains(*h.origins.Load(), from[0]) {
		h.next.ServeHTTP(w, r)
		return
	}
	says := w.Header()
	says.Set("Access-Control-Allow-Origin", from[0])
	says.Set("Vary", "Origin")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		says.Set("Access-Control-Expose-Headers", readable)
		h.next.ServeHTTP(w, r)
		return
	}
	says.Set("Access-Control-Allow-Methods", methods)
	says.Set("Access-Control-Allow-Headers", sent)
	w.WriteHeader(http.StatusNoContent)
}
