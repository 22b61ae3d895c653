//go:build weak

package rpc

import (
	"slices"
	"sync/atomic"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// This file makes the negative controls of deploy/e2e: a server without its check of callers. No product carries the tag.

// GuardCallers is the name of the guard that WeakenCallers removes.
const GuardCallers = "callers"

var anyCaller atomic.Bool

// WeakenCallers lets every role call every method.
func WeakenCallers() { anyCaller.Store(true) }

func roleAllowed(callers []optionsv1.Role, role optionsv1.Role) bool {
	return anyCaller.Load() || slices.Contains(callers, role)
}
