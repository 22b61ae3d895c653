package process

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchSaysEachChangeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var failure atomic.Value // of string
		failure.Store("")
		ctx, cancel := context.WithCancel(t.Context())
		Watch(ctx, slog.New(slog.NewTextHandler(&out, nil)), "trust folder", func() error {
			if s := failure.Load().(string); s != "" {
				return errors.New(s)
			}
			return nil
		})
		step := func(now string) {
			failure.Store(now)
			time.Sleep(3 * watchInterval)
			synctest.Wait()
		}
		step("")
		step("no key")
		step("")
		cancel()
		synctest.Wait()
		if got := strings.Count(out.String(), "no key"); got != 1 {
			t.Errorf("the failure is said %d times, want once:\n%s", got, out.String())
		}
		if got := strings.Count(out.String(), "taken up\""); got != 1 {
			t.Errorf("its end is said %d times, want once:\n%s", got, out.String())
		}
	})
}
