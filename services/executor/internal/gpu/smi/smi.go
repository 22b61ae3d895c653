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
	"os/exec"
	"path/filepath"
	"time"

	"durward.internal/services/executor/internal/gpu"
)

const (
	timeout = 4 * time.Second
	// maxOutput is far more than a host with hundreds of programs on 16 GPUs has.
	maxOutput = 1 << 20
)

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
	cmd := exec.CommandContext(ctx, s.program, args...) //nolint:gosec // a human names the program; the arguments are constants
	cmd.Env = []string{"LANG=C", "PATH=/usr/bin:/bin"}
	cmd.Dir = "/"
	cmd.WaitDelay = time.Second
	out := &bounded{}
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	return out.text, nil
}

// bounded refuses more than maxOutput.
type bounded struct{ text []byte }

func (b *bounded) Write(p []byte) (int, error) {
	if len(b.text)+len(p) > maxOutput {
		return 0, errOutput
	}
	b.text = append(b.text, p...)
	return len(p), nil
}
