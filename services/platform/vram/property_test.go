package vram

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

// aCard is a random one that passes Check.
func aCard(r *rand.Rand) model.Card {
	c := model.Card{WeightsMiB: 1 + r.Uint32N(200000), Context: 1 + r.Uint32N(1<<18), Hidden: r.Uint32N(1 << 14), FeedForward: r.Uint32N(1 << 16),
		Heads: r.Uint32N(256), Vocabulary: r.Uint32N(1 << 18)}
	c.HostWeightsMiB = r.Uint32N(c.WeightsMiB/4 + 1)
	if r.IntN(2) == 0 {
		c.OutputMiB = r.Uint32N(c.WeightsMiB/4 + 1)
	}
	for range 1 + r.IntN(6) {
		l := model.Layers{Count: 1 + r.Uint32N(40), Shared: r.IntN(8) == 0}
		switch r.IntN(5) {
		case 0:
			l.Kind, l.StateBytes = model.Recurrent, r.Uint64N(1<<24)
		case 1:
			l.Kind, l.KeyDim = model.Latent, 1+r.Uint32N(1024)
		case 2:
			l.Kind, l.KVHeads, l.KeyDim, l.ValueDim, l.Window = model.Sliding, 1+r.Uint32N(32), 32*(1+r.Uint32N(8)), 32*r.Uint32N(8), 1+r.Uint32N(8192)
		default:
			l.Kind, l.KVHeads, l.KeyDim, l.ValueDim = model.Full, 1+r.Uint32N(32), 32*(1+r.Uint32N(8)), 32*r.Uint32N(8)
		}
		c.Layers = append(c.Layers, l)
	}
	return c
}

// types from the smallest to the largest.
var types = []string{"q4_0", "q4_1", "q5_0", "q5_1", "fp8", "q8_0", "f16", "f32"}

func aRun(r *rand.Rand) Run {
	run, _ := Defaults([]string{enginecmd.LlamaCPP, enginecmd.Ollama, enginecmd.VLLM, enginecmd.SGLang}[r.IntN(4)])
	run.Context, run.Parallel = 1+r.Uint32N(1<<18), 1+r.Uint32N(16)
	run.CacheK, run.CacheV = types[r.IntN(len(types))], types[r.IntN(len(types))]
	run.MicroBatch = 1 + r.Uint32N(2048)
	run.FlashAttention, run.Unified, run.FullWindow, run.Fit = r.IntN(4) > 0, r.IntN(2) == 0, r.IntN(8) == 0, false
	return run
}

func someGPUs(r *rand.Rand, engine string) []GPU {
	sizes := []uint32{8192, 24564, 49140, 81559, 143771}
	if engine == enginecmd.LlamaCPP || engine == enginecmd.Ollama {
		sizes = append(sizes, 0)
	}
	gpus := make([]GPU, 1+r.IntN(8))
	for i := range gpus {
		gpus[i].TotalMiB = sizes[r.IntN(len(sizes))]
	}
	return gpus
}

