package main

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
)

// history is a log that can be down.
type history struct {
	down  bool
	lines []string
}

func (h *history) put(how string, r *auditv1.Record) {
	h.lines = append(h.lines, how+" "+r.GetKind().String()+" "+r.GetStatus().String()+" "+r.GetBody().GetSummary()+" "+
		r.GetBody().GetDetails()["service_id"]+" "+r.GetBody().GetReason())
}

func (h *history) Record(_ context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	if h.down {
		return nil, errors.New("down")
	}
	h.put("now", r)
	return &callv1.Receipt{}, nil
}

func (h *history) Report(_ context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	h.put("kept", r)
	return nil, nil
}

func (h *history) Spool(context.Context, *auditv1.Record) error { return errors.New("not for rules") }

// TestRulesAreRecorded: what is about to be done is in the log before, and how it went reaches it in the end.
func TestRulesAreRecorded(t *testing.T) {
	h := &history{down: true}
	rule := recordRules(h)
	s := &catalog.Service{ID: "chat"}
	if err := rule(t.Context(), service.RuleRestart, s, service.Intent, nil); err == nil {
		t.Error("a rule may act while nothing can be recorded")
	}
	h.down = false
	for _, c := range []struct {
		stage service.Stage
		how   error
	}{{service.Intent, nil}, {service.Outcome, nil}, {service.Outcome, errors.New("it did not start")}} {
		if err := rule(t.Context(), service.RuleRestart, s, c.stage, c.how); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"now KIND_RULE STATUS_PENDING restart: it ended by itself chat ",
		"kept KIND_RULE STATUS_OK restart: it ended by itself chat ",
		"kept KIND_RULE STATUS_ERROR restart: it ended by itself chat it did not start",
	}
	if diff := cmp.Diff(want, h.lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
