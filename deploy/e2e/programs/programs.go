// Package programs compiles Durward's programs for black-box tests and names each result by its digest.
//
// Go's test cache knows nothing of the programs that a test starts: it would answer "ok (cached)" for programs that have
// changed since. So the scripts compile first (deploy/e2e/cmd/programs) and hand each build's digest to the tests in the
// environment, which the cache takes as an input. It trusts the folders that it writes.
package programs

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"durward.internal/deploy/e2e/conformance/overlay"
	"durward.internal/deploy/e2e/weak"
)

// Build says how the programs are compiled. The zero value is how they are shipped, but for symbols, which tests look for.
type Build struct {
	// Weak puts the files of deploy/e2e/weak in the place of those that they are called after: negative controls, in which a guard
	// can be switched off.
	Weak bool
	// Conformance does so with deploy/e2e/conformance/overlay: a gateway that has what the official conformance suite looks for.
	Conformance bool
	// Race adds the race detector, which needs a C compiler.
	Race bool
	// NVML adds what reads GPUs through the driver's library, which needs a C compiler, and builds a stand-in for that library:
	// Library.
	NVML bool
}

// variable is the environment variable of a Build's digest, before its name in capitals.
const variable = "DURWARD_PROGRAMS_"

// Overlay is the environment variable that names a JSON file for `go build -overlay`, with which a test of the tests breaks a
// program. The programs then lie beside that file, away from those of other tests.
const Overlay = "DURWARD_PROGRAMS_OVERLAY"

// Library is the stand-in for the GPU driver's library, beside the programs of a Build with NVML.
const Library = "libnvidia-ml.so.1"

// shipped are the packages of every program that is shipped, relative to the root of the repository.
var shipped = []string{
	"./gateway/cmd/gateway",
	"./services/vault/cmd/vault",
	"./services/egress/cmd/egress",
	"./services/egress/cmd/durward-launcher",
	"./services/egress/cmd/durward-list",
	"./services/executor/cmd/executor",
	"./services/executor/cmd/durward-demo",
	"./services/audit/cmd/audit",
	"./services/audit/cmd/auditwitness",
	"./services/audit/cmd/auditrelay",
	"./services/operator/cmd/durward",
	"./services/operator/cmd/durward-notify",
	"./services/inspector/cmd/durward-inspect",
}

// helpers are the packages of programs for tests alone: stand-ins for a model server and for nvidia-smi, and the example of an internal
// program.
var helpers = []string{
	"./deploy/e2e/engine/durward-engine",
	"./deploy/e2e/fakegpu/nvidia-smi",
	"./services/platform/client/example",
}

// Shipped returns the file names of every program that is shipped.
func Shipped() []string {
	var names []string
	for _, p := range shipped {
		names = append(names, filepath.Base(p))
	}
	return names
}

// builds are the kinds that Parse knows.
var builds = []Build{
	{}, {Weak: true}, {Conformance: true}, {NVML: true}, {Weak: true, NVML: true}, {Race: true}, {Race: true, NVML: true},
}

// Parse returns the Build of a Name.
func Parse(name string) (Build, error) {
	var known []string
	for _, b := range builds {
		if b.Name() == name {
			return b, nil
		}
		known = append(known, b.Name())
	}
	return Build{}, fmt.Errorf("there is no build %q: %s", name, strings.Join(known, ", "))
}

// Name is the Build's name: what it has of weak, conformance, nvml and race; "plain" if it has none.
func (b Build) Name() string {
	var parts []string
	for _, part := range []struct {
		set  bool
		name string
	}{{b.Weak, "weak"}, {b.Conformance, "conformance"}, {b.NVML, "nvml"}, {b.Race, "race"}} {
		if part.set {
			parts = append(parts, part.name)
		}
	}
	if len(parts) == 0 {
		return "plain"
	}
	return strings.Join(parts, "-")
}

