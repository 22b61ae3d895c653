package metrics

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
)

// A call counts as denied where the sink was not convinced, by what it carried, and as an error where it failed.
func TestCalls(t *testing.T) {
	m := New(prometheus.NewRegistry(), nil)
	call := func(method, carries string, err error) {
		t.Helper()
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs(carries, "x"))
		_, got := m.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
			if n := testutil.ToFloat64(m.inFlight); n != 1 && method != executorv1.ControlService_GetStatus_FullMethodName {
				t.Errorf("%v calls are in flight", n)
			}
			return nil, err
		})
		if !errors.Is(got, err) {
			t.Errorf("%s: the error is changed to %v", method, got)
		}
	}
	denied := fault.New(callv1.Code_CODE_DENIED, "no")
	call(executorv1.ToolService_StartService_FullMethodName, rpc.MetadataGrant, denied)
	call(executorv1.ToolService_StartService_FullMethodName, rpc.MetadataGrant, fault.New(callv1.Code_CODE_ALREADY_SPENT, "no"))
	call(executorv1.ToolService_StartService_FullMethodName, rpc.MetadataGrant, nil)
	call(executorv1.ToolService_GpuStatus_FullMethodName, rpc.MetadataPermit, denied)
	call(executorv1.ToolService_GpuStatus_FullMethodName, "other", denied)
	call(executorv1.ToolService_ServiceInfo_FullMethodName, rpc.MetadataPermit, fault.New(callv1.Code_CODE_NOT_FOUND, "no"))
	call(executorv1.ControlService_GetStatus_FullMethodName, "other", denied)
	for _, c := range []struct {
		permission, code string
		want             float64
	}{{"grant", "DENIED", 1}, {"grant", "ALREADY_SPENT", 1}, {"permit", "DENIED", 1}, {"none", "DENIED", 1}, {"permit", "NOT_FOUND", 0}} {
		if got := testutil.ToFloat64(m.refused.WithLabelValues(c.permission, c.code)); got != c.want {
			t.Errorf("refused with a %s, %s: %v", c.permission, c.code, got)
		}
	}
	// start_service ok and denied, gpu_status denied, service_info error.
	if n := testutil.CollectAndCount(m.calls); n != 4 {
		t.Errorf("%d series of calls", n)
	}
	if n := testutil.ToFloat64(m.inFlight); n != 0 {
		t.Errorf("%v calls are in flight at the end", n)
	}
}
