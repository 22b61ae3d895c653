package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/vram"
)

const bytesPerMiB = 1 << 20

// card are the labels of a GPU.
var card = []string{"gpu", "gpu_uuid"}

var (
	services = prometheus.NewDesc("durward_executor_services", "Services of the catalogue, by state.", []string{"state"}, nil)
	state    = prometheus.NewDesc("durward_service_state", "1 for the state that the service is in, 0 for the others.", []string{"service", "state"}, nil)
	held     = prometheus.NewDesc("durward_service_memory_bytes",
		"GPU memory of a service that holds it or may: as measured by the driver, and as declared in the catalogue.",
		[]string{"service", "gpu_uuid", "source"}, nil)

	needed = prometheus.NewDesc("durward_service_vram_bytes",
		"GPU memory that a service needs while it runs, and where the number comes from: measured before on this host, declared or estimated.",
		[]string{"service", "gpu_uuid", "source"}, nil)

	driver = prometheus.NewDesc("durward_gpu_driver_up",
		"Whether the GPU driver answers; only where the catalogue or the host has real GPUs.", nil, nil)
	info = prometheus.NewDesc("durward_gpu_info",
		"A GPU of this host. Numbers of a simulated one are reckoned from what services declare.",
		[]string{"gpu", "gpu_uuid", "name", "simulated"}, nil)
	up       = gauge("up", "Whether the GPU answers.")
	total    = gauge("memory_total_bytes", "All the memory of the GPU.")
	used     = gauge("memory_used_bytes", "Memory that programs use, without what the driver reserved.")
	free     = gauge("memory_free_bytes", "Memory that nobody uses.")
	reserved = gauge("memory_reserved_bytes", "Memory that the driver keeps for itself.")
	foreign  = gauge("memory_foreign_bytes", "Memory that programs use which are no service of this host; part of what is used.")
	claimed  = gauge("memory_claimed_bytes", "Memory that services need which hold it or may.")
	busy     = gauge("utilisation_ratio", "How much of the time the GPU was busy, from 0 to 1.")
	heat     = gauge("temperature_celsius", "The GPU's temperature.")
	power    = gauge("power_watts", "What the GPU draws.")
	ecc      = gauge("ecc_uncorrected_errors", "Memory errors since the driver was loaded that could not be corrected.")
	xid      = gauge("xid", "The newest critical error (XID) that the driver reported since the executor started; 0: none.")
	hardware = gauge("hardware_xid", "The newest of them that is the hardware's own, whatever other came after it; 0: none.")
)

func gauge(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("durward_gpu_"+name, help, card, nil)
}

// host looks at services and GPUs at each scrape.
type host struct {
	services *service.Manager
	gpus     *gpu.Monitor
	needs    Needs
}

// Describe implements prometheus.Collector.
func (h *host) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		services, state, held, needed, driver, info, up, total, used, free, reserved, foreign, claimed, busy, heat, power, ecc, xid, hardware,
	} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (h *host) Collect(out chan<- prometheus.Metric) {
	h.states(out)
	reading := h.gpus.Last()
	if reading.Source == gpu.SourceNVML || reading.Source == gpu.SourceSMI || reading.Problem != "" {
		one(out, driver, truth(reading.Problem == ""))
	}
	for _, d := range reading.GPUs {
		device(out, d)
	}
	h.sizes(out, reading)
}

// sizes shows what services need, whether they run or not. What nobody knows is not shown.
func (h *host) sizes(out chan<- prometheus.Metric, reading gpu.Host) {
	if h.needs == nil {
		return
	}
	for _, entry := range h.services.Catalog().Services {
		awake := h.needs.Awake(entry)
		for index, mib := range awake.PerGPU {
			if d, ok := reading.Find(index); ok && d.UUID != "" && awake.Source != vram.Unknown {
				one(out, needed, float64(mib)*bytesPerMiB, entry.ID, d.UUID, awake.Source)
			}
		}
	}
}

func (h *host) states(out chan<- prometheus.Metric) {
	var all []executorv1.ServiceState
	for n := range executorv1.ServiceState_name {
		if s := executorv1.ServiceState(n); s != executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED {
			all = append(all, s)
		}
	}
	counts := map[executorv1.ServiceState]int{}
	for _, entry := range h.services.Catalog().Services {
		now := h.services.Status(entry).State
		counts[now]++
		for _, s := range all {
			one(out, state, truth(s == now), entry.ID, service.StateName(s))
		}
	}
	for _, s := range all {
		one(out, services, float64(counts[s]), service.StateName(s))
	}
}

// device shows one GPU. One that does not answer has no numbers, rather than zeros.
func device(out chan<- prometheus.Metric, d gpu.Device) {
	index := strconv.FormatUint(uint64(d.Index), 10)
	one(out, info, 1, index, d.UUID, d.Name, strconv.FormatBool(d.Simulated))
	one(out, up, truth(d.Problem == ""), index, d.UUID)
	one(out, xid, float64(d.LastXID), index, d.UUID)
	one(out, hardware, float64(d.HardwareXID), index, d.UUID)
	one(out, claimed, float64(d.Claimed())*bytesPerMiB, index, d.UUID)
	for _, c := range d.Claims {
		if d.UUID == "" {
			break // several such GPUs would be one series
		}
		if c.Declared > 0 {
			one(out, held, float64(c.Declared)*bytesPerMiB, c.Service, d.UUID, "declared")
		}
	}
	if d.Problem != "" {
		return
	}
	for desc, mib := range map[*prometheus.Desc]uint32{total: d.Total, used: d.Used, free: d.Free, reserved: d.Reserved, foreign: d.Foreign} {
		one(out, desc, float64(mib)*bytesPerMiB, index, d.UUID)
	}
	if !d.Simulated {
		for _, id := range d.Services() {
			one(out, held, float64(d.ServiceMiB(id))*bytesPerMiB, id, d.UUID, "measured")
		}
	}
	if d.Utilisation != nil {
		one(out, busy, float64(*d.Utilisation)/100, index, d.UUID)
	}
	for desc, value := range map[*prometheus.Desc]*uint32{heat: d.Temperature, power: d.Power, ecc: d.ECC} {
		if value != nil {
			one(out, desc, float64(*value), index, d.UUID)
		}
	}
}

func one(out chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	m, err := prometheus.NewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	if err != nil {
		m = prometheus.NewInvalidMetric(desc, err)
	}
	out <- m
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
