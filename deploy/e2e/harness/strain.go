package harness

import (
	"os"
	"path/filepath"
	"time"
)

// Strain calls f and returns how long it took, and lag: how slow the machine was meanwhile. That is the longest that the smallest
// of requests to the gateway and the smallest of writes to the disk took together. What Durward does within a time of its own
// takes a few of either.
func (h *Host) Strain(f func()) (took, lag time.Duration) {
	h.t.Helper()
	probe := func() {
		began := time.Now()
		h.Healthy(Gateway) // whatever it says
		file, err := os.Create(filepath.Join(h.root, "tmp", "strain"))
		if err == nil {
			_, err = file.WriteString("x")
		}
		if err == nil {
			err = file.Sync()
		}
		if err == nil {
			err = file.Close()
		}
		if err != nil {
			h.t.Errorf("measure the disk: %v", err)
		}
		lag = max(lag, time.Since(began))
	}
	over, probed := make(chan struct{}), make(chan struct{})
	probe()
	go func() {
		defer close(probed)
		for tick := time.NewTicker(20 * time.Millisecond); ; {
			select {
			case <-over:
				tick.Stop()
				return
			case <-tick.C:
				probe()
			}
		}
	}()
	began := time.Now()
	f()
	took = time.Since(began)
	close(over)
	<-probed
	return took, lag
}
