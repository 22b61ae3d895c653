package logproof

import (
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// stagedHeader is the first line of what a log keeps with the entries that it is about to commit. A checkpoint's first line is its
// log's name, so that no verifier takes one for the other.
const stagedHeader = "durward staged checkpoint"

// SignStaged signs that a log commits entries up to c, and not that it has them: of what is never committed no checkpoint exists.
func SignStaged(c Checkpoint, signer note.Signer) ([]byte, error) {
	if signer.Name() != c.Origin {
		return nil, fmt.Errorf("the log key is named %q, the log %q", signer.Name(), c.Origin)
	}
	if _, err := parseCheckpoint(c.Text()); err != nil {
		return nil, err
	}
	return note.Sign(&note.Note{Text: stagedHeader + "\n" + c.Text()}, signer)
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
	text, ok := strings.CutPrefix(n.Text, stagedHeader+"\n")
	if !ok {
		return Checkpoint{}, ErrFormat
	}
	return signedByOrigin(text, n.Sigs)
}
