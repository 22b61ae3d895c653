// Package cosigned keeps the newest checkpoint of the log that witnesses cosigned, with their cosignatures, in a file beside the log's
// state. Audit hands it to everybody who asks for the head; each verifies the cosignatures by itself, with witnesses of its own
// choice. What the relay brings is verified here with audit's own trust folder, so that one who took the relay over can bring nothing
// that does not stand. The file is no part of the log: without it there is nothing cosigned until the relay's next round.
package cosigned

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"durward.internal/services/audit/internal/log"
	"durward.internal/services/platform/durable"
	"durward.internal/services/platform/logproof"
)

// File is the name in the state folder.
const File = "cosigned"

// Reasons to take nothing.
var (
	// ErrInvalid means that what was brought does not stand.
	ErrInvalid = errors.New("a cosignature does not stand")
	// ErrLess means that what is kept says more.
	ErrLess = errors.New("what is kept says more: a quorum cosigned it, or it is newer")
)

// Config is what a Keeper needs; all of it is required.
type Config struct {
	Log *log.Log
	Dir string
	// Keys and Witnesses return what is trusted now.
	Keys      func() []note.Verifier
	Witnesses func() logproof.Witnesses
}

// Keeper keeps it. It is safe for concurrent use.
type Keeper struct {
	cfg Config
	mu  sync.Mutex
	at  logproof.Checkpoint
	raw []byte
	// opened is when this keeper was.
	opened time.Time
}

// Open reads what was kept. What does not stand any more, or is not of this log, is left out: the relay brings it anew.
func Open(ctx context.Context, cfg Config) (*Keeper, error) {
	k := &Keeper{cfg: cfg, opened: time.Now()}
	raw, err := os.ReadFile(filepath.Join(cfg.Dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return k, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the newest cosigned checkpoint: %w", err)
	}
	c, err := logproof.OpenCheckpoint(raw, cfg.Keys())
	if err != nil {
		return k, nil //nolint:nilerr // see above
	}
	holds, err := cfg.Log.Holds(ctx, c)
	if err != nil {
		return nil, err
	}
	if holds {
		k.at, k.raw = c, raw
	}
	return k, nil
}

// Newest returns the newest cosigned checkpoint and its size; nil before the first.
func (k *Keeper) Newest() (signed []byte, size uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.judge(k.cfg.Keys())
	return slices.Clone(k.raw), k.at.Size
}

// Silent is for how long no quorum of the witnesses that are trusted now has cosigned the log; since this keeper was opened, where what is kept
// has none. 0: there are no witnesses.
func (k *Keeper) Silent(now time.Time) time.Duration {
	witnesses := k.cfg.Witnesses()
	if witnesses.Quorum == 0 {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	newest, err := witnesses.OpenWitnessed(k.raw, k.cfg.Keys(), now)
	if err != nil {
		return now.Sub(k.opened)
	}
	return now.Sub(newest.At)
}

// judge drops what is kept once no key that signed it is trusted any more: whoever asks for the head would refuse the whole answer. The
// caller holds mu.
func (k *Keeper) judge(keys []note.Verifier) {
	if _, err := logproof.OpenCheckpoint(k.raw, keys); err != nil {
		k.at, k.raw = logproof.Checkpoint{}, nil
	}
}

// Add takes the cosignature lines of one checkpoint, all or none, and keeps them unless what is kept is better: a quorum is better than
// none, and a newer one than an older. Errors: ErrInvalid, ErrLess, or the disk's and the log's.
func (k *Keeper) Add(ctx context.Context, signed []byte, lines []string) error {
	keys := k.cfg.Keys()
	c, err := logproof.OpenCheckpoint(signed, keys)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	own, err := logsOwn(c, signed, keys)
	if err != nil {
		return err
	}
	holds, err := k.cfg.Log.Holds(ctx, c)
	if err != nil {
		return err
	}
	if !holds {
		return fmt.Errorf("%w: it is of no checkpoint of this log", ErrInvalid)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.judge(keys)
	witnesses := k.cfg.Witnesses()
	all := lines
	if c == k.at {
		// The newer word of a witness replaces its older one.
		all = slices.Concat(lines, signatures(k.raw))
	}
	merged, count, err := merge(c, own, all, len(lines), witnesses)
	if err != nil {
		return err
	}
	quorum := witnesses.Quorum > 0 && count >= witnesses.Quorum
	kept := func() bool { // by the witnesses of now: one may have gone since
		_, err := witnesses.OpenWitnessed(k.raw, keys, time.Now())
		return err == nil
	}
	if c.Size < k.at.Size && (!quorum || kept()) || c.Size > k.at.Size && !quorum && kept() {
		return ErrLess
	}
	if err := durable.Replace(filepath.Join(k.cfg.Dir, File), merged); err != nil {
		return fmt.Errorf("keep the cosigned checkpoint: %w", err)
	}
	k.at, k.raw = c, merged
	return nil
}

// logsOwn returns the line of a signature on a checkpoint that a key of its log made. Whoever brings the checkpoint may have put others' there.
func logsOwn(c logproof.Checkpoint, signed []byte, keys []note.Verifier) (string, error) {
	for _, line := range signatures(signed) {
		if _, err := logproof.OpenCheckpoint([]byte(c.Text()+"\n"+line+"\n"), keys); err == nil {
			return line, nil
		}
	}
	return "", fmt.Errorf("%w: %w", ErrInvalid, logproof.ErrSignature)
}

// merge writes the log's own signature and one line of each witness, the first that there is, below the checkpoint. The first strict
// lines must each be a trusted witness's.
func merge(c logproof.Checkpoint, own string, lines []string, strict int, witnesses logproof.Witnesses) ([]byte, int, error) {
	out := c.Text() + "\n" + own + "\n"
	seen := map[string]bool{}
	for i, line := range lines {
		switch by, err := witnesses.By(c, line, time.Now()); {
		case err != nil && i < strict:
			return nil, 0, fmt.Errorf("%w: %w", ErrInvalid, err)
		case by == "" && i < strict:
			return nil, 0, fmt.Errorf("%w: it is of no witness in the trust folder, or of another checkpoint", ErrInvalid)
		case by != "" && !seen[by]:
			seen[by] = true
			out += line + "\n"
		}
	}
	return []byte(out), len(seen), nil
}

// signatures returns the lines of a note's signatures.
func signatures(signed []byte) []string {
	_, lines, _ := strings.Cut(string(signed), "\n\n")
	return strings.Split(strings.TrimSuffix(lines, "\n"), "\n")
}
