package drill

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"durward.internal/deploy/e2e/harness"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/statement"
)

// endLines are clients with many calls in flight while a human ends what they rest on, by each command that does so. Their effects are
// starts after the command returned. In the controls programs begin long after they were asked for, so that some are late for certain.
func endLines() []Line {
	executor := func(guards string) map[string]string { return map[string]string{harness.Executor: guards + ",prompt"} }
	scope := func(w *world, sessions []*keyedSession) { w.letAll(sessions, w.h.Operator, w.signer) }
	return []Line{
		{"revoke-returns", executor("ended,check"), ending{scope, command("standing", "revoke", "--all"), nil}.returns},
		{"disable-returns", executor("ended,check"), ending{(*world).dangerAll, command("dangerous", "disable"), nil}.returns},
		{"client-revoke-returns", executor("ended,check"), ending{scope, func(s *keyedSession) []string {
			return []string{"client", "revoke", s.principal, "--yes"}
		}, nil}.returns},
		{"operator-revoke-returns", executor("confirm"), ending{
			func(w *world, sessions []*keyedSession) {
				key, _ := newKey(w.t)
				w.h.WriteFile(signersFile, w.h.ReadFile(signersFile)+allowed(leaver, key))
				w.pause(w.t.Context(), trustPatience)
				w.letAll(sessions, leaver, key)
			}, command("operator", "revoke", leaver, "--yes"), nil,
		}.returns},
		{"panic-returns", executor("confirm"), ending{scope, command("panic"), (*world).resume}.returns},
	}
}

// lateStarts are executors that take longer to have a program begin than a confirmation waits for.
var lateStarts = map[string]string{harness.Executor: "prompt"}

// lateEndLines are lines of endLines where every program is late, in the shipped world too.
func lateEndLines() []Line {
	var out []Line
	for _, l := range endLines() {
		if l.Name == "client-revoke-returns" || l.Name == "panic-returns" {
			l.Name = "late-" + l.Name
			out = append(out, l)
		}
	}
	return out
}

const (
	signersFile = "trust/allowed_signers"
	// leaver is an operator who is let in to be taken out.
	leaver = "leaver"
)

// ending is one way to end what calls in flight rest on.
type ending struct {
	// let has a human let the sessions, all of one client, start services.
	let func(w *world, sessions []*keyedSession)
	// command ends that, as it stands behind durward.
	command func(s *keyedSession) []string
	// after puts right what else the command ended; nil: nothing.
	after func(w *world)
}

func command(line ...string) func(*keyedSession) []string {
	return func(*keyedSession) []string { return line }
}

// letAll has an operator give each session a scope.
func (w *world) letAll(sessions []*keyedSession, operator string, by ssh.Signer) {
	w.t.Helper()
	for _, s := range sessions {
		st := w.scopeOf(s.agentSession, "cli", time.Hour, 500, "start_service", idle, spare)
		st.Operator = operator
		w.must(w.grantScope(w.sign(st, by)))
	}
}

// dangerAll has the operator put each session into dangerous mode.
func (w *world) dangerAll(sessions []*keyedSession) {
	w.t.Helper()
	var first []*callv1.HumanStatement
	var last time.Time
	for _, s := range sessions {
		h := w.sign(w.standingStatement(statement.KindDangerous, s.agentSession, "cli", time.Hour), w.signer)
		_, at, err := w.propose(h)
		w.must(err)
		first, last = append(first, h), at
	}
	w.pause(w.t.Context(), time.Until(last)+50*time.Millisecond)
	for _, h := range first {
		w.must(w.confirm(w.confirmation(h, time.Now().Add(time.Second), w.signer)))
	}
}

// returns has 20 calls in flight when the command is given, and counts the programs that began after it returned, by the kernel's clock.
func (e ending) returns(w *world) (trials, effects int) {
	const together = 10
	services := []string{idle, spare}
	w.arrange()
	for round := 0; round < w.tries(4, 2) && !w.caught(effects); round++ {
		sessions := []*keyedSession{w.openKeyed()}
		for len(sessions) < together {
			sessions = append(sessions, w.openKeyedAs(w.nextKeyed-1))
		}
		e.let(w, sessions)
		var held []func()
		for _, s := range sessions {
			for _, service := range services {
				g := w.relay(s.handle, "start_service", service, s.prove("start_service", service))
				if g == nil {
					w.t.Fatal("what a human let run has no grant, so its end proves nothing")
				}
				held = append(held, func() { w.useGrant(g, "start_service", service) })
			}
		}
		// What was started ends once it left its mark, so that each further start shows.
		stop := make(chan struct{})
		before := w.starts()
		ended := map[string]int{}
		for _, service := range services {
			ended[service] = w.startsOf(service)
		}
		var calls, killing sync.WaitGroup
		killing.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
					for _, service := range services {
						now := w.startsOf(service)
						if now == ended[service] {
							continue
						}
						ended[service] = now
						for _, pid := range w.pids(service) {
							_ = syscall.Kill(pid, syscall.SIGKILL)
						}
					}
				}
			}
		})
		for _, call := range held {
			trials++
			calls.Go(call)
		}
		w.until("calls have begun", func() bool { return w.starts() != before })
		w.h.Durward(e.command(sessions[0])...)
		var told unix.Timespec
		w.must(unix.ClockGettime(unix.CLOCK_BOOTTIME, &told))
		calls.Wait()
		close(stop)
		killing.Wait()
		late := map[int]bool{}
		for _, service := range services {
			began := w.marks(service)
			for _, pid := range w.pids(service) { // also what had no time to leave its mark
				began[pid] = beganAt(pid)
			}
			for pid, at := range began {
				if at > told.Nano()+int64(2*tick) {
					late[pid] = true
				}
			}
			w.kill(service)
		}
		effects += len(late)
		if e.after != nil {
			e.after(w)
		}
	}
	return trials, effects
}

// tick is the kernel's step in telling when a process began.
const tick = 10 * time.Millisecond

// marks are when the programs of a service began, by their own marks: in nanoseconds of the kernel's clock, by pid.
func (w *world) marks(service string) map[int]int64 {
	out := map[int]int64{}
	for line := range strings.Lines(w.startsFile(service)) {
		var pid int
		var ticks int64
		if _, err := fmt.Sscanf(line, "started %d %d", &pid, &ticks); err != nil {
			w.t.Errorf("a mark %q: %v", line, err)
		}
		out[pid] = ticks * int64(tick)
	}
	return out
}

// beganAt is when a process began, in nanoseconds of the kernel's clock, in its steps; 0 for one that is gone.
func beganAt(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return 0
	}
	return ticks * int64(tick)
}
