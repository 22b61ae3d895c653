package refusal

// This file makes a negative control of deploy/e2e: every refusal is recorded.

var unlimited bool

// WeakenRate records every refusal, however many there are.
func WeakenRate() { unlimited = true }

func rateRequired() bool { return !unlimited }
