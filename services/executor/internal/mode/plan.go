package mode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

const (
	actionSleep = executorv1.PlanAction_PLAN_ACTION_SLEEP
	actionStop  = executorv1.PlanAction_PLAN_ACTION_STOP
	actionStart = executorv1.PlanAction_PLAN_ACTION_START
	actionWake  = executorv1.PlanAction_PLAN_ACTION_WAKE
)

// ActionName is the word for an action, as plans have it: "sleep", "stop", "start", "wake".
func ActionName(a executorv1.PlanAction) string {
	switch a {
	case actionSleep:
		return "sleep"
	case actionStop:
		return "stop"
	case actionStart:
		return "start"
	case actionWake:
		return "wake"
	default:
		return "nothing"
	}
}

// What a service was before a switch.
const (
	wasStopped  = "stopped"
	wasSleeping = "sleeping"
	wasRunning  = "running"
)

// planStep is one step of a plan.
type planStep struct {
	action  executorv1.PlanAction
	service *catalog.Service
	// entry is the digest, in hex, of the service's entry with what it runs.
	entry string
	// before is what the service was.
	before string
}

func (p planStep) releases() bool { return p.action == actionSleep || p.action == actionStop }

// plan is what a switch to a mode would do now, or what a simulation asks for.
type plan struct {
	catalog   *catalog.Catalog
	request   Request
	target    *target
	movements movements
	steps     []planStep
	// margin is what stays free on each GPU, in MiB.
	margin uint32
	// kept are the services that nothing but a human's word moves: those to run, and those that are pinned, with what they depend on.
	kept map[*catalog.Service]bool
	// reason is why this cannot be done now, whatever memory there is; "" if it can. stays is why what would have to go may not go
	// yet; another way that keeps it may do.
	reason, stays string
	// short is where it does not fit, lack why not beside what is short on no GPU; nil and "" if it does.
	short *capacity.Short
	lack  string
	// hopeless: what is asked for does not start however much room there is.
	hopeless bool
	// unbound: it takes a change of the catalog, so nobody can switch to it.
	unbound bool
	// keeps are services that an alternative keeps and the plan itself would not. Nobody else has any.
	keeps   []*catalog.Service
	subject []byte
	digest  string
	// entries are the digests that were reckoned for it and its alternatives.
	entries map[*catalog.Service]string
}

// binds reports whether it can be switched to by its digest.
func (p *plan) binds() bool { return p.request.plain() && !p.unbound }

// why is why this cannot be done now, whatever memory there is.
func (p *plan) why() string {
	if p.reason != "" {
		return p.reason
	}
	return p.stays
}

// unfit is why it does not fit: one plain sentence; "" if it does.
func (p *plan) unfit() string {
	if p.short != nil {
		return p.short.Sentence()
	}
	return p.lack
}

// planSubject is what a human approves, in its RFC 8785 form. It holds no measurement: what is free now is checked again when
// the switch begins, and a GPU that became fuller or emptier makes no other plan.
type planSubject struct {
	Catalog string `json:"catalogue"`
	// Keeps are ids of services that are left alone though the mode does not name them. A plan that is no alternative has none.
	Keeps []string      `json:"keeps,omitempty"`
	Mode  string        `json:"mode"`
	Steps []subjectStep `json:"steps"`
}

type subjectStep struct {
	Action      string `json:"action"`
	EntrySHA256 string `json:"entry_sha256"`
	Service     string `json:"service"`
}

// plan makes the plan for a request from what is seen now. An error is a fault: the request is not possible, or its margin is too
// low. Only what can be switched to has a digest.
func (s *Switcher) plan(ctx context.Context, r Request, h gpu.Host) (*plan, error) {
	margin, err := s.margin(r.Margin)
	if err != nil {
		return nil, err
	}
	c := s.cfg.Catalog()
	views := make(map[*catalog.Service]service.View, len(c.Services))
	for _, one := range c.Services {
		views[one] = s.cfg.Services.Status(one)
	}
	p := &plan{catalog: c, request: r, margin: margin, entries: map[*catalog.Service]string{}}
	if p.target, err = resolve(c, r, views); err != nil {
		return nil, err
	}
	s.cfg.Requirements.Await(ctx, p.target.members...)
	z := newSizes(s.cfg.Requirements)
	changed, cannot, err := p.target.override(c, r, z)
	if err != nil {
		return nil, err
	}
	p.movements = movements{margin: margin, h: h, z: z}
	p.movements.available, p.movements.tells = s.available()
	s.classify(c, p, views, changed)
	p.short, p.lack = p.movements.settle()
	if cannot == "" {
		cannot = p.movements.unable()
	}
	if cannot != "" && p.short == nil {
		p.lack, p.hopeless = cannot, true
	}
	return p, s.finish(ctx, p)
}

