package plan

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/solver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
)

const (
	changeKeep        = executorv1.ChangeKind_CHANGE_KIND_KEEP
	changeSleep       = executorv1.ChangeKind_CHANGE_KIND_SLEEP
	changeStop        = executorv1.ChangeKind_CHANGE_KIND_STOP
	changeContext     = executorv1.ChangeKind_CHANGE_KIND_CONTEXT
	changeUtilisation = executorv1.ChangeKind_CHANGE_KIND_UTILISATION
	changeGPU         = executorv1.ChangeKind_CHANGE_KIND_GPU
	changeSplit       = executorv1.ChangeKind_CHANGE_KIND_SPLIT
)

// alternative is another plan that fits, and what it does otherwise.
type alternative struct {
	*Plan
	changes []Change
}

// candidate is a service that an alternative may treat in several ways. The first is to leave it as it is or, for one that comes, as
// the catalog says.
type candidate struct {
	*catalog.Service
	comes   bool
	options []option
}

// option is one of them.
type option struct {
	// kind is changeKeep for the first.
	kind     executorv1.ChangeKind
	from, to string
	cost     int64
	// awake and loading are of one that comes.
	awake   memreq.Need
	loading map[uint32]uint32
}

// search is one search for alternatives.
type search struct {
	*Planner
	ctx        context.Context
	p          *Plan
	candidates []candidate
	problem    solver.Problem
	cut        bool
}

// alternatives looks for other ways that fit than the plan: the least disruptive first, in none of which anything can be left out.
// cut: not everything was looked at. Pinned services, and those within their minimum residence, stay as they are in all of them.
func (pl *Planner) alternatives(ctx context.Context, p *Plan) (found []alternative, cut bool, err error) {
	if p.reason != "" || p.hopeless || p.target.mode == nil && p.Unfit() == "" {
		return nil, false, nil // without a mode nobody is in the way of a plan that fits
	}
	w := &search{Planner: pl, ctx: ctx, p: p}
	w.gather()
	if !w.pose(contract.MostAlternatives + 1) { // one of them may be the plan
		return nil, true, nil
	}
	solutions, ended := solver.Solve(ctx, &w.problem)
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	for _, solution := range solutions {
		if len(found) == contract.MostAlternatives {
			break
		}
		other, err := w.read(solution.Choice)
		if err != nil {
			return nil, false, err
		}
		if other != nil {
			found = append(found, *other)
		}
	}
	return found, ended || w.cut, nil
}

// gather finds the services that an alternative may move, and the ways there are for each.
func (w *search) gather() {
	f := &w.p.movements
	incoming := f.incoming()
	needed := map[*catalog.Service]bool{}
	for _, one := range supported(w.p.catalog, incoming) {
		needed[one] = true
	}
	for _, one := range incoming {
		w.candidates = append(w.candidates, candidate{Service: one, comes: true, options: w.optionsIn(one)})
	}
	for _, one := range w.p.catalog.Services {
		v := f.views[one]
		if w.p.kept[one] || w.p.target.stop[one] || !v.Holds() || needed[one] {
			continue
		}
		w.candidates = append(w.candidates, candidate{Service: one, options: w.optionsOut(one)})
	}
}

// optionsOut are those of a service that is not to run, or that runs and was not asked for.
func (w *search) optionsOut(one *catalog.Service) []option {
	v := w.p.movements.views[one]
	options := []option{{kind: changeKeep}}
	back := grain(w.Expected(w.ctx, Start, one.ID))
	switch v.State {
	case executorv1.ServiceState_SERVICE_STATE_RUNNING, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
		if w.stays(one, v) { // it may only be slow to answer
			return options
		}
	default: // it does not stay
	}
	switch v.State {
	case executorv1.ServiceState_SERVICE_STATE_RUNNING:
		if engine.Sleeps(one) {
			options = append(options, option{kind: changeSleep, cost: costSleep + grain(w.Expected(w.ctx, Wake, one.ID))})
		}
		return append(options, option{kind: changeStop, cost: costStop + back})
	case executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
		return append(options, option{kind: changeStop, cost: costStop + back})
	case executorv1.ServiceState_SERVICE_STATE_SLEEPING:
		return append(options, option{kind: changeStop, cost: costSleeper + back})
	default:
		return options // in the middle of a change of its own
	}
}

