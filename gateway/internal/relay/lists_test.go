package relay

import (
	"testing"
	"testing/synctest"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// Once lists changed the vault is asked again, however young its word is, and once more where it answered before the change and was heard
// after it. A client that signs is asked to.
func TestRefreshAfterAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		r, s := opened(t, p)
		by := Caller{Credential: "token"}
		wantRenewed := func(when string, n int) {
			t.Helper()
			if err := r.Refresh(t.Context(), s, by); err != nil || p.renewed != n {
				t.Errorf("%s: %d renewals, want %d: %v", when, p.renewed, n, err)
			}
		}
		time.Sleep(time.Second)
		wantRenewed("before any change", 0)
		r.ListsChanged()
		p.renewing = r.ListsChanged
		time.Sleep(time.Millisecond)
		wantRenewed("after a change", 1)
		p.renewing = nil
		wantRenewed("after one during the answer", 2)
		wantRenewed("once it is known", 2)

		p.keyBound = true
		time.Sleep(time.Second)
		r, s = opened(t, p)
		if err := r.Refresh(t.Context(), s, by); err != nil {
			t.Errorf("a client that signs, before any change: %v", err)
		}
		time.Sleep(time.Second)
		r.ListsChanged()
		if err := r.Refresh(t.Context(), s, by); !fault.Is(err, callv1.Code_CODE_PROOF_REQUIRED) || p.renewed != 2 {
			t.Errorf("a client that signs, after a change: %v, %d renewals", err, p.renewed)
		}
		by.Proof = &callv1.Proof{Purpose: callv1.Proof_PURPOSE_RENEW}
		wantRenewed("with its proof", 3)
	})
}
