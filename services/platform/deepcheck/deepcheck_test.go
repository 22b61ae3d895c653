package deepcheck_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"durward.internal/services/platform/deepcheck"
)

// However many ask, each thing is looked at once in 30 seconds, and all hear the same.
func TestManyAskOneDeepCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looked atomic.Int32
		var down atomic.Bool
		deep := deepcheck.New(slog.New(slog.DiscardHandler),
			deepcheck.Check{Problem: "the state cannot be written", Ask: func(context.Context) error {
				looked.Add(1)
				time.Sleep(100 * time.Millisecond)
				if down.Load() {
					return errors.New("disk /var/lib is full")
				}
				return nil
			}},
			deepcheck.Check{Problem: "never", Ask: func(context.Context) error { return nil }})
		ask := func(checks int32, want ...string) {
			t.Helper()
			var asking sync.WaitGroup
			for range 1000 {
				asking.Go(func() {
					if diff := cmp.Diff(want, deep.Problems(t.Context())); diff != "" {
						t.Error(diff)
					}
				})
			}
			asking.Wait()
			if n := looked.Load(); n != checks {
				t.Errorf("%d checks, want %d", n, checks)
			}
		}
		ask(1)
		down.Store(true)
		time.Sleep(deepcheck.Every - time.Second)
		ask(1)
		time.Sleep(time.Second)
		ask(2, "the state cannot be written")
		down.Store(false)
		ask(2, "the state cannot be written")
		time.Sleep(deepcheck.Every)
		ask(3)
	})
}

// A check that hangs is told as a problem within a second, and is not begun a second time; who asked and went away ends it for nobody.
func TestADeepCheckThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looked atomic.Int32
		release := make(chan struct{})
		deep := deepcheck.New(slog.New(slog.DiscardHandler), deepcheck.Check{Problem: "the GPU driver does not answer", Ask: func(context.Context) error {
			looked.Add(1)
			<-release
			return nil
		}})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ctx := range []context.Context{t.Context(), t.Context(), t.Context()} {
			began := time.Now()
			if got := deep.Problems(ctx); len(got) != 1 || time.Since(began) > time.Second {
				t.Errorf("%v after %v", got, time.Since(began))
			}
			time.Sleep(deepcheck.Every)
		}
		if n := looked.Load(); n != 1 {
			t.Errorf("it was begun %d times", n)
		}
		close(release)
		synctest.Wait()
		deep.Problems(gone)
		if got := deep.Problems(t.Context()); len(got) != 0 {
			t.Errorf("once it answers: %v", got)
		}
	})
}
