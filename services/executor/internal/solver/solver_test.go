package solver

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"durward.internal/services/platform/platformtest"
)

// shapes are the random problems that the search is compared on. The first ones are like hosts, the others are nasty.
var shapes = map[string]shape{
	"hosts":              {services: 7, options: 4, resources: 3, costs: 100, uses: 80, least: 3, most: 10, frees: true},
	"hosts with degrees": {services: 6, options: 5, resources: 3, costs: 100, uses: 80, least: 3, most: 10, frees: true, less: true},
	"moves":              {services: 6, options: 4, resources: 4, costs: 100, uses: 80, least: 3, most: 12},
	"moves with degrees": {services: 5, options: 5, resources: 3, costs: 100, uses: 80, least: 3, most: 12, less: true},
	"arrivals":           {services: 6, options: 4, resources: 3, costs: 100, uses: 80, least: 0, most: 10, frees: true, arrivals: true},
	"arrivals moving":    {services: 6, options: 4, resources: 3, costs: 100, uses: 20, least: -2, most: 12, less: true, arrivals: true},
	"equal costs":        {services: 8, options: 3, resources: 2, costs: 1, uses: 10, least: 3, most: 9, frees: true},
	"equal everything":   {services: 10, options: 2, resources: 1, costs: 1, uses: 1, least: 2, most: 9, frees: true},
	"few uses":           {services: 7, options: 4, resources: 3, costs: 3, uses: 2, least: 2, most: 12},
	"one resource":       {services: 10, options: 3, resources: 1, costs: 30, uses: 1000, least: 2, most: 9},
	"no room":            {services: 7, options: 3, resources: 2, costs: 9, uses: 9, least: 0, most: 1},
	"less than no room":  {services: 5, options: 3, resources: 2, costs: 9, uses: 9, least: -5, most: 8},
	"large numbers":      {services: 7, options: 4, resources: 3, costs: MaxCost, uses: MaxUse - 1, least: 3, most: 12, less: true},
	"many resources":     {services: 6, options: 3, resources: 20, costs: 50, uses: 50, least: 6, most: 12},
}

// What the search finds is what looking at everything finds, in the same order.
func TestSolveFindsWhatLookingAtEverythingFinds(t *testing.T) {
	t.Parallel()
	const problems = 800
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			solved, several := 0, 0
			for seed := range uint64(problems) {
				p := random(rand.New(rand.NewPCG(seed, 1)), shape)
				if err := p.Check(); err != nil {
					t.Fatalf("seed %d: %v\n%s", seed, err, text(p))
				}
				got, cut := Solve(t.Context(), p)
				want := brute(p)
				if cut || !same(got, want) {
					t.Fatalf("seed %d: cut %v\n got %v\nwant %v\n%s", seed, cut, got, want, text(p))
				}
				if len(want) > 0 && deviations(want[0].Choice) > 0 {
					solved++
				}
				if len(want) > 1 {
					several++
				}
			}
			t.Logf("of %d problems %d take a deviation, %d have several solutions", problems, solved, several)
			if solved == 0 {
				t.Error("no problem of this shape says anything")
			}
		})
	}
}

// Whenever a search is cut, what it has found is sound: it fits, nothing can be left out, and it is in order; and the next one is
// cut in the same place.
func TestWhatACutSearchFoundIsSound(t *testing.T) {
	t.Parallel()
	from, most := rand.Uint64(), uint64(12)
	if platformtest.Full() {
		from, most = 0, 60
	}
	t.Logf("from seed %d", from)
	cuts, found := 0, 0
	for _, name := range []string{"hosts with degrees", "moves with degrees", "arrivals moving", "equal costs", "few uses"} {
		for seed := from; seed != from+most; seed++ {
			p := random(rand.New(rand.NewPCG(seed, 2)), shapes[name])
			all := brute(p)
			for p.Steps = 1; p.Steps < 400; p.Steps += 1 + p.Steps/4 {
				got, cut := Solve(t.Context(), p)
				if again, same2 := Solve(t.Context(), p); !same(got, again) || cut != same2 {
					t.Fatalf("%s seed %d: %v and then %v\n%s", name, seed, got, again, text(p))
				}
				if !cut {
					if !same(got, all) {
						t.Fatalf("%s seed %d: not cut\n got %v\nwant %v\n%s", name, seed, got, all, text(p))
					}
					continue
				}
				cuts++
				found += len(got)
				for i, s := range got {
					if !holds(p, s.Choice) || excessive(p, s.Choice) || wasteful(p, s.Choice) || s.Cost != cost(p, s.Choice) {
						t.Fatalf("%s seed %d: %v is no solution\n%s", name, seed, s, text(p))
					}
					if i > 0 && s.Cost < got[i-1].Cost || len(got) > p.Limit {
						t.Fatalf("%s seed %d: %v\n%s", name, seed, got, text(p))
					}
				}
			}
		}
	}
	if cuts == 0 || found == 0 {
		t.Fatalf("%d searches were cut, with %d solutions", cuts, found)
	}
}

