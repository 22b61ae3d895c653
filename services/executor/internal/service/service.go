// Package service is what the executor knows of services: the catalogue's entries, the drivers that run them, and the state
// machine between. One service's starts and stops follow each other; different services do not wait for each other.
//
// It trusts the catalogue and its drivers. What a service itself says counts for nothing but its health.
package service

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/catalogue"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

const (
	// healthInterval is how often running services are asked whether they answer.
	healthInterval = 2 * time.Second
	// maxChecks bounds health checks at a time.
	maxChecks = 8
	// startPoll and maxStartPoll are the pace at which a starting service is asked.
	startPoll    = 25 * time.Millisecond
	maxStartPoll = 250 * time.Millisecond
)

// Driver runs services of one kind. It is safe for concurrent use; start and stop of one service do not overlap.
type Driver interface {
	// Look is cheap: what the driver's own observation last saw, at most a second old, and never older than its last Start or
	// Stop of the service.
	Look(s *catalogue.Service) driver.Sight
	// Start returns when the service runs, healthy or not; errors wrap the driver package's.
	Start(ctx context.Context, s *catalogue.Service) error
	// Stop reports whether anything ran.
	Stop(ctx context.Context, s *catalogue.Service) (bool, error)
	// Definition is "sha256:…" of what the entry names and does not hold: the program file, the unit with its drop-ins, the
	// image. "" for a driver that runs nothing. Start runs what it is the digest of, or fails.
	Definition(ctx context.Context, s *catalogue.Service) (string, error)
	// Logs returns at most lines whole lines after the cursor, or the newest ones without it. A cursor that does not stand for
	// a place any more gives the oldest lines that there are.
	Logs(ctx context.Context, s *catalogue.Service, cursor string, lines int) (driver.Page, error)
}

// Checker asks whether a service answers; health.Checker is one.
type Checker interface {
	Check(ctx context.Context, port uint32, path string, timeout time.Duration) error
}

// Config is what a Manager is made of; everything is required.
type Config struct {
	// Catalogue returns the newest good one.
	Catalogue func() *catalogue.Catalogue
	// Drivers by the name that entries use.
	Drivers map[string]Driver
	Health  Checker
	// Confirm runs begin, which starts or stops something, unless what was approved no longer holds; then its error is the
	// call's. sink.Confirm is one.
	Confirm func(ctx context.Context, begin func()) error
	Logger  *slog.Logger
}

// Manager starts, stops and describes services. It is safe for concurrent use.
type Manager struct {
	cfg      Config
	programs catalogue.Programs
	mu       sync.Mutex
	units    map[string]*unit
	watchers watchers
}

// New returns a Manager.
func New(cfg Config) *Manager { return &Manager{cfg: cfg, units: map[string]*unit{}} }

// unit is what is remembered of one service beside what its driver sees.
type unit struct {
	// turn holds one token: who has it may start and stop.
	turn chan struct{}

	mu      sync.Mutex
	phase   executorv1.ServiceState // STARTING or STOPPING while that goes on
	failure string                  // why the last start failed
	healthy bool
	checked bool
	// turns counts the changes of phase: what was seen before one says nothing of the time after it.
	turns int
	// told is the state that watchers were told last.
	told executorv1.ServiceState
	// abandon ends the start that is under way; nil when there is none.
	abandon context.CancelCauseFunc
}

func (m *Manager) unit(id string) *unit {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, ok := m.units[id]
	if !ok {
		u = &unit{turn: make(chan struct{}, 1)}
		m.units[id] = u
	}
	return u
}

// set changes what is remembered of a service, and tells watchers what it looks like then.
func (m *Manager) set(s *catalogue.Service, u *unit, change func(u *unit)) {
	u.mu.Lock()
	change(u)
	u.turns++
	turn, resting := u.turns, u.phase == executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED
	u.mu.Unlock()
	var sight driver.Sight // in the middle of a start or stop it does not matter
	if resting {
		sight = m.cfg.Drivers[s.Driver].Look(s)
	}
	m.tell(s, u, turn, sight)
}

