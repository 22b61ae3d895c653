//go:build nvml && cgo

package nvml

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"durward.internal/services/executor/internal/gpu"
)

const (
	// waitMS is how long one wait for an error of a GPU takes, in milliseconds. A driver that is opened anew waits for it.
	waitMS = 250
	// retry is how soon errors of GPUs are listened for again where the driver did not answer.
	retry = 5 * time.Second
	// notAvailable is the library's NVML_VALUE_NOT_AVAILABLE.
	notAvailable = math.MaxUint64
	mib          = 1 << 20
)

// errDriver is wrapped by every error of Read.
var errDriver = errors.New("the GPU driver's library reports")

// source reads GPUs through the library.
type source struct {
	lib nvml.Interface
	// hasV2 and hasMPS say whether the library has what older ones lack: a call of a missing function ends the process.
	hasV2, hasMPS bool

	// mu is held for reading while the library is used, and for writing while it is opened anew.
	mu    sync.RWMutex
	ready bool
	// round counts how often the library was opened: handles of another round are void.
	round int
	// uuids by the driver's index: a lost GPU does not say who it is. Read alone uses it, one call at a time.
	uuids map[int]string
}

// New loads the library, a file, or "" for the loader's libnvidia-ml.so.1. A driver that does not answer yet is no error: Read
// tries it again.
func New(file string) (gpu.Source, error) {
	file = cmp.Or(file, "libnvidia-ml.so.1")
	probe := dl.New(file, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := probe.Open(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	has := func(symbol string, versions ...string) bool {
		return slices.ContainsFunc(versions, func(v string) bool { return probe.Lookup(symbol+v) == nil })
	}
	// A library that is another one, or much too old, must not be called at all.
	for _, symbol := range []string{
		"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID",
		"nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage",
		"nvmlDeviceGetTotalEccErrors", "nvmlEventSetCreate", "nvmlEventSetFree", "nvmlDeviceRegisterEvents",
	} {
		if !has(symbol, "") {
			return nil, fmt.Errorf("%w: the file has no %s", ErrNoLibrary, symbol)
		}
	}
	if !has("nvmlEventSetWait", "", "_v2") || !has("nvmlDeviceGetComputeRunningProcesses", "", "_v2", "_v3") ||
		!has("nvmlDeviceGetGraphicsRunningProcesses", "", "_v2", "_v3") {
		return nil, fmt.Errorf("%w: the file is not whole", ErrNoLibrary)
	}
	s := &source{
		lib: nvml.New(nvml.WithLibraryPath(file)), uuids: map[int]string{},
		hasV2:  has("nvmlDeviceGetMemoryInfo_v2", ""),
		hasMPS: has("nvmlDeviceGetMPSComputeRunningProcesses", "", "_v2", "_v3"),
	}
	ret := s.lib.Init()
	if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return nil, ErrNoLibrary
	}
	s.ready = ret == nvml.SUCCESS
	return s, nil
}

// Name implements gpu.Source.
func (*source) Name() string { return gpu.SourceNVML }

// Close implements gpu.Source. Nothing may be read afterwards.
func (s *source) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return nil
	}
	s.ready = false
	return problem("shutdown", s.lib.Shutdown())
}

// Read implements gpu.Source. Where the driver was unloaded and loaded again, the library is opened anew.
func (s *source) Read(ctx context.Context) ([]gpu.Device, error) {
	devices, err := s.read()
	if err == nil || ctx.Err() != nil {
		return devices, err
	}
	if err := s.reopen(); err != nil {
		return nil, err
	}
	return s.read()
}

func (s *source) reopen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
	if s.ready {
		s.ready = false
		// It fails where the driver is gone; there is nothing to let go of then.
		_ = s.lib.Shutdown()
	}
	if ret := s.lib.Init(); ret != nvml.SUCCESS {
		return problem("init", ret)
	}
	s.ready = true
	return nil
}

func (s *source) read() ([]gpu.Device, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.ready {
		return nil, problem("init", nvml.ERROR_UNINITIALIZED)
	}
	n, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, problem("count", ret)
	}
	out := make([]gpu.Device, 0, n)
	for i := range n {
		d, ret := s.device(i)
		switch ret {
		case nvml.SUCCESS:
			s.uuids[i] = d.UUID
		case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
			return nil, problem("device", ret)
		case nvml.ERROR_NO_PERMISSION:
			// Such a GPU is another container's, or another user's.
			continue
		default:
			d = gpu.Device{Index: uint32(i), UUID: cmp.Or(d.UUID, s.uuids[i]), Name: d.Name, Problem: gpu.ProblemLost}
		}
		out = append(out, d)
	}
	return out, nil
}

