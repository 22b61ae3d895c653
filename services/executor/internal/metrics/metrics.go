// Package metrics is what the executor shows of its work on its loopback listener. Its labels are tools, codes, states and
// the numbers of GPUs: no service, principal or session is in any of them.
package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalogue"
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
}

// New registers the metrics.
func New(registry prometheus.Registerer, services *service.Manager) *Metrics {
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
	}
	for _, t := range contract.Tools() {
		m.tools[t.FullMethod] = t.Name
	}
	// Counters that alerts look at are there from the start, or the first refusal would not show as an increase.
	for _, code := range []callv1.Code{callv1.Code_CODE_DENIED, callv1.Code_CODE_EXPIRED, callv1.Code_CODE_ALREADY_SPENT, callv1.Code_CODE_CONFLICT} {
		m.refused.WithLabelValues("grant", fault.CodeName(code))
	}
	registry.MustRegister(m.calls, m.refused, m.inFlight, &host{services})
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

var (
	states = prometheus.NewDesc("durward_executor_services", "Services of the catalogue, by state.", []string{"state"}, nil)
	used   = prometheus.NewDesc("durward_executor_gpu_memory_used_bytes", "GPU memory that running services declare, by the GPU's number; of a simulated GPU where simulated is true.", []string{"gpu", "simulated"}, nil)
	total  = prometheus.NewDesc("durward_executor_gpu_memory_bytes", "GPU memory in all, by the GPU's number.", []string{"gpu", "simulated"}, nil)
)

// host looks at services and GPUs at each scrape.
type host struct{ services *service.Manager }

// Describe implements prometheus.Collector.
func (h *host) Describe(out chan<- *prometheus.Desc) {
	out <- states
	out <- used
	out <- total
}

// Collect implements prometheus.Collector.
func (h *host) Collect(out chan<- prometheus.Metric) {
	counts := map[executorv1.ServiceState]int{}
	for n := range executorv1.ServiceState_name {
		if state := executorv1.ServiceState(n); state != executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED {
			counts[state] = 0
		}
	}
	known := h.services.Catalogue()
	var running []*catalogue.Service
	for _, s := range known.Services {
		view := h.services.Look(s)
		counts[view.State]++
		if view.Running() {
			running = append(running, s)
		}
	}
	for state, n := range counts {
		out <- prometheus.MustNewConstMetric(states, prometheus.GaugeValue, float64(n), service.StateName(state))
	}
	const mib = 1 << 20
	for _, g := range gpu.Status(known, running) {
		labels := []string{strconv.FormatUint(uint64(g.GetIndex()), 10), strconv.FormatBool(g.GetSimulated())}
		out <- prometheus.MustNewConstMetric(used, prometheus.GaugeValue, float64(g.GetMemoryUsedMib())*mib, labels...)
		out <- prometheus.MustNewConstMetric(total, prometheus.GaugeValue, float64(g.GetMemoryTotalMib())*mib, labels...)
	}
}
