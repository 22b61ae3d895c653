package memreq

import (
	"context"
	"maps"
	"slices"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
)

const (
	// quick is the time between measurements while a service starts, stops, or came up less than a minute ago; slow is it otherwise. While
	// no service holds memory of a real GPU nothing is measured at all.
	quick = 2 * time.Second
	slow  = 10 * time.Second
	fresh = time.Minute
	// apart is how far measurements of a ready service have to be from each other to count as two, and pause how far any are.
	apart = 10 * time.Second
	pause = time.Second
	// step is how much a peak has to grow to be written down at once, in MiB, and pace how often that may be for one service.
	step = 32
	pace = 10 * time.Second
	// keepConfigurations is how many ways of running one service are remembered, as the store has it.
	keepConfigurations = 8
	// flushPatience is how long the last writing may take, and how long a file may hang that is being read meanwhile.
	flushPatience = 3 * time.Second
	// day is how much later a peak has to be seen again for that to be written down.
	day = 24 * time.Hour
)

// Services are the services that are measured; service.Manager has them.
type Services interface {
	All() []*catalog.Service
	Status(s *catalog.Service) service.View
	Watch(ctx context.Context, ids []string, send func(service.Change) error) error
}

// Host measures the host's GPUs; gpu.Monitor does.
type Host interface {
	Read(ctx context.Context) gpu.Host
}

// configuration is one way of running a service.
type configuration struct{ digest, gpus string }

// peaks are the most that was measured in one configuration, by state.
type peaks struct{ states map[string]*reading }

// last is when the configuration was seen last.
func (p *peaks) last() time.Time {
	var out time.Time
	for _, r := range p.states {
		if r.Last.After(out) {
			out = r.Last
		}
	}
	return out
}

// reading is a peak, and what of it is on the disk.
type reading struct {
	store.Peak
	written []uint32
	saved   uint32
	seen    time.Time
}

// measured returns what is known of a configuration, made if nothing is. The book is locked, or nobody else's yet.
func (b *Tracker) measured(id string, c configuration) *peaks {
	all, ok := b.peaks[id]
	if !ok {
		all = map[configuration]*peaks{}
		b.peaks[id] = all
	}
	one, ok := all[c]
	if !ok {
		if len(all) >= keepConfigurations {
			oldest := slices.MinFunc(slices.Collect(maps.Keys(all)), func(x, y configuration) int { return all[x].last().Compare(all[y].last()) })
			delete(all, oldest)
		}
		one = &peaks{states: map[string]*reading{}}
		all[c] = one
	}
	return one
}

// run is a service that is up, from its start on.
type run struct {
	// entry is the service's as it was started: the catalog may say something else by now.
	entry *catalog.Service
	// digest is of what was started; "" where that is not known, and then nothing is measured.
	digest string
	// since is what its manager calls its beginning, zero until it is there; first is when it was first seen.
	since, first time.Time
	// loading is the most that was seen before it was ready, by hardware. It is noted once it is ready: what did not come up says nothing.
	loading map[string][]uint32
	// counted is when a measurement last counted, wrote when something was written down.
	counted, wrote time.Time
	// touched are what this run measured.
	touched map[configuration]bool
}

// sampler measures services that are up.
type sampler struct {
	book     *Tracker
	services Services
	host     Host
	runs     map[string]*run
	now      func() time.Time
	// failed: the last writing did.
	failed bool
}

// Run measures what services hold while they are up, and finds out what answers asked for, until ctx ends. An idle host is not
// measured. When it returns, what it measured is written down.
func (b *Tracker) Run(ctx context.Context, services Services, host Host) {
	b.mu.Lock()
	b.starts = func() bool {
		return slices.ContainsFunc(services.All(), func(s *catalog.Service) bool {
			return len(s.GPUs) > 0 && services.Status(s).State == executorv1.ServiceState_SERVICE_STATE_STARTING
		})
	}
	b.mu.Unlock()
	// Whoever is started or simulated first finds its model's file read.
	for _, s := range services.All() {
		b.mu.RLock()
		due := b.due(s)
		b.mu.RUnlock()
		if due {
			b.want(s, false)
		}
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		b.serve(ctx)
	}()
	changed := make(chan struct{}, 1)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_ = services.Watch(ctx, nil, func(service.Change) error { // it ends with ctx
			select {
			case changed <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	m := &sampler{book: b, services: services, host: host, runs: map[string]*run{}, now: time.Now}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-timer.C:
		case <-changed:
			// Many things change at once when a switch goes on: they are one measurement.
			select {
			case <-ctx.Done():
				continue
			case <-time.After(max(0, pause-time.Since(last))):
			}
		}
		last = time.Now()
		if next := m.sample(ctx); next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
	}
	<-watched
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushPatience)
	defer cancel()
	for id, r := range m.runs {
		m.save(flush, id, r, true)
	}
	select {
	case <-served:
	case <-flush.Done():
		b.cfg.Logger.WarnContext(ctx, "a model's file is still being read; its file system does not answer")
	}
}

