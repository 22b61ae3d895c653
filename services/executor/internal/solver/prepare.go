package solver

import (
	"cmp"
	"context"
	"slices"
)

// newSearch is nil where ctx is done before there is a search.
func newSearch(ctx context.Context, p *Problem) *search {
	s := &search{ctx: ctx, services: len(p.Services), limit: min(p.Limit, MaxLimit), steps: p.Steps, ceiling: never, above: never}
	s.steps = cmp.Or(s.steps, DefaultSteps)
	kept := s.keep(p)
	s.choice = make([]int, s.services)
	s.place = make([]int, s.services)
	for i := range p.Services {
		if ctx.Err() != nil {
			return nil
		}
		s.place[i] = -1
		it := s.item(p, i, kept)
		for _, r := range bitsOf(it.takes) {
			s.taking[r]++
			if len(it.moves) == 0 {
				s.taken[r]++
			}
		}
		if len(it.moves) > 0 {
			s.items = append(s.items, it)
		}
	}
	s.order()
	for position := range s.items {
		s.place[s.items[position].service] = position
	}
	s.suffixes()
	s.bounds = s.newBounds()
	s.chosen = make([]chosen, 0, len(s.items))
	s.best = make([]candidate, 0, s.limit+1)
	return s
}

// keep finds the resources that can run short, and says which they are.
func (s *search) keep(p *Problem) []int {
	var kept []int
	for r, capacity := range p.Capacity {
		capacity = min(max(capacity, -unlimited), unlimited)
		idle := capacity
		if p.Idle != nil {
			idle = min(max(p.Idle[r], -unlimited), unlimited)
		}
		var wanted, most, held int64
		for i := range p.Services {
			var m int64
			for o := range p.Services[i].Options {
				m = max(m, p.Services[i].Options[o].Use[r])
			}
			wanted += p.Services[i].Options[0].Use[r]
			most += m
			if !p.Services[i].Arrives {
				held += m
			}
		}
		if most <= capacity {
			continue
		}
		kept = append(kept, r)
		s.use = append(s.use, wanted)
		s.capacity = append(s.capacity, capacity)
		s.idle = append(s.idle, idle)
		s.relaxed = append(s.relaxed, max(capacity, min(idle, held)))
	}
	s.resources = len(kept)
	s.taking = make([]int32, s.resources)
	s.taken = make([]int32, s.resources)
	return kept
}

// item reads one service's options.
func (s *search) item(p *Problem, service int, kept []int) item {
	in := &p.Services[service]
	it := item{service: service, arrives: in.Arrives, all: make([]change, len(in.Options))}
	for o := range in.Options {
		c := change{lesser: lesser(in.Options, o)}
		var relieves uint64
		for k, r := range kept {
			use := in.Options[o].Use[r]
			if use > 0 && in.Arrives {
				c.takes |= 1 << k
			}
			if d := use - in.Options[0].Use[r]; d != 0 {
				c.deltas = append(c.deltas, delta{resource: k, amount: d})
				if d < 0 {
					relieves |= 1 << k
				}
			}
		}
		it.all[o] = c
		if o == 0 {
			it.takes = c.takes
		}
		if relieves != 0 && !dominated(in.Options, o) {
			it.relieves |= relieves
			key := in.Options[o].Cost*int64(s.services+1) + 1
			it.moves = append(it.moves, move{change: c, option: o, key: key, relieves: relieves})
		}
	}
	slices.SortStableFunc(it.moves, func(a, b move) int { return cmp.Compare(a.key, b.key) })
	return it
}

// lesser are the options that are less of one: the first, and those that it says are.
func lesser(options []Option, o int) []int {
	out := []int{0}
	for _, less := range options[o].Less {
		if !slices.Contains(out, less) {
			out = append(out, less)
		}
	}
	return out
}

// dominated reports whether another option is no worse in anything.
func dominated(options []Option, o int) bool {
	for other := range options {
		if other == o || options[other].Cost > options[o].Cost || (options[other].Cost == options[o].Cost && other > o) {
			continue
		}
		worse := false
		for r := range options[o].Use {
			worse = worse || options[other].Use[r] > options[o].Use[r]
		}
		if !worse {
			return true
		}
	}
	return false
}

// order puts the items in the order in which they are decided: those first that arrive, so that it is known early what they take
// of; then by the resource that they help most, and those first that help it most, so that what comes last is small and seldom
// makes something needless that was chosen before it.
func (s *search) order() {
	type rank struct {
		resource int
		part     float64
	}
	ranks := make([]rank, s.services)
	for i := range s.items {
		it := &s.items[i]
		k := rank{resource: s.resources}
		for _, m := range it.moves {
			for _, d := range m.deltas {
				if d.amount > 0 {
					continue
				}
				short := s.use[d.resource] - s.floor(d.resource)
				part := 0.0
				if short > 0 {
					part = float64(min(-d.amount, short)) / float64(short)
				}
				if k.resource == s.resources || part > k.part {
					k.resource, k.part = d.resource, part
				}
			}
		}
		ranks[it.service] = k
	}
	slices.SortStableFunc(s.items, func(a, b item) int {
		if a.arrives != b.arrives {
			if a.arrives {
				return -1
			}
			return 1
		}
		ra, rb := ranks[a.service], ranks[b.service]
		return cmp.Or(cmp.Compare(ra.resource, rb.resource), cmp.Compare(rb.part, ra.part), cmp.Compare(b.service, a.service))
	})
}

// suffixes says what the items from each position on can do at most.
func (s *search) suffixes() {
	n := len(s.items)
	s.rise = make([]int64, (n+1)*s.resources)
	s.least = make([]int64, n+1)
	s.least[n] = never
	most := make([]int64, s.resources)
	for position := n - 1; position >= 0; position-- {
		it := &s.items[position]
		clear(most)
		s.least[position] = s.least[position+1]
		for _, m := range it.moves {
			s.least[position] = min(s.least[position], m.key)
			for _, d := range m.deltas {
				most[d.resource] = max(most[d.resource], d.amount)
			}
		}
		for r := range s.resources {
			s.rise[position*s.resources+r] = s.rise[(position+1)*s.resources+r] + most[r]
		}
	}
}
