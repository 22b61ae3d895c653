package postgres

import (
	"testing"
	"time"

	"durward.internal/services/platform/platformtest"
)

// TestLeaseOfASuspendedMachine: the monotonic clock stands still in a suspend, and the server's does not.
func TestLeaseOfASuspendedMachine(t *testing.T) {
	l := &Lease{}
	l.epoch.Store(1)
	heard := time.Now().Add(time.Hour) // by neither clock over while the test runs
	l.heard.Store(&heard)
	if !l.Lasts() {
		t.Error("it was heard just now, and does not lead")
	}
	suspended := platformtest.Suspended(heard, -time.Hour-LeaseTime)
	l.heard.Store(&suspended)
	if l.Lasts() {
		t.Error("another may lead since, and it believes that it does")
	}
}
