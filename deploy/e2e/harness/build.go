// Package harness runs Durward's programs as the separate processes that they are, and gives a test the means
// of everybody around them: the operator's command line, MCP clients over HTTP and stdio, certificates of any identity, and
// signals. It links none of the programs' code but the contract and the platform's public formats.
//
// It runs in tests alone and trusts the test. Everything lies in one temporary folder per Host, listens on ports that no
// other Host of this machine has, and ends with the test, started services included.
package harness

import (
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"durward.internal/deploy/e2e/programs"
	"durward.internal/services/platform/platformtest/input"
)

// Build says how the programs are compiled. The zero value is how they are shipped.
type Build = programs.Build

// Engine is the stand-in for a model server, among the programs.
const Engine = "durward-engine"

// Library is the stand-in for the GPU driver's library, beside the programs of a Build with NVML.
const Library = programs.Library

// Programs returns the file names of every program that is shipped.
func Programs() []string { return programs.Shipped() }

// Root returns the root of the repository: the nearest folder above with a go.work.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		// Not os.Stat, which Go's test cache would take as an input, with the folder of this checkout.
		if syscall.Access(filepath.Join(dir, "go.work"), 0) == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.work above the test's folder")
		}
		dir = parent
	}
}

// ready holds the folders of the builds that this test process has made sure of, by name.
var ready struct {
	mu   sync.Mutex
	dirs map[string]string
}

// Binaries returns the folder that holds every program. The scripts have compiled them and say so in the environment, with a
// digest that must be theirs. Without that it compiles them itself, and the test's result is not cached.
func Binaries(t testing.TB, b Build) string {
	t.Helper()
	ready.mu.Lock()
	defer ready.mu.Unlock()
	if dir, ok := ready.dirs[b.Name()]; ok {
		return dir
	}
	root := Root(t)
	dir := b.Dir(root)
	if want := os.Getenv(b.Variable()); want == "" {
		input.Uncached(t)
		if _, err := programs.Compile(root, b); err != nil {
			t.Fatal(err)
		}
	} else if got, err := programs.Digest(dir); err != nil || got != want {
		t.Fatalf("the programs in %s have changed since the scripts compiled them: %v", dir, err)
	}
	if ready.dirs == nil {
		ready.dirs = map[string]string{}
	}
	ready.dirs[b.Name()] = dir
	return dir
}
