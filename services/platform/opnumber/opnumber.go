// Package opnumber computes the number by which people name an operation: in what an agent tells its user, and on the operator's screen.
// Edge and operator link it. It says nothing of the operation's id, which alone works at the vault.
package opnumber

import (
	"crypto/sha256"
	"slices"
	"strings"
)

// Alphabet is Crockford's base 32: no I, L, O or U, which people misread.
const Alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// Short is how many characters people see, unless more are needed to keep operations apart, and Full how many there are.
const (
	Short = 4
	Full  = 26
)

// Of is the number of an operation at its full length; what people see is a prefix of it. It is a digest of the id.
func Of(operationID string) string {
	sum := sha256.Sum256([]byte("durward.number.v1\x00" + operationID))
	var b strings.Builder
	var acc, bits uint
	for _, c := range sum {
		acc = acc<<8 | uint(c)
		bits += 8
		for bits >= 5 && b.Len() < Full {
			bits -= 5
			b.WriteByte(Alphabet[acc>>bits&31])
		}
		acc &= 1<<bits - 1
	}
	return b.String()
}

// Shorten gives each number at its full length the beginning that people see: Short characters, and as many more as keep it apart from
// the others given.
func Shorten(full []string) map[string]string {
	// In sorted order the longest common prefix is shared with a neighbour.
	sorted := slices.Compact(slices.Sorted(slices.Values(full)))
	short := make(map[string]string, len(sorted))
	for at, number := range sorted {
		n := min(Short, len(number))
		for _, neighbour := range []int{at - 1, at + 1} {
			for neighbour >= 0 && neighbour < len(sorted) && n < len(number) && strings.HasPrefix(sorted[neighbour], number[:n]) {
				n++
			}
		}
		short[number] = number[:n]
	}
	return short
}
