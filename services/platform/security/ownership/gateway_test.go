package ownership_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"durward.internal/services/platform/security/ownership"
)

// What the gateway's user owns or may write is refused: the file, a folder, what is in it, what a link leads to, a folder above.
func TestTheGatewaysFilesAreRefused(t *testing.T) {
	me := os.Geteuid()
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir, file string)
		folder  bool // the folder is obeyed, not the file
		want    error
	}{
		"nobody else's":            {func(*testing.T, string, string) {}, true, nil},
		"what is not there":        {func(t *testing.T, _, file string) { must(t, os.Remove(file)) }, false, nil},
		"its file":                 {func(t *testing.T, _, file string) { chown(t, file, 61234, 0) }, false, ownership.ErrForeign},
		"its file in the folder":   {func(t *testing.T, _, file string) { chown(t, file, 61234, 0) }, true, ownership.ErrForeign},
		"its group's file":         {func(t *testing.T, _, file string) { chown(t, file, me, 61235); chmod(t, file, 0o660) }, false, ownership.ErrForeign},
		"its group reads the file": {func(t *testing.T, _, file string) { chown(t, file, me, 61235); chmod(t, file, 0o640) }, false, nil},
		"its folder":               {func(t *testing.T, dir, _ string) { chown(t, dir, 61234, 0) }, true, ownership.ErrForeign},
		"its folder above":         {func(t *testing.T, dir, _ string) { chown(t, dir, 61234, 0) }, false, ownership.ErrAbove},
		"its link": {func(t *testing.T, _, file string) {
			must(t, os.Rename(file, file+".real"))
			link(t, file+".real", file)
			chown(t, file, 61234, 0)
		}, true, ownership.ErrAbove},
		"a link to its file": {func(t *testing.T, _, file string) {
			must(t, os.Rename(file, file+".real"))
			link(t, file+".real", file)
			chown(t, file+".real", 61234, 0)
		}, false, ownership.ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			dir, file := owned(t)
			c.prepare(t, dir, file)
			path := file
			if c.folder {
				path = dir
			}
			err := stranger().Refuse(path)
			if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), filepath.Base(dir)) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if err := (*ownership.Foreign)(nil).Refuse(path); err != nil {
				t.Errorf("without gateway_user: %v", err)
			}
		})
	}
}

// gateway_user is a user of the host, and another than the process's own.
func TestGateway(t *testing.T) {
	if f, err := ownership.Gateway("", false); f != nil || err != nil {
		t.Errorf("none: %v, %v", f, err)
	}
	own := strconv.Itoa(os.Geteuid())
	if f, err := ownership.Gateway(own, true); f != nil || err != nil {
		t.Errorf("in development: %v, %v", f, err)
	}
	for _, name := range []string{own, "nobody-of-that-name"} {
		if _, err := ownership.Gateway(name, false); err == nil || !strings.HasPrefix(err.Error(), "gateway_user: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
