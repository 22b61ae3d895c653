package store_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/reserve"
	"durward.internal/services/vault/internal/store"
)

// TestFullDisk: on a disk that is really full nothing new is asked for, approved or redeemed, but a halt is durable, people
// can refuse and take back, and a call that stops something goes all its way.
func TestFullDisk(t *testing.T) {
	dir := platformtest.SmallDisk(t, 12<<20)
	if dir == "" {
		return // it ran in a process of its own
	}
	kept, err := reserve.Open(dir, 6<<20)
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), dir, kept)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at, made := time.Now(), 0
	operation := func(tool string) *store.Operation {
		made++
		return &store.Operation{
			ID: fmt.Sprintf("%032x", made), State: vaultv1.OperationState_OPERATION_STATE_PENDING, Principal: "p", Session: "s", ToolName: tool,
			ToolSource: "native", Arguments: make([]byte, 2000), AskedAt: at, ExpiresAt: at.Add(time.Minute),
		}
	}
	approval := func(o *store.Operation) *store.UsedStatement {
		return &store.UsedStatement{Digest: []byte(o.ID), OperationID: o.ID, Kind: "approve", Operator: "alice", UsedAt: at}
	}
	waiting := operation("start_service")
	approved := operation("start_service")
	if err := s.Insert(t.Context(), waiting); err != nil {
		t.Fatal(err)
	}
	if err := s.Insert(t.Context(), approved); err != nil {
		t.Fatal(err)
	}
	if err := s.Approve(t.Context(), approved, approval(approved)); err != nil {
		t.Fatal(err)
	}
	platformtest.Fill(t, filepath.Join(dir, "ballast"))
	var refused error
	for i := 0; i < 5000 && refused == nil; i++ { // what the database had allocated already
		refused = s.Insert(t.Context(), operation("start_service"))
	}
	if f := fault.From(refused); refused == nil || f.Code != callv1.Code_CODE_UNAVAILABLE || f.Message != reserve.Sentence || kept.InUse() {
		t.Fatalf("asking for a start on a full disk: %v", refused)
	}
	for round := range 20 {
		stop := operation("stop_service")
		for name, step := range map[string]func() error{
			"a halt": func() error {
				return s.SetControl(t.Context(), store.Control{Epoch: uint64(round) + 2, Halted: true}, nil)
			},
			"an opening":             func() error { return s.UseOpening(t.Context(), "agent", []byte{byte(round), 1}, at) },
			"an end of the standing": func() error { return s.EndStanding(t.Context(), "x", 1, "revoked", at) },
			"a stop": func() error {
				spend := store.Spend{OperationID: stop.ID, Use: 1, GrantID: "g", Audience: "a", At: at}
				if err := s.Insert(t.Context(), stop); err != nil {
					return fmt.Errorf("ask: %w", err)
				}
				if err := s.Approve(t.Context(), stop, approval(stop)); err != nil {
					return fmt.Errorf("approve: %w", err)
				}
				if err := s.Spend(t.Context(), spend); err != nil {
					return fmt.Errorf("redeem: %w", err)
				}
				return s.Settle(t.Context(), stop.ID, true, at)
			},
		} {
			if err := step(); err != nil {
				t.Fatalf("%s: %v: %v", name, err, fault.From(err).Cause)
			}
		}
	}
	if !kept.InUse() {
		t.Error("the reserve was not needed: the disk was not full")
	}
	for name, step := range map[string]func() error{
		"asking for a start": func() error { return s.Insert(t.Context(), operation("start_service")) },
		"approving a start":  func() error { return s.Approve(t.Context(), waiting, approval(waiting)) },
		"redeeming a start":  func() error { return s.Spend(t.Context(), store.Spend{OperationID: approved.ID, Use: 1, GrantID: "g"}) },
		"redeeming a stranger": func() error {
			return s.Spend(t.Context(), store.Spend{OperationID: "stop_service", Use: 1, GrantID: "g"})
		},
		"a command to start":  func() error { o := operation("start_service"); return s.InsertCommand(t.Context(), o, *approval(o)) },
		"a tool nobody knows": func() error { return s.Insert(t.Context(), operation("stop_service ")) },
	} {
		if err := step(); err == nil || fault.From(err).Message != reserve.Sentence {
			t.Errorf("%s: %v", name, err)
		}
	}
	waiting.State, waiting.DecidedBy = vaultv1.OperationState_OPERATION_STATE_DENIED, "alice"
	if err := s.End(t.Context(), vaultv1.OperationState_OPERATION_STATE_PENDING, waiting); err != nil {
		t.Errorf("a human's no: %v", err)
	}
}
