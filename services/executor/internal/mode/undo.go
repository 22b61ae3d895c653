package mode

import (
	"context"
	"errors"
	"slices"
	"strings"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
)

// undo brings back what was there before, as far as that was touched, and ends the switch. It goes by what it sees: what was
// begun, by this process or by one that is no more, is undone whether or not it was done, and what is as it was is left alone.
func (r *run) undo(ctx context.Context) *Result {
	if !r.halted && !r.rebooted && compensationRequired() {
		r.bringBack(ctx)
	}
	if r.leaving {
		return r.leave(ctx)
	}
	notRunning, lost := r.missing()
	outcome := executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK
	current := r.from
	switch {
	case r.halted || r.stuck || lost:
		outcome, current = executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN, ""
	case r.rebooted && len(notRunning) > 0:
		// The mode from before stays the current one: the boot rule may name it.
		outcome = executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN
	case len(notRunning) > 0:
		outcome = executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED
	}
	if outcome != executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK {
		r.cfg.Logger.ErrorContext(ctx, "A SWITCH OF MODES COULD NOT BE UNDONE WHOLLY; a human has to look at the host",
			"mode", r.work.Mode, "outcome", OutcomeName(outcome), "not_running", notRunning)
	}
	return r.end(ctx, outcome, notRunning, current)
}

// bringBack first gives up what the switch took, in reverse, and then takes back what it gave up, in reverse.
func (r *run) bringBack(ctx context.Context) {
	releases, incoming := r.split()
	releases = slices.DeleteFunc(releases, func(st workStep) bool { return !r.touched[st.Service] })
	incoming = slices.DeleteFunc(incoming, func(st workStep) bool {
		return !r.touched[st.Service] || st.Before == plan.WasRunning // one that was to be restarted is brought back below
	})
	r.of = r.told + r.undoing(releases, incoming)
	for _, st := range slices.Backward(incoming) {
		if !r.giveUp(ctx, st) {
			return
		}
	}
	for _, st := range r.returning(releases) {
		r.takeBack(ctx, st)
		if r.halted {
			return
		}
	}
}

// returning is the order in which services are brought back: each after what it depends on. What slept keeps little, and has to load wholly
// before it sleeps again: it comes first with what it depends on, while there is the most room.
func (r *run) returning(releases []workStep) []workStep {
	c, seen := r.cfg.Catalog(), map[string]bool{}
	var out []workStep
	var visit func(id string)
	visit = func(id string) {
		if seen[id] {
			return
		}
		seen[id] = true
		if one, ok := c.Lookup(id); ok {
			for _, other := range one.DependsOn {
				visit(other)
			}
		}
		if i := slices.IndexFunc(releases, func(st workStep) bool { return st.Service == id }); i >= 0 {
			out = append(out, releases[i])
		}
	}
	for _, slept := range []bool{true, false} {
		for _, st := range slices.Backward(releases) {
			if (st.Before == plan.WasSleeping) == slept {
				visit(st.Service)
			}
		}
	}
	return out
}

// undoing is how many steps it takes to give up incoming and to take back releases, by what is seen as that begins.
func (r *run) undoing(releases, incoming []workStep) (n int) {
	for _, st := range incoming {
		if one, ok := r.cfg.Catalog().Lookup(st.Service); ok && r.cfg.Services.Status(one).Holds() {
			n++
		}
	}
	for _, st := range releases {
		one, ok := r.cfg.Catalog().Lookup(st.Service)
		if !ok || r.isAsBefore(st, one) {
			continue
		}
		n++
		if st.Before == plan.WasSleeping {
			n++ // it starts, and sleeps
		}
	}
	return n
}

