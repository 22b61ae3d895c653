package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Services of DemoCatalog.
const (
	// DemoService becomes healthy at once and answers on Port(0).
	DemoService = "demo-chat"
	// SlowService starts and never becomes healthy within the time that the catalog gives it; Port(1).
	SlowService = "demo-slow"
)

// ScriptedService is a service whose program is an interpreter, and whose script, svc.sh of the installation's folder, is an argument.
const ScriptedService = "demo-scripted"

// ScriptedEntry is its entry at the end of a catalogue, on the installation's nth port.
func ScriptedEntry(h *Host, n int) string {
	return fmt.Sprintf(`  - id: %s
    name: Scripted
    driver: process
    argv: [/usr/bin/env, sh, svc.sh]
    working_dir: %q
    port: %d
    health: {path: /health}
    stop_timeout_s: 2
`, ScriptedService, h.Dir, h.Port(n))
}

// DemoCatalog has two simulated GPUs, a demo service that counts its starts, and one that never gets ready.
func DemoCatalog(h *Host) string {
	return fmt.Sprintf(`version: 1
gpus:
  - {index: 0, name: Simulated 24 GB, memory_mib: 24576, simulated: true}
  - {index: 1, name: Simulated 80 GB, memory_mib: 81920, simulated: true}
models:
  - {id: demo-model, served_name: demo}
services:
  - id: %s
    name: Demo chat
    driver: process
    argv: [durward-demo, -port, "%d", -model, demo, -touch, %q]
    writes: [%q]
    port: %d
    health: {path: /health}
    model: demo-model
    vram_mib: 8192
    gpus: [0]
  - id: %s
    name: Slow starter
    driver: process
    argv: [durward-demo, -port, "%d", -touch, %q, -delay, 1h]
    writes: [%q]
    port: %d
    health: {path: /health}
    start_timeout_s: 600
    stop_timeout_s: 2
`, DemoService, h.Port(0), h.touchFile(DemoService), h.touchFile(DemoService), h.Port(0),
		SlowService, h.Port(1), h.touchFile(SlowService), h.touchFile(SlowService), h.Port(1))
}

func (h *Host) touchFile(service string) string { return filepath.Join(h.Dir, "starts-"+service) }

// Starts returns how often a service of the demo catalog was started: its effects, counted by itself.
func (h *Host) Starts(service string) int {
	h.t.Helper()
	b, err := os.ReadFile(h.touchFile(service))
	if os.IsNotExist(err) {
		return 0
	}
	h.must(err)
	return strings.Count(string(b), "\n")
}
