package durable_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"durward.internal/services/platform/durable"
)

// TestReplace: a refusal at the last moment, and a folder in the way, leave what there was and nothing beside it.
func TestReplace(t *testing.T) {
	dir, refused := t.TempDir(), errors.New("refused")
	path := filepath.Join(dir, "file")
	look := func(want string, mode os.FileMode) {
		t.Helper()
		got, err := os.ReadFile(path)
		info, err2 := os.Stat(path)
		files, err3 := os.ReadDir(dir)
		if err := errors.Join(err, err2, err3); err != nil || string(got) != want || info.Mode().Perm() != mode || len(files) != 1 {
			t.Errorf("%q of mode %o beside %d others, %v", got, info.Mode().Perm(), len(files)-1, err)
		}
	}
	if err := durable.Replace(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	look("old", 0o600)
	if err := durable.ReplaceAs(durable.Own(0o644), path, []byte("new"), func() error { return refused }); !errors.Is(err, refused) {
		t.Errorf("what may not be replaced: %v", err)
	}
	look("old", 0o600)
	if err := durable.ReplaceAs(durable.Own(0o644), path, []byte("new"), nil); err != nil {
		t.Error(err)
	}
	look("new", 0o644)
	if err := durable.Replace(dir, nil); err == nil {
		t.Error("a folder was replaced")
	}
	if err := durable.Replace(filepath.Join(dir, "missing", "file"), nil); err == nil {
		t.Error("a file was made in a folder that there is not")
	}
	look("new", 0o644)
}
