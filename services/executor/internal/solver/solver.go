// Package solver finds the least costly ways to make services fit in what a host has: for each service one of its options, so
// that together they take no more of any resource than there is. It knows nothing of GPUs or services; package mode says what
// the resources and options are.
//
// It is exact for the sizes that hosts have, by branch and bound; beyond, it stops after a fixed number of steps, so that the same
// problem has the same answer on every machine, and says so. It trusts nothing of a problem: one that is not well formed has no
// solutions, and Check says why.
package solver

import (
	"context"
	"fmt"
)

// Problem is what has to fit. Nothing of it is changed.
type Problem struct {
	// Capacity is what there is of each resource. It may be negative, where more is taken already than there is.
	Capacity []int64
	// Idle is what there is of each resource as long as no service that arrives takes of it, and never less than Capacity: what
	// holds a resource already may hold it beyond what may be taken afresh. nil: Capacity holds always.
	Idle []int64
	// Services have at least one option each. Option 0 is to leave the service as it is wanted, and costs nothing.
	Services []Service
	// Limit is how many solutions are wanted, MaxLimit at most; Steps bounds the search, 0 means DefaultSteps.
	Limit, Steps int
}

// Service is one that has to be arranged.
type Service struct {
	Options []Option
	// Arrives: what the chosen option takes, it takes afresh. See Problem.Idle.
	Arrives bool
}

// Option is one way to arrange a service.
type Option struct {
	// Use is what it takes of each resource, MaxUse at most. Nothing is negative.
	Use []int64
	// Cost is above 0 for every option but the first, and MaxCost at most.
	Cost int64
	// Less are options of the same service that are less of this one, beside option 0: the same change in lesser degree, or a part
	// of it. Nothing is less than option 0.
	Less []int
}

// Solution is one way that fits and in which nothing can be left out: with any proper subset of its deviations from option 0, and
// with an option that is less in the place of any of them, it would not fit. An option is never chosen that takes no less of anything than another
// one of its service that costs less, or as much and is listed before it.
type Solution struct {
	// Choice is the option of each service.
	Choice []int
	Cost   int64
}

const (
	// DefaultSteps bounds a search unless told. One core takes some 30 ms for them.
	DefaultSteps = 200_000
	// MaxLimit is how many solutions are looked for at most: ten alternatives, and the plan itself among them.
	MaxLimit = 11

	// These bound a problem, so that no sum overflows and it is read in no time: options of one service are compared with each other.
	// MaxOptions is for one service, MaxAll for all.
	MaxResources = 64
	MaxServices  = 4096
	MaxOptions   = 256
	MaxAll       = 1 << 13
	MaxUse       = 1 << 31
	MaxCost      = 1 << 32
)

// Check says why the problem is not well formed: nil, or one sentence.
func (p *Problem) Check() error {
	switch {
	case len(p.Capacity) > MaxResources:
		return fmt.Errorf("there are %d resources, and %d are the most", len(p.Capacity), MaxResources)
	case len(p.Services) > MaxServices:
		return fmt.Errorf("there are %d services, and %d are the most", len(p.Services), MaxServices)
	case p.Idle != nil && len(p.Idle) != len(p.Capacity):
		return fmt.Errorf("there are %d resources, and %d of them idle", len(p.Capacity), len(p.Idle))
	case p.Limit < 0 || p.Steps < 0:
		return fmt.Errorf("the limit of %d solutions or %d steps is negative", p.Limit, p.Steps)
	}
	for r := range p.Idle {
		if p.Idle[r] < p.Capacity[r] {
			return fmt.Errorf("there is less of resource %d while it is idle", r)
		}
	}
	options := 0
	for i := range p.Services {
		n := len(p.Services[i].Options)
		if n == 0 || n > MaxOptions {
			return fmt.Errorf("service %d has %d options, and 1 to %d are right", i, n, MaxOptions)
		}
		if options += n; options > MaxAll {
			return fmt.Errorf("there are more than %d options", MaxAll)
		}
		for o := range p.Services[i].Options {
			if err := p.Services[i].Options[o].check(o, len(p.Services[i].Options), len(p.Capacity)); err != nil {
				return fmt.Errorf("option %d of service %d: %w", o, i, err)
			}
		}
	}
	return nil
}

func (o *Option) check(index, options, resources int) error {
	if len(o.Use) != resources {
		return fmt.Errorf("it takes of %d resources, and there are %d", len(o.Use), resources)
	}
	for r, use := range o.Use {
		if use < 0 || use > MaxUse {
			return fmt.Errorf("it takes %d of resource %d", use, r)
		}
	}
	if (o.Cost == 0) != (index == 0) || o.Cost < 0 || o.Cost > MaxCost {
		return fmt.Errorf("it costs %d", o.Cost)
	}
	for _, less := range o.Less {
		if less < 0 || less >= options || less == index || index == 0 {
			return fmt.Errorf("option %d is not less of it", less)
		}
	}
	return nil
}

// Fits reports whether the choice, of a well formed problem, takes no more than there is. A choice that is none does not fit.
func Fits(p *Problem, choice []int) bool {
	if len(choice) != len(p.Services) {
		return false
	}
	for i, o := range choice {
		if o < 0 || o >= len(p.Services[i].Options) {
			return false
		}
	}
	for r, capacity := range p.Capacity {
		var use int64
		taken := p.Idle == nil
		for i, o := range choice {
			takes := p.Services[i].Options[o].Use[r]
			use += takes
			taken = taken || (takes > 0 && p.Services[i].Arrives)
		}
		if !taken {
			capacity = p.Idle[r]
		}
		if use > capacity {
			return false
		}
	}
	return true
}

// Solve returns the Limit least costly solutions: by cost, then by the number of deviations, then by the choice's order. cut: it
// stopped before it had seen all, and a better one may have been missed; what it returns fits all the same. A problem that Check
// refuses has none. It stops early when ctx is done.
func Solve(ctx context.Context, p *Problem) (found []Solution, cut bool) {
	if p.Limit == 0 || p.Check() != nil {
		return nil, false
	}
	wanted := make([]int, len(p.Services))
	if Fits(p, wanted) {
		// Whatever else fits could be left out.
		return []Solution{{Choice: wanted}}, false
	}
	s := newSearch(ctx, p)
	if s == nil {
		return nil, true
	}
	s.run()
	return s.solutions(), s.cut
}
