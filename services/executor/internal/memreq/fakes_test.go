package memreq

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/platformtest"
)

const (
	starting = executorv1.ServiceState_SERVICE_STATE_STARTING
	running  = executorv1.ServiceState_SERVICE_STATE_RUNNING
	sick     = executorv1.ServiceState_SERVICE_STATE_UNHEALTHY
	asleep   = executorv1.ServiceState_SERVICE_STATE_SLEEPING
	stopped  = executorv1.ServiceState_SERVICE_STATE_STOPPED
)

// entries are of GPU 0 and 1. tiny is a made-up model of 4 layers.
const entries = `version: 1
gpus:
  - {index: 0, uuid: "GPU-11111111-0000-0000-0000-000000000000", name: One}
  - {index: 1, uuid: "GPU-22222222-0000-0000-0000-000000000000", name: Two}
models:
  - id: tiny
    served_name: tiny
    card: {architecture: llama, weights_mib: 4000, hidden: 1024, feed_forward: 4096, heads: 8, vocabulary: 32000, context: 131072, layers: [{count: 32, kind: full, kv_heads: 8, key_dim: 128, value_dim: 128}]}
  - {id: filed, served_name: filed, file: /nowhere/model.gguf}
services:
  - {id: declared, driver: systemd, unit: declared.service, gpus: [0], vram_mib: 8000, sleep: vllm-l1, sleep_mib: 600, port: 9001, openai: true, description: DESCRIPTION, extra_config: {engine: vllm}}
  - {id: both, driver: systemd, unit: both.service, gpus: [1, 0], vram_mib: 9001, extra_config: {engine: sglang}}
  - {id: guessed, driver: systemd, unit: guessed.service, gpus: [0], model: tiny, extra_config: {engine: llama.cpp, context_size: "8192", fit: "off"}}
  - {id: claims, driver: systemd, unit: claims.service, gpus: [0], model: tiny, extra_config: {engine: vllm, context_size: "8192", gpu_memory_utilization: "0.50"}}
  - {id: naps, driver: systemd, unit: naps.service, gpus: [0], model: tiny, vram_mib: 12800, sleep: vllm-l1, port: 9002, openai: true, extra_config: {engine: vllm, context_size: "8192", gpu_memory_utilization: "0.50"}}
  - {id: filed, driver: systemd, unit: filed.service, gpus: [0], model: filed, extra_config: {engine: llama.cpp, context_size: "8192", fit: "off"}}
  - {id: unknown, driver: systemd, unit: unknown.service, gpus: [0]}
  - {id: none, driver: systemd, unit: none.service}
  - {id: grows, driver: systemd, unit: grows.service, gpus: [0], vram_mib: 8000, sleep: vllm-l1, sleep_mib: 600, port: 9003, openai: true}
  - {id: dozes, driver: systemd, unit: dozes.service, gpus: [0, 1], vram_mib: 8000, sleep: vllm-l2, port: 9004, openai: true}
  - {id: fitted, driver: systemd, unit: fitted.service, gpus: [0], model: tiny, extra_config: {engine: llama.cpp}}
  - {id: narrow, driver: systemd, unit: narrow.service, gpus: [0], model: tiny, extra_config: {engine: vllm, context_size: "8192", gpu_memory_utilization: "0.15"}}
  - {id: ollama, driver: systemd, unit: ollama.service, gpus: [0], vram_mib: 8000, extra_config: {engine: ollama}}
`

// bench is a host of two real GPUs, whose numbers and services a test changes.
type bench struct {
	*testing.T
	mu         sync.Mutex
	catalog    *catalog.Catalog
	models     *gpu.Models
	views      map[string]service.View
	holds      map[string][]uint32 // by GPU 0 and 1
	silent     bool
	definition string
	// measured is how often the driver was asked.
	measured int
	tell     func(service.Change) error
	notes    []store.Peak
	kept     []store.Peak
	failing  bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, views: map[string]service.View{}, holds: map[string][]uint32{}, definition: "sha256:one"}
	b.edit("", "")
	b.hardware("NVIDIA One", 24564)
	return b
}

