package solver

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// host says what a made-up host looks like: GPUs of 80 GiB that are full of services that were not asked for, and some that are
// to start.
type host struct {
	services, arriving, gpus int
	// alike: all have the same size and cost.
	alike bool
	// frugal: what arrives has no other way than as it is; else smaller contexts, lower claims, other GPUs and splits.
	frugal bool
	// full: the host's memory holds about a quarter of the services in their sleep, else all of them.
	full bool
}

func (h host) String() string {
	return fmt.Sprintf("services=%d/arriving=%d/alike=%v/frugal=%v/full=%v", h.services, h.arriving, h.alike, h.frugal, h.full)
}

// problem makes it. Sizes are MiB, costs as package mode has them.
func (h host) problem(seed uint64, limit int) *Problem {
	const gpu = 80 << 10
	rng := rand.New(rand.NewPCG(seed, 7))
	p := &Problem{Limit: limit, Capacity: make([]int64, h.gpus+1), Idle: make([]int64, h.gpus+1)}
	between := func(from, to int64) int64 {
		if h.alike {
			return (from + to) / 2
		}
		return from + rng.Int64N(to-from)
	}
	use := func(mib int64, gpus ...int) []int64 {
		out := make([]int64, h.gpus+1)
		for _, g := range gpus {
			out[g] = mib
		}
		return out
	}
	average := int64(gpu) * int64(h.gpus) * 9 / 10 / int64(h.services)
	var asleep int64
	for range h.services - h.arriving {
		on := []int{rng.IntN(h.gpus)}
		if rng.IntN(6) == 0 && !h.alike {
			on = append(on, (on[0]+1)%h.gpus)
		}
		mib := between(average/4, average*7/4) / int64(len(on))
		service := Service{Options: []Option{{Use: use(mib, on...)}}}
		for _, g := range on {
			p.Capacity[g] += mib
		}
		if rng.IntN(3) > 0 {
			sleep := Option{Use: use(mib/50, on...), Cost: 1000 + between(2, 40)}
			sleep.Use[h.gpus] = mib * int64(len(on))
			asleep += sleep.Use[h.gpus]
			service.Options = append(service.Options, sleep)
		}
		service.Options = append(service.Options, Option{Use: use(0), Cost: 16000 + between(20, 300)})
		p.Services = append(p.Services, service)
	}
	for g := range h.gpus {
		// What is held, and what is free beside it.
		p.Capacity[g] += gpu / 20
		p.Idle[g] = math.MaxInt64
	}
	for range h.arriving {
		mib, g := between(average, average*4), rng.IntN(h.gpus)
		service := Service{Arrives: true, Options: []Option{{Use: use(mib, g)}}}
		for rung := int64(1); rung <= 5 && !h.frugal; rung++ {
			service.Options = append(service.Options, Option{Use: use(mib/2+mib/2>>rung, g), Cost: 4000 + 500*(rung-1), Less: steps(1, rung)})
		}
		for rung := int64(1); rung <= 10 && !h.frugal; rung++ {
			service.Options = append(service.Options, Option{Use: use(mib*(20-rung)/20, g), Cost: 2000 + 50*rung, Less: steps(6, rung)})
		}
		for other := range h.gpus {
			if other != g && !h.frugal {
				service.Options = append(service.Options, Option{Use: use(mib, other), Cost: 8000})
			}
			for second := other + 1; second < h.gpus && !h.frugal; second++ {
				service.Options = append(service.Options, Option{Use: use(mib*6/10, other, second), Cost: 64000})
			}
		}
		p.Services = append(p.Services, service)
	}
	p.Capacity[h.gpus] = asleep * 2
	if h.full {
		p.Capacity[h.gpus] = asleep / 4
	}
	p.Idle[h.gpus] = p.Capacity[h.gpus]
	return p
}

func hosts() []host {
	var out []host
	for _, services := range []int{20, 100, 1000} {
		for _, frugal := range []bool{true, false} {
			for _, kind := range []host{{}, {alike: true}, {full: true}} {
				kind.services, kind.gpus, kind.arriving, kind.frugal = services, 8, max(services/20, 2), frugal
				out = append(out, kind)
			}
		}
	}
	return out
}

// steps are the options from one on, of which one more is less on each rung.
func steps(from int, rung int64) []int {
	var out []int
	for i := range int(rung) - 1 {
		out = append(out, from+i)
	}
	return out
}

// BenchmarkSolve is for ten hosts of each kind in turn. steps/op is how far it went, cut/op how often that was the end.
func BenchmarkSolve(b *testing.B) {
	for _, h := range hosts() {
		for _, limit := range []int{3, 10} {
			b.Run(fmt.Sprintf("%s/limit=%d", h, limit), func(b *testing.B) {
				var problems []*Problem
				for seed := range uint64(10) {
					problems = append(problems, h.problem(seed, limit))
				}
				cuts, n, steps := 0, 0, 0
				b.ReportAllocs()
				for b.Loop() {
					s := newSearch(b.Context(), problems[n%len(problems)])
					before := s.steps
					s.run()
					steps += before - s.steps
					if s.cut {
						cuts++
					}
					n++
				}
				b.ReportMetric(float64(cuts)/float64(n), "cut/op")
				b.ReportMetric(float64(steps)/float64(n), "steps/op")
			})
		}
	}
}

// BenchmarkSmall is a host that looking at everything can do too, by both ways.
func BenchmarkSmall(b *testing.B) {
	h := host{services: 10, arriving: 1, gpus: 2}
	problems := []*Problem{h.problem(1, 10), h.problem(2, 10), h.problem(3, 10)}
	for name, solve := range map[string]func(p *Problem){
		"search":     func(p *Problem) { Solve(b.Context(), p) },
		"everything": func(p *Problem) { brute(p) },
	} {
		b.Run(name, func(b *testing.B) {
			for n := 0; b.Loop(); n++ {
				solve(problems[n%len(problems)])
			}
		})
	}
}
