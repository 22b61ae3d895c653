package child

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// bare connects the SDK's own client to the hostile server, with nothing of ours between.
func bare(t testing.TB, mode string, options *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	server := pinned(mode)
	process, err := execute(t.Context(), &server, "", map[string]string{"HOSTILE": strings.ReplaceAll(mode, "-", " ")})
	must(t, err)
	t.Cleanup(func() {
		process.Kill()
		_ = process.Wait() // it was killed
	})
	client := mcp.NewClient(&mcp.Implementation{Name: "bare"}, options)
	session, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: process.Stdout, Writer: process.Stdin}, nil)
	must(t, err)
	return session
}

// TestWithoutTheGuards is the control of TestHostile: the same servers reach the caller of the SDK's own client.
func TestWithoutTheGuards(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"deep", "long-number", "keys", "hidden-key", "large", "escapes", "error", "changed", "instructions", "absent", "twice", "bytes"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			session := bare(t, mode, nil)
			if _, err := session.ListTools(t.Context(), nil); err != nil {
				t.Errorf("the list is refused: %v", err)
			}
			result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"})
			switch {
			case mode == "error":
				if !strings.Contains(err.Error(), "\x1b") {
					t.Errorf("the error is clean: %v", err)
				}
			case err != nil:
				t.Errorf("the result is refused: %v", err)
			case mode == "escapes" && !strings.Contains(result.Content[0].(*mcp.TextContent).Text, "\x1b"):
				t.Error("the result is clean")
			}
		})
	}
	t.Run("flood", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var told atomic.Int64
		session := bare(t, "flood", &mcp.ClientOptions{ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) {
			if told.Add(1) == 2*maxUnasked {
				cancel()
			}
		}})
		if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo"}); err == nil || told.Load() < 2*maxUnasked {
			t.Errorf("%d messages of the flood arrived, then %v", told.Load(), err)
		}
	})
}
