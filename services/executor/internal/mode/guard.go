package mode

import "durward.internal/services/executor/internal/lease"

// The guards that keep the host from being left half switched, one small function each, so that a drill can show what happens
// without one: its builds have the twins in deploy/e2e/weak instead.

// crashPoint is where a drill kills the executor: around each write of the journal.
func crashPoint(string) {}

// compensationRequired reports whether a switch that failed is undone.
func compensationRequired() bool { return true }

// admissionRequired reports whether a mode that does not fit is refused.
func admissionRequired() bool { return true }

// definitionRequired reports whether a service is started only if it is what was approved.
func definitionRequired() bool { return true }

// hostLease takes the whole host.
func hostLease(l *lease.Leases) (func(), error) { return l.Host() }

// marginAllowed reports whether a call may set the margin so low.
func marginAllowed(margin, least uint32) bool { return margin >= least }

// planRequired reports whether a plan other than the approved one is refused.
func planRequired() bool { return true }
