package harness

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"
)

// Revisions of MCP as raw clients speak them: one of the era of sessions, and the stateless one.
const (
	SessionRevision   = "2025-11-25"
	StatelessRevision = "2026-07-28"
)

// RawRequest is one HTTP request to the gateway, byte for byte as a test wants it. Content-Type and Accept are what MCP asks
// for unless Header says otherwise.
type RawRequest struct {
	// Method is POST unless it says otherwise.
	Method string
	// Token goes into the Authorization header, unless it is empty.
	Token string
	// Host is what the request is addressed to, if not the gateway's own address.
	Host string
	// Header replaces headers; an empty value leaves one out.
	Header map[string]string
	Body   []byte
}

// With returns a copy of r with a header replaced; an empty value leaves it out.
func (r RawRequest) With(name, value string) RawRequest {
	header := map[string]string{}
	maps.Copy(header, r.Header)
	header[name] = value
	r.Header = header
	return r
}

// RawAnswer is what came back for one request.
type RawAnswer struct {
	HTTPStatus int
	Header     http.Header
	Body       string
	// Result and Error are the JSON-RPC message's, where the body held one.
	Result json.RawMessage
	Error  *RawError
}

// NotNow reports whether the answer is an envelope that is NotNow.
func (a RawAnswer) NotNow() bool {
	var result struct {
		StructuredContent Envelope `json:"structuredContent"`
	}
	return json.Unmarshal(a.Result, &result) == nil && result.StructuredContent.NotNow()
}

// RawError is a JSON-RPC error.
type RawError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

// rawClient opens a connection for each request, so that no request depends on what another did to its connection.
var rawClient = &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}

// HTTP is the request, to a URL.
func (r RawRequest) HTTP(ctx context.Context, url string) (*http.Request, error) {
	method := cmp.Or(r.Method, http.MethodPost)
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	request.Host = r.Host
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json, text/event-stream")
	if r.Token != "" {
		request.Header.Set("Authorization", "Bearer "+r.Token)
	}
	for name, value := range r.Header {
		if request.Header.Set(name, value); value == "" {
			request.Header.Del(name)
		}
	}
	return request, nil
}

// Raw sends a request to the gateway and returns the whole answer. It is safe for concurrent use.
func (h *Host) Raw(ctx context.Context, r RawRequest) (RawAnswer, error) {
	request, err := r.HTTP(ctx, h.MCPURL())
	if err != nil {
		return RawAnswer{}, err
	}
	response, err := rawClient.Do(request)
	if err != nil {
		return RawAnswer{}, err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	if err != nil {
		return RawAnswer{}, err
	}
	a := RawAnswer{HTTPStatus: response.StatusCode, Header: response.Header, Body: string(raw)}
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
	return a, nil
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

// Stateless is a request of the stateless revision as a well-behaved client writes it. name is what Mcp-Name says, where the
// method has one; params is a JSON object, to which _meta is added.
func Stateless(token, method, name, params string) RawRequest {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + StatelessRevision + `",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	members := strings.TrimSuffix(strings.TrimPrefix(params, "{"), "}")
	if members != "" {
		members += ","
	}
	r := RawRequest{
		Token:  token,
		Header: map[string]string{"Mcp-Protocol-Version": StatelessRevision, "Mcp-Method": method},
		Body:   fmt.Appendf(nil, `{"jsonrpc":"2.0","id":7,"method":%q,"params":{%s%s}}`, method, members, meta),
	}
	if name != "" {
		r.Header["Mcp-Name"] = name
	}
	return r
}

// StatelessCall is a tools/call of the stateless revision.
func StatelessCall(token, tool, arguments string) RawRequest {
	return Stateless(token, "tools/call", tool, fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, arguments))
}

// RawSession is an MCP session of the era of sessions that sends whatever bytes it is given.
type RawSession struct {
	// ID is the session's, as its headers name it.
	ID string

	h               *Host
	token, revision string
}

// Handshake is the request with which a session of a revision begins.
func Handshake(revision string) []byte {
	return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},`+
		`"clientInfo":{"name":"raw","version":"1"}}}`, revision)
}

// Initialized is the notification that ends a handshake.
const Initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`

// ConnectRaw initialises a session over HTTP.
func (h *Host) ConnectRaw(token string) *RawSession {
	h.t.Helper()
	return h.ConnectRevision(token, SessionRevision)
}

// ConnectRevision is ConnectRaw with a revision of the era of sessions.
func (h *Host) ConnectRevision(token, revision string) *RawSession {
	h.t.Helper()
	s := &RawSession{h: h, token: token, revision: revision}
	opened := s.Send(Handshake(revision))
	if s.ID = opened.Header.Get("Mcp-Session-Id"); s.ID == "" {
		h.t.Fatalf("initialize: status %d and no session: %s", opened.HTTPStatus, opened.Body)
	}
	s.Send([]byte(Initialized))
	return s
}

// Request is a request of the session with a body.
func (s *RawSession) Request(body []byte) RawRequest {
	r := RawRequest{Token: s.token, Body: body}
	if s.ID != "" {
		r.Header = map[string]string{"Mcp-Session-Id": s.ID, "Mcp-Protocol-Version": s.revision}
	}
	return r
}

// Call is a tools/call of the session, with the arguments' bytes as they are.
func (s *RawSession) Call(tool, arguments string) RawRequest {
	return s.Request(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, tool, arguments))
}

// Send posts a body and returns the answer.
func (s *RawSession) Send(body []byte) RawAnswer {
	s.h.t.Helper()
	a, err := s.h.Raw(s.h.t.Context(), s.Request(body))
	if err != nil {
		s.h.t.Fatal(err)
	}
	return a
}

// CallTool sends a tools/call with the arguments' bytes as they are.
func (s *RawSession) CallTool(name, arguments string) RawAnswer {
	s.h.t.Helper()
	a, err := s.h.Raw(s.h.t.Context(), s.Call(name, arguments))
	if err != nil {
		s.h.t.Fatal(err)
	}
	return a
}

// RawStdio is the stdio bridge of a client, fed with whatever lines a test writes. It is for one caller at a time.
type RawStdio struct {
	h     *Host
	in    io.Writer
	lines *bufio.Scanner
}

// StdioRaw starts the bridge of a client, until the test ends.
func (h *Host) StdioRaw(client string) *RawStdio {
	h.t.Helper()
	cmd := h.Command(h.StdioCommand(client)...)
	in, err := cmd.StdinPipe()
	h.must(err)
	out, err := cmd.StdoutPipe()
	h.must(err)
	h.must(cmd.Start())
	h.t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // it ends with its input
	})
	s := &RawStdio{h: h, in: in, lines: bufio.NewScanner(out)}
	s.lines.Buffer(nil, 8<<20)
	return s
}

// Send writes a message, which must be one line, and returns the answer to the request with that id as JSON; a message
// without an id is not answered.
func (s *RawStdio) Send(message []byte, id string) (RawAnswer, error) {
	if _, err := s.in.Write(append(bytes.TrimSpace(message), '\n')); err != nil || id == "" {
		return RawAnswer{}, err
	}
	for s.lines.Scan() {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  *RawError       `json:"error"`
		}
		if json.Unmarshal(s.lines.Bytes(), &m) == nil && (string(m.ID) == id || m.Error != nil && string(m.ID) == "null") {
			return RawAnswer{Body: s.lines.Text(), Result: m.Result, Error: m.Error}, nil
		}
	}
	return RawAnswer{}, fmt.Errorf("the bridge ended without an answer: %w", s.lines.Err())
}
