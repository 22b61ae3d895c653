package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestSearchesTakeTurns: however many search at once, some connections are left to what writes the log.
func TestSearchesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := historyService{Server: &Server{searching: make(chan struct{}, searches)}}
		began, end := make(chan struct{}, 10), make(chan struct{})
		for range cap(began) {
			go func() {
				_ = s.inTurn(t.Context(), func() error { // it returns what its read returned, nil
					began <- struct{}{}
					<-end
					return nil
				})
			}()
		}
		synctest.Wait()
		if n := len(began); n != searches {
			t.Errorf("%d searches go on at once, not %d", n, searches)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.inTurn(gone, func() error { return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("one whose caller went while it waited: %v", err)
		}
		close(end)
		synctest.Wait()
		if n := len(began); n != cap(began) {
			t.Errorf("%d of %d had their turn", n, cap(began))
		}
	})
}
