package process

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// slack is how much later than asked the kernel may wake this process's threads; it is 50 µs by default. Of what Durward waits for by the clock,
// nothing is due to a millisecond.
const slack = time.Millisecond

// sleepLong lets the kernel wake sleeping threads late. For the first milliseconds after a process was idle, Go's monitor of the scheduler
// sleeps 20 µs at a time, which is an eighth of the processor time of a process that is called now and then. Children inherit
// it.
func sleepLong() error {
	if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, unix.PR_SET_TIMERSLACK, uintptr(slack), 0); errno != 0 {
		return fmt.Errorf("set the slack of timers: %w", errno) // a program with C in it cannot
	}
	return nil
}
