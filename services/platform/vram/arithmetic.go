package vram

import (
	"math"
	"math/bits"
)

// Arithmetic that stays at its end instead of overflowing: a size beyond all memory is as good as infinite.

const mebi = 1 << 20

func add(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

func sub(a, b uint64) uint64 { return a - min(a, b) }

func mul(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	if high != 0 {
		return math.MaxUint64
	}
	return low
}

// ratio is a·b/c, rounded up. c is not 0.
func ratio(a, b, c uint64) uint64 {
	whole, rest := divided(a, b, c)
	if rest > 0 {
		return add(whole, 1)
	}
	return whole
}

// divided is a·b/c and what is left. c is not 0.
func divided(a, b, c uint64) (whole, rest uint64) {
	high, low := bits.Mul64(a, b)
	if high >= c {
		return math.MaxUint64, 0
	}
	return bits.Div64(high, low, c)
}

func ceilDiv(a, b uint64) uint64 {
	if a%b > 0 {
		return a/b + 1
	}
	return a / b
}

// pad rounds up to a multiple of n.
func pad(v, n uint64) uint64 { return mul(ceilDiv(v, n), n) }

// mib is bytes in MiB, rounded up.
func mib(bytes uint64) uint32 { return uint32(min(ceilDiv(bytes, mebi), math.MaxUint32)) }

func bytesOf(mib uint32) uint64 { return uint64(mib) * mebi }
