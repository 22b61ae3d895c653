package inspect

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/vram"
)

func TestFitParams(t *testing.T) {
	t.Parallel()
	arguments := filepath.Join(open(t), "arguments")
	program := fake(t, `printf '%s ' "$@" > '`+arguments+`'; env | grep -q SECRET && exit 1; echo "0.00.196 I main: printing" >&2; printf 'CUDA0 7401 814 517 \nHost 1280 0 154 \n'`).Program
	model := file(t, "x")
	layers := uint32(0)
	for name, test := range map[string]struct {
		run  vram.Run
		want string
	}{
		"nothing said":                         {vram.Run{}, "-m FILE --fit-print on -fa off --fit off"},
		"experts of some layers with the host": {vram.Run{CPUExperts: enginecmd.FirstLayers(3)}, `-m FILE --fit-print on -ot ^blk\.(0|1|2)\.ffn_(up|down|gate|gate_up)_exps=CPU -fa off --fit off`},
		"of all":                               {vram.Run{CPUExperts: enginecmd.FirstLayers(enginecmd.AllExperts)}, "-m FILE --fit-print on --cpu-moe -fa off --fit off"},
		"everything": {vram.Run{
			Context: 32768, Parallel: 4, CacheK: "q8_0", CacheV: "q4_0", Batch: 1024, MicroBatch: 256, GPULayers: &layers,
			FlashAttention: true, FullWindow: true, Fit: true, FitTargetMiB: 512, FitContext: 8192, HostCache: true, SplitMode: "row", TensorSplit: "3,1", Devices: "CUDA1,CUDA0", MainGPU: 1,
		}, "-m FILE --fit-print on -c 32768 -np 4 -b 1024 -ub 256 -ctk q8_0 -ctv q4_0 -sm row -ts 3,1 -dev CUDA1,CUDA0 -mg 1 -ngl 0 -nkvo -fa on --fit on --fit-target 512 --fit-ctx 8192 --swa-full"},
	} {
		got, err := FitParams(t.Context(), program, model, test.run)
		must(t, err)
		if diff := cmp.Diff([]DeviceMiB{{"CUDA0", 7401, 814, 517}, {"Host", 1280, 0, 154}}, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		b, err := os.ReadFile(arguments)
		must(t, err)
		if got := strings.TrimSpace(strings.ReplaceAll(string(b), model, "FILE")); got != test.want {
			t.Errorf("%s: arguments %q, want %q", name, got, test.want)
		}
	}
}

func TestFitParamsRefuses(t *testing.T) {
	t.Parallel()
	model := file(t, "x")
	for name, script := range map[string]string{
		"nothing":            "exit 0",
		"a failure":          "echo CUDA0 1 2 3; exit 1",
		"words":              "echo the model fits",
		"a field too few":    "echo CUDA0 1 2",
		"a field too many":   "echo CUDA0 1 2 3 4",
		"below zero":         "echo CUDA0 -1 2 3",
		"a fraction":         "echo CUDA0 1.5 2 3",
		"beyond":             "echo CUDA0 4294967295 2 3",
		"an escape":          `printf 'CU\033[31mDA0 1 2 3\n'`,
		"a long name":        `printf '%0100d 1 2 3\n' 0`,
		"one bad among good": `printf 'CUDA0 1 2 3\nwarning: x\n'`,
		"70 devices":         `for i in $(seq 70); do echo CUDA$i 1 2 3; done`,
		"too much":           "yes CUDA0 1 2 3",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := FitParams(t.Context(), fake(t, script).Program, model, vram.Run{}); err == nil {
				t.Errorf("%+v", got)
			} else if name == "too much" && !errors.Is(err, ErrAnswer) {
				t.Errorf("%v", err)
			}
		})
	}
	if _, err := FitParams(t.Context(), "llama-fit-params", model, vram.Run{}); err == nil {
		t.Error("a program that is looked up in PATH is started")
	}
}
