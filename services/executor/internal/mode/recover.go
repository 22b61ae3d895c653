package mode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
)

// Interruption is a switch that an earlier process began and did not end. It holds the host until it is undone.
type Interruption struct {
	// Operation is the id of its call.
	Operation string
	open      *store.Switch
	r         *run
	release   func()
}

// Interrupted returns the switch that an earlier process began and did not end, and takes the host for it; nil where there is
// none. It is called once, before serving. An error says that the journal could not be read.
func (s *Switcher) Interrupted(ctx context.Context) (*Interruption, error) {
	open, err := s.cfg.Journal.OpenSwitch(ctx)
	if err != nil || open == nil {
		return nil, err
	}
	r := &run{
		Switcher: s, id: open.ID, from: open.From, recovered: true, touched: map[string]bool{}, logged: map[string]string{}, gone: map[int]bool{},
		later: s.byRule, margin: s.cfg.Margin,
	}
	if err := json.Unmarshal(open.Work, &r.work); err != nil {
		return nil, fmt.Errorf("the journal of a switch cannot be read: %w", err)
	}
	release, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.undoing = true
	s.mu.Unlock()
	return &Interruption{Operation: open.Operation, open: open, r: r, release: release}, nil
}

// Undo ends the switch. If all its starts were done it is committed; otherwise what was there before is brought back, however far
// it had come: nobody waits for it any more, and the state from before is the one that is known to have worked. Where the host
// has been restarted since, nothing is started: a human, or the boot rule, says what runs then. Each step is recorded first.
//
// It reports whether the switch has ended; it has not where the process ends before.
func (i *Interruption) Undo(ctx context.Context) bool {
	r, open := i.r, i.open
	defer func() {
		r.giveBack(ctx, i.release)
		r.owing.Wait()
	}()
	boot, err := r.bootID()
	r.rebooted = err != nil || boot != r.work.Boot
	ctx, told := r.cfg.Hub.Open(ctx, open.Operation)
	defer told()
	r.cfg.Logger.WarnContext(ctx, "a switch of modes was interrupted", "mode", open.Mode, "operation", open.Operation,
		"steps", len(open.Steps), "host_restarted", r.rebooted)
	undoing := false
	finished := map[string]bool{}
	for _, st := range open.Steps {
		r.number = max(r.number, st.Number)
		r.touched[st.Service] = true
		undoing = undoing || st.Compensation
		if st.Done && !st.Compensation && !(workStep{Action: st.Action}).releases() {
			finished[st.Service] = true
		}
	}
	out := r.lookAfter(ctx, undoing, finished)
	if r.abandoned {
		return false
	}
	r.meter(func(m Meter) { m.Switched(OutcomeName(out.Outcome)) })
	r.cfg.Logger.WarnContext(ctx, "an interrupted switch of modes has ended", "mode", open.Mode, "outcome", OutcomeName(out.Outcome),
		"not_running", out.NotRunning)
	return true
}

// lookAfter waits until there is something to see, and finishes.
func (r *run) lookAfter(ctx context.Context, undoing bool, finished map[string]bool) (out *Result) {
	defer r.contain(ctx, &out)
	r.settleDown(ctx)
	if r.stopping() || ctx.Err() != nil {
		return r.leave(ctx)
	}
	r.foreign = r.strangers()
	return r.finish(ctx, undoing, finished)
}

// finish commits if every start was done and what runs says so too, and undoes the switch otherwise.
func (r *run) finish(ctx context.Context, undoing bool, finished map[string]bool) *Result {
	_, incoming := r.split()
	whole := !undoing
	for _, st := range incoming {
		whole = whole && finished[st.Service]
	}
	for _, st := range r.work.Steps {
		whole = whole && r.touched[st.Service]
	}
	for _, one := range r.work.Members {
		found, ok := r.cfg.Catalog().Lookup(one)
		whole = whole && ok && r.cfg.Services.Status(found).Alive()
	}
	if whole {
		return r.commit(ctx)
	}
	if r.failure == nil {
		r.failure = &failure{cause: CauseInterrupted}
		if r.rebooted {
			r.failure.cause = CauseRebooted
		}
		if n := len(r.work.Steps); n > 0 {
			r.failure.service = r.lastTouched()
		}
	}
	return r.undo(ctx)
}

