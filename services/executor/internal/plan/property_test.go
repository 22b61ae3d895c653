package plan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

// box is a small made-up host of a random shape: what its services are and need, what its GPUs hold, and what is asked of it. It is
// the Services, the GPUs, the past and the Requirements of a Planner.
type box struct {
	seed      uint64
	catalog   *catalog.Catalog
	views     map[*catalog.Service]service.View
	gpus      gpu.Host
	margin    uint32
	available uint32
	tells     bool
	request   Request
	now       time.Time

	awake, loading, asleep  map[*catalog.Service]map[uint32]uint32
	context, perToken       map[*catalog.Service]uint32
	hostAsleep, hostLoading map[*catalog.Service]uint32
	took                    map[string]time.Duration
}

func (b *box) Status(s *catalog.Service) service.View        { return b.views[s] }
func (*box) Pins(context.Context, *catalog.Service) []string { return nil }
func (*box) Await(context.Context, ...*catalog.Service)      {}
func (*box) Card(*catalog.Service) (model.Card, bool)        { return model.Card{}, false }

func (b *box) Definition(_ context.Context, s *catalog.Service) (string, error) {
	return "sha256:" + s.ID, nil
}
func (b *box) Took(_ context.Context, action executorv1.PlanAction, id string, _ int) ([]time.Duration, error) {
	if d, ok := b.took[ActionName(action)+" "+id]; ok {
		return []time.Duration{d}, nil
	}
	return nil, nil
}

func (b *box) Awake(s *catalog.Service) memreq.Need {
	return memreq.Need{PerGPU: b.awake[s], Source: vram.Measured, Context: b.context[s]}
}

func (b *box) Loading(s *catalog.Service) memreq.Need {
	return memreq.Need{PerGPU: b.loading[s], Source: vram.Measured}
}

func (b *box) Asleep(s *catalog.Service) memreq.Need {
	return memreq.Need{PerGPU: b.asleep[s], Source: vram.Measured}
}

func (b *box) AwakeAt(s *catalog.Service, tokens uint32) (memreq.Need, error) {
	if b.perToken[s] == 0 {
		return memreq.Need{}, errors.New("no card")
	}
	then := memreq.Need{PerGPU: map[uint32]uint32{}, Source: vram.Estimated, Context: tokens}
	for index, mib := range b.awake[s] {
		then.PerGPU[index] = mib - min(mib, (b.context[s]-tokens)/1024*b.perToken[s])
	}
	return then, nil
}

func (b *box) HostAsleep(s *catalog.Service) uint32  { return b.hostAsleep[s] }
func (b *box) HostLoading(s *catalog.Service) uint32 { return b.hostLoading[s] }

// boxText is what the catalogs of boxes are made of; the numbers come later.
const boxText = `
version: 1
gpus: [{index: 0, name: One}, {index: 1, name: Two}, {index: 2, name: Three}]
services:
  - {id: s0, driver: process, argv: [/usr/bin/true, s0], port: 17001%s}
  - {id: s1, driver: process, argv: [/usr/bin/true, s1], port: 17002%s}
  - {id: s2, driver: process, argv: [/usr/bin/true, s2], port: 17003%s}
  - {id: s3, driver: process, argv: [/usr/bin/true, s3], port: 17004%s}
  - {id: s4, driver: process, argv: [/usr/bin/true, s4], port: 17005%s}
  - {id: s5, driver: process, argv: [/usr/bin/true, s5], port: 17006%s}
modes:
  - {id: m, services: [%s]}
`

// dependencies are what the services of boxes depend on: nothing, one on another, several on one, one on several, a chain.
var dependencies = [][6]string{
	{}, {}, {}, {"", "s0"}, {"", "", "", "s5", "s5"}, {"", "s5", "s5", "s5"}, {"s4, s5"}, {"", "s0", "s1", "", "", "s4"},
}

