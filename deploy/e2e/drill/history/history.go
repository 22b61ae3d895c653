// Package history is the drill's part that breaks what audit writes: its file, its disk, its syscalls, the power. Each line runs in
// installations of its own, in which audit alone runs, and the writers are the drill's: what audit acknowledged is kept out of its reach.
// An effect is a record that was acknowledged and is not in the log, once, where it was said to be; a log that does not prove itself; a
// log that was altered and proves itself all the same; or a refusal that comes late.
//
// It is for tests alone. The attacker has the files, the disk and, where a line says so, the log's key.
package history

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"durward.internal/deploy/e2e/drill"
	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/ledger"
	"durward.internal/deploy/e2e/strace"
)

// Line is one way to break history.
type Line struct {
	Name string
	// Weaken are the guards that audit lacks in the control; "": the control lacks something else.
	Weaken string
	// traced: it needs strace.
	traced bool
	attack func(w *world) (trials, effects int)
}

// Lines are every line.
func Lines() []Line {
	return []Line{
		{"log-mutated", "", false, mutated},
		{"audit-power-cut", "synced", true, powerCuts},
		{"audit-syscalls-fail", "written", true, syscallsFail},
	}
}

// Run carries out the lines that are wanted, as drill.Run does.
func Run(t *testing.T, worlds drill.Worlds, full bool, wanted func(name string) bool, print func(line string)) {
	harness.Binaries(t, harness.Build{})
	harness.Binaries(t, harness.Build{Weak: true})
	board := drill.NewBoard(print)
	var running sync.WaitGroup
	for _, l := range Lines() {
		if !wanted(l.Name) {
			continue
		}
		if why := strace.Missing(); l.traced && why != "" {
			print(fmt.Sprintf("drill %s: skipped: %s", l.Name, why))
			continue
		}
		board.Expect(l.Name, 2)
		for _, weak := range []bool{false, true} {
			worlds.Run(t, &running, fmt.Sprintf("%s/weak=%v", l.Name, weak), func(t *testing.T) {
				w := newWorld(t, weak, full, l.Weaken)
				began := time.Now()
				trials, effects := l.attack(w)
				t.Logf("%d trials, %d effects, %s", trials, effects, time.Since(began).Round(time.Millisecond))
				if weak {
					board.Note(t, l.Name, drill.Result{Control: effects})
				} else {
					board.Note(t, l.Name, drill.Result{Trials: trials, Effects: effects, Note: w.note})
				}
			})
		}
	}
	running.Wait()
	board.Judge(t)
}

// world is an installation of which audit alone runs.
type world struct {
	t    *testing.T
	h    *harness.Host
	held *ledger.Ledger
	weak bool
	full bool
	// restarts counts how often audit did not help itself.
	restarts int
	// note is what was measured.
	note string
}

func newWorld(t *testing.T, weak, full bool, weaken string) *world {
	opts := harness.Options{Build: harness.Build{Weak: weak}}
	if weak && weaken != "" {
		opts.Flags = map[string][]string{harness.Audit: {"-weaken", weaken}}
	}
	h := harness.New(t, opts)
	return &world{t: t, h: h, held: ledger.New(t, h), weak: weak, full: full}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// size is how often something is done: all of it, or in a drill that is not full, a sample.
func (w *world) size(all, sample int) int {
	if w.full {
		return all
	}
	return sample
}

// caught reports whether a control has shown enough.
func (w *world) caught(effects int) bool { return w.weak && effects > 0 }