// edit takes the catalog over with one change of its text.
func (b *bench) edit(from, to string) {
	b.Helper()
	text := entries
	if from != "" {
		text = strings.Replace(entries, from, to, 1)
	}
	c, err := catalog.Parse("catalogue.yaml", []byte(text), catalog.Options{Development: true})
	if err != nil {
		b.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.catalog = c
}

// hardware is GPU 0; nobody names it "".
func (b *bench) hardware(name string, total uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.models = gpu.NewModels(map[uint32]gpu.Model{
		0: {Name: name, UUID: "GPU-1", Total: total}, 1: {Name: "NVIDIA Two", UUID: "GPU-2", Total: 24564},
	})
}

func (b *bench) book(change ...func(*Config)) *Tracker {
	b.Helper()
	cfg := Config{Catalog: b.current, GPUs: b, Definition: b.define, Memory: b, Logger: platformtest.Logger()}
	for _, c := range change {
		c(&cfg)
	}
	out, err := New(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// runs lets a book run until end, which waits for that.
func (b *bench) runs(t *testing.T, book *Tracker) (end func()) {
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		book.Run(ctx, b, b)
	}()
	return func() { stop(); <-done }
}

func (b *bench) current() *catalog.Catalog {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.catalog
}

func (b *bench) Models() *gpu.Models {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.models
}

func (b *bench) define(_ context.Context, s *catalog.Service) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.definition == "" {
		return "", errors.New("it cannot be read")
	}
	return b.definition, nil
}

func (b *bench) Peaks(context.Context) ([]store.Peak, error) { return b.kept, nil }

func (b *bench) NotePeak(_ context.Context, p *store.Peak) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failing {
		return errors.New("the disk is full")
	}
	b.notes = append(b.notes, *p)
	return nil
}

func (b *bench) noted() []store.Peak {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.notes)
}

func (b *bench) All() []*catalog.Service { return b.current().Services }

func (b *bench) Status(s *catalog.Service) service.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	if v, ok := b.views[s.ID]; ok {
		return v
	}
	return service.View{State: stopped}
}

func (b *bench) Watch(ctx context.Context, _ []string, send func(service.Change) error) error {
	b.mu.Lock()
	b.tell = send
	b.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// Read is the driver's measurement: what services hold, and 500 MiB of a stranger.
func (b *bench) Read(context.Context) gpu.Host {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.measured++
	h := gpu.Host{Source: gpu.SourceNVML}
	for index := range uint32(2) {
		d := gpu.Device{Index: index, Total: 24564, Used: 500, Foreign: 500, Processes: []gpu.Process{{PID: 3, MiB: 500}}}
		for id, mib := range b.holds {
			d.Used += mib[index]
			switch {
			case mib[index] == 0:
			case b.silent:
				d.Processes = append(d.Processes, gpu.Process{PID: 5, Service: id})
			default: // two programs of it
				d.Processes = append(d.Processes, gpu.Process{PID: 5, Service: id, MiB: mib[index] - 1}, gpu.Process{PID: 6, Service: id, MiB: 1})
			}
		}
		d.Free = d.Total - d.Used
		h.GPUs = append(h.GPUs, d)
	}
	return h
}

func (b *bench) measurements() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.measured
}

// is makes a service look like that, holding so much of GPU 0 and 1.
func (b *bench) is(id string, state executorv1.ServiceState, since int64, holds ...uint32) {
	b.mu.Lock()
	v := service.View{State: state, Healthy: state == running}
	if since > 0 {
		v.Since = time.Unix(since, 0)
	}
	b.views[id] = v
	delete(b.holds, id)
	if len(holds) > 0 {
		b.holds[id] = append(slices.Clone(holds), 0, 0)[:2]
	}
	tell := b.tell
	b.mu.Unlock()
	if tell != nil {
		if err := tell(service.Change{ID: id, State: state}); err != nil {
			b.Error(err)
		}
	}
}

func (b *bench) entry(id string) *catalog.Service {
	b.Helper()
	s, ok := b.current().Lookup(id)
	if !ok {
		b.Fatalf("there is no service %q", id)
	}
	return s
}

// settable is a sampler's time, which a test sets.
type settable struct{ at time.Time }

// sampling is a sampler on the bench, whose time goes on by ten seconds with each measurement.
func (b *bench) sampling(book *Tracker) (measure func(times int), flush func()) {
	c := &settable{time.Unix(1000, 0)}
	m := &sampler{book: book, services: b, host: b, runs: map[string]*run{}, now: func() time.Time { return c.at }}
	return func(times int) {
			for range times {
				c.at = c.at.Add(apart)
				m.sample(b.Context())
			}
		}, func() {
			for id, r := range m.runs {
				m.save(b.Context(), id, r, true)
			}
		}
}
