package harness

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// Eventually waits until check returns nil, for at most Patience.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	if err := Poll(check); err != nil {
		why := fmt.Sprintf("%s: not within %s: %v", what, Patience, err)
		awaited.Store(t, why)
		t.Fatal(why)
	}
}

// awaited is what a test waited for in vain, by the test: close says it once more, behind all logs.
var awaited sync.Map

// Poll calls check until it returns nil, or for Patience, and returns what check said last. It pauses longer and longer, and about
// as long as a check takes that keeps the machine busy, so that those who wait leave it to those who work.
func Poll(check func() error) error { return poll(Patience, check) }

func poll(patience time.Duration, check func() error) error {
	deadline := time.Now().Add(patience)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		began := time.Now()
		err := check()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(max(pause, min(time.Since(began), 100*time.Millisecond))) // other processes' states have no event
	}
}
