package harness

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Terminal is a durward command at a real pseudo-terminal, as a person has it.
type Terminal struct {
	judge  Judge
	master *os.File
	cmd    *exec.Cmd
	ended  chan struct{}

	mu    sync.Mutex
	drawn bytes.Buffer
	// seen is how far the person has read.
	seen int
}

// Judge is a test or a script, which a terminal fails.
type Judge interface {
	Fatalf(format string, args ...any)
}

// OpenTerminal opens a pseudo-terminal of a size.
func OpenTerminal(columns, rows uint16) (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			_ = master.Close()
		}
	}()
	if err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	if slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	if err = unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		_ = slave.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// AtTerminal starts durward at a terminal of so many columns. The caller closes it.
func (h *Host) AtTerminal(judge Judge, columns uint16, args ...string) *Terminal {
	master, slave, err := OpenTerminal(columns, 40)
	if err != nil {
		judge.Fatalf("%v", err)
	}
	cmd := h.CLI(args...)
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = cmd.Start()
	_ = slave.Close() // the command has its own
	if err != nil {
		judge.Fatalf("%v", err)
	}
	x := &Terminal{judge: judge, master: master, cmd: cmd, ended: make(chan struct{})}
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

// Close ends the command, if it has not ended, and takes the terminal away.
func (x *Terminal) Close() {
	// It may have ended.
	_ = x.cmd.Process.Kill()
	<-x.ended
	_ = x.master.Close()
}

// Text is everything that was drawn.
func (x *Terminal) Text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.drawn.String()
}

// Waits waits for a text that comes after what was waited for before.
func (x *Terminal) Waits(text string) {
	err := Poll(func() error {
		all := x.Text()
		at := strings.Index(all[x.seen:], text)
		if at < 0 {
			return fmt.Errorf("%q never came:\n%q", text, all[x.seen:])
		}
		x.seen += at + len(text)
		return nil
	})
	if err != nil {
		x.judge.Fatalf("%v", err)
	}
}

// Types types what ends with an enter of its own, if it is to have one.
func (x *Terminal) Types(s string) {
	if _, err := x.master.WriteString(s); err != nil {
		x.judge.Fatalf("%v", err)
	}
}

// Ends waits for the command's end, and for its exit code.
func (x *Terminal) Ends(code int) {
	if got := x.Code(); got != code {
		x.judge.Fatalf("exit code %d, want %d:\n%q", got, code, x.Text())
	}
}

// Code waits for the command's end and returns its exit code.
func (x *Terminal) Code() int {
	select {
	case <-x.ended:
	case <-time.After(Patience):
		x.judge.Fatalf("it does not end:\n%q", x.Text())
	}
	return x.cmd.ProcessState.ExitCode()
}

// Says follows a dialogue, line by line: "waits TEXT", "types TEXT" (and enter), "key TEXT" (without), "ends CODE".
func (x *Terminal) Says(lines ...string) {
	for _, line := range lines {
		switch verb, text, _ := strings.Cut(line, " "); verb {
		case "waits":
			x.Waits(text)
		case "types":
			x.Types(text + "\n")
		case "key":
			x.Types(strings.ReplaceAll(text, "^C", "\x03"))
		case "ends":
			x.Ends(int(text[0] - '0'))
		default:
			x.judge.Fatalf("unknown verb %q", verb)
		}
	}
}
