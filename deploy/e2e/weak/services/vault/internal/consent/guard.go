package consent

// This file makes the negative control of deploy/e2e.

// GuardSelf is the guard's name.
const GuardSelf = "self-approval"

// weakened is set once, from a flag, before anything is served.
var weakened bool

// WeakenSelf removes the guard.
func WeakenSelf() { weakened = true }

// selfApproval without "self-approval" lets whoever asks agree to it.
func selfApproval(found error) error {
	if weakened {
		return nil
	}
	return found
}
