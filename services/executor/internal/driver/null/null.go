// Package null is a driver that does nothing and says so: it lets the path of a call be measured without the cost of a
// program. What it "runs" is forgotten when the executor ends.
package null

import (
	"context"
	"sync"
	"time"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalogue"
)

// Driver remembers what it was told. It is safe for concurrent use; its zero value is ready.
type Driver struct {
	mu      sync.Mutex
	running map[string]time.Time
}

// Look reports whether the service was "started".
func (d *Driver) Look(s *catalogue.Service) driver.Sight {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, ok := d.running[s.ID]
	if !ok {
		return driver.Sight{State: driver.Stopped}
	}
	return driver.Sight{State: driver.Running, Since: since}
}

// Start notes the service.
func (d *Driver) Start(_ context.Context, s *catalogue.Service) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == nil {
		d.running = map[string]time.Time{}
	}
	d.running[s.ID] = time.Now()
	return nil
}

// Stop forgets the service.
func (d *Driver) Stop(_ context.Context, s *catalogue.Service) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.running[s.ID]
	delete(d.running, s.ID)
	return ok, nil
}
