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

// Origins are the web origins whose pages may call, "https://console.example". They are safe for concurrent use. A nil *Origins has none.
type Origins struct{ list atomic.Pointer[[]string] }

// NewOrigins returns Origins of that list.
func NewOrigins(list ...string) *Origins {
	o := &Origins{}
	o.Set(list)
	return o
}

// Set replaces them. What their pages opened goes on.
func (o *Origins) Set(list []string) {
	list = slices.Clone(list)
	o.list.Store(&list)
}

// Has reports whether an origin is one of them.
func (o *Origins) Has(origin string) bool { return o != nil && slices.Contains(*o.list.Load(), origin) }

// Handler returns a handler that serves by next, for pages of the origins too.
func Handler(origins *Origins, next http.Handler) http.Handler {
	return &handler{origins, next}
}

type handler struct {
	origins *Origins
	next    http.Handler
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from := r.Header.Values("Origin")
	if len(from) != 1 || !h.origins.Has(from[0]) {
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
