package bridge

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
)

// statelessHeaders are the headers of a request that says its protocol revision itself (2026-07-28 and later), which mirror
// what its body says; nil for one of a session.
func (m message) statelessHeaders() http.Header {
	var params struct {
		Name   string `json:"name"`
		URI    string `json:"uri"`
		TaskID string `json:"taskId"`
		Meta   struct {
			Protocol string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	}
	if json.Unmarshal(m.Params, &params) != nil || params.Meta.Protocol == "" {
		return nil
	}
	headers := http.Header{headerProtocol: {headerValue(params.Meta.Protocol)}, "Mcp-Method": {headerValue(m.Method)}}
	switch m.Method {
	case methodCall, "prompts/get":
		headers.Set("Mcp-Name", headerValue(params.Name))
	case "resources/read":
		headers.Set("Mcp-Name", headerValue(params.URI))
	case "tasks/get", "tasks/update", "tasks/cancel":
		headers.Set("Mcp-Name", headerValue(params.TaskID))
	}
	return headers
}

// headerValue writes a value as the protocol wants it in a header: what is not plain ASCII, or would be taken for what is
// written so, in Base64.
func headerValue(s string) string {
	plain := strings.TrimSpace(s) == s && !strings.HasPrefix(s, "=?base64?")
	for _, c := range []byte(s) {
		plain = plain && ' ' <= c && c <= '~'
	}
	if plain {
		return s
	}
	return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(s)) + "?="
}

// track makes a stateless request one that its client can cancel. What it returns ends that.
func (b *Bridge) track(ctx context.Context, m message) (context.Context, context.CancelFunc) {
	if !m.isRequest() || m.statelessHeaders() == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	id := string(m.ID)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancels[id] = cancel
	if params, ok := object(m.Params); ok && m.Method == methodListen {
		b.listening[id] = params["_meta"]
	}
	return ctx, func() {
		cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.cancels, id)
		delete(b.listening, id)
	}
}

// cancel ends the stateless request that a cancellation names, and reports whether there is one: over HTTP its client cancels
// it by hanging up.
func (b *Bridge) cancel(m message) bool {
	var params struct {
		RequestID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(m.Params, &params) != nil {
		return false
	}
	b.mu.Lock()
	cancel := b.cancels[string(params.RequestID)]
	b.mu.Unlock()
	if cancel == nil {
		return false
	}
	cancel()
	return true
}
