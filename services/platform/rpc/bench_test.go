package rpc_test

import (
	"context"
	"testing"

	"google.golang.org/grpc"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
)

// BenchmarkHop is one call over mutual TLS through both chains, of a request that is not traced.
func BenchmarkHop(b *testing.B) {
	kit := platformtest.New(b)
	addr := kit.Serve(b, executor, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, &tools{info: func(context.Context, *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
			return &executorv1.ServiceInfoResponse{}, nil
		}})
	})
	client := executorv1.NewToolServiceClient(kit.Dial(b, kit.ID(gateway, "main"), addr, kit.ID(executor, "local")))
	ctx := rpc.WithRequestID(b.Context(), rpc.NewRequestID())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.ServiceInfo(ctx, serviceID("demo")); err != nil {
			b.Fatal(err)
		}
	}
}
