package service

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

func TestASleepIsSeenByItsMemory(t *testing.T) {
	for name, c := range map[string]struct {
		given func(*sleeper)
		cause string
		state executorv1.ServiceState
	}{
		"it lies":                    {func(w *sleeper) { w.model.lies = true }, driver.CauseStillHeld, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY},
		"it leaks":                   {func(w *sleeper) { w.model.keeps = 151 }, driver.CauseStillHeld, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY},
		"nobody measures":            {func(w *sleeper) { w.cfg.GPUs = nil }, driver.CauseStillHeld, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY},
		"the GPU is gone":            {func(w *sleeper) { w.bench.none = true }, driver.CauseStillHeld, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY},
		"the GPU is lost":            {func(w *sleeper) { w.bench.device.Problem = gpu.ProblemLost }, driver.CauseStillHeld, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY},
		"it lies, seen on the whole": {func(w *sleeper) { w.bench.nobody, w.model.lies = true, true }, driver.CauseStillHeld, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY},
		"its engine fails":           {func(w *sleeper) { w.model.sleepErr = errors.New("500") }, driver.CauseNoSleep, executorv1.ServiceState_SERVICE_STATE_RUNNING},
		"it sleeps":                  {func(*sleeper) {}, "", executorv1.ServiceState_SERVICE_STATE_SLEEPING},
		"it keeps what it may":       {func(w *sleeper) { w.model.keeps = 150 }, "", executorv1.ServiceState_SERVICE_STATE_SLEEPING},
		"seen on the whole":          {func(w *sleeper) { w.bench.nobody = true }, "", executorv1.ServiceState_SERVICE_STATE_SLEEPING},
		"a simulated GPU": {func(w *sleeper) { w.bench.device.Simulated, w.model.lies = true, true }, "",
			executorv1.ServiceState_SERVICE_STATE_SLEEPING},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSleeper(t).up()
				c.given(w)
				began := time.Now()
				changed, err := w.SleepService(t.Context(), w.s)
				if c.cause != "" {
					wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not go to sleep: "+c.cause)
				}
				if (err == nil) != (c.cause == "") || changed != (err == nil) || Cause(err) != c.cause || w.state() != c.state {
					t.Errorf("%v, %v, cause %q, %v", changed, err, Cause(err), w.Status(w.s))
				}
				if took := time.Since(began); took > verifyPatience+time.Second {
					t.Errorf("it took %s", took)
				}
				want := uint32(1000)
				if c.state == executorv1.ServiceState_SERVICE_STATE_SLEEPING {
					want = 100
				}
				if claims := w.Claims(); len(claims) != 1 || claims[0].MiB != want {
					t.Errorf("it claims %+v", claims)
				}
			})
		})
	}
}

// counted are what a service is counted for on GPU 0, whatever it declares.
type counted struct{ awake, asleep uint32 }

func (c counted) Awake(*catalog.Service) map[uint32]uint32   { return map[uint32]uint32{0: c.awake} }
func (c counted) Loading(*catalog.Service) map[uint32]uint32 { return c.Awake(nil) }
func (c counted) Asleep(*catalog.Service) map[uint32]uint32  { return map[uint32]uint32{0: c.asleep} }

