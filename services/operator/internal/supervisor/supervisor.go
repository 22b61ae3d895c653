// Package supervisor runs Durward's processes in the foreground of one terminal: it starts them in order, waits until each is
// healthy, says when one dies and starts it again, and stops them in reverse order.
//
// It runs in the operator's process, as the operator's user. It gives the processes nothing but their configuration file
// and a small environment; it trusts their binaries, which lie beside its own.
package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/health"
)

// Child is one process to run.
type Child struct {
	// Role is the process's name: "audit", "vault", "executor", "gateway".
	Role string
	// Path is the binary; Args are its arguments without the name.
	Path string
	Args []string
	// Env is the whole environment.
	Env []string
	// Log is the file that its standard output and error are appended to.
	Log string
	// Health is the host:port of its health listener.
	Health string
}

// Config says what to run and how patient to be. Zero durations get the defaults.
type Config struct {
	// Children start in this order and stop in reverse.
	Children []Child
	// Ready is called when a child answers that it is healthy for the first time.
	Ready func(role string)
	// Report is called, from any goroutine but never at once from two, with one or more lines about a child that died.
	Report func(text string)
	// StartTimeout is how long a child may take to become healthy; 20 s.
	StartTimeout time.Duration
	// StopTimeout is how long a child may take to drain before it is killed; 8 s.
	StopTimeout time.Duration
	// Backoff is the wait before the first restart; it doubles up to 16 times that; 500 ms.
	Backoff time.Duration
}

// Restarts are limited so that a child that cannot live is not started without end.
const (
	maxRestarts   = 5
	restartWindow = time.Minute
	pollEvery     = 25 * time.Millisecond
	logLines      = 12
)

// Supervisor runs the children of one Config once.
type Supervisor struct {
	cfg    Config
	client *http.Client

	reporting sync.Mutex
}

// New returns a supervisor.
func New(cfg Config) (*Supervisor, error) {
	if len(cfg.Children) == 0 {
		return nil, errors.New("nothing to run")
	}
	for _, c := range cfg.Children {
		if _, err := os.Stat(c.Path); err != nil {
			return nil, fmt.Errorf("the program of %s is missing: %s (build it with: make build)", c.Role, c.Path)
		}
	}
	cfg.StartTimeout = cmp.Or(cfg.StartTimeout, 20*time.Second)
	cfg.StopTimeout = cmp.Or(cfg.StopTimeout, 8*time.Second)
	cfg.Backoff = cmp.Or(cfg.Backoff, 500*time.Millisecond)
	if cfg.Ready == nil {
		cfg.Ready = func(string) {}
	}
	if cfg.Report == nil {
		cfg.Report = func(string) {}
	}
	return &Supervisor{cfg: cfg, client: &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}}, nil
}

// DiedError means that a child ended before it was healthy. It wraps how, where that was not exit status 0.
type DiedError struct {
	Role   string
	text   string
	ending error
}

func (e *DiedError) Error() string { return e.text }

func (e *DiedError) Unwrap() error { return e.ending }

// Run starts every child, calls healthy once all are, and keeps them running until ctx ends; then it stops them in reverse
// order and returns nil. When a child cannot be started the others are stopped and the error says what it last logged;
// *DiedError: it was started, and ended.
func (s *Supervisor) Run(ctx context.Context, healthy func()) error {
	starter := newStarter()
	defer starter.close()

	var running []*process
	defer func() {
		for i := len(running) - 1; i >= 0; i-- {
			running[i].stop(s.cfg.StopTimeout)
		}
	}()
	for _, child := range s.cfg.Children {
		p := &process{child: child, starter: starter}
		if err := p.start(); err != nil {
			return err
		}
		running = append(running, p)
		if err := s.awaitHealth(ctx, p); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		s.cfg.Ready(child.Role)
	}
	healthy()

	var keepers sync.WaitGroup
	for _, p := range running {
		keepers.Go(func() { s.keep(ctx, p) })
	}
	keepers.Go(func() { s.boundLogs(ctx) })
	<-ctx.Done()
	keepers.Wait()
	return nil
}

// boundLogs keeps the log files from growing without end.
func (s *Supervisor) boundLogs(ctx context.Context) {
	for clock.Sleep(ctx, time.Minute) {
		for _, c := range s.cfg.Children {
			if err := boundLog(c.Log, maxLog); err != nil {
				s.report("the log of %s could not be cut: %v", c.Role, err)
			}
		}
	}
}

// keep starts p again whenever it dies, until ctx ends.
func (s *Supervisor) keep(ctx context.Context, p *process) {
	var recent []time.Time
	backoff := s.cfg.Backoff
	for {
		began := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-p.exited():
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > restartWindow {
			backoff = s.cfg.Backoff
		}
		now := time.Now()
		for len(recent) > 0 && now.Sub(recent[0]) > restartWindow {
			recent = recent[1:]
		}
		wait := backoff
		if len(recent) >= maxRestarts {
			wait = max(wait, restartWindow-now.Sub(recent[0]))
		}
		s.report("%s", diedText(p, fmt.Sprintf("starting it again in %s", wait.Round(10*time.Millisecond))))
		if !clock.Sleep(ctx, wait) {
			return
		}
		backoff = min(2*backoff, 16*s.cfg.Backoff)
		recent = append(recent, time.Now())
		if err := p.start(); err != nil {
			s.report("%s could not be started again: %v", p.child.Role, err)
			continue
		}
		err := s.awaitHealth(ctx, p)
		for told := false; err != nil && !errors.As(err, new(*DiedError)) && ctx.Err() == nil; err = s.awaitHealth(ctx, p) {
			if !told { // that it hangs; it may come to itself
				s.report("%v", err)
				told = true
			}
		}
		if err == nil {
			s.report("%s is running again", p.child.Role)
		}
	}
}

