package mcpserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/gateway/internal/envelope"
	"durward.internal/gateway/internal/httpfront"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// TestHandlersRefuseWhatNobodyHandsOn: a handler that is not given what the front, dispatch and the SDK hand on refuses, and does not
// panic in a goroutine or go on without a session.
func TestHandlersRefuseWhatNobodyHandsOn(t *testing.T) {
	s := &Server{conf: Config{Logger: slog.New(slog.DiscardHandler)}, resources: &resources{}}
	call := &httpfront.Call{RequestID: "r"}
	done := func(context.Context, string, mcp.Request) (mcp.Result, error) { return &mcp.InitializeResult{}, nil }
	internal := func(err error) bool {
		ours, ok := errors.AsType[*refusalError](err)
		return ok && strings.Contains(string(ours.rpc.Data), "INTERNAL")
	}
	task := func(req mcp.Request) error {
		_, err := s.task(t.Context(), methodGetTask, req, call)
		return err
	}
	if err := task(&mcp.ClientRequest[*taskParams]{Params: &taskParams{}}); !internal(err) {
		t.Errorf("a task of no session: %v", err)
	}
	if err := task(&mcp.ServerRequest[*mcp.PingParams]{Session: &mcp.ServerSession{}}); !internal(err) {
		t.Errorf("a task without its parameters: %v", err)
	}
	if _, err := s.initialize(t.Context(), done, "initialize", &mcp.ClientRequest[*mcp.InitializeParams]{}, call); !internal(err) {
		t.Errorf("a handshake of no session: %v", err)
	}
	if err := s.resources.subscribe(t.Context(), &mcp.ClientRequest[*mcp.SubscribeParams]{}, call, "durward://gpu"); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("a subscription of no session: %v", err)
	}
	if _, err := newForm(&envelope.Envelope{RequestID: `a"b`}); err == nil {
		t.Error("a form around a request id that would need escapes")
	}
	for _, era := range []httpfront.Era{httpfront.Stateful, httpfront.Stateless} {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/mcp", strings.NewReader(`{}`))
		r.Header.Set("Authorization", "Bearer x")
		if s.Handler(era).ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
			t.Errorf("a request that the front did not see, era %v: %d", era, w.Code)
		}
	}
}
