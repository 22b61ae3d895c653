package server

import (
	"context"
	"sync"
)

// turns lets so many work at a time, and of each principal one: whoever asks for much waits for himself, and not others for him.
type turns struct {
	places chan struct{}

	mu  sync.Mutex
	own map[string]*turn // of principals that work or wait
}

type turn struct {
	place chan struct{}
	users int
}

func newTurns(atOnce int) *turns {
	return &turns{places: make(chan struct{}, atOnce), own: map[string]*turn{}}
}

// take waits for the principal's turn, which lasts until done, or for the end of ctx.
func (q *turns) take(ctx context.Context, principal string) (done func(), err error) {
	q.mu.Lock()
	own := q.own[principal]
	if own == nil {
		own = &turn{place: make(chan struct{}, 1)}
		q.own[principal] = own
	}
	own.users++
	q.mu.Unlock()
	leave := func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(q.own, principal)
		}
	}
	select {
	case own.place <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
	select {
	case q.places <- struct{}{}:
		return func() { <-q.places; <-own.place; leave() }, nil
	case <-ctx.Done():
		<-own.place
		leave()
		return nil, ctx.Err()
	}
}
