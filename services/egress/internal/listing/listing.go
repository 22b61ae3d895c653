// Package listing runs another people's MCP server once and says which tools it lists, for a human who decides on it (durward server add).
// The server is in its sandbox and has no network and no credentials; a remote one is asked over https.
//
// It runs in a process of its own, as the operator's user, and ends with it: what the server says is bounded in size and in time, and what
// it does to the reader it does to nothing else. It decides nothing.
package listing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/services/egress/internal/child"
	"durward.internal/services/egress/internal/sandbox"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/downstream"
)

const (
	// patience bounds the whole; maxAnswer what a server says in all, and maxTools how many tools are listed.
	patience  = time.Minute
	maxAnswer = 8 << 20
	maxTools  = 1000
	maxSaid   = 4 << 10
)

// Run answers one ListRequest. Why there is no listing stands in the answer.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	var asked downstream.ListRequest
	if err := json.NewDecoder(io.LimitReader(in, 1<<20)).Decode(&asked); err != nil {
		return errors.New("the standard input describes no server")
	}
	var answer downstream.ListAnswer
	listing, err := list(ctx, asked)
	if answer.Listing = listing; err != nil {
		answer.Listing, answer.Problem = nil, err.Error()
	}
	return json.NewEncoder(out).Encode(answer)
}

func list(ctx context.Context, asked downstream.ListRequest) (_ *downstream.Listing, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("it did not list its tools within %v", patience))
	defer cancel()
	if asked.Entry.URL != "" {
		return remote(ctx, asked.Entry)
	}
	state, err := os.MkdirTemp("", "durward-list-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
	// Where an operator's user may make no control group, the limits of a process are enough for a minute.
	launcher, err := sandbox.NewLocal(sandbox.Config{State: filepath.Join(state, "launcher"), Packages: asked.Packages, Development: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	defer launcher.Close()
	env := map[string]string{}
	for name, value := range asked.Entry.Env {
		env[name] = value
	}
	for name := range asked.Entry.Credentials {
		env[name] = "not-given" // a server that asks for one at its start is still listed, and gets none
	}
	p, err := launcher.Start(ctx, sandbox.Start{Server: &downstream.Pinned{Entry: asked.Entry, ProgramDigest: asked.ProgramDigest}, Env: env})
	if err != nil {
		return nil, err
	}
	said := &tail{}
	go func() { _, _ = io.Copy(said, p.Stderr) }()
	listing, err := ask(ctx, asked.Entry, &mcp.IOTransport{Reader: &bounded{ReadCloser: p.Stdout, left: maxAnswer}, Writer: p.Stdin, MaxLineLength: maxAnswer})
	p.Kill()
	_ = p.Wait() // it was killed
	if err != nil && said.String() != "" {
		err = fmt.Errorf("%w; it wrote: %s", err, said)
	}
	return listing, err
}

// ask is what a server answers. The client is the one that it will have when it runs: some servers list other tools by what theirs can do.
func ask(ctx context.Context, e downstream.Entry, transport mcp.Transport) (*downstream.Listing, error) {
	session, err := child.NewClient(&e).Connect(ctx, transport, nil)
	if err != nil {
		return nil, reason(ctx, err)
	}
	defer func() { _ = session.Close() }() // the server is killed next
	said := session.InitializeResult()
	out := &downstream.Listing{Instructions: said.Instructions, Tools: []downstream.Listed{}}
	if said.ServerInfo != nil {
		out.Name, out.Version = clean.Line(said.ServerInfo.Name, 100), clean.Line(said.ServerInfo.Version, 50)
	}
	if said.Capabilities == nil || said.Capabilities.Tools == nil {
		return out, nil
	}
	for tool, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, reason(ctx, err)
		}
		if len(out.Tools) == maxTools {
			return nil, fmt.Errorf("it lists more than %d tools", maxTools)
		}
		l := downstream.Listed{Name: tool.Name, Title: tool.Title, Description: tool.Description}
		for into, from := range map[*json.RawMessage]any{&l.Input: tool.InputSchema, &l.Output: tool.OutputSchema, &l.Annotations: tool.Annotations} {
			if *into, err = json.Marshal(from); err != nil {
				return nil, err
			}
		}
		out.Tools = append(out.Tools, l)
	}
	return out, nil
}

func reason(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("it did not list its tools: %s", clean.Line(err.Error(), 300))
}

// remote asks a server elsewhere, at public addresses alone.
func remote(ctx context.Context, e downstream.Entry) (*downstream.Listing, error) {
	if e.Bearer != "" {
		return nil, errors.New("it wants a credential, which only the vault gives to egress: add it without, or where its tools are public")
	}
	endpoint, err := url.Parse(e.URL)
	if err != nil {
		return nil, err
	}
	cfg := dialer.Config{Allow: func(_ context.Context, to destination.Destination) error {
		if !strings.EqualFold(to.Host, endpoint.Hostname()) {
			return errors.New("it leads elsewhere")
		}
		return nil
	}}
	if local, err := netip.ParseAddrPort(endpoint.Host); err == nil && local.Addr().IsLoopback() {
		cfg.Local = []netip.AddrPort{local} // a human named this very address
	}
	judged, err := dialer.New(cfg)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport:     &limitedTransport{&http.Transport{DialContext: judged.DialContext, Proxy: nil, ForceAttemptHTTP2: true}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("it leads elsewhere") },
	}
	return ask(ctx, e, &mcp.StreamableClientTransport{Endpoint: e.URL, HTTPClient: client, MaxRetries: -1, DisableStandaloneSSE: true})
}

// limitedTransport bounds each body.
type limitedTransport struct{ http.RoundTripper }

func (t *limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = &bounded{ReadCloser: answer.Body, left: maxAnswer}
	}
	return answer, err
}

// bounded ends a stream that does not end.
type bounded struct {
	io.ReadCloser

	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("it says more than it may")
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// tail keeps the end of what a server writes beside its answers.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if over := len(t.text) - maxSaid; over > 0 {
		t.text = t.text[over:]
	}
	return len(p), nil
}

// String is its last line that says something.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return clean.Line(lines[len(lines)-1], 200)
}
