package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/identity"
)

// An internal program has its own count of calls, by time and under way; nobody else has one here.
func TestCallsOfInternalProgramsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls toolCalls
		id := func(role optionsv1.Role, instance string) identity.ID {
			id, err := identity.New(identity.DefaultTrustDomain, role, instance)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		let := func(caller identity.ID, n int) (in int, leave []func()) {
			for range n {
				if l, refused := calls.enter(caller); refused == nil {
					leave = append(leave, l)
				}
			}
			return len(leave), leave
		}
		busy, other, gateway := id(optionsv1.Role_ROLE_TOOL, "busy"), id(optionsv1.Role_ROLE_TOOL, "other"), id(optionsv1.Role_ROLE_GATEWAY, "main")
		in, leave := let(busy, 500)
		if in != toolOpen {
			t.Errorf("%d calls are under way at once", in)
		}
		for _, l := range leave {
			l()
		}
		if in, leave = let(busy, 500); in != toolBurst-toolOpen {
			t.Errorf("%d more calls at once", in)
		}
		for _, l := range leave {
			l()
		}
		if in, _ := let(other, 10); in != 10 {
			t.Errorf("another program has %d of 10", in)
		}
		if in, _ := let(gateway, 500); in != 500 {
			t.Errorf("the gateway has %d of 500", in)
		}
		time.Sleep(time.Second)
		if in, _ := let(busy, 500); in != toolRate {
			t.Errorf("%d calls a second later", in)
		}
	})
}
