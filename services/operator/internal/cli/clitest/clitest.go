// Package clitest helps tests of commands. No program links it.
package clitest

import (
	"bytes"
	"strings"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/output"
)

// ExecutorID is the executor that tests sign for.
const ExecutorID = "spiffe://durward.local/executor/local"

// Now is the time in tests.
var Now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// Printing returns a run of the command, and what it writes.
func Printing(asJSON bool) (a *cli.App, out, errs *bytes.Buffer) {
	out, errs = &bytes.Buffer{}, &bytes.Buffer{}
	getenv := func(string) string { return "" }
	a = &cli.App{Streams: cli.Streams{In: strings.NewReader(""), Out: out, Err: errs, Getenv: getenv}, Now: func() time.Time { return Now }}
	if asJSON {
		a.Format = output.JSON
	}
	a.Out = output.New(out, errs, getenv)
	return a, out, errs
}

// SmallCard is what the inspector's stand-in says: a model of 8 B parameters in 4 bits, by the public config.json of Qwen3-8B (36 layers,
// 8 KV heads of 128), in canonical JSON.
const SmallCard = `{"architecture":"qwen3","context":40960,"feed_forward":12288,"heads":32,"hidden":4096,"host_weights_mib":333,` +
	`"layers":[{"count":36,"key_dim":128,"kind":"full","kv_heads":8,"value_dim":128}],"vocabulary":151936,"weights_mib":4789}`

// Host is a host with two GPUs, one of which does not answer.
func Host() *executorv1.GetHostResponse {
	busy := uint32(12)
	return &executorv1.GetHostResponse{Source: "nvml", MemoryTotalMib: 65536, MemoryAvailableMib: 20480, Gpus: []*executorv1.GpuHolders{
		{
			Gpu: &executorv1.Gpu{
				Index: 0, Name: "NVIDIA X", MemoryTotalMib: 24576, MemoryUsedMib: 9216, MemoryForeignMib: 3072, MemoryFreeMib: 14848,
				MemoryReservedMib: 512, MemoryClaimedMib: 8192, UtilisationPercent: &busy, LastXid: 79,
			},
			Processes: []*executorv1.GpuProcess{
				{Pid: 4711, MemoryMib: 6144, Name: "vllm", User: "durward-chat", ServiceId: "chat"},
				{Pid: 4242, MemoryMib: 3072, Name: "python\x1b]0;x\x07", User: "bob"},
			},
		},
		{Gpu: &executorv1.Gpu{Index: 1, Name: "NVIDIA X", Problem: "the GPU does not answer any more"}},
	}}
}
