package vram

import (
	"errors"
	"math"
	"slices"
	"testing"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

func of(t *testing.T, card model.Card, run Run, total ...uint32) Estimate {
	t.Helper()
	gpus := make([]GPU, len(total))
	for i := range gpus {
		gpus[i].TotalMiB = total[i]
	}
	e, err := Of(card, run, gpus)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func sum(list []uint32) (all uint64) {
	for _, v := range list {
		all += uint64(v)
	}
	return all
}

func TestNothingToEstimateFrom(t *testing.T) {
	t.Parallel()
	one := []GPU{{TotalMiB: 24576}}
	if _, err := Of(model.Card{}, llamaRun(func(*Run) {}), one); !errors.Is(err, ErrNoCard) {
		t.Errorf("no card: %v", err)
	}
	if _, err := KVBytes(model.Card{WeightsMiB: 1}, Run{}, 1); !errors.Is(err, ErrNoCard) {
		t.Errorf("no layers: %v", err)
	}
	if _, err := Of(llama8, Run{Engine: "other"}, one); !errors.Is(err, ErrNoEngine) {
		t.Errorf("no engine: %v", err)
	}
	if _, err := Of(llama8, llamaRun(func(*Run) {}), nil); err == nil {
		t.Error("no GPU")
	}
	if _, err := Of(llama8, llamaRun(func(*Run) {}), make([]GPU, 65)); err == nil {
		t.Error("65 GPUs")
	}
	var p *model.Problem
	if _, err := Of(model.Card{WeightsMiB: 1, HostWeightsMiB: 2}, llamaRun(func(*Run) {}), one); !errors.As(err, &p) || p.Key != "host_weights_mib" {
		t.Errorf("a bad card: %v", err)
	}
}

// A card of 24 GB with Llama-3.1-8B in Q4: each part is where it belongs.
func TestPartsOfLlama(t *testing.T) {
	t.Parallel()
	e := of(t, llama8Q4, llamaRun(func(r *Run) { r.Context = 8192 }), 24564)
	if e.WeightsMiB != 4686-282 || e.KVMiB != 1024 || e.OverheadMiB != contextMiB+llamaMarginMiB || e.ClaimMiB != 0 {
		t.Errorf("%+v", e)
	}
	if parts := e.WeightsMiB + e.KVMiB + e.ComputeMiB + e.OverheadMiB; e.PerGPU[0] > parts || e.PerGPU[0]+4 < parts {
		t.Errorf("%d on the GPU, and parts of %d", e.PerGPU[0], parts)
	}
	if e.Context != 8192 || e.KVTokens != 8192 || !e.Starts || e.LoadHostMiB != 282+llamaHostMiB {
		t.Errorf("%+v", e)
	}
}

func TestCellsOfLlama(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Run)
		cells  uint64
	}{
		{"padded to 256", func(r *Run) { r.Context = 1000 }, 1024},
		{"without flash attention to 32", func(r *Run) { r.Context, r.FlashAttention = 1000, false }, 1024},
		{"without flash attention to 32 and not to 256", func(r *Run) { r.Context, r.FlashAttention = 1030, false }, 1056},
		{"slots share -c", func(r *Run) { r.Context, r.Parallel = 8192, 4 }, 8192},
		{"each slot is padded", func(r *Run) { r.Context, r.Parallel = 1024, 3 }, 1536},
		{"one cache for all", func(r *Run) { r.Context, r.Parallel, r.Unified = 1024, 3, true }, 1024},
		{"Ollama gives each slot its context", func(r *Run) { r.Engine, r.Context, r.Parallel = enginecmd.Ollama, 4096, 3 }, 12288},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := of(t, llama8Q4, llamaRun(tt.change), 0)
			if e.KVTokens != tt.cells || uint64(e.KVMiB) != tt.cells*128/1024 {
				t.Errorf("%d cells and %d MiB, want %d cells", e.KVTokens, e.KVMiB, tt.cells)
			}
		})
	}
}

func TestSlidingWindows(t *testing.T) {
	t.Parallel()
	// One layer of 4 KiB a token that looks back 512.
	card := model.Card{WeightsMiB: 100, Layers: []model.Layers{{Count: 256, Kind: model.Sliding, KVHeads: 8, KeyDim: 128, ValueDim: 128, Window: 512}}}
	tests := []struct {
		name   string
		change func(*Run)
		cells  uint32
	}{
		{"window and micro-batch", func(r *Run) {}, 1024},
		{"padded to 256", func(r *Run) { r.MicroBatch = 300 }, 1024},
		{"never more than the context", func(r *Run) { r.Context = 512 }, 512},
		{"a window for each slot of a shared cache", func(r *Run) { r.Parallel, r.Unified = 4, true }, 2560},
		{"a cache for each slot", func(r *Run) { r.Parallel = 4 }, 4096},
		{"--swa-full", func(r *Run) { r.FullWindow = true }, 32768},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := of(t, card, llamaRun(func(r *Run) { r.Context = 32768; tt.change(r) }), 0)
			if e.KVMiB != tt.cells { // 256 layers of 4 KiB are a MiB a cell
				t.Errorf("%d cells, want %d", e.KVMiB, tt.cells)
			}
		})
	}
}

