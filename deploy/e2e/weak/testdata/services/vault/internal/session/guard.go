package session

// This file makes a negative control of deploy/e2e: a vault that forgets openings when it ends.

// GuardOpening is the name of the guard that WeakenOpening removes.
const GuardOpening = "opening"

var forgetful bool

// WeakenOpening has openings remembered in memory alone.
func WeakenOpening() { forgetful = true }

func lasting(is bool) bool { return is && !forgetful }
