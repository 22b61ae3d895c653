package log

import (
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/platform/keyfile"
)

// LoadSigner reads the log's signing key, a sumdb/note signer key on one line, from a file that only its owner can read.
func LoadSigner(path string) (note.Signer, error) {
	text, err := keyfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("log_key: %w", err)
	}
	// note's errors do not repeat the key.
	signer, err := note.NewSigner(strings.TrimSuffix(string(text), "\n"))
	if err != nil {
		return nil, fmt.Errorf("log_key: %s does not hold a note signing key: %w", path, err)
	}
	return signer, nil
}
