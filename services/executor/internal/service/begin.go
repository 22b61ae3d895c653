package service

import (
	"context"
	"sync"
	"time"

	"durward.internal/services/platform/catalog"
)

// beginning is a start between its confirmation and the moment at which its driver has the program begin. A halt waits for what is
// being confirmed, and a driver may take long until then: it makes a container, or asks the vault for credentials. So the confirmation
// waits for beginPatience alone, and what begins later is asked about once more, right before.
type beginning struct {
	m       *Manager
	ctx     context.Context
	service *catalog.Service
	late    Confirm

	mu sync.Mutex
	// over: the confirmation waits no more. begun: the driver was that far before.
	over, begun bool
	// refused is why it may not begin any more; it is read once the driver has answered.
	refused error
}

// wait waits for the driver's answer, as long as a halt may be kept waiting, and reports whether there is one.
func (b *beginning) wait(started <-chan error, err *error) bool {
	answered := func() bool {
		select {
		case *err = <-started:
			return true
		case <-time.After(beginPatience):
			return false
		}
	}
	if answered() {
		return true
	}
	b.mu.Lock()
	b.over = true
	begun := b.begun
	b.mu.Unlock()
	// What begins in this moment is not left half way; a manager that was asked may take longer.
	return begun && answered()
}

// begin is the driver's driver.Begin.
func (b *beginning) begin(act func() error) error {
	if err := context.Cause(b.ctx); err != nil {
		return err
	}
	b.mu.Lock()
	b.begun = !b.over
	over := b.over
	b.mu.Unlock()
	if !over {
		return act()
	}
	acted := make(chan struct{})
	var err error
	b.refused = b.late(b.ctx, func() {
		go func() {
			defer close(acted)
			err = b.m.guarded(b.ctx, b.service, act)
		}()
		select {
		case <-acted:
		case <-time.After(beginPatience):
		}
	})
	if b.refused != nil {
		return b.refused
	}
	<-acted
	return err
}
