// Package golden pins down what users and clients of Durward meet: the help of every program, what each command prints and how it
// ends, every refusal, each approval's screen, and what an MCP client is told. The built programs run on installations in defined
// states; each transcript is compared with a file of testdata, so that a change of what users see is seen in review.
//
// `make golden-diff` shows what has changed, `make golden-accept` rewrites the files.
package golden

import (
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
)

//go:embed testdata
var files embed.FS

// Accepted returns the files of testdata, by name.
func Accepted() (map[string]string, error) {
	accepted := map[string]string{}
	err := fs.WalkDir(files, "testdata", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		b, err := files.ReadFile(path)
		accepted[strings.TrimPrefix(path, "testdata/")] = string(b)
		return err
	})
	return accepted, err
}

// Compare returns a unified diff for each golden that is not as it was accepted, or is on one side alone.
func Compare(accepted, got map[string]string) []string {
	names := map[string]bool{}
	for _, side := range []map[string]string{accepted, got} {
		for name := range side {
			names[name] = true
		}
	}
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, was := accepted[name]
		after, is := got[name]
		switch {
		case !was:
			differences = append(differences, fmt.Sprintf("testdata/%s is new:\n%s", name, diff.Diff("accepted", nil, name, []byte(after))))
		case !is:
			differences = append(differences, fmt.Sprintf("testdata/%s: nothing makes this golden any more", name))
		case before != after:
			differences = append(differences, fmt.Sprintf("testdata/%s:%d differs:\n%s", name, firstDifference(before, after), diff.Diff("accepted/"+name, []byte(before), "now/"+name, []byte(after))))
		}
	}
	return differences
}

// firstDifference is the number of the first line that differs.
func firstDifference(a, b string) int {
	before, after := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(before), len(after)) {
		if before[i] != after[i] {
			return i + 1
		}
	}
	return min(len(before), len(after)) + 1
}