// dependents returns, for each candidate that others need, which: those that are awake and go on needing it as long as they are left
// alone. What comes needs nothing that could go.
func (w *search) dependents() map[int][]int {
	index := map[*catalog.Service]int{}
	for i, c := range w.candidates {
		if !c.comes {
			index[c.Service] = i
		}
	}
	out := map[int][]int{}
	for i, c := range w.candidates {
		if v := w.p.movements.views[c.Service]; c.comes || len(c.DependsOn) == 0 || v.Asleep() {
			continue
		}
		for _, other := range supported(w.p.catalog, []*catalog.Service{c.Service}) {
			if j, ok := index[other]; ok && j != i {
				out[j] = append(out[j], i)
			}
		}
	}
	return out
}

// pose puts the question to package solver. Each GPU is a resource, then the host's memory, and then each candidate that others
// need: k of those that need it take one of it each as long as they are left alone, and it takes k to go, which leaves k for nobody.
// It reports whether there are not too many.
func (w *search) pose(limit int) bool {
	f := &w.p.movements
	at := map[uint32]int{}
	for _, g := range f.h.GPUs {
		at[g.Index] = len(at)
	}
	for _, c := range w.candidates {
		for _, option := range c.options {
			for _, taken := range []map[uint32]uint32{option.awake.PerGPU, option.loading} {
				for _, index := range slices.Sorted(maps.Keys(taken)) {
					if _, ok := at[index]; !ok {
						at[index] = len(at)
					}
				}
			}
		}
	}
	host := len(at)
	needed := w.dependents()
	ties := slices.Sorted(maps.Keys(needed))
	if over := host + 1 + len(ties) - solver.MaxResources; over > 0 {
		// Who is needed by others and is no resource stays, whatever those do.
		w.cut = true
		for _, i := range ties[len(ties)-min(over, len(ties)):] {
			w.candidates[i].options = w.candidates[i].options[:1]
		}
		ties = ties[:max(len(ties)-over, 0)]
	}
	resources := host + 1 + len(ties)
	w.problem = solver.Problem{Capacity: make([]int64, resources), Idle: make([]int64, resources), Limit: limit}
	usable := make([]bool, host)
	for index, i := range at {
		w.problem.Idle[i] = math.MaxInt64 // where nobody comes, nobody asks
		w.problem.Capacity[i] = -1
		if spare, ok := capacity.Spare(f.h, index); ok {
			w.problem.Capacity[i], usable[i] = spare-int64(w.p.Margin), true
		}
	}
	_, loader := f.host()
	w.problem.Capacity[host] = math.MaxInt64
	if f.tells {
		w.problem.Capacity[host] = int64(f.available) - int64(loader)
	}
	w.problem.Idle[host] = w.problem.Capacity[host]
	for n, i := range ties {
		w.problem.Capacity[host+1+n] = int64(len(needed[i]))
		w.problem.Idle[host+1+n] = int64(len(needed[i]))
	}
	back := func(held map[uint32]uint32) {
		for index, mib := range held {
			if i := at[index]; usable[i] {
				w.problem.Capacity[i] += int64(mib)
			}
		}
	}
	for _, one := range f.requestedStops {
		back(capacity.Held(f.h, one.Service))
	}
	for _, c := range w.candidates {
		held := capacity.Held(f.h, c.Service)
		back(held)
		one := solver.Service{Arrives: c.comes}
		for n, option := range c.options {
			choice := solver.Option{Use: make([]int64, resources), Cost: option.cost}
			w.uses(c, option, held, at, choice.Use)
			for m := 1; m < n; m++ { // the same in a lesser degree
				if c.options[m].kind == option.kind && (option.kind == changeContext || option.kind == changeUtilisation) {
					choice.Less = append(choice.Less, m)
				}
			}
			one.Options = append(one.Options, choice)
		}
		w.problem.Services = append(w.problem.Services, one)
	}
	for n, i := range ties {
		for _, j := range needed[i] {
			w.problem.Services[j].Options[0].Use[host+1+n] = 1
		}
		for o := range w.problem.Services[i].Options[1:] {
			w.problem.Services[i].Options[1+o].Use[host+1+n] = int64(len(needed[i]))
		}
	}
	return w.problem.Check() == nil
}

