package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheDemoSaysThatItIsOne(t *testing.T) {
	srv := httptest.NewServer(handler("demo-1b"))
	defer srv.Close()
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"GET", "/health", "", 200, `"demo":true`},
		{"GET", "/v1/models", "", 200, `"id":"demo-1b"`},
		{"POST", "/v1/chat/completions", `{"model":"demo-1b","messages":[{"role":"user","content":"hello"}]}`, 200, Reply},
		{"POST", "/v1/chat/completions", `not JSON`, 400, "not a JSON request"},
		{"POST", "/v1/chat/completions", strings.Repeat(" ", maxRequest+1) + "{}", 400, "not a JSON request"},
		{"POST", "/v1/embeddings", `{}`, 200, `"embedding"`},
		{"POST", "/health", "", 405, ""},
		{"GET", "/", "", 404, ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, srv.URL+c.path, strings.NewReader(c.body))
		must(t, err)
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		raw, err := io.ReadAll(res.Body)
		must(t, err)
		_ = res.Body.Close()
		body := string(raw)
		if res.StatusCode != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %s: %d %s", c.method, c.path, res.StatusCode, body)
		}
		if c.status == 200 && (res.Header.Get("X-Durward-Demo") != "true" || !json.Valid([]byte(body))) {
			t.Errorf("%s %s: not labelled, or not JSON", c.method, c.path)
		}
	}
}

func TestStartsAreCounted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "starts")
	for range 2 {
		must(t, note(file))
	}
	raw, err := os.ReadFile(file)
	if err != nil || strings.Count(string(raw), "started ") != 2 {
		t.Errorf("%q, %v", raw, err)
	}
}
