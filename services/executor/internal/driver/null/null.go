// Package null is a driver that does nothing and says so: it lets the path of a call be measured without the cost of a
// program. What it "runs" is forgotten when the executor ends.
package null

import (
	"context"
	"sync"
	"time"

	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
)

// Driver remembers what it was told. It is safe for concurrent use; its zero value is ready and takes no time.
type Driver struct {
	// StartTakes and StopTakes are how long a "start" and a "stop" take, so that what is measured can be told from them. They are
	// set before the first use.
	StartTakes, StopTakes time.Duration

	mu      sync.Mutex
	running map[string]time.Time
}

// Status reports whether the service was "started".
func (d *Driver) Status(s *catalog.Service) driver.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, ok := d.running[s.ID]
	if !ok {
		return driver.Status{State: driver.Stopped}
	}
	return driver.Status{State: driver.Running, Since: since}
}

// Start notes the service.
func (d *Driver) Start(ctx context.Context, s *catalog.Service, _ string, begin driver.Begin) error {
	if d.StartTakes > 0 && !clock.Sleep(ctx, d.StartTakes) {
		return context.Cause(ctx)
	}
	return begin(func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.running == nil {
			d.running = map[string]time.Time{}
		}
		d.running[s.ID] = time.Now()
		return nil
	})
}

// Stop forgets the service.
func (d *Driver) Stop(ctx context.Context, s *catalog.Service) (bool, error) {
	if d.StopTakes > 0 && !clock.Sleep(ctx, d.StopTakes) {
		return false, context.Cause(ctx)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.running[s.ID]
	delete(d.running, s.ID)
	return ok, nil
}

// Definition is "": nothing is run.
func (d *Driver) Definition(context.Context, *catalog.Service) (string, error) { return "", nil }

// Logs is empty: nothing is said.
func (d *Driver) Logs(context.Context, *catalog.Service, string, int) (driver.Page, error) {
	return driver.Page{Cursor: "0"}, nil
}
