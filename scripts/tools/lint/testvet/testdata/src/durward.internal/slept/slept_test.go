package slept

import (
	"testing"
	"time"
)

func TestSleeps(t *testing.T) {
	t.Error("asserts")
	time.Sleep(time.Second) // want "the test sleeps"

	func() {
		time.Sleep(time.Second) // want "the test sleeps"
	}()
}
