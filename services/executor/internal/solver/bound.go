package solver

import (
	"cmp"
	"math/bits"
	"slices"
)

const (
	// depth is how many deviations a bound counts one by one.
	depth = 12
	// prices is how many prices of a resource a bound tries, precision how many bits each has.
	prices    = 8
	precision = 16
)

// bound says for one resource what it costs at least to free so much of it by the items from a position on. Where an option frees
// several resources its cost is divided among them, so that the bounds of all resources may be added.
type bound struct {
	// from is, by position, which of tails begins there or after it.
	from []int32
	// tails has one for each item that relieves the resource, and a last one for none.
	tails []tail
	price [prices]price
}

// tail is what the items from one on can do.
type tail struct {
	// all is what they free together at most.
	all int64
	// most[k] is what k+1 of them free at most, least[k] what k+1 of them cost at least.
	most, least [depth]int64
	// gain is, by price, the most that they can earn when what they free is paid at that price: see price.
	gain  [prices]int64
	count int
}

// price is what a unit of the resource is worth: value / 2^shift. For every price, what is freed costs at least what it is worth,
// less what the items can earn at most by selling it dearer than it costs them (Lagrange's bound). Whole numbers alone are used,
// so that the search is the same on every machine.
type price struct {
	value int64
	shift int
}

// worth is what amount is worth, times 2^shift. An amount is below 2^45.
func (p price) worth(amount int64) int64 { return p.value * amount }

// scale is a cost in the same units, rounded down, or anything above most where it is more than that.
func (p price) scale(cost, most int64) int64 {
	if p.shift < 0 {
		return cost >> -p.shift
	}
	if cost > most>>p.shift {
		return most + 1
	}
	return cost << p.shift
}

// unscale is the other way round, rounded up.
func (p price) unscale(worth int64) int64 {
	if p.shift < 0 {
		return worth << -p.shift
	}
	return (worth + 1<<p.shift - 1) >> p.shift
}

// bound is what it costs at least to make the node fit by the items from a position on. It is never where they cannot.
func (s *search) bound(position int) int64 {
	var sum int64
	for r := range s.bounds {
		if missing := s.use[r] - s.floor(r); missing > 0 {
			sum += s.bounds[r].cost(position, missing)
			if sum >= never {
				return never
			}
		}
	}
	// The node does not fit, so there is one more deviation at least.
	return max(sum, s.least[position])
}

// cost is what it costs at least to free the amount.
func (b *bound) cost(position int, amount int64) int64 {
	t := &b.tails[b.from[position]]
	if t.all < amount {
		return never
	}
	k := 0
	for k < t.count-1 && t.most[k] < amount {
		k++
	}
	out := t.least[k]
	for i := range b.price {
		if p := b.price[i]; p.value > 0 {
			if over := p.worth(amount) - t.gain[i]; over > 0 {
				out = max(out, p.unscale(over))
			}
		}
	}
	return out
}

// share is one option's part in a resource.
type share struct{ frees, costs int64 }

func (s *search) newBounds() []bound {
	shares := make([][][]share, s.resources)
	for r := range shares {
		shares[r] = make([][]share, len(s.items))
	}
	for position := range s.items {
		for _, m := range s.items[position].moves {
			s.divide(&m, func(r int, part share) { shares[r][position] = append(shares[r][position], part) })
		}
	}
	out := make([]bound, s.resources)
	for r := range out {
		out[r] = newBound(shares[r], s.use[r]-s.floor(r))
	}
	return out
}

// divide shares an option's cost among the resources that it relieves: those that are short now, by how much of what is missing
// it frees, or else all of them evenly.
func (s *search) divide(m *move, to func(r int, part share)) {
	const whole = 1 << 20
	weight := func(d delta) int64 {
		if short := s.use[d.resource] - s.floor(d.resource); short > 0 && d.amount < 0 {
			return max(min(-d.amount, short)*(whole>>4)/short, 1)
		}
		return 0
	}
	var sum, relieved int64
	for _, d := range m.deltas {
		sum += weight(d)
		if d.amount < 0 {
			relieved++
		}
	}
	for _, d := range m.deltas {
		if d.amount > 0 {
			continue
		}
		part := share{frees: -d.amount}
		if sum > 0 {
			high, low := bits.Mul64(uint64(m.key), uint64(weight(d)))
			costs, _ := bits.Div64(high, low, uint64(sum))
			part.costs = int64(costs)
		} else {
			part.costs = m.key / relieved
		}
		to(d.resource, part)
	}
}

