// Package vram estimates how much memory of GPUs and of the host a model takes in an engine: weights, KV cache by the kind of each
// layer, buffers of computation, and what engines and drivers take for themselves. Every constant in it carries its source.
//
// It computes from a card, which a human wrote or the inspector read from files that nobody trusts: no input makes it panic,
// overflow or take long. Where a number cannot be known, the larger one is taken: an estimate that is too high costs a question,
// one that is too low costs a service that runs out of memory.
package vram

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

// Sources of a number, the best first.
const (
	Measured  = "measured"
	Declared  = "declared"
	Estimated = "estimated"
	Unknown   = "unknown"
)

// Run is how an engine runs a model, defaults filled in. RunOf makes one of a service's entry, Defaults one of an engine's name.
type Run struct {
	Engine string
	// Context is in tokens: for llama.cpp what all slots share, for Ollama what each has, for vLLM and SGLang the longest sequence.
	// 0: the engine's own choice, which is the model's longest but for Ollama, and what still fits with Fit.
	Context, Parallel, TensorParallel uint32
	// PipelineParallel and DataParallel are vLLM's and SGLang's. 0, and TensorParallel 0: as many as fill the GPUs.
	PipelineParallel, DataParallel uint32
	// PrefillParallel and DecodeParallel are vLLM's context parallelism, as enginecmd.Command has it; 0: none.
	PrefillParallel, DecodeParallel uint32
	// Hosts is over how many hosts, with GPUs as those here, all that is spread; 0: this one.
	Hosts uint32
	// CacheK and CacheV are data types of the KV cache, as the engine calls them; "": two bytes an element. One that is not known
	// counts two bytes: whatever engines add is smaller.
	CacheK, CacheV string
	// Utilisation is vLLM's and SGLang's claim, a share of each GPU; KVCacheBytes, of each GPU, replaces vLLM's where it is given.
	Utilisation  float64
	KVCacheBytes uint64
	// OffloadMiB is how much of its part of the weights each of vLLM's and SGLang's GPUs leaves with the host.
	OffloadMiB uint32
	// HostKVMiB is how much KV cache each of vLLM's copies keeps in the host's memory besides.
	HostKVMiB         uint32
	Batch, MicroBatch uint32
	// GPULayers is how many of llama.cpp's layers are on GPUs, the output counting as one; nil: all, or what fits with Fit.
	GPULayers *uint32
	// CPUExperts are the layers whose experts llama.cpp keeps with the host. Moved: it lays tensors on GPUs by their names, which of
	// several GPUs nothing is known about. HostCache: the KV cache stays with the host.
	// Overridden: it was told where any tensors lie.
	CPUExperts                   enginecmd.LayerSet
	Overridden, Moved, HostCache bool
	FlashAttention               bool
	// FullWindow: sliding layers keep every token (llama.cpp's --swa-full). Unified: slots share one cache (--kv-unified).
	FullWindow, Unified bool
	// Fit: llama.cpp leaves FitTargetMiB of each GPU free, by a shorter context where none was asked for, then by fewer layers; vLLM
	// shortens the context alone.
	Fit          bool
	FitTargetMiB uint32
	// FitContext is the shortest context that llama.cpp chooses with Fit; 0: 4,096.
	FitContext uint32
	// SplitMode, TensorSplit, Devices and MainGPU are llama.cpp's, as it takes them; "" and 0: its defaults.
	SplitMode, TensorSplit, Devices string
	MainGPU                         uint32
	// Visible are the places, among the service's GPUs, of those that CUDA_VISIBLE_DEVICES leaves the engine, "2,0"; "": all, in order.
	Visible string
	// Drafts, Projectors and Adapters are how many files llama.cpp loads beside the model. What is in them is not known.
	Drafts, Projectors, Adapters int
	// Sleep is how the service sleeps, as the catalog has it.
	Sleep string
}

// GPU is what an estimate has to know of one: MiB in all. 0: not known, so nothing is made to fit it.
type GPU struct{ TotalMiB uint32 }

// Estimate is what a service takes. Sizes are MiB, on all its GPUs together but where it says otherwise.
type Estimate struct {
	// PerGPU is what each GPU gives up while the service runs, in the order of the GPUs.
	PerGPU []uint32
	// Its parts. Where the engine takes a share of the GPU whatever the model needs (vLLM, SGLang), ClaimMiB is that share, in which
	// weights, KV cache and computation lie, and only the driver's context comes on top; else it is 0.
	WeightsMiB, KVMiB, ComputeMiB, OverheadMiB, ClaimMiB uint32
	// AsleepMiB stays on all GPUs while it sleeps, HostMiB is what the host's memory gives up meanwhile, LoadHostMiB while it loads
	// and runs. Page cache is not counted: the kernel calls it available.
	AsleepMiB, HostMiB, LoadHostMiB uint32
	// Context is the context length in tokens that this stands for; KVTokens how many tokens the KV cache has room for.
	Context  uint32
	KVTokens uint64
	// Starts: by this estimate the engine gets what it needs at its start; a claim can be too small for the model.
	Starts bool
}

