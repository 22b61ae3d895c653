package share

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestNobodyUsesUpTheTurns: a principal that asks for far more than there are places keeps nobody else waiting, and nothing of it stays.
func TestNobodyUsesUpTheTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewTurns(2)
		greedy, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var all sync.WaitGroup
		served := 0
		for range 100 {
			all.Go(func() {
				done, err := q.Take(greedy, "greedy")
				if err == nil {
					served++ // one at a time
					time.Sleep(2 * time.Second)
					done()
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		for range 10 {
			began := time.Now()
			done, err := q.Take(t.Context(), "modest")
			if err != nil || time.Since(began) > 0 {
				t.Fatalf("the other waited %s: %v", time.Since(began), err)
			}
			time.Sleep(time.Second)
			done()
		}
		all.Wait()
		if served < 30 || served > 31 {
			t.Errorf("in a minute of turns of 2 s the greedy one had %d", served)
		}
		if len(q.own) != 0 || len(q.places) != 0 {
			t.Errorf("%d principals and %d places are left", len(q.own), len(q.places))
		}
	})
}

func TestPlacesAreCounted(t *testing.T) {
	const each, all = 32, 256
	s := &Places{Each: each, All: all}
	var leave []func()
	for range each {
		leave = append(leave, s.Enter("one"))
	}
	if s.Enter("one") != nil {
		t.Error("one principal has more than its share")
	}
	for i := len(leave); i < all; i++ {
		leave = append(leave, s.Enter(string(rune('A'+i/each))))
	}
	if s.Enter("another") != nil {
		t.Error("there are more than in all")
	}
	for _, l := range leave {
		if l == nil {
			t.Fatal("a place within the bounds was refused")
		}
		l()
	}
	if len(s.of) != 0 || s.Held() != 0 {
		t.Errorf("%v, %d in all, when all have left", s.of, s.Held())
	}
}
