package log

import (
	"context"

	"golang.org/x/mod/sumdb/tlog"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/logproof"
)

// Holds reports whether the log's first entries add up to the checkpoint, whoever signed it.
func (l *Log) Holds(ctx context.Context, c logproof.Checkpoint) (bool, error) {
	h := l.head.Load()
	if c.Origin != h.Origin || c.Size > h.Size {
		return false, nil
	}
	root, err := tlog.TreeHash(int64(c.Size), l.reader(ctx, h)) // not above the head's, which OpenCheckpoint bounds
	if err != nil {
		return false, unavailable(err)
	}
	return root == tlog.Hash(c.Root), nil
}

// Consistency proves that the tree of size newer extends that of size older. Fault: CODE_CONFLICT when there are no such trees.
func (l *Log) Consistency(ctx context.Context, older, newer uint64) ([][]byte, error) {
	h := l.head.Load()
	if newer > h.Size || older > newer {
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the log is shorter than that", fault.WithField("new_size"))
	}
	return l.prove(ctx, h, older, newer)
}
