package security

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// nobody is a user without rights of its own.
const nobody = 65534

// unprivileged runs f as a process without root's rights over files would; f must start no goroutine that reads.
func unprivileged(t *testing.T, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with what it lost
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, nobody, 0, 0); errno != 0 {
			t.Error(errno)
			return
		}
		f()
	}()
	<-done
}

// folders writes files that everybody may read.
func folders(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	for name, text := range files {
		path := filepath.Join(dir, name)
		must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	return dir
}

// loaded is what Open returns, and watches nothing.
func loaded(dir string) (*Live, error) {
	l := newLive(Options{Dir: dir})
	return l, l.watch.Reload()
}

const noSwitches = "@id(\"no-switches\")\nforbid (principal, action == Action::\"call:switch_mode\", resource);\n"

// TestAFolderThatCannotBeLookedInto: a folder whose rights are gone lifts no rule that lies in it, is told of, and is no
// configuration to start with.
func TestAFolderThatCannotBeLookedInto(t *testing.T) {
	files := map[string]string{"policy/no.cedar": noSwitches, "users/alice/security.yaml": "tier_ceiling: READ\n", "users/alice/policy/own.cedar": noSwitches}
	for _, c := range []struct {
		folder string
		mode   os.FileMode
	}{
		{"", 0o644}, {"", 0o311}, {"", 0}, {"policy", 0o644}, {"policy", 0}, {"users", 0o644}, {"users", 0}, {"users/alice", 0o644}, {"users/alice", 0},
		{"users/alice/policy", 0o644}, {"users/alice/policy", 0},
	} {
		t.Run(fmt.Sprintf("%s %04o", c.folder, c.mode), func(t *testing.T) {
			dir := folders(t, files)
			path := filepath.Join(dir, c.folder)
			t.Cleanup(func() {
				if err := os.Chmod(path, 0o755); err != nil {
					t.Error(err)
				}
			})
			l, err := loaded(dir)
			must(t, err)
			before := l.Current().Policies.Digest()
			must(t, os.Chmod(path, c.mode))
			unprivileged(t, func() {
				for range 2 { // and again: a second look forgets nothing
					l.Reload()
					now := l.Current()
					if now.Policies.Digest() != before {
						t.Errorf("%d rules are left", len(now.Policies.Rules()))
					}
					if now.Values("c", "alice").TierCeiling != optionsv1.Tier_TIER_READ {
						t.Error("what bound alice does not any more")
					}
					if l.Err() == nil {
						t.Error("nobody is told")
					}
				}
				if _, err := loaded(dir); err == nil {
					t.Error("it is a configuration to start with")
				}
			})
		})
	}
}

// TestTooManyUsers: those that there is no room for keep what binds them, whatever they are called.
func TestTooManyUsers(t *testing.T) {
	dir := folders(t, map[string]string{"users/zed/security.yaml": "tier_ceiling: READ\n", "users/zed/policy/own.cedar": noSwitches})
	l, err := loaded(dir)
	must(t, err)
	for i := range maxUsers {
		must(t, os.Mkdir(filepath.Join(dir, FolderUsers, fmt.Sprintf("a%02d", i)), 0o755))
	}
	for range 2 {
		l.Reload()
		if got := l.Current().Values("c", "zed").TierCeiling; got != optionsv1.Tier_TIER_READ {
			t.Errorf("zed's ceiling is %s", got)
		}
		if err := l.Err(); err == nil || !strings.Contains(err.Error(), "users/zed/") {
			t.Errorf("told: %v", err)
		}
	}
	if _, err := loaded(dir); err == nil {
		t.Error("it is a configuration to start with")
	}
}

// TestTooManyFiles: what else is watched is no part of it.
func TestTooManyFiles(t *testing.T) {
	dir := folders(t, map[string]string{"policy/no.cedar": noSwitches, "clients.yaml": "clients: []\n"})
	also := filepath.Join(dir, "clients.yaml")
	l := newLive(Options{Dir: filepath.Join(dir, "rules"), Also: map[string]string{"clients.yaml": also}})
	must(t, os.Mkdir(l.opts.Dir, 0o755))
	must(t, l.watch.Reload())
	for folder := range 3 {
		user := filepath.Join(l.opts.Dir, FolderUsers, fmt.Sprint("u", folder), FolderPolicy)
		must(t, os.MkdirAll(user, 0o755))
		for i := range 100 {
			must(t, os.WriteFile(filepath.Join(user, fmt.Sprintf("p%d.cedar", i)), nil, 0o644))
		}
	}
	var told []Change
	l.opts.OnChange = func(c Change) { told = append(told, c) }
	l.Reload()
	if len(told) != 1 || told[0].File != "/" || told[0].Problem == "" {
		t.Errorf("told: %v", told)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
