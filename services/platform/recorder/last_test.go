package recorder

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// switched is a record of the switch.
func switched(epoch int, kind auditv1.Kind) *auditv1.Record {
	out := record(fmt.Sprint("r-", epoch))
	out.Kind, out.Status = kind, auditv1.Status_STATUS_OK
	out.Body.Details = map[string]string{"epoch": fmt.Sprint(epoch)}
	return out
}

// TestAHaltThatGoesOnIsTheLatest: a resumption that was recorded and never in force is not the last word, though its epoch is higher.
func TestAHaltThatGoesOnIsTheLatest(t *testing.T) {
	for _, waits := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a := newAudit(t)
			r := start(t, a, newStore())
			_, err := r.Record(t.Context(), switched(9, auditv1.Kind_KIND_RESUMED))
			must(t, err)
			a.Set(func() { a.Down = waits })
			must(t, r.Spool(t.Context(), switched(2, auditv1.Kind_KIND_HALTED)))
			time.Sleep(commitWithin + time.Millisecond)
			synctest.Wait()
			a.Set(func() { a.Down = false }) // it is sent again a while later
			got, err := r.LastControl(t.Context())
			if err != nil || got.Epoch != 2 || !got.Halted || got.Lost(2, true) != "" {
				t.Errorf("waits: %t: %+v, %v", waits, got, err)
			}
		})
	}
}

// TestLastControlIsTheLatest: of what waits in the spool the later counts, and more than what the log has.
func TestLastControlIsTheLatest(t *testing.T) {
	const halted, resumed = auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED
	for name, c := range map[string]struct {
		logged, spooled []auditv1.Kind
		halted          bool
	}{
		"halted in the spool":                 {nil, []auditv1.Kind{halted}, true},
		"halted, then resumed, in the spool":  {nil, []auditv1.Kind{halted, resumed}, false},
		"resumed, then halted, in the spool":  {nil, []auditv1.Kind{resumed, halted}, true},
		"resumed in the log, halted since":    {[]auditv1.Kind{halted, resumed}, []auditv1.Kind{halted}, true},
		"halted in the log, resumed since":    {[]auditv1.Kind{resumed, halted}, []auditv1.Kind{resumed}, false},
		"resumed, then halted, in the log":    {[]auditv1.Kind{resumed, halted}, nil, true},
		"halted twice and resumed in between": {nil, []auditv1.Kind{halted, resumed, halted}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, s := newAudit(t), newStore()
				r := start(t, a, s)
				for i, kind := range c.logged {
					if _, err := r.Record(t.Context(), switched(i+1, kind)); err != nil {
						t.Fatal(err)
					}
				}
				a.Set(func() { a.Down = len(c.spooled) > 0 })
				for i, kind := range c.spooled {
					must(t, r.Spool(t.Context(), switched(len(c.logged)+i+1, kind)))
				}
				time.Sleep(commitWithin + time.Millisecond)
				crash(r)
				// The log answers, and takes nothing yet.
				r = start(t, a, s)
				a.Set(func() { a.Down = false })
				got, err := r.LastControl(t.Context())
				if n := uint64(len(c.logged) + len(c.spooled)); err != nil || got.Halted != c.halted || got.Epoch != n {
					t.Errorf("it is %+v, %v; want epoch %d, halted %t", got, err, n, c.halted)
				}
			})
		})
	}
}