func TestCacheTypes(t *testing.T) {
	t.Parallel()
	// A MiB a token in f16, half of it keys.
	card := model.Card{WeightsMiB: 1, Layers: dense(256, 8, 128)}
	tests := []struct {
		k, v  string
		flash bool
		want  uint32
	}{
		{"f16", "f16", true, 1024}, {"bf16", "bf16", true, 1024}, {"f32", "f32", true, 2048}, {"auto", "auto", true, 1024},
		{"q8_0", "q8_0", true, 544}, {"q5_1", "q5_1", true, 384}, {"q5_0", "q5_0", true, 352}, {"q4_1", "q4_1", true, 320},
		{"q4_0", "q4_0", true, 288}, {"iq4_nl", "iq4_nl", true, 288}, {"fp8", "fp8_e5m2", true, 512}, {"q8_0", "q4_0", true, 416},
		{"q8_0", "q8_0", false, 784}, {"a type of tomorrow", "", true, 1024},
	}
	for _, tt := range tests {
		e := of(t, card, llamaRun(func(r *Run) { r.Context, r.CacheK, r.CacheV, r.FlashAttention = 1024, tt.k, tt.v, tt.flash }), 0)
		if e.KVMiB != tt.want {
			t.Errorf("%s and %s: %d MiB, want %d", tt.k, tt.v, e.KVMiB, tt.want)
		}
		// llama.cpp keeps quantised values with flash attention alone.
		if e.Starts != tt.flash {
			t.Errorf("%s and %s: starts is %t", tt.k, tt.v, e.Starts)
		}
	}
}

func TestLayersOnSeveralGPUs(t *testing.T) {
	t.Parallel()
	run := llamaRun(func(r *Run) { r.Context = 8192 })
	two := of(t, llama70, run, 81920, 81920)
	if off := int64(two.PerGPU[0]) - int64(two.PerGPU[1]); off > 2500 || off < -2500 {
		t.Errorf("two alike hold %v", two.PerGPU)
	}
	uneven := of(t, llama70, run, 160000, 40000)
	if uneven.PerGPU[0] < 3*uneven.PerGPU[1] {
		t.Errorf("four fifths hold %v", uneven.PerGPU)
	}
	// Nothing is lost: the KV cache is as large as on one, and of weights nothing but rounding comes on top.
	one := of(t, llama70, run, 0)
	if two.KVMiB != one.KVMiB || two.WeightsMiB-one.WeightsMiB > 1 || uneven.KVMiB != one.KVMiB || uneven.WeightsMiB-one.WeightsMiB > 1 {
		t.Errorf("one %+v\ntwo %+v\nuneven %+v", one, two, uneven)
	}
	if two.OverheadMiB != 2*one.OverheadMiB {
		t.Errorf("two GPUs need the driver twice: %d", two.OverheadMiB)
	}
}

