package e2e

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/programs"
	"durward.internal/services/platform/platformtest/input"
)

// weakened are the programs that have guards to remove in a drill build.
var weakened = []string{"vault", "executor", "gateway"}

// TestNoWeakSetting shows that no program as it is shipped has a setting or a symbol of the drill's negative controls, and that
// a drill build has: the test would notice.
func TestNoWeakSetting(t *testing.T) {
	t.Parallel()
	for _, name := range harness.Programs() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(harness.Binaries(t, harness.Build{}), name)
			if flag, symbol := weakness(t, path); flag || symbol != "" {
				t.Errorf("flag %t, symbol %q", flag, symbol)
			}
		})
	}
	for _, name := range weakened {
		t.Run(name+" of the drill", func(t *testing.T) {
			path := filepath.Join(harness.Binaries(t, harness.Build{Weak: true}), name)
			if flag, symbol := weakness(t, path); !flag || symbol == "" {
				t.Errorf("flag %t, symbol %q", flag, symbol)
			}
		})
	}
}

// weakness looks for the two signs of a drill build: the flag -weaken and a symbol.
func weakness(t *testing.T, path string) (flag bool, symbol string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path, "-weaken", "nothing").CombinedOutput()
	if err == nil {
		t.Fatalf("-weaken nothing is accepted: %s", out)
	}
	// The standard flag package, the operator's command line, and the inspector and the lister, which have no flags, say so of one that is not there.
	flag = !slices.ContainsFunc([]string{"flag provided but not defined: -weaken", "unknown shorthand flag", "usage: durward-inspect", "usage: durward-list"},
		func(sentence string) bool { return bytes.Contains(out, []byte(sentence)) })

	symbol = findSymbol(t, path, func(name string) bool {
		return strings.HasPrefix(name, "durward.internal/") && strings.Contains(strings.ToLower(name), "weaken")
	})
	return flag, symbol
}

// TestNoDiagnostics shows that no program as it is shipped has a symbol or a word of what the conformance suite
// looks for, and that the gateway which is built for it has: the test would notice.
func TestNoDiagnostics(t *testing.T) {
	t.Parallel()
	has := func(t *testing.T, path, word string) bool {
		program, err := os.ReadFile(path)
		must(t, err)
		return bytes.Contains(program, []byte(word))
	}
	const diagnostic, weak = "test_simple_text", "weaken"
	check := func(t *testing.T, path string, want bool) {
		word := has(t, path, diagnostic)
		symbol := findSymbol(t, path, func(name string) bool {
			return strings.HasPrefix(name, "durward.internal/gateway/internal/diagnostic.")
		})
		if word != want || (symbol != "") != want {
			t.Errorf("tool %t, symbol %q, want %t", word, symbol, want)
		}
	}
	for _, name := range harness.Programs() {
		t.Run(name, func(t *testing.T) {
			check(t, filepath.Join(harness.Binaries(t, harness.Build{}), name), false)
		})
	}
	t.Run("the words are those of a weak build", func(t *testing.T) {
		for _, name := range weakened {
			if !has(t, filepath.Join(harness.Binaries(t, harness.Build{Weak: true}), name), weak) {
				t.Errorf("%s has no %q", name, weak)
			}
		}
	})
	t.Run("gateway of the suite", func(t *testing.T) {
		check(t, filepath.Join(harness.Binaries(t, harness.Build{Conformance: true}), harness.Gateway), true)
	})
	t.Run("scripts/build.sh, told to by GOFLAGS", func(t *testing.T) {
		input.Outside(t)
		// A folder that stays: what is up to date there is not linked again, only its time is set.
		dir, began := filepath.Join(harness.Root(t), ".cache", "e2e", "shipped"), time.Now().Add(-time.Second)
		build := exec.CommandContext(t.Context(), filepath.Join(harness.Root(t), "scripts", "build.sh"), dir)
		overlay := filepath.Join(t.TempDir(), "overlay.json")
		must(t, (programs.Build{Weak: true, Conformance: true}).WriteOverlay(harness.Root(t), overlay))
		build.Env = append(os.Environ(), "GOFLAGS=-overlay="+overlay)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, name := range harness.Programs() { // they are stripped of symbols
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err != nil || info.ModTime().Before(began) {
				t.Errorf("%s was not built: %v", name, err)
				continue
			}
			for _, word := range []string{diagnostic, weak} {
				if has(t, path, word) {
					t.Errorf("%s has %q", name, word)
				}
			}
		}
	})
}

// findSymbol returns a symbol of a program whose name fits, or nothing.
func findSymbol(t *testing.T, path string, fits func(name string) bool) string {
	t.Helper()
	file, err := elf.Open(path)
	must(t, err)
	defer file.Close()
	symbols, err := file.Symbols()
	must(t, err)
	for _, s := range symbols {
		if fits(s.Name) {
			return s.Name
		}
	}
	return ""
}

// TestCheckAndVersion shows that every process checks its configuration and prints its version without starting.
func TestCheckAndVersion(t *testing.T) {
	t.Parallel()
	h := harness.New(t, harness.Options{})
	for _, role := range harness.Roles() {
		t.Run(role, func(t *testing.T) {
			path := filepath.Join(h.Bin, role)
			config := h.Path("config", role+".yaml")
			if out, err := exec.CommandContext(t.Context(), path, "-config", config, "-check").CombinedOutput(); err != nil {
				t.Errorf("-check: %v\n%s", err, out)
			}
			if out, err := exec.CommandContext(t.Context(), path, "-version").Output(); err != nil || !strings.HasPrefix(string(out), role+" ") {
				t.Errorf("-version: %v, %q", err, out)
			}
			good, err := os.ReadFile(config)
			must(t, err)
			for name, change := range map[string]struct {
				bad, want string
				flags     []string
			}{
				"unknown key":  {strings.Replace(string(good), "health_listen:", "health_listn:", 1), "health_listen", nil},
				"not loopback": {strings.Replace(string(good), "listen: 127.0.0.1:", "listen: 0.0.0.0:", 1), "-dangerous-allow-remote", nil},
				"health beyond loopback": {
					strings.Replace(string(good), "health_listen: 127.0.0.1:", "health_listen: 0.0.0.0:", 1),
					"health_listen: is not a loopback address", []string{"-dangerous-allow-remote"},
				},
				"duplicate key":  {string(good) + "\nlog_level: info\n", "log_level", nil},
				"no certificate": {strings.Replace(string(good), "certificate:", "certificates:", 1), "certificate", nil},
			} {
				bad := filepath.Join(t.TempDir(), "bad.yaml")
				must(t, os.WriteFile(bad, []byte(change.bad), 0o600))
				out, err := exec.CommandContext(t.Context(), path, append(change.flags, "-config", bad, "-check")...).CombinedOutput()
				if err == nil || !strings.Contains(string(out), change.want) {
					t.Errorf("%s: %v, want an error that says %q:\n%s", name, err, change.want, out)
				}
			}
		})
	}
}
