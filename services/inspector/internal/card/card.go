// Package card has what making a card takes whatever format it is made from: sizes that cannot overflow and names that can be
// shown.
package card

import (
	"math"
	"math/bits"
	"strings"

	"durward.internal/services/platform/model"
)

// Most is where products and sums stop. No check of a card lets a size of that order through.
const Most = 1 << 62

// Bounded is n, at most Most.
func Bounded(n uint64) uint64 { return min(n, Most) }

// Product multiplies and stops at Most.
func Product(factors ...uint64) uint64 {
	p := uint64(1)
	for _, f := range factors {
		hi, lo := bits.Mul64(p, f)
		switch {
		case f == 0:
			return 0
		case hi != 0 || lo > Most:
			p = Most
		default:
			p = lo
		}
	}
	return p
}

// Narrow is n, or the largest number where it is larger.
func Narrow(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// MiB is bytes in MiB, rounded up.
func MiB(n uint64) uint32 { return Narrow((Bounded(n) + 1<<20 - 1) >> 20) }

// Name is an architecture's name as a card may have it: what is no letter, digit, dot, underscore or hyphen is left out, and what
// is beyond 64 characters.
func Name(s string) string {
	if len(s) > 1024 {
		s = s[:1024]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return -1
	}, s)
	return s[:min(len(s), 64)]
}

// None is a layer that keeps nothing. A card has no kind for those; one that shares another's keys and values keeps none either.
func None() model.Layers {
	return model.Layers{Count: 1, Kind: model.Full, KVHeads: 1, KeyDim: 1, ValueDim: 1, Shared: true}
}

// Append adds one layer, to the last group where it is like those.
func Append(groups []model.Layers, l model.Layers) []model.Layers {
	if n := len(groups); n > 0 {
		last := groups[n-1]
		last.Count = 1
		if last == l {
			groups[n-1].Count++
			return groups
		}
	}
	return append(groups, l)
}
