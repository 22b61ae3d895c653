package ownership_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"durward.internal/services/platform/security/ownership"
)

// owned is a folder of ours with a file in it.
func owned(t *testing.T) (dir, file string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	file = filepath.Join(dir, "x.yaml")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.WriteFile(file, nil, 0o600))
	return dir, file
}

func link(t *testing.T, to, at string) string {
	t.Helper()
	must(t, os.Symlink(to, at))
	return at
}

func TestRefusesWhatAnotherUserOwnsOrMayWrite(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir, file string) (path string)
		says    string
	}{
		"another user's folder": {func(t *testing.T, dir, _ string) string {
			chown(t, dir, 61234, 61234)
			return dir
		}, "state belongs to the user 61234"},
		"another user's folder above": {func(t *testing.T, dir, file string) string {
			chown(t, filepath.Dir(dir), 61234, 61234)
			return file
		}, " belongs to the user 61234"},
		"another user's folder above what is not there yet": {func(t *testing.T, dir, _ string) string {
			chown(t, dir, 61234, 61234)
			return filepath.Join(dir, "later", "still")
		}, "state belongs to the user 61234"},
		"another user's file": {func(t *testing.T, _, file string) string {
			chown(t, file, 61234, 61234)
			return file
		}, "x.yaml belongs to the user 61234"},
		"another user's link to a folder of ours": {func(t *testing.T, dir, _ string) string {
			at := link(t, dir, dir+"-link")
			chown(t, at, 61234, 61234)
			return at
		}, "state-link belongs to the user 61234"},
		"our link to another user's folder": {func(t *testing.T, dir, _ string) string {
			chown(t, dir, 61234, 61234)
			return link(t, dir, dir+"-link")
		}, "state belongs to the user 61234"},
		"everybody may write the folder": {func(t *testing.T, dir, _ string) string {
			chmod(t, dir, 0o777)
			return dir
		}, "others may write to "},
		"everybody may write the folder, with the sticky bit": {func(t *testing.T, dir, _ string) string {
			chmod(t, dir, fs.ModeSticky|0o777)
			return dir
		}, "others may write to "},
		"everybody may write above": {func(t *testing.T, dir, _ string) string {
			chmod(t, dir, 0o777)
			return filepath.Join(dir, "later")
		}, "others may write to "},
		"a group may write above": {func(t *testing.T, dir, file string) string {
			chown(t, dir, os.Geteuid(), 61234)
			chmod(t, dir, 0o770)
			return file
		}, "others may write to "},
		"everybody may write the file": {func(t *testing.T, _, file string) string {
			chmod(t, file, 0o666)
			return file
		}, "others may write to "},
	} {
		t.Run(name, func(t *testing.T) {
			dir, file := owned(t)
			if err := ownership.Own(dir, file, filepath.Join(dir, "later")); err != nil {
				t.Fatalf("as it was made: %v", err)
			}
			if err := ownership.Own(c.prepare(t, dir, file)); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

func TestTakesFoldersOfRootAndOurOwn(t *testing.T) {
	dir, file := owned(t)
	sticky := filepath.Join(filepath.Dir(dir), "sticky")
	must(t, os.MkdirAll(filepath.Join(sticky, "ours"), 0o700))
	chmod(t, sticky, fs.ModeSticky|0o777)
	chmod(t, filepath.Dir(dir), 0o755)
	if err := ownership.Own("/", "/usr/bin", filepath.Join(sticky, "ours"), link(t, file, dir+"-link"), filepath.Join(dir, "..", "state", "x.yaml")); err != nil {
		t.Error(err)
	}
}
