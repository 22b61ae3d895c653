package progress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNobodyIsToldOutsideAnOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hub Hub
		ctx, end := hub.Open(t.Context(), "op")
		Tell(t.Context(), Step{Number: 1})
		Tell(ctx, Step{Number: 2})
		end()
		var got []Step
		if err := hub.Watch(t.Context(), "op", func(s Step) error { got = append(got, s); return nil }); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]Step{{Number: 2}}, got); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
	})
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hub Hub
		var got []Step
		var watching sync.WaitGroup
		// Before it begins.
		watching.Go(func() {
			if err := hub.Watch(t.Context(), "op", func(s Step) error {
				got = append(got, s)
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, end := hub.Open(t.Context(), "op")
		want := []Step{
			{Number: 1, Of: 2, Phase: PhaseStop, Service: "old"}, {Number: 1, Of: 2, Phase: PhaseStop, Service: "old", Ended: true, Elapsed: time.Second},
			{Number: 2, Of: 2, Phase: PhaseStart, Service: "chat"}, {Number: 2, Of: 2, Phase: PhaseReady, Service: "chat", Elapsed: time.Second},
		}
		for _, s := range want {
			Tell(ctx, s)
			synctest.Wait()
		}
		end()
		end()
		watching.Wait()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("told (-want +got):\n%s", diff)
		}
		// Whoever comes late hears how it ended, and no more.
		got = nil
		if err := hub.Watch(t.Context(), "op", func(s Step) error {
			got = append(got, s)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]Step{want[1], want[3]}, got); diff != "" {
			t.Errorf("told late (-want +got):\n%s", diff)
		}
		gone := errors.New("gone")
		if err := hub.Watch(t.Context(), "op", func(Step) error { return gone }); !errors.Is(err, gone) {
			t.Errorf("a watcher that hangs up: %v", err)
		}
		// One that waits for what never begins ends with its context.
		waiting, cancel := context.WithCancelCause(t.Context())
		watching.Go(func() {
			if err := hub.Watch(waiting, "never", func(Step) error { return nil }); !errors.Is(err, gone) {
				t.Errorf("it ended with %v", err)
			}
		})
		synctest.Wait()
		cancel(gone)
		watching.Wait()
	})
}

// TestMadeUpIDsPushNobodyOut: who watches an operation before it begins hears of it, however many ids are made up meanwhile.
func TestMadeUpIDsPushNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hub Hub
		var told, watching sync.WaitGroup
		heard := 0
		told.Go(func() {
			if err := hub.Watch(t.Context(), "real", func(Step) error { heard++; return nil }); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 10 * keep {
			watching.Go(func() {
				if err := hub.Watch(ctx, fmt.Sprint("made up ", i), func(Step) error { return nil }); err == nil {
					t.Error("what never began ended well")
				}
			})
		}
		synctest.Wait()
		operation, end := hub.Open(t.Context(), "real")
		Tell(operation, Step{Number: 1})
		synctest.Wait()
		end()
		told.Wait()
		if heard != 1 {
			t.Errorf("whoever waited heard %d steps", heard)
		}
		cancel()
		watching.Wait()
		if len(hub.all) != 1 {
			t.Errorf("%d operations are remembered", len(hub.all))
		}
	})
}

// Ids that somebody made up, and operations that are long over, push nobody out who is under way.
func TestWhatIsForgotten(t *testing.T) {
	var hub Hub
	ctx, end := hub.Open(t.Context(), "real")
	Tell(ctx, Step{Number: 1, Phase: PhaseStart})
	_, ended := hub.Open(t.Context(), "ended")
	ended()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range 10 * keep {
		if err := hub.Watch(over, fmt.Sprint("made up ", i), func(Step) error { return nil }); err == nil {
			t.Fatal("it ended well")
		}
	}
	Tell(ctx, Step{Number: 2, Phase: PhaseReady})
	end()
	var got []int
	if err := hub.Watch(t.Context(), "real", func(s Step) error {
		got = append(got, s.Number)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{1, 2}, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	if len(hub.all) > keep || len(hub.order) != len(hub.all) {
		t.Errorf("%d are remembered, %d in order", len(hub.all), len(hub.order))
	}
	// Steps without end are cut off.
	ctx, end = hub.Open(t.Context(), "long")
	for i := range 2 * maxSteps {
		Tell(ctx, Step{Number: i + 1})
	}
	end()
	n := 0
	if err := hub.Watch(t.Context(), "long", func(Step) error { n++; return nil }); err != nil || n != maxSteps {
		t.Errorf("%d steps, %v", n, err)
	}
}