// giveUp ends a service that was started, or puts one back to sleep that was woken. It reports whether undoing may go on.
func (r *run) giveUp(ctx context.Context, st workStep) bool {
	one, ok := r.cfg.Catalog().Lookup(st.Service)
	if !ok {
		r.stuck = true // whatever it is by now, nobody can end it
		return false
	}
	v := r.cfg.Services.Status(one)
	// One whose wake was begun may be half awake whatever it looks like: the service manager makes sure that it sleeps.
	if st.Before == plan.WasSleeping && (v.Running() || v.Asleep()) {
		err := r.do(ctx, plan.Sleep, one, "", true, r.cfg.Services.Sleep)
		if err == nil || r.halted {
			return !r.halted
		}
		r.cfg.Logger.WarnContext(ctx, "a service does not go back to sleep and is stopped", "service_id", one.ID, "error", err)
	} else if !v.Holds() {
		return true
	}
	programs := r.programs(one)
	if err := r.do(ctx, plan.Stop, one, "", true, r.cfg.Services.StopLocked); err != nil {
		r.stuck = r.stuck || !r.halted
		r.cfg.Logger.ErrorContext(ctx, "a service could not be ended; nothing more is tried", "service_id", one.ID, "error", err)
		return false
	}
	for _, pid := range programs {
		r.gone[pid] = true
	}
	return true
}

// takeBack makes a service run, or sleep, that did before. What cannot be brought back is left; the others may still fit.
func (r *run) takeBack(ctx context.Context, st workStep) {
	one, ok := r.cfg.Catalog().Lookup(st.Service)
	var err error
	if !ok {
		err = errors.New(CauseRemoved)
	}
	if err == nil {
		if r.isAsBefore(st, one) {
			return
		}
		// It ran before, by whatever margin a call had set within what a human allows.
		r.margin = r.leastMargin()
		// A program that ended and still counts as there is no reason against it where there is room all the same.
		if short := r.await(ctx, []*catalog.Service{one}); short != nil && short.Short != nil {
			err = short
		}
	}
	var definition string
	if err == nil {
		one, definition, err = r.approved(ctx, st)
	}
	if err == nil {
		err = r.do(ctx, plan.Start, one, definition, true, r.cfg.Services.StartLocked)
	}
	if err == nil && st.Before == plan.WasSleeping {
		if err = r.do(ctx, plan.Sleep, one, "", true, r.cfg.Services.Sleep); err != nil && !r.halted {
			// Awake it would take the room of those that are brought back after it.
			err = errors.Join(err, r.do(ctx, plan.Stop, one, "", true, r.cfg.Services.StopLocked))
		}
	}
	if err != nil {
		r.cfg.Logger.ErrorContext(ctx, "a service could not be brought back", "service_id", st.Service, "error", err)
	}
}

// isAsBefore reports whether a service needs nothing to be as it was before its step. After a restart nobody has asked yet whether a service
// sleeps that can; then it is asked by being woken.
func (r *run) isAsBefore(st workStep, one *catalog.Service) bool {
	v := r.cfg.Services.Status(one)
	return asBefore(st.Before, v) && (!r.recovered || !engine.Sleeps(one) || v.Asleep())
}

// missing are the services that are not as they were before. lost: some of them could not be ended, or nobody can tell what they
// are.
func (r *run) missing() (notRunning []string, lost bool) {
	for _, st := range r.work.Steps {
		if !r.touched[st.Service] {
			continue
		}
		one, ok := r.cfg.Catalog().Lookup(st.Service)
		if !ok {
			lost = true
			if st.Before != plan.WasStopped {
				notRunning = append(notRunning, st.Service)
			}
			continue
		}
		v := r.cfg.Services.Status(one)
		switch v.State {
		case executorv1.ServiceState_SERVICE_STATE_UNKNOWN, executorv1.ServiceState_SERVICE_STATE_STARTING,
			executorv1.ServiceState_SERVICE_STATE_STOPPING:
			lost = true
		default: // it was seen
		}
		switch {
		case st.Before == plan.WasStopped:
			lost = lost || v.Holds()
		case !asBefore(st.Before, v) && !slices.Contains(notRunning, st.Service):
			notRunning = append(notRunning, st.Service)
		}
	}
	return notRunning, lost
}

func asBefore(before string, v service.View) bool {
	if before == plan.WasSleeping {
		return v.Asleep()
	}
	return v.Alive()
}

func join(ids []string) string {
	if len(ids) == 0 {
		return "none"
	}
	return strings.Join(ids, ", ")
}
