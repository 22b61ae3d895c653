package drill

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// No product carries the means of the negative controls: neither the tag, nor the flag, nor the names of guards.
func TestShippedProgramsCannotBeWeakened(t *testing.T) {
	dir := harness.Binaries(t, harness.Build{})
	for _, name := range harness.Programs() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			info, err := buildinfo.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, setting := range info.Settings {
				if setting.Key == "-tags" && strings.Contains(setting.Value, "weak") {
					t.Errorf("it was built with -tags %s", setting.Value)
				}
			}
			program, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, trace := range []string{"weaken", "Weaken"} {
				if bytes.Contains(program, []byte(trace)) {
					t.Errorf("it holds the word %q", trace)
				}
			}
			out, err := exec.CommandContext(t.Context(), path, "-weaken", "callers", "-version").CombinedOutput()
			if err == nil {
				t.Errorf("it accepts -weaken: %s", out)
			}
		})
	}
}
