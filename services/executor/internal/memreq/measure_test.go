package memreq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/model"
	"durward.internal/services/platform/vram"
)

// TestARunIsMeasured follows a service through a start, its work, a sleep, a wake and its end.
func TestARunIsMeasured(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	s := b.entry("declared")
	measure, flush := b.sampling(book)
	for i, step := range []struct {
		state                  executorv1.ServiceState
		since                  int64
		holds                  []uint32
		times                  int
		awake, loading, asleep uint32
		source                 string
	}{
		{starting, 0, []uint32{300}, 1, 8000, 8000, 600, vram.Declared},
		{starting, 0, []uint32{7900}, 1, 8000, 8000, 600, vram.Declared},
		{starting, 0, []uint32{5000}, 5, 8000, 8000, 600, vram.Declared},
		{running, 100, []uint32{6000}, 2, 8000, 8000, 600, vram.Declared},
		{running, 100, []uint32{6000}, 1, 6000, 7900, 600, vram.Measured},
		{running, 100, []uint32{6500}, 1, 6500, 7900, 600, vram.Measured},
		{running, 100, []uint32{100}, 5, 6500, 7900, 600, vram.Measured},
		{sick, 100, []uint32{6600}, 1, 6600, 7900, 600, vram.Measured},
		{asleep, 100, []uint32{800}, 1, 6600, 7900, 800, vram.Measured}, // more counts at once
		{asleep, 100, []uint32{400}, 3, 6600, 7900, 800, vram.Measured},
		{starting, 100, []uint32{8100}, 1, 6600, 7900, 800, vram.Measured}, // it wakes
		{running, 100, []uint32{6600}, 1, 6600, 8100, 800, vram.Measured},
		{executorv1.ServiceState_SERVICE_STATE_STOPPING, 100, []uint32{9999}, 1, 6600, 8100, 800, vram.Measured},
		{executorv1.ServiceState_SERVICE_STATE_UNKNOWN, 0, []uint32{9999}, 1, 6600, 8100, 800, vram.Measured},
		{stopped, 0, nil, 1, 6600, 8100, 800, vram.Measured},
	} {
		b.is("declared", step.state, step.since, step.holds...)
		measure(step.times)
		awake := book.Awake(s)
		if awake.MiB() != step.awake || awake.Source != step.source || book.Loading(s).MiB() != step.loading || book.Asleep(s).MiB() != step.asleep {
			t.Errorf("step %d: %+v awake, %+v loading, %+v asleep; want %+v", i, awake, book.Loading(s), book.Asleep(s), step)
		}
	}
	flush()
	kept := map[string]store.Peak{}
	for _, p := range b.noted() {
		kept[p.State] = p
	}
	if len(kept) != 3 || kept[store.PeakAwake].MiB[0] != 6600 || kept[store.PeakAwake].Readings != counts || kept[store.PeakAsleep].MiB[0] != 800 ||
		kept[store.PeakLoading].MiB[0] != 8100 || !kept[store.PeakAwake].Run.Equal(time.Unix(100, 0)) {
		t.Errorf("written down: %+v", kept)
	}
}

// TestWhatIsNotMeasured: what nobody can say, or what says nothing.
func TestWhatIsNotMeasured(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]func(*bench){
		"a driver that does not tell":        func(b *bench) { b.silent = true },
		"no program of it on any GPU":        func(b *bench) { b.is("declared", running, 100) },
		"a start that fails":                 func(b *bench) { b.is("declared", starting, 0, 7000) },
		"a service that never answers":       func(b *bench) { b.is("declared", sick, 100, 7000) },
		"a sleep that keeps its memory":      func(b *bench) { b.held("declared") },
		"one whose program cannot be read":   func(b *bench) { b.definition = "" },
		"on a GPU that nobody could name":    func(b *bench) { b.hardware("", 24564) },
		"one that is being stopped":          func(b *bench) { b.is("declared", executorv1.ServiceState_SERVICE_STATE_STOPPING, 100, 7000) },
		"one that nobody can see":            func(b *bench) { b.is("declared", executorv1.ServiceState_SERVICE_STATE_UNKNOWN, 0, 7000) },
		"memory of a service that is no one": func(b *bench) { b.is("declared", stopped, 0, 7000) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.is("declared", running, 100, 7000)
			c(b)
			book := b.book()
			measure, flush := b.sampling(book)
			measure(5)
			if name == "a start that fails" {
				b.is("declared", stopped, 0)
				measure(2)
			}
			flush()
			wantNeed(t, "awake", book.Awake(b.entry("declared")), vram.Declared, on(8000))
			for _, p := range b.noted() {
				if p.Readings > 0 {
					t.Errorf("it was written down: %+v", p)
				}
			}
		})
	}
}

