package mode

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// Why a switch failed, beside the driver package's causes.
const (
	CauseChanged     = "its entry, or what it runs, changed since the switch was approved"
	CauseForeign     = "programs that are no service of this host hold GPU memory that it needs"
	CauseJournal     = "the executor's journal could not be written"
	CauseInterrupted = "the executor was restarted in the middle"
	CauseRebooted    = "the host was restarted in the middle"
	CauseUnrecorded  = "undoing it could not be recorded"
	CausePanic       = "the executor failed in itself"
	CauseGone        = "it ran, and does not run any more"
	CauseRemoved     = "the catalogue has it no more"
)

// Consent lets a switch change something.
type Consent struct {
	// First begins the switch, or refuses it: what was approved still holds. Later does so for each step after that, and refuses
	// once the host is halted. sink.Confirm and sink.Continue are such.
	First, Later service.Confirm
	// Operation is the id that the journal and watchers know the switch by.
	Operation string
}

// Result is how a switch ended that was begun.
type Result struct {
	Mode    string
	Outcome executorv1.SwitchOutcome
	// Done are the steps that were done, those that undid others included.
	Done          []plan.Step
	FailedService string
	// Cause is one of a fixed set of sentences; "" for a switch that was committed.
	Cause string
	// NotRunning are services that should run, or sleep, by the outcome and do not.
	NotRunning []string
	// Log are the failed service's last lines: its own words.
	Log     []string
	Changed bool
}

// Switch carries the plan with that digest out, or the alternative that has it, and returns how it ended, well or not. An error is a fault, and then nothing was
// done: CODE_NOT_FOUND, CODE_INVALID_ARGUMENT, CODE_CONFLICT, CODE_PLAN_CHANGED, CODE_DOES_NOT_FIT, or consent's refusal as it came.
// override is that of Simulate.
func (s *Switcher) Switch(ctx context.Context, id, digest string, override *uint32, c Consent) (*Result, error) {
	release, err := s.take(ctx)
	if err != nil {
		return nil, err
	}
	r := &run{Switcher: s, later: c.Later, touched: map[string]bool{}, logged: map[string]string{}, gone: map[int]bool{}}
	defer func() { r.giveBack(ctx, release) }()
	p, err := s.asked(ctx, id, digest, override, s.cfg.GPUs.Read(ctx))
	if err != nil {
		return nil, err
	}
	if unfit := p.Unfit(); unfit != "" && admissionRequired() {
		return nil, fault.New(callv1.Code_CODE_DOES_NOT_FIT, "it does not fit: "+unfit)
	}
	if r.from, err = s.cfg.Journal.CurrentMode(ctx); err != nil {
		return nil, err
	}
	r.work, r.margin = workOf(p), p.Margin
	if r.work.Boot, err = s.bootID(); err != nil {
		s.cfg.Logger.WarnContext(ctx, "the host's boot has no id", "error", err)
	}
	raw, err := json.Marshal(r.work)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	w := &store.Switch{Operation: c.Operation, Mode: p.Mode(), From: r.from, PlanDigest: p.Digest, Work: raw, BeganAt: began}
	var jerr error
	if err := c.First(ctx, func() {
		crashPoint("before the switch is noted")
		r.id, jerr = s.cfg.Journal.BeginSwitch(ctx, w)
		crashPoint("after the switch was noted")
	}); err != nil {
		return nil, err
	}
	if jerr != nil {
		// It may be there all the same.
		clear := func(ctx context.Context) error { return s.endOpen(ctx, c.Operation) }
		if err := clear(ctx); err != nil {
			r.owed = clear
		}
		return nil, fault.New(callv1.Code_CODE_FAILED, "nothing was done: "+CauseJournal, fault.WithCause(jerr))
	}
	ctx, told := s.cfg.Hub.Open(ctx, c.Operation)
	defer told()
	out := r.carryOut(ctx)
	s.meter(func(m Meter) { m.Switched(OutcomeName(out.Outcome)) })
	s.cfg.Logger.InfoContext(ctx, "a switch of modes has ended", "mode", p.Mode(), "outcome", OutcomeName(out.Outcome),
		"service_id", out.FailedService, "cause", out.Cause, "took", time.Since(began))
	return out, nil
}

