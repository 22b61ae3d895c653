package rpc_test

import (
	"context"
	"slices"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry/span"
)

// changing is an executor whose StartService answers.
type changing struct{ tools }

func (*changing) StartService(context.Context, *executorv1.StartServiceRequest) (*executorv1.StartServiceResponse, error) {
	return &executorv1.StartServiceResponse{}, nil
}

// A call is traced where its caller traces it, under the caller's span, and otherwise only if it changes something. Nothing
// but the trace's numbers travels with it.
func TestTracePropagation(t *testing.T) {
	kit := platformtest.New(t)
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithSpanProcessor(recorder))
	var arrived metadata.MD
	service := &changing{}
	service.info = func(ctx context.Context, _ *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
		arrived, _ = metadata.FromIncomingContext(ctx)
		return &executorv1.ServiceInfoResponse{}, nil
	}
	addr := kit.Serve(t, executor, "local", func(r grpc.ServiceRegistrar) { executorv1.RegisterToolServiceServer(r, service) },
		func(c *rpc.ServerConfig) { c.Tracer = span.Tracer(provider) })
	conn := kit.Dial(t, kit.ID(gateway, "main"), addr, kit.ID(executor, "local"))
	client := executorv1.NewToolServiceClient(conn)
	start := executorv1.StartServiceRequest{ServiceId: serviceID("demo").ServiceId}
	const info, change = "durward.executor.v1.ToolService/ServiceInfo", "durward.executor.v1.ToolService/StartService"

	ended := func(f func(ctx context.Context), ctx context.Context) []sdktrace.ReadOnlySpan {
		t.Helper()
		before := len(recorder.Ended())
		f(ctx)
		return recorder.Ended()[before:]
	}
	look := func(ctx context.Context) {
		if _, err := client.ServiceInfo(ctx, serviceID("demo")); err != nil {
			t.Fatal(err)
		}
	}
	if got := ended(look, t.Context()); len(got) != 0 || len(arrived.Get(span.Header)) != 0 {
		t.Errorf("an untraced look has the spans %v and arrives with %v", got, arrived)
	}
	// Somebody who writes the header without asking for a record gets none.
	unsampled := metadata.AppendToOutgoingContext(t.Context(), span.Header, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")
	if got := ended(look, unsampled); len(got) != 0 {
		t.Errorf("an unsampled look has the spans %v", got)
	}
	for _, header := range []string{"x", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "01-4bf92f3577b34da6a3ce929d0e0e4736"} {
		if got := ended(look, metadata.AppendToOutgoingContext(t.Context(), span.Header, header)); len(got) != 0 {
			t.Errorf("%q has the spans %v", header, got)
		}
	}

	ctx, root := span.Tracer(provider).Start(t.Context(), "root")
	state, err := trace.ParseTraceState("vendor=alice")
	must(t, err)
	ctx = trace.ContextWithSpanContext(ctx, root.SpanContext().WithTraceState(state))
	ctx = trace.ContextWithSpan(ctx, root)
	got := ended(look, metadata.AppendToOutgoingContext(ctx, "tracestate", "vendor=alice", "baggage", "user=alice"))
	if len(got) != 2 {
		t.Fatalf("a traced look has the spans %v", got)
	}
	server, caller := got[0], got[1]
	if server.SpanKind() != trace.SpanKindServer || caller.SpanKind() != trace.SpanKindClient || server.Name() != info || caller.Name() != info ||
		server.Parent().SpanID() != caller.SpanContext().SpanID() || caller.Parent().SpanID() != root.SpanContext().SpanID() ||
		server.SpanContext().TraceID() != root.SpanContext().TraceID() || server.SpanContext().TraceState().Len() != 0 {
		t.Errorf("server %v under %v, client %v under %v", server.Name(), server.Parent(), caller.Name(), caller.Parent())
	}
	if !slices.Contains(caller.Attributes(), span.Peer.String("executor")) || !slices.Contains(server.Attributes(), span.Peer.String("gateway")) {
		t.Errorf("client %v, server %v", caller.Attributes(), server.Attributes())
	}

	// A change is traced though nobody traced it before, in a trace of its own or in the caller's.
	alone := ended(func(ctx context.Context) { _, err = client.StartService(ctx, &start) }, t.Context())
	if err != nil || len(alone) != 1 || alone[0].Name() != change || alone[0].Parent().IsValid() {
		t.Errorf("a change: %v, %v", err, alone)
	}
	joined := ended(func(ctx context.Context) { _, err = client.StartService(ctx, &start) }, unsampled)
	if err != nil || len(joined) != 1 || joined[0].SpanContext().TraceID().String() != "4bf92f3577b34da6a3ce929d0e0e4736" {
		t.Errorf("a change in an unsampled trace: %v, %v", err, joined)
	}

	// A method that does not exist is named by nobody.
	unknown := ended(func(ctx context.Context) {
		err = conn.Invoke(ctx, "/durward.executor.v1.ToolService/Alice", &start, &start)
	}, ctx)
	for _, s := range unknown {
		if s.SpanKind() == trace.SpanKindServer && s.Name() != span.Unknown {
			t.Errorf("a method of nobody is named %s", s.Name())
		}
	}
	if err == nil || len(unknown) != 2 {
		t.Errorf("a method of nobody: %v, %v", err, unknown)
	}
}
