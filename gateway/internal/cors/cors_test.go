package cors

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

const page = "https://console.example"

// ask sends a request as a browser does, and returns its answer; next answers 418.
func ask(h http.Handler, method string, origins ...string) *http.Response {
	r := httptest.NewRequest(method, "http://127.0.0.1/mcp", nil)
	for _, origin := range origins {
		r.Header.Add("Origin", origin)
	}
	if method == http.MethodOptions {
		r.Header.Set("Access-Control-Request-Method", http.MethodPost)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func newHandler(origins *Origins) http.Handler {
	return Handler(origins, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
}

// A page of an allowed origin is told that it may send its token, and reads what is answered.
func TestPagesOfAllowedOrigins(t *testing.T) {
	h := newHandler(NewOrigins("https://other.example", page))
	for method, want := range map[string]struct {
		status        int
		header, value string
	}{
		http.MethodOptions: {http.StatusNoContent, "Access-Control-Allow-Headers", sent},
		http.MethodPost:    {http.StatusTeapot, "Access-Control-Expose-Headers", readable},
	} {
		got := ask(h, method, page)
		if got.StatusCode != want.status || got.Header.Get("Access-Control-Allow-Origin") != page || got.Header.Get("Vary") != "Origin" ||
			got.Header.Get(want.header) != want.value {
			t.Errorf("%s: %d %v", method, got.StatusCode, got.Header)
		}
	}
}

// Whoever else asks has the answer of what stands behind, and no word for a browser.
func TestOthersAreNotTouched(t *testing.T) {
	h := newHandler(NewOrigins(page))
	origins := NewOrigins(page)
	taken := newHandler(origins)
	origins.Set(nil)
	for name, got := range map[string]*http.Response{
		"a program":                     ask(h, http.MethodOptions),
		"another origin":                ask(h, http.MethodOptions, page+".evil.example"),
		"two origins":                   ask(h, http.MethodOptions, page, page),
		"null":                          ask(h, http.MethodPost, "null"),
		"an origin that was taken away": ask(taken, http.MethodOptions, page),
	} {
		if got.StatusCode != http.StatusTeapot || len(got.Header) > 0 {
			t.Errorf("%s: %d %v", name, got.StatusCode, got.Header)
		}
	}
}
