package mode

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/arrange"
	"durward.internal/services/executor/internal/need"
	"durward.internal/services/executor/internal/room"
	"durward.internal/services/platform/catalogue"
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
	*plan
	changes []Change
}

// candidate is a service that an alternative may treat in several ways. The first is to leave it as it is or, for one that comes, as
// the catalogue says.
type candidate struct {
	*catalogue.Service
	comes bool
	ways  []way
}

// way is one of them.
type way struct {
	// kind is changeKeep for the first.
	kind     executorv1.ChangeKind
	from, to string
	cost     int64
	// awake and loading are of one that comes.
	awake   need.Need
	loading map[uint32]uint32
}

// group are candidates that are decided on together, because some depend on others. Each combination has a way for each of them.
type group struct {
	who          []int
	combinations [][]int
}

// maxCombinations bounds a group. Hosts have two or three services that depend on each other; then all are seen.
const maxCombinations = 256

// search is one search for alternatives.
type search struct {
	*Switcher
	ctx        context.Context
	p          *plan
	candidates []candidate
	groups     []group
	// outside are all services that a plan may move and that are not to run, memory or not.
	outside []*catalogue.Service
	problem arrange.Problem
	cut     bool
}

// alternatives looks for other ways that fit than the plan: the least disruptive first, in none of which anything can be left out.
// cut: not everything was looked at. Pinned services, and those within their minimum residence, stay as they are in all of them.
func (s *Switcher) alternatives(ctx context.Context, p *plan, wanted int) (found []alternative, cut bool, err error) {
	if p.reason != "" || p.hopeless || p.target.mode == nil && p.unfit() == "" {
		return nil, false, nil // without a mode nobody is in the way of a plan that fits
	}
	w := &search{Switcher: s, ctx: ctx, p: p}
	w.gather()
	w.gatherGroups()
	if !w.pose(wanted + 1) { // one of them may be the plan
		return nil, true, nil
	}
	solutions, ended := arrange.Solve(ctx, &w.problem)
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	for _, solution := range solutions {
		if len(found) == wanted {
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
	f := &w.p.forces
	incoming := f.incoming()
	for _, one := range incoming {
		w.candidates = append(w.candidates, candidate{Service: one, comes: true, ways: w.waysIn(one)})
	}
	for _, one := range w.p.catalogue.Services {
		v := f.views[one]
		if w.p.kept[one] || w.p.target.stop[one] || !v.Holds() || slices.Contains(incoming, one) {
			continue
		}
		w.outside = append(w.outside, one)
		w.candidates = append(w.candidates, candidate{Service: one, ways: w.waysOut(one)})
	}
}

// waysOut are those of a service that is not to run, or that runs and was not asked for.
func (w *search) waysOut(one *catalogue.Service) []way {
	v := w.p.forces.views[one]
	ways := []way{{kind: changeKeep}}
	back := grain(w.expected(w.ctx, actionStart, one.ID))
	switch v.State {
	case executorv1.ServiceState_SERVICE_STATE_RUNNING:
		if w.stays(one, v) {
			return ways
		}
		if sleeps(one) {
			ways = append(ways, way{kind: changeSleep, cost: costSleep + grain(w.expected(w.ctx, actionWake, one.ID))})
		}
		return append(ways, way{kind: changeStop, cost: costStop + back})
	case executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
		return append(ways, way{kind: changeStop, cost: costStop + back})
	case executorv1.ServiceState_SERVICE_STATE_SLEEPING:
		return append(ways, way{kind: changeStop, cost: costSleeper + back})
	}
	return ways // in the middle of a change of its own
}

// gatherGroups puts those together that depend on each other: who runs on keeps what it depends on.
func (w *search) gatherGroups() {
	index := map[*catalogue.Service]int{}
	leader := make([]int, len(w.candidates))
	for i, c := range w.candidates {
		leader[i] = i
		if !c.comes {
			index[c.Service] = i
		}
	}
	var find func(i int) int
	find = func(i int) int {
		if leader[i] != i {
			leader[i] = find(leader[i])
		}
		return leader[i]
	}
	needs := make([][]int, len(w.candidates))
	for i, c := range w.candidates {
		if c.comes || len(c.DependsOn) == 0 {
			continue
		}
		for _, other := range supported(w.p.catalogue, []*catalogue.Service{c.Service}) {
			if j, ok := index[other]; ok && j != i {
				needs[i] = append(needs[i], j)
				leader[max(find(i), find(j))] = min(find(i), find(j))
			}
		}
	}
	at := map[int]int{}
	for i := range w.candidates {
		l := find(i)
		g, ok := at[l]
		if !ok {
			g = len(w.groups)
			at[l] = g
			w.groups = append(w.groups, group{})
		}
		w.groups[g].who = append(w.groups[g].who, i)
	}
	for g := range w.groups {
		w.combine(&w.groups[g], needs)
	}
}

// combine lists what can become of a group.
func (w *search) combine(g *group, needs [][]int) {
	place := map[int]int{}
	for n, i := range g.who {
		place[i] = n
	}
	sound := func(choice []int) bool {
		for n, i := range g.who {
			if v := w.p.forces.views[w.candidates[i].Service]; choice[n] != 0 || v.Asleep() {
				continue
			}
			for _, j := range needs[i] { // it runs on, and so does what it needs
				if choice[place[j]] != 0 {
					return false
				}
			}
		}
		return true
	}
	choice := make([]int, len(g.who))
	for seen := 0; ; seen++ {
		if len(g.who) == 1 || sound(choice) {
			g.combinations = append(g.combinations, slices.Clone(choice))
		}
		n := 0
		for ; n < len(choice); n++ {
			if choice[n]++; choice[n] < len(w.candidates[g.who[n]].ways) {
				break
			}
			choice[n] = 0
		}
		if n == len(choice) {
			return
		}
		if len(g.combinations) == maxCombinations && len(g.who) > 1 || seen == 64*maxCombinations {
			w.cut = true
			return
		}
	}
}

// pose puts the question to package arrange: each GPU is a resource, and the host's memory the last one. It reports whether there
// are not too many.
func (w *search) pose(limit int) bool {
	f := &w.p.forces
	at := map[uint32]int{}
	for _, g := range f.h.GPUs {
		at[g.Index] = len(at)
	}
	for _, c := range w.candidates {
		for _, way := range c.ways {
			for _, taken := range []map[uint32]uint32{way.awake.PerGPU, way.loading} {
				for _, index := range slices.Sorted(maps.Keys(taken)) {
					if _, ok := at[index]; !ok {
						at[index] = len(at)
					}
				}
			}
		}
	}
	host := len(at)
	w.problem = arrange.Problem{Capacity: make([]int64, host+1), Idle: make([]int64, host+1), Limit: limit}
	usable := make([]bool, host)
	for index, i := range at {
		w.problem.Idle[i] = math.MaxInt64 // where nobody comes, nobody asks
		w.problem.Capacity[i] = -1
		if spare, ok := room.Spare(f.h, index); ok {
			w.problem.Capacity[i], usable[i] = spare-int64(w.p.margin), true
		}
	}
	_, loader := f.host()
	w.problem.Capacity[host] = math.MaxInt64
	if f.tells {
		w.problem.Capacity[host] = int64(f.available) - int64(loader)
	}
	w.problem.Idle[host] = w.problem.Capacity[host]
	back := func(held map[uint32]uint32) {
		for index, mib := range held {
			if i := at[index]; usable[i] {
				w.problem.Capacity[i] += int64(mib)
			}
		}
	}
	for _, one := range f.told {
		back(room.Held(f.h, one.Service))
	}
	uses := make([][][]int64, len(w.candidates))
	for i, c := range w.candidates {
		held := room.Held(f.h, c.Service)
		back(held)
		for _, way := range c.ways {
			use := make([]int64, host+1)
			switch {
			case c.comes:
				for index, mib := range way.awake.PerGPU {
					use[at[index]] = int64(max(mib, way.loading[index]))
				}
				for index, mib := range way.loading {
					use[at[index]] = max(use[at[index]], int64(mib))
				}
			case way.kind == changeKeep:
				for index, mib := range held {
					use[at[index]] = int64(mib)
				}
			case way.kind == changeSleep:
				keeps := f.z.Asleep(c.Service)
				for index, mib := range held {
					use[at[index]] = int64(min(mib, keeps[index]))
				}
				use[host] = int64(f.z.book.HostAsleep(c.Service))
			}
			uses[i] = append(uses[i], use)
		}
	}
	for _, g := range w.groups {
		one := arrange.Service{Arrives: w.candidates[g.who[0]].comes}
		for _, choice := range g.combinations {
			option := arrange.Option{Use: uses[g.who[0]][choice[0]]}
			for n, i := range g.who {
				way := w.candidates[i].ways[choice[n]]
				option.Cost += way.cost
				if n > 0 {
					option.Use = sum(option.Use, uses[i][choice[n]])
				}
			}
			for n, other := range g.combinations[:len(one.Options)] {
				if n > 0 && w.less(g, other, choice) {
					option.Less = append(option.Less, n)
				}
			}
			one.Options = append(one.Options, option)
		}
		w.problem.Services = append(w.problem.Services, one)
	}
	return w.problem.Check() == nil
}

func sum(a, b []int64) []int64 {
	out := slices.Clone(a)
	for i, n := range b {
		out[i] += n
	}
	return out
}

// less reports whether what one combination of a group does is part of what the other does, or the same in a lesser degree.
func (w *search) less(g group, a, b []int) bool {
	for n, i := range g.who {
		if a[n] == 0 || a[n] == b[n] {
			continue
		}
		lesser, greater := w.candidates[i].ways[a[n]].kind, w.candidates[i].ways[b[n]].kind
		if a[n] > b[n] || lesser != greater || lesser != changeContext && lesser != changeUtilisation {
			return false
		}
	}
	return true
}

// read makes the plan of a solution; nil for one that is the plan itself. What does not fit by package room's word after all is none.
func (w *search) read(choice []int) (*alternative, error) {
	base := &w.p.forces
	p := *w.p
	p.stays, p.short, p.lack, p.keeps, p.subject, p.digest = "", nil, "", nil, nil, ""
	f := &p.forces
	f.sleeping, f.asleep, f.stopping, f.ending = nil, nil, nil, nil
	z := *base.z
	z.awake, z.loading = maps.Clone(z.awake), maps.Clone(z.loading)
	f.z = &z
	ends := map[*catalogue.Service]executorv1.ChangeKind{}
	for _, one := range base.sleeping {
		ends[one] = changeSleep
	}
	for _, one := range append(slices.Clone(base.stopping), base.ending...) {
		ends[one] = changeStop
	}
	same := true
	var changes []Change
	for g, at := range choice {
		for n, i := range w.groups[g].who {
			c := w.candidates[i]
			way := c.ways[w.groups[g].combinations[at][n]]
			change := Change{Kind: way.kind, Service: c.ID, From: way.from, To: way.to}
			if c.comes {
				if way.kind != changeKeep {
					z.want(c.Service, way.awake, way.loading)
					changes = append(changes, change)
					p.unbound, same = true, false
				}
				continue
			}
			end, ended := ends[c.Service]
			same = same && way.kind == cmp.Or(end, changeKeep)
			switch v := f.views[c.Service]; {
			case way.kind == changeSleep:
				f.sleeping = append(f.sleeping, c.Service)
			case way.kind == changeStop && v.Asleep():
				f.ending = append(f.ending, c.Service)
			case way.kind == changeStop:
				f.stopping = append(f.stopping, c.Service)
			case v.Asleep():
				f.asleep = append(f.asleep, c.Service)
			}
			if way.kind != changeKeep || ended {
				changes = append(changes, change)
			}
			if way.kind == changeKeep && ended {
				p.keeps = append(p.keeps, c.Service)
			}
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