// uses is what a candidate takes of GPUs, by at, and of the host's memory, which comes after them, if that becomes of it.
func (w *search) uses(c candidate, becomes option, held map[uint32]uint32, at map[uint32]int, use []int64) {
	f := &w.p.movements
	switch {
	case c.comes:
		for index, mib := range becomes.awake.PerGPU {
			use[at[index]] = int64(mib)
		}
		for index, mib := range becomes.loading {
			use[at[index]] = max(use[at[index]], int64(mib))
		}
	case becomes.kind == changeKeep:
		for index, mib := range held {
			use[at[index]] = int64(mib)
		}
	case becomes.kind == changeSleep:
		keeps := f.z.Asleep(c.Service)
		for index, mib := range held {
			use[at[index]] = int64(min(mib, keeps[index]))
		}
		use[len(at)] = int64(f.z.requirements.HostAsleep(c.Service))
	}
}

// read makes the plan of a solution; nil for one that is the plan itself. What does not fit by package capacity after all is none.
func (w *search) read(choice []int) (*alternative, error) {
	base := &w.p.movements
	p := *w.p
	p.stays, p.short, p.lack, p.keeps, p.subject, p.Digest = "", nil, "", nil, nil, ""
	p.unbound = !p.request.plain()
	f := &p.movements
	f.sleeping, f.asleep, f.stopping, f.ending = nil, nil, nil, nil
	z := *base.z
	z.awake, z.loading = maps.Clone(z.awake), maps.Clone(z.loading)
	f.z = &z
	ends := map[*catalog.Service]executorv1.ChangeKind{}
	for _, one := range base.sleeping {
		ends[one] = changeSleep
	}
	for _, one := range append(slices.Clone(base.stopping), base.ending...) {
		ends[one] = changeStop
	}
	same := true
	var changes []Change
	for i, at := range choice {
		c := w.candidates[i]
		option := c.options[at]
		change := Change{Kind: option.kind, Service: c.ID, From: option.from, To: option.to}
		if c.comes {
			if option.kind != changeKeep {
				z.want(c.Service, option.awake, option.loading)
				changes = append(changes, change)
				p.unbound, same = true, false
			}
			continue
		}
		end, ended := ends[c.Service]
		same = same && option.kind == cmp.Or(end, changeKeep)
		switch v := f.views[c.Service]; {
		case option.kind == changeSleep:
			f.sleeping = append(f.sleeping, c.Service)
		case option.kind == changeStop && v.Asleep():
			f.ending = append(f.ending, c.Service)
		case option.kind == changeStop:
			f.stopping = append(f.stopping, c.Service)
		case v.Asleep():
			f.asleep = append(f.asleep, c.Service)
		}
		if option.kind != changeKeep || ended {
			changes = append(changes, change)
		}
		if option.kind == changeKeep && ended {
			p.keeps = append(p.keeps, c.Service)
		}
	}
	if same {
		return nil, nil
	}
	if f.short() != nil || f.lacking() != "" {
		w.cut = true
		return nil, nil
	}
	// What is done comes first, and what is left as it is last.
	slices.SortStableFunc(changes, func(a, b Change) int { return cmp.Compare(turn(a.Kind), turn(b.Kind)) })
	if err := w.finish(w.ctx, &p); err != nil || p.reason != "" {
		return nil, err
	}
	return &alternative{&p, changes}, nil
}

func turn(kind executorv1.ChangeKind) int {
	if kind == changeKeep {
		return math.MaxInt
	}
	return int(kind)
}
