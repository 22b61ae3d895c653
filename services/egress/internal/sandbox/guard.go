package sandbox

import "durward.internal/services/platform/cgroup"

// The guards have twins in deploy/e2e/weak, with which a drill shows what happens without them.

// walls are bubblewrap's arguments, as they are.
func walls(arguments []byte) []byte { return arguments }

// judged is the filter of system calls, as it is.
func judged(filter []byte) []byte { return filter }

// bounds are the limits of an entry, as they are.
func bounds(l cgroup.Limits) cgroup.Limits { return l }

// accepted reports whether a program is the one that the lock has.
func accepted(is, pinned [32]byte) bool { return is == pinned }
