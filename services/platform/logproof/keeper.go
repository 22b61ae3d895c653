package logproof

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// Kept is which of its checkpoints a store is asked for. Stores may keep the number.
type Kept int

const (
	// KeptSeen is the newest checkpoint that was verified, and KeptWitnessed the newest that a quorum of witnesses cosigned.
	KeptSeen      Kept = 1
	KeptWitnessed Kept = 2
)

// CheckpointStore keeps signed checkpoints.
type CheckpointStore interface {
	// LoadCheckpoint returns the one that is kept, or nil if there is none.
	LoadCheckpoint(ctx context.Context, which Kept) ([]byte, error)
	// SaveCheckpoint replaces it.
	SaveCheckpoint(ctx context.Context, which Kept, checkpoint []byte) error
}

// witnessedAgain is how much newer a quorum's word on the same tree must be to be saved: witnesses cosign every few seconds, whether
// the log grows or not.
const witnessedAgain = time.Minute

// KeeperConfig is what a Keeper needs.
type KeeperConfig struct {
	// Origin is the log's name, as Origin derives it from audit's identity.
	Origin string
	// Keys returns the log keys trusted now; it is asked at every check.
	Keys func() []note.Verifier
	// Witnesses returns the witnesses trusted now; nil: there are none.
	Witnesses func() Witnesses
	// Store outlives the process. Without one the Keeper remembers as long as it lives.
	Store CheckpointStore
}

// Keeper remembers the newest checkpoint that it verified and accepts only a log that extends it. It is safe for
// concurrent use, but the answers of two requests that ran at once may be accepted in the wrong order, which looks like a
// rollback: keep one request at a time in flight for each Keeper.
type Keeper struct {
	cfg  KeeperConfig
	mu   sync.Mutex
	held Checkpoint
	raw  []byte
	// witnessed is the newest checkpoint with a quorum's cosignatures that the held one extends; zero before the first. saved is the one
	// in the store.
	witnessed, saved Witnessed
}

// NewKeeper loads the saved checkpoints. One that no trusted key signed is an error, and so is another log's: a human
// decides what becomes of it. A saved one that a quorum of the witnesses cosigned is held if it is newer: so what witnesses said is
// held against the log although the other was lost. One without a quorum of the witnesses that are trusted now counts for nothing.
func NewKeeper(ctx context.Context, cfg KeeperConfig) (*Keeper, error) {
	if cfg.Origin == "" || cfg.Keys == nil {
		return nil, errors.New("a keeper needs the log's origin and keys")
	}
	k := &Keeper{cfg: cfg}
	if cfg.Store == nil {
		return k, nil
	}
	raw, err := cfg.Store.LoadCheckpoint(ctx, KeptSeen)
	if err != nil {
		return nil, fmt.Errorf("load the last checkpoint seen: %w", err)
	}
	if len(raw) > 0 {
		if k.held, err = k.open(raw); err != nil {
			return nil, fmt.Errorf("the last checkpoint seen: %w", err)
		}
		k.raw = raw
	}
	return k, k.loadWitnessed(ctx)
}

// loadWitnessed loads what a quorum cosigned.
func (k *Keeper) loadWitnessed(ctx context.Context) error {
	if k.cfg.Witnesses == nil {
		return nil
	}
	raw, err := k.cfg.Store.LoadCheckpoint(ctx, KeptWitnessed)
	if err != nil {
		return fmt.Errorf("load the last checkpoint that witnesses cosigned: %w", err)
	}
	w, err := k.cfg.Witnesses().OpenWitnessed(raw, k.cfg.Keys(), time.Now())
	if err != nil || w.Origin != k.cfg.Origin {
		return nil //nolint:nilerr // it counts for nothing
	}
	k.witnessed, k.saved = w, w
	switch {
	case w.Size > k.held.Size:
		k.held, k.raw = w.Checkpoint, w.Signed
	case w.Size == k.held.Size && w.Root != k.held.Root:
		return fmt.Errorf("%w: witnesses cosigned another tree of %d entries than the last checkpoint seen", ErrFork, w.Size)
	}
	return nil
}

func (k *Keeper) open(raw []byte) (Checkpoint, error) {
	c, err := OpenCheckpoint(raw, k.cfg.Keys())
	if err != nil {
		return Checkpoint{}, err
	}
	if c.Origin != k.cfg.Origin {
		return Checkpoint{}, fmt.Errorf("%w: %q, not %q", ErrOrigin, c.Origin, k.cfg.Origin)
	}
	return c, nil
}

// Held returns the newest verified checkpoint, zero before the first.
func (k *Keeper) Held() Checkpoint {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.held
}

// Signed returns the newest verified checkpoint as audit signed it, nil before the first.
func (k *Keeper) Signed() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.raw)
}

