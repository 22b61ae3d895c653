package null

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

func TestItRemembersAndTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, s := &Driver{StartTakes: 2 * time.Second, StopTakes: time.Second}, &catalog.Service{ID: "one"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.Start(ctx, s, "", driver.AtOnce); !errors.Is(err, context.DeadlineExceeded) || d.Status(s).State != driver.Stopped {
			t.Errorf("a start that was cut short: %v, %v", err, d.Status(s))
		}
		began := time.Now()
		if err := d.Start(t.Context(), s, "", driver.AtOnce); err != nil || d.Status(s).State != driver.Running || time.Since(began) != 2*time.Second {
			t.Errorf("start: %v, %v after %s", err, d.Status(s), time.Since(began))
		}
		for _, want := range []bool{true, false} {
			if changed, err := d.Stop(t.Context(), s); changed != want || err != nil || d.Status(s).State != driver.Stopped {
				t.Errorf("stop: %v, %v, %v", changed, err, d.Status(s))
			}
		}
		definition, err := d.Definition(t.Context(), s)
		page, logs := d.Logs(t.Context(), s, "", 1)
		if definition != "" || len(page.Lines) != 0 || page.Cursor == "" || page.More || err != nil || logs != nil {
			t.Errorf("%q, %+v, %v, %v", definition, page, err, logs)
		}
	})
}
