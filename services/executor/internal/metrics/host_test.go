package metrics

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"durward.internal/services/executor/internal/driver/null"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/telemetry/telemetrytest"
	"durward.internal/services/platform/vram"
)

// measured is a driver with a GPU that answers and one that does not.
type measured struct {
	gpu.Source
	err error
}

func (*measured) Name() string { return gpu.SourceNVML }

// Watch tells of a link that broke, and of a program that the driver ended for it.
func (*measured) Watch(_ context.Context, tell func(string, uint32)) {
	tell("GPU-1", 74)
	tell("GPU-1", 45)
}

func (m *measured) Read(context.Context) ([]gpu.Device, error) {
	return []gpu.Device{
		{
			Index: 0, UUID: "GPU-0", Name: "One", Total: 1000, Reserved: 10, Used: 400, Free: 590, Utilisation: proto.Uint32(37),
			Temperature: proto.Uint32(41), Power: proto.Uint32(120), Processes: []gpu.Process{{PID: os.Getpid(), MiB: 300}, {PID: 1, MiB: 100}},
		},
		{Index: 1, UUID: "GPU-1", Problem: gpu.ProblemLost},
	}, m.err
}

// needs are what services need, by id.
type needs map[string]memreq.Need

func (n needs) Awake(s *catalog.Service) memreq.Need { return n[s.ID] }

func shown(t *testing.T, source gpu.Source, c *catalog.Catalog, claims ...gpu.Claim) (*Metrics, map[string]float64) {
	t.Helper()
	registry := prometheus.NewRegistry()
	known := func() *catalog.Catalog { return c }
	gpus := gpu.New(gpu.Config{Source: source, Catalog: known, Logger: platformtest.Logger()})
	gpus.Claimed(func() []gpu.Claim { return claims })
	gpus.Run(t.Context())
	m := New(registry,
		service.New(service.Config{
			Catalog: known, Drivers: map[string]func() service.Driver{catalog.DriverNull: service.Is(&null.Driver{})}, Logger: platformtest.Logger(),
		}),
		gpus,
		needs{"chat": {PerGPU: map[uint32]uint32{0: 500, 1: 20, 9: 7}, Source: vram.Estimated}, "new": {PerGPU: map[uint32]uint32{0: 0}, Source: vram.Unknown}})
	m.Switched("rolled_back")
	m.Phase("drain", 3)
	return m, telemetrytest.Samples(t, registry)
}

