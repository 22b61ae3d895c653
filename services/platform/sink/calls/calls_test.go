package calls

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry/telemetrytest"
)

// stream is the connection of a call.
type stream struct{ grpc.ServerTransportStream }

func (stream) SetTrailer(metadata.MD) error { return nil }

// A call counts as denied where the sink was not convinced, by what it carried, and as an error where it failed.
func TestUnary(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := New(registry, "executor")
	const inFlight = "durward_executor_calls_in_flight"
	call := func(method, carries string, err error) {
		t.Helper()
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(carries, "x"))
		_, got := c.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
			if n := telemetrytest.Samples(t, registry)[inFlight]; n != 1 && method != executorv1.ControlService_GetStatus_FullMethodName {
				t.Errorf("%v calls are in flight", n)
			}
			return nil, err
		})
		if !errors.Is(got, err) {
			t.Errorf("%s: the error is changed to %v", method, got)
		}
	}
	denied := fault.New(callv1.Code_CODE_DENIED, "no")
	// A call that was let through, and denied something that it was to act with, has an outcome.
	ctx := metadata.NewIncomingContext(grpc.NewContextWithServerTransportStream(t.Context(), stream{}), metadata.Pairs(rpc.MetadataGrant, "x"))
	if _, err := c.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: executorv1.ToolService_WakeService_FullMethodName}, func(ctx context.Context, _ any) (any, error) {
		rpc.SetOutcome(ctx, &callv1.Outcome{Failed: true})
		return nil, denied
	}); !errors.Is(err, denied) {
		t.Error(err)
	}
	call(executorv1.ToolService_StartService_FullMethodName, rpc.MetadataGrant, denied)
	call(executorv1.ToolService_StartService_FullMethodName, rpc.MetadataGrant, fault.New(callv1.Code_CODE_ALREADY_SPENT, "no"))
	call(executorv1.ToolService_StartService_FullMethodName, rpc.MetadataGrant, nil)
	call(executorv1.ToolService_GpuStatus_FullMethodName, rpc.MetadataPermit, denied)
	call(executorv1.ToolService_GpuStatus_FullMethodName, "other", denied)
	call(executorv1.ToolService_ServiceInfo_FullMethodName, rpc.MetadataPermit, fault.New(callv1.Code_CODE_NOT_FOUND, "no"))
	call(executorv1.ControlService_GetStatus_FullMethodName, "other", denied)
	shown := telemetrytest.Samples(t, registry)
	for name, want := range map[string]float64{
		`durward_executor_refused_total{code="DENIED",permission="grant"}`:             1,
		`durward_executor_refused_total{code="ALREADY_SPENT",permission="grant"}`:      1,
		`durward_executor_refused_total{code="DENIED",permission="permit"}`:            1,
		`durward_executor_refused_total{code="DENIED",permission="none"}`:              1,
		`durward_executor_refused_total{code="NOT_FOUND",permission="permit"}`:         0,
		`durward_executor_call_duration_seconds{status="denied",tool="start_service"}`: 2,
		`durward_executor_call_duration_seconds{status="ok",tool="start_service"}`:     1,
		`durward_executor_call_duration_seconds{status="denied",tool="gpu_status"}`:    2,
		`durward_executor_call_duration_seconds{status="error",tool="wake_service"}`:   1,
		`durward_executor_call_duration_seconds{status="error",tool="service_info"}`:   1,
		inFlight: 0,
	} {
		if got := shown[name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}
