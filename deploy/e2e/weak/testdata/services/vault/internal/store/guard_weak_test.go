//go:build real

package store

import (
	"errors"
	"testing"

	installed "durward.internal/services/platform/platformtest/postgres"
	"durward.internal/services/platform/postgres"
)

// TestWithoutTheFence: what TestPostgresLead shows of a vault that lost its lead is not so without the epoch: it spends, after a halt that it
// did not see, what a human approved before.
func TestWithoutTheFence(t *testing.T) {
	stale, leader := leaders(t, installed.Start(t))
	must(t, leader.SetControl(t.Context(), Control{Epoch: 2, Halted: true}, nil))
	spend := Spend{OperationID: "two", Use: 1, GrantID: "g"}
	if err := stale.Spend(t.Context(), spend); !errors.Is(err, ErrFollows) {
		t.Fatalf("with the fence: %v", err)
	}
	weaken := postgres.WeakenFence
	weaken()
	// It believes still that it leads.
	e := stale.engine.(*server) //nolint:forcetypeassert // a test
	if e.lease.Epoch() == 0 {
		t.Fatal("it knows that it does not lead")
	}
	if err := stale.Spend(t.Context(), spend); err != nil {
		t.Fatalf("without the fence it is refused all the same: %v", err)
	}
}
