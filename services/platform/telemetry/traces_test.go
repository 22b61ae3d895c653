package telemetry_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"durward.internal/services/platform/config"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/telemetry/span"
)

func open(t *testing.T, settings config.Telemetry) *telemetry.Telemetry {
	t.Helper()
	seen, err := telemetry.Open(telemetry.Config{
		Service: "gateway", Version: "v1", Settings: settings, Lifetime: lifetime, Methods: []string{"tools/call", "ping"},
	})
	must(t, err)
	t.Cleanup(seen.Close)
	return seen
}

// ask returns the status and the body of a GET.
func ask(seen *telemetry.Telemetry, path string) (int, string) {
	r := httptest.NewRequest("GET", path, nil)
	r.Host = "localhost"
	w := httptest.NewRecorder()
	seen.Handler(nil).ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func shown(t *testing.T, seen *telemetry.Telemetry, query string) []telemetry.Span {
	t.Helper()
	code, body := ask(seen, "/traces"+query)
	var out telemetry.Traces
	if err := json.Unmarshal([]byte(body), &out); err != nil || code != 200 {
		t.Fatalf("%d %s: %v", code, body, err)
	}
	return out.Spans
}

// A span shows what is in the closed sets and nothing else, whatever code made it.
func TestSpansSayOnlyWhatIsKnown(t *testing.T) {
	seen := open(t, config.Telemetry{})
	const secret = "hunter2"
	for name, c := range map[string]struct {
		name       string
		attributes []attribute.KeyValue
		wantName   string
		want       map[string]string
	}{
		"a made-up name":                  {secret, nil, span.Unknown, nil},
		"a made-up tool":                  {"tools/call " + secret, nil, span.Unknown, nil},
		"a made-up method":                {secret + " gpu_status", nil, span.Unknown, nil},
		"a made-up RPC":                   {"durward.vault.v1.SessionService/" + secret, nil, span.Unknown, nil},
		"a message for an RPC":            {"durward.vault.v1/OpenSessionRequest", nil, span.Unknown, nil},
		"a made-up key":                   {"ping", []attribute.KeyValue{attribute.String("db.statement", secret)}, "ping", nil},
		"values out of their sets":        {"ping", []attribute.KeyValue{span.Method.String(secret), span.Tool.String(secret), span.Tier.String(secret), span.Era.String(secret), span.Status.String(secret), span.Peer.String(secret), span.RequestID.String(secret), span.MCPMethod.String(secret), span.GenAITool.String(secret), span.Operation.String(secret), span.ErrorType.String(secret)}, "ping", nil},
		"a client's text by a convention": {"ping", []attribute.KeyValue{attribute.String("gen_ai.tool.call.arguments", secret), attribute.String("mcp.resource.uri", secret), attribute.String("mcp.session.id", secret), attribute.String("jsonrpc.request.id", secret)}, "ping", nil},
		"everything by the conventions":   {"tools/call gpu_status", []attribute.KeyValue{span.MCPMethod.String("tools/call"), span.GenAITool.String("gpu_status"), span.Operation.String(span.ExecuteTool), span.ErrorType.String(span.ToolError)}, "tools/call gpu_status", map[string]string{"mcp.method.name": "tools/call", "gen_ai.tool.name": "gpu_status", "gen_ai.operation.name": "execute_tool", "error.type": "tool_error"}},
		"somebody's own request id":       {"ping", []attribute.KeyValue{span.RequestID.String("r-alice-smith")}, "ping", nil},
		"values of another type":          {"ping", []attribute.KeyValue{span.Tool.StringSlice([]string{secret}), span.Status.Bool(true), span.Records.String(secret)}, "ping", nil},
		"an empty tier, code and role":    {"ping", []attribute.KeyValue{span.Tier.String(""), span.Status.String(""), span.Peer.String("")}, "ping", nil},
		"an unspecified tier and role":    {"ping", []attribute.KeyValue{span.Tier.String("UNSPECIFIED"), span.Peer.String("unspecified")}, "ping", nil},
		"a code in another case":          {"ping", []attribute.KeyValue{span.Status.String("not_found")}, "ping", nil},
		"a code with its prefix":          {"ping", []attribute.KeyValue{span.Status.String("CODE_NOT_FOUND")}, "ping", nil},
		"everything that is known":        {"tools/call gpu_status", []attribute.KeyValue{span.Method.String("tools/call"), span.Tool.String("gpu_status"), span.Tier.String("READ"), span.Era.String("stateless"), span.Status.String("NOT_FOUND"), span.Peer.String("gateway"), span.RequestID.String("r-abcdefghijklmnopqrstuvwxyz"), span.Records.Int(3)}, "tools/call gpu_status", map[string]string{"rpc.method": "tools/call", "durward.tool": "gpu_status", "durward.tier": "READ", "durward.era": "stateless", "durward.status": "NOT_FOUND", "durward.peer": "gateway", "durward.request_id": "r-abcdefghijklmnopqrstuvwxyz", "durward.records": "3"}},
		"an unknown tool":                 {"tools/call unknown", []attribute.KeyValue{span.Tool.String(span.Unknown), span.Status.String("pending_approval")}, "tools/call unknown", map[string]string{"durward.tool": "unknown", "durward.status": "pending_approval"}},
		"an RPC of the contract":          {"durward.vault.v1.SessionService/OpenSession", nil, "durward.vault.v1.SessionService/OpenSession", nil},
		"what is no call":                 {span.DriverStart, nil, span.DriverStart, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := seen.Tracer().Start(t.Context(), c.name, trace.WithAttributes(c.attributes...))
			s.AddEvent(secret, trace.WithAttributes(attribute.String("exception.message", secret)))
			s.SetStatus(codes.Error, secret)
			s.End()
			got := shown(t, seen, "?trace_id="+s.SpanContext().TraceID().String())
			if len(got) != 1 || got[0].Name != c.wantName {
				t.Fatalf("%+v", got)
			}
			if diff := cmp.Diff(c.want, got[0].Attributes, cmp.Transformer("none", func(m map[string]string) map[string]string {
				if len(m) == 0 {
					return nil
				}
				return m
			})); diff != "" {
				t.Errorf("attributes (-want +got):\n%s", diff)
			}
		})
	}
	if _, body := ask(seen, "/traces"); strings.Contains(body, secret) {
		t.Errorf("the secret is shown: %s", body)
	}
}

