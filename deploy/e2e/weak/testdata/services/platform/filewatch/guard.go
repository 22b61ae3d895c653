package filewatch

import "sync/atomic"

// This file makes a negative control of deploy/e2e: files that are told apart by size and modification time, as make does.

// GuardStamps is the guard's name.
const GuardStamps = "stamps"

var sizeAndTime atomic.Bool

// WeakenStamps looks at the size of files and when they were modified.
func WeakenStamps() { sizeAndTime.Store(true) }

func compared(s Stamp) Stamp {
	if sizeAndTime.Load() {
		return Stamp{Size: s.Size, Modified: s.Modified}
	}
	return s
}
