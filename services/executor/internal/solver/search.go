package solver

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// never is what cannot be reached: more than any sum of keys.
const never = math.MaxInt64 / 4

// unlimited is a capacity that no sum of uses reaches.
const unlimited = 1 << 44

// search looks for the solutions of one problem. Services are decided one after the other, in the order of items; those that are
// not decided yet are at option 0, and so is a service that none of its options would help. A node of the search is a set of
// deviations that does not fit: with one that fits a branch ends, as nothing more may deviate then.
//
// Costs are counted in keys: the cost times one more than there are services, plus one for each deviation. So the order of keys
// is that of cost, and then that of how many deviations there are.
type search struct {
	ctx context.Context
	// resources are those that can run short; the others are left out.
	services, resources int
	limit               int

	// capacity and idle are by kept resource. relaxed is what a resource holds at most in anything that fits, whether a service
	// that arrives takes of it or not.
	capacity, idle, relaxed []int64
	items                   []item
	bounds                  []bound
	// rise is how much more of each resource the items from a position on can take: rise[position*resources+resource].
	rise []int64
	// least is the least key of all moves from a position on.
	least []int64
	// place is the position of each service, or -1.
	place []int

	// What the node is: what is taken, how many that arrive take of each resource, and how many of these are decided.
	use            []int64
	taking, taken  []int32
	choice         []int
	chosen         []chosen
	steps          int
	cut            bool
	ceiling, above int64

	// best are the solutions so far, in order.
	best []candidate

	dominance dominance
}

// item is a service with options that can help.
type item struct {
	service int
	arrives bool
	// takes are the resources that option 0 takes of, where it arrives.
	takes uint64
	// relieves are the resources of which some option takes less than option 0.
	relieves uint64
	// moves are its options but the first that are not dominated, the cheapest first.
	moves []move
	// all are all its options, in their order.
	all []change
}

// change is what an option takes more, or less, than option 0.
type change struct {
	deltas []delta
	takes  uint64
	// lesser are the options that are less of it.
	lesser []int
}

type delta struct {
	resource int
	amount   int64
}

// move is an option that may be chosen.
type move struct {
	change
	option   int
	key      int64
	relieves uint64
}

type chosen struct{ position, move int }

// candidate is a solution that was found.
type candidate struct {
	choice []int
	key    int64
	count  int
}

// floor is what the resource may hold at most in anything that fits, for what is decided.
func (s *search) floor(r int) int64 {
	if s.taken[r] > 0 {
		return s.capacity[r]
	}
	return s.relaxed[r]
}

// fits reports whether the node is a way that fits.
func (s *search) fits() bool {
	for r, use := range s.use {
		if use > s.capacity[r] && (s.taking[r] > 0 || use > s.idle[r]) {
			return false
		}
	}
	return true
}

// run searches in rounds: each looks only at what can cost no more than a ceiling, and the next has a higher one. So little is
// looked at that is dearer than what is found in the end.
func (s *search) run() {
	root := s.bound(0)
	if root >= never {
		return
	}
	if !s.heuristic() {
		return
	}
	s.ceiling = root + root/32
	for !s.cut {
		s.above = never
		s.descend(0, 0)
		if s.above >= never || s.above > s.worst() {
			return
		}
		s.ceiling = s.above + (s.above-root)/2
	}
}

// worst is the most that a solution may cost that is still to be found.
func (s *search) worst() int64 {
	if len(s.best) < s.limit {
		return never
	}
	return s.best[len(s.best)-1].key
}

// step counts one, and reports whether the search goes on.
func (s *search) step() bool { return s.spend(1) }

// spend counts several.
func (s *search) spend(steps int) bool {
	before := s.steps
	s.steps -= steps
	if s.steps < 0 || (before>>10 != s.steps>>10 && s.ctx.Err() != nil) {
		s.cut = true
	}
	return !s.cut
}

// descend looks at every way to go on from the node with the items from a position on. key is what the node's deviations cost.
func (s *search) descend(from int, key int64) {
	if !s.spend((len(s.items) - from) / 128) {
		return
	}
	wanting := s.wanting(from)
	position := from
	for ; position < len(s.items); position++ {
		it := &s.items[position]
		if it.relieves&wanting != 0 {
			if !s.step() || !s.worth(position, key) {
				break
			}
			for m := range it.moves {
				if it.moves[m].relieves&wanting == 0 {
					continue
				}
				next := key + it.moves[m].key
				if next > s.worst() {
					break
				}
				// Looking at a node is the more work the more was chosen.
				if !s.spend(1 + len(s.chosen)/16) {
					break
				}
				s.choose(position, m)
				switch {
				case s.fits():
					s.offer(next)
				case s.needed(position+1) && s.worth(position+1, next):
					s.descend(position+1, next)
				}
				s.unchoose()
			}
		}
		s.settle(it.takes, 1)
	}
	for position--; position >= from; position-- {
		s.settle(s.items[position].takes, -1)
	}
}