// held makes a service one that says that it sleeps and keeps its memory.
func (b *bench) held(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.views[id] = service.View{State: sick, Cause: driver.CauseStillHeld, Since: time.Unix(100, 0)}
}

// TestAChangeInTheMiddleOfAMeasurementSpoilsIt: nobody can say which of the two states was measured.
func TestAChangeInTheMiddleOfAMeasurementSpoilsIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	b.is("declared", running, 100, 7000)
	m := &sampler{book: book, services: b, runs: map[string]*run{}, now: time.Now}
	m.host = reader(func(ctx context.Context) gpu.Host {
		h := b.Read(ctx)
		b.is("declared", asleep, 100, 500)
		return h
	})
	m.sample(t.Context())
	if len(book.peaks) != 0 {
		t.Errorf("it was measured: %+v", book.peaks)
	}
}

// TestAProgramThatNobodyCanAskMayStillLoad: without a health check it runs from its first moment on.
func TestAProgramThatNobodyCanAskMayStillLoad(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	s := b.entry("both")
	measure, _ := b.sampling(book)
	before := int(s.StartTimeout()/apart) - 1
	if s.Health != nil || before < counts {
		t.Fatalf("the example has a health check, or little time: %+v", s)
	}
	b.is("both", running, 1010, 3000, 3000) // when it is measured first
	measure(before + 1)
	wantNeed(t, "while it may load", book.Awake(s), vram.Declared, map[uint32]uint32{0: 4501, 1: 4501})
	measure(counts)
	wantNeed(t, "when it has loaded", book.Awake(s), vram.Measured, map[uint32]uint32{0: 3000, 1: 3000})
}

type reader func(ctx context.Context) gpu.Host

func (r reader) Read(ctx context.Context) gpu.Host { return r(ctx) }

// TestAnEntryThatChangesWhileItRuns is of what runs next: what runs now was started by the old one, also for a process that comes up
// later.
func TestAnEntryThatChangesWhileItRuns(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	measure, flush := b.sampling(book)
	b.is("declared", running, 100, 7000)
	measure(3)
	b.edit("vram_mib: 8000, sleep", "vram_mib: 20000, sleep")
	b.is("declared", running, 100, 7500)
	measure(5)
	wantNeed(t, "the new entry", book.Awake(b.entry("declared")), vram.Declared, on(20000))
	flush()
	b.kept = b.noted()

	again := b.book()
	measure, flush = b.sampling(again)
	measure(5)
	flush()
	wantNeed(t, "the new entry, after a restart", again.Awake(b.entry("declared")), vram.Declared, on(20000))
	if left := len(b.noted()) - len(b.kept); left != 0 {
		t.Errorf("%d peaks of nobody were written down: %+v", left, b.noted()[len(b.kept):])
	}
	// Started anew, it is measured.
	b.is("declared", running, 200, 19000)
	measure(3)
	wantNeed(t, "the new entry, started", again.Awake(b.entry("declared")), vram.Measured, on(19000))
	b.edit("", "")
	again.Observe(t.Context(), b.entry("declared"))
	wantNeed(t, "the old entry again", again.Awake(b.entry("declared")), vram.Measured, on(7500))
}

// TestAServiceThatItsManagerStartsAgain is another run: what it names may have changed.
func TestAServiceThatItsManagerStartsAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	measure, _ := b.sampling(book)
	b.is("declared", running, 100, 7000)
	measure(3)
	b.definition = "sha256:two"
	b.is("declared", running, 150, 3000)
	measure(3)
	wantNeed(t, "the new program", book.Awake(b.entry("declared")), vram.Measured, on(3000))
	b.definition = "sha256:one"
	book.Observe(t.Context(), b.entry("declared"))
	wantNeed(t, "the old program", book.Awake(b.entry("declared")), vram.Measured, on(7000))
}

// settling decides between what is known and what was measured, as settle does.
type settling func(s *catalog.Service, known Need, peak store.Peak, floor bool) Need

// smaller looks for a service that got its own need below what it holds, or below what is declared without having been measured
// ready often enough: it steers what it holds and how it looks, and nothing else. It returns what it found, "" if nothing.
func smaller(b *bench, settle settling) string {
	random := rand.New(rand.NewPCG(1, 2))
	s := b.entry("declared")
	for game := range 300 {
		book := b.book()
		measure, _ := b.sampling(book)
		ready, most, last := 0, uint32(0), uint32(0)
		for move := range 12 {
			state := []executorv1.ServiceState{running, running, running, sick, starting}[random.IntN(5)]
			last = []uint32{10, 1999, 2500, 7000, 9000, 20000}[random.IntN(6)]
			b.is("declared", state, 100, last)
			measure(1)
			if state == running {
				ready++
			}
			if state != starting {
				most = max(most, last)
			}
			need := settle(s, Need{Source: vram.Declared, PerGPU: on(8000)}, book.peak(s, store.PeakAwake), false).MiB()
			switch {
			case state != starting && need < last:
				return fmt.Sprintf("game %d, move %d: it holds %d and needs %d", game, move, last, need)
			case need < most:
				return fmt.Sprintf("game %d, move %d: it held %d and needs %d", game, move, most, need)
			case need < 8000 && ready < counts:
				return fmt.Sprintf("game %d, move %d: it was ready %d times and needs %d", game, move, ready, need)
			case need < 8000/lazy:
				return fmt.Sprintf("game %d, move %d: it needs %d of 8000", game, move, need)
			}
		}
	}
	return ""
}