// ErrNoCard means that there is nothing to estimate from.
var ErrNoCard = errors.New("the model has no card, so nothing can be estimated")

// ErrNoEngine means that no formula is known for what runs the model.
var ErrNoEngine = errors.New("the service's engine is not known; extra_config.engine says which it is")

// ErrConfigFile means that the engine reads options from a file, which may say anything of GPUs and memory.
var ErrConfigFile = errors.New("the engine reads options from a file (--config), which is not read: give them as arguments, or declare vram_mib")

// ErrNoTotal means that an engine takes a share of a GPU whose memory is not known.
var ErrNoTotal = errors.New("the engine takes a share of each GPU, and how much memory one of them has is not known")

// maxGPUs is the most that a catalog has.
const maxGPUs = 64

// Of estimates what the model takes. gpus are the service's, in its order.
func Of(card model.Card, run Run, gpus []GPU) (Estimate, error) {
	if card.WeightsMiB == 0 && len(card.Layers) == 0 {
		return Estimate{}, ErrNoCard
	}
	if err := card.Check(); err != nil {
		return Estimate{}, fmt.Errorf("the model's card: %w", err)
	}
	switch {
	case len(gpus) == 0:
		return Estimate{}, errors.New("a service without GPUs takes no memory of any")
	case len(gpus) > maxGPUs:
		return Estimate{}, fmt.Errorf("more than %d GPUs", maxGPUs)
	}
	if run.Visible != "" {
		return ofVisible(card, run, gpus)
	}
	run = run.filled(gpus)
	if run.Engine != enginecmd.VLLM {
		run.KVCacheBytes = 0
	}
	switch run.Engine {
	case enginecmd.LlamaCPP, enginecmd.Ollama:
		return ofLlama(card, run, gpus)
	case enginecmd.VLLM, enginecmd.SGLang:
		return ofClaim(card, run, gpus)
	}
	return Estimate{}, ErrNoEngine
}

// layerBytes is what one layer keeps for so many tokens and sequences on each of share GPUs that its heads are divided among. A
// head is never divided, and what is compressed for all heads at once is kept by each GPU (vLLM, MLA with tensor parallelism).
func layerBytes(l model.Layers, k, v elements, share, tokens, sequences uint64) uint64 {
	state := mul(ceilDiv(l.StateBytes, share), sequences)
	switch {
	case l.Shared || l.Kind == model.Recurrent:
		return state
	case l.Kind == model.Latent:
		return add(state, mul(add(k.bytes(uint64(l.KeyDim)), v.bytes(uint64(l.ValueDim))), tokens))
	}
	heads := ceilDiv(uint64(l.KVHeads), share)
	return add(state, mul(add(k.bytes(heads*uint64(l.KeyDim)), v.bytes(heads*uint64(l.ValueDim))), tokens))
}

// context is the context length to compute with.
func (r Run) context(card model.Card) uint32 {
	switch {
	case r.Context > 0:
		return r.Context
	case card.Context > 0:
		return card.Context
	}
	// Neither says one. llama.cpp's --fit never goes below this either (common/common.h, fit_params_min_ctx).
	return fitContext
}

// scratch is a few rows of the hidden state in 32 bits for each token of a batch: the least that a graph of computation needs. Where
// the card says no width, 8192 stands for it.
func scratch(card model.Card, tokens uint64) uint64 {
	return mul(mul(tokens, uint64(cmp.Or(card.Hidden, 8192))), 4*4)
}

// Residue is what stays on each GPU of a service that sleeps in that way, in MiB, whatever its model is; 0 for a way that is not known.
func Residue(sleep string) uint32 {
	switch sleep {
	case catalog.SleepVLLM1, catalog.SleepVLLM2:
		return residueMiB
	case catalog.SleepLlamaRouter:
		return contextMiB
	}
	return 0
}

// Arithmetic that stays at its end instead of overflowing: a size beyond all memory is as good as infinite.

const mebi = 1 << 20

func add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

func sub(a, b uint64) uint64 { return a - min(a, b) }

func mul(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return math.MaxUint64
	}
	return low
}

// ratio is a·b/c, rounded up. c is not 0.
func ratio(a, b, c uint64) uint64 {
	whole, rest := divided(a, b, c)
	if rest > 0 {
		return add(whole, 1)
	}
	return whole
}

// divided is a·b/c and what is left. c is not 0.
func divided(a, b, c uint64) (whole, rest uint64) {
	high, low := bits.Mul64(a, b)
	if high >= c {
		return math.MaxUint64, 0
	}
	return bits.Div64(high, low, c)
}

func ceilDiv(a, b uint64) uint64 {
	if a%b > 0 {
		return a/b + 1
	}
	return a / b
}

// pad rounds up to a multiple of n.
func pad(v, n uint64) uint64 { return mul(ceilDiv(v, n), n) }

// mib is bytes in MiB, rounded up.
func mib(bytes uint64) uint32 { return uint32(min(ceilDiv(bytes, mebi), math.MaxUint32)) }

func bytesOf(mib uint32) uint64 { return uint64(mib) * mebi }
