// Package lease decides who may change what on the host at one moment: a switch has the whole host, a start or wake has the
// GPUs of its service, and a stop needs only that no switch is going on. Leases are in memory: an executor that is killed
// holds none, and its journal says what was under way.
package lease

import (
	"errors"
	"slices"
	"sync"

	"durward.internal/services/platform/catalogue"
)

// ErrSwitching: a switch of modes has the host.
var ErrSwitching = errors.New("a switch of modes is going on")

// ErrBusy: another service is being started or woken on one of the GPUs, or, for a switch, something is being changed.
var ErrBusy = errors.New("another change is going on there")

// Leases hands out leases. Its zero value is ready, and it is safe for concurrent use.
type Leases struct {
	mu        sync.Mutex
	switching bool
	// holders counts changes of single services.
	holders int
	gpus    map[uint32]bool
	changed chan struct{}
}

// Host takes the whole host for a switch, or fails with ErrSwitching or ErrBusy. The returned function gives it back; calling
// it again does nothing.
func (l *Leases) Host() (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.switching:
		return nil, ErrSwitching
	case l.holders > 0:
		return nil, ErrBusy
	}
	l.switching = true
	return l.giveBack(func() { l.switching = false }), nil
}

// Loading takes the service's GPUs to start or wake it, or fails with ErrSwitching or ErrBusy: two loads at once on one GPU
// spoil each other's measurement of free memory.
func (l *Leases) Loading(s *catalogue.Service) (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.switching:
		return nil, ErrSwitching
	case slices.ContainsFunc(s.GPUs, func(i uint32) bool { return l.gpus[i] }):
		return nil, ErrBusy
	}
	if l.gpus == nil {
		l.gpus = map[uint32]bool{}
	}
	for _, i := range s.GPUs {
		l.gpus[i] = true
	}
	l.holders++
	return l.giveBack(func() {
		for _, i := range s.GPUs {
			delete(l.gpus, i)
		}
		l.holders--
	}), nil
}

// Releasing takes the right to stop a service or put it to sleep, or fails with ErrSwitching.
func (l *Leases) Releasing() (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.switching {
		return nil, ErrSwitching
	}
	l.holders++
	return l.giveBack(func() { l.holders-- }), nil
}

// Changed returns a channel that is closed when a lease is given back.
func (l *Leases) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.changed
}

func (l *Leases) giveBack(release func()) func() {
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		release()
		if l.changed != nil {
			close(l.changed)
			l.changed = nil
		}
	})
}
