package config

// This file makes a negative control of deploy/e2e: a process that listens wherever its file says.

var anywhere bool

// WeakenRemote lets processes listen beyond loopback.
func WeakenRemote() { anywhere = true }

func remoteAllowed(flag bool) bool { return flag || anywhere }
