package logproof

import (
	"fmt"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// edge is a tree that grows: the roots of its complete subtrees, largest first.
type edge []struct {
	level int
	hash  tlog.Hash
}

// add appends a complete subtree, whose place is a multiple of its size.
func (e *edge) add(level int, hash tlog.Hash) {
	for n := len(*e); n > 0 && (*e)[n-1].level == level; n-- {
		hash = tlog.NodeHash((*e)[n-1].hash, hash)
		level++
		*e = (*e)[:n-1]
	}
	*e = append(*e, struct {
		level int
		hash  tlog.Hash
	}{level, hash})
}

func (e edge) root() tlog.Hash {
	if len(e) == 0 {
		// RFC 6962: the hash of the empty string. TreeHash of no records reads nothing.
		root, _ := tlog.TreeHash(0, nil)
		return root
	}
	root := e[len(e)-1].hash
	for i := len(e) - 2; i >= 0; i-- {
		root = tlog.NodeHash(e[i].hash, root)
	}
	return root
}

// Subtree is a complete subtree of a tree: its 2^Level leaves begin at Number * 2^Level.
type Subtree struct {
	Level  int
	Number uint64
}

// Cover returns the subtrees, each as large as can be, that make up the leaves from one index to below another.
func Cover(from, end uint64) (out []Subtree) {
	for from < end {
		level := min(bits.TrailingZeros64(from), bits.Len64(end-from)-1)
		out = append(out, Subtree{level, from >> level})
		from += 1 << level
	}
	return out
}

// RunLeaves rebuilds the hashes of the leaves of exactly these records of this writer, placed as the log says. It does not check the run's
// proof.
func RunLeaves(writer string, records []*auditv1.Record, run *auditv1.Run) ([]tlog.Hash, error) {
	if len(run.GetSalts()) != len(records)*SaltSize {
		return nil, fmt.Errorf("%w: %d bytes of salt for %d records", ErrInclusion, len(run.GetSalts()), len(records))
	}
	out := make([]tlog.Hash, len(records))
	var b []byte
	entry := &auditv1.Entry{Writer: writer, LoggedAt: run.GetLoggedAt()}
	for i, record := range records {
		entry.Index, entry.Record = run.GetFirstIndex()+uint64(i), record
		entry.Salt = run.GetSalts()[i*SaltSize : (i+1)*SaltSize]
		var err error
		if b, out[i], err = seal(b[:0], entry, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// verifyRun checks that the checkpoint's tree has these leaves where the run says.
func verifyRun(run *auditv1.Run, leaves []tlog.Hash, c Checkpoint) error {
	first, n := run.GetFirstIndex(), uint64(len(leaves))
	if n == 0 || first > c.Size || n > c.Size-first {
		return fmt.Errorf("%w: a run of %d records from %d in a tree of %d", ErrInclusion, n, first, c.Size)
	}
	before, behind := Cover(0, first), Cover(first+n, c.Size)
	hashes, err := toHashes(run.GetSubtrees())
	if err != nil || len(hashes) != len(before)+len(behind) {
		return fmt.Errorf("%w: a run with %d hashes where %d belong", ErrInclusion, len(run.GetSubtrees()), len(before)+len(behind))
	}
	var tree edge
	for i, s := range before {
		tree.add(s.Level, hashes[i])
	}
	for _, leaf := range leaves {
		tree.add(0, leaf)
	}
	for i, s := range behind {
		tree.add(s.Level, hashes[len(before)+i])
	}
	if tree.root() != c.Root {
		return fmt.Errorf("%w: a run of %d records from %d is not in the tree", ErrInclusion, n, first)
	}
	return nil
}
