package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"

	"durward.internal/deploy/e2e/harness"
)

// revisions are the newest revision of each era.
var revisions = map[string]string{"stateful": "2025-11-25", "stateless": "2026-07-28"}

// reader is the official client of one era, and what it was told of changes.
type reader struct {
	*mcp.ClientSession
	t testing.TB

	mu   sync.Mutex
	told map[string]int
}

type bearerToken string

func (b bearerToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

func connectReader(t testing.TB, h *harness.Host, token, revision string) *reader {
	t.Helper()
	return connectOver(t, revision, &mcp.StreamableClientTransport{Endpoint: h.MCPURL(), HTTPClient: &http.Client{Transport: bearerToken(token)}})
}

func connectOver(t testing.TB, revision string, transport mcp.Transport) *reader {
	t.Helper()
	r := &reader{t: t, told: map[string]int{}}
	client := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, &mcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, req *mcp.ResourceUpdatedNotificationRequest) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.told[req.Params.URI]++
		},
	})
	session, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: revision})
	must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	r.ClientSession = session
	return r
}

func (r *reader) read(uri string) (string, error) {
	result, err := r.ReadResource(r.t.Context(), &mcp.ReadResourceParams{URI: uri})
	if err != nil {
		return "", err
	}
	if len(result.Contents) != 1 || result.Contents[0].URI != uri {
		return "", fmt.Errorf("contents %+v", result.Contents)
	}
	return result.Contents[0].Text, nil
}

func (r *reader) call(tool string, arguments map[string]any) harness.Envelope {
	r.t.Helper()
	return harness.Again(func() harness.Envelope {
		result, err := r.CallTool(r.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
		must(r.t, err)
		return harness.CheckResult(r.t, nil, result)
	})
}

// streams returns as what tools the streams of services that the executor served a principal are recorded.
func streams(h *harness.Host, principal string) (tools []string) {
	for _, e := range h.Records(&auditv1.SearchRecordsRequest{Kinds: []auditv1.Kind{auditv1.Kind_KIND_READ}}) {
		body := e.GetRecord().GetBody()
		if body.GetDetails()["method"] == executorv1.EventService_WatchServices_FullMethodName && body.GetPrincipal() == principal {
			tools = append(tools, e.GetRecord().GetTool())
		}
	}
	return tools
}

// watched waits until the executor serves a stream of services to a principal, the n-th of its.
func watched(t *testing.T, h *harness.Host, principal string, n int) {
	t.Helper()
	harness.Eventually(t, "the services are watched", func() error {
		if got := len(streams(h, principal)); got < n {
			return fmt.Errorf("%d streams are recorded, want %d", got, n)
		}
		return nil
	})
}

// forget starts the count of notifications anew.
func (r *reader) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = map[string]int{}
}

// await waits until the client was told of each of these.
func (r *reader) await(uris ...string) {
	r.t.Helper()
	harness.Eventually(r.t, "notifications", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, uri := range uris {
			if r.told[uri] == 0 {
				return fmt.Errorf("not told of %s, only of %v", uri, r.told)
			}
		}
		return nil
	})
}

// hostileServices adds what a human may have written into a catalog and nobody else ought to read there.
func hostileServices(h *harness.Host) string {
	return harness.DemoCatalog(h) + `  - id: careless
    name: "Runs /opt/models/secret.gguf"
    description: "HF_TOKEN=hf_abcdefghijklmnopqrstuv password: hunter2 \u001b[31m in ~/models"
    driver: "null"
`
}

