package sink

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
)

// chronicle is a History.
type chronicle struct {
	control recorder.Control
	told    recorder.State
	entries map[auditv1.Kind]*auditv1.Entry
	err     error
}

func (c *chronicle) LastControl(context.Context) (recorder.Control, error) { return c.control, c.err }

func (c *chronicle) LastState(context.Context) (recorder.State, uint64, error) {
	return c.told, 7, c.err
}

func (c *chronicle) Last(_ context.Context, kind auditv1.Kind, operation string) (*auditv1.Entry, error) {
	if e := c.entries[kind]; operation == "" || e.GetRecord().GetOperationId() == operation {
		return e, c.err
	}
	return nil, c.err
}

func entry(index uint64, ago time.Duration, operation, request string) *auditv1.Entry {
	return &auditv1.Entry{Index: index, LoggedAt: timestamppb.New(time.Now().Add(-ago)), Record: &auditv1.Record{OperationId: operation, RequestId: request}}
}

// A store that knows less than the log has of this sink is halted above every epoch that the log knows, and says what is missing.
func TestStateThatLostItsMemoryIsHalted(t *testing.T) {
	kit := platformtest.New(t)
	for name, c := range map[string]struct {
		log    chronicle
		state  Control
		missed string
		epoch  uint64
	}{
		"nothing happened yet":      {chronicle{}, Control{Epoch: 1}, "", 1},
		"as it was":                 {chronicle{control: recorder.Control{Index: 4, Epoch: 7}}, Control{Epoch: 7}, "", 7},
		"newer than the log":        {chronicle{control: recorder.Control{Index: 4, Epoch: 7, Halted: true}}, Control{Epoch: 9}, "", 9},
		"halted as the log has it":  {chronicle{control: recorder.Control{Index: 4, Epoch: 7, Halted: true}}, Control{Epoch: 7, Halted: true}, "", 7},
		"an epoch is gone":          {chronicle{control: recorder.Control{Index: 4, Epoch: 7}}, Control{Epoch: 1}, "the log has epoch 7, and the state epoch 1", 8},
		"a newer state":             {chronicle{told: recorder.State{Revision: 4, Digest: "x"}}, Control{Epoch: 1}, "", 1},
		"the same state":            {chronicle{told: recorder.State{Revision: 5, Digest: "now"}}, Control{Epoch: 1}, "", 1},
		"an older state":            {chronicle{told: recorder.State{Revision: 6, Rows: map[string]uint64{"a": 1, "spent": 4}}}, Control{Epoch: 1}, "the log has revision 6 of it, and it is revision 5; spent has 3 rows of 4", 2},
		"another state":             {chronicle{told: recorder.State{Revision: 5, Digest: "x"}}, Control{Epoch: 1}, "the log has another state of revision 5", 2},
		"an older state, resumed":   {chronicle{control: recorder.Control{Index: 10, Epoch: 2}, told: recorder.State{Revision: 6}}, Control{Epoch: 2}, "", 2},
		"a halt is gone":            {chronicle{control: recorder.Control{Index: 4, Epoch: 7, Halted: true}}, Control{Epoch: 7}, "the log has a halt at epoch 7", 8},
		"a change that is known":    {chronicle{entries: map[auditv1.Kind]*auditv1.Entry{auditv1.Kind_KIND_INTENT: entry(9, time.Hour, "op", "")}}, Control{Epoch: 1}, "", 1},
		"a spent key is gone":       {chronicle{entries: map[auditv1.Kind]*auditv1.Entry{auditv1.Kind_KIND_INTENT: entry(9, time.Hour, "other", "")}}, Control{Epoch: 1}, "the state no spent key of it", 2},
		"a key that was dropped":    {chronicle{entries: map[auditv1.Kind]*auditv1.Entry{auditv1.Kind_KIND_INTENT: entry(9, 25*time.Hour, "other", "")}}, Control{Epoch: 1}, "", 1},
		"a human has resumed since": {chronicle{control: recorder.Control{Index: 10, Epoch: 2}, entries: map[auditv1.Kind]*auditv1.Entry{auditv1.Kind_KIND_INTENT: entry(9, time.Hour, "other", "")}}, Control{Epoch: 2}, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			a, store, log := newAuthority(t, kit, func(cfg *Config) { cfg.History = &c.log })
			if err := a.change(t.Context(), func(Control) (Control, error) { return c.state, nil }); err != nil {
				t.Fatal(err)
			}
			store.entries["op/1"] = &Entry{Spend: Spend{Key: "op/1", Operation: "op"}}
			if c.log.told.Revision > 0 {
				store.state = recorder.State{Revision: 5, Digest: "now", Rows: map[string]uint64{"a": 9, "spent": 3}}
			}
			c.log.err = errors.New("no answer")
			if err := a.Compare(t.Context()); err == nil || a.Control() != c.state {
				t.Fatalf("without an answer: %v, %v", err, a.Control())
			}
			c.log.err = nil
			for range 2 {
				must(t, a.Compare(t.Context()))
			}
			want := Control{Epoch: c.epoch, Halted: c.missed != "" || c.state.Halted}
			if c.missed != "" {
				want.By, want.At, want.Reason = a.self, a.Control().At, "the state was lost or is an older copy: "+strings.TrimPrefix(a.Control().Reason, "the state was lost or is an older copy: ")
			}
			if a.Control() != want || store.control != want || !strings.Contains(want.Reason, c.missed) {
				t.Errorf("it is %+v, want %+v", a.Control(), want)
			}
			if c.missed == "" {
				if len(log.records) != 0 {
					t.Errorf("it recorded %v", log.records)
				}
			} else if n := len(log.records); n == 0 || n > 1 && (store.state.Revision == 0 || log.records[1].GetKind() != auditv1.Kind_KIND_STATE) || n > 2 || log.records[0].GetKind() != auditv1.Kind_KIND_HALTED || !strings.Contains(log.records[0].GetBody().GetSummary(), c.missed) {
				t.Errorf("it recorded %v, want %q", log.records, c.missed)
			}
		})
	}
}

