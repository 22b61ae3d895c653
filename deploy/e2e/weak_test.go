package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/programs"
)

// TestUnitsWithoutTheirGuards runs the tests of deploy/e2e/weak: what a package's own tests show of a guard is not so without it.
// A guard that was removed stays so, therefore they run apart from the package's others.
func TestUnitsWithoutTheirGuards(t *testing.T) {
	t.Parallel()
	build := harness.Build{Weak: true}
	harness.Binaries(t, build) // an input of this test: what it compiles, it compiles with the packages of these programs
	root, overlay := harness.Root(t), filepath.Join(t.TempDir(), "overlay.json")
	if err := (programs.Build{Weak: true}).WriteOverlay(root, overlay); err != nil {
		t.Fatal(err)
	}
	tests, declared := map[string][]string{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	weak := filepath.Join(root, "deploy", "e2e", "weak")
	err := filepath.WalkDir(weak, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		folder := "." + strings.TrimPrefix(filepath.Dir(path), weak)
		for _, name := range declared.FindAllSubmatch(source, -1) {
			tests[folder] = append(tests[folder], string(name[1]))
		}
		return err
	})
	if err != nil || len(tests) == 0 {
		t.Fatalf("tests in %d packages: %v", len(tests), err)
	}
	for folder, names := range tests {
		t.Run(folder, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-count=1", "-v", "-run", "^("+strings.Join(names, "|")+")$", folder)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, name := range names {
				if !strings.Contains(string(out), "--- PASS: "+name+" ") {
					t.Errorf("%s did not pass:\n%s", name, out)
				}
			}
		})
	}
}
