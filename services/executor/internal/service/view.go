package service

import (
	"cmp"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalog"
)

// View is what a service looks like now.
type View struct {
	State   executorv1.ServiceState
	Healthy bool
	// Since is when a running service was started.
	Since time.Time
	// Cause is one of the driver package's sentences, or "".
	Cause string
	// Restarts counts how often it was started again by itself: by its manager, and by its entry's rule since this executor began.
	Restarts uint32
	Network  driver.Network
}

// Running reports whether the service runs or is about to, or is being stopped: awake, it holds its resources.
func (v View) Running() bool {
	switch v.State {
	case executorv1.ServiceState_SERVICE_STATE_RUNNING, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY,
		executorv1.ServiceState_SERVICE_STATE_STARTING, executorv1.ServiceState_SERVICE_STATE_STOPPING:
		return true
	default:
		return false
	}
}

// Up reports whether the service runs and answers, as far as anybody has asked.
func (v View) Up() bool { return v.State == executorv1.ServiceState_SERVICE_STATE_RUNNING }

// Alive reports whether the service runs, whether or not it answers at the moment.
func (v View) Alive() bool {
	return v.Up() || v.State == executorv1.ServiceState_SERVICE_STATE_UNHEALTHY && v.Cause != driver.CauseStillHeld
}

// Asleep reports whether the service sleeps, and was seen to have given its memory back.
func (v View) Asleep() bool { return v.State == executorv1.ServiceState_SERVICE_STATE_SLEEPING }

// Holds reports whether the service holds resources or may: it runs, sleeps, or cannot be seen.
func (v View) Holds() bool {
	return v.Running() || v.Asleep() || v.State == executorv1.ServiceState_SERVICE_STATE_UNKNOWN
}

// Status describes a service. It asks the driver; health is as of the last check, at most a few seconds ago.
func (m *Manager) Status(s *catalog.Service) View { return m.look(s, m.driver(s).Status(s)) }

func (m *Manager) look(s *catalog.Service, status driver.Status) View {
	u := m.instance(s.ID)
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.view(status)
}

// sleeps reports whether the engine of what runs said that it sleeps. What another run said is over with it: its manager, or a human,
// may have started the program again since, and that one loads. The instance is locked.
func (u *instance) sleeps(status driver.Status) bool { return u.asleep && status.Since.Equal(u.slept) }

// view is what a service looks like by what is remembered of it and what its driver sees. The instance is locked.
func (u *instance) view(status driver.Status) View {
	v := View{Restarts: status.Restarts + u.rules.restarts, Network: status.Network}
	running := func(state executorv1.ServiceState, cause string) View {
		v.State, v.Since, v.Cause = state, status.Since, cause
		return v
	}
	if u.phase != executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED {
		return running(u.phase, "")
	}
	switch status.State {
	case driver.Unknown:
		v.State, v.Cause = executorv1.ServiceState_SERVICE_STATE_UNKNOWN, cmp.Or(status.Cause, driver.CauseNoManager)
	case driver.Starting:
		return running(executorv1.ServiceState_SERVICE_STATE_STARTING, "")
	case driver.Stopping:
		return running(executorv1.ServiceState_SERVICE_STATE_STOPPING, "")
	case driver.Running:
		switch {
		case u.sleeps(status) && u.held:
			return running(executorv1.ServiceState_SERVICE_STATE_UNHEALTHY, driver.CauseStillHeld)
		case u.sleeps(status):
			return running(executorv1.ServiceState_SERVICE_STATE_SLEEPING, "")
		case u.verdict.bad():
			return running(executorv1.ServiceState_SERVICE_STATE_UNHEALTHY, driver.CauseUnhealthy)
		}
		v.Healthy = u.verdict.good()
		return running(executorv1.ServiceState_SERVICE_STATE_RUNNING, "")
	case driver.Ended:
		if u.doubt {
			v.State, v.Cause = executorv1.ServiceState_SERVICE_STATE_UNKNOWN, driver.CauseUnknown
			return v
		}
		v.State, v.Cause = executorv1.ServiceState_SERVICE_STATE_FAILED, cmp.Or(status.Cause, driver.CauseExited)
	default:
		if u.doubt {
			v.State, v.Cause = executorv1.ServiceState_SERVICE_STATE_UNKNOWN, driver.CauseUnknown
			return v
		}
		v.State, v.Cause = executorv1.ServiceState_SERVICE_STATE_STOPPED, status.Cause
		if u.failure != "" {
			v.State, v.Cause = executorv1.ServiceState_SERVICE_STATE_FAILED, u.failure
		}
	}
	switch failed := v.State == executorv1.ServiceState_SERVICE_STATE_FAILED; {
	case failed && u.rules.spent:
		v.Cause = driver.CauseRestartLimit
	case failed && u.rules.changed:
		v.Cause = driver.CauseChanged
	}
	return v
}
