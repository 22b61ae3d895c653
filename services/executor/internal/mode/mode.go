// Package mode switches the host from one named set of services to another, as one transaction: what was there before is given
// up first, its memory is seen to be free, the mode's services are started one at a time, and if any of that fails what was
// there before is brought back. The host ends in the new set, in the old one, or in a state that is reported as neither.
//
// Every step is in a durable journal before it is done, so that an executor that is killed in the middle finds out at its next
// start what it was doing, and finishes or undoes it. Undoing goes by what is seen on the host and not by what was noted last,
// so that it can itself be interrupted.
//
// It trusts the catalog, the service manager and the journal. It acts on a plan that a human has seen, by its digest, and on
// nothing else; where the plan would be another one by now, nothing is done.
package mode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/procfs"
)

// Services is what a switch needs of the service manager.
type Services interface {
	plan.Services
	StartLocked(ctx context.Context, s *catalog.Service, a service.Act) (bool, error)
	StopLocked(ctx context.Context, s *catalog.Service, a service.Act) (bool, error)
	Sleep(ctx context.Context, s *catalog.Service, a service.Act) (bool, error)
	Wake(ctx context.Context, s *catalog.Service, a service.Act) (bool, error)
	Logs(ctx context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error)
}

// Journal is the switch's durable memory: what a method was told is on disk when it returns. store.Store is one.
type Journal interface {
	BeginSwitch(ctx context.Context, w *store.Switch) (int64, error)
	NoteSteps(ctx context.Context, id int64, ended, next *store.Step) error
	EndSwitch(ctx context.Context, id int64, last *store.Step, at time.Time, e *store.Ending) error
	OpenSwitch(ctx context.Context) (*store.Switch, error)
	Switches(ctx context.Context, limit int) ([]*store.Switch, error)
	Took(ctx context.Context, action executorv1.PlanAction, service string, n int) ([]time.Duration, error)
	CurrentMode(ctx context.Context) (string, error)
	SetCurrentMode(ctx context.Context, mode string) error
	SwitchOf(ctx context.Context, operation string) (*store.Switch, error)
	// Booted is the newest boot of the host whose boot rule was followed to its end.
	Booted(ctx context.Context) (string, error)
	SetBooted(ctx context.Context, boot string) error
}

// Meter counts switches and how long their phases take; the metrics package has one.
type Meter interface {
	// Switched is told "committed", "rolled_back", "degraded" or "needs_a_human".
	Switched(result string)
	Phase(phase string, seconds float64)
}

// Record is one switch of the history.
type Record = store.Switch

// Config is what a Switcher is made of. Catalog, Services, GPUs, Leases, Journal, Hub, Proceed and Logger are required.
type Config struct {
	// Catalog returns the newest good one.
	Catalog  func() *catalog.Catalog
	Services Services
	GPUs     service.GPUs
	Leases   *lease.Leases
	Journal  Journal
	// Requirements says what services need.
	Requirements plan.Requirements
	// Margin is what stays free on each GPU beyond what services need, in MiB.
	Margin uint32
	// LeastMargin is how low a call's margin_mib_override may set it; nil: as low as Margin.
	LeastMargin *uint32
	// Hub is told of each step under the operation's id.
	Hub *progress.Hub
	// Proceed runs begin unless the host is halted, for what no call waits for: undoing after a restart, and the boot rule.
	Proceed func(begin func()) error
	// Rule records what is done by the catalog's boot rule, and what undoes an interrupted switch; what it cannot record is not
	// done. nil: neither is done.
	Rule service.Rule
	// Meter may be nil.
	Meter  Meter
	Logger *slog.Logger
}

const (
	// patience is how long GPU memory may take to be free after its holder has ended. Drivers take 0.5 to 1.5 s.
	patience = 10 * time.Second
	// interval is how often it is measured meanwhile.
	interval = 250 * time.Millisecond
	// leasePatience is how long a switch waits for single changes that are under way.
	leasePatience = 10 * time.Second
	// unseenPatience is how long a driver may take, after a restart, to find out what runs, and audit to take a record: where the
	// host was restarted too, their managers may come up minutes later.
	unseenPatience = 5 * time.Minute
	// bootPatience is how long the boot rule waits for managers, GPUs and audit.
	bootPatience = 10 * time.Minute
	// maxPause bounds the pause between attempts to write an ending down, or to follow the boot rule.
	maxPause = 10 * time.Second
	// maxLogLines and maxLogLine bound what is kept of a failed service's log.
	maxLogLines = 20
	maxLogLine  = 500
)