// What is measured is shown in base units under the driver's UUID; what is not known is not shown.
func TestHost(t *testing.T) {
	const mib = 1 << 20
	c := &catalog.Catalog{Services: []*catalog.Service{{ID: "chat", Driver: catalog.DriverNull}, {ID: "new", Driver: catalog.DriverNull}}}
	chat := gpu.Claim{Service: "chat", PID: os.Getpid(), MiB: 700, GPUs: []uint32{0, 1}, On: map[uint32]uint32{0: 500, 1: 20}}
	undeclared := gpu.Claim{Service: "new", GPUs: []uint32{0}, On: map[uint32]uint32{}}
	_, got := shown(t, &measured{}, c, chat, undeclared)
	for name, want := range map[string]float64{
		`durward_gpu_driver_up`:                                                           1,
		`durward_gpu_up{gpu="0",gpu_uuid="GPU-0"}`:                                        1,
		`durward_gpu_up{gpu="1",gpu_uuid="GPU-1"}`:                                        0,
		`durward_gpu_info{gpu="0",gpu_uuid="GPU-0",name="One",simulated="false"}`:         1,
		`durward_gpu_memory_total_bytes{gpu="0",gpu_uuid="GPU-0"}`:                        1000 * mib,
		`durward_gpu_memory_used_bytes{gpu="0",gpu_uuid="GPU-0"}`:                         400 * mib,
		`durward_gpu_memory_free_bytes{gpu="0",gpu_uuid="GPU-0"}`:                         590 * mib,
		`durward_gpu_memory_reserved_bytes{gpu="0",gpu_uuid="GPU-0"}`:                     10 * mib,
		`durward_gpu_memory_foreign_bytes{gpu="0",gpu_uuid="GPU-0"}`:                      100 * mib,
		`durward_gpu_memory_claimed_bytes{gpu="0",gpu_uuid="GPU-0"}`:                      500 * mib,
		`durward_gpu_memory_claimed_bytes{gpu="1",gpu_uuid="GPU-1"}`:                      20 * mib,
		`durward_gpu_utilisation_ratio{gpu="0",gpu_uuid="GPU-0"}`:                         0.37,
		`durward_gpu_temperature_celsius{gpu="0",gpu_uuid="GPU-0"}`:                       41,
		`durward_gpu_power_watts{gpu="0",gpu_uuid="GPU-0"}`:                               120,
		`durward_gpu_xid{gpu="0",gpu_uuid="GPU-0"}`:                                       0,
		`durward_gpu_hardware_xid{gpu="0",gpu_uuid="GPU-0"}`:                              0,
		`durward_gpu_hardware_xid{gpu="1",gpu_uuid="GPU-1"}`:                              74,
		`durward_service_memory_bytes{gpu_uuid="GPU-0",service="chat",source="measured"}`: 300 * mib,
		`durward_service_memory_bytes{gpu_uuid="GPU-0",service="chat",source="declared"}`: 350 * mib,
		`durward_service_vram_bytes{gpu_uuid="GPU-0",service="chat",source="estimated"}`:  500 * mib,
		`durward_service_vram_bytes{gpu_uuid="GPU-1",service="chat",source="estimated"}`:  20 * mib,
		`durward_service_state{service="chat",state="stopped"}`:                           1,
		`durward_service_state{service="chat",state="running"}`:                           0,
		`durward_executor_services{state="stopped"}`:                                      2,
		`durward_switch_total{result="rolled_back"}`:                                      1,
		`durward_switch_total{result="committed"}`:                                        0,
		`durward_switch_phase_seconds{phase="drain"}`:                                     1,
	} {
		if value, there := got[name]; !there || value != want {
			t.Errorf("%s is %v (%v), want %v", name, value, there, want)
		}
	}
	for _, name := range []string{
		`durward_gpu_memory_total_bytes{gpu="1",gpu_uuid="GPU-1"}`, `durward_service_vram_bytes{gpu_uuid="GPU-0",service="new",source="unknown"}`,
		`durward_gpu_ecc_uncorrected_errors{gpu="0",gpu_uuid="GPU-0"}`,
		`durward_service_memory_bytes{gpu_uuid="GPU-0",service="new",source="declared"}`, // it would be beyond that
	} {
		if value, there := got[name]; there {
			t.Errorf("%s is made up: %v", name, value)
		}
	}
}

// Without a driver, or without an answer of it, nothing is measured; several GPUs that nobody found spoil no scrape.
func TestHostWithoutAnswers(t *testing.T) {
	c := &catalog.Catalog{GPUs: []catalog.GPU{{Index: 0}, {Index: 1}, {Index: 2, Simulated: true, MemoryMiB: 100}}}
	claim := gpu.Claim{Service: "chat", MiB: 30, GPUs: []uint32{0, 1, 2}}
	for name, source := range map[string]gpu.Source{"no driver": nil, "no answer": &measured{err: errors.New("gone")}} {
		_, got := shown(t, source, c, claim)
		if got[`durward_gpu_driver_up`] != 0 || got[`durward_gpu_memory_used_bytes{gpu="2",gpu_uuid="simulated-2"}`] != 10<<20 {
			t.Errorf("%s: %v", name, got)
		}
		if _, there := got[`durward_service_memory_bytes{gpu_uuid="simulated-2",service="chat",source="measured"}`]; there {
			t.Errorf("%s: a simulated number passes for a measured one", name)
		}
	}
	if _, got := shown(t, nil, &catalog.Catalog{}); got[`durward_gpu_driver_up`] != 0 {
		t.Error("a driver was made up")
	}
	if _, got := shown(t, nil, &catalog.Catalog{}); len(got) == 0 {
		t.Error("nothing is shown")
	} else if _, there := got[`durward_gpu_driver_up`]; there {
		t.Error("a host without GPUs is alarmed about its driver")
	}
}
