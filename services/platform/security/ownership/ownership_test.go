package ownership_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"durward.internal/services/platform/security/ownership"
)

// stranger is a Unix user that nothing on the host belongs to.
func stranger() *ownership.Foreign {
	return &ownership.Foreign{UID: 61234, GIDs: []uint32{61234, 61235}}
}

func file(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rules")
	must(t, os.Mkdir(dir, 0o755))
	path := filepath.Join(dir, "security.yaml")
	must(t, os.WriteFile(path, []byte("x"), 0o644))
	return path
}

func chown(t *testing.T, path string, uid, gid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	must(t, os.Lchown(path, uid, gid))
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	must(t, os.Chmod(path, mode))
}

func TestRefusesWhatTheForeignUserCouldHaveWritten(t *testing.T) {
	me, group := os.Geteuid(), os.Getegid()
	for name, c := range map[string]struct {
		prepare func(t *testing.T, path string)
		want    error
	}{
		"it owns the file":          {func(t *testing.T, p string) { chown(t, p, 61234, group); chmod(t, p, 0o400) }, ownership.ErrForeign},
		"its group may write":       {func(t *testing.T, p string) { chown(t, p, me, 61235); chmod(t, p, 0o664) }, ownership.ErrForeign},
		"everybody may write":       {func(t *testing.T, p string) { chmod(t, p, 0o646) }, ownership.ErrForeign},
		"it owns the folder":        {func(t *testing.T, p string) { chown(t, filepath.Dir(p), 61234, group) }, ownership.ErrAbove},
		"everybody may write there": {func(t *testing.T, p string) { chmod(t, filepath.Dir(p), 0o757) }, ownership.ErrAbove},
		"its group may write there": {func(t *testing.T, p string) { chown(t, filepath.Dir(p), me, 61234); chmod(t, filepath.Dir(p), 0o775) }, ownership.ErrAbove},
		"it owns the folder above":  {func(t *testing.T, p string) { chown(t, filepath.Dir(filepath.Dir(p)), 61234, group) }, ownership.ErrAbove},
		"its own sticky folder above": {func(t *testing.T, p string) {
			up := filepath.Dir(filepath.Dir(p))
			chown(t, up, 61234, group)
			chmod(t, up, fs.ModeSticky|0o755)
		}, ownership.ErrAbove},
		"its own folder in a sticky one": {func(t *testing.T, p string) {
			up := filepath.Dir(filepath.Dir(p))
			chmod(t, up, fs.ModeSticky|0o777)
			chown(t, filepath.Dir(p), 61234, group)
			chmod(t, filepath.Dir(p), 0o555)
		}, ownership.ErrAbove},
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t)
			c.prepare(t, path)
			if _, err := ownership.ReadFile(path, 100, stranger()); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if _, err := ownership.Names(filepath.Dir(path), 10, stranger()); err == nil && errors.Is(c.want, ownership.ErrAbove) {
				t.Error("the folder is listed all the same")
			}
			// Where nobody's rights are looked at, it is read.
			if _, err := ownership.ReadFile(path, 100, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestReadsWhatIsBeyondReach(t *testing.T) {
	group := os.Getegid()
	for name, prepare := range map[string]func(t *testing.T, path string){
		"plain":                           func(*testing.T, string) {},
		"another group may write":         func(t *testing.T, p string) { chmod(t, p, 0o664) },
		"in somebody's sticky folder":     func(t *testing.T, p string) { chmod(t, filepath.Dir(filepath.Dir(p)), fs.ModeSticky|0o777) },
		"it may read and not write":       func(t *testing.T, p string) { chown(t, p, os.Geteuid(), 61234); chmod(t, p, 0o640) },
		"somebody else's, not its folder": func(t *testing.T, p string) { chown(t, filepath.Dir(p), 61999, group) },
	} {
		t.Run(name, func(t *testing.T) {
			path := file(t)
			prepare(t, path)
			if data, err := ownership.ReadFile(path, 100, stranger()); err != nil || string(data) != "x" {
				t.Errorf("%q, %v", data, err)
			}
		})
	}
}

func TestRefusesWhatIsNoFile(t *testing.T) {
	path := file(t)
	dir := filepath.Dir(path)
	link, fifo, loop := filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "loop")
	for _, err := range []error{os.Symlink(path, link), syscall.Mkfifo(fifo, 0o600), os.Symlink(loop, loop), os.Symlink(dir, dir+"-link")} {
		must(t, err)
	}
	for at, want := range map[string]error{link: ownership.ErrLink, loop: ownership.ErrLink, fifo: ownership.ErrKind, dir: ownership.ErrKind,
		filepath.Join(dir, "none"): fs.ErrNotExist, "/dev/zero": ownership.ErrKind} {
		if _, err := ownership.ReadFile(at, 100, nil); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", filepath.Base(at), err, want)
		}
	}
	if _, err := ownership.Names(dir+"-link", 10, nil); !errors.Is(err, ownership.ErrLink) {
		t.Errorf("a link to a folder: %v", err)
	}
	if _, err := ownership.Names(path, 10, nil); !errors.Is(err, ownership.ErrFolder) {
		t.Errorf("a file: %v", err)
	}
	if _, err := ownership.Names(dir, 2, nil); !errors.Is(err, ownership.ErrLarge) {
		t.Errorf("many names: %v", err)
	}
	// 100 MB, of which nothing is read.
	must(t, os.Truncate(path, 100<<20))
	if _, err := ownership.ReadFile(path, 1<<20, nil); !errors.Is(err, ownership.ErrLarge) {
		t.Errorf("100 MB: %v", err)
	}
}

