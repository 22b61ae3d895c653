package dialer_test

import (
	"testing"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
	"durward.internal/services/platform/platformtest/traps"
)

// TestWeakened is the negative control of TestTraps: where addresses are judged before they are dialled, names that change them in
// between lead to forbidden ones.
func TestWeakened(t *testing.T) {
	if err := dialer.Guards.Weaken("dial-anything"); err == nil {
		t.Error("a guard that there is not is switched off")
	}
	trap := traps.New(t)
	if trap == nil {
		return
	}
	d := trapped(t, nil)
	attack := func() int {
		for _, to := range trap.Rebinding() {
			_, _ = get(d, to)
		}
		return trap.Forbidden(nobody)
	}
	if n := attack(); n != 0 {
		t.Errorf("%d packets to forbidden addresses with the guard", n)
	}
	trap.Asked() // what comes now is new
	if err := dialer.Guards.Weaken("dial-judged-before"); err != nil {
		t.Fatal(err)
	}
	if n := attack(); n < 50 {
		t.Errorf("%d packets to forbidden addresses without the guard, so the tests show nothing", n)
	}
}

// TestWeakenedDowngrade is the negative control of TestRedirects.
func TestWeakenedDowngrade(t *testing.T) {
	if err := leaveTLS(t); !ruled(err, destination.RuleDowngrade) {
		t.Errorf("with the guard: %v", err)
	}
	if err := dialer.Guards.Weaken("dial-downgrade"); err != nil {
		t.Fatal(err)
	}
	if err := leaveTLS(t); err != nil {
		t.Errorf("without the guard: %v", err)
	}
}