func same(a, b []Solution) bool {
	return slices.EqualFunc(a, b, func(a, b Solution) bool { return a.Cost == b.Cost && slices.Equal(a.Choice, b.Choice) })
}

// one is an option of one resource.
func one(use, cost int64) Option { return Option{Use: []int64{use}, Cost: cost} }

func TestSolve(t *testing.T) {
	t.Parallel()
	stop := func(use, cost int64) Service { return Service{Options: []Option{one(use, 0), one(0, cost)}} }
	degrees := Service{Options: []Option{one(10, 0), one(7, 3), {Use: []int64{4}, Cost: 4, Less: []int{1}}, one(1, 5)}}
	cases := map[string]struct {
		problem Problem
		want    []Solution
	}{
		"nothing to arrange": {Problem{Limit: 3}, []Solution{{Choice: []int{}}}},
		"it fits as it is": {
			Problem{Limit: 3, Capacity: []int64{9}, Services: []Service{stop(4, 1), stop(5, 1)}},
			[]Solution{{Choice: []int{0, 0}}},
		},
		"there is no end of it": {
			Problem{Limit: 3, Capacity: []int64{math.MaxInt64}, Services: []Service{stop(MaxUse, 1), stop(MaxUse, 1)}},
			[]Solution{{Choice: []int{0, 0}}},
		},
		"no solution is wanted": {Problem{Capacity: []int64{9}, Services: []Service{stop(5, 1), stop(5, 1)}}, nil},
		"nothing fits":          {Problem{Limit: 3, Capacity: []int64{-1}, Services: []Service{stop(5, 1), stop(5, 1)}}, nil},
		"nothing fits at all":   {Problem{Limit: 3, Capacity: []int64{math.MinInt64}, Services: []Service{stop(5, 1)}}, nil},
		"either of two, never both": {
			Problem{Limit: 3, Capacity: []int64{5}, Services: []Service{stop(5, 2), stop(5, 1)}},
			[]Solution{{Choice: []int{0, 1}, Cost: 1}, {Choice: []int{1, 0}, Cost: 2}},
		},
		"of equals the one with fewer deviations, then the later service": {
			Problem{Limit: 4, Capacity: []int64{10}, Services: []Service{stop(4, 2), stop(2, 1), stop(2, 1), stop(2, 1), stop(4, 2)}},
			[]Solution{
				{Choice: []int{0, 0, 0, 0, 1}, Cost: 2},
				{Choice: []int{1, 0, 0, 0, 0}, Cost: 2},
				{Choice: []int{0, 0, 1, 1, 0}, Cost: 2},
				{Choice: []int{0, 1, 0, 1, 0}, Cost: 2},
			},
		},
		"a lesser degree that does, and no greater one": {
			Problem{Limit: 9, Capacity: []int64{7}, Services: []Service{degrees}},
			[]Solution{{Choice: []int{1}, Cost: 3}, {Choice: []int{3}, Cost: 5}},
		},
		"a greater degree where it takes one": {
			Problem{Limit: 9, Capacity: []int64{6}, Services: []Service{degrees}},
			[]Solution{{Choice: []int{2}, Cost: 4}, {Choice: []int{3}, Cost: 5}},
		},
		"an option that is worse in everything is none": {
			Problem{Limit: 9, Capacity: []int64{5}, Services: []Service{{Options: []Option{one(9, 0), one(4, 5), one(4, 6), one(5, 5), one(3, 7)}}}},
			[]Solution{{Choice: []int{1}, Cost: 5}, {Choice: []int{4}, Cost: 7}},
		},
		"what is moved makes room and takes it elsewhere": {
			// The first may go to the other resource, once the second has left it: alone, neither helps.
			Problem{Limit: 9, Capacity: []int64{5, 5}, Services: []Service{
				{Options: []Option{{Use: []int64{6, 0}}, {Use: []int64{0, 3}, Cost: 1}}},
				{Options: []Option{{Use: []int64{0, 4}}, {Use: []int64{0, 0}, Cost: 1}}},
			}},
			[]Solution{{Choice: []int{1, 1}, Cost: 2}},
		},
		"nobody comes, so what is over may stay": {
			Problem{Limit: 9, Capacity: []int64{5, 5}, Idle: []int64{math.MaxInt64, 5}, Services: []Service{
				{Options: []Option{{Use: []int64{9, 0}}, {Use: []int64{0, 0}, Cost: 1}}},
				{Arrives: true, Options: []Option{{Use: []int64{0, 4}}}},
			}},
			[]Solution{{Choice: []int{0, 0}}},
		},
		"somebody comes, so it may not": {
			Problem{Limit: 9, Capacity: []int64{5, 5}, Idle: []int64{math.MaxInt64, 5}, Services: []Service{
				{Options: []Option{{Use: []int64{9, 0}}, {Use: []int64{0, 0}, Cost: 1}}},
				{Arrives: true, Options: []Option{{Use: []int64{1, 4}}, {Use: []int64{0, 5}, Cost: 3}}},
			}},
			[]Solution{{Choice: []int{1, 0}, Cost: 1}, {Choice: []int{0, 1}, Cost: 3}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := c.problem.Check(); err != nil {
				t.Fatal(err)
			}
			got, cut := Solve(t.Context(), &c.problem)
			if cut || !same(got, c.want) {
				t.Errorf("cut %v, got %v, want %v", cut, got, c.want)
			}
		})
	}
}

