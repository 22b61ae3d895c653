//go:build !nvml || !cgo

package nvml

import "durward.internal/services/executor/internal/gpu"

// New returns ErrNotBuilt: this build has no NVML.
func New(string) (gpu.Source, error) { return nil, ErrNotBuilt }