// A link in a folder that the user may write can be made to point elsewhere, though where it points is beyond reach.
func TestJudgesTheFoldersOfLinksOnTheWay(t *testing.T) {
	path := file(t)
	open := filepath.Join(t.TempDir(), "open")
	must(t, os.Mkdir(open, 0o755))
	link := filepath.Join(open, "rules")
	must(t, os.Symlink(filepath.Dir(path), link))
	through := filepath.Join(link, "security.yaml")
	if _, err := ownership.ReadFile(through, 100, stranger()); err != nil {
		t.Errorf("a link that only a human can change: %v", err)
	}
	second := filepath.Join(filepath.Dir(open), "second")
	must(t, os.Symlink(link, second))
	chmod(t, open, 0o777)
	for _, p := range []string{through, filepath.Join(second, "security.yaml")} {
		if _, err := ownership.ReadFile(p, 100, stranger()); !errors.Is(err, ownership.ErrAbove) {
			t.Errorf("%v", err)
		}
	}
}

// An access list may name the user; the mode's group bits are then the most that it grants.
func TestAccessLists(t *testing.T) {
	path := file(t)
	if _, err := exec.LookPath("setfacl"); err == nil {
		if out, err := exec.Command("setfacl", "-m", "u:61234:rw", path).CombinedOutput(); err != nil {
			t.Skipf("no access lists here: %s", out)
		}
	} else {
		// version 2: user:rw, the user 61234:rw, group:r, mask:rw, other:r
		list := []byte{2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 0x32, 0xef, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255, 16, 0, 6, 0, 255, 255, 255, 255,
			32, 0, 4, 0, 255, 255, 255, 255}
		if err := syscall.Setxattr(path, "system.posix_acl_access", list, 0); err != nil {
			t.Skipf("no access lists here: %v", err)
		}
	}
	if _, err := ownership.ReadFile(path, 100, stranger()); !errors.Is(err, ownership.ErrForeign) {
		t.Errorf("got %v", err)
	}
}

func TestReasonsHoldNoPath(t *testing.T) {
	for _, err := range []error{ownership.ErrLink, ownership.ErrKind, ownership.ErrFolder, ownership.ErrLarge, ownership.ErrForeign, ownership.ErrAbove, ownership.ErrUnsteady} {
		if strings.Contains(err.Error(), "/") {
			t.Errorf("%v", err)
		}
	}
}

func TestLookup(t *testing.T) {
	f, err := ownership.Lookup("root")
	if err != nil || f.UID != 0 || len(f.GIDs) == 0 || f.GIDs[0] != 0 {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err = ownership.Lookup("0"); err != nil || f.UID != 0 {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := ownership.Lookup("nobody-of-that-name"); err == nil {
		t.Error("somebody is found who is not there")
	}
}
