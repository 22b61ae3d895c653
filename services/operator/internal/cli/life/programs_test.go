package life

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestRunning: a process that is about to end does not run, one that stays does, and one that never was does not.
func TestRunning(t *testing.T) {
	t.Parallel()
	p := program{stateDir: t.TempDir()}
	f, err := os.Open(p.stateDir)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	if running, err := p.running(t.Context()); !running || err != nil {
		t.Errorf("a process that stays: %t, %v", running, err)
	}
	ended := time.AfterFunc(2*stopLook, func() { _ = f.Close() }) // which gives the lock up
	defer ended.Stop()
	if running, err := p.running(t.Context()); running || err != nil {
		t.Errorf("a process that ends: %t, %v", running, err)
	}
	p.stateDir += "/none"
	if running, err := p.running(t.Context()); running || err != nil {
		t.Errorf("no process: %t, %v", running, err)
	}
}
