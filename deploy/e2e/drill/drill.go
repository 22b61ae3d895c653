// Package drill attacks the built programs as somebody would who has taken over one of them, or who has nothing but the
// gateway's address, and counts what the attacks achieve where it matters: services that start or stop, rows that appear in the
// stores, answers that disclose something, a client that is not served. A refusal on the way counts for nothing, good or bad.
//
// Each attack runs twice, in two installations: against the programs as they are shipped, where it must have no effect, and
// against a build with the files of deploy/e2e/weak that lacks the guards which stand in its way, where it must have one: else the attack
// would not have found a hole if there were one. Attacks that are in each other's way, or that wait long, have installations
// of their own; Worlds says how many of those there are at once. Of some attacks the second may be left out: the first shows as much of the
// programs without it.
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
	// Uncontrolled: it was not tried without them.
	Uncontrolled bool
	// Note is what was measured on the way; "": nothing.
	Note string
}

func (r Result) ok() bool { return r.Trials > 0 && r.Effects == 0 && (r.Control > 0 || r.Uncontrolled) }

// Format writes the line that the drill prints of an attack.
func (r Result) Format(name string) string {
	control := "CAUGHT"
	switch {
	case r.Uncontrolled:
		control = "left out"
	case r.Control == 0:
		control = "NOT CAUGHT"
	}
	line := fmt.Sprintf("drill %s: %d trials, %d effects, control %s", name, r.Trials, r.Effects, control)
	if r.Note != "" {
		line += " (" + r.Note + ")"
	}
	return line
}

// Group is attacks that share a pair of worlds, in an order in which one leaves nothing behind that is in the way of the next.
type Group struct {
	Name  string
	Lines []Line
	// egress adds egress to its worlds, and configures it; nil: there is none.
	egress func(w *world)
	// faults are what its programs do wrong in both worlds, by process, as Line.Weaken: its shipped world has the drill's build. nil: nothing.
	faults map[string]string
	// alone: nothing else runs beside its shipped world, since its lines compare times.
	alone bool
}

// Groups are every attack. Groups that mostly wait come first, so that the others work in the meantime.
func Groups() []Group {
	standing := standingLines()
	return []Group{
		{Name: "rules", Lines: ruleLines()},
		// Last in its group is what waits until that is over which was harvested at the beginning. No line before it may raise the
		// epoch, which would void the harvest.
		{Name: "gateway", Lines: slices.Concat(gatewayLines(), logLines(), lateLines())},
		{Name: "killed", Lines: killedLines()},
		{Name: "standing", Lines: standing[:len(standing)/2]},
		{Name: "sessions", Lines: standing[len(standing)/2:]},
		{Name: "ends", Lines: endLines()},
		{Name: "late", Lines: lateEndLines(), faults: lateStarts},
		{Name: "agent", Lines: slices.Concat(agentLines(), sameUserLines())},
		{Name: "crowd", Lines: crowdLines()},
		{Name: "programs", Lines: programLines()},
		{Name: "state", Lines: stateLines()},
		{Name: "restored", Lines: restoredLines()},
		{Name: "witnesses", Lines: rewrittenLines()},
		{Name: "secrets", Lines: secretLines()},
		{Name: "unseal", Lines: unsealLines()},
		{Name: "egress", Lines: slices.Concat(egressLines(), hostileEgressLines(), lastEgressLines()), egress: withOutside},
		{Name: "egress-vault", Lines: egressVaultLines(), egress: withOutside},
		{Name: "personal", Lines: personalLines(), egress: withPeople},
		{Name: "edge", Lines: slices.Concat(edgeLines(), bridgeLines())},
		{Name: "singles", Lines: singleLines()},
		{Name: "pinned", Lines: pinnedLines(), egress: func(*world) {}},
		{Name: "roots", Lines: rootLines(), egress: func(*world) {}},
		{Name: "authority", Lines: authorityLines()},
		// The hostile vault stays once it stands in for the real one.
		{Name: "vault", Lines: vaultLines()},
		// Last, since it waits until the others are through.
		{Name: "servers", Lines: serverLines(), alone: true},
	}
}

// Worlds bounds how many installations run at the same time. Its capacity is that number.
type Worlds chan struct{}

// Run starts a subtest as soon as there is room, in the order of its calls, which go test's own -parallel does not keep.
func (w Worlds) Run(t *testing.T, running *sync.WaitGroup, name string, world func(t *testing.T)) {
	w.run(t, running, name, 1, world)
}

