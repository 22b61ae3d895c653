package relay

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
)

// Calls of one operation share one trip to the sink, which goes on when the callers leave.
func TestFlightsAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var f flights
		var trips atomic.Int32
		land := make(chan struct{})
		fly := func() (Reply, error) {
			trips.Add(1)
			<-land
			return Reply{Outcome: &callv1.Outcome{Summary: "landed"}}, nil
		}
		impatient, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, err := f.do(impatient, "a", fly); !errors.Is(err, ErrRunning) {
			t.Fatalf("the first caller left with %v", err)
		}
		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() {
				if reply, err := f.do(t.Context(), "a", fly); err != nil || reply.Outcome.GetSummary() != "landed" {
					t.Errorf("joined: %v, %v", reply.Outcome, err)
				}
			})
		}
		synctest.Wait()
		close(land)
		waiting.Wait()
		if n := trips.Load(); n != 1 {
			t.Errorf("%d trips, want 1", n)
		}
		if _, err := f.do(t.Context(), "a", fly); err != nil || trips.Load() != 2 {
			t.Errorf("a later call makes its own trip: %v, %d", err, trips.Load())
		}
	})
}

func TestProofServesItsPurposeAlone(t *testing.T) {
	p := &callv1.Proof{Purpose: callv1.Proof_PURPOSE_CALL, Counter: 1}
	by := Caller{Proof: p}
	for purpose, want := range map[callv1.Proof_Purpose]*callv1.Proof{
		callv1.Proof_PURPOSE_CALL: p, callv1.Proof_PURPOSE_OPEN: nil, callv1.Proof_PURPOSE_RENEW: nil,
	} {
		if got := by.proof(purpose); got != want {
			t.Errorf("%v: %v", purpose, got)
		}
	}
	if (Caller{}).proof(callv1.Proof_PURPOSE_CALL) != nil {
		t.Error("no proof became one")
	}
}
