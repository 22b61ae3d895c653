package relay

import (
	"testing"
	"testing/synctest"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// Once lists changed the vault is asked again, however young its word is, and once more where it answered before the change and was heard
// after it. A client that signs brings a proof, and its lists count as others from then on.
func TestRefreshAfterAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeers()
		r, s := opened(t, p)
		by := Caller{Credential: "token"}
		wantRenewed := func(when string, n int) {
			t.Helper()
			if r.Refresh(t.Context(), s, by); p.renewed != n {
				t.Errorf("%s: %d renewals, want %d", when, p.renewed, n)
			}
		}
		relisted := s.Relisted()
		wantRelisted := func(when string, want bool) {
			t.Helper()
			select {
			case <-relisted:
				if relisted = s.Relisted(); !want {
					t.Errorf("%s: its lists count as others", when)
				}
			default:
				if want {
					t.Errorf("%s: its lists do not count as others", when)
				}
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
		wantRelisted("a client that lists what is known", false)

		p.keyBound = true
		r, s = opened(t, p)
		relisted = s.Relisted()
		time.Sleep(time.Second)
		r.ListsChanged()
		time.Sleep(time.Millisecond)
		wantRenewed("a client that signs, without its proof", 2)
		wantRelisted("a client that signs, without its proof", false)
		by.Proof = &callv1.Proof{Purpose: callv1.Proof_PURPOSE_RENEW}
		wantRenewed("with its proof", 3)
		wantRelisted("with its proof", true)
		time.Sleep(time.Minute)
		wantRenewed("after a minute without a change", 4)
		wantRelisted("after a minute without a change", false)
	})
}