// Everything can be read in both eras and both forms, what is subscribed to is told when it changes, whoever changed it, and
// every read is in the log.
func TestResources(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{Catalog: hostileServices})
	for era, revision := range revisions {
		t.Run(era, func(t *testing.T) {
			r := connectReader(t, h, h.AddClient(era), revision)
			stranger := connectReader(t, h, h.AddClient(era+"-stranger"), revision)
			asked := r.call("start_service", map[string]any{"service_id": harness.DemoService})
			if asked.Status != "pending_approval" {
				t.Fatalf("start_service: %s", asked.Raw)
			}
			operation := "durward://operations/" + asked.OperationID
			for _, uri := range []string{
				"durward://help", "durward://gpu", "durward://services", "durward://services/" + harness.DemoService, "durward://services/careless",
				"durward://config", operation,
			} {
				for _, format := range []string{"", "?format=json"} {
					text, err := r.read(uri + format)
					if err != nil || len(text) == 0 || len(text) > 6000 || format != "" && !json.Valid([]byte(text)) {
						t.Errorf("%s%s: %v, %d bytes", uri, format, err, len(text))
					}
					for _, secret := range []string{"/opt", "hf_abc", "hunter2", "~/", "\x1b", h.Dir} {
						if strings.Contains(text, secret) {
							t.Errorf("%s%s shows %q", uri, format, secret)
						}
					}
				}
			}
			code := map[string]int64{"stateful": -32002, "stateless": -32602}[era]
			for _, uri := range []string{operation, "durward://operations/" + strings.Repeat("0", 32)} {
				var refused *jsonrpc.Error
				if _, err := stranger.read(uri); !errors.As(err, &refused) || refused.Code != code || !strings.Contains(string(refused.Data), "there is no such operation") {
					t.Errorf("a stranger reads %s: %v", uri, err)
				}
			}

			subjects := []string{"durward://services", "durward://services/" + harness.DemoService, "durward://gpu", operation}
			for _, uri := range subjects {
				if err := r.Subscribe(t.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
					t.Fatalf("%s: %v", uri, err)
				}
			}
			must(t, stranger.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "durward://services/careless"}))
			watched(t, h, era, 1)
			h.Approve(asked.OperationID)
			if done := r.call("wait_operation", asked.Next.Arguments); done.Status != "ok" {
				t.Fatalf("wait_operation: %s", done.Raw)
			}
			r.await(subjects...)
			harness.Eventually(t, "the operation is shown as done", func() error {
				text, err := r.read(operation + "?format=json")
				if err != nil || !strings.Contains(text, `"state":"done"`) {
					return fmt.Errorf("%w: %s", err, text)
				}
				return nil
			})
			text, err := r.read("durward://services/" + harness.DemoService)
			if err != nil || !strings.Contains(text, "running") {
				t.Errorf("%v: %s", err, text)
			}

			// An executor that went away is watched again when it is back.
			h.Process(harness.Executor).Kill()
			h.StartProcess(harness.Executor)
			harness.Eventually(t, "the executor answers", func() error { _, err := r.read("durward://services?format=json"); return err })
			watched(t, h, era, 2)
			r.forget()
			stop := r.call("stop_service", map[string]any{"service_id": harness.DemoService})
			h.Approve(stop.OperationID)
			if done := r.call("wait_operation", stop.Next.Arguments); done.Status != "ok" {
				t.Fatalf("stop: %s", done.Raw)
			}
			r.await("durward://services", "durward://services/"+harness.DemoService, "durward://gpu")

			stranger.mu.Lock()
			if len(stranger.told) != 0 {
				t.Errorf("a stranger was told of %v", stranger.told)
			}
			stranger.mu.Unlock()
			harness.Eventually(t, "the records of the streams", func() error {
				streams := streams(h, era)
				// One for the session and one after the executor's restart; more when a permit ended meanwhile.
				if len(streams) < 2 || len(streams) > 6 || len(slices.Compact(streams)) != 1 || streams[0] != "list_services" {
					return fmt.Errorf("streams are recorded as %v", streams)
				}
				return nil
			})
		})
	}
	if diff := cmp.Diff(2, h.Starts(harness.DemoService)); diff != "" {
		t.Errorf("starts (-want +got):\n%s", diff)
	}
}

// A key-bound client reads and is told through the bridge as over HTTP, in both eras.
func TestResourcesThroughTheBridge(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	h.AddKeyBound("agent")
	for era, revision := range revisions {
		t.Run(era, func(t *testing.T) {
			r := connectOver(t, revision, &mcp.CommandTransport{Command: h.Command(h.StdioCommand("agent")...)})
			for uri, want := range map[string]string{"durward://config": "key-bound", "durward://services?format=json": harness.DemoService} {
				if text, err := r.read(uri); err != nil || !strings.Contains(text, want) {
					t.Errorf("%s: %v: %s", uri, err, text)
				}
			}
			before := len(streams(h, "agent"))
			must(t, r.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "durward://services"}))
			watched(t, h, "agent", before+1)
			for _, tool := range []string{"start_service", "stop_service"} {
				r.forget()
				asked := r.call(tool, map[string]any{"service_id": harness.DemoService})
				h.Approve(asked.OperationID)
				if done := r.call("wait_operation", asked.Next.Arguments); done.Status != "ok" {
					t.Fatalf("%s: %s", tool, done.Raw)
				}
				r.await("durward://services")
			}
		})
	}
}

// The gateway's certificate alone watches nothing and looks at no operation.
func TestGatewayAloneWatchesNothing(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent := h.Connect(h.AddClient("agent"))
	asked := agent.Ask("start_service", map[string]any{"service_id": harness.DemoService})
	gateway := h.Identity(harness.Gateway)
	executor, vault := h.DialAs(gateway, harness.Executor), h.DialAs(gateway, harness.Vault)
	forged := metadata.AppendToOutgoingContext(t.Context(), rpc.MetadataPermit, "\x0a\x02\x08\x01")
	for name, ctx := range map[string]context.Context{"no permit": t.Context(), "a forged permit": forged} {
		stream, err := executorv1.NewEventServiceClient(executor).WatchServices(ctx, &executorv1.WatchServicesRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		if !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("WatchServices with %s: %v", name, err)
		}
		_, err = vaultv1.NewOperationServiceClient(vault).GetOperation(ctx, &vaultv1.GetOperationRequest{OperationId: &asked.OperationID}, grpc.WaitForReady(true))
		if !fault.Is(err, callv1.Code_CODE_DENIED) {
			t.Errorf("GetOperation with %s: %v", name, err)
		}
	}
}
