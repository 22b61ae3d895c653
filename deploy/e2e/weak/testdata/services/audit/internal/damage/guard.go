package damage

import (
	"sync/atomic"

	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

// This file makes the negative control of the search for damage: one that does not hold an entry against its leaf, and one that does not
// hold its leaf against the tree.

var withoutLeaves, withoutTree atomic.Bool

func verified(e *auditv1.Entry) error {
	if withoutLeaves.Load() {
		return nil
	}
	return logproof.VerifyEntry(e)
}

func agree(want, stored tlog.Hash) bool { return withoutTree.Load() || want == stored }
