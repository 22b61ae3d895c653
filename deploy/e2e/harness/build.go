// Package harness builds Durward's programs, runs them as the separate processes that they are, and gives a test the means
// of everybody around them: the operator's command line, MCP clients over HTTP and stdio, certificates of any identity, and
// signals. It links none of the programs' code but the contract and the platform's public formats.
//
// It runs in tests alone and trusts the test. Everything lies in one temporary folder per Host, listens on ports that no
// other Host of this machine has, and ends with the test, started services included.
package harness

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Build says how the programs are compiled. The zero value is how they are shipped.
type Build struct {
	// Weak adds the tag under which the drill's negative controls are compiled.
	Weak bool
	// Conformance adds the tag under which the gateway has what the official conformance suite looks for.
	Conformance bool
	// Race adds the race detector, which needs a C compiler.
	Race bool
	// NVML adds what reads GPUs through the driver's library, which needs a C compiler, and builds a stand-in for that library:
	// Library.
	NVML bool
}

func (b Build) name() string {
	name := "plain"
	if tags := b.tags(); tags != "" {
		name = tags
	}
	if b.Race {
		name += "-race"
	}
	return name
}

// tags returns the build tags, separated by commas.
func (b Build) tags() string {
	var tags []string
	if b.Weak {
		tags = append(tags, "weak")
	}
	if b.Conformance {
		tags = append(tags, "conformance")
	}
	if b.NVML {
		tags = append(tags, "nvml")
	}
	return strings.Join(tags, ",")
}

// programs are the packages of every program that is shipped, relative to the root of the repository.
var programs = []string{
	"./gateway/cmd/gateway",
	"./services/vault/cmd/vault",
	"./services/executor/cmd/executor",
	"./services/executor/cmd/durward-demo",
	"./services/audit/cmd/audit",
	"./services/operator/cmd/durward",
	"./services/inspector/cmd/durward-inspect",
}

// helpers are the packages of programs for tests alone: a stand-in for a model server, and one for nvidia-smi.
var helpers = []string{
	"./deploy/e2e/engine/durward-engine",
	"./deploy/e2e/fakegpu/nvidia-smi",
}

// Engine is the stand-in for a model server, among the programs.
const Engine = "durward-engine"

// Library is the stand-in for the GPU driver's library, beside the programs of a Build with NVML.
const Library = "libnvidia-ml.so.1"

// Programs returns the file names of every program that is shipped.
func Programs() []string {
	var names []string
	for _, p := range programs {
		names = append(names, filepath.Base(p))
	}
	return names
}

// Root returns the root of the repository: the nearest folder above with a go.work.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.work above the test's folder")
		}
		dir = parent
	}
}

// built remembers, by name, what this test process has compiled already.
type built struct {
	mu   sync.Mutex
	dirs map[string]string
}

var binaries built

// Binaries compiles every program and returns the folder that holds them. It does so once per test process and kind of
// build; test processes that run at the same time take turns.
func Binaries(t testing.TB, b Build) string {
	t.Helper()
	binaries.mu.Lock()
	defer binaries.mu.Unlock()
	if dir, ok := binaries.dirs[b.name()]; ok {
		return dir
	}
	root := Root(t)
	dir := filepath.Join(root, ".cache", "e2e", b.name())
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	release := lock(t, dir+".lock")
	defer release()
	args := []string{"build", "-buildvcs=false", "-o", dir + string(filepath.Separator)}
	cgo := "CGO_ENABLED=0"
	if tags := b.tags(); tags != "" {
		args = append(args, "-tags", tags)
	}
	if b.NVML {
		cgo = "CGO_ENABLED=1"
		if out, err := exec.Command(filepath.Join(root, "deploy", "e2e", "fakegpu", "build.sh"), dir).CombinedOutput(); err != nil {
			t.Fatalf("build the stand-in for the GPU driver: %v\n%s", err, bytes.TrimSpace(out))
		}
	}
	if b.Race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	cmd := exec.Command("go", append(append(args, programs...), helpers...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"), "GOFLAGS=", cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, bytes.TrimSpace(out))
	}
	if binaries.dirs == nil {
		binaries.dirs = map[string]string{}
	}
	binaries.dirs[b.name()] = dir
	return dir
}

// lock takes an exclusive lock on a file, waiting for it.
func lock(t testing.TB, path string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}
