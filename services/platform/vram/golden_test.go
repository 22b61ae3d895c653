package vram

import (
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"text/tabwriter"

	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

// report prints the tables; `make vram-report` gives it.
var report = flag.Bool("report", false, "print the golden tables")

// published is a figure that others measured or computed, with the conditions that it was given for, and what this package says.
type published struct {
	model, conditions, unit, source string
	figure                          float64
	ours                            func() float64
}

// Sources of the figures.
const (
	gpumodSource   = "gpumod, docs/research/20260524_kv_estimation_redesign.md, step 5"
	deepseekSource = "DeepSeek, Insights into DeepSeek-V3 (arXiv 2505.09343), table 1"
	cardSource     = "nvidia-smi on an H100 80GB HBM3, driver 580.159.04"
	unslothSource  = "Unsloth, pull request 7530, read from a live llama-server"
)

// kv is the cache of one sequence, of one slot and without padding of batches, in MiB.
func kv(card model.Card, tokens uint64) func() float64 {
	return func() float64 {
		bytes, err := KVBytes(card, Run{}, tokens)
		if err != nil {
			return math.NaN()
		}
		return float64(bytes) / mebi
	}
}

// perToken is what one token more takes, in so many bytes.
func perToken(card model.Card, unit float64) func() float64 {
	return func() float64 { return (kv(card, 100001)() - kv(card, 100000)()) * mebi / unit }
}

// in is one number of an estimate.
func in(card model.Card, run Run, total []uint32, what func(Estimate) float64) func() float64 {
	return func() float64 {
		gpus := make([]GPU, len(total))
		for i := range gpus {
			gpus[i].TotalMiB = total[i]
		}
		e, err := Of(card, run, gpus)
		if err != nil {
			return math.NaN()
		}
		return what(e)
	}
}

func kvMiB(e Estimate) float64      { return float64(e.KVMiB) }
func kvTokens(e Estimate) float64   { return float64(e.KVTokens) }
func computeMiB(e Estimate) float64 { return float64(e.ComputeMiB) }
func weightsMiB(e Estimate) float64 { return float64(e.WeightsMiB) }

// layersOf keeps the layers of one kind.
func layersOf(card model.Card, kind string) model.Card {
	var kept []model.Layers
	for _, l := range card.Layers {
		if l.Kind == kind {
			kept = append(kept, l)
		}
	}
	card.Layers = kept
	return card
}

func llamaRun(change func(*Run)) Run {
	r, _ := Defaults(enginecmd.LlamaCPP)
	r.Parallel, r.Unified, r.Fit = 1, false, false
	change(&r)
	return r
}

func vllmRun(change func(*Run)) Run {
	r, _ := Defaults(enginecmd.VLLM)
	change(&r)
	return r
}

// golden is held to three per cent.
var golden = []published{
	{"Gemma-3-27B", "KV, 8,000 tokens", "MiB", gpumodSource, 1041, kv(gemma3, 8000)},
	{"Gemma-3-27B", "KV, 32,000 tokens", "MiB", gpumodSource, 2916, kv(gemma3, 32000)},
	{"Gemma-3-27B", "KV, 128,000 tokens", "MiB", gpumodSource, 10416, kv(gemma3, 128000)},
	{"Qwen3-32B", "KV, 8,000 tokens", "MiB", gpumodSource, 2000, kv(qwen3, 8000)},
	{"Qwen3-32B", "KV, 32,000 tokens", "MiB", gpumodSource, 8000, kv(qwen3, 32000)},
	{"Qwen3-32B", "KV, 128,000 tokens", "MiB", gpumodSource, 32000, kv(qwen3, 128000)},
	{"Llama-3.3-70B", "KV, 8,000 tokens", "MiB", gpumodSource, 2500, kv(llama70, 8000)},
	{"Llama-3.3-70B", "KV, 32,000 tokens", "MiB", gpumodSource, 10000, kv(llama70, 32000)},
	{"Llama-3.3-70B", "KV, 128,000 tokens", "MiB", gpumodSource, 40000, kv(llama70, 128000)},
	{"Gemma-3n-E4B", "KV, 8,000 tokens", "MiB", gpumodSource, 78.5, kv(gemma3n, 8000)},
	{"Gemma-3n-E4B", "KV, 32,000 tokens", "MiB", gpumodSource, 266, kv(gemma3n, 32000)},
	{"Gemma-3n-E4B", "KV, 128,000 tokens", "MiB", gpumodSource, 1016, kv(gemma3n, 128000)},
	{"Llama-3.1-8B", "KV of a token, f16", "KiB", "config.json, by arithmetic", 128, perToken(llama8, 1024)},
	{"Llama-3.1-8B", "KV, 8,192 tokens", "MiB", "llama.cpp's log, KV self size", 1024, kv(llama8, 8192)},
	{"Llama-3.3-70B", "KV, 8,192 tokens", "MiB", "config.json, by arithmetic", 2560, kv(llama70, 8192)},
	{"Qwen3-0.6B", "KV, 8,192 tokens, published head_dim", "MiB", "config.json, by arithmetic", 896, kv(qwen3Small, 8192)},
	{"DeepSeek-V3", "KV of a token, bf16, MLA", "kB", deepseekSource, 70.272, perToken(deepseek, 1000)},
	{"Qwen2.5-72B", "KV of a token, bf16", "kB", deepseekSource, 327.680, perToken(qwen25, 1000)},
	{"Llama-3.1-405B", "KV of a token, bf16", "kB", deepseekSource, 516.096, perToken(llama405, 1000)},
	{"DeepSeek-R1", "llama.cpp, -c 32768, q8_0, MLA", "MiB", "ik_llama.cpp, pull request 259, log", 1166.62,
		in(deepseek, llamaRun(func(r *Run) { r.Context, r.CacheK = 32768, "q8_0" }), []uint32{0}, kvMiB)},
	{"Gemma-3-270M", "llama.cpp, -c 1024 -np 3: 1,536 cells", "MiB", unslothSource, 27,
		in(gemma3Small, llamaRun(func(r *Run) { r.Context, r.Parallel = 1024, 3 }), []uint32{0}, kvMiB)},
	{"Gemma-3-270M", "llama.cpp, -c 1024 -np 4: 1,024 cells", "MiB", unslothSource, 18,
		in(gemma3Small, llamaRun(func(r *Run) { r.Context, r.Parallel = 1024, 4 }), []uint32{0}, kvMiB)},
	{"gpt-oss-20b", "llama.cpp, layers with a window, -c 4096 -np 1: 768 cells", "MiB", "llama.cpp, pull request 17609, log", 18,
		in(layersOf(gptOSS, model.Sliding), llamaRun(func(r *Run) { r.Context = 4096 }), []uint32{0}, kvMiB)},
	{"gpt-oss-20b", "llama.cpp, -c 131072 -np 1: 12 layers whole, 12 of 768 cells", "MiB", "llama.cpp's log (Metal)", 3072 + 18,
		in(gptOSS, llamaRun(func(r *Run) { r.Context = 131072 }), []uint32{0}, kvMiB)},
	{"gpt-oss-20b", "the same, -ub 2048: 12 of 2,304 cells", "MiB", "llama.cpp's log (Metal)", 3072 + 54,
		in(gptOSS, llamaRun(func(r *Run) { r.Context, r.MicroBatch = 131072, 2048 }), []uint32{0}, kvMiB)},
	{"gpt-oss-20b", "llama.cpp, -c 8192, q8_0, -ub 128", "MiB", "llama.cpp's log (Hexagon)", 102 + 3.19,
		in(gptOSS, llamaRun(func(r *Run) { r.Context, r.CacheK, r.CacheV, r.MicroBatch = 8192, "q8_0", "q8_0", 128 }), []uint32{0}, kvMiB)},
	{"gpt-oss-20b", "llama.cpp, --n-cpu-moe 99: what is left on the GPU", "MiB", "ik_llama.cpp, issue 822, log of llama.cpp", 1242.03,
		in(gptOSS, llamaRun(func(r *Run) { r.Context, r.CPUExperts = 131072, enginecmd.FirstLayers(99) }), []uint32{0}, weightsMiB)},
	{"Qwen3.5-9B", "KV of a token, f16, 8 of 32 layers", "KiB", "llama-fit-params, four contexts", 32, perToken(layersOf(qwen35, model.Full), 1024)},
	{"Qwen3.5-9B", "llama.cpp, state of one sequence", "MiB", "llama.cpp's log, RS buffer", 50.25, kv(layersOf(qwen35, model.Recurrent), 8192)},
	{"Qwen3.6-27B", "llama.cpp, KV, -c 131072 -np 1", "MiB", "llama.cpp's log, KV buffer", 8192, kv(layersOf(qwen36, model.Full), 131072)},
	{"Qwen3.6-27B", "llama.cpp, state of three sequences", "MiB", "llama.cpp, pull request 23792, log", 448.88,
		in(layersOf(qwen36, model.Recurrent), llamaRun(func(r *Run) { r.Context, r.Parallel = 8192, 3 }), []uint32{0}, kvMiB)},
	{"Qwen3-Next-80B", "llama.cpp, KV, -c 131072", "MiB", "llama.cpp's log, KV buffer", 3072, kv(layersOf(qwenNext, model.Full), 131072)},
	{"Qwen3-Next-80B", "llama.cpp, state of four sequences", "MiB", "llama.cpp's log, RS buffer", 301.5,
		in(layersOf(qwenNext, model.Recurrent), llamaRun(func(r *Run) { r.Context, r.Parallel, r.Unified = 131072, 4, true }), []uint32{0}, kvMiB)},
	{"Qwen3-1.7B", "vLLM, KV of 175,856 tokens", "GiB", "vLLM, issue 33263, log", 18.78,
		func() float64 { return kv(qwen3Middle, 175856)() / 1024 }},
	{"Qwen3-235B-A22B", "vLLM, TP 4, KV of 178,880 tokens on each GPU", "GiB", "vLLM, issue 21348, log", 8.11,
		func() float64 { return kv(qwen3Large, 178880)() / 4 / 1024 }},
	{"Qwen3-235B-A22B", "SGLang, TP 4, KV of 367,404 tokens on each GPU", "GiB", "vLLM, issue 21348, log", 16.46,
		func() float64 { return kv(qwen3Large, 367404)() / 4 / 1024 }},
	{"Llama-3.1-8B", "vLLM, 0.92 of 79.25 GiB: tokens that fit", "tokens", "vLLM's log, GPU KV cache size", 460496,
		in(llama8, vllmRun(func(r *Run) {}), []uint32{81152}, kvTokens)},
	{"Llama-3-8B", "vLLM, 0.90 of 79.22 GiB, 8,192 tokens, 256 sequences: KV", "GiB", "vLLM, pull request 10511, profile", 53.29,
		in(llama8, vllmRun(func(r *Run) { r.Utilisation, r.Batch, r.Parallel, r.Context = 0.90, 8192, 256, 8192 }), []uint32{81121},
			func(e Estimate) float64 { return float64(e.KVMiB) / 1024 })},
}

// bounds are buffers of computation. They hang on the build and on the backend, so that ours must only not be below what was
// measured, and not absurd.
var bounds = []published{
	{"Llama-3.1-8B", "llama.cpp, no flash attention, -c 512 -ub 512", "MiB", "llama.cpp's log, CUDA0 compute buffer", 258.5,
		in(llama8Q4, llamaRun(func(r *Run) { r.Context, r.FlashAttention = 512, false }), []uint32{0}, computeMiB)},
	{"Llama-3.1-8B", "llama.cpp, no flash attention, -c 8192 -ub 512", "MiB", "llama.cpp's log, CUDA0 compute buffer", 560,
		in(llama8Q4, llamaRun(func(r *Run) { r.Context, r.FlashAttention = 8192, false }), []uint32{0}, computeMiB)},
	{"gpt-oss-20b", "llama.cpp, -c 4096 -ub 512", "MiB", "llama.cpp, pull request 17609, log (Metal)", 404,
		in(gptOSS, llamaRun(func(r *Run) { r.Context = 4096 }), []uint32{0}, computeMiB)},
	{"gpt-oss-20b", "llama.cpp, -c 131072 -ub 512", "MiB", "llama.cpp's log (Metal)", 420.08,
		in(gptOSS, llamaRun(func(r *Run) { r.Context = 131072 }), []uint32{0}, computeMiB)},
	{"gpt-oss-20b", "llama.cpp, -c 131072 -ub 512 --n-cpu-moe 99", "MiB", "ik_llama.cpp, issue 822, log of llama.cpp", 456.98,
		in(gptOSS, llamaRun(func(r *Run) { r.Context, r.CPUExperts = 131072, enginecmd.FirstLayers(99) }), []uint32{0}, computeMiB)},
	{"gpt-oss-20b", "llama.cpp, -c 131072 -ub 2048", "MiB", "llama.cpp's log (Metal)", 1672.08,
		in(gptOSS, llamaRun(func(r *Run) { r.Context, r.MicroBatch = 131072, 2048 }), []uint32{0}, computeMiB)},
	{"Qwen3.5-9B", "llama.cpp, -c 65536 -ub 512", "MiB", "llama-fit-params (Metal)", 501,
		in(qwen35, llamaRun(func(r *Run) { r.Context = 65536 }), []uint32{0}, computeMiB)},
	{"Qwen3.6-27B", "llama.cpp, -c 131072 -ub 1024, part with the host", "MiB", "llama.cpp's log, CUDA0 allocation", 1401.75,
		in(qwen36, llamaRun(func(r *Run) { r.Context, r.MicroBatch, r.GPULayers = 131072, 1024, new(uint32(24)) }), []uint32{0}, computeMiB)},
}

// whole is what a process held on a card after its first tokens: shapes of the model, weights of zeros, llama.cpp's release v0.4.0 through
// deploy/e2e/card/llama.py, one sequence.
var whole = []published{
	{"Llama-3.1-8B, f16", "llama.cpp, -c 8192 -ub 512", "MiB", cardSource, 16302, held(8192, 512)},
	{"Llama-3.1-8B, f16", "llama.cpp, -c 32768 -ub 512", "MiB", cardSource, 19374, held(32768, 512)},
	{"Llama-3.1-8B, f16", "llama.cpp, -c 131072 -ub 512", "MiB", cardSource, 31662, held(131072, 512)},
	{"Llama-3.1-8B, f16", "llama.cpp, -c 32768 -ub 2048", "MiB", cardSource, 20202, held(32768, 2048)},
}

func held(context, batch uint32) func() float64 {
	return in(llama8F16, llamaRun(func(r *Run) { r.Context, r.MicroBatch = context, batch }), []uint32{81559}, func(e Estimate) float64 { return float64(e.PerGPU[0]) })
}

// wrong is a figure of another project, the formula that gives it, and the golden one that it should have been.
type wrong struct {
	project, formula, model, unit string
	figure                        float64
	formulaGives, ours            func() float64
}

var wrongs = []wrong{
	{"LocalAI", "bytes · d_model · kv_heads · context", "Llama-3.1-8B at 8,192", "MiB", 512,
		func() float64 { return 2 * 4096 * 8 * 8192 / float64(mebi) }, kv(llama8, 8192)},
	{"LocalAI", "bytes · d_model · kv_heads · context", "Llama-3.3-70B at 8,192", "MiB", 1024,
		func() float64 { return 2 * 8192 * 8 * 8192 / float64(mebi) }, kv(llama70, 8192)},
	{"Ollama", "2 · layers · kv_heads · (embedding / heads) · context · 2", "Qwen3-0.6B at 8,192", "MiB", 448,
		func() float64 { return 2 * 28 * 8 * (1024 / 16) * 8192 * 2 / float64(mebi) }, kv(qwen3Small, 8192)},
	{"gpumod", "2 · layers · kv_heads · head_dim · 2, every layer whole", "Gemma-3-27B at 32,000", "MiB", 15500,
		func() float64 { return 2 * 62 * 16 * 128 * 2 * 32000 / float64(mebi) }, kv(gemma3, 32000)},
	{"gpumod", "2 · layers · kv_heads · head_dim · 2, every layer whole", "Gemma-3n-E4B at 128,000", "MiB", 8750,
		func() float64 { return 2 * 35 * 2 * 256 * 2 * 128000 / float64(mebi) }, kv(gemma3n, 128000)},
	{"GPUStack", "weights · 1.2 + 2 GiB, whatever the context", "Llama-3.1-8B bf16, vLLM at 131,072", "GiB", 19.9,
		func() float64 { return 15317*1.2/1024 + 2 },
		func() float64 { return (15317 + kv(llama8, 131072)()) / 1024 }},
}

func deviation(ours, figure float64) float64 { return (ours - figure) / figure * 100 }

func TestGolden(t *testing.T) {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	row := func(cells ...any) {
		for i, c := range cells {
			if f, ok := c.(float64); ok {
				cells[i] = fmt.Sprintf("%.6g", math.Round(f*100)/100)
			}
		}
		fmt.Fprintf(table, strings.Repeat("%v\t", len(cells)-1)+"%v\n", cells...)
	}
	figures := func(title string, list []published, check func(p published, off float64)) {
		fmt.Fprintf(table, "%s\n", title)
		row("MODEL", "CONDITIONS", "UNIT", "PUBLISHED", "OURS", "OFF BY", "SOURCE")
		for _, p := range list {
			off := deviation(p.ours(), p.figure)
			row(p.model, p.conditions, p.unit, p.figure, p.ours(), fmt.Sprintf("%+.2f %%", off), p.source)
			check(p, off)
		}
		fmt.Fprintln(table)
	}
	figures("Golden figures, held to 3 %. KV of one slot and without padding of batches, but where an engine's options are named.", golden, func(p published, off float64) {
		if !(math.Abs(off) <= 3) {
			t.Errorf("%s, %s: %.6g %s, published %.6g: off by %+.2f %%", p.model, p.conditions, p.ours(), p.unit, p.figure, off)
		}
	})
	figures("Buffers of computation: not below what was measured, and at most half as much again.", bounds, func(p published, off float64) {
		if !(off >= -0.5 && off <= 50) {
			t.Errorf("%s, %s: %.6g %s, measured %.6g: off by %+.2f %%", p.model, p.conditions, p.ours(), p.unit, p.figure, off)
		}
	})
	figures("All that a process holds: not below what was measured, and at most 3 % more.", whole, func(p published, off float64) {
		if !(off >= 0 && off <= 3) {
			t.Errorf("%s, %s: %.6g %s, measured %.6g: off by %+.2f %%", p.model, p.conditions, p.ours(), p.unit, p.figure, off)
		}
	})
	fmt.Fprintln(table, "What other projects' formulas say.")
	row("PROJECT", "FORMULA", "MODEL", "UNIT", "THEY SAY", "OURS", "THEY ARE OFF BY")
	for _, w := range wrongs {
		row(w.project, w.formula, w.model, w.unit, w.figure, w.ours(), fmt.Sprintf("%+.1f %%", deviation(w.figure, w.ours())))
		if off := deviation(w.formulaGives(), w.figure); math.Abs(off) > 1 {
			t.Errorf("%s: the formula gives %.6g, which is not what it was said to be, %.6g", w.project, w.formulaGives(), w.figure)
		}
		if math.Abs(deviation(w.ours(), w.figure)) <= 3 {
			t.Errorf("%s's %s: ours is the same wrong figure", w.project, w.model)
		}
	}
	if err := table.Flush(); err != nil {
		t.Error(err)
	}
	if *report {
		fmt.Fprint(os.Stdout, out.String())
	}
}
