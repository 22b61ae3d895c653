package logproof

import (
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// stagedHeader is the first line of what a log keeps with the entries that it is about to commit. A checkpoint's first line is its
// log's name, so that no verifier takes one for the other.
const stagedHeader = "durward staged checkpoint\n"

// SignStaged signs that a log commits entries up to c, and not that it has them: of what is never committed no checkpoint exists.
func SignStaged(c Checkpoint, signer note.Signer) ([]byte, error) {
	return sign(stagedHeader, c, signer)
}

// OpenStaged returns what SignStaged signed, with a key among keys that is named like its log. It takes no checkpoint.
func OpenStaged(b []byte, keys []note.Verifier) (Checkpoint, error) {
	if len(b) > maxCheckpoint {
		return Checkpoint{}, ErrFormat
	}
	n, err := note.Open(b, note.VerifierList(keys...))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	text, ok := strings.CutPrefix(n.Text, stagedHeader)
	if !ok {
		return Checkpoint{}, ErrFormat
	}
	return signedByOrigin(text, n.Sigs)
}