func (s *Supervisor) report(format string, args ...any) {
	s.reporting.Lock()
	defer s.reporting.Unlock()
	s.cfg.Report(fmt.Sprintf(format, args...))
}

func diedText(p *process, then string) string {
	return p.withLog(fmt.Sprintf("%s stopped by itself (%s); %s", p.child.Role, p.result(), then))
}

// withLog adds the last lines of the child's log to what is said of it.
func (p *process) withLog(text string) string {
	p.mu.Lock()
	from := p.from
	p.mu.Unlock()
	tail := Tail(p.child.Log, logLines, from)
	if tail == "" {
		return text
	}
	return text + "\n  its last log lines (" + p.child.Log + "):\n    " + strings.ReplaceAll(strings.TrimRight(tail, "\n"), "\n", "\n    ")
}

// awaitHealth waits until p answers that it is healthy.
func (s *Supervisor) awaitHealth(ctx context.Context, p *process) error {
	deadline := time.After(s.cfg.StartTimeout)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, _ := health.Healthy(ctx, s.client, p.child.Health, p.child.Role); ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.exited():
			return &DiedError{Role: p.child.Role, text: diedText(p, "Durward did not start"), ending: p.ended()}
		case <-deadline:
			return errors.New(p.withLog(fmt.Sprintf("%s was not ready within %s", p.child.Role, s.cfg.StartTimeout)))
		case <-tick.C:
		}
	}
}

// process is one child through all its lives.
type process struct {
	child   Child
	starter *starter

	mu     sync.Mutex
	from   int64 // where this life's log begins, in bytes
	cmd    *exec.Cmd
	done   chan struct{}
	ending error
}

func (p *process) start() error {
	_ = boundLog(p.child.Log, maxLog) // boundLogs says why not: a full disk is no reason not to start
	logFile, err := os.OpenFile(p.child.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("log file of %s: %w", p.child.Role, err)
	}
	// The child has its own descriptor once it is started.
	defer logFile.Close()
	from, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("log file of %s: %w", p.child.Role, err)
	}
	cmd := exec.Command(p.child.Path, p.child.Args...) //nolint:gosec // the binaries beside our own
	cmd.Env = p.child.Env
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// A group of its own: Ctrl-C reaches this program alone, which then stops the children in order.
		Setpgid: true,
		// Should this program be killed outright, the children drain rather than stay behind unseen.
		Pdeathsig: syscall.SIGTERM,
	}
	if err := p.starter.start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.child.Role, err)
	}
	done := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.done, p.ending, p.from = cmd, done, nil, from
	p.mu.Unlock()
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.ending = err
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

func (p *process) exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// ended is how the last life ended.
func (p *process) ended() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ending
}

// result says how the last life ended.
func (p *process) result() string {
	if err := p.ended(); err != nil {
		return err.Error()
	}
	return "exit status 0"
}

// stop asks the process to drain and kills it when it takes longer than patience.
func (p *process) stop(patience time.Duration) {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	// A process that has already ended cannot be signalled, and need not be.
	_ = cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-done:
	case <-time.After(patience):
		_ = cmd.Process.Kill()
		<-done
	}
}

// starter starts every child from one operating system thread that lives as long as the supervisor: the kernel sends the
// parent-death signal when the starting thread ends, and Go ends threads as it pleases.
type starter struct {
	requests chan func()
	ended    chan struct{}
}

func newStarter() *starter {
	s := &starter{requests: make(chan func()), ended: make(chan struct{})}
	go func() {
		runtime.LockOSThread()
		defer close(s.ended)
		for f := range s.requests {
			f()
		}
	}()
	return s
}

func (s *starter) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	s.requests <- func() { result <- cmd.Start() }
	return <-result
}

func (s *starter) close() {
	close(s.requests)
	<-s.ended
}

// maxLog is how large a log file may be before it is put aside (one old file is kept).
const maxLog = 10 << 20

// boundLog puts a log that is larger than most aside, as PATH.1, and empties it. The process that writes it appends, and
// goes on at the beginning; lines that it writes in between may be lost.
func boundLog(path string, most int64) error {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() < most {
		return nil
	}
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	from, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	defer from.Close()
	to, err := os.OpenFile(path+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("log: %w", err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return os.Truncate(path, 0)
}

// Tail returns the last n lines of what a file holds from a byte on, or "" when it cannot be read. It reads at most 64 KiB.
func Tail(path string, n int, from int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 64 << 10
	if info, err := f.Stat(); err == nil {
		if from > info.Size() {
			from = 0 // the log was put aside meanwhile
		}
		from = max(from, info.Size()-most)
	}
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	lines := bytes.Split(bytes.TrimRight(b, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}
