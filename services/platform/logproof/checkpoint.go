package logproof

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// maxCheckpoint bounds a signed checkpoint: three lines and a handful of signatures.
const maxCheckpoint = 16 << 10

// Checkpoint is the head of a log: how many entries it holds and the root of their Merkle tree.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   [32]byte
}

// IsZero reports whether c is no checkpoint at all.
func (c Checkpoint) IsZero() bool { return c == Checkpoint{} }

// Text is the signed part.
func (c Checkpoint) Text() string {
	return c.Origin + "\n" + strconv.FormatUint(c.Size, 10) + "\n" + base64.StdEncoding.EncodeToString(c.Root[:]) + "\n"
}

// Reasons to refuse a checkpoint.
var (
	// ErrSignature means that no trusted key of that log signed it.
	ErrSignature = errors.New("the checkpoint is not signed by a trusted log key")
	// ErrFormat means that it is not a checkpoint, or that another text would read the same.
	ErrFormat = errors.New("the checkpoint is malformed")
	// ErrOrigin means that it is another log's.
	ErrOrigin = errors.New("the checkpoint is another log's")
)

// Origin names the log of an audit identity: "spiffe://durward.local/audit/main" keeps the log "durward.local/audit/main".
func Origin(identity string) string { return strings.TrimPrefix(identity, "spiffe://") }

// SignCheckpoint returns the signed note. The signer must be named like the origin, or nobody would accept it.
func SignCheckpoint(c Checkpoint, signer note.Signer) ([]byte, error) {
	if signer.Name() != c.Origin {
		return nil, fmt.Errorf("the log key is named %q, the log %q", signer.Name(), c.Origin)
	}
	if _, err := parseCheckpoint(c.Text()); err != nil {
		return nil, err
	}
	return note.Sign(&note.Note{Text: c.Text()}, signer)
}

// OpenCheckpoint returns the checkpoint if a key among keys that is named like its origin signed it. Signatures by other
// keys (witnesses) are allowed and ignored.
func OpenCheckpoint(b []byte, keys []note.Verifier) (Checkpoint, error) {
	if len(b) > maxCheckpoint {
		return Checkpoint{}, ErrFormat
	}
	n, err := note.Open(b, note.VerifierList(keys...))
	if err != nil {
		var unverified *note.UnverifiedNoteError
		var invalid *note.InvalidSignatureError
		if errors.As(err, &unverified) || errors.As(err, &invalid) {
			return Checkpoint{}, fmt.Errorf("%w: %w", ErrSignature, err)
		}
		return Checkpoint{}, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	c, err := parseCheckpoint(n.Text)
	if err != nil {
		return Checkpoint{}, err
	}
	for _, sig := range n.Sigs {
		if sig.Name == c.Origin {
			return c, nil
		}
	}
	return Checkpoint{}, ErrSignature
}

// parseCheckpoint accepts exactly what Text writes.
func parseCheckpoint(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[0] == "" {
		return Checkpoint{}, ErrFormat
	}
	size, err := strconv.ParseUint(lines[1], 10, 64)
	if err != nil || size > math.MaxInt64 {
		return Checkpoint{}, ErrFormat
	}
	root, err := tlog.ParseHash(lines[2])
	if err != nil {
		return Checkpoint{}, ErrFormat
	}
	c := Checkpoint{Origin: lines[0], Size: size, Root: root}
	if c.Text() != text {
		return Checkpoint{}, ErrFormat
	}
	return c, nil
}
