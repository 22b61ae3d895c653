package hostile

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// folderOfCorpora writes two corpora: one of many files with few strings, and one large file, JSON with keys in an order that
// Go's maps do not keep.
func folderOfCorpora(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	write("MANIFEST.tsv", "not a string\n")
	write(folderJSON+"/y.json", `["left to its own test"]`)
	for i := range 30 {
		write(fmt.Sprintf("small/%02d.txt", i), fmt.Sprintf("%d-one\n%d-two\nin every file\n", i, i))
	}
	write("small/same.txt", "in every file\n")
	object := "{"
	for i := range 500 {
		object += fmt.Sprintf(`"key-%d":["value-%d"],`, i, i)
	}
	write("large/all.json", object+`"last":null}`)
	return root
}

func TestSamplesAreTheSameForASeed(t *testing.T) {
	strata, err := readCorpora(folderOfCorpora(t))
	must(t, err)
	again, err := readCorpora(folderOfCorpora(t))
	must(t, err)
	made := func(strata []stratum, seed uint64) []string {
		list := sample(rand.New(rand.NewPCG(seed, 2)), strata, 100)
		m := mutator{rand.New(rand.NewPCG(seed, seed)), append(seeds("/tmp"), list...)}
		for range 1000 {
			list = append(list, m.next())
		}
		return list
	}
	if !slices.Equal(made(strata, 7), made(again, 7)) {
		t.Error("one seed gives two samples")
	}
	if slices.Equal(made(strata, 7), made(strata, 8)) {
		t.Error("two seeds give one sample")
	}
}

func TestSampleHasEveryFile(t *testing.T) {
	strata, err := readCorpora(folderOfCorpora(t))
	must(t, err)
	if len(strata) != 31 { // that which repeats others has no stratum
		t.Fatalf("%d files", len(strata))
	}
	for _, n := range []int{1, 100, 300} {
		taken := sample(rand.New(rand.NewPCG(7, 2)), strata, n)
		if most := max(n, len(strata)); len(taken) > most {
			t.Errorf("%d strings instead of %d", len(taken), n)
		}
		for _, s := range strata {
			if !slices.ContainsFunc(s.strings, func(text string) bool { return slices.Contains(taken, text) }) {
				t.Errorf("of %d strings none is of %s", n, s.file)
			}
		}
		in := slices.Sorted(slices.Values(taken))
		if len(slices.Compact(in)) != len(taken) {
			t.Errorf("of %d strings some are taken twice", n)
		}
	}
	if all := sample(rand.New(rand.NewPCG(7, 2)), strata, 0); len(all) != 1001+60+1 {
		t.Errorf("%d strings are all", len(all))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
