package catalogfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/catalog"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

// TestReadListsAsTheExecutorDoes: .yaml files in the order of their names, no hidden ones; a file as it is.
func TestReadListsAsTheExecutorDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"b.yaml", "a.yaml", ".c.yaml", "d.yml", "e.yaml~"} {
		write(t, filepath.Join(dir, name), name)
	}
	files, err := Read(dir)
	if err != nil || len(files) != 2 || string(files[0].Data) != "a.yaml" || string(files[1].Data) != "b.yaml" {
		t.Errorf("a folder: %v, %v", files, err)
	}
	one := filepath.Join(dir, "d.yml")
	if files, err := Read(one); err != nil || len(files) != 1 || files[0].Name != one {
		t.Errorf("a file: %v, %v", files, err)
	}
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

func TestTarget(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), "version: 1\nmodes: [{id: m}]\n")
	write(t, filepath.Join(dir, "b.yaml"), "services: [{id: s}]\n")
	files, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path, to, section string
		at                int
		file              string
		refused           bool
	}{
		"where services stand":  {dir, "", "services", 1, "b.yaml", false},
		"where modes stand":     {dir, "", "modes", 0, "a.yaml", false},
		"where nothing is yet":  {dir, "", "gpus", 0, "a.yaml", false},
		"a file by its name":    {dir, "a.yaml", "services", 0, "a.yaml", false},
		"a new one, in its row": {dir, "aa.yaml", "services", 1, "aa.yaml", false},
		"out of the folder":     {dir, "../x.yaml", "services", 0, "", true},
		"no .yaml":              {dir, "x.txt", "services", 0, "", true},
		"a hidden one":          {dir, ".x.yaml", "services", 0, "", true},
		"a name for a file":     {filepath.Join(dir, "a.yaml"), "b.yaml", "services", 0, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, all, err := Target(c.path, append([]catalog.File(nil), files...), c.to, c.section)
			switch {
			case c.refused:
				if _, named := errors.AsType[NameError](err); !named {
					t.Errorf("%d, %v", at, err)
				}
			case err != nil || at != c.at || filepath.Base(all[at].Name) != c.file:
				t.Errorf("%d of %v, %v", at, all, err)
			}
		})
	}
}

// TestReplaceWritesWhatWasRead: a file that is not any more what was read stays as it is, and so does one that has appeared.
func TestReplaceWritesWhatWasRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "link.yaml")
	write(t, path, "one")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	holds := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("the file holds %q, %v, want %q", b, err, want)
		}
	}
	if err := Replace(path, []byte("another"), []byte("two")); !errors.Is(err, ErrChanged) {
		t.Errorf("changed meanwhile: %v", err)
	}
	if err := Replace(path, nil, []byte("two")); !errors.Is(err, ErrChanged) {
		t.Errorf("appeared meanwhile: %v", err)
	}
	holds("one")
	if err := Replace(link, []byte("one"), []byte("two")); err != nil {
		t.Errorf("through a link: %v", err)
	}
	holds("two")
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is one no more: %v, %v", info, err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
	fresh := filepath.Join(dir, "new.yaml")
	if err := Replace(fresh, nil, []byte("new")); err != nil {
		t.Errorf("a new file: %v", err)
	}
	if err := Replace(filepath.Join(dir, "gone.yaml"), []byte("one"), []byte("two")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is gone: %v", err)
	}
}

// TestAFileStaysItsOwners: written by root it does; who may give no file away writes none of another's.
func TestAFileStaysItsOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		return // only root makes a file of another's
	}
	const me, another = 61001, 61002
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, "one")
	for name, owner := range map[string]int{filepath.Dir(dir): me, dir: me, path: another} {
		if err := os.Chown(name, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	holds := func(want string) {
		t.Helper()
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if st := info.Sys().(*syscall.Stat_t); err != nil || string(b) != want || st.Uid != another || st.Gid != another {
			t.Errorf("%q of %d and %d, %v; want %q of %d", b, st.Uid, st.Gid, err, want, another)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
			t.Errorf("%d files, %v", len(left), err)
		}
	}
	if err := Replace(path, []byte("one"), []byte("two")); err != nil {
		t.Errorf("by root: %v", err)
	}
	holds("two")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	// Of this thread alone, which gives up root's rights over files with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Setfsuid(me) // what it returns says nothing of a failure: holds does
	err := Replace(path, []byte("two"), []byte("three"))
	_ = unix.Setfsuid(0) // as above
	if !errors.Is(err, ErrOwner) {
		t.Errorf("by another user: %v", err)
	}
	holds("two")
}
