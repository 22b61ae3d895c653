// Package telemetrytest reads metrics in tests. It is apart from platformtest, so that modules whose programs show no metrics
// need not name the library that makes them.
package telemetrytest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Samples returns what a registry shows: each value by its name and labels, like `name{code="DENIED",tool="x"}`; of a
// histogram, how many values it has seen.
func Samples(t testing.TB, registry prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for i, label := range m.GetLabel() {
				name += map[bool]string{true: "{", false: ","}[i == 0] + label.GetName() + `="` + label.GetValue() + `"`
			}
			if len(m.GetLabel()) > 0 {
				name += "}"
			}
			out[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}
