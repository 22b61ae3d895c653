package solver

// dominance is what irredundant works with, kept between calls.
type dominance struct {
	// mixed are the deviations that take of a resource which can run short without others.
	mixed []int
	// relief is what the mixed ones from one on can give back at most, by dominance: relief[i*resources+r], never above 0.
	relief []int64
	// rise is what all of them together give back at most, the other way.
	rise []int64
	// certain is how many that arrive take of a resource whatever is lessened.
	certain []int32
}

// irredundant reports whether the node, which fits, would not fit with any of its deviations left out or lessened, alone or
// together. Most deviations only ever free something that matters: of these it is enough to dominate one, as dominance more frees
// less. Only those that also take something that others have to make room for are tried together.
func (s *search) irredundant() bool {
	if !s.spend(1 + len(s.chosen)) {
		return false
	}
	s.prepare()
	l := &s.dominance
	for i := range s.chosen {
		for _, o := range s.lesser(i) {
			if !s.step() {
				return false
			}
			s.dominate(i, o, 1)
			redundant := s.fits()
			s.dominate(i, o, -1)
			if redundant {
				return false
			}
		}
	}
	return len(l.mixed) < 2 || !s.lessens(0, 0)
}

// lessens reports whether some way to dominate two or more of the mixed ones, from the i-th on, fits. lessened is how many are.
func (s *search) lessens(i, lessened int) bool {
	if !s.step() {
		// Not known: it is not offered, and the search has ended early.
		return true
	}
	l := &s.dominance
	for r, use := range s.use {
		limit := s.relaxed[r]
		if l.certain[r] > 0 {
			limit = s.capacity[r]
		}
		if use+l.relief[i*s.resources+r] > limit {
			return false
		}
	}
	if i == len(l.mixed) {
		return lessened > 1 && s.fits()
	}
	if s.lessens(i+1, lessened) {
		return true
	}
	at := l.mixed[i]
	for _, o := range s.lesser(at) {
		s.dominate(at, o, 1)
		fits := s.lessens(i+1, lessened+1)
		s.dominate(at, o, -1)
		if fits {
			return true
		}
	}
	return false
}

// dominate puts one deviation at a lesser option, by 1, or back, by -1.
func (s *search) dominate(i, option, by int) {
	it, m := s.deviation(i)
	lesser := &it.all[option]
	for _, d := range m.deltas {
		s.use[d.resource] -= int64(by) * d.amount
	}
	for _, d := range lesser.deltas {
		s.use[d.resource] += int64(by) * d.amount
	}
	if it.arrives {
		s.retake(m.takes, int32(-by))
		s.retake(lesser.takes, int32(by))
	}
}

func (s *search) deviation(i int) (*item, *move) {
	it := &s.items[s.chosen[i].position]
	return it, &it.moves[s.chosen[i].move]
}

// prepare finds what may be lessened, and which deviations are mixed.
func (s *search) prepare() {
	l := &s.dominance
	l.rise = zeros(l.rise, s.resources)
	l.certain = append(l.certain[:0], s.taking...)
	for i := range s.chosen {
		it, m := s.deviation(i)
		if it.arrives {
			for r, takes := 0, m.takes; takes != 0; r, takes = r+1, takes>>1 {
				l.certain[r] -= int32(takes & 1)
			}
		}
		for r := range s.resources {
			most, _ := s.between(i, r)
			l.rise[r] += max(most, 0)
		}
	}
	l.mixed = l.mixed[:0]
	for i := range s.chosen {
		for r, use := range s.use {
			if _, least := s.between(i, r); least < 0 && use+l.rise[r] > s.capacity[r] {
				l.mixed = append(l.mixed, i)
				break
			}
		}
	}
	l.relief = zeros(l.relief, (len(l.mixed)+1)*s.resources)
	for k := len(l.mixed) - 1; k >= 0; k-- {
		for r := range s.resources {
			_, least := s.between(l.mixed[k], r)
			l.relief[k*s.resources+r] = l.relief[(k+1)*s.resources+r] + min(least, 0)
		}
	}
}

// between is how much more of the resource is taken once the deviation is lessened, at most and at least; it is negative where
// that gives back.
func (s *search) between(i, r int) (most, least int64) {
	it, m := s.deviation(i)
	now := amountOf(m.deltas, r)
	for k, o := range m.lesser {
		d := amountOf(it.all[o].deltas, r) - now
		if k == 0 {
			most, least = d, d
		}
		most, least = max(most, d), min(least, d)
	}
	return most, least
}

func (s *search) lesser(i int) []int {
	_, m := s.deviation(i)
	return m.lesser
}

func amountOf(deltas []delta, r int) int64 {
	for _, d := range deltas {
		if d.resource == r {
			return d.amount
		}
	}
	return 0
}

func zeros(of []int64, n int) []int64 {
	of = of[:0]
	for range n {
		of = append(of, 0)
	}
	return of
}
