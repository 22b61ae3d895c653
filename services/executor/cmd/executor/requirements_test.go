package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/inspect"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/platform/vram"
)

func TestWhatTheOracleSaysOfGPUs(t *testing.T) {
	t.Parallel()
	got, err := ofGPUs([]inspect.DeviceMiB{
		{Device: "CUDA0", Model: 7401, Context: 814, Compute: 517}, {Device: "Host", Model: 900}, {Device: "CUDA1", Model: 1, Context: 2, Compute: 3},
	})
	if diff := cmp.Diff([]uint32{8732, 6}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if got, err := ofGPUs([]inspect.DeviceMiB{{Device: "CUDA0", Model: 1 << 31, Context: 1 << 31, Compute: 5}}); err != nil || got[0] != 1<<32-1 {
		t.Errorf("absurd numbers: %v, %v", got, err)
	}
	if got, err := ofGPUs([]inspect.DeviceMiB{{Device: "Host", Model: 900}}); err == nil {
		t.Errorf("a host without GPUs: %v", got)
	}
}

// TestAModelsFileIsReadByTheProgramsBesideThisOne: the test's own folder has no inspector, so only the oracle speaks.
func TestAModelsFileIsReadByTheProgramsBesideThisOne(t *testing.T) {
	dir := t.TempDir()
	oracle, file := filepath.Join(dir, "llama-fit-params"), filepath.Join(dir, "model.gguf")
	for path, text := range map[string]string{oracle: "#!/bin/sh\necho CUDA0 7401 814 517\n", file: ""} {
		must(t, os.WriteFile(path, []byte(text), 0o700))
	}
	c, err := catalog.Parse("catalogue.yaml", []byte(`version: 1
gpus: [{index: 0, name: Made up, memory_mib: 24000, simulated: true}]
models:
  - id: tiny
    served_name: tiny
    file: `+file+`
    card: {architecture: llama, weights_mib: 4000, layers: [{count: 32, kind: full, kv_heads: 8, key_dim: 128, value_dim: 128}]}
services:
  - {id: chat, driver: systemd, unit: chat.service, gpus: [0], model: tiny, extra_config: {engine: llama.cpp, context_size: "8192", fit: "off"}}
`), catalog.Options{Development: true})
	must(t, err)
	known := func() *catalog.Catalog { return c }
	cfg := &settings{}
	cfg.GPU.LlamaFitParams = oracle
	var said strings.Builder
	logger := slog.New(slog.NewTextHandler(&said, nil))
	tracker, err := openRequirements(t.Context(), cfg, memreq.Config{
		Catalog: known, GPUs: gpu.New(gpu.Config{Catalog: known, Logger: logger}), Logger: logger,
	})
	must(t, err)
	if strings.Count(said.String(), inspector) != 1 {
		t.Errorf("of the missing program it says %q", said.String())
	}
	chat, _ := c.Lookup("chat")
	run, err := vram.RunOf(chat)
	must(t, err)
	estimate, err := vram.Of(*chat.Model.Card, run, []vram.GPU{{TotalMiB: 24000}})
	must(t, err)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	running.Go(func() { tracker.Run(ctx, nobody{}, gpu.New(gpu.Config{Catalog: known, Logger: logger})) })
	want := 7401 + 814 + 517 + estimate.OverheadMiB
	for deadline := time.Now().Add(30 * time.Second); tracker.Awake(chat).MiB() != want; time.Sleep(10 * time.Millisecond) { // no event: a real program is asked in the background
		if time.Now().After(deadline) {
			t.Fatalf("it needs %+v, want %d", tracker.Awake(chat), want)
		}
	}
}

// nobody is an executor whose services do not run.
type nobody struct{}

func (nobody) All() []*catalog.Service                  { return nil }
func (nobody) Status(*catalog.Service) (v service.View) { return v }
func (nobody) Watch(ctx context.Context, _ []string, _ func(service.Change) error) error {
	<-ctx.Done()
	return ctx.Err()
}

// disk is a disk that is full as long as its reserve is held.
type disk struct{ kept *reserve.Reserve }

func (d disk) write() error {
	if d.kept.InUse() {
		return nil
	}
	return fmt.Errorf("write: %w", syscall.ENOSPC)
}

// fullPeaks is what writes peaks to a disk that is full.
type fullPeaks struct {
	memreq.Memory
	disk
}

func (s fullPeaks) NotePeak(context.Context, *store.Peak) error { return s.write() }

// TestAFullDiskKeepsNoPeaks, and gives up no reserve for them.
func TestAFullDiskKeepsNoPeaks(t *testing.T) {
	kept, err := reserve.Open(t.TempDir(), 1<<20)
	must(t, err)
	memory := reservedPeaks{fullPeaks{disk: disk{kept}}, kept}
	if err := memory.NotePeak(t.Context(), &store.Peak{}); !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) || kept.InUse() {
		t.Errorf("a peak on a full disk: %v, reserve given up: %v", err, kept.InUse())
	}
}