// settle notes that it is decided what a service that arrives takes.
func (s *search) settle(takes uint64, by int32) {
	for r := 0; takes != 0; r, takes = r+1, takes>>1 {
		if takes&1 != 0 {
			s.taken[r] += by
		}
	}
}

// choose makes a deviation, unchoose takes the last one back.
func (s *search) choose(position, m int) {
	it := &s.items[position]
	mv := &it.moves[m]
	for _, d := range mv.deltas {
		s.use[d.resource] += d.amount
	}
	if it.arrives {
		s.retake(it.takes, -1)
		s.retake(mv.takes, 1)
		s.settle(mv.takes, 1)
	}
	s.choice[it.service] = mv.option
	s.chosen = append(s.chosen, chosen{position, m})
}

func (s *search) unchoose() {
	last := s.chosen[len(s.chosen)-1]
	s.chosen = s.chosen[:len(s.chosen)-1]
	it := &s.items[last.position]
	mv := &it.moves[last.move]
	for _, d := range mv.deltas {
		s.use[d.resource] -= d.amount
	}
	if it.arrives {
		s.settle(mv.takes, -1)
		s.retake(mv.takes, -1)
		s.retake(it.takes, 1)
	}
	s.choice[it.service] = 0
}

func (s *search) retake(takes uint64, by int32) {
	for r := 0; takes != 0; r, takes = r+1, takes>>1 {
		if takes&1 != 0 {
			s.taking[r] += by
		}
	}
}

// wanting are the resources that are short, or can become so by what is still to be decided.
func (s *search) wanting(position int) uint64 {
	var out uint64
	rise := s.rise[position*s.resources:]
	for r, use := range s.use {
		if use+rise[r] > s.capacity[r] {
			out |= 1 << r
		}
	}
	return out
}

// needed reports whether each deviation may still be needed: without one that is not, whatever is decided from the position on,
// it would fit as well.
func (s *search) needed(position int) bool {
	rise := s.rise[position*s.resources:]
next:
	for _, c := range s.chosen {
		for _, d := range s.items[c.position].moves[c.move].deltas {
			if d.amount < 0 && s.use[d.resource]-d.amount+rise[d.resource] > s.capacity[d.resource] {
				continue next
			}
		}
		return false
	}
	return true
}

// worth reports whether the node can lead, by deviations of the items from a position on, to a solution that is better than the
// last of the best.
func (s *search) worth(position int, key int64) bool {
	more := s.bound(position)
	if more >= never {
		return false
	}
	key += more
	worst := s.worst()
	switch {
	case key > worst:
		return false
	case key > s.ceiling:
		s.above = min(s.above, key)
		return false
	}
	return key < worst || s.precedes(position)
}

// precedes is for a node that can lead to no less than what the last of the best costs, and so to as many deviations: it reports
// whether one that is before it in the order of choices may be among them. The first of them has its deviations as late as
// possible.
func (s *search) precedes(position int) bool {
	last := &s.best[len(s.best)-1]
	missing := last.count - len(s.chosen)
	first := s.services
	for missing > 0 {
		if first--; first < 0 {
			return false
		}
		if s.place[first] >= position {
			missing--
		}
	}
	for i, o := range last.choice {
		mine := s.choice[i]
		if i >= first && s.place[i] >= position {
			mine = 1
		}
		if mine != o {
			return mine < o
		}
	}
	return false
}

// offer takes a node that fits among the best, where it is one of them and nothing in it can be left out.
func (s *search) offer(key int64) {
	at, known := slices.BinarySearchFunc(s.best, key, func(c candidate, key int64) int {
		return cmp.Or(cmp.Compare(c.key, key), slices.Compare(c.choice, s.choice))
	})
	if known || at == s.limit || !s.irredundant() {
		return
	}
	var c candidate
	if len(s.best) == s.limit {
		c = s.best[s.limit-1]
		s.best = s.best[:s.limit-1]
	} else {
		c.choice = make([]int, s.services)
	}
	copy(c.choice, s.choice)
	c.key, c.count = key, len(s.chosen)
	s.best = slices.Insert(s.best, at, c)
}

// solutions are the best as the caller wants them.
func (s *search) solutions() []Solution {
	out := make([]Solution, 0, len(s.best))
	for _, c := range s.best {
		out = append(out, Solution{Choice: c.choice, Cost: c.key / int64(s.services+1)})
	}
	return out
}

// bitsOf lists the bits that are set.
func bitsOf(set uint64) []int {
	var out []int
	for r := 0; set != 0; r, set = r+1, set>>1 {
		if set&1 != 0 {
			out = append(out, r)
		}
	}
	return out
}
