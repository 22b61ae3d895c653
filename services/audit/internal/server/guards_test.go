package server

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"golang.org/x/mod/sumdb/note"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/audit/internal/cosigned"
	"durward.internal/services/audit/internal/log"
	"durward.internal/services/audit/internal/store"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/platformtest"
)

// TestAnUnknownCallerIsRefused, also where no chain stands in front.
func TestAnUnknownCallerIsRefused(t *testing.T) {
	if id, err := caller(t.Context()); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("%s, %v", id, err)
	}
}

// TestHalfAServerIsNone: without a log, a store or an identity there is no server.
func TestHalfAServerIsNone(t *testing.T) {
	if s, err := New(Config{}); err == nil {
		t.Errorf("%v", s)
	}
}

// TestFreeBytes: a full disk is told from one that is a database server's.
func TestFreeBytes(t *testing.T) {
	for blocks, want := range map[uint64]uint64{0: 1, 3: 3 * 4096} {
		if got := freeBytes(&syscall.Statfs_t{Bavail: blocks, Bsize: 4096}); got != want {
			t.Errorf("%d blocks: %d bytes, want %d", blocks, got, want)
		}
	}
}

// TestUnreadable: whoever stopped waiting is told so, and that the log cannot be read is said of nothing else.
func TestUnreadable(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded} {
		if got := unreadable(err); !errors.Is(got, err) || fault.Is(got, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if got := unreadable(errors.New("the disk is gone")); !fault.Is(got, callv1.Code_CODE_AUDIT_UNAVAILABLE) {
		t.Errorf("%v", got)
	}
}

// TestNobodyKeepsCosignatures: where there is no place for them, that is said.
func TestNobodyKeepsCosignatures(t *testing.T) {
	answer, err := witnessService{Server: &Server{}}.AddCosignatures(t.Context(), &auditv1.AddCosignaturesRequest{})
	if !fault.Is(err, callv1.Code_CODE_UNAVAILABLE) {
		t.Errorf("%v, %v", answer, err)
	}
}

// second is the store of a process while another leads.
type second struct{ *store.Store }

func (second) Lead(context.Context) error { return store.ErrFollows }

// TestWhoStandsByIsNoRelaysAudit: what a relay brought there nobody would see. The answer has it go on to the process that leads.
func TestWhoStandsByIsNoRelaysAudit(t *testing.T) {
	kit := platformtest.New(t)
	db, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	history, err := log.Open(t.Context(), log.Config{Store: second{db}, Signer: kit.LogSigner, Keys: func() []note.Verifier { return kit.Trust.Current().LogKeys }})
	if err != nil {
		t.Fatal(err)
	}
	defer history.Close()
	s := &Server{cfg: Config{Log: history, Store: db, Cosigned: &cosigned.Keeper{}, Forwarding: NewForwarding(ForwardRecords)}}
	_, shown := witnessService{Server: s}.GetCheckpoint(t.Context(), &auditv1.GetCheckpointRequest{})
	_, added := witnessService{Server: s}.AddCosignatures(t.Context(), &auditv1.AddCosignaturesRequest{})
	_, read := forwardService{Server: s}.ReadRecords(t.Context(), &auditv1.ReadRecordsRequest{Destination: "archive"})
	for what, err := range map[string]error{"a checkpoint": shown, "cosignatures": added, "records": read} {
		if f := fault.From(err); err == nil || f.Code != callv1.Code_CODE_AUDIT_UNAVAILABLE || f.Field != "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if told := s.cfg.Forwarding.Status(); len(told) != 0 {
		t.Errorf("it keeps %v", told)
	}
}
