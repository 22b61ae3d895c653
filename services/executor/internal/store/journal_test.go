package store

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
)

func begin(t *testing.T, s *Store, mode string) int64 {
	t.Helper()
	id, err := s.BeginSwitch(t.Context(), &Switch{
		Operation: "op-" + mode, Mode: mode, From: "before", PlanDigest: "abc", Work: []byte(`{"mode":"` + mode + `"}`), BeganAt: time.Unix(100, 5),
	})
	must(t, err)
	return id
}

func TestASwitchIsRememberedStepByStep(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if w, err := s.OpenSwitch(t.Context()); w != nil || err != nil {
		t.Fatalf("at first there is %v, %v", w, err)
	}
	id := begin(t, s, "talk")
	if _, err := s.BeginSwitch(t.Context(), &Switch{Mode: "work", Work: []byte("{}")}); err == nil {
		t.Error("a second switch was begun")
	}
	one := Step{Number: 1, Action: executorv1.PlanAction_PLAN_ACTION_STOP, Service: "old"}
	two := Step{Number: 2, Action: executorv1.PlanAction_PLAN_ACTION_START, Service: "chat"}
	must(t, s.NoteSteps(t.Context(), id, nil, &one))
	if err := s.NoteSteps(t.Context(), id, nil, &one); err == nil {
		t.Error("a step was noted twice")
	}
	one.Ended, one.Done, one.Took = true, true, 1500*time.Millisecond
	must(t, s.NoteSteps(t.Context(), id, &one, &two))
	must(t, s.Close())

	// A process that was killed here knows what it was doing.
	s = open(t, dir)
	want := &Switch{
		ID: id, Operation: "op-talk", Mode: "talk", From: "before", PlanDigest: "abc", Work: []byte(`{"mode":"talk"}`), BeganAt: time.Unix(100, 5),
		Steps: []Step{one, two},
	}
	got, err := s.OpenSwitch(t.Context())
	must(t, err)
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("open switch (-want +got):\n%s", diff)
	}
	three := Step{Number: 3, Action: executorv1.PlanAction_PLAN_ACTION_START, Service: "old", Compensation: true}
	two.Ended = true
	must(t, s.NoteSteps(t.Context(), id, &two, &three))
	three.Ended, three.Done = true, true
	ending := Ending{
		Outcome: executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED, FailedService: "chat", Cause: "why", NotRunning: []string{"old"},
		Log: []string{"a", "b"}, Recovered: true, Current: "before",
	}
	must(t, s.EndSwitch(t.Context(), id, &three, time.Unix(200, 0), &ending))
	if err := s.EndSwitch(t.Context(), id, nil, time.Unix(201, 0), &ending); err == nil {
		t.Error("it ended twice")
	}
	if w, err := s.OpenSwitch(t.Context()); w != nil || err != nil {
		t.Errorf("afterwards there is %v, %v", w, err)
	}
	want.Steps, want.EndedAt, want.Work = []Step{one, two, three}, time.Unix(200, 0), nil
	want.Ending = ending
	want.Current = "" // which mode the host is in is no part of the history
	known, err := s.Switches(t.Context(), 5)
	must(t, err)
	if diff := cmp.Diff([]*Switch{want}, known, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	if mode, err := s.CurrentMode(t.Context()); err != nil || mode != "before" {
		t.Errorf("the host is in %q, %v", mode, err)
	}
	// Only steps that went well say how long such a step takes.
	took, err := s.Took(t.Context(), executorv1.PlanAction_PLAN_ACTION_STOP, "old", 10)
	if diff := cmp.Diff([]time.Duration{1500 * time.Millisecond}, took); diff != "" || err != nil {
		t.Errorf("it took (-want +got): %v\n%s", err, diff)
	}
	if took, err := s.Took(t.Context(), executorv1.PlanAction_PLAN_ACTION_START, "chat", 10); err != nil || len(took) != 0 {
		t.Errorf("what failed took %v, %v", took, err)
	}
}

func TestOldSwitchesAreForgotten(t *testing.T) {
	s := open(t, t.TempDir())
	var first int64
	for i := range 3 {
		id := begin(t, s, "talk")
		if i == 0 {
			first = id
		}
		must(t, s.NoteSteps(t.Context(), id, nil, &Step{Number: 1, Service: "chat"}))
		must(t, s.EndSwitch(t.Context(), id, nil, time.Unix(1, 0), &Ending{}))
	}
	_, err := s.DB.ExecContext(t.Context(), `UPDATE sqlite_sequence SET seq = ? WHERE name = 'switch'`, first+keepSwitches)
	must(t, err)
	begin(t, s, "work")
	known, err := s.Switches(t.Context(), 10)
	if err != nil || len(known) != 2 || known[0].Mode != "work" || known[1].ID != first+2 {
		t.Errorf("there are %d left: %v", len(known), err)
	}
	var steps int
	must(t, s.DB.QueryRowContext(t.Context(), `SELECT count(*) FROM switch_step`).Scan(&steps))
	if steps != 1 {
		t.Errorf("%d steps are left", steps)
	}
}

func TestTheNewestCount(t *testing.T) {
	s := open(t, t.TempDir())
	for i := range 4 {
		id := begin(t, s, "talk")
		step := Step{Number: 1, Action: executorv1.PlanAction_PLAN_ACTION_START, Service: "chat"}
		must(t, s.NoteSteps(t.Context(), id, nil, &step))
		step.Ended, step.Done, step.Took = true, true, time.Duration(i)*time.Second
		must(t, s.EndSwitch(t.Context(), id, &step, time.Unix(1, 0), &Ending{}))
	}
	took, err := s.Took(t.Context(), executorv1.PlanAction_PLAN_ACTION_START, "chat", 2)
	if diff := cmp.Diff([]time.Duration{2 * time.Second, 3 * time.Second}, took); diff != "" || err != nil {
		t.Errorf("it took (-want +got): %v\n%s", err, diff)
	}
}

func TestTheBootIsKept(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if boot, err := s.Booted(t.Context()); boot != "" || err != nil {
		t.Errorf("at first: %q, %v", boot, err)
	}
	must(t, s.SetBooted(t.Context(), "one"))
	must(t, s.SetCurrentMode(t.Context(), "talk"))
	must(t, s.Close())
	s = open(t, dir)
	if boot, err := s.Booted(t.Context()); boot != "one" || err != nil {
		t.Errorf("later: %q, %v", boot, err)
	}
	if mode, err := s.CurrentMode(t.Context()); err != nil || mode != "talk" {
		t.Errorf("the host is in %q, %v", mode, err)
	}
}

func TestASwitchIsFoundByItsOperation(t *testing.T) {
	s := open(t, t.TempDir())
	id, err := s.BeginSwitch(t.Context(), &Switch{Operation: "one", Mode: "talk", Work: []byte("{}"), BeganAt: time.Unix(1, 0)})
	must(t, err)
	must(t, s.EndSwitch(t.Context(), id, nil, time.Unix(2, 0), &Ending{}))
	_, err = s.BeginSwitch(t.Context(), &Switch{Operation: "two", Mode: "work", Work: []byte("{}"), BeganAt: time.Unix(3, 0)})
	must(t, err)
	for operation, mode := range map[string]string{"one": "talk", "two": "work"} {
		if w, err := s.SwitchOf(t.Context(), operation); err != nil || w == nil || w.Mode != mode {
			t.Errorf("%s is %+v, %v", operation, w, err)
		}
	}
	if w, err := s.SwitchOf(t.Context(), "three"); w != nil || err != nil {
		t.Errorf("an unknown one is %+v, %v", w, err)
	}
}
