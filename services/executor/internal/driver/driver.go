// Package driver holds what every way of running a service has in common: what can be seen of it, and why it can fail.
// Causes are fixed sentences, because agents read them.
package driver

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
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
	// Starting: its manager has begun to start it and is not done.
	Starting
	// Stopping: its manager has begun to stop it and is not done.
	Stopping
	// Unknown: its manager does not answer.
	Unknown
)

// Status is what a driver last saw of a service.
type Status struct {
	State State
	// Since is when a running service was started.
	Since time.Time
	// Cause is why a service is not running, where that was not asked for.
	Cause string
	// CGroup is the control group of a running service's programs, as /proc/PID/cgroup shows it; "" where it has none of its own.
	CGroup string
	// PID is the first of a running service's programs, in the host's numbers; 0 where it is not known.
	PID int
	// Restarts counts how often its manager started it again by itself.
	Restarts uint32
	// Network says whether the entry's network expectation is enforced.
	Network Network
}

// Network says whether a service's network expectation is enforced.
type Network int

// Whether an expectation is enforced.
const (
	// NetworkUnasked: the catalog expects nothing.
	NetworkUnasked Network = iota
	NetworkEnforced
	NetworkNotEnforced
)

// Page is a piece of a service's log: whole lines as the service wrote them, the oldest first, unclean.
type Page struct {
	Lines []string
	// Cursor stands for the place after the last line; letters, digits, "_", "-", "=", ";" and ".", at most 256. It is never
	// empty: without lines it stands for the end.
	Cursor string
	// More: there are lines after the cursor.
	More bool
	// Before and After are what is known of the lines on either side, at most Around of each: what is spread over lines, such as
	// a key, can only be told by looking at them too. They are not shown.
	Before, After []string
}

// Around is how many lines on either side of a page are read with it.
const Around = 100

// Causes that services show.
const (
	CauseExited         = "the program ended by itself"
	CauseRestarted      = "the host was restarted"
	CausePortInUse      = "another program listens on the service's port"
	CauseTimeout        = "the service did not become healthy in time"
	CauseNoHealth       = "the service answers, and not its health check: see health in its catalogue entry"
	CauseStopped        = "it was stopped while it was starting"
	CauseLeft           = "the executor was stopped while the service was starting"
	CauseProgramMissing = "the program file is missing"
	CauseNotPermitted   = "the executor may not run the program as its user"
	CauseNotStarted     = "the program could not be started"
	CauseNotStopped     = "the program could not be ended"
	CauseUnhealthy      = "the service runs and does not answer its health check"
	CauseOutOfMemory    = "the host's memory for it ran out"
	CauseOutOfVRAM      = "the GPU's memory ran out"
	CauseWeightsMissing = "the model's files are missing"
	CauseStalled        = "the service made no progress while it was starting"
	CauseUnitMissing    = "systemd does not know the unit"
	CauseImageMissing   = "the image is not on this host"
	CauseContainer      = "the container is wider than what is allowed"
	CauseNoManager      = "its manager (systemd or Docker) does not answer"
	CauseStillHeld      = "GPU memory was not given back"
	CauseHalted         = "the host was halted"
	CauseRestartLimit   = "it ended by itself too often"
	CauseNoSleep        = "its engine did not go to sleep"
	CauseNoWake         = "its engine did not wake"
	CauseNoModel        = "the service answers and does not serve its model"
	CauseChanged        = "what it runs changed since it was approved"
	CauseHostMemory     = "the host's memory has no room for what it would move there"
	CauseSealed         = "the stored credentials are sealed until an operator unseals the vault"
	CauseNoCredential   = "a credential that it needs is not stored, or not granted to it" // #nosec G101 -- a sentence
	CauseOnlyByCall     = "it needs credentials that are not granted to it unattended: start it by a call"
	CauseNotTaken       = "its unit or container cannot take a credential the way it is set up; an operator finds how in credentials.md" // #nosec G101 -- a sentence
	CauseUnknown        = "its manager did not say whether it was started"
)

// Begin runs act, which has a program begin or asks its manager for that, unless it may not begin any more: then act is not run, and the
// error says why. A driver calls it once in a Start, when nothing is left to wait for, and holds nothing meanwhile that Status needs: an
// answer may take as long as the vault's.
type Begin func(act func() error) error

// AtOnce is the Begin of what holds values and runs nothing, and of tests: it asks nobody.
func AtOnce(act func() error) error { return act() }

// Reasons why Start and Stop fail.
var (
	ErrPortInUse      = errors.New(CausePortInUse)
	ErrProgramMissing = errors.New(CauseProgramMissing)
	ErrNotPermitted   = errors.New(CauseNotPermitted)
	ErrNotStarted     = errors.New(CauseNotStarted)
	ErrNotStopped     = errors.New(CauseNotStopped)
	ErrUnitMissing    = errors.New(CauseUnitMissing)
	ErrImageMissing   = errors.New(CauseImageMissing)
	ErrContainer      = errors.New(CauseContainer)
	ErrNoManager      = errors.New(CauseNoManager)
	// ErrSealed, ErrNoCredential and ErrOnlyByCall: it was not given what its entry names, and nothing of it was run.
	ErrSealed       = errors.New(CauseSealed)
	ErrNoCredential = errors.New(CauseNoCredential)
	ErrOnlyByCall   = errors.New(CauseOnlyByCall)
	// ErrNotTaken: what it was to be given cannot be handed to it as it is set up.
	ErrNotTaken = errors.New(CauseNotTaken)
	// ErrChanged: the service is not what the definition says, and nothing of it was run.
	ErrChanged = errors.New(CauseChanged)
	// ErrUnknown: the manager was told to start the service and its answer is lost. It may run by now, or later.
	ErrUnknown = errors.New(CauseUnknown)
)

// Cause returns the fixed sentence for a driver's error.
func Cause(err error) string {
	for _, known := range []error{
		ErrUnknown, ErrChanged, ErrSealed, ErrNoCredential, ErrOnlyByCall, ErrNotTaken,
		ErrPortInUse, ErrProgramMissing, ErrNotPermitted, ErrNotStopped, ErrUnitMissing, ErrImageMissing, ErrContainer, ErrNoManager,
	} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return CauseNotStarted
}

// PortFree reports as an error that somebody listens where a service will; port 0 is always free. That the executor itself may not listen
// there, as below port 1024, says nothing of others.
func PortFree(at netip.AddrPort) error {
	if at.Port() == 0 {
		return nil
	}
	l, err := net.Listen("tcp", at.String())
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return err
	case err != nil:
		return nil
	}
	return l.Close()
}