// peak is what was measured of a service in a state.
func (b *Tracker) peak(s *catalog.Service, state string) store.Peak {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.seen(s, b.cfg.GPUs.Models())[state]
}

// TestAServiceCannotMakeItsNeedSmaller plays against the book, and against weaker ones, which the same game catches.
func TestAServiceCannotMakeItsNeedSmaller(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	if found := smaller(b, settle); found != "" {
		t.Error(found)
	}
	for name, weak := range map[string]settling{
		"whatever was measured": func(s *catalog.Service, known Need, p store.Peak, _ bool) Need {
			if len(p.MiB) == 0 {
				return known
			}
			return Need{PerGPU: byIndex(s, p.MiB)}
		},
		"never more than declared": func(s *catalog.Service, known Need, p store.Peak, _ bool) Need {
			if p.Readings < counts {
				return known
			}
			return settle(s, known, p, false)
		},
		"a server without its model": func(s *catalog.Service, known Need, p store.Peak, _ bool) Need {
			if p.Readings < counts {
				return settle(s, known, p, false)
			}
			return Need{PerGPU: byIndex(s, p.MiB)}
		},
	} {
		if found := smaller(b, weak); found == "" {
			t.Errorf("the game does not catch a book that takes %s", name)
		}
	}
}

// TestPeaksSurviveARestart, with the real store.
func TestPeaksSurviveARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := newBench(t)
	open := func() *store.Store {
		memory, err := store.Open(t.Context(), dir)
		must(t, err)
		return memory
	}
	memory := open()
	book := b.book(func(c *Config) { c.Memory = memory })
	measure, flush := b.sampling(book)
	b.is("declared", running, 100, 7000)
	b.is("both", running, 100, 3000, 6000)
	measure(3)
	flush()
	before, err := memory.Peaks(t.Context())
	if err != nil || len(before) != 2 {
		t.Fatalf("%+v, %v", before, err)
	}
	must(t, memory.Close())

	memory = open()
	defer memory.Close()
	again := b.book(func(c *Config) { c.Memory = memory })
	again.Settle(t.Context(), b, b)
	wantNeed(t, "declared", again.Awake(b.entry("declared")), vram.Measured, on(7000))
	wantNeed(t, "both", again.Awake(b.entry("both")), vram.Measured, map[uint32]uint32{0: 3000, 1: 6000})
	// It runs on, and holds less: the peak stays.
	b.is("declared", running, 100, 100)
	measure, flush = b.sampling(again)
	measure(3)
	flush()
	after, err := memory.Peaks(t.Context())
	if diff := cmp.Diff(before, after, cmpopts.IgnoreFields(store.Peak{}, "Last")); diff != "" || err != nil {
		t.Errorf("after a restart (-before +after), %v:\n%s", err, diff)
	}
}

// TestLittleIsWritten: a peak that creeps up is not written down for each MiB, and a disk that is full is tried again.
func TestLittleIsWritten(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	measure, flush := b.sampling(book)
	for i := range uint32(100) {
		b.is("declared", running, 100, 7000+i)
		measure(1)
	}
	// The first, the one that makes it count, and 32, 64 and 96 MiB more.
	if n := len(b.noted()); n < 4 || n > 6 {
		t.Errorf("%d were written: %+v", n, b.noted())
	}
	b.failing = true
	b.is("declared", running, 100, 7200)
	measure(2)
	flush()
	b.failing = false
	flush()
	if last := b.noted()[len(b.noted())-1]; last.MiB[0] != 7200 {
		t.Errorf("written last: %+v", last)
	}
	n := len(b.noted())
	flush()
	if len(b.noted()) != n {
		t.Error("what was written is written again")
	}
}

// TestWhatIsSeenEveryDayIsNotTheOldest: nothing of it grows, and when it was seen last is written down all the same.
func TestWhatIsSeenEveryDayIsNotTheOldest(t *testing.T) {
	t.Parallel()
	for hours, want := range map[int]int{1: 0, 25: 1} {
		b := newBench(t)
		book := b.book()
		c := &settable{time.Unix(1000, 0)}
		m := &sampler{book: book, services: b, host: b, runs: map[string]*run{}, now: func() time.Time { return c.at }}
		up := func(since int64) {
			b.is("declared", running, since, 7000)
			for range 4 {
				c.at = c.at.Add(apart)
				m.sample(t.Context())
			}
			b.is("declared", stopped, 0)
			m.sample(t.Context())
		}
		up(100)
		before := len(b.noted())
		c.at = c.at.Add(time.Duration(hours) * time.Hour)
		up(200)
		if n := len(b.noted()) - before; n != want {
			t.Errorf("%d hours later %d peaks are written down, want %d: %+v", hours, n, want, b.noted())
		}
	}
}