// Find returns a catalogue entry, or a fault that offers the nearest ids.
func (m *Manager) Find(id string) (*catalogue.Service, error) {
	c := m.cfg.Catalogue()
	if s, ok := c.Lookup(id); ok {
		return s, nil
	}
	return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "no service has that id", fault.WithField("service_id"),
		fault.WithSuggestions(c.Suggest(id)...))
}

// All returns the catalogue's entries in its order.
func (m *Manager) All() []*catalogue.Service { return m.cfg.Catalogue().Services }

// Catalogue returns the newest good catalogue.
func (m *Manager) Catalogue() *catalogue.Catalogue { return m.cfg.Catalogue() }

// View is what a service looks like now.
type View struct {
	State   executorv1.ServiceState
	Healthy bool
	// Since is when a running service was started.
	Since time.Time
	// Cause is one of the driver package's sentences, or "".
	Cause string
}

// Running reports whether the service holds its resources.
func (v View) Running() bool {
	switch v.State {
	case executorv1.ServiceState_SERVICE_STATE_RUNNING, executorv1.ServiceState_SERVICE_STATE_UNHEALTHY,
		executorv1.ServiceState_SERVICE_STATE_STARTING, executorv1.ServiceState_SERVICE_STATE_STOPPING:
		return true
	}
	return false
}

// Look describes a service. It asks the driver; health is as of the last check, at most a few seconds ago.
func (m *Manager) Look(s *catalogue.Service) View {
	sight := m.cfg.Drivers[s.Driver].Look(s)
	u := m.unit(s.ID)
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.view(sight)
}

// view is what a service looks like by what is remembered of it and what its driver sees. The unit is locked.
func (u *unit) view(sight driver.Sight) View {
	switch {
	case u.phase != executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED:
		return View{State: u.phase, Since: sight.Since}
	case sight.State == driver.Running && u.checked && !u.healthy:
		return View{State: executorv1.ServiceState_SERVICE_STATE_UNHEALTHY, Since: sight.Since, Cause: driver.CauseUnhealthy}
	case sight.State == driver.Running:
		return View{State: executorv1.ServiceState_SERVICE_STATE_RUNNING, Healthy: u.healthy, Since: sight.Since}
	case sight.State == driver.Ended:
		return View{State: executorv1.ServiceState_SERVICE_STATE_FAILED, Cause: sight.Cause}
	case u.failure != "":
		return View{State: executorv1.ServiceState_SERVICE_STATE_FAILED, Cause: u.failure}
	default:
		return View{State: executorv1.ServiceState_SERVICE_STATE_STOPPED, Cause: sight.Cause}
	}
}

// Start makes a service run and returns when it is healthy. It reports whether that changed anything. Errors are faults:
// CODE_CONFLICT when a stranger holds the port or the service's turn does not come, CODE_FAILED with a fixed cause otherwise;
// then the service is stopped again. What Confirm refuses is not begun.
func (m *Manager) Start(ctx context.Context, s *catalogue.Service) (bool, error) {
	u := m.unit(s.ID)
	if err := u.take(ctx, s); err != nil {
		return false, err
	}
	defer u.release()
	d := m.cfg.Drivers[s.Driver]
	waiting, abandon := context.WithCancelCause(ctx)
	defer abandon(nil)
	running := false
	var err error
	if refused := m.cfg.Confirm(ctx, func() {
		if running = d.Look(s).State == driver.Running; running {
			return
		}
		m.set(s, u, func(u *unit) {
			u.phase, u.failure, u.healthy, u.checked = executorv1.ServiceState_SERVICE_STATE_STARTING, "", false, false
			u.abandon = abandon
		})
		err = start(ctx, d, s)
	}); refused != nil {
		return false, refused
	}
	if running {
		m.check(ctx, s)
		return false, nil
	}
	if err == nil {
		err = m.awaitHealth(waiting, d, s)
	}
	cause := ""
	if err != nil {
		cause = causeOf(err)
	}
	m.set(s, u, func(u *unit) {
		u.phase, u.failure, u.abandon = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED, cause, nil
		u.healthy, u.checked = err == nil, err == nil
	})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, errEarly), !errors.Is(err, driver.ErrPortInUse):
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" did not start: "+cause, fault.WithCause(err))
	default:
		return false, fault.New(callv1.Code_CODE_CONFLICT, s.ID+" was not started: "+cause, fault.WithCause(err))
	}
}

