// Package memreq says what services need of GPU memory, awake, asleep and while they load, and where each number comes from: what was
// measured on this host before, else what a human declared, else what is estimated from the model's card.
//
// It trusts the driver's measurement, the catalog and its own store. A service has no say: what it was seen to hold counts at once
// where that is more than what was thought, and for less only after several measurements of a service that is ready, and only where
// its engine takes all that it will ever take before it is ready. What others hold while nobody asks them for anything says nothing of
// what they take when somebody does: there what a human declared, or what is estimated, is the least. A model's file
// is a stranger's word; it is read by another program (package inspect), and what comes of it is only ever an estimate.
package memreq

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

const (
	// counts is how many measurements of a ready service make its peak the truth.
	counts = 3
	// lazy: a ready service that was never seen to hold more than this part of what is declared or estimated has not loaded its model
	// yet, as servers do that load on request. Its peak is no reason to count on less.
	lazy = 4
	// mostMiB bounds a number of one GPU, 4 TiB, so that no sum of them wraps.
	mostMiB = 1 << 22
	// stale is how old what is known of a service's definition and of its model's file may be before it is looked at again.
	stale = 15 * time.Second
)

// Need is what one service takes in one state. Sizes are MiB.
type Need struct {
	// PerGPU is by the catalog's index. Nobody changes it.
	PerGPU map[uint32]uint32
	// Source is vram.Measured, Declared, Estimated or Unknown.
	Source string
	// Context is the context length that it stands for, in tokens, KVTokens how many tokens fit; 0: not known.
	Context  uint32
	KVTokens uint64
	// NoStart: by the estimate the engine would not start as its entry has it, however much is free. It is never said of a service that a
	// human declared, or that was seen to run like that.
	NoStart bool
}

// MiB is on all GPUs together.
func (n Need) MiB() uint32 {
	var sum uint32
	for _, mib := range n.PerGPU {
		sum += mib
	}
	return sum
}

// GPUs says what the host's GPUs are; gpu.Monitor does.
type GPUs interface {
	// Models measures nothing and waits for nobody.
	Models() *gpu.Models
}

// Memory keeps peaks; store.Store does.
type Memory interface {
	Peaks(ctx context.Context) ([]store.Peak, error)
	NotePeak(ctx context.Context, p *store.Peak) error
}

// Inspector reads a model's card from its files; inspect.Inspector does. It bounds its own time.
type Inspector interface {
	Card(ctx context.Context, path string) (model.Card, error)
}

// Config is what a Tracker is made of. Catalog, GPUs and Logger are required.
type Config struct {
	// Catalog returns the newest good one.
	Catalog func() *catalog.Catalog
	GPUs    GPUs
	// Definition is the digest of what an entry names and does not hold; service.Manager has it. nil: nothing that was measured is used.
	Definition func(ctx context.Context, s *catalog.Service) (string, error)
	// Memory keeps what was measured. nil: it is forgotten with this process.
	Memory Memory
	// Inspector reads cards that the catalog does not give. nil: none is read.
	Inspector Inspector
	// Exact asks llama.cpp's own program what a model's file would take of each GPU that it finds, in MiB. It bounds its own time. nil:
	// nobody is asked.
	Exact  func(ctx context.Context, file string, run vram.Run) ([]uint32, error)
	Logger *slog.Logger
}

// Tracker answers for every service. It is safe for concurrent use, and its answers never wait: what has to be found out first is found
// out by Run, and until then the next best is told.
type Tracker struct {
	cfg Config
	// ask wakes Run for what is in wanted.
	ask chan struct{}

	mu sync.RWMutex
	// peaks are by service, then by configuration.
	peaks map[string]map[configuration]*peaks
	// definitions are by service, files by path.
	definitions map[string]definition
	files       map[string]*file
	// wanted are services to be looked at, true for those that somebody waits for; looked is the one that is now.
	wanted map[string]bool
	looked string
	// arrived is raised when something was read of a model's file.
	arrived clock.Signal
	cache   cache
	// starts says whether a service is starting now; nil while Run does not run.
	starts func() bool
	// changes counts what would make a number of the cache wrong.
	changes uint64
}

// cache holds the answers for the entries of one catalog on GPUs of those models.
type cache struct {
	catalog *catalog.Catalog
	models  *gpu.Models
	by      map[*catalog.Service]*sizes
}

