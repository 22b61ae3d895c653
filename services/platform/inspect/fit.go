package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/enginecmd"
	"durward.internal/services/platform/vram"
)

// DeviceMiB is what llama.cpp itself says that a model takes of one device, in MiB. Device is llama.cpp's name for it, "CUDA0" for
// the first GPU in the order of PCI addresses, "Host" for the host's memory. Untrusted: it is cleaned.
type DeviceMiB struct {
	Device                  string
	Model, Context, Compute uint32
}

// Bounds of the oracle.
const (
	fitTimeout = time.Minute // it reads a model's header and asks the GPUs' driver
	maxFit     = 16 << 10
	maxDevices = 64
)

// FitParams asks llama.cpp's llama-fit-params, by its absolute path, what a GGUF file takes with the run's settings: the exact
// answer of the version that is installed. It runs with this process's rights, since it has to reach the GPUs, so it is used only
// where a human named the program; and it reads the file with llama.cpp's own parser, outside the inspector's bounds.
//
// The format is that of llama.cpp PR 22171: a line for each device, "CUDA0 7401 814 517": the model's weights, the context's
// memory and buffers of computation, in MiB.
func FitParams(ctx context.Context, path, file string, run vram.Run) ([]DeviceMiB, error) {
	if !filepath.IsAbs(path) || !filepath.IsAbs(file) || strings.ContainsRune(file, 0) {
		return nil, errors.New("llama-fit-params and the model need absolute paths")
	}
	p := program{
		path: path, args: fitArguments(file, run), timeout: fitTimeout, most: maxFit,
		env: []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}, // as the driver numbers GPUs
	}
	r, err := p.run(ctx)
	switch {
	case err != nil:
		return nil, err
	case r.code != 0:
		return nil, errors.New("llama-fit-params refused the model or its settings")
	}
	return parseFit(string(r.stdout))
}

// fitArguments are llama.cpp's own (common/arg.cpp); what the run does not say is left to its defaults.
func fitArguments(file string, run vram.Run) []string {
	args := []string{"-m", file, "--fit-print", "on"}
	number := func(flag string, n uint32) {
		if n > 0 {
			args = append(args, flag, strconv.FormatUint(uint64(n), 10))
		}
	}
	word := func(flag, s string) {
		if s != "" {
			args = append(args, flag, s)
		}
	}
	number("-c", run.Context)
	number("-np", run.Parallel)
	number("-b", run.Batch)
	number("-ub", run.MicroBatch)
	word("-ctk", run.CacheK)
	word("-ctv", run.CacheV)
	word("-sm", run.SplitMode)
	word("-ts", run.TensorSplit)
	word("-dev", run.Devices)
	number("-mg", run.MainGPU)
	if run.GPULayers != nil {
		args = append(args, "-ngl", strconv.FormatUint(uint64(*run.GPULayers), 10))
	}
	args = append(args, expertArguments(run.CPUExperts)...)
	if run.HostCache {
		args = append(args, "-nkvo")
	}
	args = append(args, "-fa", onOff(run.FlashAttention), "--fit", onOff(run.Fit))
	if run.Fit {
		number("--fit-target", run.FitTargetMiB)
		number("--fit-ctx", run.FitContext)
	}
	if run.FullWindow {
		args = append(args, "--swa-full")
	}
	return args
}

// expertArguments name the layers whose experts stay with the host.
func expertArguments(kept enginecmd.LayerSet) []string {
	if kept == enginecmd.FirstLayers(enginecmd.AllExperts) {
		return []string{"--cpu-moe"}
	}
	var layers []string
	for _, layer := range kept.Layers() {
		layers = append(layers, strconv.FormatUint(layer, 10))
	}
	if len(layers) == 0 {
		return nil
	}
	return []string{"-ot", `^blk\.(` + strings.Join(layers, "|") + `)\.ffn_(up|down|gate|gate_up)_exps=CPU`}
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

// parseFit reads the lines strictly: anything else among them means that the program is not the one that this was written for.
func parseFit(out string) ([]DeviceMiB, error) {
	var devices []DeviceMiB
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 4 || len(devices) == maxDevices || len(fields[0]) > 64 || clean.Line(fields[0], clean.Whole) != fields[0] {
			return nil, errFit
		}
		d := DeviceMiB{Device: fields[0]}
		for i, to := range []*uint32{&d.Model, &d.Context, &d.Compute} {
			n, err := strconv.ParseUint(fields[i+1], 10, 32)
			if err != nil || n > math.MaxInt32 {
				return nil, errFit
			}
			*to = uint32(n)
		}
		devices = append(devices, d)
	}
	if len(devices) == 0 {
		return nil, errFit
	}
	return devices, nil
}

var errFit = fmt.Errorf("llama-fit-params did not answer with one line of %q for each device", "device model context compute")
