package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/programs"
	"durward.internal/services/platform/platformtest/input"
)

// TestEveryProgramStarts: all processes become healthy, and the operator's command line sees them. It is what
// TestABrokenProgramFailsTheSuite runs as its suite.
func TestEveryProgramStarts(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	for _, role := range harness.Roles() {
		if !h.Healthy(role) {
			t.Errorf("%s is not healthy", role)
		}
	}
	for _, role := range harness.Roles() {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", h.Process(role).PID()))
		if err != nil || !regexp.MustCompile(`(?m)^Max core file size +0 +0 `).Match(limits) {
			t.Errorf("%s may leave its memory in a core file: %v\n%s", role, err, limits)
		}
	}
	if out := h.Run("", "status"); out.Code != 0 {
		t.Errorf("durward status: exit status %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
}

// TestABrokenProgramFailsTheSuite runs scripts/test.sh on one test of this package: twice with the programs as they are, where
// the second answer comes from Go's test cache, then with a gateway that panics. The cache must not answer for that one.
func TestABrokenProgramFailsTheSuite(t *testing.T) {
	if os.Getenv(programs.Overlay) != "" {
		t.Skip("this is the suite that is run")
	}
	t.Parallel()
	input.Outside(t)
	root, dir := harness.Root(t), t.TempDir()
	// What is compiled already need not be linked again.
	if out, err := exec.Command("cp", "-a", harness.Binaries(t, harness.Build{}), filepath.Join(dir, harness.Build{}.Name())).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	overlay := filepath.Join(dir, "overlay.json")
	suite := func(replace map[string]string) (output string, passed bool) {
		t.Helper()
		content, err := json.Marshal(map[string]any{"Replace": replace})
		must(t, err)
		must(t, os.WriteFile(overlay, content, 0o600))
		cmd := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "test.sh"))
		cmd.Env = append(os.Environ(), "PKG=deploy/e2e", "RUN=^TestEveryProgramStarts$", "E2E=1", "PROGRAMS=plain", programs.Overlay+"="+overlay)
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out), err == nil
	}

	if out, passed := suite(nil); !passed || !strings.Contains(out, "1 passed, 0 failed") {
		t.Fatalf("the programs as they are:\n%s", out)
	}
	if out, passed := suite(nil); !passed || !strings.Contains(out, "(cached)") {
		t.Errorf("the same programs again, which the cache should answer for:\n%s", out)
	}
	broken := filepath.Join(dir, "broken.go")
	must(t, os.WriteFile(broken, []byte("package main\n\nfunc init() { panic(\"broken on purpose\") }\n"), 0o600))
	out, passed := suite(map[string]string{filepath.Join(root, "gateway", "cmd", "gateway", "broken.go"): broken})
	if passed || strings.Contains(out, "(cached)") || !strings.Contains(out, "broken on purpose") {
		t.Errorf("with a gateway that panics:\n%s", out)
	}
}
