// Package find chooses how this host's GPUs are read.
package find

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/gpu/nvml"
	"durward.internal/services/executor/internal/gpu/smi"
)

// Kinds of sources that a configuration may name.
const (
	Auto = "auto"
	None = "none"
)

// ErrKind is returned for a kind that does not exist.
var ErrKind = errors.New(`the GPU source is none of "auto", "nvml", "nvidia-smi" and "none"`)

// Source returns how GPUs are read: "nvml" with the driver's library (a file, or "" for the loader's), "nvidia-smi" with the
// program (an absolute path, or "" for the one in PATH), "none" with nothing, which is a nil Source, and "auto" or "" with
// the first of them that this host has. note is for whoever starts the process, "" where there is nothing to say. What is
// named and cannot be used is an error; a driver that does not answer yet is none. The caller closes the Source.
func Source(kind, library, program string) (source gpu.Source, note string, err error) {
	switch kind {
	case None:
		return nil, "", nil
	case gpu.SourceNVML:
		s, err := nvml.New(library)
		if err != nil {
			return nil, "", fmt.Errorf("gpu source %s: %w", kind, err)
		}
		return s, "", nil
	case gpu.SourceSMI:
		s, err := command(program)
		if err != nil {
			return nil, "", fmt.Errorf("gpu source %s: %w", kind, err)
		}
		return s, "", nil
	case Auto, "":
	default:
		return nil, "", ErrKind
	}
	n, err := nvml.New(library)
	if err == nil {
		return n, "", nil
	}
	if library != "" && !errors.Is(err, nvml.ErrNotBuilt) {
		return nil, "", fmt.Errorf("gpu source: %w", err)
	}
	why := "the GPU driver's library was not found"
	if errors.Is(err, nvml.ErrNotBuilt) {
		why = "this build has no NVML"
	}
	s, err := command(program)
	switch {
	case err == nil:
		return s, why + "; GPUs are read with nvidia-smi", nil
	case program != "":
		return nil, "", fmt.Errorf("gpu source: %w", err)
	default:
		return nil, "", nil
	}
}

// command finds nvidia-smi.
func command(program string) (gpu.Source, error) {
	if program == "" {
		found, err := exec.LookPath("nvidia-smi")
		if err != nil {
			return nil, err
		}
		if program, err = filepath.Abs(found); err != nil {
			return nil, err
		}
	}
	s, err := smi.New(program)
	if err != nil {
		return nil, err
	}
	return s, nil
}
