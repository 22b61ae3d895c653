package history

import (
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/logproof"
)

// The guard has a twin in deploy/e2e/weak, with which drills show what happens without it.

// withheld reports whether an entry lacks what the log said of it and names no statement that let it go, which is a finding.
func withheld(entry *auditv1.Entry) bool { return logproof.BodyMissing(entry) && entry.PrunedBy == nil }
