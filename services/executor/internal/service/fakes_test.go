package service

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/catalog"
)

// model is an engine whose memory is on the GPUs of bench.
type model struct {
	mu     sync.Mutex
	calls  []string
	asleep bool
	// lies: it says that it sleeps and keeps its memory. keeps is what it keeps, in MiB.
	lies               bool
	keeps              uint32
	sleepErr, wakeErr  error
	warmErr, asleepErr error
	usage              engine.Usage
	sleepTook, warmFor time.Duration
	bench              *bench
}

func (e *model) did(call string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, call)
}

func (e *model) done() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

func (e *model) Sleep(context.Context, *catalog.Service) ([]string, error) {
	e.did("sleep")
	time.Sleep(e.sleepTook) // in a bubble of synctest, which takes no time
	if e.sleepErr != nil {
		return nil, e.sleepErr
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asleep = true
	if !e.lies {
		e.bench.hold(e.keeps)
	}
	return []string{"one"}, nil
}

func (e *model) Wake(_ context.Context, _ *catalog.Service, models []string) error {
	e.did("wake " + fmtList(models))
	if e.wakeErr != nil {
		return e.wakeErr
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asleep = false
	e.bench.hold(1000)
	return nil
}

func fmtList(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return list[0]
}

func (e *model) Asleep(context.Context, *catalog.Service) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asleep, e.asleepErr
}

func (e *model) Warm(ctx context.Context, _ *catalog.Service) error {
	e.did("warm")
	select {
	case <-time.After(e.warmFor):
	case <-ctx.Done():
		return ctx.Err()
	}
	return e.warmErr
}

func (e *model) Usage(context.Context, *catalog.Service) engine.Usage {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.usage
}

func (e *model) Drain(ctx context.Context, _ *catalog.Service, patience time.Duration) bool {
	e.did("drain")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if e.Usage(ctx, nil).Requests == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// bench is a host with one real GPU on which chat holds memory.
type bench struct {
	mu      sync.Mutex
	device  gpu.Device
	mib     uint32
	others  uint32
	nobody  bool // programs are not attributed
	none    bool // there is no such GPU
	beside  []gpu.Device
	measure int
}

func newBench() *bench { return &bench{device: gpu.Device{Index: 0, Total: 24000}} }

func (b *bench) hold(mib uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mib = mib
}

func (b *bench) set(change func(*bench)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

func (b *bench) Last() gpu.Host {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.none {
		return gpu.Host{}
	}
	d := b.device
	if d.Problem == "" {
		d.Used = b.mib + b.others
		d.Free = d.Total - d.Used
		p := gpu.Process{PID: 7, MiB: b.mib, Service: "chat"}
		if b.nobody {
			p.Service = ""
		}
		d.Processes = []gpu.Process{p}
	}
	return gpu.Host{GPUs: append([]gpu.Device{d}, b.beside...)}
}

func (b *bench) Read(context.Context) gpu.Host {
	b.set(func(b *bench) { b.measure++ })
	return b.Last()
}

// sleeper is a manager with one service that can sleep, and what is around it.
type sleeper struct {
	*Manager
	s       *catalog.Service
	program *program
	answers *answers
	model   *model
	bench   *bench
}

func newSleeper(t *testing.T) *sleeper {
	t.Helper()
	p, a, b := &program{after: driver.Running}, &answers{}, newBench()
	m, s := manager(t, p, a, 0)
	b.hold(1000)
	e := &model{bench: b, keeps: 100}
	m.cfg.Engine, m.cfg.GPUs, m.cfg.MarginMiB = e, b, 50
	s.Port, s.Sleep, s.VRAMMiB, s.SleepMiB, s.GPUs, s.OpenAI = 17999, catalog.SleepVLLM2, 1000, 100, []uint32{0}, true
	s.Model = &catalog.Model{ID: "org/one", ServedName: "one"}
	return &sleeper{m, s, p, a, e, b}
}

// up makes the service run.
func (w *sleeper) up() *sleeper {
	w.program.set(driver.Status{State: driver.Running, Since: time.Now()})
	w.check(context.Background(), w.s, w.instance(w.s.ID))
	return w
}

func (w *sleeper) state() executorv1.ServiceState { return w.Status(w.s).State }

var errNo = errors.New("halted")

func refusing(context.Context, func()) error { return errNo }