// New returns a Tracker that knows what was measured before.
func New(ctx context.Context, cfg Config) (*Tracker, error) {
	b := &Tracker{
		cfg: cfg, ask: make(chan struct{}, 1), peaks: map[string]map[configuration]*peaks{}, definitions: map[string]definition{},
		files: map[string]*file{}, wanted: map[string]bool{},
	}
	if cfg.Memory == nil {
		return b, nil
	}
	kept, err := cfg.Memory.Peaks(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range kept {
		one := b.measured(p.Service, configuration{p.Digest, p.GPUs})
		one.states[p.State] = &reading{Peak: p, written: slices.Clone(p.MiB), saved: p.Readings, seen: p.Last}
	}
	return b, nil
}

// Awake is what the service takes while it runs.
func (b *Tracker) Awake(s *catalog.Service) Need { return b.sizes(s).awake }

// Loading is the most that it takes until it runs; never less than Awake.
func (b *Tracker) Loading(s *catalog.Service) Need { return b.sizes(s).loading }

// Asleep is what it keeps in its sleep; nothing where it has no way to sleep.
func (b *Tracker) Asleep(s *catalog.Service) Need { return b.sizes(s).asleep }

// HostAsleep is what of the host's memory it may take in its sleep, in MiB; 0: not known or none. It is the weights by the estimate
// with room for error, and never more than what the service gives up of its GPUs.
func (b *Tracker) HostAsleep(s *catalog.Service) uint32 { return b.sizes(s).hostAsleep }

// HostLoading is what of the host's memory it would take while it loads, in MiB; 0: not known or none.
func (b *Tracker) HostLoading(s *catalog.Service) uint32 { return b.sizes(s).hostLoading }

// Card is what estimates for the service are made of: the catalog's card, else what the inspector read of the model's file.
func (b *Tracker) Card(s *catalog.Service) (model.Card, bool) {
	z := b.sizes(s)
	if z.card == nil {
		return model.Card{}, false
	}
	return *z.card, true
}

var errNoGPU = errors.New("it uses no GPU, so its context length changes no memory of any")

// AwakeAt is what it would take with another context length, in tokens: what is known, and on each GPU what the estimates for the two
// lengths differ by (Shift). vram.ErrNoCard, or one sentence, where nothing can be estimated.
func (b *Tracker) AwakeAt(s *catalog.Service, context uint32) (Need, error) {
	z := b.sizes(s)
	if z.estimateErr != nil {
		return Need{}, z.estimateErr
	}
	run := z.run
	run.Context = context
	then, err := vram.Of(*z.card, run, z.gpus)
	if err != nil {
		return Need{}, err
	}
	out := Need{PerGPU: map[uint32]uint32{}, Source: vram.Estimated, Context: cmp.Or(then.Context, context), KVTokens: then.KVTokens}
	for i, index := range s.GPUs {
		out.PerGPU[index] = Shift(z.awake.PerGPU[index], at(z.estimate.PerGPU, i), at(then.PerGPU, i))
	}
	out.NoStart = noStart(&then, z.gpus) && !z.refuted
	return out, nil
}

// Shift is what a service takes of a GPU, in MiB, when the estimate for it goes from now to then, and known is what it takes now. Where
// less is estimated and what is known lies below the estimate already, the difference of the two is no measure of what it gives back:
// the outcome is not below the new estimate, unless what is known is.
func Shift(known, now, then uint32) uint32 {
	mib := int64(known) + int64(then) - int64(now)
	if then < now {
		mib = max(mib, int64(min(known, then)))
	}
	return uint32(min(mib, mostMiB))
}

// Sizes are the numbers without their sources.
func (b *Tracker) Sizes() capacity.Sizes { return bare{b} }

type bare struct{ b *Tracker }

func (z bare) Awake(s *catalog.Service) map[uint32]uint32   { return z.b.Awake(s).PerGPU }
func (z bare) Loading(s *catalog.Service) map[uint32]uint32 { return z.b.Loading(s).PerGPU }
func (z bare) Asleep(s *catalog.Service) map[uint32]uint32  { return z.b.Asleep(s).PerGPU }

// sizes is all that is told of one service.
type sizes struct {
	awake, loading, asleep  Need
	hostAsleep, hostLoading uint32

	card *model.Card
	run  vram.Run
	gpus []vram.GPU
	// estimate holds only if estimateErr is nil.
	estimate    vram.Estimate
	estimateErr error
	// refuted: by the estimate it does not start, and it was seen to run.
	refuted bool
	// grows: there is something to look at again from time to time.
	grows bool
}

// sizes returns what is known of an entry. Only entries of the present catalog are remembered: others are somebody's "what if".
func (b *Tracker) sizes(s *catalog.Service) *sizes {
	c, models := b.cfg.Catalog(), b.cfg.GPUs.Models()
	b.mu.RLock()
	changes := b.changes
	if b.cache.catalog == c && b.cache.models == models {
		if z, ok := b.cache.by[s]; ok {
			due := z.grows && b.due(s)
			b.mu.RUnlock()
			if due {
				b.want(s, false)
			}
			return z
		}
	}
	b.mu.RUnlock()

	z := b.compute(c, models, s)
	own, ok := c.Lookup(s.ID)
	if !ok || own != s {
		return z
	}
	b.mu.Lock()
	if b.changes == changes {
		if b.cache.catalog != c || b.cache.models != models {
			b.cache = cache{c, models, make(map[*catalog.Service]*sizes, len(c.Services))}
		}
		b.cache.by[s] = z
	}
	due := z.grows && b.due(s)
	b.mu.Unlock()
	if due {
		b.want(s, false)
	}
	return z
}

// changed drops what was remembered. The book is locked.
func (b *Tracker) changed() {
	b.changes++
	b.cache = cache{}
}
