//go:build real

package postgres

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"durward.internal/deploy/e2e/harness"
	server "durward.internal/services/platform/platformtest/postgres"
)

// TestLostRecordsAreSeen is the control of TestServerFailover: the standby that is promoted lacks records that were acknowledged, since
// the primary did not wait for it. Each writer finds the log untrue, and nothing more is acknowledged.
func TestLostRecordsAreSeen(t *testing.T) {
	primary := server.Start(t)
	standby := primary.Standby(t)
	r := start(t, primary.PasswordFile, primary.CA, primary.Address(), standby.Address())
	primary.Detach(t, standby)
	r.after("the standby is left behind", time.Now())
	primary.Kill(t)
	standby.Promote(t)
	began := time.Now()
	harness.Eventually(t, "a writer finds that the log lost records", func() error {
		if said := r.log.Untrue(); said == "" {
			return errors.New("all is as it was")
		}
		return nil
	})
	for _, w := range r.log.Writers {
		if n, _ := w.Acknowledged(began); n > 0 {
			t.Errorf("%s had %d records acknowledged by a log that lost some", w.Name, n)
		}
	}
}

// early has audits acknowledge what is not written yet.
var early = harness.Options{Build: harness.Build{Weak: true}, Flags: map[string][]string{
	harness.Audit: {"-weaken", "written"}, harness.Standby: {"-weaken", "written"},
}}

// TestAcknowledgedTooEarlyIsSeen is the control of TestNetworkCut: audits that acknowledge what is not written yet. A cut in the network
// takes acknowledged records with it.
func TestAcknowledgedTooEarlyIsSeen(t *testing.T) {
	pg := server.Start(t)
	wire := newWire(t, fmt.Sprintf("127.0.0.1:%d", pg.Port))
	r := startWith(t, early, pg.PasswordFile, pg.CA, fmt.Sprintf("\"localhost:%d\"", wire.port))
	wire.cut(true)
	harness.Eventually(t, "the writers are refused", func() error {
		if err := r.log.Writers[0].Append(t.Context()); err == nil {
			return errors.New("it is not")
		}
		return nil
	})
	pg.Kill(t) // what was sent and not committed is gone
	pg.Run(t)
	wire.cut(false)
	r.misses()
}

// misses waits until a writer, or a look at the whole log, finds that a record is gone that was acknowledged.
func (r *rig) misses() {
	r.t.Helper()
	harness.Eventually(r.t, "what was acknowledged is missed", func() error {
		if said := r.log.Untrue(); said != "" {
			return nil
		}
		for _, role := range []string{harness.Audit, harness.Standby} {
			log, err := r.log.Read(role)
			if err != nil {
				return err
			}
			for _, wrong := range r.log.Check(log, time.Time{}) {
				if strings.Contains(wrong, "was acknowledged") {
					return nil
				}
			}
		}
		return errors.New("every acknowledged record is there")
	})
}