// Settle finds out, before anything is decided, which of what was measured earlier still holds: what the host's GPUs are, and how the
// services would run. Where nothing was measured it does nothing.
func (b *Tracker) Settle(ctx context.Context, services Services, host Host) {
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	b.mu.RLock()
	none := len(b.peaks) == 0
	b.mu.RUnlock()
	if none {
		return
	}
	host.Read(ctx)
	for _, s := range services.All() {
		if ctx.Err() != nil {
			return
		}
		b.recognise(ctx, s)
	}
}

// sample measures once, and says when to measure again; 0: when something changes.
func (m *sampler) sample(ctx context.Context) time.Duration {
	before := map[string]service.View{}
	var up []*catalog.Service
	next := slow
	for _, s := range m.services.All() {
		if len(s.GPUs) == 0 {
			continue
		}
		v := m.services.Status(s)
		if !v.Running() && !v.Asleep() {
			m.end(ctx, s.ID, v)
			continue
		}
		if simulated(m.book.cfg.Catalog(), s) {
			continue
		}
		before[s.ID] = v
		up = append(up, s)
		if r := m.follow(ctx, s, v); m.now().Sub(r.first) < fresh || !resting(v) {
			next = quick
		}
	}
	m.gone(ctx)
	if len(up) == 0 {
		return 0
	}
	h := m.host.Read(ctx)
	if ctx.Err() != nil {
		return next
	}
	for _, s := range up {
		v := before[s.ID]
		if after := m.services.Status(s); after.State != v.State || !after.Since.Equal(v.Since) {
			next = quick // nobody can say which of the two was measured
			continue
		}
		m.note(h, s, v)
		m.save(ctx, s.ID, m.runs[s.ID], false)
	}
	return next
}

// resting reports whether the service is not in the middle of a start or stop.
func resting(v service.View) bool {
	return v.State != executorv1.ServiceState_SERVICE_STATE_STARTING && v.State != executorv1.ServiceState_SERVICE_STATE_STOPPING
}

// follow returns the run that the service is in, begun if it is another than before.
func (m *sampler) follow(ctx context.Context, s *catalog.Service, v service.View) *run {
	r, ok := m.runs[s.ID]
	if ok {
		switch {
		case !resting(v) || v.Since.IsZero() || r.since.Equal(v.Since):
			return r
		case r.since.IsZero():
			r.since = v.Since
			return r
		}
		// Its manager started it again.
		m.end(ctx, s.ID, v)
	}
	r = &run{entry: s, first: m.now(), loading: map[string][]uint32{}, touched: map[configuration]bool{}}
	r.digest = m.book.define(ctx, s)
	if resting(v) {
		r.since = v.Since
		// It ran before this process looked. If something else was measured in the same run, the entry was changed since.
		if m.book.otherwise(s.ID, v.Since, r.digest) {
			r.digest = ""
		}
	}
	m.runs[s.ID] = r
	return r
}

// otherwise reports whether a run was measured under other digests alone.
func (b *Tracker) otherwise(id string, since time.Time, digest string) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	found := false
	for c, one := range b.peaks[id] {
		for _, r := range one.states {
			if !since.IsZero() && r.Run.Equal(since) {
				if c.digest == digest {
					return false
				}
				found = true
			}
		}
	}
	return found
}

// end closes the run of a service that is not up. One that cannot be seen may still be.
func (m *sampler) end(ctx context.Context, id string, v service.View) {
	r, ok := m.runs[id]
	if !ok || v.State == executorv1.ServiceState_SERVICE_STATE_UNKNOWN {
		return
	}
	m.save(ctx, id, r, true)
	delete(m.runs, id)
}

// gone closes the runs of services that the catalog has no more.
func (m *sampler) gone(ctx context.Context) {
	c := m.book.cfg.Catalog()
	for id := range m.runs {
		if _, ok := c.Lookup(id); !ok {
			m.end(ctx, id, service.View{})
		}
	}
}

// note takes in what a service was measured to hold.
func (m *sampler) note(h gpu.Host, s *catalog.Service, v service.View) {
	r := m.runs[s.ID]
	if r == nil || r.digest == "" {
		return
	}
	mib, ok := held(h, r.entry)
	gpus := hardware(m.book.cfg.GPUs.Models(), r.entry)
	if !ok || gpus == "" {
		return
	}
	at, state, ready := m.now(), store.PeakAwake, false
	switch {
	case v.Asleep():
		state, ready = store.PeakAsleep, true
	case v.State == executorv1.ServiceState_SERVICE_STATE_STOPPING, v.Cause == driver.CauseStillHeld:
		return // neither awake nor asleep
	case v.State == executorv1.ServiceState_SERVICE_STATE_STARTING:
		r.loading[gpus] = most(r.loading[gpus], mib)
		return
	default:
		ready = v.Up() && answers(r.entry, v, at)
	}
	counted := ready && at.Sub(r.counted) >= apart
	if counted {
		r.counted = at
	}
	c := configuration{r.digest, gpus}
	m.book.take(c, store.Peak{Service: s.ID, State: state, MiB: mib, Run: r.since, Last: at}, counted)
	if ready && state == store.PeakAwake && len(r.loading[gpus]) > 0 {
		m.book.take(c, store.Peak{Service: s.ID, State: store.PeakLoading, MiB: r.loading[gpus], Run: r.since, Last: at}, true)
		delete(r.loading, gpus)
	}
	r.touched[c] = true
}