// Switcher carries switches out, one at a time. It is safe for concurrent use.
type Switcher struct {
	cfg Config
	// The constants above, which tests shorten.
	patience, interval, leasePatience, unseenPatience, bootPatience time.Duration
	planner                                                         *plan.Planner
	// bootID reads what the kernel calls this boot of the host.
	bootID func() (string, error)

	mu sync.Mutex
	// acting: a switch holds the host, so the catalog stays as it is. undoing: it is one that an earlier process began.
	acting, undoing bool

	// quit is closed when no further step may begin.
	quit     chan struct{}
	stopOnce sync.Once
	// owing are endings that are still to be written down.
	owing sync.WaitGroup
}

// New returns a Switcher. It does nothing before it is asked.
func New(cfg Config) *Switcher {
	cfg.Journal = &history{Journal: cfg.Journal, took: map[pastStep][]time.Duration{}}
	s := &Switcher{
		cfg: cfg, patience: patience, interval: interval, leasePatience: leasePatience, unseenPatience: unseenPatience,
		bootPatience: bootPatience, bootID: procfs.BootID, quit: make(chan struct{}),
	}
	s.planner = plan.New(plan.Config{
		Catalog: cfg.Catalog, Services: cfg.Services, Requirements: cfg.Requirements, Margin: s.margin, Took: cfg.Journal.Took,
		Now: time.Now, Available: plan.Available, Logger: cfg.Logger,
	})
	return s
}

// Stop lets no further step begin: the process ends. A switch that goes on stays open in the journal, and the next process
// looks after it.
func (s *Switcher) Stop() { s.stopOnce.Do(func() { close(s.quit) }) }

// errStopping refuses a step of a process that ends.
var errStopping = errors.New("the executor is being stopped")

func (s *Switcher) stopping() bool {
	select {
	case <-s.quit:
		return true
	default:
		return false
	}
}

// pause waits that long, and reports whether it may go on: neither ctx nor the process ends.
func (s *Switcher) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.quit:
	}
	return false
}

// Undoing reports whether a switch that an earlier process began is looked after now. Nothing else is changed meanwhile.
func (s *Switcher) Undoing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.undoing
}

// Current is the id of the mode that the host was switched to last; "" where there is none, or the catalog has it no more.
func (s *Switcher) Current() string {
	id, err := s.cfg.Journal.CurrentMode(context.Background())
	if err != nil {
		s.cfg.Logger.Error("the current mode could not be read", "error", err)
		return ""
	}
	if _, ok := s.cfg.Catalog().Mode(id); !ok {
		return ""
	}
	return id
}

// Drifted returns the services of the current mode, what they depend on included, that do not run.
func (s *Switcher) Drifted() []string {
	c := s.cfg.Catalog()
	m, ok := c.Mode(s.Current())
	if !ok {
		return nil
	}
	var out []string
	for _, member := range plan.Members(c, m) {
		if s.cfg.Services.Status(member).State != executorv1.ServiceState_SERVICE_STATE_RUNNING {
			out = append(out, member.ID)
		}
	}
	return out
}

// History returns the newest switches, the newest first.
func (s *Switcher) History(ctx context.Context, limit int) ([]*Record, error) {
	return s.cfg.Journal.Switches(ctx, limit)
}

// Accept vetoes a new catalog while a switch goes on: it would act on one and be judged by another.
func (s *Switcher) Accept(*catalog.Catalog) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.acting {
		return errors.New("a switch of modes is going on; the catalogue is read again when it has ended")
	}
	return nil
}

// leastMargin is the lowest margin that a human allows.
func (s *Switcher) leastMargin() uint32 {
	if s.cfg.LeastMargin == nil {
		return s.cfg.Margin
	}
	return min(*s.cfg.LeastMargin, s.cfg.Margin)
}

// margin is what stays free in a call with that override, nil for one without. CODE_INVALID_ARGUMENT, with the lowest value that a
// human allows, for one that is lower.
func (s *Switcher) margin(override *uint32) (uint32, error) {
	switch least := s.leastMargin(); {
	case override == nil:
		return s.cfg.Margin, nil
	case !marginAllowed(*override, least):
		return 0, fault.New(callv1.Code_CODE_INVALID_ARGUMENT,
			fmt.Sprintf("the margin cannot be lower than %d MiB for this call; only a human changes that limit", least), fault.WithField("margin_mib_override"))
	}
	return *override, nil
}

