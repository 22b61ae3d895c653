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
