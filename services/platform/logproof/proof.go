package logproof

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// Reasons why a log is not what it was, or a record not in it.
var (
	// ErrRollback means that the log is shorter than it was: restored from an old copy, or rewritten.
	ErrRollback = errors.New("the log is shorter than a checkpoint that was seen before")
	// ErrFork means that the log does not extend what it was: its history was rewritten.
	ErrFork = errors.New("the log does not extend a checkpoint that was seen before")
	// ErrInclusion means that a record is not proved to be in the log.
	ErrInclusion = errors.New("the record is not proved to be in the log")
)

// VerifyReceipt checks the receipt's checkpoint and that its leaf hash is in that tree, and returns the checkpoint. What
// the leaf says is for VerifyEntry, or for VerifyPlacement on the writer's side.
func VerifyReceipt(receipt *callv1.Receipt, keys []note.Verifier) (Checkpoint, error) {
	c, err := OpenCheckpoint(receipt.GetCheckpoint(), keys)
	if err != nil {
		return Checkpoint{}, err
	}
	return c, verifyInclusion(receipt, c)
}

func verifyInclusion(receipt *callv1.Receipt, c Checkpoint) error {
	hash, err := toHash(receipt.GetLeafHash())
	if err != nil {
		return ErrInclusion
	}
	proof, err := toHashes(receipt.GetInclusion())
	if err == nil {
		// parseCheckpoint holds the size below 2^63; an index beyond that is negative here, and CheckRecord refuses it.
		err = tlog.CheckRecord(proof, int64(c.Size), c.Root, int64(receipt.GetIndex()), hash)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInclusion, err)
	}
	return nil
}

// VerifyConsistency checks that the newer tree begins with the older one. A zero older checkpoint is extended by anything.
// It returns ErrOrigin, ErrRollback or ErrFork.
func VerifyConsistency(older, newer Checkpoint, proof [][]byte) error {
	switch {
	case older.IsZero():
		return nil
	case older.Origin != newer.Origin:
		return ErrOrigin
	case newer.Size < older.Size:
		return fmt.Errorf("%w: %d entries, %d before", ErrRollback, newer.Size, older.Size)
	case newer.Size == older.Size:
		if newer.Root != older.Root {
			return fmt.Errorf("%w: %d entries, as many as before", ErrFork, newer.Size)
		}
		return nil
	case older.Size == 0:
		return nil
	}
	hashes, err := toHashes(proof)
	if err == nil { // sizes beyond 2^63 are negative here, and CheckTree refuses them
		err = tlog.CheckTree(hashes, int64(newer.Size), newer.Root, int64(older.Size), older.Root)
	}
	if err != nil {
		return fmt.Errorf("%w: %d entries, %d before: %w", ErrFork, newer.Size, older.Size, err)
	}
	return nil
}

// VerifyPlacement checks that the receipt is for exactly this record of this writer, placed as the log says: it rebuilds
// the leaf and compares hashes. It does not check the receipt's proof.
func VerifyPlacement(writer string, record *auditv1.Record, placement *auditv1.Placement, receipt *callv1.Receipt) error {
	entry := &auditv1.Entry{
		Index: receipt.GetIndex(), Writer: writer, Record: record,
		LoggedAt: placement.GetLoggedAt(), Salt: placement.GetSalt(),
	}
	if err := Seal(entry); err != nil {
		return err
	}
	if !bytes.Equal(entry.LeafHash, receipt.GetLeafHash()) {
		return fmt.Errorf("%w: the receipt is another record's", ErrInclusion)
	}
	return nil
}

func toHash(b []byte) (tlog.Hash, error) {
	if len(b) != tlog.HashSize {
		return tlog.Hash{}, ErrFormat
	}
	return tlog.Hash(b), nil
}

func toHashes(list [][]byte) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(list))
	for i, b := range list {
		h, err := toHash(b)
		if err != nil {
			return nil, err
		}
		out[i] = h
	}
	return out, nil
}

// Replay verifies a whole log offline: every entry in order, then the checkpoint that they must add up to. It keeps a few
// hashes and one number a writer. The zero value is ready; it is not safe for concurrent use.
type Replay struct {
	// OnGap is told of an entry whose sequence does not follow its writer's last one, and the replay goes on. Nil: that is an error.
	OnGap func(entry *auditv1.Entry, last uint64)

	size    uint64
	edge    edge
	last    map[string]uint64
	earlier []Checkpoint // not reached yet, by size
}

// Expect makes the replay check a checkpoint that was seen before: when the log has grown to its size, its root must be
// the replayed one. Call it before Add.
func (r *Replay) Expect(c Checkpoint) { r.earlier = append(r.earlier, c) }

// Checked is what Check found of an entry.
type Checked struct {
	entry *auditv1.Entry
	leaf  tlog.Hash
	fault error
}

// Entry is the entry that was looked at.
func (c Checked) Entry() *auditv1.Entry { return c.entry }

// Check looks at an entry as VerifyEntry does, for AddChecked: apart from it, so that many are looked at at once.
func Check(entry *auditv1.Entry) Checked {
	c := Checked{entry: entry}
	c.leaf, c.fault = verifyEntry(entry)
	return c
}

// Add checks the next entry: its parts belong together, its index is the next one, its writer's sequence has no gap.
func (r *Replay) Add(entry *auditv1.Entry) error { return r.AddChecked(Check(entry)) }

// AddChecked is Add of an entry whose parts were looked at before; nothing may have changed it since.
func (r *Replay) AddChecked(c Checked) error {
	entry := c.entry
	if entry.GetIndex() != r.size {
		return fmt.Errorf("%w: index %d where %d comes next", ErrEntry, entry.GetIndex(), r.size)
	}
	if entry == nil || c.fault != nil {
		return fmt.Errorf("entry %d: %w", r.size, cmp.Or(c.fault, ErrIncomplete))
	}
	if r.last == nil {
		r.last = map[string]uint64{}
	}
	writer, sequence := entry.GetWriter(), entry.GetRecord().GetSequence()
	last := r.last[writer]
	switch {
	case sequence == last+1:
	case r.OnGap != nil:
		r.OnGap(entry, last)
	default:
		return fmt.Errorf("entry %d: %w: %s wrote %d after %d", r.size, ErrEntry, writer, sequence, last)
	}
	r.last[writer] = max(sequence, last)
	r.edge.add(0, c.leaf)
	r.size++
	for _, c := range r.earlier {
		if c.Size == r.size && c.Root != r.Root() {
			return fmt.Errorf("%w: at %d entries", ErrFork, c.Size)
		}
	}
	return nil
}

// Clone returns a replay that goes on from here by itself.
func (r *Replay) Clone() *Replay {
	c := *r
	c.edge, c.last, c.earlier = slices.Clone(r.edge), maps.Clone(r.last), slices.Clone(r.earlier)
	return &c
}

// Size is how many entries were added.
func (r *Replay) Size() uint64 { return r.size }

// Root is the Merkle root of what was added.
func (r *Replay) Root() [32]byte { return r.edge.root() }

// Finish checks that the entries add up to the checkpoint, and that every expected one was reached.
func (r *Replay) Finish(c Checkpoint) error {
	if c.Size != r.size || c.Root != r.Root() {
		return fmt.Errorf("%w: %d entries do not add up to the checkpoint of %d", ErrFork, r.size, c.Size)
	}
	for _, earlier := range r.earlier {
		if earlier.Size > r.size {
			return fmt.Errorf("%w: %d entries, %d before", ErrRollback, r.size, earlier.Size)
		}
		if earlier.Origin != c.Origin {
			return ErrOrigin
		}
	}
	return nil
}