// random runs a check on many random services, each from a seed that a failure names.
func random(t *testing.T, check func(t *testing.T, r *rand.Rand, card model.Card, run Run, gpus []GPU)) {
	t.Parallel()
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 6))
		card, run := aCard(r), aRun(r)
		check(t, r, card, run, someGPUs(r, run.Engine))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func must(t *testing.T, card model.Card, run Run, gpus []GPU) Estimate {
	t.Helper()
	e, err := Of(card, run, gpus)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// notLess checks that no part of what a model needs shrank. What a claim is does not hang on the model.
func notLess(t *testing.T, what string, less, more Estimate, engine string) {
	t.Helper()
	if engine == enginecmd.VLLM || engine == enginecmd.SGLang {
		if more.Starts && !less.Starts {
			t.Errorf("%s: with more it starts\nless %+v\nmore %+v", what, less, more)
		}
		return
	}
	if more.KVMiB < less.KVMiB || sum(more.PerGPU) < sum(less.PerGPU) || more.ComputeMiB < less.ComputeMiB || more.LoadHostMiB < less.LoadHostMiB {
		t.Errorf("%s:\nless %+v\nmore %+v", what, less, more)
	}
}

func TestMonotoneInContext(t *testing.T) {
	random(t, func(t *testing.T, r *rand.Rand, card model.Card, run Run, gpus []GPU) {
		more := run
		more.Context += r.Uint32N(1 << 16)
		notLess(t, "context", must(t, card, run, gpus), must(t, card, more, gpus), run.Engine)
	})
}

// Slots that have a cache of their own are each padded, so that three can take more than four (as llama.cpp does: its golden
// figures say so); twice as many never take less, nor do several than one.
func TestMonotoneInSlots(t *testing.T) {
	random(t, func(t *testing.T, r *rand.Rand, card model.Card, run Run, gpus []GPU) {
		if run.Engine == enginecmd.VLLM || run.Engine == enginecmd.SGLang {
			return
		}
		one, more, twice := run, run, run
		one.Parallel, twice.Parallel = 1, 2*run.Parallel
		if run.Unified || run.Engine == enginecmd.Ollama {
			more.Parallel++
		}
		for _, m := range []struct {
			what       string
			less, more Run
		}{{"several and one", one, run}, {"one more", run, more}, {"twice as many", run, twice}} {
			less, more := must(t, card, m.less, gpus), must(t, card, m.more, gpus)
			if more.KVMiB < less.KVMiB {
				t.Errorf("%s: %d MiB, and %d", m.what, less.KVMiB, more.KVMiB)
			}
		}
	})
}

func TestMonotoneInLayers(t *testing.T) {
	random(t, func(t *testing.T, r *rand.Rand, card model.Card, run Run, gpus []GPU) {
		more := card
		more.Layers = slices.Clone(card.Layers)
		more.Layers[r.IntN(len(more.Layers))].Count += 1 + r.Uint32N(4)
		if card.OutputMiB == 0 && run.GPULayers == nil && len(gpus) > 1 {
			return // what is not known is counted on each GPU
		}
		less, deeper := must(t, card, run, gpus), must(t, more, run, gpus)
		a, _ := KVBytes(card, run, uint64(run.Context))
		b, _ := KVBytes(more, run, uint64(run.Context))
		if a > b {
			t.Errorf("one sequence: %d bytes, and %d with more layers", a, b)
		}
		if len(gpus) == 1 { // on several the driver's context may go with the last layer of one
			notLess(t, "layers", less, deeper, run.Engine)
		}
	})
}

func TestMonotoneInTypes(t *testing.T) {
	random(t, func(t *testing.T, r *rand.Rand, card model.Card, run Run, gpus []GPU) {
		var last uint64
		for i, name := range types {
			run.CacheK, run.CacheV = name, name
			bytes, err := KVBytes(card, run, uint64(run.Context))
			if err != nil || bytes < last {
				t.Errorf("%s: %d bytes after %d, %v", types[i], bytes, last, err)
			}
			last = bytes
		}
	})
}

func TestPartsOfEachGPU(t *testing.T) {
	random(t, func(t *testing.T, r *rand.Rand, card model.Card, run Run, gpus []GPU) {
		e := must(t, card, run, gpus)
		n := uint64(len(gpus))
		if uint64(len(e.PerGPU)) != n {
			t.Fatalf("%d GPUs of %d", len(e.PerGPU), n)
		}
		parts := uint64(e.WeightsMiB) + uint64(e.KVMiB) + uint64(e.ComputeMiB) + uint64(e.OverheadMiB)
		switch run.Engine {
		case enginecmd.LlamaCPP, enginecmd.Ollama:
			// Each GPU and each part is rounded up by itself.
			if s := sum(e.PerGPU); s > parts+n || s+4 < parts {
				t.Errorf("parts of %d, and %d on the GPUs: %+v", parts, s, e)
			}
		case enginecmd.VLLM:
			if s := sum(e.PerGPU); s > uint64(e.ClaimMiB)+n*(contextMiB+1) || s < uint64(e.ClaimMiB) {
				t.Errorf("a claim of %d, and %d on the GPUs", e.ClaimMiB, s)
			}
		}
	})
}

// --fit leaves free what it promises wherever the memory is known, unless not even a model that is wholly with the host fits in the
// shortest context.
func TestFitKeepsItsPromise(t *testing.T) {
	kept := 0
	random(t, func(t *testing.T, r *rand.Rand, card model.Card, run Run, gpus []GPU) {
		if run.Engine != enginecmd.LlamaCPP {
			return
		}
		run.Fit = true
		if r.IntN(2) == 0 {
			run.Context = 0
		}
		least := run
		least.Fit, least.GPULayers = false, new(uint32(0))
		if run.Context == 0 {
			least.Context = min(fitContext, card.Context)
		}
		over := func(e Estimate) bool {
			for i, g := range gpus {
				if g.TotalMiB > 0 && e.PerGPU[i] > g.TotalMiB-fitTargetMiB {
					return true
				}
			}
			return false
		}
		e := must(t, card, run, gpus)
		switch hopeless := over(must(t, card, least, gpus)); {
		case over(e) && !hopeless:
			t.Errorf("of %v: %+v", gpus, e)
		case !over(e):
			kept++
		}
		if e.Context > max(run.Context, card.Context) {
			t.Errorf("%+v", e)
		}
	})
	if !t.Failed() && kept < 300 {
		t.Errorf("the promise was put to the test %d times", kept)
	}
}

func TestArithmeticEndsAtTheEnd(t *testing.T) {
	t.Parallel()
	const most = math.MaxUint64
	for name, got := range map[string]uint64{
		"sum": add(most, 1), "product": mul(1<<33, 1<<33), "ratio": ratio(most, most, 2), "padded": pad(most, 256), "rounded up": ratio(most, 3, 3),
	} {
		if got != most {
			t.Errorf("%s: %d", name, got)
		}
	}
	if sub(1, 2) != 0 || mib(most) != math.MaxUint32 || mib(1) != 1 || mib(0) != 0 || ratio(7, 1, 2) != 4 || pad(0, 256) != 0 {
		t.Error("an end is missed")
	}
	// The largest card that passes: sizes stay at their end, and nothing turns over.
	card := model.Card{WeightsMiB: model.MaxWeightsMiB, Context: model.MaxContext, Hidden: model.MaxWidth, FeedForward: model.MaxWidth, Heads: model.MaxDimension,
		Vocabulary: model.MaxVocabulary, Layers: []model.Layers{{Count: model.MaxLayers, Kind: model.Full, KVHeads: model.MaxDimension, KeyDim: model.MaxDimension, ValueDim: model.MaxDimension}}}
	for _, engine := range []string{enginecmd.LlamaCPP, enginecmd.Ollama, enginecmd.VLLM, enginecmd.SGLang} {
		run, _ := Defaults(engine)
		run.Fit, run.Parallel, run.Batch, run.MicroBatch, run.Context = false, math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32
		e := must(t, card, run, []GPU{{24564}, {24564}})
		if e.Starts || e.WeightsMiB < model.MaxWeightsMiB {
			t.Errorf("%s: %+v", engine, e)
		}
	}
}

// What the golden figures are computed with is what estimates come to, where neither padding nor windows make a difference.
func TestEstimatesKeepWhatKVBytesSays(t *testing.T) {
	random(t, func(t *testing.T, r *rand.Rand, card model.Card, run Run, gpus []GPU) {
		run.Context, run.Parallel, run.Unified, run.FullWindow, run.FlashAttention = 256*(1+r.Uint32N(512)), 1, false, true, true
		if run.Engine == enginecmd.SGLang {
			return
		}
		if run.Engine == enginecmd.VLLM {
			gpus, run.KVCacheBytes = gpus[:1], 1+r.Uint64N(1<<36)
		}
		bytes, err := KVBytes(card, run, uint64(run.Context))
		if err != nil {
			t.Fatal(err)
		}
		e := must(t, card, run, gpus)
		switch {
		case run.Engine != enginecmd.VLLM:
			if e.KVMiB != mib(bytes) {
				t.Errorf("%d MiB, and %d of one sequence", e.KVMiB, mib(bytes))
			}
		case bytes > 0:
			if tokens, _ := divided(run.KVCacheBytes, uint64(run.Context), bytes); e.KVTokens != tokens/block*block {
				t.Errorf("%d tokens, and %d by one sequence", e.KVTokens, tokens/block*block)
			}
		}
	})
}
