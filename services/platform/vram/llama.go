package vram

import (
	"cmp"
	"math"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

const (
	// contextMiB is what the CUDA driver takes on a GPU for a process: Ollama's minimum for each GPU (discover/gpu.go,
	// cudaMinimumMemory).
	contextMiB = 457
	// llamaMarginMiB is for workspaces of cuBLAS, kernels and fragmentation, which no log of llama.cpp lists: the house's own. On an H100 the
	// first tokens took 182 to 236 MiB beyond its buffers, and the context 62 more than contextMiB (golden_test.go, whole).
	llamaMarginMiB = 256
	// llamaHostMiB is the process itself with its pinned staging buffers (four of 64 MiB, src/llama-model-loader.cpp): the house's own.
	llamaHostMiB = 512

	// fitTargetMiB and fitContext: what --fit leaves free, and the context below which it does not go (common/common.h,
	// fit_params_target and fit_params_min_ctx).
	fitTargetMiB = 1024
	fitContext   = 4096

	// cellsFlash and cellsPlain are what the cache's length is padded to, with flash attention and without (get_padding in
	// src/llama-kv-cache.cpp; newer builds pad to 256 always).
	cellsFlash = 256
	cellsPlain = 32
	// slidingCells is what the cache of sliding layers is padded to always (src/llama-kv-cache-iswa.cpp, issue 17037).
	slidingCells = 256
	// maskCopies are made of a batch's inputs when layers are on several GPUs (GGML_SCHED_MAX_COPIES).
	maskCopies = 4
)

// layout is where a model's layers lie: bounds[g] is the first layer of GPU g, bounds[len] the end; the layers before bounds[0] are
// the host's. The output comes after the last of them, as layer number layers.
type layout struct {
	bounds []uint64
	layers uint64
}

// lay spreads the last n of layers and the output over GPUs by their shares, as llama.cpp does
// (load_tensors in src/llama-model.cpp: the output counts as a layer, the last, and the host has the first ones. Builds before 2026
// left the output to the host until every layer was on a GPU, which is a layer more in its place).
func lay(layers, n uint64, shares []uint64) layout {
	units := layers + 1
	n = min(n, units)
	start := units - n
	var sum uint64
	for _, s := range shares {
		sum += s
	}
	l := layout{layers: layers, bounds: make([]uint64, len(shares)+1)}
	var before uint64
	for i, s := range shares {
		l.bounds[i] = start + ratio(n, before, sum)
		before += s
	}
	l.bounds[len(shares)] = start + n
	return l
}

// on is how many of the layers from first on, count of them, are GPU g's.
func (l layout) on(g int, first, count uint64) uint64 {
	return sub(min(first+count, l.bounds[g+1]), max(first, l.bounds[g]))
}

// parts are a GPU's, in bytes.
type parts struct{ weights, kv, compute, overhead uint64 }

func (p parts) sum() uint64 { return add(add(p.weights, p.kv), add(p.compute, p.overhead)) }

// llama is one model in llama.cpp or Ollama on those GPUs that it lies on.
type llama struct {
	card   model.Card
	run    Run
	place  placement
	layers uint64
}

// streams is how many caches there are, and cells how long each.
func (m *llama) streams(context uint32) (streams, cells uint64) {
	slots := uint64(max(m.run.Parallel, 1))
	unit := uint64(cellsPlain)
	if m.run.FlashAttention {
		unit = cellsFlash
	}
	whole := uint64(context)
	if m.run.Engine == enginecmd.Ollama {
		whole = mul(whole, slots) // its context is of each slot (llm/server.go multiplies by the number of parallel requests)
	}
	whole = pad(whole, unit)
	if m.run.Unified {
		return 1, whole
	}
	return slots, pad(ceilDiv(whole, slots), unit)
}

// sliding is the length of a cache for layers that look back window tokens (src/llama-kv-cache-iswa.cpp).
func (m *llama) sliding(window, cells uint64) uint64 {
	if m.run.FullWindow {
		return cells
	}
	sequences := uint64(1)
	if m.run.Unified {
		sequences = uint64(max(m.run.Parallel, 1))
	}
	return pad(min(cells, add(mul(window, sequences), uint64(m.run.MicroBatch))), slidingCells)
}

// compute is the buffer of a graph (src/llama-context.cpp reserves the worst one). The terms are logits of a micro-batch in 32 bits,
// or without flash attention the product of queries and keys; a few rows of the hidden state; and what grows with the context: the
// mask, or the unpacked cache. Their factors are those that Unsloth Studio published against measured buffers. Newer builds reserve
// logits of the sequences alone and take less.
//
// Experts that the host keeps are copied to the GPU for batches of 32 tokens and more (ggml_backend_cuda_device_offload_op): copied is
// what those of one layer weigh, the house's own bound of what is there at once.
func (m *llama) compute(cells uint64, logits bool, copied uint64) uint64 {
	batch := uint64(m.run.MicroBatch)
	perCell := mul(batch, 3) // a mask of two bytes, and half as much again
	widest := copied
	if logits {
		widest = max(widest, mul(mul(uint64(m.card.Vocabulary), batch), 4))
	}
	if !m.run.FlashAttention {
		widest = max(widest, mul(mul(mul(uint64(cmp.Or(m.card.Heads, 64)), cells), batch), 4))
		perCell = mul(batch, 4) // a mask in 32 bits
	}
	if len(m.place.gpus) > 1 {
		perCell = mul(perCell, maskCopies)
	}
	if k, v := m.run.types(); k.quantised() || v.quantised() {
		perCell = max(perCell, ratio(mul(uint64(cmp.Or(m.card.Hidden, 8192)), 9), batch, 4*512))
	}
	return add(add(widest, scratch(m.card, batch)), mul(perCell, cells))
}

// output is the size of the output layer. Where the card does not say it, it is taken for as large as in 16 bits, and for no more than
// a third of the model.
func (m *llama) output(weights uint64) uint64 {
	switch {
	case m.layers == 0:
		return weights
	case m.card.OutputMiB > 0:
		return bytesOf(m.card.OutputMiB)
	}
	return min(mul(mul(uint64(m.card.Vocabulary), uint64(cmp.Or(m.card.Hidden, 8192))), 2), weights/3)
}

// weigh is the size of so many layers, and of the output if it is among them. Where its size is not known, layers are taken for as
// large as if it were one of them, so that neither they nor it are taken for too small.
func (m *llama) weigh(layers, output uint64) uint64 {
	weights := bytesOf(m.card.WeightsMiB - m.card.HostWeightsMiB)
	last := m.output(weights)
	if m.card.OutputMiB > 0 || m.layers == 0 {
		return add(ratio(weights-last, layers, max(m.layers, 1)), mul(output, last))
	}
	last = max(last, ratio(weights, 1, m.layers+1))
	return min(add(ratio(weights, layers, m.layers+1), mul(output, last)), weights)
}

// experts are what those of so many layers weigh, rounded down: they are taken off what the layers do.
func (m *llama) experts(layers uint64) uint64 {
	whole, _ := divided(bytesOf(m.card.ExpertsMiB), layers, max(sub(m.layers, uint64(m.card.ExpertsFrom)), 1))
	return whole
}

// at is what each GPU and the host hold with so many layers on GPUs, the host's part last.
func (m *llama) at(context uint32, onGPU uint64) []parts {
	gpus := len(m.place.gpus)
	l := lay(m.layers, onGPU, m.place.shares)
	streams, cells := m.streams(context)
	k, v := m.run.types()
	out := make([]parts, gpus+1)
	host := &out[gpus]
	var onGPUs uint64 // KV cache
	// Both layers and bounds go up, so that no GPU before from holds any of what comes.
	from, first, slots := 0, uint64(0), uint64(max(m.run.Parallel, 1))
	for _, group := range m.card.Layers {
		kept := cells
		if group.Kind == model.Sliding {
			kept = m.sliding(uint64(group.Window), cells)
		}
		each := layerBytes(group, k, v, 1, mul(kept, streams), slots)
		count := uint64(group.Count)
		for from < gpus && l.bounds[from+1] <= first {
			from++
		}
		for g := from; g < gpus && l.bounds[g] < first+uint64(group.Count); g++ {
			here := l.on(g, first, uint64(group.Count))
			if m.run.HostCache {
				here = 0
			}
			out[g].kv = add(out[g].kv, mul(here, each))
			count -= here
		}
		host.kv = add(host.kv, mul(count, each))
		onGPUs = add(onGPUs, mul(uint64(group.Count)-count, each))
		first += uint64(group.Count)
	}
	// What is on no GPU is the host's.
	below, last := m.layers, uint64(1)
	for g := range gpus {
		below, last = below-l.on(g, 0, m.layers), last-l.on(g, m.layers, 1)
	}
	host.weights = add(m.weigh(below, last), bytesOf(m.card.HostWeightsMiB))
	// The experts of these layers are the host's as well, where the layers are not.
	kept := func(from, to uint64) uint64 {
		return m.run.CPUExperts.Count(max(from, uint64(m.card.ExpertsFrom)), min(to, m.layers))
	}
	for g := range gpus {
		output := l.on(g, m.layers, 1)
		units := l.on(g, 0, m.layers) + output
		here := kept(l.bounds[g], l.bounds[g+1])
		stays := m.experts(here)
		out[g].weights = sub(m.weigh(units-output, output), stays)
		host.weights = add(host.weights, stays)
		if m.place.rows {
			out[g].weights = ratio(sub(m.weigh(m.layers-below, 1-last), m.experts(kept(l.bounds[0], l.bounds[gpus]))), m.place.shares[g], m.place.sum())
		}
		// The driver's context is on every GPU that the process sees; with all layers on the host, large batches are still computed
		// on the first.
		out[g].overhead = bytesOf(contextMiB + llamaMarginMiB)
		if units > 0 || g == 0 && onGPU == 0 || m.place.rows {
			out[g].compute = m.compute(cells, output > 0 || onGPU == 0 || m.place.rows, m.experts(min(here, 1)))
		}
	}
	if m.place.keepsAll {
		out[m.place.main].kv = onGPUs
	}
	return out
}

// over reports whether a GPU would hold more than it has less spare MiB. One whose memory is not known never does.
func (m *llama) over(all []parts, spareMiB uint32) bool {
	for g, gpu := range m.place.gpus {
		if gpu.TotalMiB > 0 && all[g].sum() > sub(bytesOf(gpu.TotalMiB), bytesOf(spareMiB)) {
			return true
		}
	}
	return false
}

func ofLlama(card model.Card, run Run, gpus []GPU) (Estimate, error) {
	place, err := run.place(gpus)
	if err != nil {
		return Estimate{}, err
	}
	m := &llama{card: card, run: run, place: place}
	for _, l := range card.Layers {
		m.layers += uint64(l.Count)
	}
	context, onGPU := run.context(card), uint64(math.MaxUint64)
	if run.GPULayers != nil {
		onGPU = uint64(*run.GPULayers)
	}
	all := m.at(context, onGPU)
	if run.Fit && m.over(all, run.FitTargetMiB) {
		// It gives up layers only where nobody said how tensors and layers lie (common_params_fit_impl in common/fit.cpp), and with what was
		// said the engine runs all the same.
		shared := len(place.gpus) > 1 && (run.TensorSplit != "" || place.rows)
		fewer := run.GPULayers == nil && !run.Overridden && !shared
		if shortest := cmp.Or(run.FitContext, fitContext); run.Context == 0 && context > shortest {
			context = uint32(largest(min(ceilDiv(uint64(shortest), cellsFlash), uint64(context)/cellsFlash), uint64(context)/cellsFlash, func(blocks uint64) bool {
				return !m.over(m.at(uint32(blocks*cellsFlash), onGPU), run.FitTargetMiB)
			}) * cellsFlash)
		}
		if fewer && m.over(m.at(context, onGPU), run.FitTargetMiB) {
			// On several GPUs a layer more can move others, so that more layers might fit as well; those that are found do fit.
			onGPU = largest(0, m.layers+1, func(n uint64) bool { return !m.over(m.at(context, n), run.FitTargetMiB) })
		}
		all = m.at(context, onGPU)
	}
	e := Estimate{PerGPU: make([]uint32, len(gpus)), Context: context}
	// llama.cpp does not start with quantised values and without flash attention; Ollama keeps them as they are.
	quantised := run.Engine == enginecmd.LlamaCPP && !run.FlashAttention && cacheType(run.CacheV).quantised()
	e.Starts = !m.over(all, 0) && !quantised
	m.beside(all)
	e.Starts = e.Starts && (run.Fit || !m.over(all, 0))
	total := parts{overhead: mul(bytesOf(contextMiB), uint64(len(gpus)-len(place.gpus)))}
	for i := range gpus {
		e.PerGPU[i] = contextMiB // the driver's, on a GPU that is seen and not used
	}
	for g, i := range place.gpus {
		e.PerGPU[i.index] = mib(all[g].sum())
		if i.TotalMiB > 0 && run.Fit && e.Starts { // what is beside the model is a guess, and what was made to fit does
			e.PerGPU[i.index] = min(e.PerGPU[i.index], i.TotalMiB)
		}
		total.weights, total.kv = add(total.weights, all[g].weights), add(total.kv, all[g].kv)
		total.compute, total.overhead = add(total.compute, all[g].compute), add(total.overhead, all[g].overhead)
	}
	e.WeightsMiB, e.KVMiB, e.ComputeMiB, e.OverheadMiB = mib(total.weights), mib(total.kv), mib(total.compute), mib(total.overhead)
	streams, cells := m.streams(context)
	e.KVTokens = mul(streams, cells)
	host := all[len(place.gpus)]
	e.LoadHostMiB = mib(add(add(host.weights, host.kv), bytesOf(llamaHostMiB)))
	if run.Sleep == catalog.SleepLlamaRouter {
		// The router ends what it started; it has asked the driver for its GPUs, which leaves a context on each.
		e.AsleepMiB = contextMiB * uint32(len(gpus))
	}
	return e, nil
}

// largest is the greatest n from low to high for which ok holds, where it holds for every smaller one as well; low if for none.
func largest(low, high uint64, ok func(uint64) bool) uint64 {
	for low < high {
		middle := low + (high-low+1)/2
		if ok(middle) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}
