package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"

	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/inspect"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/vram"
)

// inspector is the program that reads models' files, beside the executor's own.
const inspector = "durward-inspect"

// openRequirements opens what is known of services' memory. Without the inspector, estimates come of the catalog's cards alone.
func openRequirements(ctx context.Context, cfg *settings, out memreq.Config) (*memreq.Tracker, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(filepath.Dir(own), inspector)
	if _, err := os.Stat(program); err != nil {
		out.Logger.Warn("the program that reads models' files is not beside the executor; estimates come of the catalogue's cards alone", "program", program)
	} else {
		out.Inspector = &inspect.Inspector{Program: program}
	}
	if oracle := cfg.GPU.LlamaFitParams; oracle != "" {
		out.Exact = func(ctx context.Context, file string, run vram.Run) ([]uint32, error) {
			devices, err := inspect.FitParams(ctx, oracle, file, run)
			if err != nil {
				return nil, err
			}
			return ofGPUs(devices)
		}
	}
	return memreq.New(ctx, out)
}

// ofGPUs is what llama.cpp's program says of each GPU, in its order. What it says of the host's memory is left out.
func ofGPUs(devices []inspect.DeviceMiB) ([]uint32, error) {
	var out []uint32
	for _, d := range devices {
		if strings.HasPrefix(d.Device, "CUDA") {
			out = append(out, uint32(min(uint64(d.Model)+uint64(d.Context)+uint64(d.Compute), math.MaxUint32)))
		}
	}
	if len(out) == 0 {
		return nil, errors.New("llama-fit-params names no GPU")
	}
	return out, nil
}

// reservedPeaks are the store's peaks on a disk that can become full: then nothing is written down of them.
type reservedPeaks struct {
	memreq.Memory
	kept *reserve.Reserve
}

// NotePeak implements memreq.Memory.
func (s reservedPeaks) NotePeak(ctx context.Context, p *store.Peak) error {
	return s.kept.Write(false, func() error { return s.Memory.NotePeak(ctx, p) })
}
