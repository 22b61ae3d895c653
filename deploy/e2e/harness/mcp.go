package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/picture"
)

// Envelope is what every tool answers with, as a client that knows nothing else of Durward reads it.
type Envelope struct {
	Status      string          `json:"status"`
	Summary     string          `json:"summary"`
	RequestID   string          `json:"request_id"`
	OperationID string          `json:"operation_id"`
	ExpiresAt   string          `json:"expires_at"`
	TellUser    string          `json:"tell_user"`
	Next        *Next           `json:"next"`
	Result      json.RawMessage `json:"result"`
	Reason      string          `json:"reason"`
	Replayed    bool            `json:"replayed"`
	Warnings    []string        `json:"warnings"`
	Audit       json.RawMessage `json:"audit"`
	Error       *Failure        `json:"error"`
	// Raw is the envelope as it arrived.
	Raw []byte `json:"-"`
	// Pictures come behind the envelope, which tells of each.
	Pictures []*mcp.ImageContent `json:"-"`
	// Meta is the result's _meta: request id, operation id, receipt.
	Meta map[string]any `json:"-"`
}

// Next is the call that the envelope advises.
type Next struct {
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
}

// Failure is the envelope's error.
type Failure struct {
	Code        string   `json:"code"`
	Message     string   `json:"message"`
	Field       string   `json:"field"`
	Retryable   bool     `json:"retryable"`
	RetryAfterS int      `json:"retry_after_s"`
	DidYouMean  []string `json:"did_you_mean"`
}

// Decode reads the envelope's result into v.
func (e Envelope) Decode(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(e.Result, v); err != nil {
		t.Fatalf("result of %s: %v", e.Raw, err)
	}
}

// Client is a strict MCP client: it checks every answer against the tool's output schema, and that text and structured
// content say the same.
type Client struct {
	*mcp.ClientSession
	// Tools are what tools/list returned, by name.
	Tools map[string]*mcp.Tool

	t       testing.TB
	schemas map[string]*jsonschema.Resolved
}

// AddClient lets a bearer client in by `durward client add` and returns its token. When the vault runs, it knows the client
// on return.
func (h *Host) AddClient(name string, flags ...string) string {
	h.t.Helper()
	return h.AddClients([]string{name}, flags...)[0]
}

// AddClients is AddClient for several at once: the vault reads its list of clients again but once a second.
func (h *Host) AddClients(names []string, flags ...string) (tokens []string) {
	h.t.Helper()
	h.addClients(names, append([]string{"--bearer"}, flags...))
	for _, name := range names {
		tokens = append(tokens, strings.TrimSpace(h.ReadFile(filepath.Join("clients", name, "token"))))
	}
	return tokens
}

// AddKeyBound lets in a client that signs what it asks for; ConnectStdio connects it.
func (h *Host) AddKeyBound(name string, flags ...string) {
	h.t.Helper()
	h.addClients([]string{name}, flags)
}

func (h *Host) addClients(names, flags []string) {
	h.t.Helper()
	var before uint32
	running := h.runs(Vault) || h.runs(up)
	// A vault that is busy, or that has just started, answers late. One that never answers is as good as none.
	running = running && Poll(func() (err error) { before, err = h.vaultClients(); return err }) == nil
	for _, name := range names {
		h.Durward(append([]string{"client", "add", name, "--yes"}, flags...)...)
	}
	if !running {
		return
	}
	Eventually(h.t, fmt.Sprintf("the vault knows the clients %v", names), func() error {
		now, err := h.vaultClients()
		if err == nil && int(now) < int(before)+len(names) {
			err = fmt.Errorf("it knows %d clients", now)
		}
		return err
	})
}

// vaultClients asks the vault how many clients it lets in.
func (h *Host) vaultClients() (uint32, error) {
	h.t.Helper()
	if h.vault == nil {
		h.vault = vaultv1.NewControlServiceClient(h.DialAs(h.OperatorIdentity(), Vault))
	}
	ctx, cancel := context.WithTimeout(h.t.Context(), 5*time.Second)
	defer cancel()
	status, err := h.vault.GetStatus(ctx, &vaultv1.GetStatusRequest{})
	return status.GetClients(), err
}

// bearer puts a token on every request.
type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

// Connect connects an MCP client over HTTP with a bearer token, and lists the tools.
func (h *Host) Connect(token string) *Client {
	h.t.Helper()
	return h.connect(h.Transport(token))
}

// StdioCommand is the command line of the stdio bridge for a client, as a client's configuration names it.
func (h *Host) StdioCommand(client string) []string {
	return []string{filepath.Join(h.Bin, "durward"), "--home", h.Dir, "mcp", "--client", client}
}

// ConnectStdio connects an MCP client through the stdio bridge.
func (h *Host) ConnectStdio(client string, environment ...string) *Client {
	h.t.Helper()
	line := h.StdioCommand(client)
	cmd := h.Command(line...)
	cmd.Env = append(cmd.Env, environment...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("standard error of %s:\n%s", strings.Join(line, " "), stderr.String())
		}
	})
	return h.connect(&mcp.CommandTransport{Command: cmd})
}

// TryConnect connects over HTTP for a test that expects that to fail.
func (h *Host) TryConnect(token string) (*mcp.ClientSession, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), Patience)
	defer cancel()
	return newClient().Connect(ctx, h.Transport(token), nil)
}

func newClient() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil)
}

// Transport reaches the gateway over HTTP with a bearer token.
func (h *Host) Transport(token string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: h.MCPURL(), HTTPClient: &http.Client{Transport: bearer{token}}, MaxRetries: -1}
}