func boxCatalog(t testing.TB, which int) *catalog.Catalog {
	var words []any
	var free string
	for i, d := range dependencies[which] {
		if d == "" {
			free = fmt.Sprintf("s%d", i)
		} else {
			d = ", depends_on: [" + d + "]"
		}
		words = append(words, d)
	}
	c, err := catalog.Parse("catalogue.yaml", fmt.Appendf(nil, boxText, append(words, free)...), catalog.Options{Development: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newBox makes a host of a catalog, whose services it changes. The same seed makes the same host.
func newBox(c *catalog.Catalog, seed uint64) *box {
	rng := rand.New(rand.NewPCG(seed, 11))
	chance := func(percent int) bool { return rng.IntN(100) < percent }
	b := &box{
		seed: seed, catalog: c, now: time.Unix(1_800_000_000, 0), margin: uint32(rng.IntN(3) * 150), tells: chance(60),
		views: map[*catalog.Service]service.View{}, took: map[string]time.Duration{},
		awake: map[*catalog.Service]map[uint32]uint32{}, loading: map[*catalog.Service]map[uint32]uint32{},
		asleep:  map[*catalog.Service]map[uint32]uint32{},
		context: map[*catalog.Service]uint32{}, perToken: map[*catalog.Service]uint32{},
		hostAsleep: map[*catalog.Service]uint32{}, hostLoading: map[*catalog.Service]uint32{},
	}
	b.available = uint32(rng.IntN(12_000))
	const total, reserved = 10_000, 100
	gpus := 1 + rng.IntN(5)/2
	b.gpus = gpu.Host{Source: gpu.SourceNVML}
	for i := range gpus {
		d := gpu.Device{Index: uint32(i), UUID: fmt.Sprintf("GPU-%d", i), Total: total, Reserved: reserved}
		if chance(40) {
			d.Foreign = uint32(rng.IntN(4000))
			d.Used = d.Foreign
			d.Processes = append(d.Processes, gpu.Process{PID: 1, MiB: d.Foreign, Name: "game"})
		}
		b.gpus.GPUs = append(b.gpus.GPUs, d)
	}
	states := []executorv1.ServiceState{
		executorv1.ServiceState_SERVICE_STATE_STOPPED, executorv1.ServiceState_SERVICE_STATE_STOPPED,
		executorv1.ServiceState_SERVICE_STATE_RUNNING, executorv1.ServiceState_SERVICE_STATE_RUNNING,
		executorv1.ServiceState_SERVICE_STATE_RUNNING, executorv1.ServiceState_SERVICE_STATE_SLEEPING,
		executorv1.ServiceState_SERVICE_STATE_UNHEALTHY, executorv1.ServiceState_SERVICE_STATE_FAILED,
	}
	ids := func(n int) (out []string) {
		for range n {
			if id := c.Services[rng.IntN(len(c.Services))].ID; !slices.Contains(out, id) {
				out = append(out, id)
			}
		}
		return out
	}
	b.request.Alternatives = contract.MostAlternatives
	switch rng.IntN(4) {
	case 0:
		b.request.Start = ids(2)
	case 1:
		b.request.Mode, b.request.Start = "m", ids(1)
		if stop := ids(1); !slices.Contains(b.request.Start, stop[0]) {
			b.request.Stop = stop
		}
	default:
		b.request.Mode = "m"
	}
	c.Modes[0].Services = ids(2)
	for i, s := range c.Services {
		s.Pin, s.Sleep, s.MinResidenceS = chance(10), catalog.SleepNone, 0
		s.GPUs = nil
		for range (1 + rng.IntN(5)) / 2 {
			if index := uint32(rng.IntN(gpus)); !slices.Contains(s.GPUs, index) {
				s.GPUs = append(s.GPUs, index)
			}
		}
		v := service.View{State: states[rng.IntN(len(states))], Since: b.now.Add(-time.Hour)}
		if asked := slices.Contains(b.request.Start, s.ID) || b.request.Mode != "" && slices.Contains(c.Modes[0].Services, s.ID); asked && chance(70) {
			v.State = executorv1.ServiceState_SERVICE_STATE_STOPPED
		}
		if v.State == executorv1.ServiceState_SERVICE_STATE_SLEEPING || chance(60) {
			s.Sleep = catalog.SleepVLLM1
		}
		if chance(10) {
			s.MinResidenceS = uint32(3000 + rng.IntN(2)*1000) // it is over, or it is not
		}
		b.views[s] = v
		b.awake[s], b.loading[s], b.asleep[s] = map[uint32]uint32{}, map[uint32]uint32{}, map[uint32]uint32{}
		more := uint32(0)
		if chance(20) {
			more = uint32(rng.IntN(800))
		}
		for _, index := range s.GPUs {
			b.awake[s][index] = uint32(1000 + rng.IntN(4000))
			b.loading[s][index] = b.awake[s][index] + more
			if s.Sleep != catalog.SleepNone {
				b.asleep[s][index] = uint32(rng.IntN(3)) * 300
			}
		}
		if len(s.GPUs) > 1 && chance(20) { // CUDA_VISIBLE_DEVICES hides one
			b.awake[s][s.GPUs[0]], b.loading[s][s.GPUs[0]], b.asleep[s][s.GPUs[0]] = 0, 0, 0
		}
		if chance(50) {
			b.context[s], b.perToken[s] = 4096<<rng.IntN(3), uint32(rng.IntN(200))
		}
		if chance(60) {
			b.hostAsleep[s], b.hostLoading[s] = uint32(rng.IntN(6000)), uint32(rng.IntN(4000))
		}
		if chance(70) {
			b.took["start "+s.ID] = time.Duration(rng.IntN(400)) * time.Second
			b.took["wake "+s.ID] = time.Duration(rng.IntN(30)) * time.Second
		}
		for k := range b.gpus.GPUs {
			d := &b.gpus.GPUs[k]
			if !slices.Contains(s.GPUs, d.Index) || !v.Holds() {
				continue
			}
			claim := b.awake[s][d.Index]
			if v.Asleep() {
				claim = b.asleep[s][d.Index]
			}
			d.Claims = append(d.Claims, gpu.Share{Service: s.ID, MiB: claim})
			// What is measured is what is claimed, or a little more or less; or the driver does not tell whose it is.
			real := min(claim*uint32(90+rng.IntN(20))/100, total-reserved-min(d.Used, total-reserved))
			d.Used += real
			if chance(8) {
				real = 0
			}
			d.Processes = append(d.Processes, gpu.Process{PID: 100 + i, MiB: real, Service: s.ID})
		}
	}
	for k := range b.gpus.GPUs {
		d := &b.gpus.GPUs[k]
		d.Free = total - reserved - min(d.Used, total-reserved)
		if chance(4) {
			*d = gpu.Device{Index: d.Index, UUID: d.UUID, Problem: gpu.ProblemLost, Claims: d.Claims}
		}
	}
	return b
}

func (b *box) planner() *Planner {
	return New(Config{
		Catalog: func() *catalog.Catalog { return b.catalog }, Services: b, Requirements: b,
		Margin: func(*uint32) (uint32, error) { return b.margin, nil }, Took: b.Took,
		Now: func() time.Time { return b.now }, Available: func() (uint32, bool) { return b.available, b.tells },
		Logger: slog.New(slog.DiscardHandler),
	})
}

// treatment is one way to treat a service, as a reader of the contract would list it.
type treatment struct {
	kind     executorv1.ChangeKind
	from, to string
	cost     int64
	// taken is what a service that comes takes of each GPU, while it loads and then; left what another one leaves there.
	awake, loading map[uint32]uint32
	// uses is by GPU, the host's memory, and whether it takes others to stay: only to tell which treatment is worse than another in
	// everything.
	uses [5]uint32
}

// question is what a box asks, on the level of services.
type question struct {
	*box
	incoming, outside, told []*catalog.Service
	treatments              [][]treatment // of incoming, then of outside
	kept                    map[*catalog.Service]bool
	// fits is by combination: see at.
	fits []bool
}

func (b *box) byID(id string) *catalog.Service {
	s, _ := b.catalog.Lookup(id)
	return s
}

// closure are services with all that they depend on.
func (b *box) closure(from ...*catalog.Service) map[*catalog.Service]bool {
	out := map[*catalog.Service]bool{}
	for len(from) > 0 {
		s := from[0]
		from = from[1:]
		if out[s] {
			continue
		}
		out[s] = true
		for _, id := range s.DependsOn {
			from = append(from, b.byID(id))
		}
	}
	return out
}

func (b *box) running(s *catalog.Service) bool {
	state := b.views[s].State
	return state == executorv1.ServiceState_SERVICE_STATE_RUNNING || state == executorv1.ServiceState_SERVICE_STATE_UNHEALTHY
}

func (b *box) sleeping(s *catalog.Service) bool {
	return b.views[s].State == executorv1.ServiceState_SERVICE_STATE_SLEEPING
}

// ask finds out who comes, who may be moved, and how.
func (b *box) ask() *question {
	q := &question{box: b}
	var wanted, pinned []*catalog.Service
	if b.request.Mode != "" {
		for _, id := range b.catalog.Modes[0].Services {
			wanted = append(wanted, b.byID(id))
		}
	}
	for _, id := range b.request.Start {
		wanted = append(wanted, b.byID(id))
	}
	members := b.closure(wanted...)
	for _, id := range b.request.Stop {
		delete(members, b.byID(id))
	}
	for _, s := range b.catalog.Services {
		if s.Pin && (b.running(s) || b.sleeping(s)) {
			pinned = append(pinned, s)
		}
	}
	q.kept = b.closure(pinned...)
	for _, s := range b.catalog.Services {
		healthy := b.views[s].State == executorv1.ServiceState_SERVICE_STATE_RUNNING || b.request.Mode == "" && b.running(s)
		switch {
		case slices.Contains(b.request.Stop, s.ID):
			if b.running(s) || b.sleeping(s) {
				q.told = append(q.told, s)
			}
		case members[s]:
			if !healthy {
				q.incoming = append(q.incoming, s)
			}
		case q.kept[s]:
		case b.running(s) || b.sleeping(s):
			q.outside = append(q.outside, s)
		}
	}
	for _, s := range q.incoming {
		q.treatments = append(q.treatments, best(b.incomingTreatments(s)))
	}
	for _, s := range q.outside {
		q.treatments = append(q.treatments, best(b.outsideTreatments(s)))
	}
	return q
}

// best leaves out each treatment that takes no less of anything than one that costs less, or as much and comes before it.
func best(all []treatment) []treatment {
	var out []treatment
	for i, t := range all {
		worse := false
		for k, other := range all {
			less := other.cost < t.cost || other.cost == t.cost && k < i
			for r := range t.uses {
				less = less && other.uses[r] <= t.uses[r]
			}
			worse = worse || less
		}
		if !worse {
			out = append(out, t)
		}
	}
	return out
}

func (b *box) incomingTreatments(s *catalog.Service) []treatment {
	with := func(t treatment, awake map[uint32]uint32) treatment {
		// What it takes more while it loads, it takes anywhere.
		var more uint32
		for index, mib := range b.loading[s] {
			more += mib - b.awake[s][index]
		}
		t.awake, t.loading = awake, maps.Clone(awake)
		var visible uint32
		for _, mib := range awake {
			visible += min(mib, 1)
		}
		for index, mib := range awake {
			switch {
			case visible == 0:
				t.loading[index] += (more + uint32(len(awake)) - 1) / uint32(len(awake))
			case mib > 0:
				t.loading[index] += (more + visible - 1) / visible
			}
			t.uses[index] = t.loading[index]
		}
		return t
	}
	out := []treatment{with(treatment{kind: changeKeep}, b.awake[s])}
	out[0].loading = b.loading[s]
	for index, mib := range b.loading[s] {
		out[0].uses[index] = mib
	}
	var sum uint32
	for _, mib := range b.awake[s] {
		sum += mib
	}
	if sum == 0 {
		return out
	}
	for n, tokens := 0, b.context[s]/2; tokens >= 4096 && b.perToken[s] > 0; n, tokens = n+1, tokens/2 {
		then, _ := b.AwakeAt(s, tokens)
		out = append(out, with(treatment{
			kind: changeContext, from: fmt.Sprint(b.context[s]), to: fmt.Sprint(tokens), cost: int64(costContext + n*costEachHalving),
		}, then.PerGPU))
	}
	for _, g := range b.gpus.GPUs {
		if len(s.GPUs) == 1 && g.Index != s.GPUs[0] && g.Problem == "" {
			out = append(out, with(treatment{
				kind: changeGPU, from: fmt.Sprint(s.GPUs[0]), to: fmt.Sprint(g.Index), cost: costGPU,
			}, map[uint32]uint32{g.Index: b.awake[s][s.GPUs[0]]}))
		}
	}
	return out
}

func (b *box) outsideTreatments(s *catalog.Service) []treatment {
	seconds := func(action string) int64 { return min(int64(b.took[action+" "+s.ID]/time.Second), 900) }
	held := capacity.Held(b.gpus, s)
	keep, sleep, stop := treatment{kind: changeKeep}, treatment{kind: changeSleep}, treatment{kind: changeStop}
	sleep.uses[3] = b.hostAsleep[s]
	for index, mib := range held {
		keep.uses[index], sleep.uses[index] = mib, min(mib, b.asleep[s][index])
	}
	if b.running(s) && len(s.DependsOn) > 0 {
		keep.uses[4] = 1
	}
	sleep.cost, stop.cost = costSleep+seconds("wake"), costStop+seconds("start")
	v := b.views[s]
	switch {
	case b.sleeping(s):
		stop.cost = costSleeper + seconds("start")
		return []treatment{keep, stop}
	case b.young(s):
		return []treatment{keep}
	case v.State == executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
		return []treatment{keep, stop}
	case s.Sleep == catalog.SleepNone:
		return []treatment{keep, stop}
	}
	return []treatment{keep, sleep, stop}
}

// young: it runs for less than its minimum residence.
func (b *box) young(s *catalog.Service) bool {
	return b.now.Sub(b.views[s].Since) < time.Duration(s.MinResidenceS)*time.Second
}

func (q *question) combinations() int {
	n := 1
	for _, t := range q.treatments {
		n *= len(t)
	}
	return n
}

// at is the n-th combination: which treatment each service has.
func (q *question) at(n int) []int {
	out := make([]int, len(q.treatments))
	for i, t := range q.treatments {
		out[i] = n % len(t)
		n /= len(t)
	}
	return out
}

func (q *question) index(choice []int) int {
	n := 0
	for i := len(choice) - 1; i >= 0; i-- {
		n = n*len(q.treatments[i]) + choice[i]
	}
	return n
}

// sizesOf are the needs of a combination.
type sizesOf struct {
	*box
	awake, loading map[*catalog.Service]map[uint32]uint32
}

func (z sizesOf) Awake(s *catalog.Service) map[uint32]uint32 {
	if n, ok := z.awake[s]; ok {
		return n
	}
	return z.box.awake[s]
}

func (z sizesOf) Loading(s *catalog.Service) map[uint32]uint32 {
	if n, ok := z.loading[s]; ok {
		return n
	}
	return z.box.loading[s]
}

func (z sizesOf) Asleep(s *catalog.Service) map[uint32]uint32 { return z.asleep[s] }

// possible reports whether a combination can be done: nobody loses what it needs, and it fits, by package capacity, and in the
// host's memory.
func (q *question) possible(choice []int) bool {
	z := sizesOf{q.box, map[*catalog.Service]map[uint32]uint32{}, map[*catalog.Service]map[uint32]uint32{}}
	var sleepers, loader uint32
	for i, s := range q.incoming {
		t := q.treatments[i][choice[i]]
		z.awake[s], z.loading[s] = t.awake, t.loading
		if !q.sleeping(s) {
			loader = max(loader, q.hostLoading[s])
		}
	}
	moved := map[*catalog.Service]bool{}
	var sleeping []*catalog.Service
	stopping := slices.Clone(q.told)
	for i, s := range q.outside {
		switch q.treatments[len(q.incoming)+i][choice[len(q.incoming)+i]].kind {
		case changeSleep:
			sleeping, moved[s] = append(sleeping, s), true
			sleepers += q.hostAsleep[s]
		case changeStop:
			stopping, moved[s] = append(stopping, s), true
		}
	}
	for _, s := range q.outside {
		if moved[s] || !q.running(s) {
			continue
		}
		for other := range q.closure(s) {
			if moved[other] {
				return false
			}
		}
	}
	if q.tells && sleepers+loader > q.available {
		return false
	}
	return capacity.Fits(z, q.gpus, q.incoming, capacity.Released(z, q.gpus, stopping, sleeping), q.margin) == nil
}

// lesser are the treatments that are less than one: none, and smaller steps of the same.
func (q *question) lesser(i, chosen int) []int {
	out := []int{chosen}
	for k := range chosen {
		if k == 0 || q.treatments[i][chosen].kind == changeContext && q.treatments[i][k].kind == changeContext {
			out = append(out, k)
		}
	}
	return out
}

// spare reports whether something of a combination can be left out or lessened.
func (q *question) spare(choice []int) bool {
	other := make([]int, len(choice))
	var from func(i int) bool
	from = func(i int) bool {
		if i == len(choice) {
			return !slices.Equal(other, choice) && q.fits[q.index(other)]
		}
		for _, k := range q.lesser(i, choice[i]) {
			other[i] = k
			if from(i + 1) {
				return true
			}
		}
		return false
	}
	return from(0)
}

// answer is a combination that may be offered.
type answer struct {
	cost int64
	text string
}

// answers are all of them, the least costly first, without the plan itself.
func (q *question) answers(plan map[string]executorv1.ChangeKind) []answer {
	n := q.combinations()
	q.fits = make([]bool, n)
	for k := range n {
		q.fits[k] = q.possible(q.at(k))
	}
	var out []answer
	for k := range n {
		choice := q.at(k)
		if !q.fits[k] || q.spare(choice) {
			continue
		}
		a := answer{}
		same := true
		var lines []string
		for i, s := range append(slices.Clone(q.incoming), q.outside...) {
			t := q.treatments[i][choice[i]]
			a.cost += t.cost
			same = same && t.kind == cmp.Or(plan[s.ID], changeKeep)
			if t.kind != changeKeep || plan[s.ID] != 0 {
				lines = append(lines, line(Change{t.kind, s.ID, t.from, t.to}))
			}
		}
		slices.Sort(lines)
		a.text = strings.Join(lines, "; ")
		if !same {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b answer) int { return cmp.Compare(a.cost, b.cost) })
	return out
}

func line(c Change) string {
	return fmt.Sprintf("%s %s %s>%s", strings.TrimPrefix(c.Kind.String(), "CHANGE_KIND_"), c.Service, c.From, c.To)
}

// The alternatives of ten thousand small hosts are what looking at everything that could be done with their services finds; what is
// pinned or has not stayed its time is in none of them, and each fits.
func TestAlternativesAreWhatLookingAtEverythingFinds(t *testing.T) {
	t.Parallel()
	hosts := 1300 // for each of the dependencies
	if testing.Short() {
		hosts = 130 // under the race detector: one search runs in one goroutine, whatever the host
	}
	for which := range dependencies {
		t.Run(fmt.Sprint(which), func(t *testing.T) {
			t.Parallel()
			c := boxCatalog(t, which)
			var looked, offered, several, accepted, refused int
			for n := range uint64(hosts) {
				b := newBox(c, n*100+uint64(which))
				s := b.planner()
				sim, err := s.Simulate(t.Context(), b.request, b.gpus)
				if err != nil {
					refused++ // it asks to stop what another one needs
					continue
				}
				q := b.ask()
				if q.combinations() > 2000 {
					continue
				}
				looked++
				q.check(t, sim)
				offered += len(sim.Alternatives)
				if len(sim.Alternatives) > 2 {
					several++
				}
				for _, a := range sim.Alternatives {
					if a.Digest == "" || n%10 != 0 {
						continue
					}
					accepted++
					if p, err := s.Named(t.Context(), Request{Mode: "m"}, a.Digest, b.gpus); err != nil || p.Digest != a.Digest || p.Why() != "" {
						t.Errorf("seed %d: %v cannot be switched to: %v", b.seed, a.Changes, err)
					}
				}
				if t.Failed() {
					b.tell(t)
					return
				}
			}
			t.Logf("%d hosts with %d alternatives, %d of them with several; %d were switched to; %d requests refused",
				looked, offered, several, accepted, refused)
			if looked < hosts/2 || offered < looked/2 || several < looked/20 || accepted == 0 {
				t.Error("these hosts say too little")
			}
		})
	}
}

// check compares a simulation with what looking at everything finds.
func (q *question) check(t *testing.T, sim *Simulation) {
	t.Helper()
	plan := map[string]executorv1.ChangeKind{}
	for _, st := range sim.Steps {
		if slices.Contains(q.outside, q.byID(st.Service)) {
			plan[st.Service] = map[executorv1.PlanAction]executorv1.ChangeKind{Sleep: changeSleep, Stop: changeStop}[st.Action]
		}
	}
	all := q.answers(plan)
	if q.request.Mode == "" && sim.Fits {
		all = nil // nobody is in the way
	}
	want := all[:min(len(all), contract.MostAlternatives)]
	if sim.CutOff || len(sim.Alternatives) != len(want) {
		t.Errorf("seed %d: cut off %v\n got %+v\nwant %v", q.seed, sim.CutOff, sim.Alternatives, want)
		return
	}
	seen := map[string]bool{}
	for i, a := range sim.Alternatives {
		var lines []string
		changed := false
		for _, c := range a.Changes {
			lines = append(lines, line(c))
			changed = changed || c.Kind != changeKeep && c.Kind != changeSleep && c.Kind != changeStop
			if s := q.byID(c.Service); (c.Kind == changeSleep || c.Kind == changeStop) && (q.kept[s] || q.young(s) && q.views[s].Up()) {
				t.Errorf("seed %d: %s may not be moved: %v", q.seed, s.ID, a.Changes)
			}
		}
		slices.Sort(lines)
		text := strings.Join(lines, "; ")
		known := slices.IndexFunc(all, func(one answer) bool { return one.text == text })
		if known < 0 || seen[text] || all[known].cost != want[i].cost {
			t.Errorf("seed %d: alternative %d is %q\nwant %v", q.seed, i, text, want)
		}
		seen[text] = true
		if plain := q.request.plain() && !changed; plain != (a.Digest != "") || plain && (a.Digest == sim.Digest || seen[a.Digest]) {
			t.Errorf("seed %d: the digest of %q is %q", q.seed, text, a.Digest)
		}
		seen[a.Digest] = true
	}
}

// tell shows a host that a test failed on.
func (b *box) tell(t *testing.T) {
	t.Helper()
	t.Logf("request %+v, mode of %v, margin %d, host memory %d (%v)", b.request, b.catalog.Modes[0].Services, b.margin, b.available, b.tells)
	for _, s := range b.catalog.Services {
		t.Logf("%s %v: awake %v loading %v asleep %v context %d (%d) host %d/%d pin %v residence %d sleep %q needs %v", s.ID, b.views[s].State,
			b.awake[s], b.loading[s], b.asleep[s], b.context[s], b.perToken[s], b.hostAsleep[s], b.hostLoading[s], s.Pin, s.MinResidenceS, s.Sleep,
			s.DependsOn)
	}
	for _, g := range b.gpus.GPUs {
		t.Logf("GPU %d %s: used %d free %d foreign %d claims %v processes %v", g.Index, g.Problem, g.Used, g.Free, g.Foreign, g.Claims, g.Processes)
	}
}

// TestNoSleeperIsStoppedForNothing: whoever could sleep and is stopped in a plan that fits leaves no room to sleep, each by itself.
func TestNoSleeperIsStoppedForNothing(t *testing.T) {
	t.Parallel()
	c, stopped := boxCatalog(t, 0), 0
	for seed := range uint64(2_000) {
		if seed == 0 {
			seed = 6681 // where the second that stops gives the room that the first was stopped for
		}
		b := newBox(c, seed)
		p, err := b.planner().Plan(t.Context(), b.request, b.gpus)
		if err != nil || p.Why() != "" || p.Unfit() != "" {
			continue
		}
		f := &p.movements
		needless := func(one *catalog.Service, stops, sleeps *[]*catalog.Service) {
			before, after := *stops, *sleeps
			stopped++
			*stops = slices.DeleteFunc(slices.Clone(before), func(other *catalog.Service) bool { return other == one })
			*sleeps = append(slices.Clone(after), one)
			if f.short() == nil && f.lacking() == "" {
				t.Errorf("box %d: %s need not stop", seed, one.ID)
			}
			*stops, *sleeps = before, after
		}
		for _, one := range f.ending {
			needless(one, &f.ending, &f.asleep)
		}
		for _, one := range f.stopping {
			if one.Sleep != catalog.SleepNone && b.views[one].State == executorv1.ServiceState_SERVICE_STATE_RUNNING {
				needless(one, &f.stopping, &f.sleeping)
			}
		}
	}
	if stopped < 100 {
		t.Errorf("only %d were stopped that could sleep", stopped)
	}
}
