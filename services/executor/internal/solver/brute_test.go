package solver

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// brute solves a problem by looking at everything, straight from what the package says of a solution. It shares no code with the
// search.
func brute(p *Problem) []Solution {
	var out []Solution
	each(len(p.Services), func(i int) []int { return every(len(p.Services[i].Options)) }, func(choice []int) bool {
		if holds(p, choice) && !wasteful(p, choice) && !excessive(p, choice) {
			out = append(out, Solution{Choice: slices.Clone(choice), Cost: cost(p, choice)})
		}
		return true
	})
	slices.SortFunc(out, func(a, b Solution) int {
		return cmp.Or(cmp.Compare(a.Cost, b.Cost), cmp.Compare(deviations(a.Choice), deviations(b.Choice)), slices.Compare(a.Choice, b.Choice))
	})
	return out[:min(len(out), p.Limit, 11)]
}

// each calls visit with every way to take one of what of says for each of n, until it returns false.
func each(n int, of func(int) []int, visit func([]int) bool) bool {
	choice := make([]int, n)
	var at func(int) bool
	at = func(i int) bool {
		if i == n {
			return visit(choice)
		}
		for _, o := range of(i) {
			choice[i] = o
			if !at(i + 1) {
				return false
			}
		}
		return true
	}
	return at(0)
}

func every(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// holds reports whether no resource is overdrawn.
func holds(p *Problem, choice []int) bool {
	for r := range p.Capacity {
		sum, afresh := int64(0), int64(0)
		for i, o := range choice {
			sum += p.Services[i].Options[o].Use[r]
			if p.Services[i].Arrives {
				afresh += p.Services[i].Options[o].Use[r]
			}
		}
		there := p.Capacity[r]
		if p.Idle != nil && afresh == 0 {
			there = p.Idle[r]
		}
		if sum > there {
			return false
		}
	}
	return true
}

// wasteful reports whether another option of a service would be as good as the chosen one in everything.
func wasteful(p *Problem, choice []int) bool {
	for i, o := range choice {
		mine := p.Services[i].Options[o]
		for other, option := range p.Services[i].Options {
			better := option.Cost < mine.Cost || (option.Cost == mine.Cost && other < o)
			for r := range option.Use {
				better = better && option.Use[r] <= mine.Use[r]
			}
			if better {
				return true
			}
		}
	}
	return false
}

// excessive reports whether it holds with some deviations left out, or lessened.
func excessive(p *Problem, choice []int) bool {
	less := func(i int) []int {
		out := []int{choice[i]}
		mine := p.Services[i].Options[choice[i]]
		for o := range p.Services[i].Options {
			if o != choice[i] && (o == 0 || slices.Contains(mine.Less, o)) {
				out = append(out, o)
			}
		}
		return out
	}
	return !each(len(choice), less, func(other []int) bool { return slices.Equal(other, choice) || !holds(p, other) })
}

func cost(p *Problem, choice []int) (sum int64) {
	for i, o := range choice {
		sum += p.Services[i].Options[o].Cost
	}
	return sum
}

func deviations(choice []int) (n int) {
	for _, o := range choice {
		if o != 0 {
			n++
		}
	}
	return n
}

// shape says what random problems look like.
type shape struct {
	services, options, resources int
	// costs and uses are how many different ones there are.
	costs, uses int64
	// tight is what part of what is wanted there is, in tenths, at least and at most.
	least, most int64
	// less: options may be less of others. frees: options take no more than the first, as stopping or a smaller context do; else
	// anything. arrivals: services may arrive.
	less, frees, arrivals bool
}

// random makes a problem. The same numbers make the same problem.
func random(rng *rand.Rand, s shape) *Problem {
	p := &Problem{Limit: 1 + rng.IntN(12), Steps: 1 << 30}
	for range s.services/2 + rng.IntN(s.services-s.services/2+1) {
		service := Service{Arrives: s.arrivals && rng.IntN(2) == 0}
		for o := range 1 + rng.IntN(s.options+1) {
			option := Option{Use: make([]int64, s.resources)}
			if o > 0 {
				option.Cost = 1 + rng.Int64N(s.costs)
				for less := 1; less < o && s.less; less++ {
					if rng.IntN(2) == 0 {
						option.Less = append(option.Less, less, less)
					}
				}
			}
			for r := range option.Use {
				switch {
				case rng.IntN(4) == 0 && (o > 0 || s.resources > 1):
				case s.frees && o > 0:
					option.Use[r] = rng.Int64N(service.Options[0].Use[r] + 1)
				default:
					option.Use[r] = rng.Int64N(s.uses + 1)
				}
			}
			service.Options = append(service.Options, option)
		}
		p.Services = append(p.Services, service)
	}
	for r := range s.resources {
		var wanted int64
		for _, service := range p.Services {
			wanted += service.Options[0].Use[r]
		}
		p.Capacity = append(p.Capacity, wanted*(s.least+rng.Int64N(s.most-s.least+1))/10)
	}
	if rng.IntN(2) == 0 && s.most > 1 {
		// There is room for one way at least.
		for r := range p.Capacity {
			p.Capacity[r] = 0
		}
		for _, service := range p.Services {
			for r, use := range service.Options[rng.IntN(len(service.Options))].Use {
				p.Capacity[r] += use
			}
		}
	}
	if s.arrivals {
		for _, c := range p.Capacity {
			idle := c + rng.Int64N(s.uses*2)
			if rng.IntN(2) == 0 {
				idle = math.MaxInt64
			}
			p.Idle = append(p.Idle, idle)
		}
	}
	return p
}

// text shows a problem as Go code, for a failure.
func text(p *Problem) string {
	var b strings.Builder
	fmt.Fprintf(&b, "capacity %d idle %d limit %d steps %d\n", p.Capacity, p.Idle, p.Limit, p.Steps)
	for i, s := range p.Services {
		fmt.Fprintf(&b, "  service %d arrives %v:", i, s.Arrives)
		for _, o := range s.Options {
			fmt.Fprintf(&b, " {use %d cost %d less %d}", o.Use, o.Cost, o.Less)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