// run is Run with the room of so many subtests. No two may ask for more than one each: they would wait for each other.
func (w Worlds) run(t *testing.T, running *sync.WaitGroup, name string, room int, world func(t *testing.T)) {
	for range room {
		w <- struct{}{}
	}
	running.Go(func() {
		defer func() {
			for range room {
				<-w
			}
		}()
		t.Run(name, world)
	})
}

// Run carries out the lines that are wanted, prints each when both its worlds are through with it, and fails the test when
// an attack had an effect or a control had none. A full drill does as much as there is; else attacks that repeat one thing very
// often take a sample. controlled says of one line after the other whether its control is tried.
func Run(t *testing.T, worlds Worlds, full bool, wanted func(name string) bool, controlled func() bool, print func(line string)) {
	// Compiled before the first worlds begin.
	harness.Binaries(t, harness.Build{})
	harness.Binaries(t, harness.Build{Weak: true})
	board := NewBoard(print)
	var running sync.WaitGroup
	for _, g := range Groups() {
		lines := slices.DeleteFunc(g.Lines, func(l Line) bool { return !wanted(l.Name) })
		if len(lines) == 0 {
			continue
		}
		var controls []Line
		for _, l := range lines {
			if controlled() {
				controls = append(controls, l)
				board.Expect(l.Name, 2)
			} else {
				board.Expect(l.Name, 1)
			}
		}
		room := 1
		if g.alone {
			room = cap(worlds)
		}
		worlds.run(t, &running, g.Name+"/shipped", room, func(t *testing.T) {
			bin := ""
			if g.faults != nil {
				bin = harness.Binaries(t, harness.Build{Weak: true})
			}
			w := newWorldOf(t, bin, false, full, g.egress)
			w.weaken(g.faults)
			for _, l := range lines {
				began := time.Now()
				trials, effects := l.attack(w)
				t.Logf("%s: %d trials, %d effects, %s", l.Name, trials, effects, time.Since(began).Round(time.Millisecond))
				// A world in which nothing works any more would withstand everything.
				w.settle()
				board.Note(t, l.Name, Result{Trials: trials, Effects: effects, Note: w.note})
				w.note = ""
			}
		})
		if len(controls) == 0 {
			continue
		}
		worlds.Run(t, &running, g.Name+"/weak", func(t *testing.T) {
			w := newWorld(t, true, full, g.egress)
			for _, l := range controls {
				began := time.Now()
				w.weaken(l.Weaken)
				_, effects := l.attack(w)
				t.Logf("%s without %v: %d effects, %s", l.Name, l.Weaken, effects, time.Since(began).Round(time.Millisecond))
				board.Note(t, l.Name, Result{Control: effects})
			}
		})
	}
	running.Wait()
	board.Judge(t)
}

// Board collects what the worlds found, by line.
type Board struct {
	mu      sync.Mutex
	names   []string
	results map[string]Result
	// left counts the parts of a line that are not carried out yet.
	left  map[string]int
	print func(line string)
}

// NewBoard returns a board that prints each line when its last part is there.
func NewBoard(print func(line string)) *Board {
	return &Board{results: map[string]Result{}, left: map[string]int{}, print: print}
}

// Expect adds a line that is carried out in so many parts. One part is the shipped world's: its control is not tried.
func (b *Board) Expect(name string, parts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names = append(b.names, name)
	b.left[name] = parts
	b.results[name] = Result{Uncontrolled: parts == 1}
}

// Note adds what a part of a line found, and prints the line when that was the last. A part with effects fails its own test, whose log
// says what they were.
func (b *Board) Note(t *testing.T, name string, part Result) {
	if part.Effects > 0 {
		t.Errorf("%s had %d effects", name, part.Effects)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.results[name]
	b.results[name] = Result{r.Trials + part.Trials, r.Effects + part.Effects, r.Control + part.Control, r.Uncontrolled, r.Note + part.Note}
	if b.left[name]--; b.left[name] == 0 {
		b.print(b.results[name].Format(name))
	}
}

// Judge fails the test for each line that did not end as it should.
func (b *Board) Judge(t *testing.T) {
	for _, name := range b.names {
		if r := b.results[name]; b.left[name] != 0 {
			t.Errorf("drill %s: not carried out", name)
		} else if !r.ok() {
			t.Errorf("%s", r.Format(name))
		}
	}
}
