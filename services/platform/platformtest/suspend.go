package platformtest

import (
	"time"
	"unsafe"
)

// Suspended is what the clock says once d has gone by on the wall while the monotonic clock stood still, as it does on a machine that is
// suspended; a negative d is a wall clock that was set back. now has a monotonic reading. The package time makes no such value by itself.
func Suspended(now time.Time, d time.Duration) time.Time {
	then := now.Add(d)
	parts := (*struct {
		wall uint64
		ext  int64 // the monotonic reading
		loc  *time.Location
	})(unsafe.Pointer(&then)) // #nosec G103 -- checked below
	parts.ext -= int64(d)
	if then.Sub(now) != 0 || then.Round(0).Sub(now.Round(0)) != d {
		panic("platformtest: a time.Time is laid out in another way by now")
	}
	return then
}
