package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"durward.internal/deploy/e2e/harness"
)

// TestTheUsersHomeHasNoSay: a user whose home folder holds a development installation of Durward, which is not running, runs these
// tests. Nothing of what the harness starts knows of that home, and durward writes and reads nothing in it.
func TestTheUsersHomeHasNoSay(t *testing.T) { // not in parallel: it changes the environment of the tests
	lying := t.TempDir()
	bin := harness.Binaries(t, harness.Build{}) // the tools that build need the user's own home
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "USER", "LANG", "TZ"} {
		t.Setenv(name, lying)
	}
	misleading := map[string]string{
		".durward/config/operator.yaml": "operator: mallory\n", ".durward/config/gateway.yaml": "hold_s: 45\n", ".durward/run/up.json": "{}",
		".durward/config/catalogue.yaml": "not a catalogue", ".durward/keys/operator_ed25519": "not a key",
	}
	for name, content := range misleading {
		file := filepath.Join(lying, name)
		must(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must(t, os.WriteFile(file, []byte(content), 0o600))
	}

	h := harness.Start(t, harness.Options{})
	h.AddKeyBound("agent")
	isStatus(t, "pending_approval", h.ConnectStdio("agent").Ask("start_service", demo))
	x := h.AtTerminal(t, 120, "status")
	defer x.Close()
	x.Ends(0)
	// Without --home, durward looks into its user's home, which is the installation's own and holds none under that name.
	out, err := h.Command(filepath.Join(bin, "durward"), "status").CombinedOutput()
	if err == nil || strings.Contains(string(out), lying) || strings.Contains(string(out), "mallory") {
		t.Errorf("durward status without --home: %v\n%s", err, out)
	}

	for _, role := range harness.Roles() {
		if has := environmentOf(t, h.Process(role).PID()); slices.ContainsFunc(has, func(one string) bool { return strings.Contains(one, lying) }) {
			t.Errorf("%s runs with %q", role, has)
		}
	}
	found := 0
	err = filepath.WalkDir(lying, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		found++
		name, _ := filepath.Rel(lying, path)
		if content, err := os.ReadFile(path); err != nil || misleading[name] != string(content) {
			t.Errorf("%s was written: %v %q", name, err, content)
		}
		return nil
	})
	if err != nil || found != len(misleading) {
		t.Errorf("%d files lie in the user's home, want %d: %v", found, len(misleading), err)
	}
}

// environmentOf returns what a running process was started with.
func environmentOf(t *testing.T, pid int) []string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil || len(raw) == 0 {
		t.Fatalf("the environment of process %d: %v", pid, err)
	}
	return strings.Split(strings.TrimRight(string(raw), "\x00"), "\x00")
}
