package changelog

import (
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/statement"
)

// This file makes a negative control of deploy/e2e: a vault that takes any change of an announced file for the human's own.

// GuardAnnouncement is the name of the guard that WeakenAnnouncement removes.
const GuardAnnouncement = "announcement"

var credulous bool

// WeakenAnnouncement goes by a file's name alone.
func WeakenAnnouncement() { credulous = true }

func tellsOf(announced statement.Change, seen security.Change) bool {
	return announced.File == seen.File && (credulous || announced.Before == seen.Before && announced.After == seen.After)
}
