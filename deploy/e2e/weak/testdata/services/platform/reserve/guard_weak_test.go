package reserve_test

import (
	"syscall"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	"durward.internal/services/platform/reserve"
)

// TestWeakened is the negative control: without the guard anything uses the reserve up.
func TestWeakened(t *testing.T) {
	r := open(t, t.TempDir())
	uses := func() bool {
		full := true
		err := r.Write(false, func() error {
			if full {
				full = false
				return syscall.ENOSPC
			}
			return nil
		})
		return err == nil && reserve.Entitled(&auditv1.Record{Kind: auditv1.Kind_KIND_READ})
	}
	if uses() {
		t.Error("the reserve is used with the guard")
	}
	reserve.WeakenReserve()
	if !uses() {
		t.Error("the reserve is not used without the guard, so the tests show nothing")
	}
}
