package mcpserver

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/httpfront"
)

// The conformance suite looks for tools, prompts and resources that no shipped build has. A build for the suite
// has the twin of this file in deploy/e2e/conformance/overlay instead.

type diagnostics struct{}

func (diagnostics) prepare(*mcp.ServerOptions) {}

func (diagnostics) register(*mcp.Server, httpfront.Era) error { return nil }

func (s *Server) diagnose(context.Context, mcp.MethodHandler, string, mcp.Request, *httpfront.Call) (result mcp.Result, served bool, err error) {
	return nil, false, nil
}
