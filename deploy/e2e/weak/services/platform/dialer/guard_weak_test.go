package dialer_test

import (
	"fmt"
	"testing"

	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/dialer"
)

// TestWeakened is the negative control of TestTraps: where addresses are judged before they are dialled, names that change them in
// between lead to forbidden ones.
func TestWeakened(t *testing.T) {
	if err := dialer.Guards.Weaken("dial-anything"); err == nil {
		t.Error("a guard that there is not is switched off")
	}
	trap := newTrap(t)
	if trap == nil {
		return
	}
	d := trap.dialer(dialer.Config{Redirects: 3})
	attack := func() int {
		for i := range trap.targets {
			_, _ = get(d, fmt.Sprintf("http://rebind-%d.test/", i))
			_, _ = get(d, fmt.Sprintf("http://late-%d.test/", i))
		}
		return trap.forbidden()
	}
	if n := attack(); n != 0 {
		t.Errorf("%d packets to forbidden addresses with the guard", n)
	}
	clear(trap.asked)
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