var (
	errTimeout = errors.New(driver.CauseTimeout)
	// errEarly marks a program that ended while it was starting.
	errEarly = errors.New(driver.CauseExited)
	// errStopped ends a start because somebody wants the service stopped.
	errStopped = errors.New(driver.CauseStopped)
)

func causeOf(err error) string {
	switch {
	case errors.Is(err, errTimeout):
		return driver.CauseTimeout
	case errors.Is(err, errStopped):
		return driver.CauseStopped
	case errors.Is(err, driver.ErrPortInUse):
		return driver.CausePortInUse
	case errors.Is(err, errEarly):
		return driver.CauseExited
	default:
		return driver.Cause(err)
	}
}

// awaitHealth waits until a started service answers. One that does not is stopped again.
func (m *Manager) awaitHealth(ctx context.Context, d Driver, s *catalogue.Service) error {
	if s.Health == nil {
		return nil
	}
	deadline := time.Now().Add(s.StartTimeout())
	pause := startPoll
	var last error
	for {
		if d.Look(s).State != driver.Running {
			err := errEarly
			if busy := driver.PortFree(s.Port); busy != nil {
				err = fmt.Errorf("%w: %w", errEarly, driver.ErrPortInUse)
			}
			if _, serr := stop(ctx, d, s); serr != nil {
				m.cfg.Logger.ErrorContext(ctx, "what is left of a service could not be cleared", "service_id", s.ID, "error", serr)
			}
			return err
		}
		last = m.cfg.Health.Check(ctx, s.Port, s.Health.Path, healthTimeout(s))
		// The answer counts only if our program is still there: it, and not a stranger, gave it.
		if last == nil && d.Look(s).State == driver.Running {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(pause*2, maxStartPoll)
	}
	if _, err := stop(context.WithoutCancel(ctx), d, s); err != nil {
		return err
	}
	if errors.Is(context.Cause(ctx), errStopped) {
		return errStopped
	}
	return fmt.Errorf("%w: %w", errTimeout, last)
}

// Stop makes a service not run, and ends a start that is still waiting for it to be healthy. It reports whether that
// changed anything. Errors are faults; what Confirm refuses is not begun.
func (m *Manager) Stop(ctx context.Context, s *catalogue.Service) (bool, error) {
	u := m.unit(s.ID)
	d := m.cfg.Drivers[s.Driver]
	abandoned := false
	if u.starting() {
		if refused := m.cfg.Confirm(ctx, func() {
			abandoned = u.stopStarting()
		}); refused != nil {
			return false, refused
		}
	}
	if err := u.take(ctx, s); err != nil {
		return false, err
	}
	defer u.release()
	// Ending a program takes as long as it takes, so only the decision is made while a halt would wait.
	refused := m.cfg.Confirm(ctx, func() {
		m.set(s, u, func(u *unit) { u.phase = executorv1.ServiceState_SERVICE_STATE_STOPPING })
	})
	switch {
	case refused != nil && !abandoned:
		return false, refused
	case refused != nil && d.Look(s).State == driver.Running:
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" was stopped while it was starting, and another start came before the rest",
			fault.WithCause(refused))
	case refused != nil:
		return true, nil
	}
	changed, err := stop(ctx, d, s)
	m.set(s, u, func(u *unit) {
		u.phase = executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED
		if err == nil {
			u.failure, u.healthy, u.checked = "", false, false
		}
	})
	if err != nil {
		return false, fault.New(callv1.Code_CODE_FAILED, s.ID+" did not stop: "+driver.Cause(err), fault.WithCause(err))
	}
	return changed || abandoned, nil
}

func (u *unit) starting() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.abandon != nil
}

// stopStarting ends the start that is under way, and reports whether there was one.
func (u *unit) stopStarting() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.abandon == nil {
		return false
	}
	u.abandon(errStopped)
	return true
}

