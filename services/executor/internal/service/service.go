// Package service is what the executor knows of services: the catalog's entries, the drivers that run them, and the state
// machine between. One service's changes follow each other; different services do not wait for each other, except for GPUs that
// they share while one of them loads.
//
// It trusts the catalog and its drivers. What a service itself says counts for nothing but its health, and that it sleeps only
// once its memory is seen to be free.
package service

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// Driver runs services of one kind. It is safe for concurrent use; start and stop of one service do not overlap.
type Driver interface {
	// Status is cheap: what the driver's own observation last saw, at most a second old, and never older than its last Start or
	// Stop of the service.
	Status(s *catalog.Service) driver.Status
	// Start starts what has that definition at the last moment where it can be compared, and returns when it runs, healthy or
	// not. It fails with driver.ErrChanged, having run nothing, where it has another by then. Errors wrap the driver package's, or
	// are begin's.
	Start(ctx context.Context, s *catalog.Service, definition string, begin driver.Begin) error
	// Stop reports whether anything ran.
	Stop(ctx context.Context, s *catalog.Service) (bool, error)
	// Definition is "sha256:…" of what the entry names and does not hold: the program file, the unit with its drop-ins, the
	// image. "" for a driver that runs nothing.
	Definition(ctx context.Context, s *catalog.Service) (string, error)
	// Logs returns at most lines whole lines after the cursor, or the newest ones without it. A cursor that does not stand for
	// a place any more gives the oldest lines that there are.
	Logs(ctx context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error)
}

// Checker asks whether a service answers; health.Checker is one. mark stands for what it answered, "" where it did not.
type Checker interface {
	Check(ctx context.Context, at netip.AddrPort, h *catalog.Health) (mark string, err error)
}

// Engine speaks to model servers; engine.Client is one.
type Engine interface {
	Sleep(ctx context.Context, s *catalog.Service) (models []string, err error)
	Wake(ctx context.Context, s *catalog.Service, models []string) error
	Asleep(ctx context.Context, s *catalog.Service) (bool, error)
	Warm(ctx context.Context, s *catalog.Service) error
	Usage(ctx context.Context, s *catalog.Service) engine.Usage
	Drain(ctx context.Context, s *catalog.Service, patience time.Duration) bool
}

// GPUs measures the host's GPUs; gpu.Monitor does.
type GPUs interface {
	// Read measures now.
	Read(ctx context.Context) gpu.Host
	// Last is at most a second old.
	Last() gpu.Host
}

// Confirm runs begin, which begins a change, unless that may not be: then its error says why, and nothing is begun. begin does
// not wait long. sink.Confirm is one.
type Confirm func(ctx context.Context, begin func()) error

// Stage is what a Rule's record tells.
type Stage int

// The stages of what is done by rule.
const (
	// Intent: it is about to be done, and is not done unless that record is durable.
	Intent Stage = iota
	// Outcome: it went well, or not for the error's sake. What was recorded as an intent and never begun has one too.
	Outcome
)

// Rule records what is done by a rule of the catalog, with no call behind it. how is an outcome's, nil: it went well.
type Rule func(ctx context.Context, what string, s *catalog.Service, stage Stage, how error) error

// Config is what a Manager is made of. Catalog, Drivers, Health, Confirm and Logger are required.
type Config struct {
	// Catalog returns the newest good one.
	Catalog func() *catalog.Catalog
	// Drivers by the name that entries use, each found when a service first needs it. An entry of another driver cannot be started.
	Drivers map[string]func() Driver
	Health  Checker
	// Engine sleeps, wakes, warms up and drains. nil: no service does.
	Engine Engine
	// GPUs measures what sleeping services keep. nil: nothing is measured, and nothing can be put to sleep.
	GPUs GPUs
	// Sizes are what services claim, and what a sleeping one may keep. nil: what they declare.
	Sizes capacity.Sizes
	// HostAsleep is the most of the host's memory that a service may take in its sleep, in MiB; 0 for one where that is not known. nil,
	// or 0: all that it gives up of its GPUs.
	HostAsleep func(s *catalog.Service) uint32
	// MarginMiB is how much more than it declares a sleeping service may keep on each of its GPUs.
	MarginMiB uint32
	// Leases order changes of single services among each other and with switches. nil: leases of this Manager's own.
	Leases *lease.Leases
	// Admit decides whether a service fits on its GPUs now, before it is started or woken; its error is a fault. nil: all fit.
	Admit func(ctx context.Context, s *catalog.Service) error
	// Confirm and Late are for what tools do: what was approved still holds. Act says what they are.
	Confirm, Late Confirm
	// Rule and Proceed are for what rules of the catalog do: recorded first, and not while the sink is halted. A nil Rule or
	// Proceed: the rules are off.
	Rule    Rule
	Proceed func(begin func()) error
	Logger  *slog.Logger
}