// lastTouched is the service of the last planned step that was begun; the first one where none was.
func (r *run) lastTouched() string {
	last := r.work.Steps[0].Service
	for _, st := range r.work.Steps {
		if r.touched[st.Service] {
			last = st.Service
		}
	}
	return last
}

// settleDown waits until the drivers have seen the services of the switch.
func (r *run) settleDown(ctx context.Context) {
	for deadline := time.Now().Add(r.unseenPatience); ; {
		seen := true
		for _, one := range r.services(r.work.Steps) {
			switch r.cfg.Services.Status(one).State {
			case executorv1.ServiceState_SERVICE_STATE_UNKNOWN, executorv1.ServiceState_SERVICE_STATE_STOPPING:
				seen = false
			default: // it was seen
			}
		}
		if seen || time.Now().After(deadline) || !r.pause(ctx, r.interval) {
			return
		}
	}
}

// undoes is what the records of an interrupted switch's steps say.
func undoes(a executorv1.PlanAction) string {
	return plan.ActionName(a) + ": an interrupted switch is undone"
}

// intend records that a step of an interrupted switch is about to be done. It waits for audit: without that nothing is done.
func (r *run) intend(ctx context.Context, action executorv1.PlanAction, one *catalog.Service) error {
	err := errors.New("nothing records what is done by rule")
	for deadline := time.Now().Add(r.unseenPatience); ; {
		// A halted host has nothing to record.
		if halted := r.consent(ctx, func() {}); halted != nil {
			r.halted, r.leaving = true, errors.Is(halted, errStopping)
			return errors.Join(errRefused, halted)
		}
		if r.cfg.Rule != nil {
			if err = r.cfg.Rule(ctx, undoes(action), one, service.Intent, nil); err == nil {
				return nil
			}
		}
		if time.Now().After(deadline) {
			break
		}
		_ = r.pause(ctx, r.interval)
		if ctx.Err() != nil {
			break
		}
	}
	r.halted, r.failure.cause = true, CauseUnrecorded
	return errors.Join(errRefused, err)
}

// tell records how what was done by rule went.
func (s *Switcher) tell(ctx context.Context, what string, one *catalog.Service, how error) {
	if err := s.cfg.Rule(context.WithoutCancel(ctx), what, one, service.Outcome, how); err != nil {
		s.cfg.Logger.ErrorContext(ctx, "how an act by rule went could not be recorded", "service_id", one.ID, "rule", what, "error", err)
	}
}

// byRule is the consent of what no call waits for.
func (s *Switcher) byRule(_ context.Context, begin func()) error { return s.cfg.Proceed(begin) }

// Found says, for whoever asks again for an interrupted call of switch_mode, how it ended: it completes "afterwards it was
// found …". It is "" while that is not known yet. ok is false for another tool.
func (s *Switcher) Found(ctx context.Context, tool, operation string) (found string, ok bool) {
	if tool != "switch_mode" {
		return "", false
	}
	w, err := s.cfg.Journal.SwitchOf(ctx, operation)
	switch {
	case err != nil:
		return "unknown", true
	case w == nil:
		return "as it was: nothing of the switch had begun", true
	case w.EndedAt.IsZero():
		return "", true
	}
	return ending(w), true
}

// ending is how a switch ended, in words.
func ending(w *store.Switch) string {
	switch w.Outcome {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED:
		return "committed: the host is in mode " + w.Mode
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		return "rolled back: the services from before run again"
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:
		return "degraded: not running: " + join(w.NotRunning)
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		return "in need of a human: " + w.Cause
	default:
		return "unknown"
	}
}

// RuleBoot is what the boot rule's records say.
const RuleBoot = "start: the catalogue's boot rule"

