package signedchange_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/operator/internal/signedchange"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/platformtest/testfile"
	"durward.internal/services/platform/statement"
)

func to(after string) func([]byte) ([]byte, error) {
	return func([]byte) ([]byte, error) { return []byte(after), nil }
}

func prepare(t *testing.T, path, after string) *signedchange.Plan {
	t.Helper()
	p, err := signedchange.Prepare(path, "security.yaml", to(after))
	must(t, err)
	return p
}

func TestRefusesToWriteOverWhatWasNotShown(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "security.yaml")
	for name, meanwhile := range map[string]func() error{
		"somebody else's text": func() error { return os.WriteFile(path, []byte("mine\n"), 0o600) },
		"taken away":           func() error { return os.Remove(path) },
		"a link in its place": func() error {
			return errors.Join(os.Remove(path), os.WriteFile(filepath.Join(dir, "other"), []byte("old\n"), 0o600), os.Symlink("other", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			testfile.Write(t, path, "old\n")
			p := prepare(t, path, "new\n")
			must(t, meanwhile())
			if err := p.Write(); !errors.Is(err, signedchange.ErrMoved) && !errors.Is(err, signedchange.ErrLink) {
				t.Errorf("got %v", err)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
			if err := os.Remove(filepath.Join(dir, "other")); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		})
	}
	// One that was not there is there now.
	path = filepath.Join(dir, "tools.yaml")
	p := prepare(t, path, "new\n")
	testfile.Write(t, path, "")
	if err := p.Write(); !errors.Is(err, signedchange.ErrMoved) {
		t.Errorf("got %v", err)
	}
}

func TestRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	link, fifo, big := filepath.Join(dir, "link"), filepath.Join(dir, "fifo"), filepath.Join(dir, "big")
	for _, err := range []error{os.Symlink("/etc/hostname", link), syscall.Mkfifo(fifo, 0o600), os.WriteFile(big, nil, 0o600), os.Truncate(big, 100<<20)} {
		must(t, err)
	}
	for path, want := range map[string]error{link: signedchange.ErrLink, fifo: signedchange.ErrKind, big: signedchange.ErrKind, dir: signedchange.ErrKind} {
		if _, err := signedchange.Prepare(path, "x", to("")); !errors.Is(err, want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "rules")
	must(t, os.Mkdir(dir, 0o755))
	defer syscall.Umask(syscall.Umask(0o077)) // root's on a hardened host
	path := filepath.Join(dir, "users", "alice", "security.yaml")
	p := prepare(t, path, "one\n")
	if p.Empty() || p.Line() != 1 || p.Writable() != nil {
		t.Errorf("%+v", p)
	}
	must(t, p.Write())
	for at, want := range map[string]os.FileMode{path: 0o644, filepath.Dir(path): 0o755, filepath.Dir(filepath.Dir(path)): 0o755} {
		if info, err := os.Stat(at); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", at, info.Mode(), err)
		}
	}
	must(t, os.Chmod(path, 0o640))
	if os.Geteuid() == 0 {
		must(t, os.Chown(path, 61234, 61235))
	}
	if p = prepare(t, path, "one\ntwo\n"); p.Line() != 2 {
		t.Errorf("line %d", p.Line())
	}
	must(t, p.Write())
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if st := info.Sys().(*syscall.Stat_t); os.Geteuid() == 0 && (st.Uid != 61234 || st.Gid != 61235) {
		t.Errorf("it belongs to %d:%d now", st.Uid, st.Gid)
	}
	if got, _ := os.ReadFile(path); string(got) != "one\ntwo\n" {
		t.Errorf("%q", got)
	}
	if p = prepare(t, path, "one\ntwo\n"); !p.Empty() {
		t.Error("the same is a change")
	}
	gone, err := signedchange.Prepare(path, "x", func([]byte) ([]byte, error) { return nil, nil })
	if err != nil || gone.Write() != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("it is still there")
	}
	if c := gone.Change(); c.After != "" || c.Before == "" {
		t.Errorf("%+v", c)
	}
}

func TestStatement(t *testing.T) {
	path := filepath.Join(t.TempDir(), "security.yaml")
	testfile.Write(t, path, "a\n")
	p := prepare(t, path, "b\n")
	st := signedchange.Statement("alice", "spiffe://durward.local/vault/main", 3, time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC), p.Change())
	raw, err := st.Marshal()
	must(t, err)
	got, err := statement.Parse(raw)
	must(t, err)
	before, after := canonical.Digest([]byte("a\n")), canonical.Digest([]byte("b\n"))
	if diff := cmp.Diff(&statement.Change{File: "security.yaml", Before: canonical.FormatDigest(before[:]), After: canonical.FormatDigest(after[:]),
		Lines: []string{" @ 1", "-a", "+b"}}, got.Change); diff != "" {
		t.Error(diff)
	}
}

func TestDiff(t *testing.T) {
	number := func(from, to int) string {
		var b strings.Builder
		for i := from; i <= to; i++ {
			b.WriteString("line " + string(rune('a'+i)) + "\n")
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		before, after string
		want          []string
	}{
		"nothing":        {"a\n", "a\n", []string{}},
		"new":            {"", "a\nb\n", []string{" @ 1", "+a", "+b"}},
		"gone":           {"a\nb\n", "", []string{" @ 1", "-a", "-b"}},
		"no end of line": {"a", "a\n", []string{" @ 1", "-a (no end of line)", "+a"}},
		"in the middle": {number(0, 12), strings.Replace(number(0, 12), "line g", "other", 1),
			[]string{" @ 4", " line d", " line e", " line f", "-line g", "+other", " line h", " line i", " line j"}},
		"two places": {number(0, 20), strings.Replace(strings.Replace(number(0, 20), "line a\n", "", 1), "line u", "x", 1),
			[]string{" @ 1", "-line a", " line b", " line c", " line d", " @ 18", " line r", " line s", " line t", "-line u", "+x"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, signedchange.Diff([]byte(c.before), []byte(c.after))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// FuzzDiff: what was, and what is, can be put together again from nothing but the difference and the other.
func FuzzDiff(f *testing.F) {
	f.Add([]byte("a\nb\nc\n"), []byte("a\nc\n"))
	f.Add([]byte(""), []byte("x"))
	f.Add([]byte("@ 1\n-a\n"), []byte("+a\n-a\n@ 1\n"))
	f.Fuzz(func(t *testing.T, before, after []byte) {
		if len(before)+len(after) > 4000 {
			return
		}
		var added, removed int
		for _, line := range signedchange.Diff(before, after) {
			switch line[0] {
			case '+':
				added++
			case '-':
				removed++
			case ' ':
			default:
				t.Fatalf("%q", line)
			}
		}
		count := func(b []byte) int {
			n := bytes.Count(b, []byte("\n"))
			if len(b) > 0 && b[len(b)-1] != '\n' {
				n++
			}
			return n
		}
		if count(before)-removed+added != count(after) {
			t.Fatalf("%d lines, less %d, and %d: not %d", count(before), removed, added, count(after))
		}
		if bytes.Equal(before, after) != (added+removed == 0) {
			t.Fatal("a difference is not shown, or shown where there is none")
		}
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
