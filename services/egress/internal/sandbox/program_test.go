package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"durward.internal/services/platform/downstream"
)

// TestFirstStartsOfAPackage: servers of one npm package that start for the first time at once have one whole copy of it.
func TestFirstStartsOfAPackage(t *testing.T) {
	packages := tempDir(t)
	l := local(t, func(c *Config) { c.Packages = packages })
	name := downstream.Package{Name: "tool", Version: "1.0.0"}
	own := filepath.Join(packages, name.Folder(), "node_modules", "tool")
	must(t, os.MkdirAll(own, 0o755))
	must(t, os.WriteFile(filepath.Join(own, "package.json"), []byte(`{"bin": "index.js"}`), 0o644))
	must(t, os.WriteFile(filepath.Join(own, "index.js"), nil, 0o644))
	for n := range 100 {
		must(t, os.WriteFile(filepath.Join(own, fmt.Sprintf("%d.js", n)), []byte("//"), 0o644))
	}
	digest, err := downstream.TreeDigest(filepath.Join(packages, name.Folder()))
	must(t, err)
	s := &downstream.Pinned{ProgramDigest: digest, Entry: downstream.Entry{ID: "demo", NPM: &name}}
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			tree, _, err := l.pinnedPackage(s)
			if err != nil {
				t.Error(err)
				return
			}
			if held, err := downstream.TreeDigest(tree); err != nil || held != digest { // as its process reads it
				t.Errorf("what it runs is gone or another: %v", err)
			}
		})
	}
	wait.Wait()
}
