package consent

import "durward.internal/services/platform/weakness"

// This file makes the negative controls of deploy/e2e.

// Guards are those that a drill build may lack.
var Guards = weakness.Of("self-approval", "four-eyes")

// selfApproval without "self-approval" lets whoever asks agree to it.
func selfApproval(found error) error {
	if Guards.Off("self-approval") {
		return nil
	}
	return found
}

// sameKey without "four-eyes" goes by names.
func sameKey(is bool) bool { return is && !Guards.Off("four-eyes") }
