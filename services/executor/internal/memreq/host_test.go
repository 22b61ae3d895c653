package memreq_test

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/vram"
)

// card is a driver of one GPU of 24,000 MiB, where one program, this test, holds what it is told to.
type card struct {
	gpu.Source
	mu    sync.Mutex
	holds uint32
	reads int
}

func (*card) Name() string { return gpu.SourceNVML }

func (c *card) Read(context.Context) ([]gpu.Device, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads++
	d := gpu.Device{UUID: "GPU-11111111-0000-0000-0000-000000000000", Name: "NVIDIA One", Total: 24000, Used: c.holds, Free: 24000 - c.holds}
	if c.holds > 0 {
		d.Processes = []gpu.Process{{PID: os.Getpid(), MiB: c.holds}}
	}
	return []gpu.Device{d}, nil
}

func (c *card) set(mib uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds = mib
}

func (c *card) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads
}

// programs is a driver whose "chat" is this test while it runs.
type programs struct {
	service.Driver
	mu    sync.Mutex
	since time.Time
}

func (p *programs) Status(s *catalog.Service) driver.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.ID != "chat" || p.since.IsZero() {
		return driver.Status{State: driver.Stopped}
	}
	return driver.Status{State: driver.Running, Since: p.since, PID: os.Getpid()}
}

func (*programs) Definition(context.Context, *catalog.Service) (string, error) {
	return "sha256:one", nil
}

func (p *programs) run(up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.since = time.Time{}
	if up {
		p.since = time.Now()
	}
}

type well struct{}

func (well) Check(context.Context, netip.AddrPort, *catalog.Health) (string, error) { return "", nil }

// TestAHostThatIsMeasured: monitor, manager and book together. What chat was measured to need decides what fits beside it, while it
// runs and when it has been stopped and comes back.
func TestAHostThatIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := catalog.Parse("catalogue.yaml", []byte(`version: 1
gpus: [{index: 0, uuid: "GPU-11111111-0000-0000-0000-000000000000", name: One}]
services:
  - {id: chat, driver: systemd, unit: chat.service, gpus: [0], vram_mib: 16000, port: 9001, health: {path: /health}, extra_config: {engine: vllm}}
  - {id: code, driver: systemd, unit: code.service, gpus: [0], vram_mib: 12000}
`), catalog.Options{Development: true})
		if err != nil {
			t.Fatal(err)
		}
		known, logger := func() *catalog.Catalog { return c }, platformtest.Logger()
		source, units := &card{}, &programs{}
		gpus := gpu.New(gpu.Config{Source: source, Catalog: known, Logger: logger})
		book, err := memreq.New(t.Context(), memreq.Config{
			Catalog: known, GPUs: gpus, Logger: logger, Definition: units.Definition,
		})
		if err != nil {
			t.Fatal(err)
		}
		services := service.New(service.Config{
			Catalog: known, Drivers: map[string]func() service.Driver{catalog.DriverSystemd: service.Is(units)}, Health: well{}, GPUs: gpus,
			Sizes: book.Sizes(), Logger: logger,
		})
		gpus.Claimed(services.Claims)
		var running sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		running.Go(func() { services.Run(ctx) })
		running.Go(func() { book.Run(ctx, services, gpus) })
		chat, code := c.Services[0], c.Services[1]
		fits := func(s *catalog.Service, want bool) {
			t.Helper()
			synctest.Wait()
			err := capacity.Admit(book.Sizes(), gpus.Read(ctx), s, 512)
			if (err == nil) != want || err != nil && !fault.Is(err, callv1.Code_CODE_DOES_NOT_FIT) {
				t.Errorf("%s fits: %v, want %v; chat needs %+v", s.ID, err, want, book.Awake(chat))
			}
		}

		needs := func(source string, mib uint32) {
			t.Helper()
			if got := book.Awake(chat); got.Source != source || got.MiB() != mib {
				t.Errorf("chat needs %+v, want %d, %s", got, mib, source)
			}
		}

		fits(code, true)
		source.set(9000)
		units.run(true)
		time.Sleep(5 * time.Second)
		needs(vram.Declared, 16000)
		fits(code, false)
		time.Sleep(time.Minute)
		needs(vram.Measured, 9000)
		fits(code, true)
		source.set(13000)
		time.Sleep(15 * time.Second)
		needs(vram.Measured, 13000)
		fits(code, false)
		// It gives some of that back. Nobody else gets it: it may take it again.
		source.set(9000)
		time.Sleep(time.Hour)
		needs(vram.Measured, 13000)
		fits(code, false)
		source.set(0)
		units.run(false)
		time.Sleep(15 * time.Second)
		fits(code, true)
		fits(chat, true)
		needs(vram.Measured, 13000)
		idle := source.count()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := source.count() - idle; n != 0 {
			t.Errorf("an idle host was measured %d times", n)
		}
		stop()
		running.Wait()
	})
}
