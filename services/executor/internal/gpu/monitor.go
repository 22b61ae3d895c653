package gpu

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"durward.internal/services/platform/catalog"
)

const (
	// patience is how long a measurement may take. A driver whose GPU fell off the bus can keep a caller for ever.
	patience = 5 * time.Second
	// freshness is how old the measurement behind Last may be.
	freshness = time.Second
)

// Config is what a Monitor is made of.
type Config struct {
	// Source measures real GPUs; nil where this host has no driver.
	Source Source
	// Catalog returns the newest good one.
	Catalog func() *catalog.Catalog
	Logger  *slog.Logger
}

// Monitor knows the host's GPUs. It is safe for concurrent use, and measures when it is asked: an idle host is not polled.
//
// A catalog whose GPUs are all simulated is a simulation: the driver is not asked then, whatever this host has.
type Monitor struct {
	cfg Config
	// claims is set once, before anything is measured.
	claims func() []Claim
	proc   string
	// turn is held by whoever measures.
	turn chan struct{}

	mu sync.Mutex
	// since is when the measurement under way began; zero: none is.
	since time.Time
	raw   reading
	// bound are the GPUs that the catalog names by index alone, as they were first found: when one falls off the bus, the
	// driver counts the others anew.
	bound map[uint32]string
	// seen are GPUs that were measured once, by UUID.
	seen map[string]Device
	// xids are LastXID, hardware HardwareXID, by UUID.
	xids, hardware map[string]uint32
	// owners are the services of the processes that were last seen: a program that has just ended is still on the driver's list.
	owners map[int]string
	users  map[uint32]string

	// models is replaced, never changed.
	models atomic.Pointer[Models]
}

// reading is what the source said.
type reading struct {
	at      time.Time
	devices []Device
	err     error
}

// New returns a Monitor. Nothing is measured before it is asked.
func New(cfg Config) *Monitor {
	return &Monitor{
		cfg: cfg, claims: func() []Claim { return nil }, proc: "/proc", turn: make(chan struct{}, 1),
		bound: map[uint32]string{}, seen: map[string]Device{}, xids: map[string]uint32{}, hardware: map[string]uint32{},
		owners: map[int]string{}, users: map[uint32]string{},
	}
}

// Claimed says who knows every service that holds GPU memory now or may: without it none does. claims is called in Read and Last,
// and must not call them. Call it before the Monitor is used.
func (m *Monitor) Claimed(claims func() []Claim) { m.claims = claims }

// Read measures now: nothing in the answer is older than the call.
func (m *Monitor) Read(ctx context.Context) Host {
	known := m.cfg.Catalog()
	if !m.measures(known) {
		return m.compose(known, reading{at: time.Now()})
	}
	return m.compose(known, m.measure(ctx))
}

// Last is what is known without much waiting: the measurement is at most a second old, what services claim is of now.
func (m *Monitor) Last() Host {
	known := m.cfg.Catalog()
	if !m.measures(known) {
		return m.compose(known, reading{at: time.Now()})
	}
	m.mu.Lock()
	raw := m.raw
	m.mu.Unlock()
	if raw.at.IsZero() || time.Since(raw.at) > freshness {
		raw = m.measure(context.Background())
	}
	return m.compose(known, raw)
}

// Models is what the GPUs are that were found so far. It measures nothing and waits for nobody, so that claims may call it. As
// long as nothing changes it is the same pointer, and what it points to never changes. A real GPU is not in it before the first
// measurement; nil is as good as empty.
func (m *Monitor) Models() *Models { return m.models.Load() }

// hardwareXIDs are memory that cannot be corrected (48, 64, 95), a broken link (74), a lost card (79) and a dead co-processor (62, 119,
// 120). The others are mostly a program's fault.
var hardwareXIDs = []uint32{48, 62, 64, 74, 79, 95, 119, 120}

// Run listens for critical errors of GPUs until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	if m.cfg.Source == nil {
		return
	}
	m.cfg.Source.Watch(ctx, func(uuid string, xid uint32) {
		m.mu.Lock()
		m.xids[uuid] = xid
		if slices.Contains(hardwareXIDs, xid) {
			m.hardware[uuid] = xid
		}
		m.mu.Unlock()
		m.cfg.Logger.Warn("the GPU driver reports a critical error", "gpu_uuid", uuid, "xid", xid)
	})
}

// measures reports whether there is anything to measure.
func (m *Monitor) measures(known *catalog.Catalog) bool {
	if m.cfg.Source == nil {
		return false
	}
	return len(known.GPUs) == 0 || slices.ContainsFunc(known.GPUs, func(g catalog.GPU) bool { return !g.Simulated })
}

// measure asks the source, one caller at a time. Whoever waited takes over what was begun after it asked.
func (m *Monitor) measure(ctx context.Context) reading {
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m.mu.Lock()
	stuck := !m.since.IsZero() && asked.Sub(m.since) > patience
	m.mu.Unlock()
	if stuck {
		return m.keep(reading{at: asked, err: errSilent})
	}
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return reading{at: asked, err: fmt.Errorf("%w: %w", errSilent, ctx.Err())}
	}
	m.mu.Lock()
	if !m.raw.at.Before(asked) {
		raw := m.raw
		m.mu.Unlock()
		<-m.turn
		return raw
	}
	m.since = time.Now()
	began := m.since
	m.mu.Unlock()

	done := make(chan reading, 1)
	go func() {
		devices, err := m.cfg.Source.Read(ctx)
		r := reading{at: began, devices: devices, err: err}
		m.mu.Lock()
		m.since = time.Time{}
		m.mu.Unlock()
		// What came too late, or was broken off by its caller, is no news.
		if ctx.Err() == nil {
			m.keep(r)
		}
		<-m.turn
		done <- r
	}()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
		r := reading{at: began, err: fmt.Errorf("%w: %w", errSilent, ctx.Err())}
		if time.Since(began) >= patience {
			m.keep(r)
		}
		return r
	}
}

// keep notes the newest reading, and says so where the driver began or ceased to answer.
func (m *Monitor) keep(r reading) reading {
	m.mu.Lock()
	before := m.raw
	if r.at.Before(before.at) {
		m.mu.Unlock()
		return r
	}
	m.raw = r
	var lost []string
	for _, d := range r.devices {
		if d.Problem != "" && m.seen[d.UUID].Problem == "" {
			lost = append(lost, d.UUID)
		}
		if d.UUID != "" {
			m.seen[d.UUID] = Device{UUID: d.UUID, Name: d.Name, Index: d.Index, Problem: d.Problem}
		}
	}
	m.mu.Unlock()
	switch {
	case r.err != nil && before.err == nil:
		m.cfg.Logger.Error("the GPU driver does not answer", "source", m.cfg.Source.Name(), "error", r.err)
	case r.err == nil && before.err != nil:
		m.cfg.Logger.Info("the GPU driver answers again", "source", m.cfg.Source.Name())
	}
	for _, uuid := range lost {
		m.cfg.Logger.Error("a GPU does not answer", "gpu_uuid", uuid)
	}
	return r
}
