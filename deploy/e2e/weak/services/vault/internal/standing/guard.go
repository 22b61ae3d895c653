package standing

import (
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/store"
)

// This file makes the negative controls of deploy/e2e.

// Guards are the names that Weaken takes.
var Guards = []string{"key-bound", "standing-epoch", "standing-uses", "confirm-delay", "confirm-key"}

// weakened is set once, from a flag, before anything is served.
var weakened = map[string]bool{}

// Weaken removes a guard.
func Weaken(name string) { weakened[name] = true }

// boundEnough without "key-bound" believes whoever relays a token that the call is the client's.
func boundEnough(keyBound bool) bool { return keyBound || weakened["key-bound"] }

// epochHolds without "standing-epoch" outlives a halt.
func epochHolds(granted uint64, now store.Control) bool {
	return weakened["standing-epoch"] || !now.Halted && granted == now.Epoch
}

// usesLeft without "standing-uses" never ends.
func usesLeft(left uint32) bool { return left > 0 || weakened["standing-uses"] }

// early without "confirm-delay" takes a confirmation at once.
func early(is bool) bool { return is && !weakened["confirm-delay"] }

// confirmed without "confirm-key" takes anybody's second statement that names the first.
func confirmed(first, second *statement.Verified) error {
	if weakened["confirm-key"] {
		return nil
	}
	return first.ConfirmedBy(second)
}
