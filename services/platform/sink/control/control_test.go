package control_test

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/sink/control"
	"durward.internal/services/platform/sink/sinkstore"
)

// TestStatusIsInEverySinksWords: a halted sink says so, whichever message its status is.
func TestStatusIsInEverySinksWords(t *testing.T) {
	kit := platformtest.New(t)
	store, err := sinkstore.Open(t.Context(), sinkstore.Config{Service: "egress", StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	authority, err := sink.New(t.Context(), sink.Config{
		Self: kit.ID(optionsv1.Role_ROLE_EGRESS, "local"), Trust: kit.Trust, Store: store, Recorder: kept{}, Logger: platformtest.Logger(), Tokeniser: tokeniser{},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := control.New(control.Config{
		Self: kit.ID(optionsv1.Role_ROLE_EGRESS, "local"), Authority: authority, Log: kept{}, VaultReachable: func() bool { return true }, Version: "1.2.3",
	})
	halted, err := s.Halt(t.Context(), &executorv1.HaltRequest{Reason: "smoke"})
	if err != nil {
		t.Fatal(err)
	}
	type status interface {
		proto.Message
		GetHalted() bool
		GetHaltedReason() string
		GetEpoch() uint64
		GetVersion() string
		GetVaultReachable() bool
		GetCheckpoint() []byte
		GetSpooledRecords() uint32
	}
	for _, out := range []status{&executorv1.GetStatusResponse{}, &egressv1.GetStatusResponse{}} {
		if err := s.Status(t.Context(), out); err != nil {
			t.Fatal(err)
		}
		if !out.GetHalted() || out.GetHaltedReason() != "smoke" || out.GetEpoch() != halted.GetEpoch() || out.GetVersion() != "1.2.3" ||
			!out.GetVaultReachable() || string(out.GetCheckpoint()) != "checkpoint" || out.GetSpooledRecords() != 7 {
			t.Errorf("%T: %v", out, out)
		}
	}
}

type tokeniser struct{ sink.Tokeniser }

// kept is a log that takes everything, later.
type kept struct{}

func (kept) Record(context.Context, *auditv1.Record) (*callv1.Receipt, error) {
	return &callv1.Receipt{}, nil
}
func (kept) Report(context.Context, *auditv1.Record) (*callv1.Receipt, error) {
	return &callv1.Receipt{}, nil
}
func (kept) Spool(context.Context, *auditv1.Record) error { return nil }
func (kept) Reachable() bool                              { return true }
func (kept) Depth() int                                   { return 7 }
func (kept) Checkpoint() []byte                           { return []byte("checkpoint") }