// device reads one GPU. What it does not report stays nil; without its memory it is of no use.
func (s *source) device(index int) (gpu.Device, nvml.Return) {
	d := gpu.Device{Index: uint32(index)}
	h, ret := s.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		return d, ret
	}
	if d.UUID, ret = h.GetUUID(); ret != nvml.SUCCESS {
		return d, ret
	}
	if d.Name, ret = h.GetName(); ret != nvml.SUCCESS {
		d.Name = ""
	}
	if ret = s.memory(h, &d); ret != nvml.SUCCESS {
		return d, ret
	}
	if u, ret := h.GetUtilizationRates(); ret == nvml.SUCCESS {
		d.Utilisation = &u.Gpu
	}
	if t, ret := h.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		d.Temperature = &t
	}
	if milliwatts, ret := h.GetPowerUsage(); ret == nvml.SUCCESS {
		watts := milliwatts / 1000
		d.Power = &watts
	}
	if e, ret := h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS {
		n := uint32(min(e, math.MaxUint32))
		d.ECC = &n
	}
	d.Processes = s.processes(h)
	return d, nvml.SUCCESS
}

// memory reads what the GPU has. Version 1 of the call counts what the driver reserved as used.
func (s *source) memory(h nvml.Device, d *gpu.Device) nvml.Return {
	if s.hasV2 {
		m, ret := h.GetMemoryInfo_v2()
		if ret == nvml.SUCCESS {
			d.Total, d.Reserved, d.Used, d.Free = sizes(m.Total), sizes(m.Reserved), sizes(m.Used), sizes(m.Free)
			return ret
		}
		if ret != nvml.ERROR_NOT_SUPPORTED && ret != nvml.ERROR_FUNCTION_NOT_FOUND && ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			return ret
		}
	}
	m, ret := h.GetMemoryInfo()
	if ret == nvml.SUCCESS {
		d.Total, d.Used, d.Free = sizes(m.Total), sizes(m.Used), sizes(m.Free)
	}
	return ret
}

func sizes(bytes uint64) uint32 { return uint32(min(bytes/mib, math.MaxUint32)) }

// processes are the programs on the GPU, each once, whatever it does there: a program can compute and draw.
func (s *source) processes(h nvml.Device) []gpu.Process {
	lists := []func() ([]nvml.ProcessInfo, nvml.Return){h.GetComputeRunningProcesses, h.GetGraphicsRunningProcesses}
	if s.hasMPS {
		lists = append(lists, h.GetMPSComputeRunningProcesses)
	}
	used := map[int]uint32{}
	for _, list := range lists {
		infos, ret := list()
		if ret != nvml.SUCCESS {
			continue
		}
		for _, p := range infos {
			var size uint32
			if p.UsedGpuMemory != notAvailable {
				size = sizes(p.UsedGpuMemory)
			}
			used[int(p.Pid)] = max(used[int(p.Pid)], size)
		}
	}
	var out []gpu.Process
	for pid, size := range used {
		out = append(out, gpu.Process{PID: pid, MiB: size})
	}
	slices.SortFunc(out, func(a, b gpu.Process) int { return cmp.Compare(a.PID, b.PID) })
	return out
}

// Watch implements gpu.Source.
func (s *source) Watch(ctx context.Context, tell func(uuid string, xid uint32)) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		s.listen(ctx, tell)
		pause.Reset(retry)
	}
}

// listen tells of errors until ctx ends or the library cannot be asked any more. GPUs that fall away are no reason to end:
// that is when the others are worth listening to.
func (s *source) listen(ctx context.Context, tell func(string, uint32)) {
	s.mu.RLock()
	set, round, names := s.register()
	s.mu.RUnlock()
	if set == nil {
		return
	}
	for ctx.Err() == nil {
		s.mu.RLock()
		if s.round != round || !s.ready {
			// The set went with the library.
			s.mu.RUnlock()
			return
		}
		event, ret := set.Wait(waitMS)
		s.mu.RUnlock()
		switch ret {
		case nvml.SUCCESS:
			if event.EventType == nvml.EventTypeXidCriticalError {
				tell(names[event.Device], uint32(min(event.EventData, math.MaxUint32)))
			}
		case nvml.ERROR_TIMEOUT:
		default:
			s.release(set, round)
			return
		}
	}
	s.release(set, round)
}

func (s *source) release(set nvml.EventSet, round int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.round == round && s.ready {
		_ = set.Free()
	}
}

// register asks for the errors of every GPU that reports them; the set is nil where none does.
func (s *source) register() (nvml.EventSet, int, map[nvml.Device]string) {
	if !s.ready {
		return nil, 0, nil
	}
	n, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, 0, nil
	}
	set, ret := s.lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil, 0, nil
	}
	names := map[nvml.Device]string{}
	for i := range n {
		h, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ret := h.GetUUID()
		if ret == nvml.SUCCESS && h.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
			names[h] = uuid
		}
	}
	if len(names) == 0 {
		_ = set.Free()
		return nil, 0, nil
	}
	return set, s.round, names
}

// problem is the error for what the library returned; nil for success.
func problem(what string, ret nvml.Return) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", errDriver, what, ret.Error())
}
