package packed

import (
	"slices"

	"durward.internal/services/audit/internal/store/words"
	"durward.internal/services/platform/identity"
)

// A filter says which terms a block may hold: a Bloom filter of twelve bits for each.
const (
	filterBits   = 12
	filterProbes = 7
)

// Term is the hash of a value in one of the places that are searched: FNV-1a, without hash/fnv's piece of memory for each.
func Term(place byte, value string) uint64 {
	const basis, prime = 14695981039346656037, 1099511628211
	h := (basis ^ uint64(place)) * prime
	for i := range len(value) {
		h = (h ^ uint64(value[i])) * prime
	}
	return h
}

// Places of terms.
const (
	PlaceRequest, PlaceOperation, PlaceTool, PlaceSession, PlacePrincipal, PlaceWriter, PlaceRole = 'r', 'o', 't', 's', 'p', 'w', 'R'
	PlaceTier, PlaceStatus, PlaceChannel, PlaceWord                                               = 'T', 'S', 'c', 'k'
)

// Numbered is Term of a number.
func Numbered(place byte, v uint64) uint64 { return Term(place, string(rune(v&0xffff))) }

// Filter makes the filter of cells, of at least so many bytes.
func Filter(cells []Cell, least int) ([]byte, error) {
	seen, rests := map[uint64]bool{}, map[string]bool{}
	before := Cell{}
	for i := range cells {
		c := &cells[i]
		for _, t := range []struct {
			place   byte
			was, is string
		}{
			{PlaceRequest, before.Request, c.Request}, {PlaceOperation, before.Operation, c.Operation}, {PlaceTool, before.Tool, c.Tool},
			{PlaceSession, before.Session, c.Session}, {PlacePrincipal, before.Principal, c.Principal},
		} {
			if t.is != "" && t.is != t.was {
				seen[Term(t.place, t.is)] = true
			}
		}
		if c.Writer != before.Writer {
			id, err := identity.Parse(c.Writer)
			if err != nil {
				return nil, err
			}
			seen[Term(PlaceWriter, c.Writer)], seen[Term(PlaceRole, identity.RoleName(id.Role()))] = true, true
		}
		if i == 0 || c.Tier != before.Tier || c.Status != before.Status || c.Channel != before.Channel {
			seen[Numbered(PlaceTier, c.Tier)], seen[Numbered(PlaceStatus, c.Status)], seen[Numbered(PlaceChannel, c.Channel)] = true, true, true
		}
		if c.Rest != before.Rest && !rests[c.Rest] {
			rests[c.Rest] = true
			body, err := c.Body()
			if err != nil {
				return nil, err
			}
			for _, word := range words.Of(body) {
				seen[Term(PlaceWord, word)] = true
			}
		}
		before = *c
	}
	out := make([]byte, max(least, (len(seen)*filterBits+7)/8))
	for t := range seen {
		probe(t, len(out), func(at int, bit byte) bool { out[at] |= bit; return true })
	}
	return out, nil
}

// MayHold reports whether a block with this filter may hold all these terms.
func MayHold(filter []byte, terms []uint64) bool {
	if len(filter) == 0 {
		return true // one that was damaged hides nothing
	}
	return !slices.ContainsFunc(terms, func(t uint64) bool {
		return !probe(t, len(filter), func(at int, bit byte) bool { return filter[at]&bit != 0 })
	})
}

// probe calls f with each bit of a term in a filter of so many bytes, until it returns false.
func probe(t uint64, size int, f func(at int, bit byte) bool) bool {
	bits := uint64(size) * 8
	step := t>>32 | 1
	for range filterProbes {
		if at := t % bits; !f(int(at/8), 1<<(at%8)) {
			return false
		}
		t += step * 0x9e3779b97f4a7c15
	}
	return true
}
