package mode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// approved returns the catalog's entry for a step, and the definition of what it runs, if they are still what the plan was made
// of. Nothing else is to be started.
func (r *run) approved(ctx context.Context, st workStep) (*catalog.Service, string, error) {
	one, ok := r.cfg.Catalog().Lookup(st.Service)
	if !ok {
		return nil, "", errors.New(CauseRemoved)
	}
	definition, err := r.cfg.Services.Definition(ctx, one)
	if err != nil {
		return nil, "", err
	}
	entry, err := plan.EntryDigest(one, definition)
	if err != nil {
		return nil, "", err
	}
	if entry != st.Entry && definitionRequired() {
		return nil, "", errors.New(CauseChanged)
	}
	return one, definition, nil
}

// do carries out one step: noted first, told to whoever watches, and then noted how it went. Its error is the step's; one for
// which refused is true says that it was not begun.
func (r *run) do(
	ctx context.Context, action executorv1.PlanAction, one *catalog.Service, definition string, compensation bool, act act,
) error {
	if r.recovered {
		if err := r.intend(ctx, action, one); err != nil {
			return err
		}
	}
	r.number++
	next := &store.Step{Number: r.number, Action: action, Service: one.ID, Compensation: compensation}
	if err := r.note(ctx, next); err != nil && !compensation {
		// What is undone is known from the steps that were begun, so undoing needs no note; doing does.
		return &stepError{CauseJournal, err}
	}
	r.touched[one.ID] = true
	expected := r.planner.Expected(ctx, action, one.ID)
	r.told++
	step := progress.Step{Number: r.told, Of: max(r.of, r.told), Phase: phase(action, compensation), Service: one.ID, Expected: expected}
	progress.Tell(ctx, step)
	began := time.Now()
	phaseBegan := began
	lap := func() {
		name, took := step.Phase, time.Since(phaseBegan).Seconds()
		r.meter(func(m Meter) { m.Phase(name, took) })
		phaseBegan = time.Now()
	}
	begun := false
	changed, err := r.attempt(ctx, act, one, service.Act{
		Definition: definition,
		Confirm: func(ctx context.Context, begin func()) error {
			begun = false // also where a driver was too slow to begin, and is asked about again
			return r.consent(ctx, func() {
				begun = true
				begin()
			})
		},
		Phase: func(name string) {
			if name != step.Phase && !compensation {
				lap()
				step.Phase = name
			}
			step.Elapsed = time.Since(began)
			progress.Tell(ctx, step)
		},
	})
	lap()
	next.Ended, next.Done, next.Took = true, err == nil, time.Since(began)
	r.pending = next
	step.Elapsed, step.Ended = next.Took, true
	if err != nil {
		step.Cause = service.Cause(err)
		switch {
		case begun:
		case errors.Is(err, errStopping):
			r.halted, r.leaving = true, true
			err = errors.Join(errRefused, err)
		case fault.Is(err, callv1.Code_CODE_HALTED):
			r.halted = true
			err = errors.Join(errRefused, err)
		}
	}
	if r.recovered {
		r.tell(ctx, undoes(action), one, err)
	}
	progress.Tell(ctx, step)
	if changed || (err != nil && begun) {
		r.changed = true
	}
	if err == nil {
		r.done = append(r.done, plan.Step{Action: action, Service: one.ID, Expected: expected})
	}
	return err
}

// consent asks whether one more step may be begun.
func (r *run) consent(ctx context.Context, begin func()) error {
	if r.stopping() {
		return errStopping
	}
	return r.later(ctx, begin)
}

// act is one change of the service manager's.
type act func(context.Context, *catalog.Service, service.Act) (bool, error)

// attempt lets a panic be the step's failure: it is undone like any other.
func (r *run) attempt(ctx context.Context, act act, one *catalog.Service, a service.Act) (changed bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			r.panicked(ctx, p)
			changed, err = true, &stepError{CausePanic, fmt.Errorf("panic: %v", p)}
		}
	}()
	return act(ctx, one, a)
}

func refused(err error) bool { return errors.Is(err, errRefused) }

// stepError is a failure of ours.
type stepError struct {
	cause string
	err   error
}

func (e *stepError) Error() string { return e.cause + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

// note writes down how the last step ended and that the next begins.
func (r *run) note(ctx context.Context, next *store.Step) error {
	crashPoint("before a step is noted")
	err := r.cfg.Journal.NoteSteps(ctx, r.id, r.pending, next)
	crashPoint("after a step was noted")
	if err != nil {
		r.cfg.Logger.ErrorContext(ctx, "a step of a switch could not be noted", "error", err)
		return err
	}
	r.pending = nil
	return nil
}

// phase is what a step is told as. Undoing ends services too: those are not brought back.
func phase(a executorv1.PlanAction, compensation bool) string {
	switch {
	case a == plan.Sleep:
		return progress.PhaseSleep
	case a == plan.Stop:
		return progress.PhaseStop
	case compensation:
		return progress.PhaseCompensate
	case a == plan.Wake:
		return progress.PhaseWake
	default:
		return progress.PhaseStart
	}
}

// fail notes why the switch cannot go on, and returns false. cause may be empty: then it is the error's.
func (r *run) fail(ctx context.Context, id, cause string, err error) bool {
	var own *stepError
	switch {
	case errors.As(err, &own):
		cause = own.cause
	case r.leaving:
		cause = CauseInterrupted
	case cause == "" && refused(err):
		cause = driver.CauseHalted
	case cause == "":
		cause = service.Cause(err)
	}
	one, known := r.cfg.Catalog().Lookup(id)
	if known && (cause == "" || cause == CauseGone) {
		if seen := r.cfg.Services.Status(one).Cause; seen != "" {
			cause = seen
		}
	}
	if cause == "" {
		cause = driver.CauseNotStarted
		if err != nil {
			// What a service manager's fault says in public is made of fixed sentences and ids.
			cause = fault.From(err).Message
		}
	}
	r.failure = &failure{service: id, cause: cause}
	if known && !refused(err) {
		r.failure.log = r.lines(ctx, one)
	}
	r.cfg.Logger.WarnContext(ctx, "a step of a switch failed", "service_id", id, "cause", cause, "error", err)
	return false
}

// lines are the last of a service's log, without those of runs that ended before this switch started it.
func (r *run) lines(ctx context.Context, one *catalog.Service) []string {
	page, err := r.cfg.Services.Logs(ctx, one, r.logged[one.ID], maxLogLines)
	if err == nil && page.More {
		page, err = r.cfg.Services.Logs(ctx, one, "", maxLogLines) // all of these are newer
	}
	if err != nil {
		r.cfg.Logger.DebugContext(ctx, "the log of a failed service could not be read", "service_id", one.ID, "error", err)
		return nil
	}
	lines := page.Lines[max(len(page.Lines)-maxLogLines, 0):]
	out := make([]string, 0, len(lines))
	for _, line := range lines {
		out = append(out, cut(line, maxLogLine))
	}
	return out
}

// cut is at most n bytes of a line, and no part of a word: half of a credential looks like none.
func cut(line string, n int) string {
	if len(line) <= n {
		return line
	}
	return line[:strings.LastIndexAny(line[:n], " \t")+1] + "…"
}
