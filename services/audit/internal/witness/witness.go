// Package witness is a witness of transparency logs, as C2SP's tlog-witness describes one (https://c2sp.org/tlog-witness): it remembers
// the newest checkpoint of each log that it knows and cosigns another only if that is proved to extend it. So nobody who holds one of
// its cosignatures can be shown another history of that log, not even by whoever holds the log's key.
//
// It is the program auditwitness, which is best run on another machine, by other people, than the log; the relay links it for the
// format of a request. It trusts its
// configuration, its state folder and its key; what is posted to it is anybody's.
package witness

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/logproof"
)

// Reasons to cosign nothing.
var (
	// ErrRequest means that what was posted is malformed.
	ErrRequest = errors.New("the request is malformed")
	// ErrUnknownLog means that the checkpoint is of a log that the witness does not know.
	ErrUnknownLog = errors.New("the log is not known here")
	// ErrSignature means that no key of that log signed it.
	ErrSignature = errors.New("no known key of the log signed the checkpoint")
	// ErrProof means that the checkpoint is not proved to extend the one before.
	ErrProof = errors.New("the checkpoint is not proved to extend the one that was cosigned before")
)

// ConflictError says that the proof begins at another size than the witness knows, or that a log shows two histories of one size.
type ConflictError struct {
	// Known is the size of the newest checkpoint that was cosigned.
	Known uint64
	// Fork: the log's own key signed another history of that size.
	Fork bool
}

func (e *ConflictError) Error() string {
	if e.Fork {
		return fmt.Sprintf("the log has another history: at %d entries another tree was cosigned", e.Known)
	}
	return fmt.Sprintf("the log was cosigned at %d entries", e.Known)
}

// Config is what a Witness needs; all of it is required.
type Config struct {
	Signer *logproof.Cosigner
	// Logs are the public keys of the logs that it cosigns, each named like its log.
	Logs []note.Verifier
	// Dir keeps the newest checkpoint of each log.
	Dir    string
	Logger *slog.Logger
}

// Witness cosigns. It is safe for concurrent use.
type Witness struct {
	cfg Config
	mu  sync.Mutex
	// seen is the newest checkpoint of each log, by origin.
	seen map[string]logproof.Checkpoint
}

// New reads what was cosigned before. A checkpoint in the folder that no known key of its log signed is an error: a human decides what
// becomes of it.
func New(cfg Config) (*Witness, error) {
	w := &Witness{cfg: cfg, seen: map[string]logproof.Checkpoint{}}
	for _, key := range cfg.Logs {
		origin := key.Name()
		raw, err := os.ReadFile(w.path(origin))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the newest checkpoint of %s: %w", origin, err)
		}
		c, err := logproof.OpenCheckpoint(raw, cfg.Logs)
		if err == nil && c.Origin != origin {
			err = fmt.Errorf("it is of %q", c.Origin)
		}
		if err != nil {
			return nil, fmt.Errorf("the newest checkpoint of %s, in %s: %w", origin, w.path(origin), err)
		}
		w.seen[origin] = c
	}
	return w, nil
}

// path is where the newest checkpoint of a log lies.
func (w *Witness) path(origin string) string {
	sum := sha256.Sum256([]byte(origin))
	return filepath.Join(w.cfg.Dir, hex.EncodeToString(sum[:16])+".checkpoint")
}

// Add cosigns a checkpoint that is proved to extend the newest one, of the size old, and returns the signature's line. It is on disk
// that it is the newest before Add returns. Errors: those above, *ConflictError, or the disk's.
func (w *Witness) Add(ctx context.Context, old uint64, proof []tlog.Hash, signed []byte) ([]byte, error) {
	origin, _, _ := bytes.Cut(signed, []byte("\n"))
	if !w.knows(string(origin)) {
		return nil, ErrUnknownLog
	}
	next, err := logproof.OpenCheckpoint(signed, w.cfg.Logs)
	switch {
	case errors.Is(err, logproof.ErrSignature):
		return nil, ErrSignature
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrRequest, err)
	case old > next.Size:
		return nil, fmt.Errorf("%w: it extends %d entries to %d", ErrRequest, old, next.Size)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	known := w.seen[next.Origin]
	if old != known.Size {
		return nil, &ConflictError{Known: known.Size}
	}
	if err := w.extends(ctx, known, next, proof, signed); err != nil {
		return nil, err
	}
	// The cosignature is of the text alone: what else stands on the note is not repeated.
	b, err := note.Sign(&note.Note{Text: next.Text()}, w.cfg.Signer)
	if err != nil {
		return nil, err
	}
	if next != known {
		if err := durable.Replace(w.path(next.Origin), signed); err != nil {
			return nil, err
		}
		w.seen[next.Origin] = next
	}
	return b[len(next.Text())+1:], nil
}

func (w *Witness) knows(origin string) bool {
	return slices.ContainsFunc(w.cfg.Logs, func(key note.Verifier) bool { return key.Name() == origin })
}

// extends checks the proof. The caller holds mu.
func (w *Witness) extends(ctx context.Context, known, next logproof.Checkpoint, proof []tlog.Hash, signed []byte) error {
	if !extensionRequired() {
		return nil
	}
	raw := make([][]byte, len(proof))
	for i := range proof {
		raw[i] = proof[i][:]
	}
	switch {
	case next.Size == known.Size && next.Size > 0 && next.Root != known.Root:
		w.fork(ctx, next, signed)
		return &ConflictError{Known: known.Size, Fork: true}
	case (known.Size == 0 || next.Size == known.Size) && len(proof) > 0:
		return fmt.Errorf("%w: there is nothing to prove", ErrProof)
	case logproof.VerifyConsistency(known, next, raw) != nil:
		w.cfg.Logger.WarnContext(ctx, "a checkpoint with the log's signature is not proved to extend the one before; it was not cosigned",
			"log", next.Origin, "size", next.Size, "known_size", known.Size)
		return ErrProof
	}
	return nil
}

// fork keeps the first other history of a log that its own key signed: together with the checkpoint beside it, it proves the fork to
// everybody.
func (w *Witness) fork(ctx context.Context, other logproof.Checkpoint, signed []byte) {
	path := w.path(other.Origin) + ".fork"
	w.cfg.Logger.ErrorContext(ctx, "A LOG SHOWS TWO HISTORIES: its key signed two trees of one size", "log", other.Origin, "size", other.Size, "evidence", path)
	if _, err := os.Lstat(path); err == nil {
		return
	}
	if err := durable.Replace(path, signed); err != nil {
		w.cfg.Logger.ErrorContext(ctx, "the evidence of a fork cannot be kept", "cause", err.Error(), "checkpoint", string(signed))
	}
}