// endOpen ends the switch that is open in the journal, if there is one: that operation's, of which nothing was done, or one whose
// own process lost it.
func (s *Switcher) endOpen(ctx context.Context, operation string) error {
	open, err := s.cfg.Journal.OpenSwitch(ctx)
	if err != nil || open == nil {
		return err
	}
	e := &store.Ending{Outcome: executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK, Cause: CauseJournal, Current: open.From}
	if open.Operation != operation || len(open.Steps) > 0 {
		e.Outcome, e.Cause, e.Current = executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN, CauseInterrupted, ""
	}
	return s.cfg.Journal.EndSwitch(ctx, open.ID, nil, time.Now(), e)
}

// giveBack gives the host back, as soon as how the switch ended is written down: until then nobody changes what the journal tells
// wrongly of. Where the process ends before, the next one finds the switch open.
func (r *run) giveBack(ctx context.Context, release func()) {
	switch {
	case r.abandoned:
	case r.owed == nil:
		release()
	default:
		ctx := context.WithoutCancel(ctx)
		r.owing.Go(func() {
			for wait := r.interval; r.pause(ctx, wait); wait = min(2*wait, maxPause) {
				if r.owed(ctx) == nil {
					release()
					return
				}
			}
		})
	}
}

func (s *Switcher) meter(f func(Meter)) {
	if s.cfg.Meter != nil {
		f(s.cfg.Meter)
	}
}

// work is what a switch does and what was there before: all that a recovery needs, so it is kept in the journal as JSON.
type work struct {
	// Boot is the kernel's id of the boot of the host that the switch began in.
	Boot  string     `json:"boot,omitempty"`
	Mode  string     `json:"mode"`
	Steps []workStep `json:"steps"`
	// Members are the services that run when it is done.
	Members []string `json:"members"`
}

type workStep struct {
	Action  executorv1.PlanAction `json:"action"`
	Service string                `json:"service"`
	Entry   string                `json:"entry"`
	Before  string                `json:"before"`
}

func (w workStep) releases() bool { return w.Action == plan.Sleep || w.Action == plan.Stop }

func workOf(p *plan.Plan) work {
	w := work{Mode: p.Mode(), Members: p.Members()}
	for _, st := range p.Steps {
		w.Steps = append(w.Steps, workStep{st.Action, st.Service.ID, st.Entry, st.Before})
	}
	return w
}

// run is one switch that is being carried out or undone.
type run struct {
	*Switcher
	later service.Confirm
	id    int64
	work  work
	from  string
	// recovered: it was begun by an executor that is no more.
	recovered bool
	// rebooted: the host has been restarted since, so nothing is started: what was running then is another matter by now.
	rebooted bool
	// owed writes the ending down, where that failed. abandoned: there is none, because the process ends.
	owed      func(context.Context) error
	abandoned bool

	// margin is what stays free on each GPU, in MiB.
	margin uint32

	// number counts the journal's steps, and pending is the one that ended and is not noted as such.
	number  int
	pending *store.Step
	// told counts what watchers were told of, of is how many that will be.
	told, of int
	// touched are the services whose steps were begun.
	touched map[string]bool
	// logged is where the logs of services ended before they were started: what they wrote before is of earlier runs.
	logged map[string]string
	// gone are the programs on GPUs that have to be gone.
	gone map[int]bool
	// before is what programs that are no service held, by GPU, when the switch began.
	foreign map[uint32]uint32

	done    []plan.Step
	changed bool
	failure *failure
	// halted: a human halted the host in the middle. stuck: something could not be ended. Nothing more is tried then.
	halted, stuck bool
	// leaving: the process ends. Nothing more is tried either, and the switch stays open.
	leaving bool
}

// failure is why a switch cannot go on.
type failure struct {
	service, cause string
	log            []string
}

// errRefused marks a step that was not begun, because the host was halted.
var errRefused = errors.New("the step was refused")

