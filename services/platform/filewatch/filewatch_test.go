package filewatch

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Every way in which a file becomes another one shows in its stamp, those that leave size and modification time as they were
// among them.
func TestStampTellsVersionsApart(t *testing.T) {
	t.Parallel()
	old := time.Now().Add(-time.Hour)
	for name, change := range map[string]func(path string) error{
		"written in place": func(path string) error { return os.WriteFile(path, []byte("longer"), 0o600) },
		"written in place, size and time put back": func(path string) error {
			return errors.Join(os.WriteFile(path, []byte("two"), 0o600), os.Chtimes(path, old, old))
		},
		"another file put in its place, size and time the same": func(path string) error {
			next := path + ".next"
			return errors.Join(os.WriteFile(next, []byte("two"), 0o600), os.Chtimes(next, old, old), os.Rename(next, path))
		},
		"its mode":   func(path string) error { return os.Chmod(path, 0o644) },
		"its owner":  func(path string) error { return os.Chown(path, os.Getuid(), os.Getgid()) },
		"taken away": os.Remove,
		"a link in its place": func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		},
		"a folder in its place": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			must(t, errors.Join(os.WriteFile(path, []byte("one"), 0o600), os.Chtimes(path, old, old)))
			before := StampOf(path)
			if before == (Stamp{}) || StampOf(path) != before {
				t.Fatalf("the same file: %+v, then %+v", before, StampOf(path))
			}
			afterTick(t)
			must(t, change(path))
			if StampOf(path) == before {
				t.Errorf("it looks as before: %+v", before)
			}
		})
	}
}

// A link shows what it leads to, and that it is another link.
func TestStampOfALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, two, link := filepath.Join(dir, "one"), filepath.Join(dir, "two"), filepath.Join(dir, "link")
	for _, path := range []string{one, two} {
		must(t, os.WriteFile(path, []byte("same"), 0o600))
	}
	must(t, os.Symlink(one, link))
	first := StampOf(link)
	if first.Link == 0 || first.Inode != StampOf(one).Inode {
		t.Errorf("%+v", first)
	}
	must(t, errors.Join(os.Symlink(two, link+".next"), os.Rename(link+".next", link)))
	if second := StampOf(link); second == first || second.Inode != StampOf(two).Inode {
		t.Errorf("%+v, then %+v", first, second)
	}
	must(t, os.Remove(two))
	if gone := StampOf(link); gone.Inode != 0 || gone.Link == 0 {
		t.Errorf("a link to nothing: %+v", gone)
	}
}

// Whoever may write a folder above may put another file in a file's place; what else happens in such a folder is no change.
func TestAbove(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b")
	must(t, os.MkdirAll(dir, 0o700))
	path := filepath.Join(dir, "file")
	look := func() Stamps { s := Stamps{}; s.Above(path); return s }
	before := look()
	if _, ok := before["above /"]; !ok || before["above "+dir] == (Stamp{}) {
		t.Fatalf("%+v", before)
	}
	afterTick(t)
	must(t, os.WriteFile(filepath.Join(dir, "another"), nil, 0o600))
	if after := look(); after["above "+dir] != before["above "+dir] {
		t.Errorf("another file: %+v", after)
	}
	must(t, os.Chmod(filepath.Dir(dir), 0o777))
	if name := "above " + filepath.Dir(dir); look()[name] == before[name] {
		t.Error("a folder that anybody may write looks as before")
	}
}

// fake is what a Watcher of these tests looks at and loads. Each version is known by its size.
type fake struct {
	mu     sync.Mutex
	stamp  Stamp
	loads  []int64
	broken error
}

func (f *fake) look() Stamps {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Stamps{"file": f.stamp}
}

// breaks sets what is wrong with the file.
func (f *fake) breaks(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broken = err
}

func (f *fake) load() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loads = append(f.loads, f.stamp.Size)
	return f.broken
}

// loaded is how often it was loaded by now.
func (f *fake) loaded() int {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.loads)
}

// write makes a version now, a change that the kernel's clock of files shows.
func (f *fake) write(version int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stamp = Stamp{Size: version, Changed: time.Now().UnixNano()}
}

// watch runs a test on a clock of its own, over a file that was whole for an hour.
func watch(t *testing.T, test func(t *testing.T, f *fake, w *Watcher)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{stamp: Stamp{Size: 1, Changed: time.Now().Add(-time.Hour).UnixNano()}}
		w, err := Open(f.look, f.load)
		must(t, err)
		defer w.Close()
		time.Sleep(Interval / 2) // between two looks
		test(t, f, w)
	})
}

