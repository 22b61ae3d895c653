package harness

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// RawSession is an MCP session of the 2025 era that sends whatever bytes it is given.
type RawSession struct {
	h         *Host
	token, id string
}

// RawAnswer is what came back for one request.
type RawAnswer struct {
	HTTPStatus int
	Body       string
	// Result and Error are the JSON-RPC message's, where the body held one.
	Result json.RawMessage
	Error  *RawError
}

// RawError is a JSON-RPC error.
type RawError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// ConnectRaw initialises a session over HTTP.
func (h *Host) ConnectRaw(token string) *RawSession {
	h.t.Helper()
	s := &RawSession{h: h, token: token}
	response := s.post([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`))
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		h.t.Fatal(err)
	}
	s.id = response.Header.Get("Mcp-Session-Id")
	if s.id == "" {
		h.t.Fatalf("initialize: status %d and no session", response.StatusCode)
	}
	s.Send([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	return s
}

func (s *RawSession) post(body []byte) *http.Response {
	s.h.t.Helper()
	request, err := http.NewRequestWithContext(s.h.t.Context(), http.MethodPost, s.h.MCPURL(), bytes.NewReader(body))
	if err != nil {
		s.h.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	if s.id != "" {
		request.Header.Set("Mcp-Session-Id", s.id)
		request.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	response, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		s.h.t.Fatalf("post: %v", err)
	}
	return response
}

// Send posts a body and returns the answer.
func (s *RawSession) Send(body []byte) RawAnswer {
	s.h.t.Helper()
	response := s.post(body)
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	if err != nil {
		s.h.t.Fatalf("read the answer: %v", err)
	}
	a := RawAnswer{HTTPStatus: response.StatusCode, Body: string(raw)}
	message := raw
	if strings.HasPrefix(response.Header.Get("Content-Type"), "text/event-stream") {
		message = lastEvent(raw)
	}
	var m struct {
		Result json.RawMessage `json:"result"`
		Error  *RawError       `json:"error"`
	}
	if json.Unmarshal(message, &m) == nil {
		a.Result, a.Error = m.Result, m.Error
	}
	return a
}

// CallTool sends a tools/call with the arguments' bytes as they are.
func (s *RawSession) CallTool(name, arguments string) RawAnswer {
	s.h.t.Helper()
	return s.Send(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, name, arguments))
}

// lastEvent returns the data of the last event that holds a response.
func lastEvent(stream []byte) []byte {
	var last []byte
	lines := bufio.NewScanner(bytes.NewReader(stream))
	lines.Buffer(nil, 8<<20)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && strings.Contains(data, `"jsonrpc"`) {
			last = []byte(data)
		}
	}
	return last
}
