package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

// A command that goes on collects as usual from its first collection on.
func TestTheFirstCollectionIsLate(t *testing.T) {
	const usual = 70
	before := debug.SetGCPercent(usual)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	percent := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	collectLate()
	// What follows a collection has no event.
	for until := time.Now().Add(20 * time.Second); percent() != usual; runtime.Gosched() {
		if time.Now().After(until) {
			t.Fatalf("%d %% after many collections", percent())
		}
		runtime.GC()
	}
}
