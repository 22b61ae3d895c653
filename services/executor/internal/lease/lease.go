// Package lease decides who may change what on the host at one moment: a switch has the whole host, a start or wake has the
// GPUs of its service, and a stop needs only that no switch is going on. Leases are in memory: an executor that is killed
// holds none, and its journal says what was under way.
package lease

import (
	"errors"
	"slices"
	"sync"

	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
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
	// loading names the service that loads on a GPU; releasing counts those that release there.
	loading   map[uint32]string
	releasing map[uint32]int
	changed   clock.Signal
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

// Loading takes the service's GPUs to start or wake it, or to put it to sleep, or fails with ErrSwitching or ErrBusy: two changes
// of memory at once on one GPU spoil each other's measurement of what is free.
func (l *Leases) Loading(s *catalog.Service) (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.switching:
		return nil, ErrSwitching
	case slices.ContainsFunc(s.GPUs, func(i uint32) bool { _, taken := l.loading[i]; return taken || l.releasing[i] > 0 }):
		return nil, ErrBusy
	}
	if l.loading == nil {
		l.loading = map[uint32]string{}
	}
	for _, i := range s.GPUs {
		l.loading[i] = s.ID
	}
	l.holders++
	return l.giveBack(func() {
		for _, i := range s.GPUs {
			delete(l.loading, i)
		}
		l.holders--
	}), nil
}

// Releasing takes the right to stop a service, or fails with ErrSwitching. With patience it fails with ErrBusy where another
// service loads on one of its GPUs; one that loads itself may always be stopped.
func (l *Leases) Releasing(s *catalog.Service, patient bool) (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.switching:
		return nil, ErrSwitching
	case patient && slices.ContainsFunc(s.GPUs, func(i uint32) bool { id, taken := l.loading[i]; return taken && id != s.ID }):
		return nil, ErrBusy
	}
	if l.releasing == nil {
		l.releasing = map[uint32]int{}
	}
	for _, i := range s.GPUs {
		l.releasing[i]++
	}
	l.holders++
	return l.giveBack(func() {
		for _, i := range s.GPUs {
			l.releasing[i]--
		}
		l.holders--
	}), nil
}

// Changed returns a channel that is closed when a lease is given back.
func (l *Leases) Changed() <-chan struct{} { return l.changed.Wait() }

func (l *Leases) giveBack(release func()) func() {
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		release()
		l.changed.Raise()
	})
}
