package log

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// maxKeyFile bounds a key file: one line.
const maxKeyFile = 4 << 10

// LoadSigner reads the log's signing key, a sumdb/note signer key on one line, from a file that only its owner can read.
func LoadSigner(path string) (note.Signer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("log_key: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("log_key: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("log_key: %s must be a regular file that its owner alone can read (chmod 600)", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, fmt.Errorf("log_key: %w", err)
	}
	if len(text) > maxKeyFile {
		return nil, errors.New("log_key: the file is too large for a key")
	}
	// note's errors do not repeat the key.
	signer, err := note.NewSigner(strings.TrimSuffix(string(text), "\n"))
	if err != nil {
		return nil, fmt.Errorf("log_key: %s does not hold a note signing key: %w", path, err)
	}
	return signer, nil
}