// An older copy that a human resumes before it was held against the log is halted then, above what was signed for: what the log knew before the
// resumption would be no matter afterwards.
func TestAnOlderCopyIsNotResumedUnseen(t *testing.T) {
	s := newStand(t)
	if _, err := s.Halt(t.Context(), "panic", 0); err != nil {
		t.Fatal(err)
	}
	s.cfg.Store.(*memory).state = recorder.State{Revision: 5}
	history := &chronicle{told: recorder.State{Revision: 9}, err: errors.New("audit is away")}
	s.cfg.History = history
	s.keeper = s.newKeeper()
	if err := s.resume(s.resumption(9)); !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) || s.Control().Epoch != 2 {
		t.Errorf("while the log does not answer: %v, %v", err, s.Control())
	}
	history.err = nil
	s.refused(s.resume(s.resumption(9)), callv1.Code_CODE_DENIED, errOldEpoch.Error())
	if now := s.Control(); !now.Halted || now.Epoch != 3 || !strings.Contains(now.Reason, "older copy: the log has revision 9 of it, and it is revision 5") {
		t.Errorf("after it: %v", now)
	}
	if i := slices.IndexFunc(s.log.records, func(r *auditv1.Record) bool { return r.GetKind() == auditv1.Kind_KIND_RESUMED }); i >= 0 {
		t.Errorf("it recorded %v", s.log.records[i])
	}
	must(t, s.resume(s.resumption(9)))
}

// A process that ended between the record of an outcome and its own note of it writes no second end; while the log does not
// answer the call stays open, and is looked after once it does.
func TestAnOperationHasOneEnd(t *testing.T) {
	kit := platformtest.New(t)
	for name, c := range map[string]struct {
		outcome *auditv1.Entry
		ends    int
	}{
		"recorded":                  {entry(9, time.Second, "op", "r-1"), 0},
		"not recorded":              {nil, 1},
		"another request's outcome": {entry(9, time.Second, "op", "r-2"), 1},
		"another operation's":       {entry(9, time.Second, "other", "r-1"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			history := &chronicle{entries: map[auditv1.Kind]*auditv1.Entry{auditv1.Kind_KIND_OUTCOME: c.outcome}, err: errors.New("no answer")}
			a, store, log := newAuthority(t, kit, func(cfg *Config) { cfg.History = history })
			store.entries["op/1"] = &Entry{Spend: Spend{Key: "op/1", Operation: "op", RequestID: "r-1", Tool: "start_service"}, Result: Result{State: StateSpent}}
			if err := a.Recover(t.Context(), plain{}); err != nil || len(log.records) != 0 || store.finished != 0 {
				t.Fatalf("without an answer: %v, %v", err, log.records)
			}
			history.err = nil
			a.askAgain(t.Context())
			if len(log.records) != c.ends || store.entries["op/1"].State != StateUnknown {
				t.Errorf("%d ends, want %d; %v", len(log.records), c.ends, store.entries["op/1"])
			}
		})
	}
}