// finish puts the steps in order and, where the plan can be switched to, seals them.
func (s *Switcher) finish(ctx context.Context, p *plan) error {
	p.steps = p.movements.steps(p.catalog)
	for i := range p.steps {
		if err := s.seal(ctx, p, &p.steps[i]); err != nil {
			return err
		}
	}
	if !p.binds() {
		return nil
	}
	subject := planSubject{Catalog: p.catalog.Digest, Mode: p.target.mode.ID, Steps: make([]subjectStep, 0, len(p.steps))}
	for _, one := range p.keeps {
		subject.Keeps = append(subject.Keeps, one.ID)
	}
	for _, st := range p.steps {
		subject.Steps = append(subject.Steps, subjectStep{ActionName(st.action), st.entry, st.service.ID})
	}
	var err error
	if p.subject, err = canonical.Marshal(subject); err != nil {
		return err
	}
	sum := sha256.Sum256(p.subject)
	p.digest = hex.EncodeToString(sum[:])
	return nil
}

// seal notes the digest of a step's entry. A program that cannot be read can be stopped, and not started.
func (s *Switcher) seal(ctx context.Context, p *plan, st *planStep) error {
	if entry, known := p.entries[st.service]; known {
		st.entry = entry
		return nil
	}
	if p.unbound {
		return nil
	}
	definition, err := s.cfg.Services.Definition(ctx, st.service)
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "what a service runs has no digest", "service_id", st.service.ID, "error", err)
		if !st.releases() && p.reason == "" {
			p.reason = st.service.ID + " cannot be started: what it runs is missing or cannot be read"
		}
		definition = catalog.Unreadable
	}
	if !p.binds() {
		return nil
	}
	if st.entry, err = s.sealed.digest(p.catalog, st.service, definition); err != nil {
		return err
	}
	p.entries[st.service] = st.entry
	return nil
}

// seals are digests of one catalog's entries, which nobody changes, each with the definition that it was reckoned with: a plan
// that ends a hundred services needs as many.
type seals struct {
	mu    sync.Mutex
	of    *catalog.Catalog
	known map[*catalog.Service]sealedEntry
}

type sealedEntry struct{ definition, digest string }

func (k *seals) digest(c *catalog.Catalog, one *catalog.Service, definition string) (string, error) {
	k.mu.Lock()
	if k.of != c {
		k.of, k.known = c, map[*catalog.Service]sealedEntry{}
	}
	entry, ok := k.known[one]
	k.mu.Unlock()
	if ok && entry.definition == definition {
		return entry.digest, nil
	}
	digest, err := entryDigest(one, definition)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == c {
		k.known[one] = sealedEntry{definition, digest}
	}
	return digest, nil
}

func entryDigest(s *catalog.Service, definition string) (string, error) {
	entry, err := s.Subject(definition)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(entry)
	return hex.EncodeToString(sum[:]), nil
}

// stays reports whether a service that runs is within the time that a switch leaves it alone.
func (s *Switcher) stays(one *catalog.Service, v service.View) bool {
	return !v.Since.IsZero() && time.Duration(one.MinResidenceS)*time.Second > s.ran(one.ID, v.Since)
}

// ran is how long a service runs: as its manager dates that, or as long as it was seen to. A wall clock that was set back makes
// nobody wait for it.
func (s *Switcher) ran(id string, since time.Time) time.Duration {
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.seen[id]; !ok || !known.since.Equal(since) {
		s.seen[id] = sighting{since, now}
	}
	return max(now.Sub(since), now.Sub(s.seen[id].first))
}

// sleeps reports whether the entry says a way to sleep.
func sleeps(s *catalog.Service) bool { return s.Sleep != "" && s.Sleep != catalog.SleepNone }

// unsettled is why nothing can be planned with a service that is neither here nor there.
func unsettled(s *catalog.Service, v service.View) string {
	if v.State == executorv1.ServiceState_SERVICE_STATE_UNKNOWN {
		return "nobody can tell whether " + s.ID + " runs: its manager does not answer"
	}
	return s.ID + " is in the middle of another change"
}

// members are a mode's services, each after those that it depends on, otherwise in the mode's order.
func members(c *catalog.Catalog, m *catalog.Mode) []*catalog.Service {
	var listed []*catalog.Service
	for _, id := range m.Services {
		if one, ok := c.Lookup(id); ok {
			listed = append(listed, one)
		}
	}
	return supported(c, listed)
}

