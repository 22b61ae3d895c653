package downstream_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"durward.internal/services/platform/downstream"
)

func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	return dir
}

// TestAChangedTreeHasAnotherDigest: a byte, a name, a right to execute, a link, a file more or less.
func TestAChangedTreeHasAnotherDigest(t *testing.T) {
	digests := map[[32]byte]string{}
	for name, change := range map[string]func(dir string) error{
		"itself":        func(string) error { return nil },
		"a byte":        func(dir string) error { return os.WriteFile(dir+"/a/x.js", []byte("onf"), 0o644) },
		"a name":        func(dir string) error { return os.Rename(dir+"/a/x.js", dir+"/a/z.js") },
		"a right":       func(dir string) error { return os.Chmod(dir+"/a/x.js", 0o755) },
		"a file less":   func(dir string) error { return os.Remove(dir + "/b.js") },
		"a file more":   func(dir string) error { return os.WriteFile(dir+"/c.js", nil, 0o644) },
		"a folder more": func(dir string) error { return os.Mkdir(dir+"/c", 0o755) },
		"a link":        func(dir string) error { return os.Symlink("b.js", dir+"/l") },
		"another link":  func(dir string) error { return os.Symlink("a/x.js", dir+"/l") },
		"moved bytes": func(dir string) error {
			_ = os.WriteFile(dir+"/a/x.js", []byte("on"), 0o644) // what the test then finds says whether it is there
			return os.WriteFile(dir+"/b.js", []byte("etwo"), 0o644)
		},
	} {
		dir := tree(t, map[string]string{"a/x.js": "one", "b.js": "two"})
		must(t, change(dir))
		digest, err := downstream.TreeDigest(dir)
		must(t, err)
		if same, known := digests[digest]; known {
			t.Errorf("%s has the digest of %s", name, same)
		}
		digests[digest] = name
	}
	again, err := downstream.TreeDigest(tree(t, map[string]string{"a/x.js": "one", "b.js": "two"}))
	if err != nil || digests[again] != "itself" {
		t.Errorf("the same tree elsewhere: %q, %v", digests[again], err)
	}
	for name, change := range map[string]func(dir string) error{
		"a link to the host": func(dir string) error { return os.Symlink("/etc/passwd", dir+"/l") },
		"a link out":         func(dir string) error { return os.Symlink("../../x", dir+"/a/l") },
		"a pipe":             func(dir string) error { return syscall.Mkfifo(dir+"/p", 0o600) },
	} {
		dir := tree(t, map[string]string{"a/x.js": "one"})
		must(t, change(dir))
		if _, err := downstream.TreeDigest(dir); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestPackagePrograms(t *testing.T) {
	p := downstream.Package{Name: "@scope/name", Version: "1.2.3"}
	if got := p.Folder(); got != "@scope+name@1.2.3" {
		t.Errorf("its folder: %s", got)
	}
	const at = "node_modules/@scope/name/package.json"
	for said, want := range map[string]string{
		`{"bin":"./dist/index.js"}`:       "node_modules/@scope/name/dist/index.js",
		`{"bin":{"x":"cli.js"}}`:          "node_modules/@scope/name/cli.js",
		`{"bin":{"x":"a.js","y":"b.js"}}`: "!2 programs",
		`{}`:                              "!0 programs",
		`{"bin":"../../../evil.js"}`:      "!outside",
		`{"bin":7}`:                       "!cannot be read",
		`[`:                               "!says nothing",
	} {
		got, err := p.Main(tree(t, map[string]string{at: said}))
		if err != nil {
			got = "!" + err.Error()
		}
		if wrong, ok := strings.CutPrefix(want, "!"); ok && (err == nil || !strings.Contains(got, wrong)) || !ok && got != want {
			t.Errorf("%s: %s, want %s", said, got, want)
		}
	}
	p.Bin = "b.js"
	if got, err := p.Main("/nonexistent"); err != nil || got != "node_modules/@scope/name/b.js" {
		t.Errorf("named: %s, %v", got, err)
	}
}
