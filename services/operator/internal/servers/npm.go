package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/downstream"
)

// npmPatience bounds one run of npm.
const npmPatience = 5 * time.Minute

// knownScopes are publishers whose packages need no further yes: the protocol's own.
var knownScopes = []string{"@modelcontextprotocol/"}

// Known reports whether a package is of a publisher that is known: without a scope anybody may have taken the name.
func Known(name string) bool {
	return slices.ContainsFunc(knownScopes, func(scope string) bool { return strings.HasPrefix(name, scope) })
}

// settings are npm's in a folder of ours: no package's script is run, and the lock names contents, not hosts.
const settings = "ignore-scripts=true\nomit-lockfile-registry-resolved=true\naudit=false\nfund=false\nupdate-notifier=false\nengine-strict=false\n"

// NPM runs npm in a folder. Tests have their own.
type NPM func(ctx context.Context, folder string, args ...string) ([]byte, error)

// RunNPM runs the one of the PATH, with the operator's own settings of registry and proxy.
func RunNPM(ctx context.Context, folder string, args ...string) ([]byte, error) {
	program, err := exec.LookPath("npm")
	if err != nil {
		return nil, errors.New("npm is not on this host: install Node.js with npm")
	}
	ctx, cancel := context.WithTimeout(ctx, npmPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // with arguments of ours
	cmd.Dir = folder
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("npm %s: %s", args[0], explained(said.String(), err))
	}
	return out, nil
}

// explained is what npm says of its failure, in a line.
func explained(said string, err error) string {
	for line := range strings.Lines(said) {
		text := strings.TrimSpace(line)
		for _, prefix := range []string{"npm ERR!", "npm error"} {
			text = strings.TrimSpace(strings.TrimPrefix(text, prefix))
		}
		if text != "" && !strings.HasPrefix(text, "npm WARN") && !strings.HasPrefix(text, "code ") {
			return clean.Line(text, 300)
		}
	}
	return err.Error()
}

// Install installs a package in the folder of packages, from a lock with integrity and without running anything of it, and returns its
// folder and the digest of its tree. What was installed before is looked at again, and not fetched.
func Install(ctx context.Context, npm NPM, packages string, p downstream.Package) (folder string, digest [32]byte, err error) {
	folder = filepath.Join(packages, p.Folder())
	if _, err := os.Stat(folder); err == nil {
		digest, err = downstream.TreeDigest(folder)
		return folder, digest, err
	}
	if err := errors.Join(os.MkdirAll(packages, 0o755), os.Chmod(packages, 0o755)); err != nil { //nolint:gosec // other users' processes read it
		return "", digest, err
	}
	fresh, err := os.MkdirTemp(packages, ".new-")
	if err != nil {
		return "", digest, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(fresh)) }()
	manifest, err := json.Marshal(map[string]any{"private": true, "dependencies": map[string]string{p.Name: p.Version}})
	if err != nil {
		return "", digest, err
	}
	for name, text := range map[string][]byte{"package.json": manifest, ".npmrc": []byte(settings)} {
		if err := os.WriteFile(filepath.Join(fresh, name), text, 0o644); err != nil { //nolint:gosec // no secret
			return "", digest, err
		}
	}
	if _, err := npm(ctx, fresh, "install", "--package-lock-only", "--ignore-scripts", "--omit=dev"); err != nil {
		return "", digest, err
	}
	lock, err := os.ReadFile(filepath.Join(fresh, "package-lock.json"))
	if err != nil {
		return "", digest, errors.New("npm wrote no lock")
	}
	if err := checkLock(lock, p); err != nil {
		return "", digest, err
	}
	if _, err := npm(ctx, fresh, "ci", "--ignore-scripts", "--omit=dev"); err != nil {
		return "", digest, err
	}
	// npm's note of what it did there names the host and the time.
	if err := os.Remove(filepath.Join(fresh, "node_modules", ".package-lock.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", digest, err
	}
	if digest, err = downstream.TreeDigest(fresh); err != nil {
		return "", digest, fmt.Errorf("the package: %w", err)
	}
	if err := readable(fresh); err != nil {
		return "", digest, err
	}
	return folder, digest, os.Rename(fresh, folder)
}

// readable lets the users of other processes read the tree, and run what its owner may run, whatever the umask took.
func readable(folder string) error {
	return filepath.WalkDir(folder, func(at string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if d.IsDir() || info.Mode().Perm()&0o111 != 0 {
			mode = 0o755
		}
		return os.Chmod(at, mode) //nolint:gosec // no secret
	})
}

// checkLock refuses a lock that does not hold, for each package, the digest of its contents.
func checkLock(raw []byte, p downstream.Package) error {
	var lock struct {
		Version  int `json:"lockfileVersion"`
		Packages map[string]struct {
			Version   string `json:"version"`
			Integrity string `json:"integrity"`
			Link      bool   `json:"link"`
			Bundled   bool   `json:"inBundle"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(raw, &lock); err != nil || lock.Version < 2 {
		return errors.New("npm's lock cannot be read: npm 7 or newer is needed")
	}
	if lock.Packages["node_modules/"+p.Name].Version != p.Version {
		return fmt.Errorf("npm has another version than %s", p.Version)
	}
	for name, entry := range lock.Packages {
		if name != "" && !entry.Bundled && (entry.Link || !strings.HasPrefix(entry.Integrity, "sha512-")) {
			return fmt.Errorf("%s is locked by no digest of its contents, and is not installed", clean.Line(strings.TrimPrefix(name, "node_modules/"), 200))
		}
	}
	return nil
}
