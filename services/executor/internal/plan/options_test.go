package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSets(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pool []uint32
		n    int
		want [][]uint32
	}{
		"none":               {nil, 2, nil},
		"one":                {[]uint32{3}, 2, nil},
		"pairs":              {[]uint32{0, 2, 5}, 2, [][]uint32{{0, 2}, {0, 5}, {2, 5}}},
		"fours side by side": {[]uint32{0, 1, 2, 3, 7}, 4, [][]uint32{{0, 1, 2, 3}, {1, 2, 3, 7}}},
		"too few":            {[]uint32{0, 1, 2}, 4, nil},
	} {
		if diff := cmp.Diff(c.want, sets(c.pool, c.n)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	var many []uint32
	for i := range uint32(maxPool + 1) {
		many = append(many, i)
	}
	if got := sets(many, 2); len(got) != maxPool {
		t.Errorf("of %d GPUs, %d pairs are tried", len(many), len(got))
	}
}

// TestTheDearerKindIsNeverCheaper: the table's order holds whatever a kind's own grain is.
func TestTheDearerKindIsNeverCheaper(t *testing.T) {
	t.Parallel()
	first, lowest := 1.0, leastUtilisation
	steps := int64((first-lowest)/utilisationStep) + 1
	most := []int64{
		0, costSleep + grain(1<<62), costUtilisation + steps*costEachStep, costContext + halving(1<<31), costGPU, costSleeper + grain(1<<62),
		costStop + grain(1<<62),
	}
	least := []int64{costSleep, costUtilisation, costContext, costGPU, costSleeper, costStop, costSplit}
	for i := range least {
		if most[i] >= least[i] {
			t.Errorf("kind %d costs up to %d, and the next from %d", i, most[i], least[i])
		}
	}
}
