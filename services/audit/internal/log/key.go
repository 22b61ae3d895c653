package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/mod/sumdb/note"
)

// maxKeyFile bounds a key file: one line.
const maxKeyFile = 4 << 10

// private reports whether nobody but the owner can read a file, root aside. What systemd hands over (LoadCredential=) may be
// root's, with our user in an access control list: that shows as a group that can read it, and the group is root.
func private(info fs.FileInfo) bool {
	mode := info.Mode().Perm()
	stat, ok := info.Sys().(*syscall.Stat_t)
	return mode&0o077 == 0 || mode&0o037 == 0 && ok && stat.Uid == 0 && stat.Gid == 0
}

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
	if !info.Mode().IsRegular() || !private(info) {
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
