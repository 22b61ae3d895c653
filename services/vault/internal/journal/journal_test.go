package journal

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/vault/internal/store"
)

// spool takes every record, and keeps those that follow.
type spool struct{ kept []*auditv1.Record }

func (*spool) Record(context.Context, *auditv1.Record) (*callv1.Receipt, error) {
	return &callv1.Receipt{}, nil
}

func (s *spool) Spool(_ context.Context, r *auditv1.Record) error {
	s.kept = append(s.kept, r)
	return nil
}

func (*spool) Reachable() bool { return true }

// TestUnknown: a record says that nothing was done only where that is known.
func TestUnknown(t *testing.T) {
	for cause, want := range map[error]struct{ action, reason string }{
		nil:                      {},
		errors.New("halted"):     {"approve-given-up", "nothing was done"},
		store.ErrUnknown:         {"approve-unknown", "whether it was done is not known"},
		context.DeadlineExceeded: {"approve-given-up", "nothing was done"},
	} {
		s := &spool{}
		j := New(s, time.Now, slog.New(slog.DiscardHandler))
		err := j.Do(t.Context(), &auditv1.Record{Kind: auditv1.Kind_KIND_APPROVED, Body: &auditv1.Body{Action: "approve"}}, func() error {
			if cause == nil {
				return nil
			}
			return fault.New(callv1.Code_CODE_UNAVAILABLE, "try again", fault.WithCause(cause))
		})
		if !errors.Is(err, cause) {
			t.Errorf("%v: %v", cause, err)
		}
		if cause == nil && len(s.kept) == 0 {
			continue
		}
		if len(s.kept) != 1 {
			t.Fatalf("%v: %v", cause, s.kept)
		}
		body := s.kept[0].GetBody()
		if body.GetAction() != want.action || !strings.Contains(body.GetReason(), want.reason) || strings.Contains(body.GetReason(), "nothing was done") != (want.action == "approve-given-up") {
			t.Errorf("%v: %v", cause, body)
		}
	}
}