// Manager starts, stops and describes services. It is safe for concurrent use.
type Manager struct {
	cfg       Config
	mu        sync.Mutex
	instances map[string]*instance
	watchers  watchers
	// checks are health checks that are under way.
	checks sync.WaitGroup
	// acts are changes by rule that are under way.
	acts  sync.WaitGroup
	queue queue
	// host reads what the kernel tells of programs.
	host host
}

// New returns a Manager.
func New(cfg Config) *Manager {
	if cfg.Leases == nil {
		cfg.Leases = &lease.Leases{}
	}
	return &Manager{
		cfg: cfg, instances: map[string]*instance{}, host: host{proc: "/proc", cgroups: "/sys/fs/cgroup"},
	}
}

// unit is what is remembered of one service beside what its driver sees.
type instance struct {
	// turn holds one token: who has it may change the service.
	turn chan struct{}

	mu      sync.Mutex
	phase   executorv1.ServiceState // STARTING or STOPPING while that goes on
	failure string                  // why the last start failed
	verdict verdict
	// asleep: its engine says that it sleeps. held: it says so and keeps its memory. slept is when the run began of which it said so.
	asleep, held bool
	slept        time.Time
	// doubt: whether it was started is not known, until it is seen to run or a stop of it went well.
	doubt bool
	// models are what its engine unloaded when it went to sleep.
	models []string
	// turns counts the changes of phase: what was seen before one says nothing of the time after it.
	turns int
	// told is the state that watchers were told last.
	told executorv1.ServiceState
	// wanted end the starts and wakes that somebody waits for, from the moment in which they were asked for.
	wanted map[context.Context]context.CancelCauseFunc

	checking bool
	// due is when its health is asked for again.
	due   time.Time
	rules ruling
}

func (m *Manager) instance(id string) *instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	u, ok := m.instances[id]
	if !ok {
		u = &instance{turn: make(chan struct{}, 1), wanted: map[context.Context]context.CancelCauseFunc{}}
		m.instances[id] = u
	}
	return u
}

// driver returns the entry's, or one that can do nothing where this executor has no such driver.
func (m *Manager) driver(s *catalog.Service) Driver {
	if open := m.cfg.Drivers[s.Driver]; open != nil {
		return open()
	}
	return Absent{driver.Stopped}
}

// Is finds a driver that is there.
func Is(d Driver) func() Driver { return func() Driver { return d } }

// Absent stands for a driver that this executor was not given, or cannot open: its services are in that state, and nothing can be done
// to them.
type Absent struct{ State driver.State }

func (a Absent) Status(*catalog.Service) driver.Status {
	return driver.Status{State: a.State, Cause: driver.CauseNoManager}
}
func (Absent) Start(context.Context, *catalog.Service, string, driver.Begin) error {
	return driver.ErrNoManager
}
func (Absent) Stop(context.Context, *catalog.Service) (bool, error) {
	return false, driver.ErrNoManager
}
func (Absent) Definition(context.Context, *catalog.Service) (string, error) {
	return "", driver.ErrNoManager
}
func (Absent) Logs(context.Context, *catalog.Service, string, int) (driver.Page, error) {
	return driver.Page{}, driver.ErrNoManager
}

// set changes what is remembered of a service, and tells watchers what it looks like then.
func (m *Manager) set(s *catalog.Service, u *instance, change func(u *instance)) {
	u.mu.Lock()
	change(u)
	u.turns++
	turn, resting := u.turns, u.phase == executorv1.ServiceState_SERVICE_STATE_UNSPECIFIED
	u.mu.Unlock()
	var status driver.Status // in the middle of a start or stop it does not matter
	if resting {
		status = m.driver(s).Status(s)
	}
	m.tell(s, u, turn, status)
}

