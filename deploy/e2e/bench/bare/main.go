// Command bare is the baseline of the benchmark: the official SDK's server with nothing around it, over HTTP in both eras of
// the protocol, or over stdio. It serves one tool with the schemas, and the answer, that Durward's own has, and takes the same
// options; it runs with Go's own memory settings, or with Durward's.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// tool is what is served: the definition from Durward's tools/list and the result of one call.
type tool struct {
	Definition mcp.Tool        `json:"definition"`
	Text       string          `json:"text"`
	Structured json.RawMessage `json:"structured"`
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address")
	file := flag.String("tool", "", "`file` with the tool")
	stdio := flag.Bool("stdio", false, "serve over stdio")
	memory := flag.Int64("memory-mib", 0, "soft memory limit; 0: none")
	gogc := flag.Int("gogc", 100, "garbage collector's target percentage")
	flag.Parse()
	if *memory > 0 {
		debug.SetMemoryLimit(*memory << 20)
	}
	debug.SetGCPercent(*gogc)
	if *stdio {
		*listen = ""
	}
	if err := serve(*listen, *file); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

// serve serves the tool on an address, or over stdio where there is none.
func serve(listen, file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var t tool
	if err := json.Unmarshal(raw, &t); err != nil {
		return err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "bare", Version: "1"}, &mcp.ServerOptions{
		Logger:       slog.New(slog.DiscardHandler),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	server.AddTool(&t.Definition, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: t.Text}}, StructuredContent: t.Structured}, nil
	})
	if listen == "" {
		return server.Run(context.Background(), &mcp.StdioTransport{})
	}
	// The SDK serves an era by a handler, not by what a request says, so each has a path of its own.
	mux := http.NewServeMux()
	for path, stateless := range map[string]bool{"/mcp": false, "/stateless": true} {
		mux.Handle(path, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
			Stateless: stateless, SessionTimeout: 30 * time.Minute, MaxRequestBodyBytes: 2 << 20, PropagateRequestCancellation: true,
		}))
	}
	return (&http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}).ListenAndServe()
}
