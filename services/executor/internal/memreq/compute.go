package memreq

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/vram"
)

// compute puts together what is known of a service.
func (b *Tracker) compute(c *catalog.Catalog, models *gpu.Models, s *catalog.Service) *sizes {
	z := &sizes{}
	if len(s.GPUs) == 0 {
		none := Need{Source: vram.Declared}
		z.awake, z.loading, z.asleep, z.estimateErr = none, none, none, errNoGPU
		return z
	}
	b.mu.RLock()
	z.card = b.card(s)
	seen := b.seen(s, models)
	z.grows = b.lookable(s)
	exact := b.exact(s)
	b.mu.RUnlock()

	z.gpus = totals(c, models, s)
	z.fill(s)
	known := Need{Source: vram.Unknown, PerGPU: map[uint32]uint32{}}
	switch {
	case s.VRAMMiB > 0:
		known = Need{Source: vram.Declared, PerGPU: even(s.VRAMMiB, s.Visible())}
	case z.estimateErr == nil && exact != nil:
		known = Need{Source: vram.Estimated, PerGPU: byIndex(s, z.whole(exact))}
	case z.estimateErr == nil:
		known = Need{Source: vram.Estimated, PerGPU: byIndex(s, z.estimate.PerGPU)}
	}
	first := allocatesFirst(s, z.run)
	z.awake = settle(s, known, seen[store.PeakAwake], !first)
	z.awake.Context, z.awake.KVTokens = z.estimate.Context, z.estimate.KVTokens
	z.awake.Context = cmp.Or(z.awake.Context, z.run.Context)
	if z.estimateErr == nil && noStart(&z.estimate, z.gpus) {
		z.refuted = seen[store.PeakAwake].Readings >= counts
		z.awake.NoStart = !z.refuted && known.Source == vram.Estimated
	}
	z.loading = z.awake
	if p := seen[store.PeakLoading]; over(s, p.MiB, z.awake.PerGPU) {
		z.loading.PerGPU, z.loading.Source = larger(z.awake.PerGPU, byIndex(s, p.MiB)), vram.Measured
	}
	z.asleep = sleeping(c, s, z, seen[store.PeakAsleep], first)
	if s.Sleep == catalog.SleepVLLM1 {
		awake, asleep := z.awake.MiB(), z.asleep.MiB()
		z.hostAsleep = inHost(awake-min(awake, asleep), z.estimate.HostMiB)
	}
	z.hostLoading = z.estimate.LoadHostMiB
	return z
}

// fill estimates, if there is anything to estimate from.
func (z *sizes) fill(s *catalog.Service) {
	run, err := vram.RunOf(s)
	z.run = run
	switch {
	case z.card == nil:
		z.estimateErr = vram.ErrNoCard
	case err != nil:
		z.estimateErr = err
	default:
		z.estimate, z.estimateErr = vram.Of(*z.card, run, z.gpus)
	}
	if z.estimateErr != nil {
		z.estimate = vram.Estimate{}
	}
}

// whole is what llama.cpp says of a model, with what the driver takes for each GPU, and no more than what is there once it was made to
// fit.
func (z *sizes) whole(exact []uint32) []uint32 {
	out := make([]uint32, len(exact))
	for i, mib := range exact {
		most := uint32(mostMiB)
		if total := z.gpus[i].TotalMiB; z.run.Fit && total > 0 {
			most = total - min(z.run.FitTargetMiB, total)
		}
		out[i] = min(min(mib, mostMiB)+catalog.Share(z.estimate.OverheadMiB, len(exact)), most)
	}
	return out
}

// sleeping is what the service keeps in its sleep.
func sleeping(c *catalog.Catalog, s *catalog.Service, z *sizes, peak store.Peak, first bool) Need {
	if s.Sleep == "" || s.Sleep == catalog.SleepNone {
		return Need{Source: vram.Declared}
	}
	known := Need{Source: vram.Unknown, PerGPU: map[uint32]uint32{}}
	switch {
	case s.SleepMiB > 0:
		known = Need{Source: vram.Declared, PerGPU: even(s.SleepMiB, s.Visible())}
	case z.estimateErr == nil:
		known = Need{Source: vram.Estimated, PerGPU: even(z.estimate.AsleepMiB, s.Visible())}
	case !simulated(c, s): // one that is simulated keeps what is declared, and nothing else
		known = Need{Source: vram.Estimated, PerGPU: map[uint32]uint32{}}
		for _, index := range s.GPUs {
			known.PerGPU[index] = vram.Residue(s.Sleep)
		}
	}
	out := settle(s, known, peak, s.SleepMiB > 0 && !first)
	out.Context = z.awake.Context
	return out
}

// inHost is how much of the host's memory vLLM's level 1 may take that gives up so many MiB of its GPUs, weights of which are the
// model's by the estimate, 0 if there is none. What is loaded can be more than what lies in the files (--dtype float32, 8 bits unpacked
// to 16, adapters, a draft model), and a card can be wrong: a host that runs out of memory ends programs of its own choice. So the
// weights count twice, and never less than a quarter of all that it gives up.
func inHost(gives, weights uint32) uint32 {
	if weights == 0 {
		return gives
	}
	return min(gives, max(2*min(weights, mostMiB), gives/4))
}

