package sandbox

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"durward.internal/services/platform/cgroup"
	"durward.internal/services/platform/weakness"
)

// This file makes the negative controls of deploy/e2e: a sandbox without one of its guards.

// Guards are those that a drill build may lack: namespaces with the folders that are laid into them, the filter of system calls,
// limits, and the comparison of its program with the lock.
var Guards = weakness.Of("sandbox-walls", "sandbox-filter", "sandbox-limits", "sandbox-program")

func walls(arguments []byte) []byte {
	if Guards.Off("sandbox-walls") {
		return []byte("--bind\x00/\x00/\x00--die-with-parent\x00--clearenv\x00")
	}
	return arguments
}

func judged(filter []byte) []byte {
	if !Guards.Off("sandbox-filter") {
		return filter
	}
	const ret, allow = 0x06, unix.SECCOMP_RET_ALLOW
	return binary.NativeEndian.AppendUint32([]byte{ret, 0, 0, 0}, allow)
}

func bounds(l cgroup.Limits) cgroup.Limits {
	if Guards.Off("sandbox-limits") {
		return cgroup.Limits{}
	}
	return l
}

func accepted(is, pinned [32]byte) bool { return is == pinned || Guards.Off("sandbox-program") }
