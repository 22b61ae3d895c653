package clients

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"durward.internal/services/operator/internal/cli"
	"durward.internal/services/operator/internal/client"
	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/platformtest/testfile"
)

// TestReplaceSeesChanges: what a program wrote while a human looked at the change is not overwritten.
func TestReplaceSeesChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "claude.json")
	testfile.Write(t, path, "theirs")
	for _, before := range []string{"", "as it was read"} {
		if err := replaceProgramFile(path, []byte(before), []byte("new"), connectOptions{}); err == nil {
			t.Errorf("read as %q: a change was overwritten", before)
		}
	}
	if kept, err := filepath.Glob(path + "?*"); err != nil || len(kept) > 0 {
		t.Errorf("left behind: %v, %v", kept, err)
	}
	if err := replaceProgramFile(path, []byte("theirs"), []byte("new"), connectOptions{}); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{path: "new", path + ".before-durward": "theirs"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	fresh := filepath.Join(filepath.Dir(path), "none", "mcp.json")
	if err := replaceProgramFile(fresh, nil, []byte("new"), connectOptions{}); err != nil {
		t.Error(err)
	}
}

// TestReplaceKeepsTheOwner: what root writes stays the user's whose program reads it.
func TestReplaceKeepsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root alone can give a file away")
	}
	path := filepath.Join(t.TempDir(), "mcp.json")
	testfile.Write(t, path, "theirs")
	if err := os.Chown(path, 12345, 54321); err != nil {
		t.Fatal(err)
	}
	if err := replaceProgramFile(path, []byte("theirs"), []byte("new"), connectOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + ".before-durward"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		owner, _ := info.Sys().(*syscall.Stat_t)
		if owner.Uid != 12345 || owner.Gid != 54321 || info.Mode() != 0o600 {
			t.Errorf("%s is %d:%d, %v", name, owner.Uid, owner.Gid, info.Mode())
		}
	}
}

// TestKnownClientsByURL: a client that signs gets no configuration in which nothing signs for it.
func TestKnownClientsByURL(t *testing.T) {
	a := &app{App: &cli.App{Home: installdir.Home{Dir: t.TempDir()}}}
	cfg := installdir.Config{Clients: filepath.Join(a.Home.Dir, "clients.yaml")}
	file := []byte("clients:\n")
	for name, bearer := range map[string]bool{"signs": false, "bearer": true} {
		made, err := client.Create(a.Home.Client(name), name, "cli", "WRITE", bearer)
		if err != nil {
			t.Fatal(err)
		}
		if file, err = client.Add(file, made); err != nil {
			t.Fatal(err)
		}
	}
	testfile.Write(t, cfg.Clients, file)
	for _, c := range []struct {
		o  connectOptions
		ok bool
	}{
		{connectOptions{name: "signs"}, true},
		{connectOptions{name: "bearer"}, true},
		{connectOptions{name: "bearer", overHTTP: true}, true},
		{connectOptions{name: "signs", overHTTP: true}, false},
	} {
		if known, err := a.knownClient(cfg, c.o); known != c.ok || (err == nil) != c.ok {
			t.Errorf("%+v: %v, %v", c.o, known, err)
		}
	}
}
