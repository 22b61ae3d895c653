package clock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		if Sleep(ctx, time.Hour) {
			t.Error("Sleep says that an hour passed in a context of a minute")
		}
		if d := time.Since(began); d != time.Minute {
			t.Errorf("Sleep returned after %v in a context of a minute", d)
		}
		began = time.Now()
		if !Sleep(t.Context(), time.Hour) {
			t.Error("Sleep says that its hour did not pass")
		}
		if d := time.Since(began); d != time.Hour {
			t.Errorf("Sleep of an hour took %v", d)
		}
	})
}

// Whoever looks every 400 ms looks when the others do, whenever it began; the first wait is shorter.
func TestEvery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // its clock begins at a whole second
		began, d := time.Now(), 400*time.Millisecond
		time.Sleep(150 * time.Millisecond)
		for _, want := range []time.Duration{d, 2 * d, 3 * d} {
			if !Every(t.Context(), d) || time.Since(began) != want {
				t.Errorf("it came after %v, want %v", time.Since(began), want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if Every(ctx, d) {
			t.Error("it says that the time came in a context that had ended")
		}
	})
}

// A night that a machine was suspended for counts.
func TestSleepAwake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, awake := time.Now(), time.Hour
		now := func() time.Time {
			if time.Since(began) <= awake {
				return time.Now()
			}
			return time.Now().Add(8 * time.Hour)
		}
		if !SleepAwake(t.Context(), time.Hour, now) || time.Since(began) != time.Hour {
			t.Errorf("an hour took %v", time.Since(began))
		}
		began, awake = time.Now(), 10*time.Minute
		if !SleepAwake(t.Context(), time.Hour, now) || time.Since(began) != 10*time.Minute+looks {
			t.Errorf("an hour with a night in it took %v", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if SleepAwake(ctx, time.Hour, time.Now) {
			t.Error("it says that an hour passed in a context of less")
		}
	})
}
