package standing

import (
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/store"
)

// The guards that matter most, one small function each, so that the drills can show what happens without them: their builds
// have the twins in deploy/e2e/weak instead.

// boundEnough reports whether a client may be given standing authority: nothing but its own key shows that a call is its own.
func boundEnough(keyBound bool) bool { return keyBound }

// epochHolds reports whether what was granted in an epoch is in force at this one.
func epochHolds(granted uint64, now store.Control) bool { return !now.Halted && granted == now.Epoch }

// usesLeft reports whether a scope may be used once more.
func usesLeft(left uint32) bool { return left > 0 }

// early reports whether a proposal may not be confirmed yet.
func early(is bool) bool { return is }

// confirmed reports whether the second statement is the first one's, by the same key.
func confirmed(first, second *statement.Verified) error { return first.ConfirmedBy(second) }
