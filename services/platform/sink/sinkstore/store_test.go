package sinkstore

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/sink"
)

func spend(key string, statement *sink.Use) *sink.Spend {
	return &sink.Spend{
		Key: key, Operation: "op", Use: 1, Tool: "start_service", Arguments: []byte("{}"), ArgumentsDigest: make([]byte, 32), RequestID: "r-1",
		Principal: "p", Session: "s", Channel: callv1.Channel_CHANNEL_CLI, Dangerous: true, At: time.Unix(100, 0), Until: time.Unix(1000, 0), Statement: statement,
	}
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Service: "sink", StateDir: dir})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAKeyIsSpentOnceAndRemembered(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	use := &sink.Use{Digest: [32]byte{7}, Limit: 2, Until: time.Unix(2000, 0)}
	must(t, s.Spend(t.Context(), spend("a/1", use)))
	if err := s.Spend(t.Context(), spend("a/1", use)); !errors.Is(err, sink.ErrSpent) {
		t.Errorf("the same key again: %v", err)
	}
	// The refused spend counted no use: one is left.
	must(t, s.Spend(t.Context(), spend("a/2", use)))
	if err := s.Spend(t.Context(), spend("a/3", use)); !errors.Is(err, sink.ErrUsedUp) {
		t.Errorf("a third use of two: %v", err)
	}
	if e, err := s.Lookup(t.Context(), "a/3"); e != nil || err != nil {
		t.Errorf("a refused spend left %v, %v", e, err)
	}
	must(t, s.Close())

	s = open(t, dir)
	left, err := s.Interrupted(t.Context())
	if err != nil || len(left) != 2 {
		t.Fatalf("after a restart: %v, %v", left, err)
	}
	want := &sink.Entry{Spend: *spend("a/1", &sink.Use{Digest: [32]byte{7}}), Result: sink.Result{State: sink.StateSpent}}
	if diff := cmp.Diff(want, left[0], cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	result := sink.Result{State: sink.StateDone, OK: true, Response: []byte("r"), Outcome: []byte("o")}
	must(t, s.Finish(t.Context(), "a/1", &result))
	if err := s.Finish(t.Context(), "a/1", &result); !errors.Is(err, ErrNotOpen) {
		t.Errorf("a second outcome: %v", err)
	}
	got, err := s.Lookup(t.Context(), "a/1")
	must(t, err)
	if diff := cmp.Diff(result, got.Result, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

func TestSettling(t *testing.T) {
	s := open(t, t.TempDir())
	must(t, s.Spend(t.Context(), spend("a/1", nil)))
	if waiting, err := s.Unsettled(t.Context()); err != nil || len(waiting) != 0 {
		t.Errorf("a call in progress waits to be settled: %v, %v", waiting, err)
	}
	// The vault may hear of it before the outcome is kept.
	must(t, s.Settled(t.Context(), []string{"a/1", "unknown"}))
	must(t, s.Finish(t.Context(), "a/1", &sink.Result{State: sink.StateNotActed}))
	if waiting, err := s.Unsettled(t.Context()); err != nil || len(waiting) != 0 {
		t.Errorf("settled and yet waiting: %v, %v", waiting, err)
	}
	must(t, s.Spend(t.Context(), spend("b/1", nil)))
	must(t, s.Finish(t.Context(), "b/1", &sink.Result{State: sink.StateUnknown, Found: "running"}))
	waiting, err := s.Unsettled(t.Context())
	if err != nil || len(waiting) != 1 || waiting[0].Found != "running" {
		t.Errorf("waiting: %v, %v", waiting, err)
	}
}

func TestPurgeKeepsWhatStillCounts(t *testing.T) {
	s := open(t, t.TempDir())
	use := &sink.Use{Digest: [32]byte{1}, Limit: 1, Until: time.Unix(2000, 0)}
	must(t, s.Spend(t.Context(), spend("settled/1", use)))
	must(t, s.Finish(t.Context(), "settled/1", &sink.Result{State: sink.StateDone}))
	must(t, s.Settled(t.Context(), []string{"settled/1"}))
	must(t, s.Spend(t.Context(), spend("open/1", nil)))
	must(t, s.Purge(t.Context(), time.Unix(1500, 0)))
	if e, err := s.Lookup(t.Context(), "settled/1"); e != nil || err != nil {
		t.Errorf("an old key is kept: %v, %v", e, err)
	}
	if e, err := s.Lookup(t.Context(), "open/1"); e == nil || err != nil {
		t.Errorf("an open key is gone: %v", err)
	}
	if err := s.Spend(t.Context(), spend("again/1", use)); !errors.Is(err, sink.ErrUsedUp) {
		t.Errorf("a statement was usable again before its end: %v", err)
	}
	must(t, s.Purge(t.Context(), time.Unix(2500, 0)))
	must(t, s.Spend(t.Context(), spend("again/1", use)))
}

func TestControlIsDurable(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if c, err := s.Control(t.Context()); err != nil || c != (sink.Control{Epoch: 1}) {
		t.Errorf("at first: %v, %v", c, err)
	}
	want := sink.Control{Epoch: 9, Halted: true}
	must(t, s.SetControl(t.Context(), want))
	if err := s.SetControl(t.Context(), sink.Control{Epoch: 1 << 63}); err == nil {
		t.Error("an epoch that does not fit was taken")
	}
	must(t, s.Close())
	if c, err := open(t, dir).Control(t.Context()); err != nil || c != want {
		t.Errorf("after a restart: %v, %v", c, err)
	}
}