// take gets the whole host, waiting a little for single changes that are under way. The function gives it back.
func (s *Switcher) take(ctx context.Context) (func(), error) {
	timer := time.NewTimer(s.leasePatience)
	defer timer.Stop()
	for {
		if s.stopping() {
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "the executor is being stopped; nothing was done", fault.WithRetry(10*time.Second))
		}
		changed := s.cfg.Leases.Changed()
		release, err := hostLease(s.cfg.Leases)
		switch {
		case err == nil:
			s.setActing(true)
			return func() {
				s.setActing(false)
				release()
			}, nil
		case errors.Is(err, lease.ErrSwitching):
			sentence := "another switch of modes is going on; nothing was done"
			if s.Undoing() {
				sentence = "an interrupted switch of modes is being undone; nothing was done"
			}
			return nil, fault.New(callv1.Code_CODE_CONFLICT, sentence, fault.WithCause(err), fault.WithRetry(10*time.Second))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
			return nil, fault.New(callv1.Code_CODE_CONFLICT, "a service is being started or stopped; nothing was done",
				fault.WithCause(err), fault.WithRetry(10*time.Second))
		}
	}
}

func (s *Switcher) setActing(acting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acting = acting
	s.undoing = s.undoing && acting
}

// OutcomeName is the word for an outcome: "rolled_back".
func OutcomeName(o executorv1.SwitchOutcome) string {
	switch o {
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_COMMITTED:
		return "committed"
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK:
		return "rolled_back"
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_DEGRADED:
		return "degraded"
	case executorv1.SwitchOutcome_SWITCH_OUTCOME_NEEDS_A_HUMAN:
		return "needs_a_human"
	default:
		return "under way"
	}
}

// history is a Journal that remembers what is asked for often until that changes: the current mode, for every list of modes, and
// how long steps took, for every service of a plan. This process alone writes the journal.
type history struct {
	Journal
	// current is nil where it has to be read.
	current atomic.Pointer[string]

	mu sync.Mutex
	// round counts what was noted: an answer from before says nothing of the time after it.
	round int
	took  map[pastStep][]time.Duration
}

type pastStep struct {
	action  executorv1.PlanAction
	service string
	n       int
}

// maxPast bounds what is remembered, whatever catalogs come and go.
const maxPast = 1 << 14

// Took implements Journal.
func (h *history) Took(ctx context.Context, action executorv1.PlanAction, service string, n int) ([]time.Duration, error) {
	key := pastStep{action, service, n}
	h.mu.Lock()
	took, ok := h.took[key]
	round := h.round
	h.mu.Unlock()
	if ok {
		return took, nil
	}
	took, err := h.Journal.Took(ctx, action, service, n)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.round == round && len(h.took) < maxPast {
		h.took[key] = took
	}
	return took, nil
}

// CurrentMode implements Journal.
func (h *history) CurrentMode(ctx context.Context) (string, error) {
	if known := h.current.Load(); known != nil {
		return *known, nil
	}
	h.mu.Lock()
	round := h.round
	h.mu.Unlock()
	mode, err := h.Journal.CurrentMode(ctx)
	if err != nil {
		return "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.round == round {
		h.current.Store(&mode)
	}
	return mode, nil
}

// SetCurrentMode implements Journal.
func (h *history) SetCurrentMode(ctx context.Context, mode string) error {
	defer h.forget() // also where it failed: what is on the disk then is for the disk to say
	return h.Journal.SetCurrentMode(ctx, mode)
}

func (h *history) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.round++
	h.took = map[pastStep][]time.Duration{}
	h.current.Store(nil)
}

// NoteSteps implements Journal.
func (h *history) NoteSteps(ctx context.Context, id int64, ended, next *store.Step) error {
	defer h.forget()
	return h.Journal.NoteSteps(ctx, id, ended, next)
}

// EndSwitch implements Journal.
func (h *history) EndSwitch(ctx context.Context, id int64, last *store.Step, at time.Time, e *store.Ending) error {
	defer h.forget()
	return h.Journal.EndSwitch(ctx, id, last, at, e)
}
