package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Process is one running program. It is not safe for concurrent use.
type Process struct {
	t    testing.TB
	name string
	log  string
	// begins is how long the log was when the process began: those before it wrote the rest.
	begins int64
	cmd    *exec.Cmd
	done   chan struct{}
	ending error
}

// environment is what a program inherits: the search path of the test, and nothing else of the user who runs it. Its home and
// its temporary files are root and folders in it, so that what lies about on a machine, such as a ~/.durward, has no say.
func environment(root string) []string {
	return []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + root, "TMPDIR=" + filepath.Join(root, "tmp"),
		"XDG_CONFIG_HOME=" + filepath.Join(root, ".config"), "XDG_DATA_HOME=" + filepath.Join(root, ".local", "share"),
		"XDG_STATE_HOME=" + filepath.Join(root, ".local", "state"), "XDG_CACHE_HOME=" + filepath.Join(root, ".cache"),
		"XDG_RUNTIME_DIR=" + filepath.Join(root, "tmp"),
		"USER=e2e", "LOGNAME=e2e", "LANG=C.UTF-8", "TZ=UTC",
	}
}

func startProcess(t testing.TB, name, log string, env, args []string) *Process {
	t.Helper()
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// A group of its own: a signal to the test reaches the test alone. Should the test be killed, the processes drain.
		Setpgid: true, Pdeathsig: syscall.SIGTERM,
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	p := &Process{t: t, name: name, log: log, begins: before.Size(), cmd: cmd, done: make(chan struct{})}
	go func() {
		p.ending = cmd.Wait()
		close(p.done)
	}()
	return p
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Ended says how the process ended; nil means exit status 0.
func (p *Process) Ended() error {
	<-p.done
	return p.ending
}

// AwaitEnd waits until the process has ended and returns its exit status; -1 when a signal ended it.
func (p *Process) AwaitEnd() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(Patience):
		p.t.Fatalf("%s did not end within %s\n%s", p.name, Patience, p.Log())
		return -1
	}
}

func (p *Process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("signal %s to %s: %v", s, p.name, err)
	}
}

// Stop asks the process to drain and waits; it must end with status 0.
func (p *Process) Stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.AwaitEnd(); code != 0 {
		p.t.Fatalf("%s ended with status %d after SIGTERM\n%s", p.name, code, p.Log())
	}
}

// Kill ends the process at once, with kill -9.
func (p *Process) Kill() {
	p.t.Helper()
	p.signal(syscall.SIGKILL)
	<-p.done
}

// Hang stops the process where it is: its sockets stay open and nobody answers.
func (p *Process) Hang() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	// The kernel stops each thread when it looks at it next: until then one of them may answer.
	Eventually(p.t, p.name+" stands still", func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		if err != nil || len(threads) == 0 {
			return errors.Join(err, errors.New("it has no threads"))
		}
		for _, file := range threads {
			stat, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			// pid (name) state …, and a name may hold anything.
			if rest := stat[bytes.LastIndexByte(stat, ')')+1:]; !bytes.HasPrefix(rest, []byte(" T")) {
				return errors.New("a thread of it goes on")
			}
		}
		return nil
	})
}

// Continue ends a Hang.
func (p *Process) Continue() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
}

// end stops the process whatever state it is in.
func (p *Process) end() {
	if !p.Running() {
		return
	}
	for _, s := range []syscall.Signal{syscall.SIGCONT, syscall.SIGTERM} {
		if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			p.t.Errorf("signal %s to %s: %v", s, p.name, err)
		}
	}
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.t.Errorf("%s did not drain within 10 s", p.name)
		// It may have ended.
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// Said reports whether the process has written that to its log.
func (p *Process) Said(text string) bool {
	p.t.Helper()
	b, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Fatal(err)
	}
	return bytes.Contains(b[p.begins:], []byte(text))
}

// Log returns the last lines of what the process logged.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(len(lines)-25, 0):], "\n")
}