// Find returns a catalog entry, or a fault that offers the nearest ids.
func (m *Manager) Find(id string) (*catalog.Service, error) {
	c := m.cfg.Catalog()
	if s, ok := c.Lookup(id); ok {
		return s, nil
	}
	if c.WhyDisabled("service", id) != "" {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, id+" is disabled: its entry in the catalogue is wrong; the operator sees why with durward catalog check", fault.WithField("service_id"))
	}
	return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "no service has that id", fault.WithField("service_id"),
		fault.WithSuggestions(c.Suggest(id)...))
}

// Left is the program of a service whose entry is not in force, which an earlier executor started and which still runs; 0 for none, or
// where its driver knows it by the entry alone.
func (m *Manager) Left(id string) (pid int) {
	s := &catalog.Service{ID: id, Driver: catalog.DriverProcess}
	if status := m.driver(s).Status(s); id != "" && status.State == driver.Running {
		return status.PID
	}
	return 0
}

// All returns the catalog's entries in its order.
func (m *Manager) All() []*catalog.Service { return m.cfg.Catalog().Services }

// Catalog returns the newest good catalog.
func (m *Manager) Catalog() *catalog.Catalog { return m.cfg.Catalog() }

// Claims returns every service that holds memory now or may, with what it needs and what it declares in its present state.
func (m *Manager) Claims() []gpu.Claim {
	var out []gpu.Claim
	for _, s := range m.All() {
		status := m.driver(s).Status(s)
		v := m.look(s, status)
		if !v.Holds() {
			continue
		}
		claim := gpu.Claim{Service: s.ID, CGroup: status.CGroup, PID: status.PID, MiB: s.VRAMMiB, GPUs: s.Visible()}
		if v.Asleep() {
			claim.MiB = s.SleepMiB
		}
		claim.On = m.claimed(s, v)
		out = append(out, claim)
	}
	return out
}

// claimed is what the service needs of each of its GPUs in its present state; nil: what it declares.
func (m *Manager) claimed(s *catalog.Service, v View) map[uint32]uint32 {
	if m.cfg.Sizes == nil {
		return nil
	}
	if v.Asleep() {
		return kept(m.cfg.Sizes.Asleep(s))
	}
	awake := m.cfg.Sizes.Awake(s)
	if v.State != executorv1.ServiceState_SERVICE_STATE_STARTING {
		return kept(awake)
	}
	out := maps.Clone(kept(awake))
	for index, mib := range m.cfg.Sizes.Loading(s) {
		out[index] = max(out[index], mib)
	}
	return out
}

// kept is a map that is not nil, which says that nothing is known better.
func kept(sizes map[uint32]uint32) map[uint32]uint32 {
	if sizes == nil {
		return map[uint32]uint32{}
	}
	return sizes
}

// Measured is what the service's programs hold on all its GPUs as they were last measured, in MiB; 0 where nothing measures it.
func (m *Manager) Measured(s *catalog.Service) uint32 {
	if m.cfg.GPUs == nil {
		return 0
	}
	var sum uint32
	for _, d := range m.cfg.GPUs.Last().GPUs {
		if !d.Simulated {
			sum += d.ServiceMiB(s.ID)
		}
	}
	return sum
}

// Logs returns a piece of the service's log: at most lines lines after the cursor, or the newest ones without it.
func (m *Manager) Logs(ctx context.Context, s *catalog.Service, cursor string, lines int) (driver.Page, error) {
	page, err := m.driver(s).Logs(ctx, s, cursor, lines)
	if err != nil {
		return driver.Page{}, fault.New(callv1.Code_CODE_FAILED, "the log of "+s.ID+" cannot be read", fault.WithCause(err))
	}
	return page, nil
}

// Definition is the digest of what the entry names and does not hold, as it is now.
func (m *Manager) Definition(ctx context.Context, s *catalog.Service) (string, error) {
	return m.driver(s).Definition(ctx, s)
}

// Warner is a Driver that knows what is wrong with an entry and does not keep it from being started, in fixed sentences.
type Warner interface {
	Warnings(s *catalog.Service) []string
}