// Accept checks audit's answer to an Append that named Held().Size as known: the checkpoint's signature and origin, that
// it extends the held one, and every receipt's inclusion. Only then does it hold and save the new checkpoint. Errors:
// ErrSignature, ErrFormat, ErrOrigin, ErrRollback, ErrFork, ErrInclusion, or the store's.
func (k *Keeper) Accept(ctx context.Context, answer *auditv1.AppendResponse) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.extends(answer.GetCheckpoint(), answer.GetConsistency())
	if err != nil {
		return err
	}
	for _, receipt := range answer.GetReceipts() {
		// A receipt with a checkpoint of its own would be proved in a tree that nobody compared with the held one.
		if !bytes.Equal(receipt.GetCheckpoint(), answer.GetCheckpoint()) {
			return fmt.Errorf("%w: a receipt carries another checkpoint", ErrInclusion)
		}
		if err := verifyInclusion(receipt, c); err != nil {
			return err
		}
	}
	return k.hold(ctx, c, answer.GetCheckpoint())
}

// AcceptRun is Accept for an answer with a run, which must be of these leaves (RunLeaves).
func (k *Keeper) AcceptRun(ctx context.Context, answer *auditv1.AppendResponse, leaves []tlog.Hash) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.extends(answer.GetCheckpoint(), answer.GetConsistency())
	if err != nil {
		return err
	}
	if err := verifyRun(answer.GetRun(), leaves, c); err != nil {
		return err
	}
	return k.hold(ctx, c, answer.GetCheckpoint())
}

// AcceptHead is Accept for an answer without receipts: an export's first message.
func (k *Keeper) AcceptHead(ctx context.Context, checkpoint []byte, consistency [][]byte) (Checkpoint, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.extends(checkpoint, consistency)
	if err != nil {
		return Checkpoint{}, err
	}
	return c, k.hold(ctx, c, checkpoint)
}

// AcceptAnswer is AcceptHead for an answer of GetHead that named Held().Size as known, with what stands beside the checkpoint: an earlier
// one that witnesses cosigned. If a quorum of the trusted witnesses did, the answer's checkpoint must extend that one too, or nothing of
// the answer is held: so a log whose history was rewritten with its own key fails also before a verifier that has seen nothing of it
// yet. None, or too few cosignatures, is no error: Witnessed says how old the newest quorum is.
func (k *Keeper) AcceptAnswer(ctx context.Context, answer *auditv1.GetHeadResponse, now time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := k.extends(answer.GetCheckpoint(), answer.GetConsistency())
	if err != nil {
		return err
	}
	w, err := k.judge(c, answer, now)
	if err != nil {
		return fmt.Errorf("what witnesses cosigned: %w", err)
	}
	if err := k.hold(ctx, c, answer.GetCheckpoint()); err != nil {
		return err
	}
	if w.IsZero() || w.At.Before(k.witnessed.At) {
		return nil
	}
	k.witnessed = w
	return k.saveWitnessed(ctx)
}

// saveWitnessed saves what a quorum cosigned, if it says more than what is saved. The caller holds mu.
func (k *Keeper) saveWitnessed(ctx context.Context) error {
	if k.cfg.Store == nil || k.witnessed.Checkpoint == k.saved.Checkpoint && k.witnessed.At.Sub(k.saved.At) < witnessedAgain {
		return nil
	}
	if err := k.cfg.Store.SaveCheckpoint(ctx, KeptWitnessed, k.witnessed.Signed); err != nil {
		return fmt.Errorf("save the checkpoint that witnesses cosigned: %w", err)
	}
	k.saved = k.witnessed
	return nil
}

// judge returns the checkpoint that a quorum cosigned and that c extends, zero if none came. The caller holds mu.
func (k *Keeper) judge(c Checkpoint, answer *auditv1.GetHeadResponse, now time.Time) (Witnessed, error) {
	if len(answer.GetWitnessed()) == 0 || k.cfg.Witnesses == nil {
		return Witnessed{}, nil
	}
	w, err := k.cfg.Witnesses().OpenWitnessed(answer.GetWitnessed(), k.cfg.Keys(), now)
	switch {
	case errors.Is(err, ErrQuorum):
		return Witnessed{}, nil
	case err != nil:
		return Witnessed{}, err
	}
	return w, VerifyConsistency(w.Checkpoint, c, answer.GetWitnessedConsistency())
}

// Witnessed returns the newest checkpoint that a quorum of witnesses cosigned and that the held one extends, zero before the first, and
// an error where changes wait for witnesses and that quorum is not fresh.
func (k *Keeper) Witnessed(now time.Time) (Witnessed, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cfg.Witnesses == nil {
		return Witnessed{}, nil
	}
	return k.witnessed, k.cfg.Witnesses().Fresh(k.witnessed, now)
}

func (k *Keeper) extends(raw []byte, proof [][]byte) (Checkpoint, error) {
	c, err := k.open(raw)
	if err != nil {
		return Checkpoint{}, err
	}
	return c, VerifyConsistency(k.held, c, proof)
}

func (k *Keeper) hold(ctx context.Context, c Checkpoint, raw []byte) error {
	if c == k.held {
		return nil
	}
	if k.cfg.Store != nil {
		if err := k.cfg.Store.SaveCheckpoint(ctx, KeptSeen, raw); err != nil {
			return fmt.Errorf("save the checkpoint: %w", err)
		}
	}
	k.held, k.raw = c, slices.Clone(raw)
	return nil
}
