package e2e

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
)

// weakened are the programs that have guards to remove in a drill build.
var weakened = []string{"vault", "executor", "gateway"}

// TestNoWeakSetting shows that no program as it is shipped has a setting, a symbol or a build tag of the drill's negative
// controls, and that a drill build has: the test would notice.
func TestNoWeakSetting(t *testing.T) {
	t.Parallel()
	for _, name := range harness.Programs() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(harness.Binaries(t, harness.Build{}), name)
			if flag, tag, symbol := weakness(t, path); flag || tag || symbol != "" {
				t.Errorf("flag %t, tag %t, symbol %q", flag, tag, symbol)
			}
		})
	}
	for _, name := range weakened {
		t.Run(name+" of the drill", func(t *testing.T) {
			path := filepath.Join(harness.Binaries(t, harness.Build{Weak: true}), name)
			if flag, tag, symbol := weakness(t, path); !flag || !tag || symbol == "" {
				t.Errorf("flag %t, tag %t, symbol %q", flag, tag, symbol)
			}
		})
	}
}

// weakness looks for the three signs of a drill build: the flag -weaken, the tag weak, and a symbol.
func weakness(t *testing.T, path string) (flag, tag bool, symbol string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), path, "-weaken", "nothing").CombinedOutput()
	if err == nil {
		t.Fatalf("-weaken nothing is accepted: %s", out)
	}
	// The standard flag package, the operator's command line, and the inspector, which has no flags, say so of one that is not there.
	flag = !slices.ContainsFunc([]string{"flag provided but not defined: -weaken", "unknown shorthand flag", "usage: durward-inspect"},
		func(sentence string) bool { return bytes.Contains(out, []byte(sentence)) })

	tag = hasTag(t, path, "weak")
	symbol = findSymbol(t, path, func(name string) bool {
		return strings.HasPrefix(name, "durward.internal/") && strings.Contains(strings.ToLower(name), "weaken")
	})
	return flag, tag, symbol
}

// TestNoDiagnostics shows that no program as it is shipped has a build tag, a symbol or a word of what the conformance suite
// looks for, and that the gateway which is built for it has: the test would notice.
func TestNoDiagnostics(t *testing.T) {
	t.Parallel()
	signs := func(t *testing.T, path string) (tag, word bool) {
		program, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return hasTag(t, path, "conformance"), bytes.Contains(program, []byte("test_simple_text"))
	}
	check := func(t *testing.T, path string, want bool) {
		tag, word := signs(t, path)
		symbol := findSymbol(t, path, func(name string) bool {
			return strings.HasPrefix(name, "durward.internal/gateway/internal/diagnostic.")
		})
		if tag != want || word != want || (symbol != "") != want {
			t.Errorf("tag %t, tool %t, symbol %q, want %t", tag, word, symbol, want)
		}
	}
	for _, name := range harness.Programs() {
		t.Run(name, func(t *testing.T) {
			check(t, filepath.Join(harness.Binaries(t, harness.Build{}), name), false)
		})
	}
	t.Run("gateway of the suite", func(t *testing.T) {
		check(t, filepath.Join(harness.Binaries(t, harness.Build{Conformance: true}), harness.Gateway), true)
	})
	t.Run("scripts/build.sh, told to by GOFLAGS", func(t *testing.T) {
		// A folder that stays: what is up to date there is not linked again, only its time is set.
		dir, began := filepath.Join(harness.Root(t), ".cache", "e2e", "shipped"), time.Now().Add(-time.Second)
		build := exec.CommandContext(t.Context(), filepath.Join(harness.Root(t), "scripts", "build.sh"), dir)
		build.Env = append(os.Environ(), "GOFLAGS=-tags=conformance,weak")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, name := range harness.Programs() { // they are stripped of symbols
			path := filepath.Join(dir, name)
			if info, err := os.Stat(path); err != nil || info.ModTime().Before(began) {
				t.Errorf("%s was not built: %v", name, err)
				continue
			}
			if tag, word := signs(t, path); tag || word || hasTag(t, path, "weak") {
				t.Errorf("%s: tag conformance %t, tool %t, tag weak %t", name, tag, word, hasTag(t, path, "weak"))
			}
		}
	})
}

// hasTag reports whether a program was built with a tag.
func hasTag(t *testing.T, path, tag string) bool {
	t.Helper()
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-tags" && slices.Contains(strings.Split(s.Value, ","), tag)
	})
}

// findSymbol returns a symbol of a program whose name fits, or nothing.
func findSymbol(t *testing.T, path string, fits func(name string) bool) string {
	t.Helper()
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
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
			if err != nil {
				t.Fatal(err)
			}
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
				if err := os.WriteFile(bad, []byte(change.bad), 0o600); err != nil {
					t.Fatal(err)
				}
				out, err := exec.CommandContext(t.Context(), path, append(change.flags, "-config", bad, "-check")...).CombinedOutput()
				if err == nil || !strings.Contains(string(out), change.want) {
					t.Errorf("%s: %v, want an error that says %q:\n%s", name, err, change.want, out)
				}
			}
		})
	}
}
