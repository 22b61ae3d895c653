// Package metrics is what the gateway shows of its work: metrics on its loopback listener, and the first span of a request's
// trace. Its labels come from closed sets: methods of the protocol, tools of the contract, and our own words; no principal,
// client or session is in any of them, and what somebody made up is "unknown".
package metrics

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/telemetry/span"
)

// Metrics counts the gateway's requests. It is safe for concurrent use. Nil counts nothing and traces nothing.
type Metrics struct {
	seen    *telemetry.Telemetry
	tracer  trace.Tracer
	methods []string

	requests, limited, refused *prometheus.CounterVec
	calls                      *prometheus.HistogramVec
	inFlight, waits            prometheus.Gauge
}

// New registers the metrics. methods are those of MCP that are served.
func New(seen *telemetry.Telemetry, methods []string) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		seen: seen, tracer: seen.Tracer(), methods: methods,
		requests: counter("durward_gateway_requests_total", "MCP messages that were understood, by method, era and status: ok, the code of a refusal, or a tool's answer.", "method", "era", "status"),
		limited:  counter("durward_gateway_rate_limited_total", "Requests over a limit, by its kind.", "kind"),
		refused:  counter("durward_gateway_refused_total", "Requests that were refused for another reason than a limit.", "reason"),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "durward_gateway_call_duration_seconds", Help: "How long tool calls took, waiting for a human included, by tool and status of the answer.",
			Buckets: telemetry.Latency,
		}, []string{"tool", "status"}),
		inFlight: gauge("durward_gateway_calls_in_flight", "Tool calls that are under way."),
		waits:    gauge("durward_gateway_waits_held", "Tool calls that are held open for a human's decision."),
	}
	seen.Metrics.MustRegister(m.requests, m.limited, m.refused, m.calls, m.inFlight, m.waits)
	return m
}

// Gauge adds a metric whose value is asked for at each scrape.
func (m *Metrics) Gauge(name, help string, value func() int) {
	m.seen.Gauge(name, help, func() float64 { return float64(value()) })
}

// limitPrefix is how the reason of a refusal begins that is for a limit; the limit's kind follows.
const limitPrefix = "limit: "

// Refused counts a refusal by its reason, which is one of our own fixed words.
func (m *Metrics) Refused(reason string) {
	if m == nil {
		return
	}
	if kind, limited := strings.CutPrefix(reason, limitPrefix); limited {
		m.limited.WithLabelValues(kind).Inc()
		return
	}
	m.refused.WithLabelValues(reason).Inc()
}

// Wait counts a call as held for a human's decision until what it returns is called.
func (m *Metrics) Wait() (over func()) {
	if m == nil {
		return func() {}
	}
	m.waits.Inc()
	return m.waits.Dec
}

// Message says what a request is.
type Message struct {
	// Method and Tool are as they were sent; Tool is empty for other methods than tools/call.
	Method, Tool string
	// Era is "stateful" or "stateless".
	Era string
	// TraceParent is the client's, from _meta or the HTTP header, or empty. Its trace is joined; whether anything is recorded
	// is not the client's to say.
	TraceParent string
	RequestID   string
}

// Request is one message on its way. Nil is one that nobody watches. A client that leaves ends the request while a call may
// still be under way, so that it is safe for concurrent use.
type Request struct {
	metrics *Metrics
	message Message
	method  string
	status  atomic.Pointer[string]
	span    trace.Span
}

// Begin counts a message. The caller calls End.
func (m *Metrics) Begin(msg Message) *Request {
	if m == nil {
		return nil
	}
	r := &Request{metrics: m, message: msg, method: msg.Method}
	if !slices.Contains(m.methods, msg.Method) {
		r.method = span.Unknown
	}
	return r
}

// Trace begins the trace of a message that was let through, if it asks for a change or the draw says so, and returns ctx with
// its span. What is refused before has none: whoever is turned away could push out the spans of those who are served. It is
// called once at most, before anything else may call Context.
func (r *Request) Trace(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	m, msg := r.metrics, r.message
	tool, known := contract.Lookup(msg.Tool)
	changes := known && tool.Tier != optionsv1.Tier_TIER_READ
	if !changes && !m.seen.Sample() {
		return ctx
	}
	name := r.method
	if msg.Tool != "" {
		if !known {
			tool.Name = span.Unknown
		}
		name += " " + tool.Name
	}
	if remote := span.Parse(msg.TraceParent); remote.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, remote)
	}
	ctx, r.span = m.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
	r.span.SetAttributes(span.Method.String(r.method), span.MCPMethod.String(r.method), span.Era.String(msg.Era), span.RequestID.String(msg.RequestID))
	if msg.Tool != "" {
		r.span.SetAttributes(span.Tool.String(tool.Name), span.GenAITool.String(tool.Name), span.Operation.String(span.ExecuteTool))
	}
	if known {
		r.span.SetAttributes(span.Tier.String(contract.TierName(tool.Tier)))
	}
	return ctx
}

// Context returns ctx with the request's span, for handlers whose context is not the HTTP request's.
func (r *Request) Context(ctx context.Context) context.Context {
	if r == nil || r.span == nil {
		return ctx
	}
	return trace.ContextWithSpan(ctx, r.span)
}

// Refuse notes that the request was refused.
func (r *Request) Refuse(code callv1.Code) {
	if r != nil {
		status := fault.CodeName(code)
		r.status.Store(&status)
	}
}

// Call notes that a call of a tool begins; what it returns is called with the status of the answer. A tool that is not in
// the contract is unknown.
func (r *Request) Call(tool string) (answered func(status string)) {
	if r == nil {
		return func(string) {}
	}
	if _, known := contract.Lookup(tool); !known {
		tool = span.Unknown
	}
	began := time.Now()
	r.metrics.inFlight.Inc()
	return func(status string) {
		r.status.Store(&status)
		r.metrics.inFlight.Dec()
		r.metrics.calls.WithLabelValues(tool, status).Observe(time.Since(began).Seconds())
	}
}

// End counts the request and ends its span.
func (r *Request) End() {
	if r == nil {
		return
	}
	status := span.OK
	if s := r.status.Load(); s != nil {
		status = *s
	}
	r.metrics.requests.WithLabelValues(r.method, r.message.Era, status).Inc()
	if r.span != nil {
		r.span.SetAttributes(span.Status.String(status))
		switch status {
		case span.OK, "pending_approval", "running":
		case "denied", "error":
			r.span.SetAttributes(span.ErrorType.String(span.ToolError))
		default:
			r.span.SetAttributes(span.ErrorType.String(status))
		}
		r.span.End()
	}
}