// supported returns the services and all that they depend on, each after what it depends on.
func supported(c *catalog.Catalog, listed []*catalog.Service) []*catalog.Service {
	var out []*catalog.Service
	seen := map[string]bool{}
	var visit func(one *catalog.Service)
	visit = func(one *catalog.Service) {
		if seen[one.ID] {
			return
		}
		seen[one.ID] = true
		for _, id := range one.DependsOn {
			if other, ok := c.Lookup(id); ok {
				visit(other)
			}
		}
		out = append(out, one)
	}
	for _, one := range listed {
		visit(one)
	}
	return out
}

// kept are the services that a switch leaves alone: those that are to run, and those that run and are pinned, with what they
// depend on.
func kept(
	c *catalog.Catalog, members []*catalog.Service, views map[*catalog.Service]service.View,
) map[*catalog.Service]bool {
	var pinned []*catalog.Service
	for _, one := range c.Services {
		if one.Pin && views[one].Holds() {
			pinned = append(pinned, one)
		}
	}
	out := map[*catalog.Service]bool{}
	for _, one := range append(supported(c, pinned), members...) {
		out[one] = true
	}
	return out
}

// movements are the services that a plan moves, by what becomes of them.
type movements struct {
	h      gpu.Host
	z      *sizes
	margin uint32
	// available is what the host's memory has to give, in MiB; tells: that is known.
	available uint32
	tells     bool
	views     map[*catalog.Service]service.View
	members   []*catalog.Service
	// waking, starting and restarting are members: asleep, not running, and running without answering. reloading sleep, and are
	// started anew for a simulation's sake.
	waking, starting, restarting, reloading []*catalog.Service
	// sleeping are put to sleep, asleep are left so, stopping are stopped; ending sleep now, and are stopped for their memory.
	sleeping, asleep, stopping, ending []*catalog.Service
	// requestedStops are stopped because the request says so.
	requestedStops []leaving
}

// leaving is a service that is stopped, and what it was.
type leaving struct {
	*catalog.Service
	before string
}

// incoming are the members that take memory, in the order in which they do.
func (f *movements) incoming() []*catalog.Service {
	var out []*catalog.Service
	for _, one := range f.members {
		if slices.Contains(f.waking, one) || slices.Contains(f.starting, one) || slices.Contains(f.restarting, one) ||
			slices.Contains(f.reloading, one) {
			out = append(out, one)
		}
	}
	return out
}

// leaves are those that give all their memory back.
func (f *movements) leaves() []*catalog.Service {
	out := append(slices.Clone(f.stopping), f.ending...)
	for _, one := range f.requestedStops {
		out = append(out, one.Service)
	}
	return out
}

func (f *movements) short() *capacity.Short {
	released := capacity.Released(f.z, f.h, f.leaves(), f.sleeping)
	return capacity.Fits(f.z, f.h, f.incoming(), released, f.margin)
}

// host is what the plan takes of the host's memory, in MiB: what goes to sleep keeps there, and the largest that is loaded. Services
// are loaded one at a time. What nobody knows counts nothing.
func (f *movements) host() (sleepers, loader uint64) {
	for _, one := range f.sleeping {
		sleepers += uint64(f.z.book.HostAsleep(one))
	}
	for _, list := range [][]*catalog.Service{f.starting, f.restarting, f.reloading} {
		for _, one := range list {
			loader = max(loader, uint64(f.z.book.HostLoading(one)))
		}
	}
	return sleepers, loader
}

// lacking is why the host's memory is too small; "" if it is not, or does not say.
func (f *movements) lacking() string {
	sleepers, loader := f.host()
	if !f.tells || sleepers+loader <= uint64(f.available) {
		return ""
	}
	return fmt.Sprintf("the host has %d MiB of memory available, and what sleeps and loads needs %d MiB of it", f.available, sleepers+loader)
}

// settle decides which services that can sleep are stopped instead, because the mode does not fit beside what they keep, or the
// host has no memory for them. It returns where the mode does not fit even so, and then no sleeper is stopped for it.
func (f *movements) settle() (*capacity.Short, string) {
	sleeping, asleep, stopping := slices.Clone(f.sleeping), slices.Clone(f.asleep), slices.Clone(f.stopping)
	undo := func() { f.sleeping, f.asleep, f.stopping, f.ending = sleeping, asleep, stopping, nil }
	for {
		short := f.short()
		if short == nil {
			break
		}
		if short.Problem != "" || !f.stopOne(short.GPU) {
			undo()
			return short, ""
		}
	}
	for {
		lack := f.lacking()
		if lack == "" {
			return nil, ""
		}
		if !f.stopHeaviest() {
			undo()
			return nil, lack
		}
	}
}

// stopHeaviest makes that service stop which would take the most of the host's memory in its sleep, and reports whether there is
// one.
func (f *movements) stopHeaviest() bool {
	var most uint32
	var chosen *catalog.Service
	for _, one := range f.sleeping {
		if mib := f.z.book.HostAsleep(one); mib > most {
			most, chosen = mib, one
		}
	}
	if chosen == nil {
		return false
	}
	f.sleeping = slices.DeleteFunc(f.sleeping, func(one *catalog.Service) bool { return one == chosen })
	f.stopping = append(f.stopping, chosen)
	return true
}

