// Package gpu reads the host's GPUs: what they are, what is used of them, and by which programs. Real ones are read through the
// driver's library (package nvml, in builds with the tag "nvml") or its command-line program (package smi); simulated ones are
// reckoned from what running services declare, and always labelled as such.
//
// It trusts the driver's numbers and nothing else: names of programs are a program's own words.
package gpu

import "time"

// Where the numbers come from.
const (
	SourceNVML      = "nvml"
	SourceSMI       = "nvidia-smi"
	SourceSimulated = "simulated"
	SourceNone      = "none found"
)

// Host is one reading of every GPU of the host. Reading never fails: what could not be read says so.
type Host struct {
	Source string
	At     time.Time
	// Problem is why there are no GPUs at all, "" where that is as it should be: one of the sentences below.
	Problem string
	GPUs    []Device
}

// What can be wrong with a driver or a GPU.
const (
	ProblemDriver = "the GPU driver does not answer"
	ProblemLost   = "the GPU does not answer any more"
	ProblemAbsent = "the GPU that the catalogue names is not in this host"
)

// Device is one GPU. Sizes are MiB.
type Device struct {
	// Index is the catalogue's where the catalogue names the GPU, and the driver's otherwise.
	Index     uint32
	UUID      string
	Name      string
	Simulated bool
	// Problem is "" while the GPU answers, and otherwise one of the sentences; then the numbers below are 0.
	Problem string

	Total, Reserved, Used, Free uint32
	// Foreign is what programs use that are no service of this host; it is part of Used.
	Foreign uint32

	// What a GPU does not report is nil.
	Utilisation, Temperature, Power, ECC *uint32
	// LastXID is the newest critical error since the executor started; 0: none.
	LastXID uint32

	Processes []Process
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

// ServiceMiB is what the service's programs use on the GPU, as measured.
func (d Device) ServiceMiB(id string) uint32 {
	var sum uint32
	for _, p := range d.Processes {
		if p.Service == id {
			sum += p.MiB
		}
	}
	return sum
}

// Find returns the GPU with the catalogue's index.
func (h Host) Find(index uint32) (Device, bool) {
	for _, d := range h.GPUs {
		if d.Index == index {
			return d, true
		}
	}
	return Device{}, false
}
