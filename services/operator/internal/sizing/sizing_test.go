package sizing

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"durward.internal/services/operator/internal/cli/clitest"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

// What is chosen fits wherever something does, on as few GPUs as possible and with the longest context that goes on those.
func TestChooseGPUs(t *testing.T) {
	t.Parallel()
	var small model.Card
	if err := json.Unmarshal([]byte(clitest.SmallCard), &small); err != nil {
		t.Fatal(err)
	}
	large := small
	large.WeightsMiB = 30000
	short := small
	short.Context = 2048
	gpus := func(sizes ...uint32) (out []GPU) {
		for i, n := range sizes {
			out = append(out, GPU{Index: uint32(i), TotalMiB: n})
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		card    model.Card
		engine  string
		gpus    []GPU
		wanted  uint32
		fits    bool
		on      int
		first   uint32
		context uint32
	}{
		{"room enough", small, enginecmd.LlamaCPP, gpus(24576, 24576), 0, true, 1, 0, 32768},
		{"the second has room", small, enginecmd.LlamaCPP, gpus(2048, 24576), 0, true, 1, 1, 32768},
		{"a shorter context", small, enginecmd.LlamaCPP, gpus(8192), 0, true, 1, 0, 8192},
		{"two at once", large, enginecmd.LlamaCPP, gpus(24576, 24576), 0, true, 2, 0, 32768},
		{"two at once, vLLM", large, enginecmd.VLLM, gpus(24576, 24576), 0, true, 2, 0, 32768},
		{"no two that are alike, vLLM", large, enginecmd.VLLM, gpus(24576, 16384), 0, false, 1, 1, 0},
		{"nowhere", large, enginecmd.LlamaCPP, gpus(8192, 8192), 0, false, 2, 0, 0},
		{"the model's own", short, enginecmd.LlamaCPP, gpus(24576), 0, true, 1, 0, 2048},
		{"as was asked", small, enginecmd.LlamaCPP, gpus(24576), 40960, true, 1, 0, 40960},
		{"not known", small, enginecmd.LlamaCPP, gpus(0), 0, false, 1, 0, 32768},
		{"not known, vLLM", small, enginecmd.VLLM, gpus(0), 0, false, 1, 0, 32768},
		{"none", small, enginecmd.VLLM, nil, 0, false, 0, 0, 32768},
	} {
		c := Choose(tc.card, tc.engine, tc.gpus, false, tc.wanted)
		if c.fits != tc.fits || len(c.GPUs) != tc.on || tc.on > 0 && tc.fits && c.GPUs[0].Index != tc.first || tc.context > 0 && c.context != tc.context {
			t.Errorf("%s: fits %v on %+v with %d tokens, share %q: %+v", tc.name, c.fits, c.GPUs, c.context, c.utilisation, c.estimate)
		}
		if c.fits && !c.room() {
			t.Errorf("%s: it fits and has no room: %+v", tc.name, c)
		}
	}
}

// What vLLM is given fits wherever a share does, and is the smallest that starts or one step more; of two GPUs the one that it fits on is
// taken.
func TestClaim(t *testing.T) {
	t.Parallel()
	var card model.Card
	if err := json.Unmarshal([]byte(clitest.SmallCard), &card); err != nil {
		t.Fatal(err)
	}
	fitted, tight := 0, 0
	for _, total := range []uint32{8192, 12288, 16384, 24576} {
		for weights := uint32(1000); weights < total; weights += 97 {
			card.WeightsMiB = weights
			at := func(percent int) (vram.Estimate, bool) {
				run, _ := vram.Defaults(enginecmd.VLLM)
				run.Context, run.TensorParallel, run.Utilisation = 8192, 1, float64(percent)/100
				e, err := vram.Of(card, run, []vram.GPU{{TotalMiB: total}})
				return e, err == nil && e.Starts && uint64(e.PerGPU[0])+MarginMiB <= uint64(total)
			}
			want := map[string]bool{}
			for percent := 30; percent <= 95; percent += 5 {
				if _, ok := at(percent); ok {
					want[fmt.Sprintf("%.2f", float64(percent)/100)] = true
					if _, ok := at(percent + 5); ok && percent < 95 {
						want = map[string]bool{fmt.Sprintf("%.2f", float64(percent+5)/100): true}
					} else {
						tight++
					}
					break
				}
			}
			c := runOn(card, enginecmd.VLLM, []GPU{{TotalMiB: total}}, 8192)
			if c.fits != (len(want) > 0) || c.fits && (!want[c.utilisation] || !c.room() || !c.estimate.Starts) {
				t.Errorf("%d MiB on %d: fits %v with %s, want one of %v: %+v", weights, total, c.fits, c.utilisation, want, c.estimate)
			}
			if c.fits {
				fitted++
			}
			if two := Choose(card, enginecmd.VLLM, []GPU{{TotalMiB: total}, {Index: 1, TotalMiB: 4 * total}}, false, 8192); !two.fits || c.fits != (two.GPUs[0].Index == 0) {
				t.Errorf("%d MiB on %d and a larger one: fits %v on %+v", weights, total, two.fits, two.GPUs)
			}
		}
	}
	if fitted < 100 || tight == 0 {
		t.Errorf("%d fit, %d of them without a step more: nothing was tested", fitted, tight)
	}
}

func TestModelNamed(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("0123456789", 4)
	for file, want := range map[string]Named{
		"/srv/m/Qwen3-8B-Q4_K_M.gguf":                             {"Qwen3-8B-Q4_K_M", ""},
		"/srv/m/big-00001-of-00005.gguf":                          {"big", ""},
		"/srv/m/Qwen3-32B":                                        {"Qwen3-32B", ""},
		"/h/models--Qwen--Qwen3-32B/snapshots/" + hash:            {"Qwen/Qwen3-32B", "hf:Qwen/Qwen3-32B"},
		"/h/models--a--b-GGUF/snapshots/" + hash + "/b-Q8_0.gguf": {"b-Q8_0", "hf:a/b-GGUF"},
		"/h/models--Qwen--Qwen3-32B/snapshots/" + hash[:39] + "x": {hash[:39] + "x", ""},
	} {
		if got := NameOf(file); got != want {
			t.Errorf("%s: %+v, want %+v", file, got, want)
		}
	}
}
