package solver

import (
	"context"
	"math"
	"testing"
)

// numbers reads a problem from a fuzzer's bytes. Anything may come of them, malformed problems too.
type numbers struct{ data []byte }

func (n *numbers) next(below int) int {
	if len(n.data) == 0 || below <= 0 {
		return 0
	}
	b := int(n.data[0])
	n.data = n.data[1:]
	return b % below
}

// amount is small most of the time, and sometimes wrong or as large as can be.
func (n *numbers) amount() int64 {
	switch b := n.next(256); {
	case b < 240:
		return int64(b % 24)
	case b < 250:
		return int64(b-240) * (MaxUse / 9)
	default:
		return []int64{-1, math.MinInt64, math.MaxInt64, MaxUse, MaxCost, MaxUse + 1}[b-250]
	}
}

func (n *numbers) problem() *Problem {
	p := &Problem{Limit: n.next(14), Steps: 1 + n.next(256)*n.next(256)}
	resources, flags := n.next(5), n.next(8)
	for range resources {
		c := n.amount()
		p.Capacity = append(p.Capacity, c)
		if flags&1 != 0 {
			p.Idle = append(p.Idle, max(c, n.amount()))
		}
	}
	for range n.next(9) {
		service := Service{Arrives: flags&2 != 0 && n.next(2) == 0}
		for o := range n.next(6) {
			option := Option{}
			if o > 0 {
				option.Cost = n.amount()
			}
			if flags&4 != 0 {
				for less := 1; less < o; less++ {
					if n.next(2) == 0 {
						option.Less = append(option.Less, less)
					}
				}
				if n.next(32) == 31 {
					option.Less = append(option.Less, n.next(8)-1)
				}
			}
			for range resources {
				option.Use = append(option.Use, n.amount())
			}
			if n.next(64) == 63 {
				option.Use = append(option.Use, 1)
			}
			service.Options = append(service.Options, option)
		}
		p.Services = append(p.Services, service)
	}
	return p
}

// ways is how many choices there are, 1 << 20 at most.
func options(p *Problem) int {
	out := 1
	for _, s := range p.Services {
		out = min(out*len(s.Options), 1<<20)
	}
	return out
}

func FuzzSolve(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 255, 255, 1, 0, 5, 2, 2, 5, 0, 1, 3, 0, 2, 5, 0, 0, 2, 4})
	f.Add([]byte{10, 200, 200, 2, 7, 5, 9, 250, 251, 6, 0, 4, 1, 0, 0, 20, 3, 0, 5, 1, 0, 0, 2, 2, 0, 4, 9, 252, 1, 0, 7, 7})
	f.Add([]byte{13, 9, 9, 4, 3, 240, 249, 244, 245, 1, 2, 3, 4, 8, 5, 1, 241, 242, 243, 244, 0, 245, 246, 247, 248, 249, 0, 9, 9, 9, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		n := numbers{data}
		p := n.problem()
		found, cut := Solve(context.Background(), p)
		if p.Check() != nil {
			if len(found) > 0 || cut {
				t.Fatalf("a malformed problem has %v, %v\n%s", found, cut, text(p))
			}
			return
		}
		if len(found) > min(p.Limit, MaxLimit) {
			t.Fatalf("%d found\n%s", len(found), text(p))
		}
		for _, s := range found {
			if !Fits(p, s.Choice) || !holds(p, s.Choice) || s.Cost != cost(p, s.Choice) {
				t.Fatalf("%v does not fit\n%s", s, text(p))
			}
			if deviations(s.Choice) <= 8 && (excessive(p, s.Choice) || wasteful(p, s.Choice)) {
				t.Fatalf("%v could be less\n%s", s, text(p))
			}
		}
		if !cut && options(p) <= 1<<14 {
			if want := brute(p); !same(found, want) {
				t.Fatalf("got %v, want %v\n%s", found, want, text(p))
			}
		}
		if p.Limit > 0 && !Fits(p, make([]int, len(p.Services))) {
			s := newSearch(context.Background(), p)
			s.run()
			if s.steps < -256 {
				t.Fatalf("%d steps are left of %d\n%s", s.steps, p.Steps, text(p))
			}
		}
	})
}