// TestAFileThatHangsKeepsNoEnd: what was measured is written down, and the end waits only a moment for who reads.
func TestAFileThatHangsKeepsNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.edit("/nowhere/model.gguf", t.TempDir())
		dead := make(chan struct{})
		book := b.book(func(c *Config) { c.Inspector = deaf(dead) })
		end := b.runs(t, book)
		b.is("declared", running, 100, 7000)
		time.Sleep(time.Minute)
		b.is("declared", running, 100, 7005)
		time.Sleep(slow)
		began := time.Now()
		end()
		if d := time.Since(began); d != flushPatience {
			t.Errorf("the end took %s", d)
		}
		if noted := b.noted(); len(noted) == 0 || noted[len(noted)-1].MiB[0] != 7005 {
			t.Errorf("written down: %+v", noted)
		}
		close(dead)
	})
}

// deaf is an inspector that hears of no end of anybody.
type deaf chan struct{}

func (d deaf) Card(context.Context, string) (model.Card, error) {
	<-d
	return model.Card{}, nil
}

// TestManyConfigurationsAreForgotten in the process as they are in the store.
func TestManyConfigurationsAreForgotten(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	book := b.book()
	measure, _ := b.sampling(book)
	for i := range int64(3 * keepConfigurations) {
		b.definition = fmt.Sprintf("sha256:%d", i)
		b.is("declared", running, 100+i, 7000)
		measure(3)
	}
	if n := len(book.peaks["declared"]); n != keepConfigurations {
		t.Errorf("%d are remembered", n)
	}
	wantNeed(t, "the newest", book.Awake(b.entry("declared")), vram.Measured, on(7000))
}

// TestAnIdleHostIsNotMeasured: the driver is asked when a service is up, soon after it changes, and not more than every ten seconds
// while it only works.
func TestAnIdleHostIsNotMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		book := b.book()
		end := b.runs(t, book)
		during := func(d time.Duration) int {
			before := b.measurements()
			time.Sleep(d)
			synctest.Wait()
			return b.measurements() - before
		}
		if n := during(24 * time.Hour); n != 0 {
			t.Errorf("an idle host was measured %d times", n)
		}
		b.is("declared", starting, 0, 100)
		if n := during(20 * time.Second); n < 8 || n > 12 {
			t.Errorf("a start of 20 s was measured %d times", n)
		}
		b.is("declared", running, 100, 7000)
		if n := during(2 * time.Second); n < 1 {
			t.Error("nobody looked when it was ready")
		}
		during(time.Minute)
		if n := during(time.Hour); n < 350 || n > 370 {
			t.Errorf("an hour of work was measured %d times", n)
		}
		// A hundred changes at once are no hundred measurements.
		before := b.measurements()
		for range 100 {
			b.is("declared", running, 100, 7000)
		}
		if n := during(5*time.Second) + b.measurements() - before; n > 8 {
			t.Errorf("%d measurements for many changes", n)
		}
		b.is("declared", stopped, 0)
		during(time.Minute)
		if n := during(24 * time.Hour); n != 0 {
			t.Errorf("a host that is idle again was measured %d times", n)
		}
		b.is("declared", running, 200, 7005)
		during(time.Second)
		end()
		if last := b.noted()[len(b.noted())-1]; last.MiB[0] != 7005 {
			t.Errorf("at the end it wrote %+v", last)
		}
	})
}

// TestSimulatedGPUsAreNotMeasured, whatever they say.
func TestSimulatedGPUsAreNotMeasured(t *testing.T) {
	t.Parallel()
	c, err := catalog.Parse("catalogue.yaml", []byte(`version: 1
gpus: [{index: 0, name: Made up, memory_mib: 24000, simulated: true}]
services: [{id: declared, driver: systemd, unit: declared.service, gpus: [0], vram_mib: 8000}]
`), catalog.Options{Development: true})
	must(t, err)
	b := newBench(t)
	b.catalog = c
	book := b.book()
	measure, flush := b.sampling(book)
	b.is("declared", running, 100, 7000)
	measure(5)
	flush()
	if b.measurements() != 0 || len(b.noted()) != 0 {
		t.Errorf("%d measurements, %+v", b.measurements(), b.noted())
	}
	wantNeed(t, "awake", book.Awake(b.entry("declared")), vram.Declared, on(8000))
}
