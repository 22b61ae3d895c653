package server

import (
	"sync"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/fault"
)

// watchersEach is how many streams of sessions one identity may hold: a reconnect overlaps the stream that it replaces.
const watchersEach = 4

// watching counts streams by identity, so that one gateway cannot leave the others without. Its zero value is ready; it is safe
// for concurrent use.
type watching struct {
	mu sync.Mutex
	of map[string]int
}

// enter counts one more of an identity until leave is called.
func (w *watching) enter(identity string) (leave func(), _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[identity] >= watchersEach {
		return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: this process watches often enough already", fault.WithRetry(time.Minute))
	}
	if w.of == nil {
		w.of = map[string]int{}
	}
	w.of[identity]++
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.of[identity]--; w.of[identity] == 0 {
			delete(w.of, identity)
		}
	}, nil
}
