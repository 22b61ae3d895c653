package drill

import (
	"strings"
	"sync"
	"time"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/strace"
	callv1 "durward.internal/proto/gen/durward/call/v1"
)

const (
	// refusedWithin is how long a change may wait for a refusal where nothing can be recorded.
	refusedWithin = 2 * time.Second
	// awayAtOnce is how many changes are tried at the same time.
	awayAtOnce = 25
)

// absences are the ways in which audit cannot write, by name.
var absences = []struct {
	name string
	// begin returns how it ends.
	begin func(w *world, p *harness.Process) (end func())
}{
	{"stopped", func(_ *world, p *harness.Process) func() {
		p.Hang()
		return p.Continue
	}},
	{"a full disk", failing("pwrite64,ftruncate,fallocate:error=ENOSPC")},
	{"a read-only file system", failing("pwrite64,ftruncate,fallocate,fsync,fdatasync:error=EROFS")},
	{"a disk that hangs", failing("pwrite64,fsync,fdatasync:delay_enter=60000000")},
	{"dead", func(_ *world, p *harness.Process) func() {
		p.Kill()
		return func() {}
	}},
}

// failing is a disk on which audit's syscalls fail, by strace's words.
func failing(inject string) func(*world, *harness.Process) func() {
	return func(w *world, p *harness.Process) func() {
		if why := strace.Missing(); why != "" {
			return nil
		}
		calls, _, _ := strings.Cut(inject, ":")
		return strace.Attach(w.t, p.PID(), "-o", w.h.Path("trace"), "-e", "trace="+calls, "-e", "inject="+inject).Detach
	}
}

// auditAway uses approved grants while audit is stopped, cannot write, or is gone, for a vault that says yes to all. Its effects are
// what begins, and refusals that come late.
func auditAway(w *world) (trials, effects int) {
	w.takeVault()
	for _, absence := range absences {
		w.settle() // the executor has audit again
		m := w.arrange()
		var grants []*callv1.SignedGrant
		for range w.size(1000, 6) {
			st := w.agentStatement("start_service", idle)
			grants = append(grants, w.vaultSigns(w.grantOf(st, "start_service", idle, w.sign(st, w.signer))))
		}
		p := w.h.Process(harness.Audit)
		end := absence.begin(w, p)
		if end == nil {
			w.t.Logf("%s: skipped: %s", absence.name, strace.Missing())
			continue
		}
		var mu sync.Mutex
		var longest time.Duration
		late := 0
		_, lag := w.h.Strain(func() {
			room := make(chan struct{}, awayAtOnce)
			var calling sync.WaitGroup
			for _, g := range grants {
				room <- struct{}{}
				calling.Go(func() {
					defer func() { <-room }()
					began := time.Now()
					w.present(g, "start_service", idle)
					mu.Lock()
					defer mu.Unlock()
					took := time.Since(began)
					longest = max(longest, took)
					if took > refusedWithin {
						late++
					}
				})
			}
			calling.Wait()
		})
		trials += len(grants)
		begun := w.effects(m)
		// A machine that is busy answers late whatever it is asked.
		if longest <= refusedWithin+10*lag {
			late = 0
		}
		w.t.Logf("%s: %d changes, %d began, the last refusal after %s", absence.name, len(grants), begun, longest.Round(time.Millisecond))
		effects += begun + late
		end()
		if p.Running() {
			p.Kill()
		}
		w.h.StartProcess(harness.Audit)
		w.reconnect(w.gatewayAudit)
		w.reconnect(w.operatorAudit)
		if w.caught(effects) {
			break
		}
	}
	w.settle()
	return trials, effects
}
