package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/ledger"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// killedLines are what happens to history when processes die.
func killedLines() []Line {
	return []Line{{"audit-killed-under-load", map[string]string{harness.Audit: "written"}, killedUnderLoad}}
}

const (
	// loaders write at the same time, each with so many appends in flight; loadPause is how long each rests after one.
	loaders, loaderCalls = 5, 3
	loadPause            = 15 * time.Millisecond
	// loadBetween is how many records are acknowledged, at least, between two kills.
	loadBetween = 60
)

// killedUnderLoad kills a process at a time, and starts it again, while sinks append and a human's commands start and stop a service. Its
// effects are records that were acknowledged and are lost, doubled or elsewhere, logs that do not prove themselves, and services that
// began without a record of the intent before.
func killedUnderLoad(w *world) (trials, effects int) {
	w.arrange()
	held := ledger.New(w.t, w.h)
	ctx, stop := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for i := range loaders {
		loader := held.Add(fmt.Sprintf("egress/load-%d", i), harness.Audit)
		for range loaderCalls {
			running.Go(func() { loader.Run(ctx, loadPause) })
		}
	}
	running.Go(func() {
		for ctx.Err() == nil {
			// What a process that is away does not carry out is as it should be: programs that began are counted.
			_ = w.command("start_service", idle)
			_ = w.command("stop_service", idle)
		}
	})
	load := func(since time.Time) (n int) {
		for _, loader := range held.Writers {
			one, _ := loader.Acknowledged(since)
			n += one
		}
		return n
	}
	judge := func(what string, until time.Time) {
		wrong := w.wrongWith(held, until)
		if len(wrong) > 0 {
			w.t.Logf("%s: %d faults, the first: %s", what, len(wrong), wrong[0])
			effects += len(wrong)
		}
	}
	roles := []string{harness.Audit, harness.Audit, harness.Vault, harness.Executor, harness.Gateway}
	if w.weak {
		roles = roles[:1]
	}
	var recovered []time.Duration
	var up time.Duration
	appended := 0
	for i := range w.tries(1000, 12) {
		began := time.Now()
		harness.Eventually(w.t, "sinks append", func() error {
			if n := load(began); n < loadBetween {
				return fmt.Errorf("%d records so far", n)
			}
			return nil
		})
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // any moment of a transaction
		up, appended = up+time.Since(began), appended+load(began)
		role := roles[rand.IntN(len(roles))]
		w.h.Process(role).Kill()
		trials++
		killed := time.Now()
		w.h.StartProcess(role)
		recovered = append(recovered, time.Since(killed))
		if halted := w.query(harness.Vault, `SELECT halted FROM control`) + w.query(harness.Executor, `SELECT halted FROM control`); halted > 0 && !w.weak {
			// What a human did not halt takes his host away from him, and the rest of this line would prove nothing.
			w.t.Fatalf("after kill %d, of %s, a process halted itself\n%s\n%s", i+1, role, w.h.Process(harness.Vault).Log(), w.h.Process(harness.Executor).Log())
		}
		if w.weak || i%50 == 49 {
			judge(fmt.Sprintf("after kill %d, of %s", i+1, role), killed)
		}
		if w.caught(effects) {
			return trials, effects
		}
	}
	stop()
	running.Wait()
	w.awaitAll()
	if !w.weak {
		held.Deliver()
		held.Close()
		if said := held.Untrue(); said != "" {
			w.t.Logf("a sink found the log untrue: %s", said)
			effects++
		}
	}
	judge("at the end", time.Time{})
	slices.Sort(recovered)
	w.note = fmt.Sprintf("%.0f appends/s, recovery p50 %s, p99 %s", float64(appended)/up.Seconds(),
		recovered[len(recovered)/2].Round(time.Millisecond), recovered[(len(recovered)*99-1)/100].Round(time.Millisecond))
	w.kill(idle)
	return trials, effects
}

// wrongWith proves the log and holds it against what was acknowledged, until that time where it is not zero, and against the programs that
// began.
func (w *world) wrongWith(held *ledger.Ledger, until time.Time) []string {
	w.t.Helper()
	began := w.beginnings(idle)
	var log *ledger.Log
	if err := harness.Poll(func() (err error) { // it may be busy with what it finds after its start
		log, err = held.Read(harness.Audit)
		return err
	}); err != nil {
		return []string{"the log does not prove itself: " + err.Error()}
	}
	wrong := held.Check(log, until)
	var intents []time.Time
	for _, e := range log.Entries {
		r := e.GetRecord()
		if r.GetKind() == auditv1.Kind_KIND_INTENT && r.GetTool() == "start_service" && strings.Contains(r.GetBody().GetArguments(), idle) {
			intents = append(intents, e.GetLoggedAt().AsTime())
		}
	}
	for i, at := range began {
		if i >= len(intents) || at.Add(tick).Before(intents[i]) {
			wrong = append(wrong, fmt.Sprintf("the %d. program of %s began at %s, and its intent is not in the log by then", i+1, idle, at))
			break
		}
	}
	if len(intents) == 0 && !w.weak {
		wrong = append(wrong, "no intent is in the log, so that nothing is proved of effects")
	}
	return wrong
}

// beginnings are when the programs of a service began, by their marks, the earliest first.
func (w *world) beginnings(service string) (out []time.Time) {
	w.t.Helper()
	var boot unix.Timespec
	w.must(unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot))
	booted := time.Now().Add(-time.Duration(boot.Nano()))
	for _, at := range w.marks(service) {
		out = append(out, booted.Add(time.Duration(at)))
	}
	slices.SortFunc(out, time.Time.Compare)
	return out
}