func (f *fake) want(t *testing.T, what string, loads ...int64) {
	t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.loads) != len(loads) {
		t.Fatalf("%s: loaded %v, want %v", what, f.loads, loads)
	}
	for i := range loads {
		if f.loads[i] != loads[i] {
			t.Fatalf("%s: loaded %v, want %v", what, f.loads, loads)
		}
	}
}

func TestAChangeIsLoadedWithinASecond(t *testing.T) {
	watch(t, func(t *testing.T, f *fake, w *Watcher) {
		time.Sleep(50 * time.Second)
		f.want(t, "nothing changed", 1)
		f.write(2)
		time.Sleep(time.Second)
		f.want(t, "changed", 1, 2)
	})
}

// A file that is being written is not read: it changes from look to look.
func TestAFileIsReadWhenItIsWhole(t *testing.T) {
	watch(t, func(t *testing.T, f *fake, w *Watcher) {
		for version := int64(2); version < 20; version++ {
			f.write(version)
			time.Sleep(Interval)
		}
		f.want(t, "while it is written", 1)
		time.Sleep(time.Second)
		f.want(t, "whole", 1, 19)
	})
}

// Two changes within the grain of the file system's clock look alike. The second is seen all the same.
func TestAChangeWithinTheClocksGrain(t *testing.T) {
	watch(t, func(t *testing.T, f *fake, w *Watcher) {
		f.write(2)
		time.Sleep(time.Second)
		f.want(t, "the first change", 1, 2)
		// The file changes without a trace in its stamp; what is loaded next is the second change.
		time.Sleep(2 * grain)
		f.want(t, "read once more when another change would show", 1, 2, 2)
		time.Sleep(50 * time.Second)
		f.want(t, "and then no more", 1, 2, 2)
	})
}

// A file whose stamp tells nothing, with another content under the same times, is taken up within about a minute.
func TestAChangeThatLooksTheSame(t *testing.T) {
	watch(t, func(t *testing.T, f *fake, w *Watcher) {
		time.Sleep(rereadEvery + Interval)
		f.want(t, "after a minute", 1, 1)
		time.Sleep(rereadEvery + Interval)
		f.want(t, "and another", 1, 1, 1)
	})
}

// What could not be loaded is tried until it is good, also where its cause is outside the file.
func TestAFailureIsTriedAgain(t *testing.T) {
	watch(t, func(t *testing.T, f *fake, w *Watcher) {
		f.breaks(errors.New("broken"))
		f.write(2)
		time.Sleep(time.Second)
		if err := w.Err(); err == nil || err.Error() != "broken" {
			t.Fatalf("Err %v", err)
		}
		f.breaks(nil)
		time.Sleep(Interval)
		synctest.Wait()
		if err := w.Err(); err != nil {
			t.Fatalf("Err %v", err)
		}
		time.Sleep(2 * grain)
		n := f.loaded()
		time.Sleep(50 * time.Second)
		if more := f.loaded() - n; more != 0 {
			t.Errorf("good, and loaded %d times more", more)
		}
	})
}

func TestReload(t *testing.T) {
	watch(t, func(t *testing.T, f *fake, w *Watcher) {
		f.write(2)
		f.breaks(errors.New("broken"))
		if err := w.Reload(); err == nil || w.Err() == nil {
			t.Errorf("Reload %v, Err %v", err, w.Err())
		}
		f.breaks(nil)
		if err := w.Reload(); err != nil || w.Err() != nil {
			t.Errorf("Reload %v, Err %v", err, w.Err())
		}
		f.want(t, "at once", 1, 2, 2)
	})
}

func TestOpenRefusesWhatIsBroken(t *testing.T) {
	t.Parallel()
	f := &fake{broken: errors.New("broken")}
	if w, err := Open(f.look, f.load); err == nil || w != nil {
		t.Errorf("%v, %v", w, err)
	}
}

func TestCloseEndsTheWatch(t *testing.T) {
	watch(t, func(t *testing.T, f *fake, w *Watcher) {
		w.Close()
		f.write(2)
		time.Sleep(time.Minute)
		f.want(t, "closed", 1)
	})
}

// afterTick waits until the kernel's clock of file times has gone on.
func afterTick(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tick")
	var first int64
	for {
		must(t, os.WriteFile(path, nil, 0o600))
		switch now := StampOf(path).Changed; {
		case first == 0:
			first = now
		case now != first:
			return
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
