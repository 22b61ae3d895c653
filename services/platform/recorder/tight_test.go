package recorder

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"
)

// crowded is an audit whose disk may be full.
type crowded struct {
	*platformtest.AuditLog
	full atomic.Bool
}

func (c *crowded) Append(ctx context.Context, req *auditv1.AppendRequest, opts ...grpc.CallOption) (*auditv1.AppendResponse, error) {
	for _, r := range req.GetRecords() {
		if c.full.Load() && !reserve.Entitled(r) {
			return nil, fault.New(callv1.Code_CODE_AUDIT_UNAVAILABLE, "the audit log cannot be written now", fault.WithField(reserve.Field))
		}
	}
	return c.AuditLog.Append(ctx, req, opts...)
}

func halt(id string) *auditv1.Record {
	r := record(id)
	r.Kind = auditv1.Kind_KIND_HALTED
	return r
}

// TestTight: while audit's disk is full a halt and a stop overtake what has to wait, nothing that happened is lost, and
// whoever waits for a record that is not taken is told at once.
func TestTight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &crowded{AuditLog: newAudit(t)}
		r := startWith(t, a, a.AuditLog, newStore())
		if _, err := r.Record(t.Context(), record("r-0")); err != nil {
			t.Fatal(err)
		}
		a.full.Store(true)
		for i := range 3 {
			must(t, r.Spool(t.Context(), record(fmt.Sprint("spooled-", i))))
		}
		time.Sleep(2 * linger) // they are refused, and wait
		for i := range 50 {
			began := time.Now()
			if _, err := r.Record(t.Context(), record("refused")); err == nil {
				t.Fatal("a record was taken by a full disk")
			} else if wantUnavailable(t, err, began, time.Millisecond); err.Error() != reserve.Sentence {
				t.Fatalf("refused with %q, which does not say why", err)
			}
			id := fmt.Sprint("halt-", i)
			if i%2 == 0 {
				must(t, r.Spool(t.Context(), halt(id)))
			} else if _, err := r.Record(t.Context(), halt(id)); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
			time.Sleep(101 * time.Millisecond) // beyond several retries of what waits
			if !r.Reachable() {
				t.Fatal("audit counts as away")
			}
		}
		began := time.Now()
		if _, err := r.Report(t.Context(), record("reported")); err != nil {
			t.Errorf("a fact: %v after %v", err, time.Since(began))
		}
		if n := r.Depth(); n != 4 {
			t.Errorf("%d records wait, want 4", n)
		}
		a.full.Store(false)
		time.Sleep(2 * tightRetry)
		if n := r.Depth(); n != 0 {
			t.Errorf("%d records wait though there is room", n)
		}
		if _, err := r.Record(t.Context(), record("r-1")); err != nil {
			t.Errorf("with room again: %v", err)
		}
		stop(t, r)
		want := []string{"r-0"}
		for i := range 50 {
			want = append(want, fmt.Sprint("halt-", i))
		}
		a.Holds(t, append(want, "spooled-0", "spooled-1", "spooled-2", "reported", "r-1")...)
	})
}