// Warnings says what is wrong with how the service is run, in fixed sentences.
func (m *Manager) Warnings(s *catalog.Service) []string {
	if w, ok := m.driver(s).(Warner); ok {
		return w.Warnings(s)
	}
	return nil
}

// Pinner is a Driver that knows which files a service is given, and how firmly each is held to what is approved.
type Pinner interface {
	Pins(ctx context.Context, s *catalog.Service) []string
}

// Pins say of each file that the service is given whether what is approved is what will run, for whoever approves.
func (m *Manager) Pins(ctx context.Context, s *catalog.Service) []string {
	if p, ok := m.driver(s).(Pinner); ok {
		return p.Pins(ctx, s)
	}
	return nil
}

// leads reports whether a catalog has the service, and whether what it says there leads to the same program.
func leads(c *catalog.Catalog, s *catalog.Service) (there, same bool) {
	kept, there := c.Lookup(s.ID)
	return there, there && kept.Driver == s.Driver && kept.Unit == s.Unit
}

// Accept vetoes a catalog from which a running service is gone, or in which it is something else: nobody could stop it any
// more. So does a service of a driver that this executor does not have.
func (m *Manager) Accept(next *catalog.Catalog) error {
	for _, s := range next.Services {
		if _, ok := m.cfg.Drivers[s.Driver]; !ok {
			return fmt.Errorf("service %q uses the %s driver, which this executor's configuration does not give it", s.ID, s.Driver)
		}
	}
	for _, s := range m.All() {
		there, same := leads(next, s)
		v := m.Status(s)
		runs, first := "runs", "stop it first"
		if v.State == executorv1.ServiceState_SERVICE_STATE_UNKNOWN {
			runs, first = "may run, since "+v.Cause+",", "see to its manager, or restart the executor"
		}
		switch {
		case same || !v.Holds():
		case !there:
			return fmt.Errorf("service %q %s and cannot be removed; %s", s.ID, runs, first)
		default:
			return fmt.Errorf("service %q %s and cannot become another driver's or unit's; %s", s.ID, runs, first)
		}
	}
	return nil
}

// Subject returns what a call would act on, as it is now: the resolved catalog entry with the digest of what it runs. Tools
// that act on no service have an empty one. A call that runs something has no subject while that cannot be read: nobody can
// approve what nobody knows. To look at a service, to stop it or to put it to sleep must work all the same, and then the entry
// says so.
func (m *Manager) Subject(ctx context.Context, tool contract.Tool, request proto.Message) (*callv1.Subject, error) {
	named, ok := request.(interface{ GetServiceId() string })
	if !ok {
		return &callv1.Subject{Label: "this host", Entry: []byte("{}")}, nil
	}
	s, err := m.Find(named.GetServiceId())
	if err != nil {
		return nil, err
	}
	definition, err := m.Definition(ctx, s)
	if err != nil {
		m.cfg.Logger.WarnContext(ctx, "what a service runs has no digest", "service_id", s.ID, "error", err)
		if runs(tool) {
			return nil, fault.New(callv1.Code_CODE_FAILED, s.ID+" cannot be started: what it runs is missing or cannot be read",
				fault.WithCause(err))
		}
		definition = catalog.Unreadable
	}
	entry, err := s.Subject(definition)
	if err != nil {
		return nil, err
	}
	return &callv1.Subject{Label: "service " + s.ID, Entry: entry}, nil
}

// runs reports whether a tool may make a service's program run.
func runs(tool contract.Tool) bool {
	return tool.Tier != optionsv1.Tier_TIER_READ && tool.Name != "stop_service" && tool.Name != "sleep_service"
}

// Found says, after a restart, what is true of the service that an interrupted call acted on: "running", "sleeping", "stopped",
// or "unknown" where the catalog has it no more or its manager does not answer.
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
	switch v := m.Status(s); {
	case v.Running():
		return "running"
	case v.Asleep(), v.State == executorv1.ServiceState_SERVICE_STATE_UNKNOWN:
		return StateName(v.State)
	}
	return "stopped"
}

// StateName is the word for a state: "running".
func StateName(state executorv1.ServiceState) string {
	return contract.WordOf(state)
}
