package cli

import (
	"bytes"
	"errors"
	"io/fs"
	"os"

	"durward.internal/services/operator/internal/installdir"
	"durward.internal/services/platform/clean"
)

// WriteNew writes a file that is not there, whole or not at all. One that holds the same already is left alone, any other is somebody's work.
func WriteNew(name string, text []byte, perm fs.FileMode) error {
	if there, err := os.ReadFile(name); err == nil && bytes.Equal(there, text) {
		return nil
	}
	err := installdir.CreateFile(name, text, perm)
	switch {
	case errors.Is(err, fs.ErrExist):
		return Failed("Compare the two, and remove the old one yourself.", "%s is there already and holds something else", clean.Line(name, 500))
	case err != nil:
		return Failed("", "%s", clean.Line(err.Error(), 500))
	}
	return nil
}