func (h *Host) connect(transport mcp.Transport) *Client {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), Patience)
	defer cancel()
	session, err := newClient().Connect(ctx, transport, nil)
	if err != nil {
		h.t.Fatalf("connect: %v", err)
	}
	h.t.Cleanup(func() { _ = session.Close() })
	c := &Client{ClientSession: session, Tools: map[string]*mcp.Tool{}, t: h.t, schemas: map[string]*jsonschema.Resolved{}}
	list, err := session.ListTools(ctx, nil)
	if err != nil {
		h.t.Fatalf("tools/list: %v", err)
	}
	for _, tool := range list.Tools {
		c.Tools[tool.Name] = tool
		if tool.OutputSchema != nil { // beside other people's servers there is no room for it
			c.schemas[tool.Name] = ResolveSchema(h.t, tool.OutputSchema)
		}
	}
	return c
}

// ResolveSchema prepares a schema as a tool declares it.
func ResolveSchema(t testing.TB, declared any) *jsonschema.Resolved {
	t.Helper()
	raw, err := json.Marshal(declared)
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatalf("schema %s: %v", raw, err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatalf("schema %s: %v", raw, err)
	}
	return resolved
}

// Call calls a tool and returns its envelope, checked as a strict client checks it. The request may take as long as a held
// call does.
func (c *Client) Call(tool string, arguments any) Envelope {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute+Patience)
	defer cancel()
	e, err := c.TryCall(ctx, tool, arguments)
	if err != nil {
		c.t.Fatalf("call %s: %v", tool, err)
	}
	return e
}

// unchecked is in what a sink says instead of text that nobody had the time to look through.
const unchecked = "could not be checked for"

// Withheld reports whether text is withheld that nobody could look through.
func (e Envelope) Withheld() bool {
	return e.Error != nil && strings.Contains(e.Error.Message, unchecked) || strings.Contains(strings.Join(e.Warnings, "\n"), unchecked)
}

// NotNow reports whether the envelope says that the installation cannot do it just now: a process is away or too slow, nothing
// can be recorded, or it is Withheld. A busy machine brings that about.
func (e Envelope) NotNow() bool {
	return e.Withheld() || e.Status == "error" && e.Error != nil && e.Error.Retryable && slices.Contains([]string{"UNAVAILABLE", "TIMEOUT", "AUDIT_UNAVAILABLE"}, e.Error.Code)
}

// Ask is Call for a test whose subject is something else than what a busy machine puts off: it asks again as long as the
// answer is NotNow, as the answer says that a client should.
func (c *Client) Ask(tool string, arguments any) Envelope {
	c.t.Helper()
	return Again(func() Envelope { return c.Call(tool, arguments) })
}

// Again calls until the answer is not NotNow, for at most Patience, and returns the last one.
func Again[A interface{ NotNow() bool }](call func() A) (answer A) {
	_ = Poll(func() error { // the caller judges the answer
		if answer = call(); answer.NotNow() {
			return errNotNow
		}
		return nil
	})
	return answer
}

var errNotNow = errors.New("not now")

// TryCall is Call for callers that expect the protocol itself to fail, or call from another goroutine.
func (c *Client) TryCall(ctx context.Context, tool string, arguments any) (Envelope, error) {
	c.t.Helper()
	result, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		return Envelope{}, err
	}
	return CheckResult(c.t, c.schemas[tool], result), nil
}

// CheckResult checks a tool's result as a strict client does and returns its envelope. A nil schema is not checked against:
// the tool is one that the client was not told of.
func CheckResult(t testing.TB, schema *jsonschema.Resolved, result *mcp.CallToolResult) Envelope {
	t.Helper()
	structured, err := json.Marshal(result.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	if schema != nil {
		var instance any
		if err := json.Unmarshal(structured, &instance); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(instance); err != nil {
			t.Errorf("the answer does not fit the tool's output schema: %v\n%s", err, structured)
		}
	}
	if len(result.Content) == 0 {
		t.Fatal("no content")
	}
	text, ok := result.Content[0].(*mcp.TextContent)
	if !ok {
		t.Fatalf("content is a %T, want text", result.Content[0])
	}
	if !sameJSON(t, []byte(text.Text), structured) {
		t.Errorf("text and structured content differ:\n%s\n%s", text.Text, structured)
	}
	e := Envelope{Raw: structured, Meta: result.Meta}
	dec := json.NewDecoder(bytes.NewReader(structured))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&e); err != nil {
		t.Fatalf("envelope %s: %v", structured, err)
	}
	for _, more := range result.Content[1:] {
		shown, is := more.(*mcp.ImageContent)
		if !is || picture.Check(shown.MIMEType, shown.Data) != nil {
			t.Fatalf("behind the envelope is a %T that no entry lets pass: %+v", more, more)
		}
		e.Pictures = append(e.Pictures, shown)
	}
	if told := strings.Count(string(e.Result), `"kind":"image"`); len(e.Pictures) > min(told, picture.Most) {
		t.Errorf("%d pictures, and %d are told of", len(e.Pictures), told)
	}
	if failed := e.Status == "denied" || e.Status == "error"; failed != result.IsError {
		t.Errorf("isError is %t with status %s", result.IsError, e.Status)
	}
	if e.RequestID == "" || e.Summary == "" {
		t.Errorf("no request id or no summary: %s", structured)
	}
	return e
}

func sameJSON(t testing.TB, a, b []byte) bool {
	t.Helper()
	var compact [2]bytes.Buffer
	for i, raw := range [][]byte{a, b} {
		var v any
		if err := json.Unmarshal(raw, &v); err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		if err := json.NewEncoder(&compact[i]).Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	return bytes.Equal(compact[0].Bytes(), compact[1].Bytes())
}
