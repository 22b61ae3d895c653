// Package full says how much tests go through that try many cases: a sample, or all of them where DURWARD_FULL is set. It links
// nothing, so that packages may use it that package platformtest is made of. Only tests link it.
package full

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Set reports whether tests go through everything.
func Set() bool { return os.Getenv("DURWARD_FULL") != "" }

// Sample returns how many cases to try and the seed to make them from: all of them and 0, or few and a seed that differs each time.
// The test's log has that seed, and DURWARD_SEED brings it back.
func Sample(t testing.TB, all, few int) (seed uint64, n int) {
	t.Helper()
	if Set() {
		return 0, all
	}
	seed = rand.Uint64() >> 1 //nolint:gosec // it chooses test cases; the shift leaves room for a few more
	if text := os.Getenv("DURWARD_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 63); err != nil {
			t.Fatalf("DURWARD_SEED: %v", err)
		}
	}
	t.Logf("a sample: DURWARD_SEED=%d repeats it, DURWARD_FULL=1 goes through everything", seed)
	return seed, few
}

// Picks returns what says of one case after the other whether to try it: all, or one of every few, of which a seed chooses the first as
// Sample does. It is for cases that are the same each time and take long.
func Picks(t testing.TB, few int) func() bool {
	t.Helper()
	at, n := Sample(t, few, 1)
	return func() bool {
		at++
		return n == few || at%uint64(few) == 0
	}
}
