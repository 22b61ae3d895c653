// Package gpu reads the host's GPUs: what they are, what is used of them, and by which programs. Real ones are read through the
// driver's library (package nvml, in builds with the tag "nvml") or its command-line program (package smi); simulated ones are
// reckoned from what running services claim, and always labelled as such.
//
// It trusts the driver's numbers and nothing else: names of programs are a program's own words.
package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"durward.internal/services/platform/catalog"
)

// Where the numbers come from.
const (
	SourceNVML      = "nvml"
	SourceSMI       = "nvidia-smi"
	SourceSimulated = "simulated"
	SourceNone      = "none found"
)

// Source reads real GPUs. Package nvml and package smi have one each. It is safe for concurrent use.
type Source interface {
	// Name is SourceNVML or SourceSMI.
	Name() string
	// Read measures every GPU: everything of a Device but Foreign, LastXID, HardwareXID, Claims and, of its processes, all but PID and MiB.
	// A GPU that does not answer is a Device with a Problem. An error means that the driver does not answer; the next Read tries
	// it afresh.
	Read(ctx context.Context) ([]Device, error)
	// Watch tells of each critical error (XID) as the driver reports it, until ctx ends. It returns at once where the source
	// knows of none.
	Watch(ctx context.Context, tell func(uuid string, xid uint32))
	// Close lets go of the driver.
	Close() error
}

// Host is one reading of every GPU of the host. Reading never fails: what could not be read says so.
type Host struct {
	Source string
	// Problem is why there are no GPUs at all, "" where that is as it should be: one of the sentences below.
	Problem string
	GPUs    []Device
}

// Err returns an error while the driver, or one of the GPUs, does not answer.
func (h Host) Err() error {
	if h.Problem != "" {
		return errors.New(h.Problem)
	}
	for _, d := range h.GPUs {
		if d.Problem != "" {
			return fmt.Errorf("GPU %d: %s", d.Index, d.Problem)
		}
	}
	return nil
}

// What can be wrong with a driver or a GPU.
const (
	ProblemDriver = "the GPU driver does not answer"
	ProblemLost   = "the GPU does not answer any more"
	ProblemAbsent = "the GPU that the catalogue names is not in this host"
	ProblemTaken  = "another entry of the catalogue names the GPU that has this index: give this entry its GPU's uuid, too"
	ProblemSlice  = "the catalogue names a slice of a GPU (MIG), and slices are not measured"
)

// Device is one GPU. Sizes are MiB.
type Device struct {
	// Index is the catalog's where the catalog names the GPU, and the driver's otherwise.
	Index     uint32
	UUID      string
	Name      string
	Simulated bool
	// Problem is "" while the GPU answers, and otherwise one of the sentences; then the measured numbers below are 0.
	Problem string

	// Total is all that the GPU has; Reserved is the driver's own and part of neither Used nor Free.
	Total, Reserved, Used, Free uint32
	// Foreign is what programs use that are no service of this host; it is part of Used.
	Foreign uint32

	// What a GPU does not report is nil. Percent, degrees Celsius, watts, uncorrected errors since the driver was loaded.
	Utilisation, Temperature, Power, ECC *uint32
	// LastXID is the newest critical error since the executor started; 0: none.
	LastXID uint32
	// HardwareXID is the newest of them that is the hardware's own: what follows it, such as the end of its programs, hides it in LastXID.
	HardwareXID uint32

	Processes []Process
	// Claims are what services need here that hold this GPU's memory or may, in the order in which Claimed has them.
	Claims []Share
}

// Model is what a GPU is, as against what is used of it.
type Model struct {
	// Name is the driver's, "NVIDIA H200", cleaned; "" for a simulated one.
	Name string
	// UUID is "" where the driver tells none.
	UUID string
	// Total is MiB, Reserved with them.
	Total     uint32
	Simulated bool
}

// Models are what GPUs are, by the catalog's index.
type Models struct{ byIndex map[uint32]Model }

// NewModels makes them of a map that nobody changes.
func NewModels(byIndex map[uint32]Model) *Models { return &Models{byIndex} }

// Find returns what the GPU is, if it was found.
func (m *Models) Find(index uint32) (Model, bool) {
	if m == nil {
		return Model{}, false
	}
	one, ok := m.byIndex[index]
	return one, ok
}

// Process is one program that holds memory on a GPU.
type Process struct {
	PID int
	// MiB is 0 where the driver does not say.
	MiB uint32
	// Name is the program's own word for itself: untrusted.
	Name string
	User string
	// Service is the id of the service that the program belongs to; "" for a foreign one.
	Service string
}

// Share is what one service claims on one GPU.
type Share struct {
	Service string
	// MiB is what it needs there in its present state, Declared what its entry says of that.
	MiB, Declared uint32
}

// Claim is a service that holds GPU memory now, or may: one that starts, runs, sleeps or is being stopped.
type Claim struct {
	Service string
	// CGroup is the control group of its programs, as /proc/PID/cgroup shows it; "" where it has none of its own. Then its
	// programs are PID, if that is not 0, and what descends from it.
	CGroup string
	PID    int
	// MiB is what it declares in its present state on all its GPUs together, shared evenly.
	MiB  uint32
	GPUs []uint32
	// On is what it needs in its present state by the catalog's index of the GPU, where that is known better than by MiB. A GPU of
	// GPUs that is not in it needs nothing. nil: MiB holds.
	On map[uint32]uint32
}

// share is what the claim takes of the GPU with the catalog's index, and what it declares there.
func (c Claim) share(index uint32) (mib, declared uint32, ok bool) {
	if !slices.Contains(c.GPUs, index) {
		return 0, 0, false
	}
	declared = catalog.Share(c.MiB, len(c.GPUs))
	if c.On == nil {
		return declared, declared, true
	}
	return c.On[index], declared, true
}

// ServiceMiB is what the service's programs use on the GPU, as measured; on a simulated one, what it claims.
func (d Device) ServiceMiB(id string) uint32 {
	var sum uint32
	for _, p := range d.Processes {
		if p.Service == id {
			sum += p.MiB
		}
	}
	return sum
}

// ClaimedMiB is what the service claims on the GPU, or 0 where it neither runs nor may.
func (d Device) ClaimedMiB(id string) uint32 {
	var sum uint32
	for _, c := range d.Claims {
		if c.Service == id {
			sum += c.MiB
		}
	}
	return sum
}

// Claimed is what all services claim that hold memory here or may.
func (d Device) Claimed() uint32 {
	var sum uint32
	for _, c := range d.Claims {
		sum += c.MiB
	}
	return sum
}

// Outstanding is what services claim beyond what they are measured to use: memory that is free now and promised.
func (d Device) Outstanding() uint32 {
	var sum uint32
	for _, c := range d.Claims {
		if used := d.ServiceMiB(c.Service); used < c.MiB {
			sum += c.MiB - used
		}
	}
	return sum
}

// Services are the ids of the services that hold memory here or may, each once: those that claim first.
func (d Device) Services() []string {
	var out []string
	seen := map[string]bool{"": true}
	add := func(id string) {
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	for _, c := range d.Claims {
		add(c.Service)
	}
	for _, p := range d.Processes {
		add(p.Service)
	}
	return out
}

// Find returns the GPU with the catalog's index.
func (h Host) Find(index uint32) (Device, bool) {
	for _, d := range h.GPUs {
		if d.Index == index {
			return d, true
		}
	}
	return Device{}, false
}
