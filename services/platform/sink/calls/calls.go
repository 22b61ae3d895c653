// Package calls counts the calls of a sink's tools on its loopback listener. Its labels are tools and codes: no principal, session or
// argument is in any of them.
package calls

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/telemetry/span"
)

// Calls counts. It is safe for concurrent use.
type Calls struct {
	// tools are every tool, by full method.
	tools    map[string]string
	calls    *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	inFlight prometheus.Gauge
}

// New registers durward_SERVICE_call_duration_seconds, durward_SERVICE_refused_total and durward_SERVICE_calls_in_flight.
func New(registry prometheus.Registerer, service string) *Calls {
	c := &Calls{
		tools: map[string]string{},
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "durward_" + service + "_call_duration_seconds", Help: "How long calls of tools took, by tool and status: ok, error or denied.",
			Buckets: telemetry.Latency,
		}, []string{"tool", "status"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "durward_" + service + "_refused_total", Help: "Calls that went no further, by what they carried (grant, permit or none) and the code.",
		}, []string{"permission", "code"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "durward_" + service + "_calls_in_flight", Help: "Calls of tools that are under way.",
		}),
	}
	for _, t := range contract.Tools() {
		c.tools[t.FullMethod] = t.Name
	}
	// Counters that alerts look at are there from the start, or the first refusal would not show as an increase.
	for _, code := range []callv1.Code{callv1.Code_CODE_DENIED, callv1.Code_CODE_EXPIRED, callv1.Code_CODE_ALREADY_SPENT, callv1.Code_CODE_CONFLICT} {
		c.refused.WithLabelValues("grant", fault.CodeName(code))
	}
	registry.MustRegister(c.calls, c.refused, c.inFlight)
	return c
}

// Unary returns the interceptor that counts calls of tools. It stands in front of the sink's discipline.
func (c *Calls) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		tool, ok := c.tools[info.FullMethod]
		if call, is := request.(*egressv1.CallServerToolRequest); is {
			tool, ok = span.Unknown, true
			if pinned, known := contract.Pinned(call.GetTool()); known {
				tool = pinned.Name
			}
		}
		if !ok {
			return handler(ctx, request)
		}
		c.inFlight.Inc()
		defer c.inFlight.Dec()
		told := &trailer{ServerTransportStream: grpc.ServerTransportStreamFromContext(ctx)}
		if told.ServerTransportStream != nil {
			ctx = grpc.NewContextWithServerTransportStream(ctx, told)
		}
		began := time.Now()
		response, err := handler(ctx, request)
		status := span.OK
		if err != nil {
			status = "error"
			// A call that has an outcome was let through: what it was to act with, such as a credential, was denied.
			if code := fault.From(err).Code; refusal(code) && (code != callv1.Code_CODE_DENIED || !told.outcome) {
				status = "denied"
				c.refused.WithLabelValues(permission(ctx), fault.CodeName(code)).Inc()
			}
		}
		c.calls.WithLabelValues(tool, status).Observe(time.Since(began).Seconds())
		return response, err
	}
}

// trailer notes whether a call's outcome is told.
type trailer struct {
	grpc.ServerTransportStream
	outcome bool
}

// SetTrailer implements grpc.ServerTransportStream.
func (t *trailer) SetTrailer(md metadata.MD) error {
	t.outcome = t.outcome || len(md.Get(rpc.TrailerOutcome)) > 0
	return t.ServerTransportStream.SetTrailer(md)
}

// refusal reports whether a code means that the sink was not convinced, as against a call that failed.
func refusal(code callv1.Code) bool {
	switch code {
	case callv1.Code_CODE_DENIED, callv1.Code_CODE_EXPIRED, callv1.Code_CODE_ALREADY_SPENT, callv1.Code_CODE_CONFLICT,
		callv1.Code_CODE_HALTED, callv1.Code_CODE_AUDIT_UNAVAILABLE, callv1.Code_CODE_UNAVAILABLE:
		return true
	default:
		return false
	}
}

// permission is what a call carries.
func permission(ctx context.Context) string {
	switch {
	case len(metadata.ValueFromIncomingContext(ctx, rpc.MetadataGrant)) > 0:
		return "grant"
	case len(metadata.ValueFromIncomingContext(ctx, rpc.MetadataPermit)) > 0:
		return "permit"
	default:
		return "none"
	}
}
