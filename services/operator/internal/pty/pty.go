// Package pty runs a program at a pseudo-terminal of its own: it can neither type at the terminal of whoever started it (TIOCSTI), read
// what is typed there once it has ended, nor draw over what stands there.
package pty

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Open opens a pseudo-terminal of a size.
func Open(columns, rows uint16) (master, slave *os.File, err error) {
	if master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	// Not by its Fd, after which a read of it could not be ended.
	raw, err := master.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { slave, err = open(int(fd), columns, rows) })
	}
	if err != nil {
		_ = master.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

func open(master int, columns, rows uint16) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	if err := unix.IoctlSetWinsize(master, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		return nil, err
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	return os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
}

// lastWords is how long is waited for what an ended program wrote, while another that it left still holds its terminal or output.
const lastWords = 200 * time.Millisecond

// Run runs a command at a terminal of its own, where in is one. What is typed at in is typed there until the command has ended; what it
// says on standard error or at its terminal is printed at out, as text alone, and returned. Its standard output stays the caller's.
// Where in is no terminal, it is the command's standard input.
func Run(cmd *exec.Cmd, in io.Reader, out io.Writer) (said string, err error) {
	cmd.WaitDelay = lastWords
	tty, ok := in.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) {
		var all bytes.Buffer
		cmd.Stdin, cmd.Stderr = in, io.MultiWriter(out, &all)
		err = cmd.Run()
		return all.String(), left(err)
	}
	fd := int(tty.Fd())
	columns, rows, err := term.GetSize(fd)
	if err != nil {
		return "", err
	}
	master, slave, err := Open(uint16(columns), uint16(rows)) // the kernel holds a size in 16 bits
	if err != nil {
		return "", err
	}
	defer master.Close()
	defer slave.Close()
	// Opened anew, a read of it can be ended, so that none waits for what is typed later.
	typed, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(fd), os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer typed.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.Stdin, cmd.Stderr, cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = slave, slave, true, true
	before, err := term.MakeRaw(fd)
	if err != nil {
		return "", err
	}
	defer term.Restore(fd, before) //nolint:errcheck // it was set a moment ago
	if err := cmd.Start(); err != nil {
		return "", err
	}
	_ = slave.Close() // the command has its own
	var all bytes.Buffer
	forwarded, printed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(forwarded)
		_, _ = io.Copy(master, typed) // until the command has ended
	}()
	go func() {
		defer close(printed)
		text(io.MultiWriter(out, &all), master)
	}()
	err = left(cmd.Wait())
	_ = typed.SetReadDeadline(time.Now())
	_ = master.SetDeadline(time.Now().Add(lastWords))
	<-forwarded
	<-printed
	return all.String(), err
}

// left is how a program ended that may have left another, which holds its output.
func left(err error) error {
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return err
}

// text copies what a terminal shows as text, until it cannot be read: what would move the cursor, colour or reorder it is left out.
func text(out io.Writer, in io.Reader) {
	for r := bufio.NewReader(in); ; {
		c, _, err := r.ReadRune()
		if err != nil {
			return
		}
		if c == '\n' || c == '\r' || unicode.IsPrint(c) {
			_, _ = io.WriteString(out, string(c)) // it is for a person to read
		}
	}
}