// Boot follows the catalog's boot rule, once in each boot of the host: it starts the services of the mode that do not run, one
// after the other, as far as they fit, and stops nothing. Each start is recorded first. What does not answer yet, a manager, a GPU
// or audit, is waited for. It returns when that is done; what could not be started is logged. An error says that the journal could
// not be read or written.
func (s *Switcher) Boot(ctx context.Context) error {
	boot, err := s.bootID()
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "the host's boot has no id, so the boot rule is not followed", "error", err)
		return nil
	}
	followed, err := s.cfg.Journal.Booted(ctx)
	if err != nil || followed == boot || s.cfg.Rule == nil {
		return err
	}
	b := &booting{run: &run{Switcher: s, gone: map[int]bool{}, foreign: map[uint32]uint32{}, margin: s.cfg.Margin}, tried: map[string]bool{}}
	deadline := time.Now().Add(s.bootPatience)
	for wait := s.interval; ; wait = min(2*wait, maxPause) {
		b.follow(ctx)
		if len(b.later) == 0 || time.Now().After(deadline) {
			break
		}
		if !s.pause(ctx, wait) {
			return nil // the next start of the executor goes on
		}
	}
	failed := errors.Join(append(b.failed, b.later...)...)
	switch {
	case failed != nil:
		s.cfg.Logger.ErrorContext(ctx, "the boot rule could not be followed wholly", "mode", b.mode, "error", failed)
	case b.mode != "":
		s.cfg.Logger.InfoContext(ctx, "the boot rule was followed", "mode", b.mode)
		if err := s.cfg.Journal.SetCurrentMode(ctx, b.mode); err != nil {
			return err
		}
	}
	return s.cfg.Journal.SetBooted(ctx, boot)
}

// booting is one boot rule that is being followed.
type booting struct {
	*run
	mode string
	// tried are services that were started or found running: if one is stopped since, somebody wanted that.
	tried map[string]bool
	// failed are services that could not be started. later is why it has to be tried again.
	failed, later []error
}

// errLater marks what may go better in a while.
var errLater = errors.New("it does not answer yet")

// follow starts what can be started now.
func (b *booting) follow(ctx context.Context) {
	b.later = nil
	c := b.cfg.Catalog()
	id := c.Boot
	switch id {
	case "", catalog.BootNone:
		return
	case catalog.BootLast:
		id = b.Current()
	}
	m, ok := c.Mode(id)
	if !ok {
		return
	}
	b.mode = m.ID
	release, err := b.take(ctx)
	if err != nil {
		b.later = append(b.later, err)
		return
	}
	defer release()
	for _, one := range plan.Members(c, m) {
		if b.tried[one.ID] {
			continue
		}
		err := b.boot(ctx, one)
		switch {
		case errors.Is(err, errLater):
			b.later = append(b.later, fmt.Errorf("%s: %w", one.ID, err))
			continue
		case err != nil:
			b.failed = append(b.failed, fmt.Errorf("%s: %w", one.ID, err))
		}
		b.tried[one.ID] = true
	}
}

// boot starts one service by the boot rule.
func (b *booting) boot(ctx context.Context, one *catalog.Service) error {
	switch v := b.cfg.Services.Status(one); {
	case v.Up():
		return nil
	case unseen(v):
		return errLater
	}
	for _, id := range one.DependsOn {
		if other, ok := b.cfg.Catalog().Lookup(id); !ok || !b.cfg.Services.Status(other).Up() {
			if ok && !b.tried[id] {
				return fmt.Errorf("it depends on %s: %w", id, errLater)
			}
			return fmt.Errorf("it depends on %s, which does not run", id)
		}
	}
	if short := b.await(ctx, []*catalog.Service{one}); short != nil {
		if short.Short != nil && short.Problem != "" {
			return errors.Join(errLater, short)
		}
		return short
	}
	intended := false
	_, err := b.attempt(ctx, b.cfg.Services.StartLocked, one, service.Act{Confirm: func(ctx context.Context, begin func()) error {
		// A halted host has nothing to record.
		if err := b.cfg.Proceed(func() {}); err != nil {
			return err
		}
		if err := b.cfg.Rule(ctx, RuleBoot, one, service.Intent, nil); err != nil {
			return errors.Join(errLater, err)
		}
		intended = true
		if b.stopping() {
			return errStopping
		}
		return b.cfg.Proceed(begin)
	}, Late: func(_ context.Context, begin func()) error {
		if b.stopping() {
			return errStopping
		}
		return b.cfg.Proceed(begin)
	}})
	if intended {
		b.tell(ctx, RuleBoot, one, err)
	}
	return err
}

// unseen reports whether nobody can tell yet what a service does.
func unseen(v service.View) bool {
	switch v.State {
	case executorv1.ServiceState_SERVICE_STATE_UNKNOWN, executorv1.ServiceState_SERVICE_STATE_STARTING,
		executorv1.ServiceState_SERVICE_STATE_STOPPING:
		return true
	default:
		return false
	}
}
