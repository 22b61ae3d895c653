package token

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"maps"
	"math/bits"
	"slices"
)

// maxLocal is maxBucket for the values of one request.
const maxLocal = 64

// short is how long a value is that is compared byte by byte; longer ones are compared by their sums, so that a hostile text costs no more.
const short = 64

// index finds values in texts. The zero index has none.
type index struct {
	// values by their first bytes.
	values map[[window]byte][]held
	// may has a bit for each hash of a value's first bytes: most places of a text begin none.
	may   [64]uint64
	count int
	// base is what sums are made with; nobody outside can make two texts with one sum.
	base uint64
}

type held struct {
	text string
	kind kind
	sum  uint64
}

// add takes a value that is worth looking for wherever it stands: one that no ordinary word is.
func (x *index) add(text string, of kind, most int) {
	if len(text) < window || len(text) > maxValue || !distinct(text) {
		return
	}
	key := [window]byte([]byte(text[:window]))
	bucket := x.values[key]
	if len(bucket) >= most || slices.ContainsFunc(bucket, func(other held) bool { return other.text == text }) {
		return
	}
	if x.values == nil {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		x.values, x.base = map[[window]byte][]held{}, binary.LittleEndian.Uint64(random[:])>>4|1<<32
	}
	v := held{text: text, kind: of}
	for i := range len(text) {
		v.sum = sum(times(v.sum, x.base), uint64(text[i])+1)
	}
	x.values[key] = append(bucket, v)
	h := hash(text)
	x.may[h>>6] |= 1 << (h & 63)
	x.count++
}

// clone is an index of its own: what is added to it is not in x.
func (x *index) clone() *index {
	c := *x
	c.values = maps.Clone(x.values)
	for key, bucket := range c.values {
		c.values[key] = slices.Clip(bucket)
	}
	return &c
}

// stride is after how many bytes find looks whether its caller still waits: a hostile text takes a few milliseconds for so many.
const stride = 4 << 10

// find returns where the values are, the longest at each place. It ends early, with ctx's error, when ctx does.
func (x *index) find(ctx context.Context, text string) ([]span, error) {
	if x.count == 0 || len(text) < window {
		return nil, nil
	}
	var sums, powers []uint64 // made when first they are needed
	var out []span
	for i := 0; i+window <= len(text); i++ {
		if i%stride == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		if h := hash(text[i:]); x.may[h>>6]>>(h&63)&1 == 0 {
			continue
		}
		best := span{}
		for _, v := range x.values[[window]byte([]byte(text[i:i+window]))] {
			if n := len(v.text); n > best.To-best.From && i+n <= len(text) {
				if n <= short {
					if text[i:i+n] == v.text {
						best = span{i, i + n, v.kind}
					}
					continue
				}
				if sums == nil {
					sums, powers = x.sums(text)
				}
				// The sum of a part is that of all up to its end without that of all before it.
				if sum(times(sums[i], powers[n]), v.sum) == sums[i+n] {
					best = span{i, i + n, v.kind}
				}
			}
		}
		if best.To > 0 && (len(out) == 0 || best.To > out[len(out)-1].To) {
			out = append(out, best)
		}
	}
	return out, nil
}

// hash is of a text's first four bytes, in 12 bits.
func hash(text string) uint32 {
	return (uint32(text[0]) | uint32(text[1])<<8 | uint32(text[2])<<16 | uint32(text[3])<<24) * 2654435761 >> 20
}

// prime is 2^61-1.
const prime = 1<<61 - 1

// sums returns the sum of each beginning of a text, and the powers of the base.
func (x *index) sums(text string) (sums, powers []uint64) {
	sums, powers = make([]uint64, len(text)+1), make([]uint64, min(len(text), maxValue)+1)
	for i := range len(text) {
		sums[i+1] = sum(times(sums[i], x.base), uint64(text[i])+1)
	}
	powers[0] = 1
	for i := 1; i < len(powers); i++ {
		powers[i] = times(powers[i-1], x.base)
	}
	return sums, powers
}

// times and sum are those of the numbers below prime.
func times(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return sum(low&prime, high<<3|low>>61)
}

func sum(a, b uint64) uint64 {
	if a += b; a >= prime {
		a -= prime
	}
	return a
}
