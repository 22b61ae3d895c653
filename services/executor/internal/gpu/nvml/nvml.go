// Package nvml reads GPUs through the driver's own library, libnvidia-ml.so.1, in this process. It needs cgo and the build tag
// "nvml"; a build without them has New alone, which says so.
//
// The library is NVIDIA's closed code. It is loaded when a Source is made, by the file that a human named or the loader finds,
// and only its reading functions are called.
package nvml

import "errors"

// Reasons why there is no Source.
var (
	ErrNotBuilt = errors.New("this build has no NVML")
	// ErrNoLibrary: the library is not on this host.
	ErrNoLibrary = errors.New("the GPU driver's library was not found")
)
