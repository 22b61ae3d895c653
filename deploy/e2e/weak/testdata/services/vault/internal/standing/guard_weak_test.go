package standing_test

import (
	"context"
	"testing"

	"golang.org/x/crypto/ssh"

	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/operation"
)

// The negative controls of this package's tests: each shows what its guard keeps out. A guard that was removed stays so, therefore
// these run by themselves: deploy/e2e does so

func TestWeakKeyBound(t *testing.T) {
	w := newWorld(t)
	live := w.open(bearer)
	w.must(operation.Guards.Weaken("key-bound"))
	w.granted(live, 1)
	o, err := w.call(live, "start_service", "a")
	w.must(err)
	w.must(w.redeem(o))
}

func TestWeakEpoch(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	w.enable(live)
	w.must(operation.Guards.Weaken("standing-epoch"))
	_, err := w.halt.Halt(context.Background(), "alice", "", w.Now())
	w.must(err)
	w.book.Sweep(t.Context())
	if _, ok := w.book.Dangerous(live.Ref); !ok {
		t.Error("a halt ends dangerous mode without its guard: the tests of it show nothing")
	}
}

func TestWeakUses(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	w.must(operation.Guards.Weaken("standing-uses"))
	w.granted(live, 1)
	for _, service := range []string{"a", "b", "c"} {
		o, err := w.call(live, "start_service", service)
		w.must(err)
		w.must(w.redeem(o))
	}
}

func TestWeakConfirmDelay(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	w.must(operation.Guards.Weaken("confirm-delay"))
	h := w.sign(w.dangerous(live))
	_, _, _, err := w.book.ProposeDangerous(t.Context(), h, "operator")
	w.must(err)
	second := w.confirmation(h)
	second.IssuedAt = statement.FormatTime(w.Now().Add(statement.ConfirmAfter)) // a human's clock may be ahead
	second.NotBefore = second.IssuedAt
	_, err = w.book.ConfirmDangerous(t.Context(), w.sign(second), "operator")
	w.must(err)
}

func TestWeakConfirmKey(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	w.must(operation.Guards.Weaken("confirm-key"))
	h := w.sign(w.dangerous(live))
	_, _, _, err := w.book.ProposeDangerous(t.Context(), h, "operator")
	w.must(err)
	second := w.confirmation(h) // made at once
	w.advance(statement.ConfirmAfter)
	_, err = w.book.ConfirmDangerous(t.Context(), w.sign(second), "operator")
	w.must(err)
}

func TestWeakSelfApproval(t *testing.T) {
	w := newWorld(t)
	live := w.open(bound)
	own, err := ssh.NewSignerFromKey(w.keys[bound])
	w.must(err)
	w.WriteTrust(trust.FileAllowedSigners, []byte(trust.FormatSigner("mallory", own.PublicKey(), statement.Namespace)+"\n"))
	w.must(w.Trust.Reload())
	w.must(operation.Guards.Weaken("self-approval"))
	s := w.scope(live, 1)
	s.Operator = "mallory"
	h, err := statement.Sign(s, own)
	w.must(err)
	_, err = w.book.GrantScope(t.Context(), h, nil, platformtest.Operator)
	w.must(err)
}
