package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"durward.internal/deploy/e2e/fakegpu"
)

// Of ModesCatalog beside DemoService.
const (
	// SleepyService can sleep; Port(2).
	SleepyService = "demo-sleepy"
	// DayMode holds DemoService alone, NightMode SleepyService.
	DayMode, NightMode = "day", "night"
	// DemoModel is what DemoService serves.
	DemoModel = "durward/demo-1b"
	// LoggedSecret is a credential that SleepyService writes into its log as a setting.
	LoggedSecret = "Tr0ub4dor-and-3"
)

// ModesCatalog has two modes on two simulated GPUs: DemoService, which counts its starts, and a stand-in for vLLM that can sleep and
// that writes a password into its log.
func ModesCatalog(h *Host) string {
	return fmt.Sprintf(`version: 1
gpus:
  - {index: 0, name: Simulated 24 GB, memory_mib: 24576, simulated: true}
  - {index: 1, name: Simulated 80 GB, memory_mib: 81920, simulated: true}
models:
  - {id: %s, served_name: demo, source: "hf:durward/demo"}
services:
  - id: %s
    name: Demo chat
    driver: process
    argv: [durward-demo, -port, "%d", -model, demo, -touch, %q]
    writes: [%q]
    port: %d
    health: {path: /health}
    model: %s
    vram_mib: 8192
    gpus: [0]
  - id: %s
    name: Sleepy
    driver: process
    argv: [durward-engine, -api, vllm, -port, "%d", -record, %q, -model, "admin_password=%s"]
    writes: [%q]
    port: %d
    health: {path: /health}
    vram_mib: 16384
    gpus: [1]
    sleep: vllm-l1
    sleep_mib: 1024
    start_timeout_s: 60
modes:
  - {id: %s, name: By day, services: [%s]}
  - {id: %s, name: By night, services: [%s]}
`, DemoModel, DemoService, h.Port(0), h.touchFile(DemoService), h.touchFile(DemoService), h.Port(0), DemoModel,
		SleepyService, h.Port(2), filepath.Join(h.Dir, "record-"+SleepyService), LoggedSecret, filepath.Join(h.Dir, "record-"+SleepyService), h.Port(2),
		DayMode, DemoService, NightMode, SleepyService)
}

// StartMeasured starts an installation whose one GPU is measured: by a stand-in for nvidia-smi, over a folder that SleepyService takes
// its memory in. Egress runs too.
func StartMeasured(t testing.TB) *Host {
	t.Helper()
	h := New(t, Options{Catalog: measuredCatalog, Egress: true})
	if _, err := fakegpu.New(h.Path("gpus"), fakegpu.GPU{UUID: "GPU-00000000-1111-2222-3333-444444444444", Name: "NVIDIA H100 80GB HBM3", Total: 81559, Reserved: 560}); err != nil {
		t.Fatal(err)
	}
	program := h.Path("nvidia-smi")
	script := fmt.Sprintf("#!/bin/sh\n%s=%q exec %q \"$@\"\n", fakegpu.Variable, h.Path("gpus"), filepath.Join(h.Bin, "nvidia-smi"))
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	h.WriteFile("config/executor.yaml", h.ReadFile("config/executor.yaml")+fmt.Sprintf("\ngpu: {source: nvidia-smi, program: %q}\n", program))
	h.StartAll()
	return h
}

func measuredCatalog(h *Host) string {
	return fmt.Sprintf(`version: 1
gpus:
  - {index: 0, name: H100}
services:
  - id: %s
    name: Sleepy
    driver: process
    argv: [durward-engine, -api, vllm, -port, "%d", -name, %s, -fake-gpu, %q, -vram, "8192"]
    port: %d
    health: {path: /health}
    vram_mib: 8192
    gpus: [0]
`, SleepyService, h.Port(2), SleepyService, h.Path("gpus"), h.Port(2))
}
