package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// BenchmarkRead measures a warm READ over HTTP, with a fake executor behind mutual TLS; BenchmarkBare the SDK alone with a
// tool that answers the same bytes. Run both with -cpuprofile to see where the difference goes.
func BenchmarkRead(b *testing.B) {
	e := newEdge(b, edgeOptions{calls: 64})
	post(b, e.url, e.connect(b, tokenAgent))
}

func BenchmarkBare(b *testing.B) {
	e := newEdge(b, edgeOptions{})
	s := e.connect(b, tokenAgent)
	text := string(e.call(b, s, "gpu_status", `{}`).tool.Structured)
	server := mcp.NewServer(&mcp.Implementation{Name: "bare"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "gpu_status"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: json.RawMessage(text)}, nil, nil
	})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	defer web.Close()
	bare := &edge{url: web.URL}
	post(b, bare.url, bare.connect(b, "-"))
}

// post calls gpu_status at c = 1 and c = 16.
func post(b *testing.B, url, session string) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}
	var id atomic.Int64
	once := func() error {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(toolCall(int(id.Add(1)+1000), "gpu_status", `{}`)))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Authorization", "Bearer "+tokenAgent)
		req.Header.Set("Mcp-Session-Id", session)
		req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if resp.StatusCode != 200 || !strings.Contains(string(raw), "simulated") {
			return errors.New(string(raw))
		}
		return nil
	}
	b.Run("c=1", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := once(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("c=16", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(8) // times GOMAXPROCS, two here
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := once(); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
