package solver

import (
	"cmp"
	"slices"
)

// scan is how many moves are looked at, outside the search proper, for one step.
const scan = 16

// heuristic looks for a first few solutions that are not bad, so that a search that is cut has some, and so that most of what is
// worse is never looked at: what frees most of what is missing for its cost, until it fits, less what was not needed; then the
// same with each thing that this chose done otherwise, as long as that finds a better one. It spends a quarter of the steps at
// most, and reports whether the search goes on.
func (s *search) heuristic() bool {
	enough := s.steps - s.steps/4
	least, now := s.greedy(nil, chosen{position: -1})
	for i := 0; i < len(now) && s.steps > enough; i++ {
		rest := slices.Delete(slices.Clone(now), i, i+1)
		if key, better := s.greedy(rest, now[i]); key < least {
			least, now, i = key, better, -1
		}
	}
	return !s.cut
}

// greedy adds to what was chosen until it fits, and offers and returns that and its key: never where it finds nothing. The one
// choice that is barred is not made.
func (s *search) greedy(from []chosen, barred chosen) (int64, []chosen) {
	s.restore(from)
	for !s.fits() {
		position, m := s.dearest(barred)
		if position < 0 {
			break
		}
		s.choose(position, m)
	}
	key, out := int64(never), slices.Clone(s.chosen)
	if s.fits() {
		key, out = s.improve(out)
	}
	s.restore(nil)
	return key, out
}

// dearest is the move that frees most of what is missing for its cost: -1 where none frees any more than it takes.
func (s *search) dearest(barred chosen) (position, m int) {
	position, most := -1, 0.0
	seen := 0
	for i := range s.items {
		if s.choice[s.items[i].service] != 0 {
			continue
		}
		seen += len(s.items[i].moves)
		for k := range s.items[i].moves {
			if (chosen{i, k}) == barred {
				continue
			}
			if frees := s.frees(&s.items[i].moves[k]) / float64(s.items[i].moves[k].key); frees > most {
				position, m, most = i, k, frees
			}
		}
	}
	if !s.spend(1 + seen/scan) {
		return -1, 0
	}
	return position, m
}

// frees is what part of what is missing the move frees, less what it makes missing, summed over the resources.
func (s *search) frees(mv *move) float64 {
	var sum float64
	for _, d := range mv.deltas {
		room := s.idle[d.resource]
		if s.taking[d.resource] > 0 {
			room = s.capacity[d.resource]
		}
		before := max(s.use[d.resource]-room, 0)
		after := max(s.use[d.resource]+d.amount-room, 0)
		if most := max(before, after); most > 0 {
			sum += float64(before-after) / float64(most)
		}
	}
	return sum
}

// improve takes back what is not needed of what was chosen, the dearest first, or else puts what costs less in its place, and
// offers the rest.
func (s *search) improve(all []chosen) (int64, []chosen) {
	slices.SortStableFunc(all, func(a, b chosen) int { return cmp.Compare(s.key(b), s.key(a)) })
	for i := 0; i < len(all) && s.spend(1+len(all)/scan); i++ {
		if fits, _ := s.without(all, i); fits {
			all = slices.Delete(all, i, i+1)
			i--
			continue
		}
		now := all[i]
		for m := range now.move {
			all[i].move = m
			if _, fits := s.without(all, i); fits {
				break
			}
			all[i] = now
		}
	}
	s.restore(all)
	if len(all) == 0 || !s.fits() {
		return never, all
	}
	var sum int64
	for _, c := range all {
		sum += s.key(c)
	}
	s.offer(sum)
	return sum, all
}

func (s *search) key(c chosen) int64 { return s.items[c.position].moves[c.move].key }

// without reports whether what was chosen fits without the i-th, and with it.
func (s *search) without(all []chosen, i int) (without, with bool) {
	s.restore(all)
	with = s.fits()
	last := len(all) - 1
	all[i], all[last] = all[last], all[i]
	s.restore(all)
	s.unchoose()
	without = s.fits()
	all[i], all[last] = all[last], all[i]
	return without, with
}

// restore makes the node what was chosen.
func (s *search) restore(all []chosen) {
	for len(s.chosen) > 0 {
		s.unchoose()
	}
	for _, c := range all {
		s.choose(c.position, c.move)
	}
}
