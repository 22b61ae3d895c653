package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"durward.internal/deploy/e2e/harness"
	"durward.internal/deploy/e2e/strace"
	"durward.internal/services/platform/platformtest/full"
)

const (
	// sector is what a disk writes as a whole.
	sector = 512
	// powerWriters append at the same time while the disk is recorded.
	powerWriters = 3
)

// database are the files of audit's state that hold the log. The third of SQLite's files is made anew after a power cut.
var database = []string{"audit.db", "audit.db-wal"}

// powerCuts records what audit writes and syncs while it appends, and cuts the power, on paper, at many moments: of what was written and
// not synced by then each write is kept, lost or torn. Its effects are records that were acknowledged before that moment and that audit
// has not after a start on what is left, and states with which it does not start.
func powerCuts(w *world) (trials, effects int) {
	base := w.base()
	calls := w.recorded(w.size(600, 60))
	seed, cuts := full.Sample(w.t, 200, 10)
	if w.weak {
		cuts = 200 // until the first effect
	}
	random := rand.New(rand.NewPCG(seed, 0))
	var told []time.Time
	for _, writer := range w.held.Writers {
		told = append(told, writer.Times()...)
	}
	slices.SortFunc(told, time.Time.Compare)
	if len(told) == 0 || len(calls) == 0 {
		w.t.Fatalf("%d records were acknowledged, and %d calls recorded", len(told), len(calls))
	}
	for i := range cuts {
		// At the moment of an answer, or at any other.
		at := told[random.IntN(len(told))].Add(time.Nanosecond)
		if i%2 == 1 {
			at = calls[random.IntN(len(calls))].Began.Add(time.Microsecond)
		}
		for name, content := range cut(base, calls, at, random) {
			w.must(os.WriteFile(w.h.Path("state", harness.Audit, name), content, 0o600))
		}
		if err := os.Remove(w.h.Path("state", harness.Audit, "audit.db-shm")); err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Fatal(err)
		}
		trials++
		if wrong := w.afterStart(at); len(wrong) > 0 {
			w.t.Logf("cut %d (seed %d), at %s: %d faults, the first: %s", i, seed, at.Format(time.StampMicro), len(wrong), wrong[0])
			effects += len(wrong)
		}
		if w.caught(effects) {
			break
		}
	}
	w.note = fmt.Sprintf("%d records acknowledged, %d writes and syncs", len(told), len(calls))
	return trials, effects
}

// base makes a state that was closed as it should be, and returns its files.
func (w *world) base() map[string][]byte {
	w.t.Helper()
	w.h.StartProcess(harness.Audit)
	w.h.Process(harness.Audit).Stop()
	out := map[string][]byte{}
	for _, name := range database {
		content, err := os.ReadFile(w.h.Path("state", harness.Audit, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Fatal(err)
		}
		out[name] = content
	}
	return out
}

// recorded has so many records appended, and returns what audit did to its files, in order. Audit is killed at the end.
func (w *world) recorded(records int) []strace.Call {
	w.t.Helper()
	path := w.h.Path("trace")
	w.h.LaunchUnder(append([]string{"strace", "-D", "-f"}, strace.Recording(path, "pwrite64", "ftruncate", "fsync", "fdatasync")...), harness.Audit)
	w.h.AwaitHealthy(harness.Audit)
	ctx, cancel := context.WithTimeout(w.t.Context(), 4*harness.Patience)
	defer cancel()
	var writing sync.WaitGroup
	for i := range powerWriters {
		writer := w.held.Add(fmt.Sprintf("egress/power-%d", i), harness.Audit)
		writing.Go(func() {
			for n, _ := writer.Acknowledged(time.Time{}); n < records && ctx.Err() == nil; n, _ = writer.Acknowledged(time.Time{}) {
				_ = writer.Append(ctx) // what is acknowledged counts
			}
		})
	}
	writing.Wait()
	w.h.Process(harness.Audit).Kill()
	w.held.Close()
	ended := fmt.Sprintf("%d ", w.h.Process(harness.Audit).PID())
	harness.Eventually(w.t, "the recording is whole", func() error {
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, line := range strings.Split(string(raw[max(len(raw)-20_000, 0):]), "\n") {
			if strings.HasPrefix(line, ended) && strings.Contains(line, "+++ killed by SIGKILL +++") {
				return nil
			}
		}
		return errors.New("the end of audit is not in it")
	})
	calls, err := strace.Calls(path)
	w.must(err)
	return slices.DeleteFunc(calls, func(c strace.Call) bool { return !slices.Contains(database, c.File) })
}

// cut returns what the disk may hold of the files when the power goes at that moment.
func cut(base map[string][]byte, calls []strace.Call, at time.Time, random *rand.Rand) map[string][]byte {
	disk, waiting := map[string][]byte{}, map[string][]strace.Call{}
	for name, content := range base {
		disk[name] = slices.Clone(content)
	}
	for _, c := range calls {
		if c.Began.After(at) {
			break
		}
		if c.Name != "fsync" && c.Name != "fdatasync" {
			if c.Result >= 0 {
				waiting[c.File] = append(waiting[c.File], c)
			}
			continue
		}
		if c.Result != 0 || c.Ended.IsZero() || c.Ended.After(at) {
			continue
		}
		var later []strace.Call
		for _, write := range waiting[c.File] {
			if write.Ended.After(c.Began) {
				later = append(later, write)
				continue
			}
			disk[c.File] = apply(disk[c.File], write, len(write.Data))
		}
		waiting[c.File] = later
	}
	// What was not synced: nothing of it, all but the last, or any part of it, in any order.
	way := random.IntN(3)
	for _, name := range database {
		left := waiting[name]
		if way == 2 {
			random.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		for i, write := range left {
			kept := len(write.Data)
			switch {
			case way == 0:
				continue
			case way == 1 && i == len(left)-1, way == 2 && random.IntN(3) == 0:
				kept = random.IntN(len(write.Data)/sector+1) * sector
			case way == 2 && random.IntN(2) == 0:
				continue
			}
			disk[name] = apply(disk[name], write, min(kept, len(write.Data)))
		}
	}
	return disk
}

// apply does to a file, in place where it can, what a call did, of a write its first bytes.
func apply(file []byte, c strace.Call, kept int) []byte {
	end := int(c.Offset) + kept
	if c.Name == "ftruncate" {
		end = int(c.Size)
		file = file[:min(end, len(file))]
	}
	if end > len(file) {
		file = append(file, make([]byte, end-len(file))...)
	}
	copy(file[c.Offset:end], c.Data[:kept])
	return file
}

// afterStart starts audit on the state as it lies there, and says what is wrong with what it has of what was acknowledged by that time.
func (w *world) afterStart(until time.Time) []string {
	w.t.Helper()
	p := w.h.Launch(harness.Audit)
	defer func() {
		if p.Running() {
			p.Kill()
		}
	}()
	if err := harness.Poll(func() error {
		if !p.Running() || w.h.Healthy(harness.Audit) {
			return nil
		}
		return errors.New("it is not healthy")
	}); err != nil || !p.Running() {
		return []string{fmt.Sprintf("audit does not start: %v\n%s", err, p.Log())}
	}
	log, err := w.held.Read(harness.Audit)
	if err != nil {
		return []string{"the log does not prove itself: " + err.Error()}
	}
	return w.held.Check(log, until)
}
