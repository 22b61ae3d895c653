package e2e

import (
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/programs"
	"durward.internal/deploy/e2e/weak"
	"durward.internal/services/platform/platformtest/input"
)

// TestUnitsWithoutTheirGuards runs the tests of deploy/e2e/weak: what a package's own tests show of a guard is not so without it.
// A guard that was removed stays so, therefore they run apart from the package's others.
func TestUnitsWithoutTheirGuards(t *testing.T) {
	t.Parallel()
	input.Compiled(t)
	build := harness.Build{Weak: true}
	harness.Binaries(t, build) // an input of this test: what it compiles, it compiles with the packages of these programs
	root, overlay := harness.Root(t), filepath.Join(t.TempDir(), "overlay.json")
	must(t, (programs.Build{Weak: true}).WriteOverlay(root, overlay))
	tests, declared := map[string][]string{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := fs.WalkDir(weak.Files, "testdata", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := weak.Files.ReadFile(path)
		if strings.HasPrefix(string(source), "//go:build real") {
			return err // a suite against real parts runs it
		}
		folder := "." + strings.TrimPrefix(filepath.Dir(path), "testdata")
		for _, name := range declared.FindAllSubmatch(source, -1) {
			tests[folder] = append(tests[folder], string(name[1]))
		}
		return err
	})
	if err != nil || len(tests) == 0 {
		t.Fatalf("tests in %d packages: %v", len(tests), err)
	}
	var folders, names []string
	for folder, declared := range tests {
		folders, names = append(folders, folder), append(names, declared...)
	}
	// make lint vets this build; vet enters each package's folder, and one that only the overlay has has none.
	args := []string{"test", "-vet=off", "-overlay", overlay, "-json", "-run", "^(" + strings.Join(names, "|") + ")$"}
	cmd := exec.CommandContext(t.Context(), "go", append(args, folders...)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for folder, names := range tests {
		for _, name := range names {
			passed := fmt.Sprintf(`"Action":"pass","Package":"durward.internal%s","Test":"%s"`, strings.TrimPrefix(folder, "."), name)
			if !strings.Contains(string(out), passed) {
				t.Errorf("%s of %s did not pass:\n%s", name, folder, out)
			}
		}
	}
}