// answers reports whether the service is as far as it gets: it is healthy or, where nobody can ask it, has run for as long as its start
// may take. A program that runs may still load its model.
func answers(s *catalog.Service, v service.View, at time.Time) bool {
	if s.Health != nil {
		return v.Healthy
	}
	return !v.Since.IsZero() && at.Sub(v.Since) >= s.StartTimeout()
}

// held is what the service's programs are measured to hold, in the order of its GPUs. It is not known where one of them does not
// answer, or where the driver does not tell what one of the programs holds; and nothing at all says nothing.
func held(h gpu.Host, s *catalog.Service) ([]uint32, bool) {
	out := make([]uint32, 0, len(s.GPUs))
	some := false
	for _, index := range s.GPUs {
		g, ok := h.Find(index)
		if !ok || g.Problem != "" || g.Simulated {
			return nil, false
		}
		var sum uint64
		for _, p := range g.Processes {
			if p.Service != s.ID {
				continue
			}
			if p.MiB == 0 {
				return nil, false
			}
			sum += uint64(p.MiB)
		}
		out = append(out, uint32(min(sum, mostMiB)))
		some = some || sum > 0
	}
	return out, some
}

func most(a, b []uint32) []uint32 {
	out := slices.Clone(b)
	for i := range out {
		out[i] = max(out[i], at(a, i))
	}
	return out
}

// take makes a measurement part of its peak: what is there never becomes less. counted: the service was ready.
func (b *Tracker) take(c configuration, p store.Peak, counted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	one := b.measured(p.Service, c)
	r, ok := one.states[p.State]
	if !ok {
		p.Digest, p.GPUs, p.First = c.digest, c.gpus, p.Last
		r = &reading{Peak: p}
		r.MiB = nil
		one.states[p.State] = r
	}
	peak := most(r.MiB, p.MiB)
	grown := !slices.Equal(peak, r.MiB)
	r.MiB, r.Last = peak, p.Last
	if !p.Run.IsZero() {
		r.Run = p.Run
	}
	if counted && r.Readings < counts {
		r.Readings++
		grown = grown || r.Readings == counts
	}
	if grown {
		b.changed()
	}
}

// save writes down what a run measured, if that is worth it; all: whatever is not written yet.
func (m *sampler) save(ctx context.Context, id string, r *run, all bool) {
	if r == nil || m.book.cfg.Memory == nil || !all && m.now().Sub(r.wrote) < pace {
		return
	}
	for _, p := range m.book.unsaved(id, r.touched, all) {
		r.wrote = m.now()
		if err := m.book.cfg.Memory.NotePeak(ctx, &p); err != nil {
			if !m.failed {
				m.book.cfg.Logger.WarnContext(ctx, "what was measured of a service could not be written down", "service_id", id, "error", err)
			}
			m.failed = true
			continue
		}
		m.failed = false
		m.book.saved(p)
	}
}

// unsaved are the peaks that are not on the disk as they are; unless all are wanted, those that are news.
func (b *Tracker) unsaved(id string, touched map[configuration]bool, all bool) []store.Peak {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var out []store.Peak
	for c := range touched {
		one := b.peaks[id][c]
		if one == nil {
			continue
		}
		for _, state := range []string{store.PeakAwake, store.PeakAsleep, store.PeakLoading} {
			r := one.states[state]
			if r == nil {
				continue
			}
			news := r.written == nil || r.Readings >= counts && r.saved < counts
			for i, mib := range r.MiB {
				was := at(r.written, i)
				news = news || mib >= was+step || all && mib > was
			}
			// When it was seen last says which configurations are worth keeping.
			if news || all && (r.Readings > r.saved || r.Last.Sub(r.seen) >= day) {
				p := r.Peak
				p.MiB = slices.Clone(r.MiB)
				out = append(out, p)
			}
		}
	}
	return out
}

// saved notes that a peak is on the disk.
func (b *Tracker) saved(p store.Peak) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if one := b.peaks[p.Service][configuration{p.Digest, p.GPUs}]; one != nil {
		if r := one.states[p.State]; r != nil {
			r.written, r.saved, r.seen = p.MiB, p.Readings, p.Last
		}
	}
}