// carryOut does the steps, or undoes them, and ends the switch in the journal.
func (r *run) carryOut(ctx context.Context) (out *Result) {
	defer r.contain(ctx, &out)
	releases, incoming := r.split()
	r.of = len(r.work.Steps)
	if len(incoming) > 0 {
		r.of++
	}
	r.foreign = r.strangers()
	if r.forward(ctx, releases, incoming) {
		return r.commit(ctx)
	}
	return r.undo(ctx)
}

// contain ends a switch in which the executor itself failed, outside of a step.
func (r *run) contain(ctx context.Context, out **Result) {
	p := recover()
	if p == nil {
		return
	}
	r.panicked(ctx, p)
	r.failure = &failure{cause: CausePanic}
	if len(r.work.Steps) > 0 {
		r.failure.service = r.lastTouched()
	}
	*out = r.end(ctx, executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN, nil, "")
}

func (r *run) panicked(ctx context.Context, p any) {
	r.cfg.Logger.ErrorContext(ctx, "a switch of modes panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}

// split are the steps that give memory up and those that take it.
func (r *run) split() (releases, incoming []workStep) {
	for _, st := range r.work.Steps {
		if st.releases() {
			releases = append(releases, st)
		} else {
			incoming = append(incoming, st)
		}
	}
	return releases, incoming
}

// forward does the steps and reports whether all went well.
func (r *run) forward(ctx context.Context, releases, incoming []workStep) bool {
	for _, st := range releases {
		if !r.release(ctx, st) {
			return false
		}
	}
	if len(incoming) > 0 && !r.verify(ctx, incoming) {
		return false
	}
	for i, st := range incoming {
		if i > 0 {
			// What is left to come has to fit again each time: a stranger may have come meanwhile.
			if short := r.await(ctx, r.services(incoming[i:])); short != nil {
				return r.fail(ctx, st.Service, r.why(short), short)
			}
		}
		one, definition, err := r.approved(ctx, st)
		if err != nil {
			return r.fail(ctx, st.Service, CauseChanged, err)
		}
		act := r.cfg.Services.StartLocked
		if st.Action == plan.Wake {
			act = r.cfg.Services.Wake
		} else if page, err := r.cfg.Services.Logs(ctx, one, "", 1); err == nil {
			r.logged[one.ID] = page.Cursor
		}
		if err := r.do(ctx, st.Action, one, definition, false, act); err != nil {
			return r.fail(ctx, st.Service, "", err)
		}
	}
	// The last step is noted as done before anybody says that the switch is.
	if r.pending != nil {
		if err := r.note(ctx, nil); err != nil {
			return r.fail(ctx, r.pending.Service, CauseJournal, err)
		}
	}
	for _, id := range r.work.Members {
		one, ok := r.cfg.Catalog().Lookup(id)
		if !ok || !r.cfg.Services.Status(one).Alive() {
			return r.fail(ctx, id, CauseGone, nil)
		}
	}
	return true
}

// release puts a service to sleep or stops it. One that does not sleep, or keeps its memory, is stopped.
func (r *run) release(ctx context.Context, st workStep) bool {
	one, ok := r.cfg.Catalog().Lookup(st.Service)
	if !ok {
		return r.fail(ctx, st.Service, CauseRemoved, nil)
	}
	if st.Action == plan.Sleep {
		err := r.do(ctx, plan.Sleep, one, "", false, r.cfg.Services.Sleep)
		switch {
		case err == nil:
			return true
		case refused(err), errors.As(err, new(*stepError)):
			return r.fail(ctx, st.Service, "", err)
		}
		r.cfg.Logger.WarnContext(ctx, "a service that does not sleep is stopped", "service_id", one.ID, "error", err)
		r.of++
	}
	programs := r.programs(one)
	if err := r.do(ctx, plan.Stop, one, "", false, r.cfg.Services.StopLocked); err != nil {
		return r.fail(ctx, st.Service, "", err)
	}
	for _, pid := range programs {
		r.gone[pid] = true
	}
	return true
}

// verify waits until the memory that was given up is seen to be free, all that is needed of it.
func (r *run) verify(ctx context.Context, incoming []workStep) bool {
	r.told++
	step := progress.Step{Number: r.told, Of: r.of, Phase: progress.PhaseVerify}
	progress.Tell(ctx, step)
	began := time.Now()
	short := r.await(ctx, r.services(incoming))
	step.Elapsed, step.Ended = time.Since(began), true
	r.meter(func(m Meter) { m.Phase(progress.PhaseVerify, step.Elapsed.Seconds()) })
	if short == nil {
		progress.Tell(ctx, step)
		return true
	}
	step.Cause = r.why(short)
	progress.Tell(ctx, step)
	return r.fail(ctx, incoming[0].Service, step.Cause, short)
}

// services are the catalog's entries for steps.
func (r *run) services(steps []workStep) []*catalog.Service {
	var out []*catalog.Service
	for _, st := range steps {
		if one, ok := r.cfg.Catalog().Lookup(st.Service); ok {
			out = append(out, one)
		}
	}
	return out
}

// commit ends a switch that went well.
func (r *run) commit(ctx context.Context) *Result {
	return r.end(ctx, executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED, nil, r.work.Mode)
}

// end writes the ending down and returns the result.
func (r *run) end(ctx context.Context, outcome executorv1.SwitchOutcome, notRunning []string, current string) *Result {
	e := &store.Ending{Outcome: outcome, NotRunning: notRunning, Recovered: r.recovered, Current: current}
	if f := r.failure; f != nil {
		e.FailedService, e.Cause, e.Log = f.service, f.cause, f.log
	}
	last, at := r.pending, time.Now()
	write := func(ctx context.Context) error { return r.cfg.Journal.EndSwitch(ctx, r.id, last, at, e) }
	crashPoint("before the ending is noted")
	cause := e.Cause
	if err := write(ctx); err != nil {
		r.cfg.Logger.ErrorContext(ctx, "the ending of a switch could not be noted", "outcome", OutcomeName(outcome), "error", err)
		// What failed may be there all the same.
		settled := func(ctx context.Context) error {
			open, err := r.cfg.Journal.OpenSwitch(ctx)
			if err != nil || open == nil || open.ID != r.id {
				return err
			}
			return write(ctx)
		}
		if settled(ctx) != nil {
			r.owed = settled
		}
		if r.owed != nil && outcome == executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED {
			// What a restart may undo is not committed.
			outcome, cause = executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN, CauseJournal
		}
	}
	crashPoint("after the ending was noted")
	return &Result{
		Mode: r.work.Mode, Outcome: outcome, Done: r.done, FailedService: e.FailedService, Cause: cause, NotRunning: notRunning,
		Log: e.Log, Changed: r.changed,
	}
}

// leave is the result of a switch that the process's end cut off. It has no ending yet.
func (r *run) leave(ctx context.Context) *Result {
	r.abandoned = true
	r.cfg.Logger.WarnContext(ctx, "a switch of modes is left to the next start of the executor", "mode", r.work.Mode)
	out := &Result{
		Mode: r.work.Mode, Outcome: executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN, Done: r.done, Cause: CauseInterrupted,
		Changed: r.changed,
	}
	if r.failure != nil {
		out.FailedService = r.failure.service
	}
	return out
}

// Sentence says in one line how a switch ended.
func (r *Result) Sentence() string {
	switch r.Outcome {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED:
		if !r.Changed {
			return "every service of " + r.Mode + " runs already; nothing was changed"
		}
		return "the host is in mode " + r.Mode
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		return fmt.Sprintf("the switch to %s failed at %s and was undone: %s", r.Mode, r.FailedService, r.Cause)
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:
		return fmt.Sprintf("the switch to %s failed at %s and could not be undone wholly: %s; not running: %s", r.Mode, r.FailedService,
			r.Cause, join(r.NotRunning))
	default: // it needs a human
	}
	if r.FailedService == "" {
		return fmt.Sprintf("the switch to %s was carried out and that is not written down, so it may yet be undone; it needs a human: %s",
			r.Mode, r.Cause)
	}
	return fmt.Sprintf("the switch to %s stopped at %s and needs a human: %s", r.Mode, r.FailedService, r.Cause)
}
