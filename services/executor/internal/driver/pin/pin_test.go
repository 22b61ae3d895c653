package pin

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/catalog"
)

func put(t *testing.T, path, content string) string {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWhichArgumentsNameFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put(t, at("svc.py"), "x")
	put(t, at("a b.yaml"), "x")
	put(t, at("log"), "x")
	large := put(t, at("weights.gguf"), "")
	must(t, os.Truncate(large, maxContent+1))
	find := Finder{Programs: &catalog.Programs{}, Dir: dir, Writes: []string{at("log")}}
	arguments := []string{
		"", "serve", "-m", "svc.py", "./svc.py", "--config=a b.yaml", "x=svc.py", "--model", large, "--log-file=" + at("log"), at("none"), "none.py", "/dev/null",
		"--dir=" + dir, "http://127.0.0.1/svc.py", "a\x00b", "--port=8000",
	}
	if diff := cmp.Diff([]string{
		"checked, not held: " + at("svc.py"),
		"checked, not held: " + at("a b.yaml"),
		"checked, not held, by size, inode and times: " + large,
		"not pinned, the service writes it: " + at("log"),
		"not pinned, it is not there: " + at("none"),
		"not pinned, no regular file: /dev/null",
		"not pinned, a folder: " + dir,
	}, Lines(find.Arguments(arguments))); diff != "" {
		t.Error(diff)
	}
	find.Dir = ""
	if got := find.Arguments([]string{"svc.py"}); len(got) != 0 {
		t.Errorf("in a folder that is not known: %+v", got)
	}
	if got := Lines(find.Arguments([]string{"/x\x1b[2J"})); len(got) != 1 || strings.ContainsRune(got[0], 0x1b) {
		t.Errorf("%q", got)
	}
}

// Each change of a file that counts makes another definition, and is seen at the last look.
func TestAFilesChangeIsSeen(t *testing.T) {
	for name, c := range map[string]struct {
		size   int64
		change func(t *testing.T, path string)
	}{
		"edited":          {1, func(t *testing.T, path string) { put(t, path, "y") }},
		"gone":            {1, func(t *testing.T, path string) { must(t, os.Remove(path)) }},
		"replaced":        {1, func(t *testing.T, path string) { must(t, os.Rename(put(t, path+".new", "y"), path)) }},
		"large, one byte": {maxContent + 1, func(t *testing.T, path string) { poke(t, path) }},
		"large, with times": {maxContent + 1, func(t *testing.T, path string) {
			poke(t, path)
			must(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
		}},
		"grown": {maxContent, func(t *testing.T, path string) { must(t, os.Truncate(path, maxContent+1)) }},
	} {
		t.Run(name, func(t *testing.T) {
			path := put(t, filepath.Join(t.TempDir(), "file"), "x")
			must(t, os.Truncate(path, c.size))
			must(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
			find := Finder{Programs: &catalog.Programs{}}
			before := find.Arguments([]string{path})
			definition := define(t, "sha256:x", before)
			if again := find.Arguments([]string{path}); definition == "sha256:x" || define(t, "sha256:x", again) != definition || !Unchanged(before) {
				t.Fatal("it changes by itself, or does not count")
			}
			time.Sleep(10 * time.Millisecond) // the kernel's clock for times of change goes on
			c.change(t, path)
			if define(t, "sha256:x", find.Arguments([]string{path})) == definition {
				t.Error("another file has the same definition")
			}
			if Unchanged(before) {
				t.Error("the last look does not see it")
			}
		})
	}
}

func define(t *testing.T, runs string, files []File) string {
	t.Helper()
	definition, err := Definition(runs, files)
	must(t, err)
	return definition
}

// TestADigestThatIsAskedFor: of a large file that the entry names, in its arguments or not, the content counts and nothing else; where
// there is no digest of it there is no definition.
func TestADigestThatIsAskedFor(t *testing.T) {
	path := put(t, filepath.Join(t.TempDir(), "weights.gguf"), "x")
	must(t, os.Truncate(path, maxContent+1))
	asks, stamps := Finder{Programs: &catalog.Programs{}, Digests: []string{path}}, Finder{Programs: &catalog.Programs{}}
	digest, stamp := define(t, "x", asks.Arguments(nil)), define(t, "x", stamps.Arguments([]string{path}))
	if again := define(t, "x", asks.Arguments([]string{"--model=" + path})); again != digest {
		t.Error("a file that an argument names too counts twice")
	}
	if diff := cmp.Diff([]string{"checked, not held: " + path}, Lines(asks.Arguments(nil))); diff != "" {
		t.Error(diff)
	}
	must(t, os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)))
	if define(t, "x", asks.Arguments(nil)) != digest {
		t.Error("the same content has another definition")
	}
	if define(t, "x", stamps.Arguments([]string{path})) == stamp { // what is not asked for goes by its times
		t.Error("other times have the same definition where no digest is asked for")
	}
	time.Sleep(10 * time.Millisecond) // the kernel's clock for times of change goes on
	poke(t, path)
	if define(t, "x", asks.Arguments(nil)) == digest {
		t.Error("one byte is another, and the definition is the same")
	}
	must(t, os.Remove(path))
	for name, at := range map[string]string{"a file that is not there": path, "a folder": filepath.Dir(path)} {
		asks.Digests = []string{at}
		if d, err := Definition("x", asks.Arguments(nil)); !errors.Is(err, ErrUnread) {
			t.Errorf("%s has the definition %q, %v", name, d, err)
		}
	}
}

func poke(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	if _, err := f.WriteAt([]byte("y"), 5); err != nil {
		t.Fatal(err)
	}
	must(t, f.Close())
}

func TestDefinitionsAreNotConfused(t *testing.T) {
	a, b := File{path: "/a", identity: "1"}, File{path: "/b", identity: "2"}
	seen := []string{"x"}
	for _, files := range [][]File{{a}, {b}, {a, b}, {b, a}, {{path: "/a1", identity: ""}}, {{path: "/a", identity: "12"}}} {
		d := define(t, "x", files)
		if slices.Contains(seen, d) {
			t.Errorf("%v has another's definition", files)
		}
		seen = append(seen, d)
	}
	if define(t, "x", []File{{path: "/log", why: "the service writes it"}}) != "x" {
		t.Error("what is not pinned counts")
	}
}
