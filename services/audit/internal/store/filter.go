package store

import (
	"slices"
)

// A filter says which terms a block may hold: a Bloom filter of twelve bits for each.
const (
	filterBits   = 12
	filterProbes = 7
)

// term is the hash of a value in one of the places that are searched: FNV-1a, without hash/fnv's piece of memory for each.
func term(place byte, value string) uint64 {
	const basis, prime = 14695981039346656037, 1099511628211
	h := (basis ^ uint64(place)) * prime
	for i := range len(value) {
		h = (h ^ uint64(value[i])) * prime
	}
	return h
}

// Places of terms.
const (
	placeRequest, placeOperation, placeTool, placeSession, placePrincipal, placeWriter, placeRole = 'r', 'o', 't', 's', 'p', 'w', 'R'
	placeTier, placeStatus, placeChannel, placeWord                                               = 'T', 'S', 'c', 'k'
)

func numbered(place byte, v uint64) uint64 { return term(place, string(rune(v&0xffff))) }

// filter makes the filter of cells, of at least so many bytes.
func filter(cells []cell, least int) ([]byte, error) {
	seen, rests := map[uint64]bool{}, map[string]bool{}
	before := cell{}
	for i := range cells {
		c := &cells[i]
		for _, t := range []struct {
			place   byte
			was, is string
		}{
			{placeRequest, before.request, c.request}, {placeOperation, before.operation, c.operation}, {placeTool, before.tool, c.tool},
			{placeSession, before.session, c.session}, {placePrincipal, before.principal, c.principal},
		} {
			if t.is != "" && t.is != t.was {
				seen[term(t.place, t.is)] = true
			}
		}
		if c.writer != before.writer {
			who, err := role(c.writer)
			if err != nil {
				return nil, err
			}
			seen[term(placeWriter, c.writer)], seen[term(placeRole, who)] = true, true
		}
		if i == 0 || c.tier != before.tier || c.status != before.status || c.channel != before.channel {
			seen[numbered(placeTier, c.tier)], seen[numbered(placeStatus, c.status)], seen[numbered(placeChannel, c.channel)] = true, true, true
		}
		if c.rest != before.rest && !rests[c.rest] {
			rests[c.rest] = true
			body, err := c.body()
			if err != nil {
				return nil, err
			}
			for _, word := range wordsOf(body) {
				seen[term(placeWord, word)] = true
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

// mayHold reports whether a block with this filter may hold all these terms.
func mayHold(filter []byte, terms []uint64) bool {
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
