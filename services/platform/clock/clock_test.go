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
