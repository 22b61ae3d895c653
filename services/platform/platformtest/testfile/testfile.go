// Package testfile writes and reads the files of a test, and ends the test where it cannot. It links nothing, so that every package's tests may
// use it.
package testfile

import (
	"os"
	"testing"
)

// Write writes a file that its owner alone may read.
func Write[T ~[]byte | ~string](t testing.TB, path string, content T) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Read returns what a file holds.
func Read(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