// newBound makes one resource's bound of the items' shares in it, by position. short is how much is missing at first.
func newBound(items [][]share, short int64) bound {
	b := bound{from: make([]int32, len(items)+1)}
	b.setPrices(items, short)
	relieving := 0
	for _, options := range items {
		if len(options) > 0 {
			relieving++
		}
	}
	b.tails = make([]tail, relieving+1)
	// most and least are what each of the best items frees and costs.
	most, least := make([]int64, 0, depth+1), make([]int64, 0, depth+1)
	at := relieving
	b.from[len(items)] = int32(at)
	for position := len(items) - 1; position >= 0; position-- {
		if options := items[position]; len(options) > 0 {
			frees, costs := options[0].frees, options[0].costs
			for _, o := range options[1:] {
				frees, costs = max(frees, o.frees), min(costs, o.costs)
			}
			most = best(most, frees, func(a, b int64) int { return cmp.Compare(b, a) })
			least = best(least, costs, cmp.Compare[int64])
			at--
			t := &b.tails[at]
			t.all, t.gain, t.count = b.tails[at+1].all+frees, b.tails[at+1].gain, len(most)
			sums(&t.most, most)
			sums(&t.least, least)
			for i, p := range b.price {
				t.gain[i] += p.gain(options)
			}
		}
		b.from[position] = int32(at)
	}
	return b
}

// gain is the most that one item can earn.
func (p price) gain(options []share) int64 {
	var most int64
	for _, o := range options {
		worth := p.worth(o.frees)
		most = max(most, worth-p.scale(o.costs, worth))
	}
	return most
}

// best adds a value to the best ones, which are in order.
func best(values []int64, value int64, compare func(a, b int64) int) []int64 {
	at, _ := slices.BinarySearchFunc(values, value, compare)
	values = slices.Insert(values, at, value)
	return values[:min(len(values), depth)]
}

func sums(to *[depth]int64, values []int64) {
	var sum int64
	for k, v := range values {
		sum += v
		to[k] = sum
	}
}

// setPrices chooses prices at which, with all items, different amounts are just freed.
func (b *bound) setPrices(items [][]share, short int64) {
	type offer struct{ frees, costs int64 }
	var offers []offer
	var all int64
	for _, options := range items {
		var best offer
		for _, o := range options {
			if best.frees == 0 || dearer(best.costs, best.frees, o.costs, o.frees) > 0 {
				best = offer(o)
			}
		}
		if best.frees > 0 {
			offers = append(offers, best)
			all += best.frees
		}
	}
	if len(offers) == 0 {
		return
	}
	slices.SortStableFunc(offers, func(a, b offer) int {
		return cmp.Or(dearer(a.costs, a.frees, b.costs, b.frees), cmp.Compare(a.frees, b.frees))
	})
	if short <= 0 {
		short = max(all/4, 1)
	}
	for i, sixteenths := range [prices]int64{1, 2, 4, 8, 12, 16, 24, 32} {
		target := short/16*sixteenths + short%16*sixteenths/16
		last := offers[len(offers)-1]
		var freed int64
		for _, o := range offers {
			if freed += o.frees; freed >= target {
				last = o
				break
			}
		}
		shift := precision - bits.Len64(uint64(last.costs)) + bits.Len64(uint64(last.frees))
		if shift >= 0 {
			b.price[i] = price{value: (last.costs << shift) / last.frees, shift: shift}
		} else {
			b.price[i] = price{value: (last.costs >> -shift) / last.frees, shift: shift}
		}
	}
}

// dearer compares a/b with c/d.
func dearer(a, b, c, d int64) int {
	leftHigh, left := bits.Mul64(uint64(a), uint64(d))
	rightHigh, right := bits.Mul64(uint64(c), uint64(b))
	return cmp.Or(cmp.Compare(leftHigh, rightHigh), cmp.Compare(left, right))
}
