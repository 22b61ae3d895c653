package vram

import (
	"slices"
	"testing"

	"durward.internal/services/platform/model"
)

func BenchmarkEstimate(b *testing.B) {
	// The largest card that passes, as a hostile file could have it.
	worst := model.Card{WeightsMiB: model.MaxWeightsMiB, Context: model.MaxContext, Hidden: 128, Vocabulary: 1024, Layers: slices.Repeat(
		[]model.Layers{{Count: 1, Kind: model.Sliding, KVHeads: 8, KeyDim: 128, ValueDim: 128, Window: 1 << 29}}, model.MaxLayers)}
	for _, c := range []struct {
		name string
		card model.Card
		run  Run
		gpus []GPU
	}{
		{"llama.cpp", gemma3, llamaRun(func(r *Run) { r.Context = 32768 }), []GPU{{24564}, {24564}}},
		{"llama.cpp, fit", gemma3, llamaRun(func(r *Run) { r.Fit = true }), []GPU{{24564}, {24564}}},
		{"vLLM", gemma3, vllmRun(func(r *Run) { r.Context = 32768 }), []GPU{{81559}, {81559}}},
		{"hostile", worst, llamaRun(func(r *Run) { r.Fit = true }), slices.Repeat([]GPU{{1536}}, maxGPUs)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Of(c.card, c.run, c.gpus); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
