// Package driver holds what every way of running a service has in common: what can be seen of it, and why it can fail.
// Causes are fixed sentences, because agents read them.
package driver

import (
	"errors"
	"net"
	"strconv"
	"time"
)

// State is what a driver sees of a service.
type State int

// States of a service as its driver sees it.
const (
	// Stopped: it was never started, or it was stopped.
	Stopped State = iota
	Running
	// Ended: it was started and ended by itself.
	Ended
)

// Sight is one look at a service.
type Sight struct {
	State State
	// Since is when a running service was started.
	Since time.Time
	// Cause is why a service is not running, where that was not asked for.
	Cause string
}

// Causes that services show.
const (
	CauseExited         = "the program ended by itself"
	CauseRestarted      = "the host was restarted"
	CausePortInUse      = "another program listens on the service's port"
	CauseTimeout        = "the service did not become healthy in time"
	CauseStopped        = "it was stopped while it was starting"
	CauseProgramMissing = "the program file is missing"
	CauseNotPermitted   = "the executor may not run the program as its user"
	CauseNotStarted     = "the program could not be started"
	CauseNotStopped     = "the program could not be ended"
	CauseUnhealthy      = "the service runs and does not answer its health check"
)

// Reasons why Start and Stop fail.
var (
	ErrPortInUse      = errors.New(CausePortInUse)
	ErrProgramMissing = errors.New(CauseProgramMissing)
	ErrNotPermitted   = errors.New(CauseNotPermitted)
	ErrNotStarted     = errors.New(CauseNotStarted)
	ErrNotStopped     = errors.New(CauseNotStopped)
)

// Cause returns the fixed sentence for a driver's error.
func Cause(err error) string {
	for _, known := range []error{ErrPortInUse, ErrProgramMissing, ErrNotPermitted, ErrNotStopped} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return CauseNotStarted
}

// PortFree reports as an error that somebody listens where a service will; port 0 is always free.
func PortFree(port uint32) error {
	if port == 0 {
		return nil
	}
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.FormatUint(uint64(port), 10)))
	if err != nil {
		return err
	}
	return l.Close()
}
