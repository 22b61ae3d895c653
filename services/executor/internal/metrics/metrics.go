// Package metrics is what the executor shows of its work and its host on its loopback listener. Its labels are tools, codes,
// states, GPUs and the catalog's ids of services: no principal, session, argument or program is in any of them.
//
// GPUs are named as the driver names them: gpu_uuid is the UUID label of NVIDIA's DCGM exporter, so that the two can be joined.
package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/telemetry"
	"durward.internal/services/platform/telemetry/span"
)

// Metrics counts the executor's calls. It is safe for concurrent use.
type Metrics struct {
	// tools are the executor's, by full method.
	tools    map[string]string
	calls    *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	inFlight prometheus.Gauge
	switches *prometheus.CounterVec
	phases   *prometheus.HistogramVec
}

// Needs says what services need; memreq.Tracker does.
type Needs interface {
	Awake(s *catalog.Service) memreq.Need
}

// New registers the metrics. Services and GPUs are looked at when they are asked for. needs may be nil.
func New(registry prometheus.Registerer, services *service.Manager, gpus *gpu.Monitor, needs Needs) *Metrics {
	m := &Metrics{
		tools: map[string]string{},
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "durward_executor_call_duration_seconds", Help: "How long calls of tools took, by tool and status: ok, error or denied.",
			Buckets: telemetry.Latency,
		}, []string{"tool", "status"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "durward_executor_refused_total", Help: "Calls that went no further, by what they carried (grant, permit or none) and the code.",
		}, []string{"permission", "code"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "durward_executor_calls_in_flight", Help: "Calls of tools that are under way.",
		}),
		switches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "durward_switch_total", Help: "Switches of modes, by how they ended: committed, rolled_back, degraded or needs_a_human.",
		}, []string{"result"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "durward_switch_phase_seconds", Help: "How long the phases of switches took, by phase.",
			Buckets: []float64{.01, .05, .1, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
		}, []string{"phase"}),
	}
	for _, result := range []string{"committed", "rolled_back", "degraded", "needs_a_human"} {
		m.switches.WithLabelValues(result)
	}
	for _, t := range contract.Tools() {
		m.tools[t.FullMethod] = t.Name
	}
	// Counters that alerts look at are there from the start, or the first refusal would not show as an increase.
	for _, code := range []callv1.Code{callv1.Code_CODE_DENIED, callv1.Code_CODE_EXPIRED, callv1.Code_CODE_ALREADY_SPENT, callv1.Code_CODE_CONFLICT} {
		m.refused.WithLabelValues("grant", fault.CodeName(code))
	}
	registry.MustRegister(m.calls, m.refused, m.inFlight, m.switches, m.phases, &host{services, gpus, needs})
	return m
}

// Unary returns the interceptor that counts calls of tools. It stands in front of the sink's discipline.
func (m *Metrics) Unary() grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		tool, ok := m.tools[info.FullMethod]
		if !ok {
			return handler(ctx, request)
		}
		m.inFlight.Inc()
		defer m.inFlight.Dec()
		began := time.Now()
		response, err := handler(ctx, request)
		status := span.OK
		if err != nil {
			status = "error"
			if code := fault.From(err).Code; refusal(code) {
				status = "denied"
				m.refused.WithLabelValues(permission(ctx), fault.CodeName(code)).Inc()
			}
		}
		m.calls.WithLabelValues(tool, status).Observe(time.Since(began).Seconds())
		return response, err
	}
}

// Switched counts a switch of modes that ended: committed, rolled_back, degraded or needs_a_human.
func (m *Metrics) Switched(result string) { m.switches.WithLabelValues(result).Inc() }

// Phase notes how long a phase of a switch took. Phases are words of the program, never text from elsewhere.
func (m *Metrics) Phase(phase string, seconds float64) {
	m.phases.WithLabelValues(phase).Observe(seconds)
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