// stopOne makes that service stop which would keep the most of the GPU in its sleep, and reports whether there is one.
func (f *movements) stopOne(index uint32) bool {
	var most uint32
	var chosen *catalog.Service
	sleeps := false
	look := func(list []*catalog.Service, now bool) {
		for _, one := range list {
			residue := f.z.Asleep(one)[index]
			if now {
				residue = max(residue, capacity.Held(f.h, one)[index])
			}
			if residue > most {
				most, chosen, sleeps = residue, one, now
			}
		}
	}
	look(f.sleeping, false)
	look(f.asleep, true)
	if chosen == nil {
		return false
	}
	is := func(one *catalog.Service) bool { return one == chosen }
	if sleeps {
		f.asleep, f.ending = slices.DeleteFunc(f.asleep, is), append(f.ending, chosen)
	} else {
		f.sleeping, f.stopping = slices.DeleteFunc(f.sleeping, is), append(f.stopping, chosen)
	}
	return true
}

// steps puts everything in order: sleeps, then stops, each before what it depends on, and then the members' wakes and starts.
func (f *movements) steps(c *catalog.Catalog) []planStep {
	var out []planStep
	stops := map[*catalog.Service]string{}
	for _, one := range append(slices.Clone(f.stopping), f.restarting...) {
		stops[one] = wasRunning
	}
	for _, one := range append(slices.Clone(f.ending), f.reloading...) {
		stops[one] = wasSleeping
	}
	for _, one := range f.requestedStops {
		stops[one.Service] = one.before
	}
	sleeps := map[*catalog.Service]bool{}
	for _, one := range f.sleeping {
		sleeps[one] = true
	}
	var order []*catalog.Service
	if len(stops)+len(sleeps) > 0 {
		order = supported(c, c.Services)
		slices.Reverse(order)
	}
	for _, one := range order {
		if sleeps[one] {
			out = append(out, planStep{action: actionSleep, service: one, before: wasRunning})
		}
	}
	for _, one := range order {
		if before, ok := stops[one]; ok {
			out = append(out, planStep{action: actionStop, service: one, before: before})
		}
	}
	for _, one := range f.incoming() {
		st := planStep{action: actionStart, service: one, before: wasStopped}
		switch {
		case slices.Contains(f.waking, one):
			st.action, st.before = actionWake, wasSleeping
		case slices.Contains(f.restarting, one):
			st.before = wasRunning
		case slices.Contains(f.reloading, one):
			st.before = wasSleeping
		}
		out = append(out, st)
	}
	return out
}

// Subject returns what a call of switch_mode acts on, as it is now: the plan, or the alternative that the request names. Its SHA-256
// is the digest. Errors are faults: CODE_NOT_FOUND, CODE_CONFLICT for a mode that cannot be switched to now, CODE_PLAN_CHANGED where
// the request names another plan.
func (s *Switcher) Subject(ctx context.Context, r *executorv1.SwitchModeRequest) (*callv1.Subject, error) {
	p, err := s.asked(ctx, r.GetModeId(), r.GetPlanDigest(), r.MarginMibOverride, s.cfg.GPUs.Last())
	if err != nil {
		return nil, err
	}
	return p.acted(), nil
}

// acted is what a call that carries the plan out acts on.
func (p *plan) acted() *callv1.Subject {
	return &callv1.Subject{Label: "mode " + p.target.mode.ID, Entry: p.subject}
}

// asked returns the plan for a mode, or that alternative to it, which has the digest.
func (s *Switcher) asked(ctx context.Context, id, digest string, override *uint32, h gpu.Host) (*plan, error) {
	if _, err := s.Find(id); err != nil { // "" is no mode here
		return nil, err
	}
	p, err := s.plan(ctx, Request{Mode: id, Margin: override}, h)
	if err != nil {
		return nil, err
	}
	if p.digest != digest {
		found, _, err := s.alternatives(ctx, p, MaxAlternatives)
		if err != nil {
			return nil, err
		}
		for _, other := range found {
			if other.digest != "" && other.digest == digest {
				return other.plan, nil
			}
		}
	}
	switch {
	case p.why() != "":
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the host cannot be switched to "+id+" now: "+p.why())
	case p.digest != digest && planRequired():
		return nil, fault.New(callv1.Code_CODE_PLAN_CHANGED,
			"the plan is not what it was when it was simulated; nothing was done. Call simulate_mode again", fault.WithField("plan_digest"))
	}
	return p, nil
}
