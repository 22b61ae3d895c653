package mcpserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/httpfront"
)

// BenchmarkEdge measures a warm READ from the HTTP handler to the wire, without sockets: what the edge itself allocates for a
// call, in both eras. BenchmarkSDK is the SDK alone with a tool that answers the same bytes. Run both with -benchmem; a few
// kB of each are the test's request and recorder.
func BenchmarkEdge(b *testing.B) {
	r := newReaders(b)
	for _, e := range eras {
		b.Run(e.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if a := r.post(readCall(e), r.headers(e, readCall(e))); a.Code != http.StatusOK || len(r.wire.take()) != 1 {
					b.Fatal(a.Body)
				}
			}
		})
	}
}

func BenchmarkSDK(b *testing.B) {
	for _, e := range eras {
		b.Run(e.String(), func(b *testing.B) {
			r := &readers{wire: new(wire), gateway: bareHandler(b, e)}
			if e == legacy {
				r.session = r.post([]byte(initialize), nil).Header().Get("Mcp-Session-Id")
			}
			b.ReportAllocs()
			for b.Loop() {
				if a := r.post(readCall(e), r.headers(e, readCall(e))); a.Code != http.StatusOK {
					b.Fatal(a.Body)
				}
			}
		})
	}
}

// BenchmarkRead measures a warm READ over HTTP, with a fake executor behind mutual TLS; BenchmarkBare the SDK alone behind the
// same HTTP server. Both count what the client allocates too. Run both with -cpuprofile to see where the difference goes.
func BenchmarkRead(b *testing.B) {
	e := newEdge(b, edgeOptions{calls: 64})
	session := e.connect(b, tokenAgent)
	for _, era := range eras {
		b.Run(era.String(), func(b *testing.B) { post(b, e.url, era, session) })
	}
}

func BenchmarkBare(b *testing.B) {
	for _, era := range eras {
		b.Run(era.String(), func(b *testing.B) {
			web := httptest.NewServer(bareHandler(b, era))
			defer web.Close()
			bare, session := &edge{url: web.URL + httpfront.Path}, ""
			if era == legacy {
				session = bare.connect(b, "-")
			}
			post(b, bare.url, era, session)
		})
	}
}

// readCall calls gpu_status.
func readCall(e era) []byte {
	if e == legacy {
		return []byte(toolCall(7, "gpu_status", `{}`))
	}
	return []byte(strings.Replace(toolCall(7, "gpu_status", `{}`), `"params":{`,
		`"params":{"_meta":{"`+metaVersion+`":"`+statelessRevision+`","`+metaCapabilities+`":{}},`, 1))
}

// bareHandler is the SDK's server of an era with one tool, which answers what ours does.
func bareHandler(b *testing.B, e era) http.Handler {
	b.Helper()
	ours := newEdge(b, edgeOptions{})
	text := string(ours.call(b, ours.connect(b, tokenAgent), "gpu_status", `{}`).tool.Structured)
	server := mcp.NewServer(&mcp.Implementation{Name: "bare"}, nil)
	server.AddTool(&mcp.Tool{Name: "gpu_status", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: json.RawMessage(text)}, nil
	})
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
		Stateless: e == modern, DisableLocalhostProtection: true,
	})
}

// post calls gpu_status with 1, 8 and 32 clients.
func post(b *testing.B, url string, e era, session string) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	var last atomic.Int64
	once := func() error {
		// Requests of one session that are under way together have ids of their own.
		body := bytes.Replace(readCall(e), []byte(`"id":7`), fmt.Appendf(nil, `"id":%d`, last.Add(1)), 1)
		req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Authorization", "Bearer "+tokenAgent)
		for name, value := range (&readers{session: session}).headers(e, body) {
			req.Header.Set(name, value)
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK || !bytes.Contains(raw, []byte("simulated")) {
			return errors.New(string(raw))
		}
		return nil
	}
	for _, clients := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("c=%d", clients), func(b *testing.B) {
			b.ReportAllocs()
			work := make(chan struct{})
			failed := make(chan error, clients)
			for range clients {
				go func() {
					var err error
					for range work {
						if err == nil {
							err = once()
						}
					}
					failed <- err
				}()
			}
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			for range clients {
				if err := <-failed; err != nil {
					b.Error(err)
				}
			}
		})
	}
}
