package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWriteNew: what is somebody's stays, and what is the same is no reason to fail.
func TestWriteNew(t *testing.T) {
	name := filepath.Join(t.TempDir(), "statement.json")
	for _, c := range []struct{ text, want string }{{"one", ""}, {"one", ""}, {"two", "holds something else"}} {
		err := WriteNew(name, []byte(c.text), 0o640)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.text, err)
		}
	}
	info, err := os.Stat(name)
	if there, rerr := os.ReadFile(name); err != nil || rerr != nil || string(there) != "one" || info.Mode().Perm() != 0o640 {
		t.Errorf("%q, %v, %v", there, info, err)
	}
	if err := WriteNew(filepath.Join(name, "below"), nil, 0o600); err == nil {
		t.Error("a file below a file was written")
	}
	link := name + ".link"
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	if err := WriteNew(link, []byte("x"), 0o600); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("over a link that leads nowhere: %v", err)
	}
}
