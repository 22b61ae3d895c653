package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const dirty, tidy = "a\x1b[31m\u202eb", "ab"

// What the SDK sends by itself is cleaned, whatever it is, and what it shares between sessions is not changed.
func TestSendingCleans(t *testing.T) {
	progress := &mcp.ProgressNotificationParams{ProgressToken: dirty, Message: dirty, Meta: mcp.Meta{dirty: dirty}}
	updated := &mcp.ResourceUpdatedNotificationParams{URI: dirty}
	for name, tc := range map[string]struct {
		in   mcp.Request
		want any
	}{
		"progress": {&mcp.ServerRequest[*mcp.ProgressNotificationParams]{Params: progress}, &mcp.ProgressNotificationParams{ProgressToken: tidy, Message: tidy, Meta: mcp.Meta{tidy: tidy}}},
		"a change": {&mcp.ServerRequest[*mcp.ResourceUpdatedNotificationParams]{Params: updated}, &mcp.ResourceUpdatedNotificationParams{URI: tidy}},
		"a log line": {&mcp.ClientRequest[*mcp.LoggingMessageParams]{Params: &mcp.LoggingMessageParams{Data: map[string]any{"x": []any{dirty}}}}, //nolint:staticcheck // every kind that there is
			&mcp.LoggingMessageParams{Data: map[string]any{"x": []any{tidy}}}}, //nolint:staticcheck // every kind that there is
	} {
		t.Run(name, func(t *testing.T) {
			var sent any
			_, err := sending(func(_ context.Context, _ string, req mcp.Request) (mcp.Result, error) {
				sent = req.GetParams()
				return nil, nil
			})(t.Context(), "x", tc.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, sent, cmpopts.IgnoreUnexported(mcp.ProgressNotificationParams{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if progress.Message != dirty || updated.URI != dirty {
		t.Error("the parameters of another session were changed")
	}
}

// Every answer is cleaned, and no error goes out but a JSON-RPC one that shows nothing from inside.
func TestAnsweringCleans(t *testing.T) {
	for name, tc := range map[string]struct {
		result mcp.Result
		err    error
		want   any
	}{
		"a result":       {&mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: dirty}}}, nil, &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: tidy}}}},
		"one of our own": {&task{StatusMessage: dirty, Result: json.RawMessage(`{"a":"\u202eb"}`)}, nil, &task{StatusMessage: tidy, Result: json.RawMessage(`{"a":"b"}`)}},
		"a plain error":  {nil, errors.New("open /etc/passwd"), &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal error."}},
		"a leak":         {nil, &jsonrpc.Error{Code: 7, Message: "panic at main.go:12", Data: json.RawMessage(`{"a":"\u001b[2Jx"}`)}, &jsonrpc.Error{Code: 7, Message: "Internal error.", Data: json.RawMessage(`{"a":"x"}`)}},
		"a sentence":     {nil, &jsonrpc.Error{Code: 7, Message: "There is no such resource."}, &jsonrpc.Error{Code: 7, Message: "There is no such resource."}},
	} {
		t.Run(name, func(t *testing.T) {
			result, err := answering(func(context.Context, string, mcp.Request) (mcp.Result, error) { return tc.result, tc.err })(t.Context(), "x", nil)
			var got any = result
			if err != nil {
				got = err
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreUnexported(mcp.CallToolResult{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