// The output lies on the last GPU as a whole, and is no layer like the others.
func TestTheOutputIsOnOneGPU(t *testing.T) {
	t.Parallel()
	// Gemma-3-27B in Q4_K_M: its embeddings in Q6_K are the output as well. 32 layers are on the first GPU, 30 and the output on the second.
	card := gemma3
	card.WeightsMiB, card.OutputMiB = 15774, 1103
	weights := func(card model.Card, change func(*Run), gpus ...GPU) []parts {
		run := llamaRun(func(r *Run) { r.Context = 8192; change(r) })
		place, err := run.place(gpus)
		if err != nil {
			t.Fatal(err)
		}
		return (&llama{card: card, run: run, place: place, layers: 62}).at(8192, math.MaxUint64)
	}
	none := func(*Run) {}
	two := weights(card, none, GPU{24564}, GPU{24564})
	if first, second := mib(two[0].weights), mib(two[1].weights); first != 7573 || second != 8202 {
		t.Errorf("%d and %d MiB", first, second)
	}
	// Nobody says how large the output is: neither GPU has less than in truth, and one GPU has no more than all.
	unknown := card
	unknown.OutputMiB = 0
	guess := weights(unknown, none, GPU{24564}, GPU{24564})
	if guess[0].weights < two[0].weights || guess[1].weights < two[1].weights || mib(guess[1].weights) > 8202+2000 {
		t.Errorf("%d and %d MiB", mib(guess[0].weights), mib(guess[1].weights))
	}
	if one := weights(unknown, none, GPU{24564}); mib(one[0].weights) != 15774 || one[1].weights != 0 {
		t.Errorf("one GPU: %d MiB and %d", mib(one[0].weights), mib(one[1].weights))
	}
	// Divided by rows, each has the same.
	if rows := weights(card, func(r *Run) { r.SplitMode = "row" }, GPU{24564}, GPU{24564}); rows[0].weights != rows[1].weights || mib(rows[0].weights) != 7887 {
		t.Errorf("by rows: %d and %d MiB", mib(rows[0].weights), mib(rows[1].weights))
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	card := model.Card{WeightsMiB: 18000, OutputMiB: 600, Layers: dense(60, 8, 128), Hidden: 4096, FeedForward: 14336, Heads: 32, Vocabulary: 32000}
	at := func(change func(*Run)) ([]uint32, error) {
		e, err := Of(card, llamaRun(func(r *Run) { r.Context = 8192; change(r) }), []GPU{{24564}, {24564}})
		return e.PerGPU, err
	}
	plain, err := at(func(*Run) {})
	if err != nil || plain[0] < 9500 || plain[1] < 9500 || plain[0] > 12000 || plain[1] > 12000 {
		t.Fatalf("%v, %v", plain, err)
	}
	tests := []struct {
		name          string
		change        func(*Run)
		first, second [2]uint32 // at least and at most
	}{
		{"all on the first", func(r *Run) { r.SplitMode = "none" }, [2]uint32{20000, 22000}, [2]uint32{contextMiB, contextMiB}},
		{"all on the second", func(r *Run) { r.SplitMode, r.MainGPU = "none", 1 }, [2]uint32{contextMiB, contextMiB}, [2]uint32{20000, 22000}},
		{"shares", func(r *Run) { r.TensorSplit = "10,1" }, [2]uint32{17000, 19500}, [2]uint32{2500, 4500}},
		{"shares by another sign", func(r *Run) { r.TensorSplit = "0.1/0.9" }, [2]uint32{2500, 4500}, [2]uint32{17000, 19500}},
		{"a share for one alone", func(r *Run) { r.TensorSplit = "1" }, [2]uint32{20000, 22000}, [2]uint32{contextMiB, 1000}},
		{"shares of nothing", func(r *Run) { r.TensorSplit = "0,0" }, [2]uint32{plain[0], plain[0]}, [2]uint32{plain[1], plain[1]}},
		{"a device", func(r *Run) { r.Devices = "CUDA1" }, [2]uint32{contextMiB, contextMiB}, [2]uint32{20000, 22000}},
		{"devices in another order", func(r *Run) { r.Devices, r.TensorSplit = "CUDA1,CUDA0", "10,1" }, [2]uint32{2500, 4500}, [2]uint32{17000, 19500}},
		{"no device", func(r *Run) { r.Devices = "none" }, [2]uint32{contextMiB, contextMiB}, [2]uint32{contextMiB, contextMiB}},
		{"rows", func(r *Run) { r.SplitMode, r.MainGPU = "row", 1 }, [2]uint32{plain[0], plain[0] + 500}, [2]uint32{plain[1] + 700, plain[1] + 1200}},
		{"tensors", func(r *Run) { r.SplitMode = "tensor" }, [2]uint32{plain[0], plain[0] + 500}, [2]uint32{plain[1] - 500, plain[1]}},
		{"a projector", func(r *Run) { r.Projectors = 1 }, [2]uint32{plain[0] + projectorMiB, plain[0] + projectorMiB}, [2]uint32{plain[1], plain[1]}},
		{"two adapters", func(r *Run) { r.Adapters = 2 }, [2]uint32{plain[0] + 1024, plain[0] + 1024}, [2]uint32{plain[1] + 1024, plain[1] + 1024}},
		{"a draft model", func(r *Run) { r.Drafts = 1 }, [2]uint32{plain[0] + 3000, plain[0] + 4500}, [2]uint32{plain[1] + 3000, plain[1] + 4500}},
	}
	for _, tt := range tests {
		got, err := at(tt.change)
		if err != nil || got[0] < tt.first[0] || got[0] > tt.first[1] || got[1] < tt.second[0] || got[1] > tt.second[1] {
			t.Errorf("%s: %v, want %v and %v, %v", tt.name, got, tt.first, tt.second, err)
		}
	}
	for name, change := range map[string]func(*Run){
		"a mode of tomorrow":       func(r *Run) { r.SplitMode = "heads" },
		"a third of two":           func(r *Run) { r.SplitMode, r.MainGPU = "none", 2 },
		"a third of two, rows":     func(r *Run) { r.SplitMode, r.MainGPU = "row", 2 },
		"a device that is not its": func(r *Run) { r.Devices = "CUDA2" },
		"a device twice":           func(r *Run) { r.Devices = "CUDA0,CUDA0" },
		"a device without number":  func(r *Run) { r.Devices = "gpu" },
		"shares that are none":     func(r *Run) { r.TensorSplit = "a,b" },
		"a negative share":         func(r *Run) { r.TensorSplit = "-1,2" },
		"not a number":             func(r *Run) { r.TensorSplit = "NaN,1" },
		"a share without end":      func(r *Run) { r.TensorSplit = "Inf,1" },
		"no share":                 func(r *Run) { r.TensorSplit = "," },
	} {
		if got, err := at(change); !errors.Is(err, ErrPlace) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	// What was made to fit fits with what is beside it.
	e := of(t, card, llamaRun(func(r *Run) { r.Fit, r.Projectors = true, 1 }), 20480)
	if !e.Starts || e.PerGPU[0] != 20480 {
		t.Errorf("%+v", e)
	}
}

func TestLayersWithTheHost(t *testing.T) {
	t.Parallel()
	at := func(n uint32) Estimate {
		return of(t, llama8Q4, llamaRun(func(r *Run) { r.Context, r.GPULayers = 8192, &n }), 24564)
	}
	none, half, all, more := at(0), at(16), at(33), at(99)
	// Batches are computed on the GPU all the same.
	if none.WeightsMiB != 0 || none.KVMiB != 0 || none.ComputeMiB == 0 || none.OverheadMiB != contextMiB+llamaMarginMiB || none.LoadHostMiB != 4686+1024+llamaHostMiB {
		t.Errorf("no layer: %+v", none)
	}
	if half.KVMiB != 15*32 || half.WeightsMiB < 2280 || half.WeightsMiB > 2285 {
		t.Errorf("15 layers and the output: %+v", half)
	}
	if all.KVMiB != 1024 || all.PerGPU[0] != more.PerGPU[0] || all.WeightsMiB != 4404 {
		t.Errorf("all of them: %+v and %+v", all, more)
	}
	// The first layers are the host's: of a model that slides first, what sees everything stays on the GPU.
	card := model.Card{WeightsMiB: 1000, Layers: []model.Layers{
		{Count: 10, Kind: model.Sliding, KVHeads: 8, KeyDim: 128, ValueDim: 128, Window: 1}, {Count: 10, Kind: model.Full, KVHeads: 8, KeyDim: 128, ValueDim: 128}}}
	if e := of(t, card, llamaRun(func(r *Run) { r.Context, r.GPULayers = 25600, new(uint32(11)) }), 0); e.KVMiB != 10*100 {
		t.Errorf("the last ten layers keep %d MiB", e.KVMiB)
	}
}

// TestExpertsWithTheHost: layers whose experts the host keeps weigh less on their GPU, from the first one that has experts on; what is not
// on a GPU anyway is not taken off once more.
func TestExpertsWithTheHost(t *testing.T) {
	t.Parallel()
	card := model.Card{WeightsMiB: 10400, OutputMiB: 400, ExpertsMiB: 7200, ExpertsFrom: 2, Layers: dense(20, 8, 128), Hidden: 4096, Vocabulary: 32000}
	const each = 7200 / 18
	for name, c := range map[string]struct {
		n, onGPUs uint32
		mode      string
		less      []uint32
	}{
		"none":                           {0, 99, "", []uint32{0, 0}},
		"the first two, which have none": {2, 99, "", []uint32{0, 0}},
		"of six":                         {8, 99, "", []uint32{6 * each, 0}},
		"all":                            {enginecmd.AllExperts, 99, "", []uint32{9 * each, 9 * each}},
		"of layers that are the host's":  {12, 9, "", []uint32{0, 0}},
		"in rows":                        {8, 99, "row", []uint32{3 * each, 3 * each}},
	} {
		e := of(t, card, llamaRun(func(r *Run) {
			r.Context, r.CPUExperts, r.GPULayers, r.SplitMode = 256, enginecmd.FirstLayers(c.n), &c.onGPUs, c.mode
		}), 0, 0)
		none := of(t, card, llamaRun(func(r *Run) { r.Context, r.GPULayers, r.SplitMode = 256, &c.onGPUs, c.mode }), 0, 0)
		if less := c.less[0] + c.less[1]; none.WeightsMiB-e.WeightsMiB != less || e.LoadHostMiB-none.LoadHostMiB != less {
			t.Errorf("%s: GPUs have %d MiB less and the host %d more, want %d", name, none.WeightsMiB-e.WeightsMiB, e.LoadHostMiB-none.LoadHostMiB, less)
		}
		for g, less := range c.less {
			// Those of one layer are copied there for a batch, beside which logits and rows of the hidden state are small.
			if got := none.PerGPU[g] - e.PerGPU[g]; got > less || got+each < less {
				t.Errorf("%s: GPU %d has %d MiB less, want %d and at most %d of copies", name, g, got, less, each)
			}
		}
	}
}

// TestTheCacheWithTheHost: what no GPU keeps of the KV cache, the host's memory does.
func TestTheCacheWithTheHost(t *testing.T) {
	t.Parallel()
	on := of(t, llama8Q4, llamaRun(func(r *Run) { r.Context = 32768 }), 0, 0)
	off := of(t, llama8Q4, llamaRun(func(r *Run) { r.Context, r.HostCache = 32768, true }), 0, 0)
	if off.KVMiB != 0 || on.KVMiB != 4096 || off.LoadHostMiB-on.LoadHostMiB != on.KVMiB {
		t.Errorf("on GPUs %d and %d MiB, the host %d and %d", on.KVMiB, off.KVMiB, on.LoadHostMiB, off.LoadHostMiB)
	}
	if got := on.PerGPU[0] + on.PerGPU[1] - off.PerGPU[0] - off.PerGPU[1]; got != on.KVMiB {
		t.Errorf("GPUs have %d MiB less, want %d", got, on.KVMiB)
	}
}

// TestTensorsOnNamedGPUs: what -ot lays on GPUs by name is not known of each of several GPUs, and all on the one that there is.
func TestTensorsOnNamedGPUs(t *testing.T) {
	t.Parallel()
	run := llamaRun(func(r *Run) { r.Context, r.Moved = 4096, true })
	if _, err := Of(llama8Q4, run, []GPU{{24564}, {24564}}); !errors.Is(err, ErrPlace) {
		t.Errorf("on two: %v", err)
	}
	plain := llamaRun(func(r *Run) { r.Context = 4096 })
	if on, one := of(t, llama8Q4, plain, 24564), of(t, llama8Q4, run, 24564); on.PerGPU[0] != one.PerGPU[0] {
		t.Errorf("on one: %v, want %v", one.PerGPU, on.PerGPU)
	}
}

// TestSeveralHosts: each has its part of what is spread over all, and starts by what lies here.
func TestSeveralHosts(t *testing.T) {
	t.Parallel()
	card := model.Card{WeightsMiB: 160_000, ExpertsMiB: 120_000, Layers: dense(60, 8, 128), Hidden: 4096, Vocabulary: 32000, Context: 8192}
	for name, c := range map[string]struct {
		change  func(*Run)
		weights uint32
		touched int
	}{
		"tensors over two":   {func(r *Run) { r.TensorParallel, r.Hosts = 4, 2 }, 80_000, 2},
		"stages over two":    {func(r *Run) { r.TensorParallel, r.PipelineParallel, r.Hosts = 2, 2, 2 }, 80_000, 2},
		"copies over two":    {func(r *Run) { r.TensorParallel, r.DataParallel, r.Hosts = 2, 2, 2 }, 40_000 + 60_000, 2},
		"one GPU of this":    {func(r *Run) { r.TensorParallel, r.PipelineParallel, r.Hosts = 1, 4, 4 }, 40_000, 1},
		"context over two":   {func(r *Run) { r.TensorParallel, r.PipelineParallel, r.PrefillParallel, r.Hosts = 2, 1, 2, 2 }, 40_000 + 60_000, 2},
		"all of it, on this": {func(r *Run) { r.TensorParallel, r.PipelineParallel, r.DataParallel = 2, 1, 1 }, 160_000, 2},
	} {
		run := vllmRun(func(r *Run) { r.Context = 4096; c.change(r) })
		e := of(t, card, run, 81559, 81559)
		if e.WeightsMiB != c.weights || e.Starts != (c.weights < 140_000) || (e.PerGPU[1] > 0) != (c.touched == 2) {
			t.Errorf("%s: %d MiB of weights, want %d; %v on GPUs, starts: %v", name, e.WeightsMiB, c.weights, e.PerGPU, e.Starts)
		}
	}
}

// TestContextParallelism: a sequence's cache is divided, and what adds GPUs takes them.
func TestContextParallelism(t *testing.T) {
	t.Parallel()
	card := model.Card{WeightsMiB: 16_000, Layers: dense(32, 8, 128), Hidden: 4096, Vocabulary: 128256, Context: 65536}
	with := func(tensor, prefill, decode uint32) Estimate {
		t.Helper()
		return of(t, card, vllmRun(func(r *Run) {
			r.TensorParallel, r.PipelineParallel, r.PrefillParallel, r.DecodeParallel = tensor, 1, prefill, decode
		}), 24564, 24564)
	}
	plain, decode, prefill := with(2, 0, 0), with(2, 0, 2), with(1, 2, 0)
	if decode.KVTokens/plain.KVTokens != 2 || decode.PerGPU[1] != plain.PerGPU[1] {
		t.Errorf("decode: room for %d tokens and %v, without %d and %v", decode.KVTokens, decode.PerGPU, plain.KVTokens, plain.PerGPU)
	}
	if prefill.PerGPU[1] != plain.PerGPU[1] || prefill.WeightsMiB != 32_000 || !prefill.Starts || with(2, 2, 0).Starts {
		t.Errorf("prefill: %+v; four GPUs where two are: starts %v", prefill, with(2, 2, 0).Starts)
	}
}

// TestWhatFitGivesUp: --fit takes no layers from GPUs where somebody said how they lie, so that the model does not fit.
func TestWhatFitGivesUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Run)
		gpus   []uint32
		fits   bool
	}{
		"nothing said":          {func(*Run) {}, []uint32{4096}, true},
		"nothing said, on two":  {func(*Run) {}, []uint32{3072, 3072}, true},
		"layers":                {func(r *Run) { r.GPULayers = new(uint32(99)) }, []uint32{4096}, false},
		"tensors":               {func(r *Run) { r.Overridden = true }, []uint32{4096}, false},
		"shares":                {func(r *Run) { r.TensorSplit = "1,1" }, []uint32{3072, 3072}, false},
		"a share of one":        {func(r *Run) { r.TensorSplit = "1" }, []uint32{4096}, true},
		"rows":                  {func(r *Run) { r.SplitMode = "row" }, []uint32{3072, 3072}, false},
		"tensors on every GPU":  {func(r *Run) { r.SplitMode = "tensor" }, []uint32{3072, 3072}, false},
		"one GPU, on which all": {func(r *Run) { r.SplitMode = "none" }, []uint32{4096, 4096}, true},
	} {
		e := of(t, llama8Q4, llamaRun(func(r *Run) { r.Context, r.Fit = 4096, true; c.change(r) }), c.gpus...)
		within := true
		for i, total := range c.gpus {
			within = within && e.PerGPU[i] <= total
		}
		if within != c.fits || e.Starts != c.fits {
			t.Errorf("%s: %v of %v, starts: %v", name, e.PerGPU, c.gpus, e.Starts)
		}
	}
}

