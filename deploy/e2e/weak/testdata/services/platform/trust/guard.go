package trust

// This file makes a negative control of deploy/e2e: lines of allowed_signers count in forms that OpenSSH refuses, and weak keys.

// GuardForms is the name of the guard that WeakenForms removes.
const GuardForms = "forms"

var anyForm bool

// WeakenForms takes of a line what can be read of it.
func WeakenForms() { anyForm = true }

func formHolds(problem error) error {
	if anyForm {
		return nil
	}
	return problem
}
