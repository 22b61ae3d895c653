package recorder

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
)

// switched is a record of the switch.
func switched(epoch int, kind auditv1.Kind) *auditv1.Record {
	out := record(fmt.Sprint("r-", epoch))
	out.Kind, out.Status = kind, auditv1.Status_STATUS_OK
	out.Body.Details = Switched(uint64(epoch), 0)
	return out
}

// TestLastControlGoesByEpochs: of what waits and what the log has the higher epoch counts, wherever it is, and a halt that goes on more than
// the resumption that it answers.
func TestLastControlGoesByEpochs(t *testing.T) {
	const halted, resumed = auditv1.Kind_KIND_HALTED, auditv1.Kind_KIND_RESUMED
	goesOn := switched(1, halted)
	maps.Copy(goesOn.Body.Details, Switched(1, 2))
	for name, c := range map[string]struct {
		logged, waits *auditv1.Record
		epoch         uint64
		halted        bool
	}{
		"the halt before waits":          {switched(2, resumed), switched(1, halted), 2, false},
		"the resumption before waits":    {switched(2, halted), switched(1, resumed), 2, true},
		"the halt goes on":               {switched(2, resumed), goesOn, 1, true},
		"the halt after it went on":      {goesOn, switched(3, halted), 3, true},
		"the resumption after it waits":  {goesOn, switched(3, resumed), 3, false},
		"the resumption after it is out": {switched(3, resumed), goesOn, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAudit(t)
				r := start(t, a, newStore())
				_, err := r.Record(t.Context(), c.logged)
				must(t, err)
				a.Set(func() { a.Down = true })
				must(t, r.Spool(t.Context(), c.waits))
				time.Sleep(commitWithin + time.Millisecond)
				synctest.Wait()
				a.Set(func() { a.Down = false }) // it is sent again a while later
				got, err := r.LastControl(t.Context())
				if err != nil || got.Epoch != c.epoch || got.Halted != c.halted || got.Lost(c.epoch, c.halted) != "" {
					t.Errorf("%+v, %v; want epoch %d, halted %t", got, err, c.epoch, c.halted)
				}
			})
		})
	}
}

// TestLastControlTellsOfTheResumptionBefore: where a human resumed last is known after a halt too, and one that waits is not taken for it.
func TestLastControlTellsOfTheResumptionBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAudit(t)
		r := start(t, a, newStore())
		_, err := r.Record(t.Context(), switched(1, auditv1.Kind_KIND_HALTED))
		must(t, err)
		if got, err := r.LastControl(t.Context()); err != nil || got.Resumed != 0 {
			t.Errorf("before any it is %+v, %v", got, err)
		}
		receipt, err := r.Record(t.Context(), switched(2, auditv1.Kind_KIND_RESUMED))
		must(t, err)
		a.Set(func() { a.Down = true })
		must(t, r.Spool(t.Context(), switched(3, auditv1.Kind_KIND_HALTED)))
		time.Sleep(commitWithin + time.Millisecond)
		synctest.Wait()
		a.Set(func() { a.Down = false }) // it is sent again a while later
		got, err := r.LastControl(t.Context())
		if err != nil || !got.Halted || got.Index <= receipt.GetIndex() || got.Resumed != receipt.GetIndex() {
			t.Errorf("while a halt waits it is %+v, %v; want what was resumed at %d", got, err, receipt.GetIndex())
		}
	})
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
