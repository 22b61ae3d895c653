package vram

import "testing"

func BenchmarkEstimate(b *testing.B) {
	for _, c := range []struct {
		name string
		run  Run
		gpus []GPU
	}{
		{"llama.cpp", llamaRun(func(r *Run) { r.Context = 32768 }), []GPU{{24564}, {24564}}},
		{"llama.cpp, fit", llamaRun(func(r *Run) { r.Fit = true }), []GPU{{24564}, {24564}}},
		{"vLLM", vllmRun(func(r *Run) { r.Context = 32768 }), []GPU{{81559}, {81559}}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Of(gemma3, c.run, c.gpus); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
