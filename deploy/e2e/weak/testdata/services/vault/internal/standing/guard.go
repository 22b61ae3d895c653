package standing

import (
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/weakness"
	"durward.internal/services/vault/internal/store"
)

// This file makes the negative controls of deploy/e2e.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("key-bound", "standing-epoch", "standing-uses", "confirm-delay", "confirm-key")

// boundEnough without "key-bound" believes whoever relays a token that the call is the client's.
func boundEnough(keyBound bool) bool { return keyBound || Guards.Off("key-bound") }

// epochHolds without "standing-epoch" outlives a halt.
func epochHolds(granted uint64, now store.Control) bool {
	return Guards.Off("standing-epoch") || !now.Halted && granted == now.Epoch
}

// usesLeft without "standing-uses" never ends.
func usesLeft(left uint32) bool { return left > 0 || Guards.Off("standing-uses") }

// early without "confirm-delay" takes a confirmation at once.
func early(is bool) bool { return is && !Guards.Off("confirm-delay") }

// confirmed without "confirm-key" takes anybody's second statement that names the first.
func confirmed(first, second *statement.Verified) error {
	if Guards.Off("confirm-key") {
		return nil
	}
	return first.ConfirmedBy(second)
}