// TestACacheWithTheHostBesides: each copy of the engine takes it of the host's memory, and none of it of a GPU.
func TestACacheWithTheHostBesides(t *testing.T) {
	t.Parallel()
	run := func(mib uint32) Estimate {
		return of(t, llama8Q4, vllmRun(func(r *Run) {
			r.Context, r.TensorParallel, r.DataParallel, r.HostKVMiB = 8192, 1, 2, mib
		}), 24564, 24564)
	}
	if none, some := run(0), run(10_000); some.LoadHostMiB-none.LoadHostMiB != 20_000 || !slices.Equal(some.PerGPU, none.PerGPU) {
		t.Errorf("%+v, %+v", none, some)
	}
}

// TestTheShortestContext: --fit goes no lower.
func TestTheShortestContext(t *testing.T) {
	t.Parallel()
	fit := func(shortest uint32) Estimate {
		return of(t, llama8Q4, llamaRun(func(r *Run) { r.Fit, r.FitContext = true, shortest }), 5120)
	}
	if least, longer := fit(0), fit(16384); least.Context != fitContext || longer.Context != 16384 || longer.LoadHostMiB <= least.LoadHostMiB {
		t.Errorf("%+v, %+v", least, longer)
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	fit := func(change func(*Run)) Run { return llamaRun(func(r *Run) { r.Fit = true; change(r) }) }
	// Nobody asked for a context: the longest that leaves 1,024 MiB free, in steps of 256.
	e := of(t, llama8Q4, fit(func(*Run) {}), 12288)
	if e.Context <= fitContext || e.Context >= 131072 || e.Context%256 != 0 || !e.Starts {
		t.Errorf("12 GB: %+v", e)
	}
	if free := 12288 - e.PerGPU[0]; free < 1024 || free > 1024+64 {
		t.Errorf("%d MiB are left", free)
	}
	longer := of(t, llama8Q4, llamaRun(func(r *Run) { r.Context = e.Context + 256 }), 12288)
	if longer.PerGPU[0] <= 12288-1024 {
		t.Errorf("%d tokens fit as well", longer.Context)
	}
	// Room for all of it: as the model is.
	if e := of(t, llama8Q4, fit(func(*Run) {}), 81920); e.Context != 131072 {
		t.Errorf("80 GB: %+v", e)
	}
	// It never goes below 4,096; then layers stay with the host.
	e = of(t, llama8Q4, fit(func(*Run) {}), 5120)
	if e.Context != fitContext || e.PerGPU[0] > 5120-1024 || !e.Starts || e.LoadHostMiB < 1000 {
		t.Errorf("5 GB: %+v", e)
	}
	// A context that was asked for stays, a number of layers too, and then nothing gives way.
	e = of(t, llama8Q4, fit(func(r *Run) { r.Context = 65536 }), 12288)
	if e.Context != 65536 || e.PerGPU[0] > 12288-1024 || !e.Starts {
		t.Errorf("a context: %+v", e)
	}
	e = of(t, llama8Q4, fit(func(r *Run) { r.Context, r.GPULayers = 65536, new(uint32(99)) }), 12288)
	if e.Context != 65536 || e.PerGPU[0] <= 12288 || e.Starts {
		t.Errorf("a context and all layers: %+v", e)
	}
	// Another target.
	e = of(t, llama8Q4, fit(func(r *Run) { r.FitTargetMiB = 4096 }), 12288)
	if free := 12288 - e.PerGPU[0]; free < 4096 || free > 4096+64 {
		t.Errorf("%d MiB are left of 4,096", free)
	}
	// Without --fit it is as large as it is, and says that it does not start.
	if e := of(t, llama8Q4, llamaRun(func(*Run) {}), 12288); e.Starts || e.Context != 131072 {
		t.Errorf("no --fit: %+v", e)
	}
}

func TestOllamaChoosesItsContext(t *testing.T) {
	t.Parallel()
	run, _ := Defaults(enginecmd.Ollama)
	for total, want := range map[uint32]uint32{8192: 4096, 24564: 32768, 81920: 262144} {
		if e := of(t, llama8Q4, run, total); e.Context != want {
			t.Errorf("%d MiB: %d tokens, want %d", total, e.Context, want)
		}
	}
}

func TestClaimOfVLLM(t *testing.T) {
	t.Parallel()
	run := vllmRun(func(r *Run) { r.Context = 32768 })
	small, large := of(t, qwen3Small, run, 24564), of(t, llama8, run, 24564)
	// It takes its share whatever the model needs.
	if small.PerGPU[0] != large.PerGPU[0] || small.ClaimMiB != 22599 || small.PerGPU[0] != 22599+contextMiB {
		t.Errorf("%+v\n%+v", small, large)
	}
	if small.KVTokens <= large.KVTokens || !small.Starts || !large.Starts {
		t.Errorf("%+v\n%+v", small, large)
	}
	// Too small a share for the weights, or for one sequence of the longest length: it does not start.
	for name, change := range map[string]func(*Run){
		"a share below the weights": func(r *Run) { r.Utilisation = 0.6 },
		"a context beyond the rest": func(r *Run) { r.Context = 131072 },
		"all of it":                 func(r *Run) { r.Utilisation = 1 },
		"more GPUs than it has":     func(r *Run) { r.TensorParallel = 2 },
	} {
		if e := of(t, llama8, vllmRun(func(r *Run) { r.Context = 8192; change(r) }), 24564); e.Starts {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if _, err := Of(llama8, vllmRun(func(*Run) {}), []GPU{{24564}, {0}}); !errors.Is(err, ErrNoTotal) {
		t.Errorf("a share of what nobody knows: %v", err)
	}
	// Layers with a window keep that and a batch, and no more of a long sequence: what Gemma-3-27B has room for is far more than
	// the same model without windows.
	gemma := of(t, gemma3, vllmRun(func(r *Run) { r.Context = 131072 }), 81920)
	whole := of(t, gemma3, vllmRun(func(r *Run) { r.Context, r.FullWindow = 131072, true }), 81920)
	if gemma.KVTokens < 3*whole.KVTokens || !gemma.Starts || whole.Starts {
		t.Errorf("windows %+v\nwithout %+v", gemma, whole)
	}
	// A size that was given in bytes replaces the share.
	given := of(t, llama8, vllmRun(func(r *Run) { r.Context, r.KVCacheBytes = 8192, 2<<30 }), 24564)
	if given.KVMiB != 2048 || given.KVTokens != 16384 || !given.Starts || given.PerGPU[0] >= small.PerGPU[0] {
		t.Errorf("%+v", given)
	}
	if e := of(t, llama8, vllmRun(func(r *Run) { r.Context, r.KVCacheBytes = 32768, 2<<30 }), 24564); e.Starts {
		t.Errorf("2 GiB for 4: %+v", e)
	}
	// A context that vLLM chooses itself is the longest that there is room for, or the model's own.
	chosen := of(t, llama8, vllmRun(func(r *Run) { r.Fit = true }), 24564)
	if !chosen.Starts || chosen.Context != uint32(large.KVTokens) || chosen.KVTokens != large.KVTokens {
		t.Errorf("a context that fits: %+v, of %d tokens", chosen, large.KVTokens)
	}
	if e := of(t, llama8, vllmRun(func(r *Run) { r.Fit = true }), 81920); !e.Starts || e.Context != llama8.Context {
		t.Errorf("all of the context fits: %+v", e)
	}
	for name, change := range map[string]func(*Run){
		"no room for one token":            func(r *Run) { r.Utilisation = 0.6 },
		"one that was given":               func(r *Run) { r.Context = 131072 },
		"SGLang, which has no such option": func(r *Run) { r.Engine = enginecmd.SGLang },
	} {
		if e := of(t, llama8, vllmRun(func(r *Run) { r.Fit = true; change(r) }), 24564); e.Starts {
			t.Errorf("%s: %+v", name, e)
		}
	}
	// Eight bits for each element: twice the tokens.
	if e := of(t, llama8, vllmRun(func(r *Run) { r.Context, r.CacheK, r.CacheV = 32768, "fp8", "fp8" }), 24564); e.KVTokens < 2*large.KVTokens-16 {
		t.Errorf("fp8 has room for %d, bf16 for %d", e.KVTokens, large.KVTokens)
	}
}

// What --cpu-offload-gb leaves with the host is room for the cache on each GPU.
func TestWeightsWithTheHost(t *testing.T) {
	t.Parallel()
	at := func(change func(*Run)) Estimate {
		return of(t, llama8, vllmRun(func(r *Run) { r.Context, r.TensorParallel = 8192, 2; change(r) }), 12282, 12282)
	}
	none, some := at(func(*Run) {}), at(func(r *Run) { r.OffloadMiB = 2048 })
	if some.WeightsMiB != none.WeightsMiB-2*2048 || some.KVMiB != none.KVMiB+2*2048 || some.LoadHostMiB != none.LoadHostMiB+2*2048 || some.PerGPU[0] != none.PerGPU[0] {
		t.Errorf("without %+v\nwith %+v", none, some)
	}
	if e := at(func(r *Run) { r.OffloadMiB, r.Sleep = 2048, catalog.SleepVLLM1 }); e.HostMiB != none.WeightsMiB {
		t.Errorf("asleep with all weights: %+v", e)
	}
	if e := at(func(r *Run) { r.OffloadMiB, r.Sleep = 2048, catalog.SleepVLLM2 }); e.HostMiB != 2*2048 {
		t.Errorf("asleep without: %+v", e)
	}
	if e := at(func(r *Run) { r.OffloadMiB = math.MaxUint32 }); e.WeightsMiB != 0 || !e.Starts {
		t.Errorf("more than there is: %+v", e)
	}
	one := func(offload uint32) Estimate {
		return of(t, llama8, vllmRun(func(r *Run) { r.Context, r.OffloadMiB = 8192, offload }), 16376)
	}
	if one(0).Starts || !one(8192).Starts {
		t.Errorf("a card that is too small: %+v\n%+v", one(0), one(8192))
	}
}

func TestTensorParallelism(t *testing.T) {
	t.Parallel()
	run := func(tensor uint32) Run {
		return vllmRun(func(r *Run) { r.Context, r.TensorParallel = 8192, tensor })
	}
	two := of(t, llama70, run(2), 81920, 81920)
	four := of(t, llama70, run(4), 81920, 81920, 81920, 81920)
	if two.PerGPU[0] != two.PerGPU[1] || two.PerGPU[0] != four.PerGPU[0] || two.WeightsMiB != four.WeightsMiB {
		t.Errorf("%+v\n%+v", two, four)
	}
	if two.Starts == false || four.KVTokens < 3*two.KVTokens {
		t.Errorf("two GPUs have room for %d, four for %d", two.KVTokens, four.KVTokens)
	}
	// A head is never divided: two heads on four GPUs are kept twice; what is compressed for all is kept by each.
	card := model.Card{WeightsMiB: 1000, Layers: dense(32, 2, 128), Hidden: 1024, FeedForward: 4096, Vocabulary: 1000}
	latent := card
	latent.Layers = []model.Layers{{Count: 32, Kind: model.Latent, KeyDim: 512}}
	given := func(card model.Card, n uint32) Estimate {
		return of(t, card, vllmRun(func(r *Run) { r.Context, r.TensorParallel, r.KVCacheBytes = 8192, n, 1<<30 }), slices.Repeat([]uint32{24564}, int(n))...)
	}
	if two, four := given(card, 2), given(card, 4); two.KVTokens != four.KVTokens {
		t.Errorf("two heads: %d tokens on two GPUs, %d on four", two.KVTokens, four.KVTokens)
	}
	if one, four := given(latent, 1), given(latent, 4); one.KVTokens != four.KVTokens {
		t.Errorf("latent: %d tokens on one GPU, %d on four", one.KVTokens, four.KVTokens)
	}
	// GPUs beyond tensor parallelism hold other layers, so that each has half as much to keep of a token.
	half := vllmRun(func(r *Run) { r.Context, r.TensorParallel, r.KVCacheBytes = 8192, 2, 1<<30 })
	pipeline, plain := of(t, llama70, half, 81920, 81920, 81920, 81920), of(t, llama70, half, 81920, 81920)
	if more := pipeline.KVTokens - 2*plain.KVTokens; more > 2*block || !pipeline.Starts {
		t.Errorf("two by two have room for %d, two for %d", pipeline.KVTokens, plain.KVTokens)
	}
	// The smallest GPU says how many tokens there are.
	if uneven := of(t, llama70, run(2), 143771, 81920); uneven.KVTokens > two.KVTokens || uneven.PerGPU[0] <= uneven.PerGPU[1] {
		t.Errorf("%d tokens on one large GPU and one small, %d on two small ones", uneven.KVTokens, two.KVTokens)
	}
}

// vLLM that was told of no parallelism takes one of two GPUs.
func TestOneOfTwoGPUs(t *testing.T) {
	t.Parallel()
	card := model.Card{WeightsMiB: 30000, Layers: dense(32, 8, 128), Hidden: 4096, FeedForward: 14336, Vocabulary: 32000}
	on := func(tensor, stages, copies uint32) Estimate {
		return of(t, card, vllmRun(func(r *Run) {
			r.Context, r.TensorParallel, r.PipelineParallel, r.DataParallel = 8192, tensor, stages, copies
		}), 24564, 24564)
	}
	if e := on(1, 1, 1); e.Starts || e.PerGPU[0] != 22599+contextMiB || e.PerGPU[1] != 0 || len(e.PerGPU) != 2 {
		t.Errorf("one: %+v", e)
	}
	for name, e := range map[string]Estimate{"tensors": on(2, 1, 1), "stages": on(1, 2, 1), "nothing said": on(0, 0, 0)} {
		if !e.Starts || e.PerGPU[0] != e.PerGPU[1] {
			t.Errorf("%s: %+v", name, e)
		}
	}
	// Two copies do not share the weights, and four GPUs are not there.
	if e := on(1, 1, 2); e.Starts || e.PerGPU[1] == 0 || e.WeightsMiB != 60000 {
		t.Errorf("copies: %+v", e)
	}
	if e := on(2, 2, 1); e.Starts {
		t.Errorf("four GPUs of two: %+v", e)
	}
	// But they do share the experts of a mixture, which alone are too large for one.
	card.ExpertsMiB = 20000
	if e := on(1, 1, 2); !e.Starts || e.WeightsMiB != 2*(10000+10000) {
		t.Errorf("copies of a mixture: %+v", e)
	}
	if e := on(1, 1, 1); e.Starts || e.WeightsMiB != 30000 {
		t.Errorf("one of a mixture: %+v", e)
	}
	card.WeightsMiB, card.ExpertsMiB = 8000, 0
	if one, two := on(1, 1, 1), on(1, 1, 2); !one.Starts || !two.Starts || two.KVTokens != 2*one.KVTokens {
		t.Errorf("one has room for %d, two for %d", one.KVTokens, two.KVTokens)
	}
}

// A layer with attention and a state at once is one layer: -ngl counts it once.
func TestLayersOfBothKinds(t *testing.T) {
	t.Parallel()
	card := model.Card{WeightsMiB: 16500, OutputMiB: 500, Layers: dense(32, 8, 128), Hidden: 4096}
	card.Layers[0].StateBytes = 1 << 20
	at := func(n uint32) Estimate {
		return of(t, card, llamaRun(func(r *Run) { r.Context, r.Parallel, r.GPULayers = 8192, 2, &n }), 81920)
	}
	if all := at(33); all.WeightsMiB != 16500 || all.KVMiB != 1024+2*32 {
		t.Errorf("all: %+v", all)
	}
	if half := at(17); half.WeightsMiB != 8500 || half.KVMiB != 512+2*16 {
		t.Errorf("half: %+v", half)
	}
	card.Layers[0].Shared = true
	if e := at(33); e.KVMiB != 64 {
		t.Errorf("shared: %+v", e)
	}
}

func TestSGLang(t *testing.T) {
	t.Parallel()
	run, _ := Defaults(enginecmd.SGLang)
	run.Context = 8192
	e := of(t, llama8, run, 81920)
	if e.ClaimMiB != 72090 || e.PerGPU[0] <= e.ClaimMiB || e.PerGPU[0] > 81920 || !e.Starts || e.KVTokens < 400000 {
		t.Errorf("%+v", e)
	}
}

func TestAsleep(t *testing.T) {
	t.Parallel()
	at := func(sleep string) Estimate {
		return of(t, llama70, vllmRun(func(r *Run) { r.Context, r.Sleep = 8192, sleep }), 81920, 81920)
	}
	if e := at(catalog.SleepVLLM1); e.AsleepMiB != 2*residueMiB || e.HostMiB != e.WeightsMiB || e.HostMiB < 134570 {
		t.Errorf("level 1: %+v", e)
	}
	if e := at(catalog.SleepVLLM2); e.AsleepMiB != 2*residueMiB || e.HostMiB != 0 {
		t.Errorf("level 2: %+v", e)
	}
	if e := at(catalog.SleepNone); e.AsleepMiB != 0 || e.HostMiB != 0 || e.LoadHostMiB == 0 {
		t.Errorf("no sleep: %+v", e)
	}
	if e := of(t, llama8Q4, llamaRun(func(r *Run) { r.Context, r.Sleep = 8192, catalog.SleepLlamaRouter }), 24564); e.AsleepMiB != contextMiB || e.HostMiB != 0 {
		t.Errorf("router: %+v", e)
	}
}

// The buffers of computation: each term as its comment says it.
func TestComputeOfLlama(t *testing.T) {
	t.Parallel()
	compute := func(n int, change func(*Run)) uint32 {
		return of(t, llama8Q4, llamaRun(func(r *Run) { r.Context = 65536; change(r) }), make([]uint32, n)...).ComputeMiB
	}
	const logits, rows, cells = 250.5, 32, 65536
	for name, c := range map[string]struct {
		got  uint32
		want float64
	}{
		"logits, rows and mask":               {compute(1, func(*Run) {}), logits + rows + cells*3*512/mebi},
		"four copies of the mask on each":     {compute(2, func(*Run) {}), logits + 2*rows + 2*cells*3*512*maskCopies/mebi},
		"an unpacked cache":                   {compute(1, func(r *Run) { r.CacheK = "q8_0" }), logits + rows + cells*4096*9/4/mebi},
		"the product without flash attention": {compute(1, func(r *Run) { r.FlashAttention = false }), 32*cells*512*4/mebi + rows + cells*4*512/mebi},
		"a micro-batch of a batch":            {compute(1, func(r *Run) { r.Batch, r.MicroBatch = 256, 512 }), logits/2 + rows/2 + cells*3*256/mebi},
	} {
		if off := float64(c.got) - c.want; off < -1 || off > 2 {
			t.Errorf("%s: %d MiB, want %g", name, c.got, c.want)
		}
	}
}

// A model of which only the size is known is estimated all the same.
func TestCardOfWeightsAlone(t *testing.T) {
	t.Parallel()
	card := model.Card{WeightsMiB: 8000}
	if e := of(t, card, llamaRun(func(*Run) {}), 24564, 24564); e.WeightsMiB != 8000 || e.KVMiB != 0 || !e.Starts {
		t.Errorf("%+v", e)
	}
	if e := of(t, card, vllmRun(func(*Run) {}), 24564); !e.Starts || e.KVTokens != 0 {
		t.Errorf("%+v", e)
	}
}
