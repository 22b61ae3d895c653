package clock_test

import (
	"testing"
	"time"

	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/platformtest"
)

func TestPassed(t *testing.T) {
	t.Parallel()
	began := time.Now()
	for name, c := range map[string]struct {
		to   time.Time
		want time.Duration
	}{
		"both clocks":                 {began.Add(time.Hour), time.Hour},
		"a suspended machine":         {platformtest.Suspended(began.Add(time.Minute), time.Hour), time.Hour + time.Minute},
		"a wall clock that went back": {platformtest.Suspended(began.Add(time.Minute), -time.Hour), time.Minute},
		"the wall clock alone":        {began.Round(0).Add(time.Hour), time.Hour},
	} {
		if got := clock.Passed(began, c.to); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
