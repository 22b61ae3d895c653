// Package smi reads GPUs with the driver's command-line program, nvidia-smi: for builds without NVML.
//
// The program is run by its absolute path with fixed arguments, no shell and an empty environment, for a bounded time; its
// output is bounded and parsed strictly. It knows of no critical errors (XID).
package smi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/hostprogram"
)

const timeout = 4 * time.Second

// Errors of a Source.
var (
	ErrNoProgram = errors.New("nvidia-smi is not at the path that was given")
	errOutput    = errors.New("nvidia-smi writes what it should not")
)

// Source runs nvidia-smi.
type Source struct{ program string }

// New returns a Source for the program, an absolute path.
func New(program string) (*Source, error) {
	info, err := os.Stat(program)
	if err != nil || !filepath.IsAbs(program) || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoProgram, program)
	}
	return &Source{program}, nil
}

// Name implements gpu.Source.
func (*Source) Name() string { return gpu.SourceSMI }

// Watch implements gpu.Source: nothing is known of critical errors.
func (*Source) Watch(context.Context, func(string, uint32)) {}

// Close implements gpu.Source.
func (*Source) Close() error { return nil }

// Read implements gpu.Source. It runs the program twice: for the GPUs, and for what is on them.
func (s *Source) Read(ctx context.Context) ([]gpu.Device, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	raw, err := s.run(ctx, "--query-gpu="+fields, format)
	reserved := true
	if err != nil && ctx.Err() == nil {
		// Programs of before 2021 do not know what is reserved, and refuse the whole question.
		raw, err = s.run(ctx, "--query-gpu="+fieldsBefore, format)
		reserved = false
	}
	if err != nil {
		return nil, err
	}
	devices, err := parseDevices(raw, reserved)
	if err != nil {
		return nil, err
	}
	if raw, err = s.run(ctx, "--query-compute-apps="+programFields, format); err != nil {
		return nil, err
	}
	programs, err := parsePrograms(raw)
	if err != nil {
		return nil, err
	}
	for i := range devices {
		if devices[i].Problem == "" {
			devices[i].Processes = programs[devices[i].UUID]
		}
	}
	return devices, nil
}

// run returns what the program writes.
func (s *Source) run(ctx context.Context, args ...string) ([]byte, error) {
	return hostprogram.Run(ctx, s.program, args...)
}
