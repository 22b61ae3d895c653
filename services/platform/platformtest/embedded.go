package platformtest

import (
	"io/fs"
	"testing"
)

// Embedded returns a folder of a test's embedded files. Go's cache takes what an embedded file is for an input of the test, and of any other
// when it was checked out.
func Embedded(t testing.TB, files fs.FS, folder string) fs.FS {
	t.Helper()
	sub, err := fs.Sub(files, folder)
	if err != nil {
		t.Fatal(err)
	}
	return sub
}