// A hundred services that are alike are no hundred times as hard, although there are 17 billion ways to choose ten of them.
func TestAlikeServicesAreNoTrouble(t *testing.T) {
	t.Parallel()
	const n, over = 100, 10
	p := &Problem{Limit: MaxLimit, Capacity: []int64{1000*(n-over) + 500}}
	for range n {
		p.Services = append(p.Services, Service{Options: []Option{one(1000, 0), one(0, 7)}})
	}
	got, cut := Solve(t.Context(), p)
	if cut || len(got) != MaxLimit {
		t.Fatalf("cut %v, %d found", cut, len(got))
	}
	want := slices.Concat(slices.Repeat([]int{0}, n-over), slices.Repeat([]int{1}, over))
	if !slices.Equal(got[0].Choice, want) || got[0].Cost != 7*over || got[MaxLimit-1].Cost != 7*over {
		t.Errorf("got %v, want the last ten at first, and none that costs more", got)
	}
}

func TestMalformedProblemsHaveNoSolution(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		break_ func(p *Problem)
		want   string
	}{
		"no option":              {func(p *Problem) { p.Services[1].Options = nil }, "service 1 has 0 options"},
		"too many options":       {func(p *Problem) { p.Services[1].Options = make([]Option, MaxOptions+1) }, "service 1 has 257 options"},
		"too few uses":           {func(p *Problem) { p.Services[1].Options[1].Use = nil }, "option 1 of service 1: it takes of 0 resources"},
		"too many uses":          {func(p *Problem) { p.Services[0].Options[0].Use = []int64{1, 1} }, "option 0 of service 0: it takes of 2 resources"},
		"a negative use":         {func(p *Problem) { p.Services[0].Options[0].Use[0] = -1 }, "it takes -1 of resource 0"},
		"a use beyond bounds":    {func(p *Problem) { p.Services[0].Options[0].Use[0] = math.MaxInt64 }, "it takes 9223372036854775807"},
		"option 0 costs":         {func(p *Problem) { p.Services[0].Options[0].Cost = 1 }, "it costs 1"},
		"another one is free":    {func(p *Problem) { p.Services[0].Options[1].Cost = 0 }, "it costs 0"},
		"a negative cost":        {func(p *Problem) { p.Services[0].Options[1].Cost = -1 }, "it costs -1"},
		"a cost beyond bounds":   {func(p *Problem) { p.Services[0].Options[1].Cost = math.MaxInt64 }, "it costs 9223372036854775807"},
		"less than it is itself": {func(p *Problem) { p.Services[0].Options[1].Less = []int{1} }, "option 1 is not less"},
		"less than none":         {func(p *Problem) { p.Services[0].Options[1].Less = []int{2} }, "option 2 is not less"},
		"less than below none":   {func(p *Problem) { p.Services[0].Options[1].Less = []int{-1} }, "option -1 is not less"},
		"idle of another length": {func(p *Problem) { p.Idle = []int64{} }, "1 resources, and 0 of them idle"},
		"less while idle":        {func(p *Problem) { p.Idle = []int64{0} }, "less of resource 0 while it is idle"},
		"less than option 0":     {func(p *Problem) { p.Services[0].Options[0].Less = []int{1} }, "option 0 of service 0: option 1 is not less"},
		"a negative limit":       {func(p *Problem) { p.Limit = -1 }, "limit of -1"},
		"negative steps":         {func(p *Problem) { p.Steps = math.MinInt }, "steps is negative"},
		"too many resources":     {func(p *Problem) { p.Capacity = make([]int64, MaxResources+1) }, "65 resources"},
		"too many services":      {func(p *Problem) { p.Services = make([]Service, MaxServices+1) }, "4097 services"},
		"too many in all": {func(p *Problem) {
			p.Services = slices.Repeat([]Service{{Options: slices.Concat([]Option{one(0, 0)}, slices.Repeat([]Option{one(0, 1)}, MaxOptions-1))}}, MaxAll/MaxOptions+1)
		}, "more than 8192 options"},
	}
	sound := func() *Problem {
		service := func() Service { return Service{Options: []Option{one(5, 0), one(0, 1)}} }
		return &Problem{Limit: 3, Capacity: []int64{5}, Services: []Service{service(), service()}}
	}
	if got, _ := Solve(t.Context(), sound()); len(got) != 2 {
		t.Fatalf("the sound one has %v", got)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := sound()
			c.break_(p)
			if err := p.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Check says %v, want %q", err, c.want)
			}
			if got, cut := Solve(t.Context(), p); got != nil || cut {
				t.Errorf("Solve returns %v, %v", got, cut)
			}
		})
	}
}

