package vram

import (
	"encoding/json"
	"math"
	"testing"

	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
)

// FuzzEstimate: whatever a card, a run and GPUs say, there is an error or an estimate that holds together.
func FuzzEstimate(f *testing.F) {
	engines := []string{enginecmd.LlamaCPP, enginecmd.Ollama, enginecmd.VLLM, enginecmd.SGLang, "other"}
	for i, card := range []model.Card{gemma3, gemma3n, llama8Q4, deepseek, qwenNext, {WeightsMiB: math.MaxUint32}} {
		raw, err := json.Marshal(card)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, i, uint32(32768), uint32(i), uint32(2), "f16", 0.9, uint64(0), uint32(2048), uint32(512), int64(-1), byte(0xff), uint32(24564), uint32(24564))
		f.Add(raw, i, uint32(32768), uint32(i), uint32(2), "3,1", 0.9, uint64(0), uint32(1), uint32(512+i), int64(-1), byte(0x4f), uint32(24564), uint32(24564))
		f.Add(raw, i, uint32(math.MaxUint32), uint32(math.MaxUint32), uint32(math.MaxUint32), "q8_0", math.NaN(), uint64(math.MaxUint64), uint32(0), uint32(math.MaxUint32),
			int64(7), byte(0), uint32(0), uint32(math.MaxUint32))
	}
	f.Fuzz(func(t *testing.T, raw []byte, engine int, context, parallel, tensor uint32, cache string, utilisation float64, bytes uint64,
		batch, micro uint32, layers int64, flags byte, first, second uint32) {
		var card model.Card
		if json.Unmarshal(raw, &card) != nil {
			return
		}
		run := Run{Engine: engines[uint(engine)%uint(len(engines))], Context: context, Parallel: parallel, TensorParallel: tensor, CacheK: cache, CacheV: cache,
			Utilisation: utilisation, KVCacheBytes: bytes, Batch: batch, MicroBatch: micro, FlashAttention: flags&1 > 0, FullWindow: flags&2 > 0,
			Unified: flags&4 > 0, Fit: flags&8 > 0, FitTargetMiB: micro, Sleep: []string{"", "vllm-l1", "vllm-l2", "llama-router"}[flags>>4&3]}
		if flags&0xc0 == 0x40 {
			run.SplitMode, run.TensorSplit, run.Devices, run.MainGPU = []string{"", "none", "row", "tensor"}[micro&3], cache, "", parallel&3
			run.Drafts, run.Projectors, run.Adapters = int(parallel&1), int(tensor), int(batch)
		}
		if layers >= 0 {
			run.GPULayers = new(uint32(layers))
		}
		for _, gpus := range [][]GPU{{{first}}, {{first}, {second}}, {{second}, {first}, {first}, {0}}} {
			e, err := Of(card, run, gpus)
			if err != nil {
				if e.PerGPU != nil {
					t.Fatalf("%v and an estimate", err)
				}
				continue
			}
			if card.Check() != nil || len(e.PerGPU) != len(gpus) {
				t.Fatalf("%d GPUs: %+v", len(gpus), e)
			}
			if run.Engine == enginecmd.VLLM && run.KVCacheBytes == 0 {
				for i, g := range gpus {
					if e.PerGPU[i] > g.TotalMiB && uint64(e.PerGPU[i]) > uint64(g.TotalMiB)+contextMiB {
						t.Fatalf("a share of %d MiB is %d", g.TotalMiB, e.PerGPU[i])
					}
				}
			}
			if e.Context == 0 {
				t.Fatal("no context")
			}
		}
		if _, err := KVBytes(card, run, bytes); (err == nil) != (card.Check() == nil && len(card.Layers) > 0) {
			t.Fatal(err)
		}
	})
}
