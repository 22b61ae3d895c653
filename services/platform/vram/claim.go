package vram

import (
	"cmp"
	"math"
	"slices"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

const (
	// graphsMiB is what vLLM's CUDA graphs and what PyTorch does not count take of the claim on each GPU: logs of 0.11 to 0.27 say
	// 0.2 to 0.7 GiB of graphs and 0.1 to 0.3 GiB besides for models up to 70B. Since 0.21 graphs are part of the claim.
	graphsMiB = 768
	// residueMiB stays on each GPU while vLLM sleeps (vLLM issue 32714: 1.14 GB on each of four; NeMo-RL issue 223: 0.8 on one).
	residueMiB = 1168
	// workerHostMiB is a worker's process with PyTorch and CUDA's libraries: the house's own.
	workerHostMiB = 2048
	// block is how many tokens vLLM allots at a time (--block-size).
	block = 16
)

// activation is the peak of a forward pass of so many tokens, of which sequences are sampled: the states that an MLP holds at once in
// 16 bits, and logits with their probabilities in 32. It gives 1.2 GiB for Llama-3-8B with 8,192 tokens and 256 sequences, of
// which vLLM's own profile says 1.26 (vLLM PR 10511); heads and MLP are divided among tensor parallel GPUs, the hidden state is not.
func activation(card model.Card, tokens, sequences, share uint64) uint64 {
	hidden := uint64(cmp.Or(card.Hidden, 8192))
	wide := uint64(cmp.Or(card.FeedForward, uint32(min(4*hidden, math.MaxUint32))))
	states := mul(tokens, mul(add(mul(hidden, 4), mul(ceilDiv(wide, share), 3)), 2))
	logits := mul(min(tokens, sequences), mul(uint64(card.Vocabulary), 8))
	return ratio(add(states, logits), 11, 10)
}

// ofClaim is of engines that take a share of each GPU and fill with KV cache what the model leaves of it.
func ofClaim(card model.Card, run Run, gpus []GPU) (Estimate, error) {
	if slices.ContainsFunc(gpus, func(g GPU) bool { return g.TotalMiB == 0 }) && run.KVCacheBytes == 0 {
		return Estimate{}, ErrNoTotal
	}
	all, hosts := uint64(len(gpus)), uint64(max(run.Hosts, 1))
	n, tensor := mul(all, hosts), uint64(run.TensorParallel)
	tensor = cmp.Or(tensor, n)
	enough := tensor <= n
	tensor = min(tensor, n)
	// GPUs beyond tensor parallelism hold layers one after the other (pipeline parallelism), where nothing else is said.
	stages, copies := ceilDiv(n, tensor), uint64(1)
	// Context parallelism divides each sequence's cache. What it adds in GPUs holds the weights once more, but for the experts
	// (docs/serving/context_parallel_deployment.md of vllm-project/vllm).
	rings := uint64(max(run.PrefillParallel, 1))
	parts := mul(rings, uint64(max(run.DecodeParallel, 1)))
	if run.PipelineParallel > 0 || run.DataParallel > 0 {
		stages, copies = uint64(max(run.PipelineParallel, 1)), uint64(max(run.DataParallel, 1))
		rings = mul(rings, copies)
		used := mul(mul(tensor, stages), rings)
		enough = enough && used <= n
		n = min(used, n) // those that come after are not touched
		gpus = gpus[:ceilDiv(n, hosts)]
	}
	context := run.context(card)
	k, v := run.types()
	batch := uint64(run.Batch)

	// need is one sequence of the longest length on each GPU: the engine does not start without that.
	sequence := func(context uint32) (need uint64) {
		for _, l := range card.Layers {
			tokens := pad(ceilDiv(uint64(context), parts), block)
			if l.Kind == model.Sliding && !run.FullWindow {
				// vLLM, SlidingWindowSpec.max_memory_usage_bytes: the window and a batch, and a block more.
				tokens = min(pad(uint64(context), block), add(pad(add(uint64(l.Window), batch), block), block))
			}
			need = add(need, mul(uint64(l.Count), layerBytes(l, k, v, tensor, tokens, 1)))
		}
		return ceilDiv(need, stages)
	}
	need := sequence(context)

	weights := ceilDiv(bytesOf(card.WeightsMiB), min(mul(tensor, stages), n))
	if rings > 1 && run.Engine == enginecmd.VLLM {
		// Experts are divided among all copies, by tensor or by expert (docs/serving/data_parallel_deployment.md of vllm-project/vllm).
		experts := bytesOf(card.ExpertsMiB)
		weights = add(ceilDiv(bytesOf(card.WeightsMiB)-experts, min(mul(tensor, stages), n)), ceilDiv(experts, n))
	}
	// What is left with the host lies there pinned, awake and asleep (UVAOffloader in vllm/model_executor/offloader).
	offloaded := min(bytesOf(run.OffloadMiB), weights)
	weights -= offloaded
	compute := activation(card, batch, uint64(run.Parallel), tensor)
	fixed := add(add(weights, compute), bytesOf(graphsMiB))
	n = uint64(len(gpus)) // from here on it is of this host

	e := Estimate{PerGPU: make([]uint32, all), Context: context, Starts: enough}
	pool := uint64(math.MaxUint64)
	var claims, kv uint64
	for i, g := range gpus {
		total := bytesOf(g.TotalMiB)
		claim := share(total, run.Utilisation)
		if run.KVCacheBytes > 0 { // in place of the share (vLLM alone has that option)
			claim = add(fixed, run.KVCacheBytes)
		}
		taken := add(claim, bytesOf(contextMiB))
		if run.Engine == enginecmd.SGLang {
			// --mem-fraction-static is of everything that stays, the driver's context too; a pass and graphs lie outside of it
			// (model_runner.py, profile_max_num_token).
			taken = add(claim, sub(fixed, weights))
			if total > 0 {
				taken = min(taken, total)
			}
		}
		here := sub(claim, fixed)
		if run.Engine == enginecmd.SGLang {
			here = sub(claim, add(weights, bytesOf(contextMiB)))
		}
		pool = min(pool, here)
		claims, kv = add(claims, claim), add(kv, here)
		e.PerGPU[i] = mib(taken)
		if total > 0 && taken > total || here == 0 {
			e.Starts = false
		}
	}
	if pool < need && run.Fit && run.Context == 0 && run.Engine == enginecmd.VLLM {
		// --max-model-len auto: the longest that there is room for (estimate_max_model_len in vllm/v1/core/kv_cache_utils.py).
		if n := largest(0, uint64(context), func(n uint64) bool { return sequence(uint32(n)) <= pool }); n > 0 {
			context = uint32(n)
			e.Context, need = context, sequence(context)
		}
	}
	if pool < need {
		e.Starts = false
	}
	if need > 0 {
		// As many tokens as sequences of the longest length have, in whole blocks.
		tokens, _ := divided(pool, pad(uint64(context), block), need)
		e.KVTokens = mul(tokens/block*block, ceilDiv(copies, hosts))
	}
	e.WeightsMiB, e.KVMiB, e.ClaimMiB = mib(mul(weights, n)), mib(kv), mib(claims)
	e.ComputeMiB, e.OverheadMiB = mib(mul(compute, n)), mib(mul(bytesOf(graphsMiB+contextMiB), n))
	e.LoadHostMiB = mib(add(mul(add(bytesOf(workerHostMiB), offloaded), n), mul(bytesOf(run.HostKVMiB), ceilDiv(copies, hosts))))
	switch run.Sleep {
	case catalog.SleepVLLM1:
		e.AsleepMiB, e.HostMiB = residueMiB*uint32(n), mib(mul(add(weights, offloaded), n))
	case catalog.SleepVLLM2:
		e.AsleepMiB, e.HostMiB = residueMiB*uint32(n), mib(mul(offloaded, n))
	}
	return e, nil
}

// share is a part of so many bytes. vLLM computes it in the same way (MemorySnapshot: total_memory * gpu_memory_utilization), of a
// total that CUDA reports one or two per cent lower than the driver does.
func share(bytes uint64, part float64) uint64 {
	product := math.Ceil(float64(bytes) * part)
	if !(product < math.MaxInt64) {
		return bytes
	}
	return uint64(product)
}

// elements is a data type of the KV cache: so many bytes for so many elements.
type elements struct{ size, of uint64 }

func (e elements) bytes(n uint64) uint64 { return ratio(n, e.size, e.of) }

var two = elements{2, 1}

// cacheTypes are the data types by the engines' names. Those of llama.cpp are blocks of 32 elements with their scales
// (ggml/src/ggml-common.h: block_q8_0 is 34 bytes, block_q5_1 24, block_q5_0 22, block_q4_1 20, block_q4_0 and block_iq4_nl 18);
// fp4 is a block of 16 elements in 8 bytes and one of scale (vLLM's nvfp4, SGLang's fp4_e2m1).
var cacheTypes = map[string]elements{
	"f32": {4, 1}, "float32": {4, 1}, "float": {4, 1},
	"f16": two, "bf16": two, "float16": two, "bfloat16": two, "half": two, "auto": two,
	"fp8": {1, 1}, "fp8_e4m3": {1, 1}, "fp8_e5m2": {1, 1}, "fp8_inc": {1, 1}, "int8": {1, 1},
	"q8_0": {34, 32}, "q5_1": {24, 32}, "q5_0": {22, 32}, "q4_1": {20, 32}, "q4_0": {18, 32}, "iq4_nl": {18, 32},
	"nvfp4": {9, 16}, "fp4_e2m1": {9, 16},
}

func cacheType(name string) elements {
	if e, known := cacheTypes[name]; known {
		return e
	}
	return two
}

// types are those of keys and values. Without flash attention llama.cpp keeps no quantised values ("V cache quantization requires
// flash_attn", src/llama-context.cpp).
func (r Run) types() (k, v elements) {
	k, v = cacheType(r.CacheK), cacheType(r.CacheV)
	if !r.FlashAttention && r.blocks() && v.size < 2*v.of {
		v = two
	}
	return k, v
}

// blocks reports whether the engine is one of ggml.
func (r Run) blocks() bool { return r.Engine == enginecmd.LlamaCPP || r.Engine == enginecmd.Ollama }

// quantised reports whether the cache has to be unpacked for computation.
func (e elements) quantised() bool { return e.size < 2*e.of }