// take waits for the service's turn, at most as long as one start or stop of it may last.
func (u *unit) take(ctx context.Context, s *catalogue.Service) error {
	patience := time.NewTimer(max(s.StartTimeout(), s.StopTimeout()))
	defer patience.Stop()
	select {
	case u.turn <- struct{}{}:
		return nil
	case <-patience.C:
		return fault.New(callv1.Code_CODE_CONFLICT, s.ID+" is in the middle of another change; look at it before you ask again")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (u *unit) release() { <-u.turn }

// Run checks the health of running services until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	for {
		m.checkAll(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *Manager) checkAll(ctx context.Context) {
	var checks sync.WaitGroup
	slots := make(chan struct{}, maxChecks)
	for _, s := range m.All() {
		slots <- struct{}{}
		checks.Go(func() {
			defer func() { <-slots }()
			m.check(ctx, s)
		})
	}
	checks.Wait()
	m.tellGone()
}

// check asks a running service whether it answers, remembers it, and tells watchers of what changed by itself.
func (m *Manager) check(ctx context.Context, s *catalogue.Service) {
	u := m.unit(s.ID)
	u.mu.Lock()
	turn := u.turns
	u.mu.Unlock()
	sight := m.cfg.Drivers[s.Driver].Look(s)
	if sight.State != driver.Running {
		m.tell(s, u, turn, sight)
		return
	}
	var err error
	if s.Health != nil {
		err = m.cfg.Health.Check(ctx, s.Port, s.Health.Path, healthTimeout(s))
	}
	if ctx.Err() != nil {
		return
	}
	u.mu.Lock()
	if u.phase == executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED && u.turns == turn {
		u.healthy, u.checked = err == nil, true
	}
	u.mu.Unlock()
	m.tell(s, u, turn, sight)
}

func healthTimeout(s *catalogue.Service) time.Duration {
	return time.Duration(s.Health.TimeoutS) * time.Second
}

// Accept vetoes a catalogue from which a running service is gone: nobody could stop it any more.
func (m *Manager) Accept(next *catalogue.Catalogue) error {
	for _, s := range m.All() {
		if _, kept := next.Lookup(s.ID); !kept && m.Look(s).Running() {
			return fmt.Errorf("service %q runs and cannot be removed; stop it first", s.ID)
		}
	}
	return nil
}

// Subject returns what a call would act on, as it is now: the resolved catalogue entry with its program's digest. Tools
// that act on no service have an empty one. A call that runs the program has no subject while the program cannot be read:
// nobody can approve what nobody knows. To look at a service or to stop it must work all the same, and then the entry says so.
func (m *Manager) Subject(_ context.Context, tool contract.Tool, request proto.Message) (*callv1.Subject, error) {
	named, ok := request.(interface{ GetServiceId() string })
	if !ok {
		return &callv1.Subject{Label: "this host", Entry: []byte("{}")}, nil
	}
	s, err := m.Find(named.GetServiceId())
	if err != nil {
		return nil, err
	}
	digest := ""
	if s.Program() != "" {
		if digest, err = m.programs.Digest(s.Program()); err != nil {
			m.cfg.Logger.Warn("a program has no digest", "service_id", s.ID, "error", err)
			if tool.Tier != optionsv1.Tier_TIER_READ && tool.Name != "stop_service" {
				return nil, fault.New(callv1.Code_CODE_FAILED, s.ID+" cannot be started: its program file is missing or cannot be read", fault.WithCause(err))
			}
			digest = catalogue.Unreadable
		}
	}
	entry, err := s.Subject(digest)
	if err != nil {
		return nil, err
	}
	return &callv1.Subject{Label: "service " + s.ID, Entry: entry}, nil
}

// Found says, after a restart, what is true of the service that an interrupted call acted on: "running", "stopped", or
// "unknown" where the catalogue has it no more.
func (m *Manager) Found(_ context.Context, _ string, arguments []byte) string {
	var named struct {
		ServiceID string `json:"service_id"`
	}
	if err := json.Unmarshal(arguments, &named); err != nil {
		return "unknown"
	}
	s, err := m.Find(named.ServiceID)
	if err != nil {
		return "unknown"
	}
	if m.Look(s).Running() {
		return "running"
	}
	return "stopped"
}

// StateName is the word for a state: "running".
func StateName(state executorv1.ServiceState) string {
	return strings.ToLower(strings.TrimPrefix(state.String(), "SERVICE_STATE_"))
}