// TestNobodyWaitsForTheBeginningOfASearch that is not wanted any more.
func TestNobodyWaitsForTheBeginningOfASearch(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	p := &Problem{Limit: 3, Capacity: []int64{5}, Services: []Service{
		{Options: []Option{one(5, 0), one(0, 1)}}, {Options: []Option{one(5, 0), one(0, 1)}},
	}}
	if newSearch(ctx, p) != nil {
		t.Error("it begins")
	}
	if got, cut := Solve(ctx, p); got != nil || !cut {
		t.Errorf("Solve returns %v, %v", got, cut)
	}
}

func TestFits(t *testing.T) {
	t.Parallel()
	p := &Problem{Capacity: []int64{5}, Services: []Service{{Options: []Option{one(5, 0), one(0, 1)}}, {Options: []Option{one(5, 0), one(0, 1)}}}}
	for _, c := range []struct {
		choice []int
		want   bool
	}{
		{[]int{0, 0}, false}, {[]int{0, 1}, true}, {[]int{1, 1}, true},
		{nil, false}, {[]int{1}, false}, {[]int{1, 1, 1}, false}, {[]int{1, 2}, false}, {[]int{-1, 1}, false},
	} {
		if got := Fits(p, c.choice); got != c.want {
			t.Errorf("Fits(%v) is %v", c.choice, got)
		}
	}
	for _, name := range []string{"arrivals moving", "moves", "less than no room"} {
		yes := 0
		for seed := range uint64(2000) {
			rng := rand.New(rand.NewPCG(seed, 3))
			p := random(rng, shapes[name])
			choice := make([]int, len(p.Services))
			for i := range choice {
				choice[i] = rng.IntN(len(p.Services[i].Options))
			}
			got := Fits(p, choice)
			if got != holds(p, choice) {
				t.Fatalf("%s seed %d: Fits(%v) is %v\n%s", name, seed, choice, got, text(p))
			}
			if got {
				yes++
			}
		}
		if yes == 0 || yes == 2000 {
			t.Errorf("%s: %d of 2000 fit", name, yes)
		}
	}
}

// A search that nobody waits for ends, and says that it did not see everything.
func TestSolveEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := host{services: 1000, arriving: 50, gpus: 8}.problem(1, 3)
	p.Steps = math.MaxInt
	found, cut := Solve(ctx, p)
	if !cut {
		t.Error("it is not cut")
	}
	for _, s := range found {
		if !Fits(p, s.Choice) {
			t.Errorf("%v does not fit", s)
		}
	}
}

// Looking at nodes allocates nothing: ten times as many steps are not more work for the garbage collector.
func TestStepsAllocateNothing(t *testing.T) {
	p := host{services: 100, arriving: 5, gpus: 8}.problem(14, MaxLimit)
	few := testing.AllocsPerRun(1, func() { solved(t, p, 20_000) })
	many := testing.AllocsPerRun(1, func() { solved(t, p, 200_000) })
	// What is found later may still grow a few buffers.
	if many > few+50 {
		t.Errorf("%v allocations for 20,000 steps, %v for 200,000", few, many)
	}
}

func solved(t *testing.T, p *Problem, steps int) {
	p.Steps = steps
	if _, cut := Solve(t.Context(), p); !cut {
		t.Fatal("the problem is too easy for this test")
	}
}

// The search keeps to its steps, however many options and resources there are.
func TestSolveKeepsToItsSteps(t *testing.T) {
	t.Parallel()
	for _, h := range hosts() {
		for _, steps := range []int{1, 100, 10_000} {
			p := h.problem(3, MaxLimit)
			p.Steps = steps
			s := newSearch(t.Context(), p)
			s.run()
			if s.steps < -h.services*4 {
				t.Errorf("%v: of %d steps %d are left", h, steps, s.steps)
			}
		}
	}
}
