// Command proxy is a peer of the benchmark: a plain proxy of the official SDK's own client and server, without any policy. It
// serves one tool in both eras, and calls it at one upstream server over one session: at a URL, or over the stdio of the command
// that its arguments are.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address")
	file := flag.String("tool", "", "`file` with the tool")
	upstream := flag.String("upstream", "", "the upstream server's `URL`")
	flag.Parse()
	if err := serve(*listen, *file, *upstream); err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		os.Exit(1)
	}
}

func serve(listen, file, upstream string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var tool struct {
		Definition mcp.Tool `json:"definition"`
	}
	if err := json.Unmarshal(raw, &tool); err != nil {
		return err
	}
	// The standard transport keeps two connections: a proxy that is measured with many clients has as many as they need.
	connections := &http.Transport{MaxIdleConnsPerHost: 64}
	var transport mcp.Transport = &mcp.StreamableClientTransport{Endpoint: upstream, HTTPClient: &http.Client{Transport: connections}}
	if flag.NArg() > 0 {
		transport = &mcp.CommandTransport{Command: exec.Command(flag.Arg(0), flag.Args()[1:]...)} // #nosec G204 -- whom the benchmark measures
	}
	to, err := mcp.NewClient(&mcp.Implementation{Name: "proxy", Version: "1"}, nil).Connect(context.Background(), transport, nil)
	if err != nil {
		return err
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "proxy", Version: "1"}, &mcp.ServerOptions{
		Logger:       slog.New(slog.DiscardHandler),
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	server.AddTool(&tool.Definition, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return to.CallTool(ctx, &mcp.CallToolParams{Name: r.Params.Name, Arguments: r.Params.Arguments})
	})
	mux := http.NewServeMux()
	for path, stateless := range map[string]bool{"/mcp": false, "/stateless": true} {
		mux.Handle(path, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{
			Stateless: stateless, SessionTimeout: 30 * time.Minute, MaxRequestBodyBytes: 2 << 20, PropagateRequestCancellation: true,
		}))
	}
	return (&http.Server{Addr: listen, Handler: mux, ReadHeaderTimeout: 5 * time.Second}).ListenAndServe()
}
