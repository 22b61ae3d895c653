package release

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/mod/semver"

	"durward.internal/services/platform/platformtest/input"
)

func TestVersion(t *testing.T) {
	setting := func(pairs ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{}
		for i := 0; i < len(pairs); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return info
	}
	const commit = "0123456789abcdef0123456789abcdef01234567"
	for _, c := range []struct {
		linked string
		info   *debug.BuildInfo
		want   string
	}{
		{"", nil, "v0.0.0-devel"},
		{"", setting("vcs", "git"), "v0.0.0-devel"},
		{"", setting("vcs.modified", "true"), "v0.0.0-devel"},
		{"", setting("vcs.revision", "abc"), "v0.0.0-devel+abc"},
		{"", setting("vcs.revision", commit, "vcs.modified", "false"), "v0.0.0-devel+0123456789ab"},
		{"", setting("vcs.revision", commit, "vcs.modified", "true"), "v0.0.0-devel+0123456789ab.dirty"},
		{"v1.2.3", setting("vcs.revision", commit, "vcs.modified", "true"), "v1.2.3"},
	} {
		if got := version(c.linked, c.info); got != c.want || !semver.IsValid(got) {
			t.Errorf("%q, %+v: %s, want %s", c.linked, c.info, got, c.want)
		}
	}
	if got := Version(); got != none {
		t.Errorf("a test's program is %s", got)
	}
}

// TestVersionOfATag: what scripts/version.sh makes of Git's descriptions is semantic, and in the order in which the commits came.
func TestVersionOfATag(t *testing.T) {
	input.Outside(t)
	var last string
	for _, c := range []struct{ described, want string }{
		{"0123abc", "v0.0.0-devel+0123abc"},
		{"0123abc.dirty", "v0.0.0-devel+0123abc.dirty"},
		{"v1.0.0-rc.1-0-gabc", "v1.0.0-rc.1"},
		{"v1.0.0-rc.1-2-gabc.dirty", "v1.0.0-rc.1.devel.2+abc.dirty"},
		{"v1.0.0-0-gabc", "v1.0.0"},
		{"v1.0.0-0-gabc.dirty", "v1.0.1-devel.0+abc.dirty"},
		{"v1.0.0-12-gabc", "v1.0.1-devel.12+abc"},
		{"v1.0.9-0-gabc", "v1.0.9"},
		{"v1.0.9-1-gabc", "v1.0.10-devel.1+abc"},
	} {
		out, err := exec.CommandContext(t.Context(), "bash", "../../../scripts/version.sh", c.described).CombinedOutput()
		got := strings.TrimSpace(string(out))
		if err != nil || got != c.want || !semver.IsValid(got) || semver.Compare(got, last) < 0 {
			t.Errorf("%s: %q, %v, want %s after %s", c.described, got, err, c.want, last)
		}
		last = got
	}
}

// TestScriptsOfASourceArchive: what tests read is digested where there is no Git, as by it, and a script says what it does where it is asked.
func TestScriptsOfASourceArchive(t *testing.T) {
	input.Outside(t)
	dir := t.TempDir()
	const name = "services/operator/cmd/durward/testdata/x"
	for _, file := range []string{
		"deploy/config/a", "deploy/systemd/a", "deploy/prometheus/a", "deploy/e2e/engine/a", "deploy/e2e/fakegpu/a", "services/platform/platformtest/a", "services/egress/internal/child/a",
		"deploy/e2e/weak/testdata/services/audit/guard_weak_test.go", "services/audit/a", "scripts/version.sh", name,
	} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o700), os.WriteFile(filepath.Join(dir, file), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, script := range []string{"inputs.sh", "help.sh", "test.sh", "build.sh"} {
		text, err := os.ReadFile("../../../scripts/" + script)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "scripts", script), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run := func(line string) string {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", line)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
		return string(out)
	}
	const digests = `. scripts/inputs.sh; echo "$DURWARD_OUTSIDE $DURWARD_TRANSCRIPTS $DURWARD_COMPILED"`
	plain := run(digests)
	if len(plain) != 3*33 {
		t.Errorf("digests %q", plain)
	}
	if got := run("git init -q . >/dev/null && git add . && " + digests); got != plain {
		t.Errorf("in a checkout %q, in an archive %q", got, plain)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(digests); strings.Fields(got)[1] == strings.Fields(plain)[1] || strings.Fields(got)[0] != strings.Fields(plain)[0] {
		t.Errorf("after a change %q, before %q", got, plain)
	}
	for _, script := range []string{"build", "test"} {
		if got := run("bash scripts/" + script + ".sh -h"); !regexp.MustCompile(`^[A-Z][^#]*\n$`).MatchString(got) || strings.Contains(got, "set -e") {
			t.Errorf("%s says %q", script, got)
		}
	}
}