// noStart reports whether an estimate says of GPUs that would be large enough that the engine does not start on them. Where they are
// too small, what is free says so.
func noStart(e *vram.Estimate, gpus []vram.GPU) bool {
	for i, g := range gpus {
		if g.TotalMiB > 0 && at(e.PerGPU, i) > g.TotalMiB {
			return false
		}
	}
	return !e.Starts
}

// simulated reports whether the service is on a simulated GPU, where there is nothing to measure.
func simulated(c *catalog.Catalog, s *catalog.Service) bool {
	return slices.ContainsFunc(c.GPUs, func(g catalog.GPU) bool { return g.Simulated && slices.Contains(s.GPUs, g.Index) })
}

// settle decides between what is known and what was measured, if anything was. floor: what is known is the least that it needs.
func settle(s *catalog.Service, known Need, peak store.Peak, floor bool) Need {
	if len(peak.MiB) == 0 {
		return known
	}
	measured := Need{Source: vram.Measured, PerGPU: byIndex(s, peak.MiB)}
	loaded := peak.State != store.PeakAwake || uint64(measured.MiB())*lazy >= uint64(known.MiB())
	switch {
	case known.Source == vram.Unknown, peak.Readings >= counts && loaded && !floor:
		return measured
	case !over(s, peak.MiB, known.PerGPU):
		return known
	}
	// It was seen to hold more than what is known, on one of its GPUs at least.
	return Need{Source: vram.Measured, PerGPU: larger(known.PerGPU, measured.PerGPU)}
}

// over reports whether a peak, in the order of the service's GPUs, is more than sizes on one of them.
func over(s *catalog.Service, peak []uint32, sizes map[uint32]uint32) bool {
	for i, index := range s.GPUs {
		if at(peak, i) > sizes[index] {
			return true
		}
	}
	return false
}

// allocatesFirst reports whether the service's engine is one that is not ready before it holds all that it will ever hold: what is
// measured of it then is the truth. A llama-server that fits itself in is none. It took what was free, and elsewhere takes more.
func allocatesFirst(s *catalog.Service, run vram.Run) bool {
	switch run.Engine {
	case enginecmd.VLLM, enginecmd.SGLang:
		return true
	case enginecmd.LlamaCPP:
		squeezed := run.Fit && (run.Context == 0 || run.GPULayers == nil)
		return !squeezed && s.Sleep != catalog.SleepLlamaRouter && !routes(s)
	}
	return false
}

// routes reports whether the service's command line is that of a llama-server that loads models on request.
func routes(s *catalog.Service) bool {
	c, known := enginecmd.Read(s.Argv, s.Environment)
	if s.Container != nil {
		c, known = enginecmd.InContainer(s.Container.Image, s.Container.Entrypoint, s.Container.Command, s.Environment)
	}
	return known && c.Router
}

// totals are what the service's GPUs have; 0 where that is not known yet.
func totals(c *catalog.Catalog, models *gpu.Models, s *catalog.Service) []vram.GPU {
	out := make([]vram.GPU, len(s.GPUs))
	for i, index := range s.GPUs {
		one, _ := models.Find(index)
		out[i].TotalMiB = one.Total
		for _, g := range c.GPUs {
			if g.Index == index && g.Simulated {
				out[i].TotalMiB = g.MemoryMiB
			}
		}
	}
	return out
}

// hardware is what the service's GPUs are, in its order: "NVIDIA H200 140 GiB"; "" where one of them is simulated or not known. The
// size belongs to it, because cards of one name are sold with several.
func hardware(models *gpu.Models, s *catalog.Service) string {
	out := make([]string, 0, len(s.GPUs))
	for _, index := range s.GPUs {
		one, ok := models.Find(index)
		if !ok || one.Simulated || one.Name == "" {
			return ""
		}
		out = append(out, fmt.Sprintf("%s %d GiB", one.Name, (one.Total+512)/1024))
	}
	return strings.Join(out, ", ")
}

func even(mib uint32, gpus []uint32) map[uint32]uint32 {
	out := make(map[uint32]uint32, len(gpus))
	for _, index := range gpus {
		out[index] = min(catalog.Share(mib, len(gpus)), mostMiB)
	}
	return out
}

func byIndex(s *catalog.Service, inOrder []uint32) map[uint32]uint32 {
	out := make(map[uint32]uint32, len(s.GPUs))
	for i, index := range s.GPUs {
		out[index] = min(at(inOrder, i), mostMiB)
	}
	return out
}

func larger(a, b map[uint32]uint32) map[uint32]uint32 {
	out := make(map[uint32]uint32, len(a))
	maps.Copy(out, a)
	for index, mib := range b {
		out[index] = max(out[index], mib)
	}
	return out
}

func at(list []uint32, i int) uint32 {
	if i >= len(list) {
		return 0
	}
	return list[i]
}