// TestASleepIsJudgedByWhatItIsCountedFor: plans go by numbers that are measured or estimated, and so does what is seen of a sleep.
func TestASleepIsJudgedByWhatItIsCountedFor(t *testing.T) {
	for name, c := range map[string]struct {
		sizes            capacity.Sizes
		declared, keeps  uint32
		nobody, lies, ok bool
	}{
		"it keeps what is estimated":         {counted{20000, 1168}, 0, 1168, false, false, true},
		"it keeps a margin more":             {counted{20000, 1168}, 0, 1680, false, false, true},
		"it keeps more":                      {counted{20000, 1168}, 0, 1681, false, false, false},
		"it keeps more than is declared":     {counted{20000, 1168}, 600, 1168, false, false, true},
		"it keeps what is declared":          {counted{20000, 90}, 1200, 1700, false, false, true},
		"nobody counts":                      {nil, 0, 1168, false, false, false},
		"seen on the whole":                  {counted{20000, 1168}, 0, 1168, true, false, true},
		"it lies":                            {counted{20000, 1168}, 0, 0, false, true, false},
		"it lies, seen on the whole":         {counted{20000, 1168}, 0, 0, true, true, false},
		"it lies, and nobody knows its size": {counted{}, 0, 0, true, true, false},
		"unknown, and seen to give back":     {counted{}, 0, 600, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSleeper(t)
				w.bench.device.Total = 24564
				w.bench.hold(20000)
				w.bench.nobody, w.model.lies, w.model.keeps = c.nobody, c.lies, c.keeps
				w.cfg.MarginMiB, w.cfg.Sizes, w.s.VRAMMiB, w.s.SleepMiB = 512, c.sizes, 0, c.declared
				w.up()
				changed, err := w.SleepService(t.Context(), w.s)
				if changed != c.ok || (err == nil) != c.ok || w.Status(w.s).Asleep() != c.ok {
					t.Errorf("%v, %v: %+v", changed, err, w.Status(w.s))
				}
			})
		})
	}
}

// TestAStrangerOnAHiddenGPU: what others hold on a GPU that CUDA_VISIBLE_DEVICES hides from the engine is nothing that a sleep could give back,
// where nobody tells which program holds what.
func TestAStrangerOnAHiddenGPU(t *testing.T) {
	hidden := func(w *sleeper) {
		w.s.GPUs, w.s.Environment, w.cfg.Sizes = []uint32{0, 1}, map[string]string{"CUDA_VISIBLE_DEVICES": "0"}, capacity.Declared{}
		w.bench.nobody, w.bench.beside = true, []gpu.Device{{Index: 1, Total: 24000, Used: 400, Free: 23600}}
	}
	t.Run("put to sleep", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newSleeper(t)
			hidden(w)
			if changed, err := w.up().SleepService(t.Context(), w.s); !changed || err != nil || !w.Status(w.s).Asleep() {
				t.Errorf("%v, %v: %+v", changed, err, w.Status(w.s))
			}
		})
	})
	t.Run("found asleep", func(t *testing.T) {
		w := newSleeper(t)
		hidden(w)
		w.model.asleep = true
		w.bench.hold(100)
		if w.up(); !w.Status(w.s).Asleep() {
			t.Errorf("it is %+v", w.Status(w.s))
		}
	})
	t.Run("what the driver tells counts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newSleeper(t)
			hidden(w)
			w.bench.beside[0].Processes = []gpu.Process{{PID: 7, MiB: 400, Service: "chat"}}
			if _, err := w.up().SleepService(t.Context(), w.s); Cause(err) != driver.CauseStillHeld {
				t.Errorf("%v: %+v", err, w.Status(w.s))
			}
		})
	})
}

// TestMemoryComesBackLate: a driver gives it back a moment after the engine has answered.
func TestMemoryComesBackLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSleeper(t).up()
		w.model.lies = true
		go func() {
			time.Sleep(3 * time.Second)
			w.bench.hold(100)
		}()
		if changed, err := w.SleepService(t.Context(), w.s); !changed || err != nil {
			t.Errorf("%v, %v", changed, err)
		}
	})
}

// TestALieIsForgivenOnceItIsNone: the check sees the memory that came back too late for the sleep.
func TestALieIsForgivenOnceItIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSleeper(t).up()
		w.model.lies = true
		if _, err := w.SleepService(t.Context(), w.s); err == nil || w.Status(w.s).Cause != driver.CauseStillHeld {
			t.Errorf("%v, %v", err, w.Status(w.s))
		}
		if changed, err := w.SleepService(t.Context(), w.s); changed || Cause(err) != driver.CauseStillHeld {
			t.Errorf("again: %v, %v", changed, err)
		}
		w.bench.hold(100)
		w.check(t.Context(), w.s, w.instance("chat"))
		if v := w.Status(w.s); !v.Asleep() || v.Running() || !v.Holds() {
			t.Errorf("then: %v", v)
		}
		if changed, err := w.SleepService(t.Context(), w.s); changed || err != nil {
			t.Errorf("asleep already: %v, %v", changed, err)
		}
	})
}

func TestWhoMaySleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSleeper(t)
		_, err := w.SleepService(t.Context(), w.s)
		wantFault(t, err, callv1.Code_CODE_CONFLICT, "chat does not run, so it cannot be put to sleep")
		_, err = w.WakeService(t.Context(), w.s)
		wantFault(t, err, callv1.Code_CODE_CONFLICT, "chat does not run, so it cannot be woken; start it")
		w.up()
		w.cfg.Confirm = refusing
		if _, err := w.SleepService(t.Context(), w.s); !errors.Is(err, errNo) || w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
			t.Errorf("unconfirmed: %v, %v", err, w.Status(w.s))
		}
		w.cfg.Confirm = willing
		if changed, err := w.WakeService(t.Context(), w.s); changed || err != nil {
			t.Errorf("awake: %v, %v", changed, err)
		}
		w.s.Sleep = catalog.SleepNone
		_, err = w.SleepService(t.Context(), w.s)
		wantFault(t, err, callv1.Code_CODE_FAILED, "chat cannot sleep: its catalogue entry says no way to")
		_, err = w.WakeService(t.Context(), w.s)
		wantFault(t, err, callv1.Code_CODE_FAILED, "chat does not sleep: its catalogue entry says no way to")
		if calls := w.model.done(); len(calls) > 0 {
			t.Errorf("its engine was asked: %v", calls)
		}
	})
}

func TestWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSleeper(t).up()
		if _, err := w.SleepService(t.Context(), w.s); err != nil {
			t.Fatal(err)
		}
		no := fault.New(callv1.Code_CODE_DOES_NOT_FIT, "too big")
		w.cfg.Admit = func(context.Context, *catalog.Service) error { return no }
		if _, err := w.WakeService(t.Context(), w.s); !errors.Is(err, error(no)) {
			t.Errorf("a wake that does not fit: %v", err)
		}
		if _, err := w.Start(t.Context(), w.s); !errors.Is(err, error(no)) || w.state() != executorv1.ServiceState_SERVICE_STATE_SLEEPING {
			t.Errorf("a start that does not fit: %v", err)
		}
		w.cfg.Admit, w.cfg.Confirm = nil, refusing
		if _, err := w.WakeService(t.Context(), w.s); !errors.Is(err, errNo) {
			t.Errorf("unconfirmed: %v", err)
		}
		w.cfg.Confirm, w.model.wakeErr = willing, errors.New("500")
		_, err := w.WakeService(t.Context(), w.s)
		wantFault(t, err, callv1.Code_CODE_FAILED, "chat did not wake: its engine did not wake")
		if w.state() != executorv1.ServiceState_SERVICE_STATE_SLEEPING {
			t.Errorf("not woken, and yet %v", w.Status(w.s))
		}
		w.model.wakeErr = nil
		if changed, err := w.WakeService(t.Context(), w.s); !changed || err != nil {
			t.Errorf("%v, %v", changed, err)
		}
		if v := w.Status(w.s); v.State != executorv1.ServiceState_SERVICE_STATE_RUNNING || !v.Healthy || w.Claims()[0].MiB != 1000 {
			t.Errorf("woken: %v, %v", v, w.Claims())
		}
		if _, err := w.SleepService(t.Context(), w.s); err != nil {
			t.Error(err)
		}
		// To start what sleeps is to wake it: no second program.
		if changed, err := w.Start(t.Context(), w.s); !changed || err != nil || w.state() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
			t.Errorf("start: %v, %v, %v", changed, err, w.Status(w.s))
		}
		if starts, _ := w.program.count(); starts != 0 {
			t.Errorf("%d starts", starts)
		}
		want := []string{"sleep", "wake one", "wake one", "warm", "sleep", "wake one", "warm"}
		if diff := cmp.Diff(want, w.model.done()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestASleeperIsFoundAgain: an executor that begins anew asks the engine, and believes the memory.
func TestASleeperIsFoundAgain(t *testing.T) {
	w := newSleeper(t)
	w.model.asleep = true
	w.bench.hold(100)
	if w.up(); w.state() != executorv1.ServiceState_SERVICE_STATE_SLEEPING {
		t.Errorf("it is %v", w.Status(w.s))
	}
	if w.answers.asked != 0 {
		t.Error("a sleeper was asked for its health")
	}
	if got := w.Found(t.Context(), "sleep_service", []byte(`{"service_id":"chat"}`)); got != "sleeping" {
		t.Errorf("found %q", got)
	}
	if changed, err := w.Stop(t.Context(), w.s); !changed || err != nil || w.state() != executorv1.ServiceState_SERVICE_STATE_STOPPED {
		t.Errorf("a sleeper is stopped: %v, %v, %v", changed, err, w.Status(w.s))
	}
}

// TestAnotherRunDoesNotSleep: what slept may have ended and been started again by its manager or a human. While that loads, its engine does
// not answer, and the sleep of the program before says nothing of it.
func TestAnotherRunDoesNotSleep(t *testing.T) {
	for name, lies := range map[string]bool{"it slept": false, "it slept and kept its memory": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSleeper(t).up()
				w.model.lies = lies
				if _, err := w.SleepService(t.Context(), w.s); (err != nil) != lies {
					t.Fatal(err)
				}
				w.model.asleepErr, w.model.sleepErr = errNobody, errNobody
				w.check(t.Context(), w.s, w.instance("chat"))
				if v := w.Status(w.s); v.Asleep() == lies || (v.Cause == driver.CauseStillHeld) != lies {
					t.Errorf("the same run, which does not answer: %+v", v)
				}
				time.Sleep(time.Second) // in a bubble of synctest, which takes no time
				w.program.set(driver.Status{State: driver.Running, Since: time.Now()})
				for _, when := range []string{"before the check", "after it"} {
					if when == "after it" {
						w.check(t.Context(), w.s, w.instance("chat"))
					}
					if v := w.Status(w.s); !v.Running() || v.Asleep() || v.Cause == driver.CauseStillHeld {
						t.Errorf("another run, %s: %+v", when, v)
					}
					if claims := w.Claims(); len(claims) != 1 || claims[0].MiB != 1000 {
						t.Errorf("another run, %s, claims %+v", when, claims)
					}
				}
				// What does not sleep is neither woken nor taken to have slept already.
				if changed, err := w.WakeService(t.Context(), w.s); changed || err != nil {
					t.Errorf("a wake: %v, %v", changed, err)
				}
				if _, err := w.SleepService(t.Context(), w.s); Cause(err) != driver.CauseNoSleep {
					t.Errorf("a sleep: %v", err)
				}
			})
		})
	}
}

// TestRequestsMayEnd: before a sleep and a stop, where the engine tells of them, and not for ever.
func TestRequestsMayEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSleeper(t).up()
		w.model.usage = engine.Usage{Told: true, Requests: 2}
		go func() {
			time.Sleep(4 * time.Second)
			w.model.mu.Lock()
			w.model.usage.Requests = 0
			w.model.mu.Unlock()
		}()
		began := time.Now()
		if _, err := w.SleepService(t.Context(), w.s); err != nil || time.Since(began) < 4*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if _, err := w.WakeService(t.Context(), w.s); err != nil {
			t.Error(err)
		}
		w.model.mu.Lock()
		w.model.usage.Requests = 1
		w.model.mu.Unlock()
		began = time.Now()
		if changed, err := w.Stop(t.Context(), w.s); !changed || err != nil || time.Since(began) != drainPatience {
			t.Errorf("%v, %v after %s", changed, err, time.Since(began))
		}
		if got := strings.Join(w.model.done(), " "); got != "drain sleep wake one warm drain" {
			t.Errorf("its engine was asked: %s", got)
		}
	})
}
