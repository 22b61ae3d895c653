package relay

import (
	"context"
	"errors"
	"sync"
)

// ErrRunning is returned when a caller stopped waiting for an operation that goes on.
var ErrRunning = errors.New("the operation is still running")

// flights joins calls that carry out the same operation: one of them speaks to the sink, all of them get its answer,
// which none of them may change.
type flights struct {
	mu   sync.Mutex
	byID map[string]*flight
	// joined, where set, is called when a further caller joins a flight that is under way.
	joined func()
}

type flight struct {
	done  chan struct{}
	reply Reply
	err   error
}

// do runs fn for id, unless it is under way, and waits for its end or for ctx. fn is not cancelled with ctx. An operation
// id is the vault's unguessable one, which it gave to this caller too.
func (f *flights) do(ctx context.Context, id string, fn func() (Reply, error)) (Reply, error) {
	f.mu.Lock()
	if f.byID == nil {
		f.byID = map[string]*flight{}
	}
	current, joined := f.byID[id]
	if !joined {
		current = &flight{done: make(chan struct{})}
		f.byID[id] = current
		go func() {
			current.reply, current.err = fn()
			f.mu.Lock()
			delete(f.byID, id)
			f.mu.Unlock()
			close(current.done)
		}()
	}
	f.mu.Unlock()
	if joined && f.joined != nil {
		f.joined()
	}
	select {
	case <-current.done:
		return current.reply, current.err
	case <-ctx.Done():
		return Reply{}, ErrRunning
	}
}
