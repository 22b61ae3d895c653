package server

import (
	"context"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest"
)

// measured is a driver with two GPUs, one of them lost.
type measured struct{ gpu.Source }

func (measured) Name() string { return gpu.SourceNVML }

func (measured) Read(context.Context) ([]gpu.Device, error) {
	return []gpu.Device{
		{
			Index: 0, UUID: "GPU-0", Name: "One", Total: 1000, Reserved: 10, Used: 400, Free: 590,
			Utilisation: proto.Uint32(3), ECC: proto.Uint32(0),
			Processes: []gpu.Process{{PID: os.Getpid(), MiB: 300}, {PID: 1, MiB: 100}},
		},
		{Index: 1, UUID: "GPU-1", Problem: gpu.ProblemLost},
	}, nil
}

func host(source gpu.Source, gpus ...catalog.GPU) *gpu.Monitor {
	m := gpu.New(gpu.Config{Source: source, Catalog: func() *catalog.Catalog { return &catalog.Catalog{GPUs: gpus} }, Logger: platformtest.Logger()})
	m.Claimed(func() []gpu.Claim {
		return []gpu.Claim{{Service: "chat", PID: os.Getpid(), MiB: 350, GPUs: []uint32{0}}}
	})
	return m
}

// Agents see numbers and services; operators see every program as well.
func TestGPUs(t *testing.T) {
	monitor := host(measured{})
	got, err := NewTools(ToolsConfig{GPUs: monitor}).GpuStatus(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &executorv1.GpuStatusResponse{Source: "nvml", Gpus: []*executorv1.Gpu{
		{
			Uuid: "GPU-0", Name: "One", MemoryTotalMib: 1000, MemoryReservedMib: 10, MemoryUsedMib: 400, MemoryFreeMib: 590,
			MemoryClaimedMib: 350, MemoryForeignMib: 100, Services: []string{"chat"},
			UtilisationPercent: proto.Uint32(3), EccErrors: proto.Uint32(0),
		},
		{Index: 1, Uuid: "GPU-1", Problem: gpu.ProblemLost},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	shown, err := NewControl(ControlConfig{GPUs: monitor}).GetHost(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(shown.GetGpus()) != 2 || shown.GetSource() != "nvml" ||
		shown.GetMemoryTotalMib() < shown.GetMemoryAvailableMib() || shown.GetMemoryAvailableMib() == 0 {
		t.Errorf("the host is %v", shown)
	}
	if diff := cmp.Diff(want.GetGpus()[0], shown.GetGpus()[0].GetGpu(), protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	for i, service := range []string{"chat", ""} {
		p := shown.GetGpus()[0].GetProcesses()[i]
		if p.GetServiceId() != service || p.GetName() == "" || p.GetUser() == "" || p.GetMemoryMib() == 0 {
			t.Errorf("program %v", p)
		}
	}
}

func TestSimulatedGPUs(t *testing.T) {
	one := catalog.GPU{Index: 0, Name: "S", MemoryMiB: 300, Simulated: true}
	got, err := NewTools(ToolsConfig{GPUs: host(nil, one)}).GpuStatus(t.Context(), nil)
	want := &executorv1.GpuStatusResponse{Source: "simulated", Gpus: []*executorv1.Gpu{{
		Uuid: "simulated-0", Name: "S", Simulated: true, MemoryTotalMib: 300, MemoryUsedMib: 350, MemoryClaimedMib: 350,
		Services: []string{"chat"},
	}}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	got, err = NewTools(ToolsConfig{GPUs: host(nil)}).GpuStatus(t.Context(), nil)
	if err != nil || len(got.GetGpus()) != 0 || got.GetSource() != "none found" {
		t.Errorf("without GPUs: %v, %v", got, err)
	}
}

func TestHostMemory(t *testing.T) {
	for text, want := range map[string][2]uint32{
		"":                             {},
		"MemTotal: x kB\nMemAvailable": {},
		"MemTotal: -5 kB\n":            {},
		"MemTotal:       2048 kB\nMemFree: 1 kB\nMemAvailable:    1024 kB\n": {2, 1},
		"MemTotal: 18446744073709551615 kB":                                  {1<<32 - 1, 0},
	} {
		if total, available := hostMemory(text); total != want[0] || available != want[1] {
			t.Errorf("%q: %d, %d", text, total, available)
		}
	}
}
