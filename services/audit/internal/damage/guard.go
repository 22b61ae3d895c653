package damage

import (
	"golang.org/x/mod/sumdb/tlog"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

// The guards have twins in deploy/e2e/weak, with which a test shows what is not found without each.

// verified returns in what an entry is not that of its own leaf.
func verified(e *auditv1.Entry) error { return logproof.VerifyEntry(e) }

// agree reports whether the tree has a hash in its place.
func agree(want, stored tlog.Hash) bool { return want == stored }
