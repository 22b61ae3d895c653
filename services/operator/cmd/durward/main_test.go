package main

import (
	"os"
	"os/exec"
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

// A command whose output nobody reads any more goes on to its end, and its exit code says so.
func TestAClosedPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	defer w.Close()
	cmd := exec.CommandContext(t.Context(), "durward", "version")
	cmd.Stdout = w
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v", err)
	}
}