// Variable is the environment variable in which tests are told the Build's Digest.
func (b Build) Variable() string {
	return variable + strings.ToUpper(strings.ReplaceAll(b.Name(), "-", "_"))
}

// WriteOverlay writes what `go build -overlay` takes for the Build: the files that stand in the place of shipped ones or beside
// them, and those of Overlay.
func (b Build) WriteOverlay(root, path string) error {
	replace := map[string]string{}
	if own := os.Getenv(Overlay); own != "" {
		var more struct{ Replace map[string]string }
		content, err := os.ReadFile(own)
		if err != nil {
			return err
		}
		if err := json.Unmarshal(content, &more); err != nil {
			return fmt.Errorf("%s: %w", own, err)
		}
		maps.Copy(replace, more.Replace)
	}
	for _, tree := range []struct {
		set   bool
		dir   string
		files fs.FS
	}{{b.Weak, "deploy/e2e/weak", weak.Files}, {b.Conformance, "deploy/e2e/conformance/overlay", overlay.Files}} {
		if !tree.set {
			continue
		}
		err := fs.WalkDir(tree.files, "testdata", func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				replace[filepath.Join(root, strings.TrimPrefix(path, "testdata"))] = filepath.Join(root, tree.dir, path)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// Dir is the folder of a Build's programs, below the root of the repository.
func (b Build) Dir(root string) string {
	if overlay := os.Getenv(Overlay); overlay != "" {
		return filepath.Join(filepath.Dir(overlay), b.Name())
	}
	return filepath.Join(root, ".cache", "e2e", b.Name())
}

// Compile compiles every program into the Build's folder and returns it. Calls for the same folder, in several processes
// too, take turns.
func Compile(root string, b Build) (dir string, err error) {
	dir = b.Dir(root)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	release, err := lock(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer release()
	// GOFLAGS of the environment could add tags; -trimpath makes one checkout's programs equal another's.
	args, flags, cgo := []string{"build", "-buildvcs=false", "-o", dir + string(filepath.Separator)}, "-trimpath", "CGO_ENABLED=0"
	tags := "grpcnotrace" // these too as scripts/build.sh
	if b.NVML {
		tags += ",nvml,netgo,osusergo"
		cgo = "CGO_ENABLED=1"
		library := exec.Command(filepath.Join(root, "deploy", "e2e", "fakegpu", "build.sh"), dir)
		if out, err := library.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the stand-in for the GPU driver: %w\n%s", err, out)
		}
	}
	if b.Race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	overlay := dir + ".overlay"
	if err := b.WriteOverlay(root, overlay); err != nil {
		return "", err
	}
	// Debuggers' tables would take half of the linker's time; the symbols stay.
	args = append(args, "-tags", tags, "-overlay", overlay, "-ldflags=-w")
	if !b.Race && !b.NVML {
		if err := seed(dir, (Build{}).Dir(root)); err != nil {
			return "", err
		}
	}
	build := exec.Command("go", slices.Concat(args, shipped, helpers)...)
	build.Dir = root
	build.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"), "GOFLAGS="+flags, cgo)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	return dir, nil
}

// seed copies the programs of a folder that dir lacks into dir. Go compares each with what it would link: those that an overlay
// leaves alone are not linked again.
func seed(dir, from string) error {
	for _, p := range slices.Concat(shipped, helpers) {
		name := filepath.Base(p)
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			continue
		}
		program, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), program, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Digest returns the SHA-256 of a folder's files, names included, in hexadecimal.
func Digest(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return "", errors.New(dir + " holds no programs")
	}
	sum := sha256.New()
	for _, entry := range entries { // in the order of their names
		file := sha256.New()
		f, err := os.Open(filepath.Join(dir, entry.Name()))
		if err != nil {
			return "", err
		}
		_, err = io.Copy(file, f)
		_ = f.Close()
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%x %s\n", file.Sum(nil), entry.Name())
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// lock takes an exclusive lock on a file, waiting for it.
func lock(path string) (release func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}
