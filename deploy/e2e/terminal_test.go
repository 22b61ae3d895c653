package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/deploy/e2e/harness"
)

// terminal is a durward command at a real pseudo-terminal, as a person has it.
type terminal struct {
	t      judge
	master *os.File
	cmd    *exec.Cmd
	ended  chan struct{}

	mu    sync.Mutex
	drawn bytes.Buffer
	// seen is how far the person has read.
	seen int
}

// judge is a test or a script, which a terminal fails.
type judge interface {
	Fatalf(format string, args ...any)
}

// atTerminal starts durward at a terminal of a size, until the test ends.
func atTerminal(t *testing.T, h *harness.Host, columns, rows uint16, args ...string) *terminal {
	t.Helper()
	x := openTerminal(t, h, columns, rows, args...)
	t.Cleanup(x.close)
	return x
}

func openTerminal(t judge, h *harness.Host, columns, rows uint16, args ...string) *terminal {
	must := func(err error) {
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	must(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	must(err)
	slave, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(err)
	must(unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}))
	cmd := h.Command(append([]string{filepath.Join(h.Bin, "durward"), "--home", h.Dir}, args...)...)
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(cmd.Start())
	must(slave.Close())
	x := &terminal{t: t, master: master, cmd: cmd, ended: make(chan struct{})}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			x.mu.Lock()
			x.drawn.Write(b[:n])
			x.mu.Unlock()
			if err != nil { // the last program at the terminal ended
				_ = cmd.Wait()
				close(x.ended)
				return
			}
		}
	}()
	return x
}

// close ends the command, if it has not ended, and takes the terminal away.
func (x *terminal) close() {
	// It may have ended.
	_ = x.cmd.Process.Kill()
	<-x.ended
	_ = x.master.Close()
}

// text is everything that was drawn.
func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.drawn.String()
}

// waits waits for a text that comes after what was waited for before.
func (x *terminal) waits(text string) {
	err := harness.Poll(func() error {
		all := x.text()
		at := strings.Index(all[x.seen:], text)
		if at < 0 {
			return fmt.Errorf("%q never came:\n%q", text, all[x.seen:])
		}
		x.seen += at + len(text)
		return nil
	})
	if err != nil {
		x.t.Fatalf("%v", err)
	}
}

func (x *terminal) types(s string) {
	if _, err := x.master.WriteString(s); err != nil {
		x.t.Fatalf("%v", err)
	}
}

// ends waits for the command's end, and for its exit code.
func (x *terminal) ends(code int) {
	select {
	case <-x.ended:
		if got := x.cmd.ProcessState.ExitCode(); got != code {
			x.t.Fatalf("exit code %d, want %d:\n%q", got, code, x.text())
		}
	case <-time.After(harness.Patience):
		x.t.Fatalf("it does not end:\n%q", x.text())
	}
}
