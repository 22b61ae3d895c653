package drill

import (
	"fmt"
	"slices"
	"testing"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/services/platform/rpc"
)

// MixedLine replaces the programs of an installation of an earlier commit one by one, and takes them back.
const MixedLine = "mixed-versions"

// RunMixed carries MixedLine out, as Run does with others, one world after the other. older is a folder of an earlier commit's programs. The
// control has executor and vault forget what was spent as soon as they are replaced, as a migration would that loses it.
func RunMixed(t *testing.T, older string, full bool) {
	board := NewBoard(func(line string) { fmt.Println(line) })
	board.Expect(MixedLine, 2)
	t.Run("shipped", func(t *testing.T) {
		w := newWorldOf(t, older, false, full, withOutside)
		trials, effects := w.mixed(harness.Binaries(t, harness.Build{}), nil)
		w.settle()
		board.Note(t, MixedLine, Result{Trials: trials, Effects: effects, Note: w.note})
	})
	t.Run("weak", func(t *testing.T) {
		w := newWorldOf(t, older, true, full, withOutside)
		_, effects := w.mixed(harness.Binaries(t, harness.Build{Weak: true}), map[string]string{harness.Vault: "spent", harness.Executor: "spent,uses"})
		board.Note(t, MixedLine, Result{Control: effects})
	})
	board.Judge(t)
}

// mixed upgrades each process in the order of deploy/docs/production.md, and takes each back and forth again during a halt. Its effects are what
// was used before a step and has an effect once more, while its process is away or afterwards; an approval of before a step that is good
// twice after it; and whatever was good before the halt and has an effect during it or after it.
func (w *world) mixed(newer string, weaken map[string]string) (trials, effects int) {
	older := w.h.Bin
	order := []string{harness.Audit, harness.Vault, harness.Executor, harness.Egress, harness.Gateway}
	requests := 0
	harvest := func(step int) (try func()) {
		// Of a vault that was upgraded and an egress that was not, one may have another definition of the tool than the other: nobody can ask.
		use, good := w.harvestBoth(step, step <= slices.Index(order, harness.Vault) || step > slices.Index(order, harness.Egress))
		if good > 5 {
			requests++
		}
		if step < len(order) {
			w.spend(use, good)
		}
		return func() {
			trials += good
			effects += use()
		}
	}
	for step, role := range order {
		try := harvest(step)
		waits := w.ask(w.open(), "start_service", idle)
		w.approve(waits)
		w.h.Process(role).Stop()
		try()
		w.h.SetFlags(role)
		if weaken[role] != "" {
			w.h.SetFlags(role, "-weaken", weaken[role])
		}
		if !w.h.Replace(role, newer) {
			w.t.Fatalf("%s does not take up the state of the earlier commit:\n%s", role, w.h.Process(role).Log())
		}
		w.awaitAll()
		w.settle()
		before := w.startsOf(idle)
		for range 3 {
			trials++
			w.useApproval(waits)
			w.kill(idle)
		}
		if n := w.startsOf(idle) - before; n > 0 {
			effects += n - 1
		} else if role != harness.Executor { // it starts the program of its own folder, which is another than was approved
			w.t.Errorf("an approval of before %s was upgraded is lost", role)
		}
		if try(); w.caught(effects) {
			return trials, effects
		}
	}

	try := harvest(len(order)) // and nothing of it is used before the halt
	w.halt()
	w.haltEgress()
	back := 0
	for _, role := range order {
		if w.h.Replace(role, older) {
			back++
			w.awaitAll()
		}
		try()
		if !w.h.Replace(role, newer) {
			w.t.Fatalf("%s does not start again:\n%s", role, w.h.Process(role).Log())
		}
		w.awaitAll()
		try()
	}
	w.resumeOnly()
	w.resumeEgress()
	try()
	w.note = fmt.Sprintf("%d of %d processes went back, requests in %d of %d steps", back, len(order), requests, len(order)+1)
	return trials, effects
}

// harvestBoth is harvest with a request, where one can be made, that a human approved for the server of outside, at a path of its own, and
// how many are good. A vault and an egress of an earlier commit may have another definition of the tool than this program.
func (w *world) harvestBoth(step int, request bool) (use func() int, good int) {
	w.t.Helper()
	starts, _ := w.harvest()
	if !request {
		return starts, 5
	}
	path := fmt.Sprintf("/mixed-%d", step)
	arguments, s := w.post(path), w.open()
	asked, err := w.authorise(s.handle, "http_request", arguments)
	if err != nil || asked.GetOperationId() == "" {
		return starts, 5
	}
	grant := w.grantApproved(s, asked.GetOperationId())
	return func() int {
		before := w.out.requests(path)
		w.request(arguments, rpc.MetadataGrant, marshal(grant))
		return starts() + w.out.requests(path) - before
	}, 6
}
