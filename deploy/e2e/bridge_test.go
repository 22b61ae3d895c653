package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
)

// bridged is an MCP client of one era behind a stdio bridge of its own.
type bridged struct {
	t       *testing.T
	session *mcp.ClientSession
	updates chan string
}

func bridge(t *testing.T, h *harness.Host, client, revision string) *bridged {
	t.Helper()
	b := &bridged{t: t, updates: make(chan string, 100)}
	program := mcp.NewClient(&mcp.Implementation{Name: "bridged", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { b.updates <- r.Params.URI },
	})
	session, err := program.Connect(t.Context(), &mcp.CommandTransport{Command: h.Command(h.StdioCommand(client)...)},
		&mcp.ClientSessionOptions{ProtocolVersion: revision})
	must(t, err)
	b.session = session
	t.Cleanup(func() { _ = session.Close() }) // a test may have closed it
	if got := session.InitializeResult().ProtocolVersion; got != revision {
		t.Fatalf("the client speaks %s, want %s", got, revision)
	}
	return b
}

func (b *bridged) call(tool string, arguments map[string]any) harness.Envelope {
	b.t.Helper()
	return harness.Again(func() harness.Envelope {
		result, err := b.session.CallTool(b.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil {
			b.t.Fatalf("%s: %v", tool, err)
		}
		return harness.CheckResult(b.t, nil, result)
	})
}

// updated waits until the client is told that the resource changed.
func (b *bridged) updated(uri string) {
	b.t.Helper()
	for end := time.After(harness.Patience); ; {
		select {
		case got := <-b.updates:
			if got == uri {
				return
			}
		case <-end:
			b.t.Fatalf("nobody told the client that %s changed", uri)
		}
	}
}

// TestBridge: a client that signs goes on in either era when the vault and the gateway restart, with what it subscribed to.
func TestBridge(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			h := harness.Start(t, harness.Options{})
			h.AddKeyBound("agent")
			b := bridge(t, h, "agent", revision)
			service := "durward://services/" + harness.DemoService
			must(t, b.session.Subscribe(t.Context(), &mcp.SubscribeParams{URI: service}))
			run := func(tool string) {
				t.Helper()
				var asked harness.Envelope
				harness.Eventually(t, tool+" is asked for", func() error {
					if asked = b.call(tool, demo); asked.Status == "error" && asked.Error.Retryable && asked.Error.Code != "PROOF_REQUIRED" {
						return fmt.Errorf("%s", asked.Raw)
					}
					return nil
				})
				if asked.Status != "pending_approval" {
					t.Fatalf("%s: %s", tool, asked.Raw)
				}
				h.Approve(asked.OperationID)
				if e := b.call("wait_operation", asked.Next.Arguments); e.Status != "ok" {
					t.Fatalf("wait_operation: %s", e.Raw)
				}
				b.updated(service)
			}
			run("start_service")
			for _, role := range []string{harness.Vault, harness.Gateway} {
				h.Process(role).Kill()
				h.StartProcess(role)
				h.AwaitHealthy(role)
			}
			run("stop_service")
		})
	}
}

// TestBridgesHaveSessionsOfTheirOwn: two bridges of one client are two sessions at the vault, so that an approval for a session
// reaches one of them.
func TestBridgesHaveSessionsOfTheirOwn(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	h.AddKeyBound("agent")
	h.AddClient("bearer")
	for _, client := range []string{"agent", "bearer"} {
		sessions := map[string]bool{}
		for _, tool := range []string{"start_service", "stop_service"} {
			asked := bridge(t, h, client, "2026-07-28").call(tool, demo)
			for _, a := range h.Approvals() {
				if a.OperationID == asked.OperationID {
					sessions[a.Session] = true
				}
			}
		}
		if len(sessions) != 2 {
			t.Errorf("two bridges of %s are the sessions %v", client, sessions)
		}
	}
}
