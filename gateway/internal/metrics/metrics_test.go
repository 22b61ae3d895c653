package metrics_test

import (
	"encoding/json"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"durward.internal/gateway/internal/metrics"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/telemetry"
)

func open(t *testing.T, ratio float64) (*metrics.Metrics, func(path string) string) {
	t.Helper()
	methods := []string{"tools/call", "tools/list"}
	seen, err := telemetry.Open(telemetry.Config{
		Service: "gateway", Version: "v1", Settings: config.Telemetry{SampleRatio: &ratio}, Lifetime: func() (from, until time.Time) { return time.Now(), time.Now() }, Methods: methods,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(seen.Close)
	return metrics.New(seen, methods), func(path string) string {
		r := httptest.NewRequest("GET", path, nil)
		r.Host = "localhost"
		w := httptest.NewRecorder()
		seen.Handler(nil).ServeHTTP(w, r)
		return w.Body.String()
	}
}

// Whatever a client calls its method and tool, the labels and the spans are of the closed sets.
func TestMadeUpNamesAreUnknown(t *testing.T) {
	m, page := open(t, 1)
	for _, msg := range []metrics.Message{
		{Method: "notifications/alice", Era: "stateless"}, {Method: "tools/call", Tool: "alice", Era: "stateful"}, {Method: "alice", Tool: "alice", Era: "stateless"},
	} {
		r := m.Begin(msg)
		ctx := r.Trace(t.Context())
		if !trace.SpanContextFromContext(ctx).IsSampled() {
			t.Errorf("%+v is not traced at a ratio of 1", msg)
		}
		if msg.Tool != "" {
			r.Call(msg.Tool)("denied")
		}
		r.End()
	}
	m.Refused("host")
	m.Refused("limit: reads")
	text := page("/metrics")
	for _, want := range []string{
		`durward_gateway_requests_total{era="stateless",method="unknown",status="ok"} 1`,
		`durward_gateway_requests_total{era="stateful",method="tools/call",status="denied"} 1`,
		`durward_gateway_call_duration_seconds_count{status="denied",tool="unknown"} 2`,
		`durward_gateway_refused_total{reason="host"} 1`, `durward_gateway_rate_limited_total{kind="reads"} 1`,
		`durward_gateway_calls_in_flight 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
	if all := text + page("/traces"); strings.Contains(all, "alice") {
		t.Errorf("alice is shown: %s", all)
	}
}

// What a client says of its trace decides where spans go, and nothing about whether there are any.
func TestSampling(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	m, page := open(t, 0)
	for _, c := range []struct {
		msg    metrics.Message
		traced bool
	}{
		{metrics.Message{Method: "tools/list"}, false},
		{metrics.Message{Method: "tools/list", TraceParent: "00-" + id + "-00f067aa0ba902b7-01"}, false},
		{metrics.Message{Method: "tools/call", Tool: "gpu_status", TraceParent: "00-" + id + "-00f067aa0ba902b7-01"}, false},
		{metrics.Message{Method: "tools/call", Tool: "alice", TraceParent: "00-" + id + "-00f067aa0ba902b7-01"}, false},
		{metrics.Message{Method: "tools/call", Tool: "start_service"}, true},
		{metrics.Message{Method: "tools/call", Tool: "wait_operation", TraceParent: "00-" + id + "-00f067aa0ba902b7-01"}, false},
		{metrics.Message{Method: "tools/call", Tool: "start_service", TraceParent: "00-" + id + "-00f067aa0ba902b7-00"}, true},
		{metrics.Message{Method: "tools/call", Tool: "stop_service", TraceParent: "nonsense"}, true},
	} {
		r := m.Begin(c.msg)
		ctx := r.Trace(t.Context())
		at := trace.SpanContextFromContext(ctx)
		if at.IsSampled() != c.traced {
			t.Errorf("%+v: traced is %t", c.msg, !c.traced)
		}
		if joined := at.TraceID().String() == id; joined != (c.traced && strings.Contains(c.msg.TraceParent, id)) {
			t.Errorf("%+v is in the trace %s", c.msg, at.TraceID())
		}
		if inner := r.Context(t.Context()); !trace.SpanContextFromContext(inner).Equal(at) {
			t.Errorf("%+v: a handler with a context of its own is elsewhere", c.msg)
		}
		r.Refuse(callv1.Code_CODE_RATE_LIMITED)
		r.End()
	}
	var shown telemetry.Traces
	if err := json.Unmarshal([]byte(page("/traces?trace_id="+id)), &shown); err != nil || len(shown.Spans) != 1 {
		t.Fatalf("%v %+v", err, shown)
	}
	if s := shown.Spans[0]; s.ParentID != "00f067aa0ba902b7" || s.Name != "tools/call start_service" || s.Attributes["durward.status"] != "RATE_LIMITED" {
		t.Errorf("%+v", s)
	}
}

// TestSpansFollowTheConventions: a tool's span says by OpenTelemetry's names what it says by ours, and no more.
func TestSpansFollowTheConventions(t *testing.T) {
	m, page := open(t, 1)
	for _, c := range []struct {
		method, tool, status string
		want                 map[string]string
	}{
		{"tools/call", "start_service", "ok", map[string]string{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "start_service"}},
		{"tools/call", "start_service", "pending_approval", map[string]string{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "start_service"}},
		{"tools/call", "alice", "denied", map[string]string{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "unknown", "error.type": "tool_error"}},
		{"tools/call", "stop_service", "RATE_LIMITED", map[string]string{"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "stop_service", "error.type": "RATE_LIMITED"}},
		{"tools/list", "", "ok", map[string]string{}},
	} {
		r := m.Begin(metrics.Message{Method: c.method, Tool: c.tool, Era: "stateless", RequestID: "r-abcdefghijklmnopqrstuvwxyz"})
		at := trace.SpanContextFromContext(r.Trace(t.Context()))
		r.Call(c.tool)(c.status)
		r.End()
		var shown telemetry.Traces
		if err := json.Unmarshal([]byte(page("/traces?trace_id="+at.TraceID().String())), &shown); err != nil || len(shown.Spans) != 1 {
			t.Fatalf("%v %+v", err, shown)
		}
		c.want["mcp.method.name"] = c.method
		got := shown.Spans[0].Attributes
		maps.DeleteFunc(got, func(key, _ string) bool { return strings.HasPrefix(key, "durward.") || key == "rpc.method" })
		if !maps.Equal(got, c.want) {
			t.Errorf("%s %s: %v, want %v", c.method, c.tool, got, c.want)
		}
	}
}

// Who is turned away is counted and leaves no span, whatever the ratio and the tool.
func TestRefusalsAreNotTraced(t *testing.T) {
	m, page := open(t, 1)
	for range 3 {
		r := m.Begin(metrics.Message{Method: "tools/call", Tool: "start_service", Era: "stateless"})
		r.Refuse(callv1.Code_CODE_UNAUTHENTICATED)
		r.End()
	}
	if want := `durward_gateway_requests_total{era="stateless",method="tools/call",status="UNAUTHENTICATED"} 3`; !strings.Contains(page("/metrics"), want) {
		t.Errorf("/metrics lacks %s", want)
	}
	var shown telemetry.Traces
	if err := json.Unmarshal([]byte(page("/traces")), &shown); err != nil || len(shown.Spans) != 0 {
		t.Errorf("%v %+v", err, shown)
	}
}

// Nobody has to watch.
func TestNil(t *testing.T) {
	var m *metrics.Metrics
	r := m.Begin(metrics.Message{Method: "tools/call", Tool: "start_service"})
	ctx := r.Trace(t.Context())
	m.Refused("host")
	m.Wait()()
	r.Refuse(callv1.Code_CODE_DENIED)
	r.Call("start_service")("ok")
	r.End()
	if ctx != t.Context() || r.Context(ctx) != ctx {
		t.Error("nothing that watches leaves something in the context")
	}
}

// BenchmarkRequest is what a read costs that is counted and not traced.
func BenchmarkRequest(b *testing.B) {
	ratio := 0.0
	seen, err := telemetry.Open(telemetry.Config{Service: "gateway", Settings: config.Telemetry{SampleRatio: &ratio}, Lifetime: func() (from, until time.Time) { return time.Now(), time.Now() }})
	if err != nil {
		b.Fatal(err)
	}
	defer seen.Close()
	m := metrics.New(seen, []string{"tools/call"})
	b.ReportAllocs()
	for b.Loop() {
		r := m.Begin(metrics.Message{Method: "tools/call", Tool: "gpu_status", Era: "stateful", RequestID: "r-1"})
		r.Context(r.Trace(b.Context()))
		r.Call("gpu_status")("ok")
		r.End()
	}
}
