package mode

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalogue"
)

// Recover looks after a switch that an earlier process began and did not end. If all its starts were done it is committed;
// otherwise what was there before is brought back, however far the switch had come: nobody waits for it any more, and the state
// from before is the one that is known to have worked. It is called once, before serving. An error says that the journal could
// not be read or written.
func (s *Switcher) Recover(ctx context.Context) error {
	open, err := s.cfg.Journal.OpenSwitch(ctx)
	if err != nil || open == nil {
		return err
	}
	release, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	r := &run{
		Switcher: s, id: open.ID, from: open.From, recovered: true, touched: map[string]bool{}, gone: map[int]bool{},
		later: s.byRule,
	}
	if err := json.Unmarshal(open.Work, &r.work); err != nil {
		return fmt.Errorf("the journal of a switch cannot be read: %w", err)
	}
	ctx, told := s.cfg.Hub.Open(ctx, open.Operation)
	defer told()
	s.cfg.Logger.WarnContext(ctx, "a switch of modes was interrupted", "mode", open.Mode, "operation", open.Operation, "steps", len(open.Steps))
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
	r.settleDown(ctx)
	r.foreign = r.strangers()
	out := r.finish(ctx, undoing, finished)
	s.meter(func(m Meter) { m.Switched(OutcomeName(out.Outcome)) })
	s.cfg.Logger.WarnContext(ctx, "an interrupted switch of modes has ended", "mode", open.Mode, "outcome", OutcomeName(out.Outcome),
		"not_running", out.NotRunning)
	return s.settle(ctx)
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
		found, ok := r.cfg.Catalogue().Lookup(one)
		whole = whole && ok && alive(r.cfg.Services.Look(found))
	}
	if whole {
		return r.commit(ctx)
	}
	if r.failure == nil {
		r.failure = &failure{cause: CauseInterrupted}
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
	for deadline := time.Now().Add(r.unseenPatience); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(r.interval) {
		seen := true
		for _, one := range r.services(r.work.Steps) {
			switch r.cfg.Services.Look(one).State {
			case executorv1.ServiceState_SERVICE_STATE_UNKNOWN, executorv1.ServiceState_SERVICE_STATE_STOPPING:
				seen = false
			}
		}
		if seen {
			return
		}
	}
}

// byRule is the consent of what no call waits for.
func (s *Switcher) byRule(_ context.Context, begin func()) error { return s.cfg.Proceed(begin) }

// Found says, for whoever asks again for an interrupted call of switch_mode, how it ended: it completes "afterwards it was
// found …". ok is false for another tool.
func (s *Switcher) Found(ctx context.Context, tool string, arguments []byte) (found string, ok bool) {
	if tool != "switch_mode" {
		return "", false
	}
	var named struct {
		ModeID     string `json:"mode_id"`
		PlanDigest string `json:"plan_digest"`
	}
	if err := json.Unmarshal(arguments, &named); err != nil {
		return "unknown", true
	}
	known, err := s.cfg.Journal.Switches(ctx, 1)
	if err != nil {
		return "unknown", true
	}
	// The same plan may have been carried out before, and what it left been undone since: then it was that call and not this one.
	if len(known) == 0 || known[0].Mode != named.ModeID || known[0].PlanDigest != named.PlanDigest || !s.stands(known[0]) {
		return "as it was: nothing of the switch had begun", true
	}
	return ending(known[0]), true
}

// stands reports whether what a committed switch left is still there.
func (s *Switcher) stands(w *store.Switch) bool {
	if w.Recovered || w.Outcome != executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED {
		return true
	}
	c := s.cfg.Catalogue()
	m, ok := c.Mode(w.Mode)
	if !ok {
		return true
	}
	for _, one := range members(c, m) {
		if !alive(s.cfg.Services.Look(one)) {
			return false
		}
	}
	return true
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
	}
	return "unknown"
}

// RuleBoot is what the boot rule's records say.
const RuleBoot = "start: the catalogue's boot rule"

// Boot follows the catalogue's boot rule, once in each boot of the host: it starts the services of the mode that do not run, one
// after the other, as far as they fit, and stops nothing. Each start is recorded first. It returns when that is done; what could
// not be started is logged. An error says that the journal could not be read or written.
func (s *Switcher) Boot(ctx context.Context) error {
	boot, err := s.bootID()
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "the host's boot has no id, so the boot rule is not followed", "error", err)
		return nil
	}
	first, err := s.cfg.Journal.Booted(ctx, boot)
	if err != nil || !first || s.cfg.Rule == nil {
		return err
	}
	c := s.cfg.Catalogue()
	id := c.Boot
	switch id {
	case "", catalogue.BootNone:
		return nil
	case catalogue.BootLast:
		id = s.Current()
	}
	m, ok := c.Mode(id)
	if !ok {
		return nil
	}
	release, err := s.take(ctx)
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "the boot rule is not followed", "error", err)
		return nil
	}
	defer release()
	r := &run{Switcher: s, gone: map[int]bool{}, foreign: map[uint32]uint32{}}
	whole := true
	for _, one := range members(c, m) {
		if s.cfg.Services.Look(one).Up() {
			continue
		}
		if err := r.boot(ctx, one); err != nil {
			whole = false
			s.cfg.Logger.ErrorContext(ctx, "a service of the boot rule's mode was not started", "service_id", one.ID, "error", err)
		}
	}
	if !whole {
		return nil
	}
	return s.cfg.Journal.SetCurrentMode(ctx, m.ID)
}

// boot starts one service by the boot rule.
func (r *run) boot(ctx context.Context, one *catalogue.Service) error {
	for _, id := range one.DependsOn {
		if other, ok := r.cfg.Catalogue().Lookup(id); !ok || !r.cfg.Services.Look(other).Up() {
			return fmt.Errorf("it depends on %s, which does not run", id)
		}
	}
	if short := r.await(ctx, []*catalogue.Service{one}); short != nil {
		return short
	}
	began := false
	_, err := r.cfg.Services.Raise(ctx, one, service.Act{Confirm: func(ctx context.Context, begin func()) error {
		// A halted host has nothing to record.
		if err := r.cfg.Proceed(func() {}); err != nil {
			return err
		}
		if err := r.cfg.Rule(ctx, RuleBoot, one, nil); err != nil {
			return err
		}
		began = true
		return r.cfg.Proceed(begin)
	}})
	if !began {
		return err
	}
	how := err
	if how == nil {
		how = service.Done
	}
	if rerr := r.cfg.Rule(context.WithoutCancel(ctx), RuleBoot, one, how); rerr != nil {
		r.cfg.Logger.ErrorContext(ctx, "how a start by the boot rule went could not be recorded", "service_id", one.ID, "error", rerr)
	}
	return err
}

// readBootID is Linux's.
func readBootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(raw)), err
}
