package statement

// This file makes a negative control of deploy/e2e: signatures count in spellings that ssh-keygen refuses.

// GuardSpelling is the name of the guard that WeakenSpelling removes.
const GuardSpelling = "spelling"

var anySpelling bool

// WeakenSpelling takes whatever can be read.
func WeakenSpelling() { anySpelling = true }

func spelled(is bool) bool { return is || anySpelling }
