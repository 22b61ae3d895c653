package mode

import (
	"context"
	"math"
	"sync"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

// Requirements says what services need, and where each number comes from; memreq.Requirements is one. Nobody changes the maps that it returns.
type Requirements interface {
	Awake(s *catalog.Service) memreq.Need
	Loading(s *catalog.Service) memreq.Need
	Asleep(s *catalog.Service) memreq.Need
	// AwakeAt is what it would take with another context length, in tokens.
	AwakeAt(s *catalog.Service, context uint32) (memreq.Need, error)
	// HostAsleep and HostLoading are MiB of the host's memory; 0: not known or none.
	HostAsleep(s *catalog.Service) uint32
	HostLoading(s *catalog.Service) uint32
	// Await waits for what is still to be read of the services' models, a few seconds at most.
	Await(ctx context.Context, services ...*catalog.Service)
	// Card is what estimates are made of.
	Card(s *catalog.Service) (model.Card, bool)
}

// declared is a Requirements of what the catalog says and nothing else.
type declared struct{}

func (declared) Awake(s *catalog.Service) memreq.Need {
	return memreq.Need{PerGPU: capacity.Declared{}.Awake(s), Source: stated(s.VRAMMiB)}
}

func (d declared) Loading(s *catalog.Service) memreq.Need { return d.Awake(s) }

func (declared) Asleep(s *catalog.Service) memreq.Need {
	return memreq.Need{PerGPU: capacity.Declared{}.Asleep(s), Source: stated(s.SleepMiB)}
}

func (declared) AwakeAt(*catalog.Service, uint32) (memreq.Need, error) {
	return memreq.Need{}, vram.ErrNoCard
}
func (declared) HostAsleep(*catalog.Service) uint32  { return 0 }
func (declared) HostLoading(*catalog.Service) uint32 { return 0 }

// Await implements Requirements: there is nothing to read.
func (declared) Await(context.Context, ...*catalog.Service) {}

func (declared) Card(s *catalog.Service) (model.Card, bool) {
	if s.Model == nil || s.Model.Card == nil {
		return model.Card{}, false
	}
	return *s.Model.Card, true
}

func stated(mib uint32) string {
	if mib == 0 {
		return vram.Unknown
	}
	return vram.Declared
}

// sizes are what one plan goes by: the book's numbers, each asked for once, so that a measurement that comes in between does not
// make the plan contradict itself. Where a simulation or an alternative wants a service otherwise, that stands instead.
type sizes struct {
	book                  Requirements
	awake, loading, sleep map[*catalog.Service]memreq.Need
}

func newSizes(book Requirements) *sizes {
	return &sizes{
		book: book, awake: map[*catalog.Service]memreq.Need{}, loading: map[*catalog.Service]memreq.Need{},
		sleep: map[*catalog.Service]memreq.Need{},
	}
}

func remembered(known map[*catalog.Service]memreq.Need, s *catalog.Service, ask func(*catalog.Service) memreq.Need) memreq.Need {
	n, ok := known[s]
	if !ok {
		n = ask(s)
		known[s] = n
	}
	return n
}

func (z *sizes) running(s *catalog.Service) memreq.Need {
	return remembered(z.awake, s, z.book.Awake)
}

func (z *sizes) asleep(s *catalog.Service) memreq.Need {
	return remembered(z.sleep, s, z.book.Asleep)
}

// Awake implements capacity.Sizes.
func (z *sizes) Awake(s *catalog.Service) map[uint32]uint32 { return z.running(s).PerGPU }

// Loading implements capacity.Sizes.
func (z *sizes) Loading(s *catalog.Service) map[uint32]uint32 {
	return remembered(z.loading, s, z.book.Loading).PerGPU
}

// Asleep implements capacity.Sizes.
func (z *sizes) Asleep(s *catalog.Service) map[uint32]uint32 { return z.asleep(s).PerGPU }

// want lets a service need that instead of what the book says.
func (z *sizes) want(s *catalog.Service, awake memreq.Need, loading map[uint32]uint32) {
	z.awake[s], z.loading[s] = awake, memreq.Need{PerGPU: loading, Source: awake.Source}
}

// rank orders sources, the best first.
func rank(source string) int {
	switch source {
	case vram.Measured:
		return 0
	case vram.Declared:
		return 1
	case vram.Estimated:
		return 2
	}
	return 3
}

// weaker is the one of two sources that is trusted less.
func weaker(a, b string) string {
	if rank(b) > rank(a) {
		return b
	}
	return a
}

// readAvailable is how much memory the host can give to programs without pushing others out, in MiB, and whether it tells.
func readAvailable() (uint32, bool) {
	mib, err := service.HostAvailable()
	return uint32(min(mib, math.MaxUint32)), err == nil
}

// history is a Journal that remembers how long steps took until a switch notes a new one: a plan asks that for every service.
type history struct {
	Journal
	mu sync.Mutex
	// round counts what was noted: an answer from before says nothing of the time after it.
	round int
	took  map[pastStep][]time.Duration
}

type pastStep struct {
	action  executorv1.PlanAction
	service string
	n       int
}

// maxPast bounds what is remembered, whatever catalogs come and go.
const maxPast = 1 << 14

// Took implements Journal.
func (h *history) Took(ctx context.Context, action executorv1.PlanAction, service string, n int) ([]time.Duration, error) {
	key := pastStep{action, service, n}
	h.mu.Lock()
	took, ok := h.took[key]
	round := h.round
	h.mu.Unlock()
	if ok {
		return took, nil
	}
	took, err := h.Journal.Took(ctx, action, service, n)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.round == round && len(h.took) < maxPast {
		h.took[key] = took
	}
	return took, nil
}

func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.round++
	h.took = map[pastStep][]time.Duration{}
}

// NoteSteps implements Journal.
func (h *history) NoteSteps(ctx context.Context, id int64, ended, next *store.Step) error {
	defer h.forget()
	return h.Journal.NoteSteps(ctx, id, ended, next)
}

// EndSwitch implements Journal.
func (h *history) EndSwitch(ctx context.Context, id int64, last *store.Step, at time.Time, e *store.Ending) error {
	defer h.forget()
	return h.Journal.EndSwitch(ctx, id, last, at, e)
}
