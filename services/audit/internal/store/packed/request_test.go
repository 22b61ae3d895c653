package packed

import (
	"bytes"
	"hash/fnv"
	"strings"
	"testing"
)

// FuzzRandom holds the reading of a request's id, and the hash of a term, against the libraries'.
func FuzzRandom(f *testing.F) {
	for _, id := range []string{
		"r-" + strings.Repeat("a", 26), "r-" + strings.Repeat("7", 25) + "4", "r-" + strings.Repeat("7", 26), "r-" + strings.Repeat("a", 25) + "b", "r-" + strings.Repeat("a", 25) + "\n",
		"r-" + strings.Repeat("A", 26), "s-" + strings.Repeat("a", 26), "r-mjvkgvr7lpgguo3f3awaxmx5p4", "r-", "",
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		bits, own := random(id)
		want, err := lower.DecodeString(strings.TrimPrefix(id, ownRequest))
		is := err == nil && len(want) == randomBytes && ownRequest+lower.EncodeToString(want) == id
		if own != is || own && !bytes.Equal(bits[:], want) {
			t.Errorf("%q: %x, %t; want %x, %t", id, bits, own, want, is)
		}
		h := fnv.New64a()
		_, _ = h.Write(append([]byte{PlaceWord}, id...))
		if got := Term(PlaceWord, id); got != h.Sum64() {
			t.Errorf("%q: the term %x, want %x", id, got, h.Sum64())
		}
	})
}