func TestTracesAreBounded(t *testing.T) {
	seen := open(t, config.Telemetry{})
	for range 1000 {
		_, s := seen.Tracer().Start(t.Context(), "ping")
		s.End()
	}
	if n := len(shown(t, seen, "")); n != 512 {
		t.Errorf("%d spans are kept", n)
	}
	for _, query := range []string{"?trace_id=x", "?trace_id=" + strings.Repeat("0", 31), "?trace_id=" + strings.Repeat("0", 34), "?trace_id=%00"} {
		if code, body := ask(seen, "/traces"+query); code != 400 || strings.Contains(body, "v1") {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
	if got := shown(t, seen, "?trace_id="+strings.Repeat("0", 32)); len(got) != 0 {
		t.Errorf("a trace of nobody has %d spans", len(got))
	}
}

// A collector that takes connections and never answers slows nobody down: what is too much is dropped and counted.
func TestADeadCollectorIsNoBurden(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer lis.Close()
	seen := open(t, config.Telemetry{OTLP: config.OTLP{Endpoint: lis.Addr().String()}})
	began := time.Now()
	const spans = 5000
	for range spans {
		_, s := seen.Tracer().Start(t.Context(), "ping")
		s.End()
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%d spans took %s", spans, took)
	}
	_, body := ask(seen, "/metrics")
	if !strings.Contains(body, fmt.Sprintf(`durward_trace_spans_total{result="ended"} %d`, spans)) || strings.Contains(body, `durward_trace_spans_total{result="dropped"} 0`) {
		t.Errorf("not counted: %s", slices.Collect(strings.Lines(body))[:20])
	}
}

func TestSampleIsByRatio(t *testing.T) {
	for _, ratio := range []float64{0, 0.25, 1} {
		seen := open(t, config.Telemetry{SampleRatio: &ratio})
		n := 0
		const draws = 20_000
		for range draws {
			if seen.Sample() {
				n++
			}
		}
		if got := float64(n) / draws; got < ratio-0.02 || got > ratio+0.02 {
			t.Errorf("ratio %v: %v are sampled", ratio, got)
		}
	}
}

// The pages beside /health are for this machine alone, like it, and there is no other.
func TestPagesAreLocal(t *testing.T) {
	seen := open(t, config.Telemetry{})
	seen.Halted(func() bool { return true })
	for _, path := range []string{"/metrics", "/traces"} {
		for _, c := range []struct {
			method, host, origin string
			want                 int
		}{
			{"GET", "evil.example", "", 403}, {"GET", "localhost", "https://evil.example", 403}, {"POST", "localhost", "", 405}, {"DELETE", "localhost", "", 405},
			{"GET", "127.0.0.1:7440", "", 200}, {"GET", "localhost", "http://localhost:3000", 200},
		} {
			r := httptest.NewRequest(c.method, path, nil)
			r.Host = c.host
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
			w := httptest.NewRecorder()
			seen.Handler(nil).ServeHTTP(w, r)
			if w.Code != c.want || c.want != 200 && strings.Contains(w.Body.String(), "durward") {
				t.Errorf("%s %s of %s from %q: %d, want %d", c.method, path, c.host, c.origin, w.Code, c.want)
			}
		}
	}
	for _, path := range []string{"/", "/metrics/", "/debug/vars", "/debug/pprof/", "/traces/x"} {
		if code, _ := ask(seen, path); code != 404 {
			t.Errorf("%s: %d", path, code)
		}
	}
	_, body := ask(seen, "/metrics")
	for _, want := range []string{`durward_build_info{service="gateway",version="v1"} 1`, "durward_certificate_expiry_timestamp_seconds 1.8e+09", "durward_halted 1", "go_goroutines "} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
}

// A line of a traced request names the trace; one of another does not.
func TestLinesNameTheTrace(t *testing.T) {
	seen := open(t, config.Telemetry{})
	ctx, s := seen.Tracer().Start(rpc.WithRequestID(t.Context(), "r-1"), "ping")
	defer s.End()
	var traced, other string
	traced = line(t, ctx)
	other = line(t, rpc.WithRequestID(t.Context(), "r-1"))
	if id := s.SpanContext().TraceID().String(); !strings.Contains(traced, `"trace_id":"`+id+`"`) || strings.Contains(other, "trace_id") {
		t.Errorf("%s%s", traced, other)
	}
}

func line(t *testing.T, ctx context.Context) string {
	t.Helper()
	var b strings.Builder
	logger, err := telemetry.NewLogger(&b, "gateway", "")
	must(t, err)
	logger.InfoContext(ctx, "done")
	return b.String()
}

func lifetime() (from, until time.Time) {
	return time.Unix(1_700_000_000, 0), time.Unix(1_800_000_000, 0)
}
