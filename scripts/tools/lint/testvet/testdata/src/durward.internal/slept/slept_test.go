package slept

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSleeps(t *testing.T) {
	t.Error("asserts")
	time.Sleep(time.Second) // want "the test sleeps"

	func() {
		time.Sleep(time.Second) // want "the test sleeps"
	}()
	synctest.Test(t, func(*testing.T) { time.Sleep(time.Second) })
	bubble(t, func(*testing.T) { time.Sleep(time.Second) })
	outside(t, func() {
		time.Sleep(time.Second) // want "the test sleeps"
	})
}

// bubble runs f in a bubble.
func bubble(t *testing.T, f func(*testing.T)) {
	time.Sleep(time.Second) // want "the test sleeps"

	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Second)
		f(t)
	})
}

// outside runs f before the bubble.
func outside(t *testing.T, f func()) {
	f()
	synctest.Test(t, func(*testing.T) {})
}
