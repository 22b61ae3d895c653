package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/ledger"
	"durward.internal/deploy/e2e/strace"
	"durward.internal/services/platform/platformtest/full"
)

// injections are what happens to a syscall, in strace's words.
var injections = []string{"signal=SIGKILL", "error=EIO", "error=ENOSPC"}

// site is one of the syscalls by which audit reaches its files: the nth of its name on the file since the tracing began.
type site struct {
	name, file string
	nth        int
}

// several is how many appends are made where one is looked at: strace sees nothing of the first ones while it interrupts the threads.
const several = 8

// checkpointing is how many appends it takes, at most, until SQLite writes what it gathered beside the database into it.
const checkpointing = 130

// selfHelp is how long audit has to go on by itself, before somebody starts it anew.
const selfHelp = 3 * time.Second

// syscallsFail has each file syscall of an append fail in turn, and be audit's last, also those by which SQLite writes its database from
// what is ahead of it. Its effects are acknowledged records that are lost, doubled or elsewhere, and an audit that does not go on, by itself
// or after a start.
func syscallsFail(w *world) (trials, effects int) {
	w.h.StartProcess(harness.Audit)
	writer := w.held.Add("egress/syscalls", harness.Audit)
	w.goesOn(writer)
	type trial struct {
		site
		inject string
	}
	sites := w.sites(writer)
	var list []trial
	for _, s := range sites {
		for _, inject := range injections {
			list = append(list, trial{s, inject})
		}
	}
	seed, n := full.Sample(w.t, len(list), 14)
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	if w.weak {
		// A sample may miss the writes that the guard is about. The control has all of them, those first, and ends with the first effect.
		n = len(list)
		ahead := func(tr trial) int {
			if tr.name == "pwrite64" && tr.file == "audit.db-wal" && tr.inject != injections[0] {
				return 0
			}
			return 1
		}
		slices.SortStableFunc(list, func(a, b trial) int { return ahead(a) - ahead(b) })
	}
	hit := 0
	for i, tr := range list[:min(n, len(list))] {
		trials++
		if w.inject(writer, tr.site, tr.inject) {
			hit++
		}
		wrong := w.goesOn(writer)
		if w.weak || i%10 == 9 || i == len(list)-1 {
			wrong = append(wrong, w.wrong(time.Now())...)
		}
		if len(wrong) > 0 {
			w.t.Logf("%s %d of %s, %s: %d faults, the first: %s", tr.name, tr.nth, tr.file, tr.inject, len(wrong), wrong[0])
			effects += len(wrong)
		}
		if effects > 0 {
			break
		}
	}
	if effects == 0 {
		effects += len(w.wrong(time.Now()))
	}
	if hit*2 < trials && !w.weak {
		w.t.Errorf("of %d syscalls %d were hit: the line shows little", trials, hit)
	}
	w.note = fmt.Sprintf("%d syscalls of %d hit, %d starts by hand", hit, len(sites), w.restarts)
	return trials, effects
}

func (w *world) paths() (out []string) {
	for _, name := range []string{"audit.db", "audit.db-wal", "audit.db-shm"} {
		out = append(out, "-P", w.h.Path("state", harness.Audit, name))
	}
	return out
}

// sites are the file syscalls of an append, and those of a checkpoint.
func (w *world) sites(writer *ledger.Writer) (out []site) {
	w.t.Helper()
	seen := map[string]int{}
	look := func(appends int, keep func(strace.Call) bool, names ...string) {
		path := w.h.Path("trace")
		tracer := strace.Attach(w.t, w.h.Process(harness.Audit).PID(), append(w.paths(), strace.Recording(path, names...)...)...)
		for range appends {
			w.must(writer.Append(w.t.Context()))
		}
		tracer.Detach()
		calls, err := strace.Calls(path)
		w.must(err)
		counts := map[string]int{} // of one append: they begin anew with what is ahead of the database on the disk
		for _, c := range calls {
			key := c.Name + " " + c.File
			counts[key]++
			if keep(c) && counts[key] > seen[key] {
				seen[key] = counts[key]
				out = append(out, site{c.Name, c.File, counts[key]})
			}
			if c.Name == "fsync" && c.File == "audit.db-wal" {
				clear(counts)
			}
		}
	}
	look(several, func(strace.Call) bool { return true }, "pwrite64", "pread64", "fsync", "fdatasync", "ftruncate", "fstat", "newfstatat", "fcntl")
	look(checkpointing, func(c strace.Call) bool {
		return c.File == "audit.db" && (c.Name != "pwrite64" || seen["pwrite64 audit.db"] < 5)
	}, "pwrite64", "fsync", "fdatasync", "ftruncate")
	if !slices.ContainsFunc(out, func(s site) bool { return s.name == "pwrite64" && s.file == "audit.db-wal" }) ||
		!slices.ContainsFunc(out, func(s site) bool { return s.name == "pwrite64" && s.file == "audit.db" }) {
		w.t.Fatalf("an append is not seen to write: %v", out)
	}
	return out
}

// inject appends with one of audit's syscalls failing, and reports whether that syscall was reached.
func (w *world) inject(writer *ledger.Writer, s site, how string) (hit bool) {
	w.t.Helper()
	path := w.h.Path("trace")
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	p := w.h.Process(harness.Audit)
	tracer := strace.Attach(w.t, p.PID(), "-o", path, "-P", w.h.Path("state", harness.Audit, s.file), "-e", "trace="+s.name, "-e", fmt.Sprintf("inject=%s:%s:when=%d", s.name, how, s.nth))
	appends := several
	if s.file == "audit.db" {
		appends = checkpointing
	}
	reached := func() bool {
		raw, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // strace makes it when it has something to say
			w.t.Fatal(err)
		}
		return strings.Contains(string(raw), "(INJECTED)") || strings.Contains(string(raw), "+++ killed by SIGKILL +++")
	}
	for i := range appends {
		ctx, cancel := context.WithTimeout(w.t.Context(), harness.Patience)
		_ = writer.Append(ctx) // what is acknowledged counts
		cancel()
		if !p.Running() || (appends == several || i%20 == 19) && reached() {
			break
		}
	}
	tracer.Detach()
	return reached()
}

// goesOn says what keeps audit from taking records again, by itself or after a start.
func (w *world) goesOn(writer *ledger.Writer) []string {
	w.t.Helper()
	p := w.h.Process(harness.Audit)
	if w.weak {
		if !p.Running() {
			w.h.StartProcess(harness.Audit)
		}
		return nil // a writer that was told what is not so takes no other log
	}
	for began := time.Now(); p.Running(); {
		err := writer.Append(w.t.Context())
		if err == nil {
			return nil
		}
		if time.Since(began) > selfHelp {
			w.t.Logf("audit is started anew: %v", err)
			w.restarts++
			p.Kill()
		}
	}
	w.h.StartProcess(harness.Audit)
	if err := harness.Poll(func() error { return writer.Append(w.t.Context()) }); err != nil {
		return []string{fmt.Sprintf("audit takes no records any more: %v\n%s", err, w.h.Process(harness.Audit).Log())}
	}
	return nil
}

// wrong says what is wrong with the log of the audit that runs.
func (w *world) wrong(until time.Time) []string {
	w.t.Helper()
	var log *ledger.Log
	if err := harness.Poll(func() (err error) { // it may be busy with what it finds after its start
		if !w.h.Healthy(harness.Audit) && !w.weak {
			return errors.New("audit is not well")
		}
		log, err = w.held.Read(harness.Audit)
		return err
	}); err != nil {
		return []string{"the log does not prove itself: " + err.Error()}
	}
	return w.held.Check(log, until)
}
