// Package gpu says which GPUs the host has. In this build they are those that the catalogue simulates, always labelled as
// such, or none; no number here is measured.
package gpu

import (
	"fmt"
	"slices"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/catalogue"
)

// Where the numbers come from.
const (
	SourceSimulated = "simulated"
	SourceNone      = "none found"
)

// Source says where a catalogue's GPUs come from.
func Source(c *catalogue.Catalogue) string {
	if len(c.GPUs) == 0 {
		return SourceNone
	}
	return SourceSimulated
}

// Status returns the catalogue's GPUs with what the running services declare on each. A service on several GPUs shares its
// declared memory evenly among them, in whole MiB rounded up.
func Status(c *catalogue.Catalogue, running []*catalogue.Service) []*executorv1.Gpu {
	var out []*executorv1.Gpu
	for _, g := range c.GPUs {
		gpu := &executorv1.Gpu{
			Index:          g.Index,
			Uuid:           fmt.Sprintf("simulated-%d", g.Index),
			Name:           g.Name,
			Simulated:      true,
			MemoryTotalMib: g.MemoryMiB,
		}
		for _, s := range running {
			if slices.Contains(s.GPUs, g.Index) {
				n := uint32(len(s.GPUs))
				gpu.MemoryUsedMib += (s.VRAMMiB + n - 1) / n
				gpu.Services = append(gpu.Services, s.ID)
			}
		}
		out = append(out, gpu)
	}
	return out
}
