// Package drill attacks the built programs as somebody would who has taken over one of them, or who has nothing but the
// gateway's address, and counts what the attacks achieve where it matters: services that start or stop, rows that appear in the
// stores, answers that disclose something, a client that is not served. A refusal on the way counts for nothing, good or bad.
//
// Each attack runs twice at the same time, in two installations: against the programs as they are shipped, where it must
// have no effect, and against a build with the tag weak that lacks the guards which stand in its way, where it must have
// one: else the attack would not have found a hole if there were one.
//
// The attacker has what the table "If X alone is hostile" of SECURITY.md gives him: the certificate and key of the process
// that he took over, and whatever that process was told. At the edge he has a token of his own, or none.
package drill

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
)

// Line is one attack.
type Line struct {
	Name string
	// Weaken are the guards that its control lacks, by process.
	Weaken map[string]string
	// attack returns how often it tried, and what it achieved. A control may stop at the first effect.
	attack func(w *world) (trials, effects int)
}

// Result is how a line ended.
type Result struct {
	Trials, Effects int
	// Control is what the same attack achieved without the guards.
	Control int
}

func (r Result) ok() bool { return r.Trials > 0 && r.Effects == 0 && r.Control > 0 }

// Format writes the line that the drill prints.
func (l Line) Format(r Result) string {
	control := "CAUGHT"
	if r.Control == 0 {
		control = "NOT CAUGHT"
	}
	return fmt.Sprintf("drill %s: %d trials, %d effects, control %s", l.Name, r.Trials, r.Effects, control)
}

// Lines are every attack, in an order in which one leaves nothing behind that is in the way of the next.
func Lines() []Line {
	var lines []Line
	lines = append(lines, gatewayLines()...)
	lines = append(lines, agentLines()...)
	lines = append(lines, edgeLines()...)
	lines = append(lines, logLines()...)
	lines = append(lines, lateLines()...)
	lines = append(lines, sameUserLines()...)
	lines = append(lines, authorityLines()...)
	lines = append(lines, standingLines()...)
	lines = append(lines, ruleLines()...)
	lines = append(lines, vaultLines()...)
	return lines
}

// Run carries out the lines that are wanted, prints each when both its worlds are through with it, and fails the test when
// an attack had an effect or a control had none.
func Run(t *testing.T, wanted func(name string) bool, print func(line string)) {
	lines := slices.DeleteFunc(Lines(), func(l Line) bool { return !wanted(l.Name) })
	// Compiled before the two worlds begin, so that both begin at once.
	harness.Binaries(t, harness.Build{})
	harness.Binaries(t, harness.Build{Weak: true})
	board := board{results: make([]Result, len(lines)), halves: make([]int, len(lines)), lines: lines, print: print}
	t.Run("worlds", func(t *testing.T) {
		t.Run("shipped", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, false)
			for i, l := range lines {
				began := time.Now()
				trials, effects := l.attack(w)
				t.Logf("%s: %d trials, %d effects, %s", l.Name, trials, effects, time.Since(began).Round(time.Millisecond))
				// A world in which nothing works any more would withstand everything.
				w.settle()
				board.note(i, func(r *Result) { r.Trials, r.Effects = trials, effects })
			}
		})
		t.Run("weak", func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, true)
			for i, l := range lines {
				began := time.Now()
				w.weaken(l.Weaken)
				_, effects := l.attack(w)
				t.Logf("%s without %v: %d effects, %s", l.Name, l.Weaken, effects, time.Since(began).Round(time.Millisecond))
				board.note(i, func(r *Result) { r.Control = effects })
			}
		})
	})
	for i, r := range board.results {
		if board.halves[i] != 2 {
			t.Errorf("drill %s: not carried out", lines[i].Name)
		} else if !r.ok() {
			t.Errorf("%s", lines[i].Format(r))
		}
	}
}

// board collects results of the two worlds.
type board struct {
	mu      sync.Mutex
	lines   []Line
	results []Result
	// halves counts the worlds that are through with a line.
	halves []int
	print  func(line string)
}

func (b *board) note(i int, set func(*Result)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	set(&b.results[i])
	if b.halves[i]++; b.halves[i] == 2 {
		b.print(b.lines[i].Format(b.results[i]))
	}
}
