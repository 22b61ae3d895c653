package log

import (
	"context"

	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/logproof"
)

// Export returns the newest checkpoint, its size, and the proof that it extends the tree of size known.
func (l *Log) Export(ctx context.Context, known uint64) (size uint64, checkpoint []byte, consistency [][]byte, err error) {
	h, err := l.current(ctx)
	if err != nil {
		return 0, nil, nil, err
	}
	if known <= h.Size {
		consistency, err = l.prove(ctx, h, known, h.Size)
	}
	return h.Size, h.signed, consistency, err
}

// Receipt proves an entry in the newest tree, or in that of cosigned, a checkpoint of this log's with signatures of witnesses on it, if
// that tree holds the entry. Nil: there is none.
func (l *Log) Receipt(ctx context.Context, entry *auditv1.Entry, cosigned []byte) (*callv1.Receipt, error) {
	h, err := l.current(ctx)
	if err != nil {
		return nil, err
	}
	if entry.GetIndex() >= h.Size {
		return nil, store.ErrNotFound
	}
	if c, err := logproof.ReadCheckpoint(cosigned); err == nil && entry.GetIndex() < c.Size && c.Size <= h.Size {
		return l.receiptIn(ctx, h, c.Size, cosigned, entry)
	}
	return l.receipt(ctx, h, entry)
}

func (l *Log) receipt(ctx context.Context, h *head, entry *auditv1.Entry) (*callv1.Receipt, error) {
	return l.receiptIn(ctx, h, h.Size, h.signed, entry)
}

// receiptIn proves an entry in h's tree of that size, which signed is the checkpoint of.
func (l *Log) receiptIn(ctx context.Context, h *head, size uint64, signed []byte, entry *auditv1.Entry) (*callv1.Receipt, error) {
	// Sizes are bounded by OpenCheckpoint and indexes lie below them.
	proof, err := tlog.ProveRecord(int64(size), int64(entry.GetIndex()), l.reader(ctx, h))
	if err != nil {
		return nil, unavailable(err)
	}
	return &callv1.Receipt{Index: entry.GetIndex(), Checkpoint: signed, LeafHash: entry.GetLeafHash(), Inclusion: raw(proof)}, nil
}

// together proves entries in h's tree with one run; nil: they do not follow one another.
func (l *Log) together(ctx context.Context, h *head, entries []*auditv1.Entry) (*auditv1.Run, error) {
	out := &auditv1.Run{FirstIndex: entries[0].GetIndex(), LoggedAt: entries[0].GetLoggedAt(), Salts: make([]byte, 0, len(entries)*logproof.SaltSize)}
	for i, e := range entries {
		if e.GetIndex() != out.FirstIndex+uint64(i) || !e.GetLoggedAt().AsTime().Equal(out.LoggedAt.AsTime()) || logproof.BodyMissing(e) {
			return nil, nil
		}
		out.Salts = append(out.Salts, e.GetSalt()...)
	}
	hashes, err := l.reader(ctx, h).ReadHashes(append(stored(0, out.FirstIndex), stored(out.FirstIndex+uint64(len(entries)), h.Size)...))
	if err != nil {
		return nil, unavailable(err)
	}
	out.Subtrees = raw(hashes)
	return out, nil
}

// stored returns the stored indexes of the roots of the subtrees that make up the leaves from one index to below another.
func stored(from, end uint64) []int64 {
	var out []int64
	for _, s := range logproof.Cover(from, end) {
		out = append(out, tlog.StoredHashIndex(s.Level, int64(s.Number)))
	}
	return out
}

// prove proves that one of h's trees extends another, which is not larger.
func (l *Log) prove(ctx context.Context, h *head, older, newer uint64) ([][]byte, error) {
	if older == 0 || older == newer {
		return nil, nil
	}
	proof, err := tlog.ProveTree(int64(newer), int64(older), l.reader(ctx, h))
	if err != nil {
		return nil, unavailable(err)
	}
	return raw(proof), nil
}

func raw(hashes []tlog.Hash) [][]byte {
	out := make([][]byte, len(hashes))
	for i := range hashes {
		out[i] = hashes[i][:]
	}
	return out
}

// reader reads the tree's hashes from h, then from the store.
func (l *Log) reader(ctx context.Context, h *head) tlog.HashReader {
	return store.Hashes{Ctx: ctx, From: l.cfg.Store, Fresh: &h.recent}
}
