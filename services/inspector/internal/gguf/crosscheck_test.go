package gguf

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	parser "github.com/gpustack/gguf-parser-go"

	"durward.internal/services/inspector/internal/gguftest"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/vram"
)

// What package vram makes of a card lies within 3 % of what the library's own estimate, made from the same file, says of the KV
// cache: two implementations of llama.cpp's rules, by different people. Run with -v for the table.
func TestKVBesideTheLibrary(t *testing.T) {
	t.Parallel()
	const context, batch = 32768, 512
	var table strings.Builder
	fmt.Fprintf(&table, "KV cache in MiB at %d tokens, one slot, f16, flash attention, batches of %d\n%-22s %9s %9s %8s\n",
		context, batch, "model", "library", "ours", "off by")
	for _, test := range []struct {
		name string
		file *gguftest.File
		// differs is what the library is known to say otherwise, as a part of ours.
		differs float64
		why     string
	}{
		{"Llama 3.1 8B", gguftest.Llama31(), 1, ""},
		{"Qwen3 0.6B", gguftest.Qwen3(), 1, ""},
		{"Gemma 3 27B", gguftest.Gemma3(), 1, ""},
		{"DeepSeek V2 Lite", gguftest.DeepSeek2(), 1, ""},
		{"Qwen3-Next 80B", gguftest.Qwen3Next(), 1, ""},
		{"Gemma 3n E4B", gguftest.Gemma3n(), 1, ""},
		{"Deci, heads by layer", gguftest.Deci(), 1, ""},
		{"Mamba 130M", gguftest.Mamba(), 1, ""},
		{"DeepSeek V2 Lite, MLA", gguftest.DeepSeek2Latent(), (192.0 + 128) / 576,
			"takes the heads that are computed (192 + 128) for the vector that is kept (576)"},
	} {
		path := filepath.Join(t.TempDir(), "model.gguf")
		whole := test.file.Bytes()
		write(t, path, whole)
		f, err := parser.ParseGGUFFile(path, parser.SkipLargeMetadata())
		must(t, err)
		e := f.EstimateLLaMACppRun(parser.WithLLaMACppContextSize(context), parser.WithFlashAttention(), parser.WithParallelSize(1),
			parser.WithLLaMACppLogicalBatchSize(batch), parser.WithLLaMACppPhysicalBatchSize(batch))
		var theirs float64
		for _, d := range e.Devices {
			theirs += float64(d.KVCache.Sum()) / (1 << 20)
		}
		card, err := Card(of1(whole))
		must(t, err)
		run := vram.Run{
			Engine: enginecmd.LlamaCPP, Context: context, Parallel: 1, CacheK: "f16", CacheV: "f16",
			Batch: batch, MicroBatch: batch, FlashAttention: true,
		}
		estimate, err := vram.Of(card, run, []vram.GPU{{TotalMiB: 1 << 20}})
		must(t, err)
		ours := float64(estimate.KVMiB)
		off := ours/theirs - 1
		fmt.Fprintf(&table, "%-22s %9.1f %9.1f %7.2f%% %s\n", test.name, theirs, ours, 100*off, test.why)
		// Sizes of a few MiB are rounded up by one at most.
		if math.Abs(ours*test.differs-theirs) > max(0.03*theirs, 1) {
			t.Errorf("%s: the library says %.1f MiB, we %.1f", test.name, theirs, ours)
		}
	}
	t.Log("\n" + table.String())
}
