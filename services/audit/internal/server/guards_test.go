package server

import (
	"context"
	"errors"
	"syscall"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
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
