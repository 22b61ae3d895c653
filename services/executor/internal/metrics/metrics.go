// Package metrics is what the executor shows of its work and its host on its loopback listener. Its labels are tools, codes,
// states, GPUs and the catalog's ids of services: no principal, session, argument or program is in any of them.
//
// GPUs are named as the driver names them: gpu_uuid is the UUID label of NVIDIA's DCGM exporter, so that the two can be joined.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/sink/calls"
)

// Metrics counts the executor's calls and switches. It is safe for concurrent use.
type Metrics struct {
	*calls.Calls

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
		Calls: calls.New(registry, "executor"),
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
	registry.MustRegister(m.switches, m.phases, &host{services, gpus, needs})
	return m
}

// Switched counts a switch of modes that ended: committed, rolled_back, degraded or needs_a_human.
func (m *Metrics) Switched(result string) { m.switches.WithLabelValues(result).Inc() }

// Phase notes how long a phase of a switch took. Phases are words of the program, never text from elsewhere.
func (m *Metrics) Phase(phase string, seconds float64) {
	m.phases.WithLabelValues(phase).Observe(seconds)
}
