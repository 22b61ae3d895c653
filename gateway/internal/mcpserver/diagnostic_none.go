//go:build !conformance

package mcpserver

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/httpfront"
)

// The conformance suite looks for tools, prompts and resources that no shipped build has. They are in diagnostic.go, which
// only the tag conformance compiles.

type diagnostics struct{}

func (diagnostics) prepare(*mcp.ServerOptions) {}

func (diagnostics) register(*mcp.Server, httpfront.Era) error { return nil }

func (s *Server) diagnose(context.Context, mcp.MethodHandler, string, mcp.Request, *httpfront.Call) (result mcp.Result, served bool, err error) {
	return nil, false, nil
}
