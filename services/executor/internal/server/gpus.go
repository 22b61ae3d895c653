package server

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/sink"
)

// GpuStatus lists the GPUs with their memory and the services that hold it. Programs are no agent's business: foreign ones are
// a number.
func (t *Tools) GpuStatus(ctx context.Context, _ *executorv1.GpuStatusRequest) (*executorv1.GpuStatusResponse, error) {
	h := t.cfg.GPUs.Last()
	out := &executorv1.GpuStatusResponse{Source: h.Source}
	silent := 0
	for _, d := range h.GPUs {
		if d.Problem != "" {
			silent++
		}
		out.Gpus = append(out.Gpus, gpuMessage(d))
	}
	line := fmt.Sprintf("%s, %s", count(len(out.Gpus), "GPU"), out.Source)
	switch {
	case len(out.Gpus) == 0 && h.Problem != "":
		line = h.Problem
	case len(out.Gpus) == 0:
		line = "no GPU was found on this host"
	case silent > 0:
		line += fmt.Sprintf(", %d without an answer", silent)
	}
	sink.Summarise(ctx, line)
	return out, nil
}

// GetHost shows the GPUs with every program on them, and the host's memory.
func (c *Control) GetHost(context.Context, *executorv1.GetHostRequest) (*executorv1.GetHostResponse, error) {
	h := c.cfg.GPUs.Last()
	out := &executorv1.GetHostResponse{Source: h.Source}
	for _, d := range h.GPUs {
		holders := &executorv1.GpuHolders{Gpu: gpuMessage(d)}
		for _, p := range d.Processes {
			holders.Processes = append(holders.Processes, &executorv1.GpuProcess{
				Pid: uint32(p.PID), MemoryMib: p.MiB, Name: p.Name, User: p.User, ServiceId: p.Service,
			})
		}
		out.Gpus = append(out.Gpus, holders)
	}
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		out.MemoryTotalMib, out.MemoryAvailableMib = hostMemory(string(raw))
	}
	return out, nil
}

// gpuMessage is a GPU as the contract has it.
func gpuMessage(d gpu.Device) *executorv1.Gpu {
	return &executorv1.Gpu{
		Index: d.Index, Uuid: d.UUID, Name: d.Name, Simulated: d.Simulated, Problem: d.Problem,
		MemoryTotalMib: d.Total, MemoryUsedMib: d.Used, MemoryFreeMib: d.Free, MemoryReservedMib: d.Reserved,
		MemoryClaimedMib: d.Claimed(), MemoryForeignMib: d.Foreign, Services: d.Services(),
		UtilisationPercent: d.Utilisation, TemperatureC: d.Temperature, PowerW: d.Power, EccErrors: d.ECC, LastXid: d.LastXID,
	}
}

// hostMemory reads /proc/meminfo, in MiB; what it does not find is 0.
func hostMemory(meminfo string) (total, available uint32) {
	for line := range strings.Lines(meminfo) {
		name, rest, _ := strings.Cut(line, ":")
		var into *uint32
		switch name {
		case "MemTotal":
			into = &total
		case "MemAvailable":
			into = &available
		default:
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err == nil {
			*into = uint32(min(kib/1024, math.MaxUint32))
		}
	}
	return total, available
}
