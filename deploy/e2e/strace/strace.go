// Package strace puts Debian's strace between a running program and the kernel, so that tests see its syscalls and have some of them fail,
// wait, or be its last. It is for tests alone.
package strace

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Missing is why strace cannot be used here; "": it can.
var Missing = sync.OnceValue(func() string {
	if _, err := exec.LookPath("strace"); err != nil {
		return "strace is not installed: scripts/install-real.sh strace"
	}
	if out, err := exec.Command("strace", "-o", os.DevNull, "-e", "trace=none", "true").CombinedOutput(); err != nil {
		return "strace may trace nothing here: " + strings.TrimSpace(string(out))
	}
	return ""
})

// Tracer is a running strace.
type Tracer struct {
	t    testing.TB
	cmd  *exec.Cmd
	said *strings.Builder
	done chan struct{}
	once sync.Once
}

// Attach has strace trace all threads of a process, and returns when it does. args are strace's, but for -f: twice it
// means that each thread has a file of its own.
func Attach(t testing.TB, pid int, args ...string) *Tracer {
	t.Helper()
	s := &Tracer{t: t, said: &strings.Builder{}, done: make(chan struct{})}
	s.cmd = exec.Command("strace", append([]string{"-f"}, append(args, "-p", strconv.Itoa(pid))...)...)
	out, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Detach)
	attached := make(chan bool, 1)
	go func() {
		defer close(s.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			// "strace: Process 7 attached with 9 threads", or without threads.
			if strings.Contains(lines.Text(), fmt.Sprintf("Process %d attached", pid)) {
				attached <- true
				_, _ = io.Copy(io.Discard, out) // it speaks of each thread that comes and goes
				break
			}
			s.said.WriteString(lines.Text() + "\n")
		}
		close(attached)
		_ = s.cmd.Wait() // with the process that it traced, or when it is told to
	}()
	select {
	case ok := <-attached:
		if !ok {
			t.Fatalf("strace does not trace process %d: %s", pid, s.said)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("strace has not begun to trace process %d", pid)
	}
	return s
}

// Detach lets the process go on by itself.
func (s *Tracer) Detach() {
	s.once.Do(func() {
		_ = s.cmd.Process.Signal(os.Interrupt) // it may have ended with the process
		select {
		case <-s.done:
		case <-time.After(20 * time.Second):
			_ = s.cmd.Process.Kill() // it hangs with a syscall that it delays
			<-s.done
		}
	})
}
