package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// program is one run of a program by its absolute path: nothing on its standard input, a process group of its own that is killed
// as a whole when time is up or the caller gives up, and no more output than most bytes.
type program struct {
	path       string
	args       []string
	env        []string // all of its environment; never nil
	timeout    time.Duration
	most       int
	credential *syscall.Credential
}

type result struct {
	code           int // -1: a signal ended it
	stdout, stderr []byte
}

// maxStderr is how much of what a program complains about is kept; the rest is read and dropped.
const maxStderr = 4096

// nobody is the user that has nothing, on every Linux.
const nobody = 65534

// runLeast runs the program with the least rights that do: as nobody where this process is root, and as this process where it is
// not, or where nobody may not read the files or start the program.
func (p program) runLeast(ctx context.Context) (result, error) {
	if os.Geteuid() != 0 {
		return p.run(ctx)
	}
	low := p
	low.credential = &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{}}
	r, err := low.run(ctx)
	if errors.Is(err, fs.ErrPermission) || err == nil && r.code == exitForbidden {
		return p.run(ctx)
	}
	return r, err
}

// run runs the program to its end. An error means that it did not come to one of its own.
func (p program) run(ctx context.Context) (result, error) {
	// The kernel kills the program when the thread that started it ends, so that thread must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	bounded, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	stdout, stderr := &limited{most: p.most, full: cancel}, &limited{most: maxStderr}
	cmd := exec.CommandContext(bounded, p.path, p.args...) //nolint:gosec // G204: the path is the operator's own configuration, the arguments are no shell's
	cmd.Env = p.env
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Credential: p.credential}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second // for a child of its own that holds its output open

	if err := cmd.Start(); err != nil {
		return result{}, fmt.Errorf("%w: %w", ErrProgram, err)
	}
	err := cmd.Wait()
	// What it may have left behind in its group goes with it. Where nothing is left there is no such group.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	switch {
	case ctx.Err() != nil:
		return result{}, ctx.Err()
	case stdout.over:
		return result{}, fmt.Errorf("%w: it was too long", ErrAnswer)
	case bounded.Err() != nil:
		return result{}, ErrBounds
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return result{}, fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	return result{code: cmd.ProcessState.ExitCode(), stdout: stdout.kept.Bytes(), stderr: stderr.kept.Bytes()}, nil
}

// limited keeps the first bytes of what is written to it. With full set, more than those is a reason to stop whoever writes.
type limited struct {
	kept bytes.Buffer
	most int
	over bool
	full func()
}

func (l *limited) Write(b []byte) (int, error) {
	room := l.most - l.kept.Len()
	l.kept.Write(b[:min(len(b), room)])
	if len(b) > room && l.full != nil {
		l.over = true
		l.full()
	}
	return len(b), nil
}

func firstLine(b []byte) string {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return string(line)
}
