package mode

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/room"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalogue"
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
	}
	return "nothing"
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
	service *catalogue.Service
	// entry is the digest, in hex, of the service's entry with what it runs.
	entry string
	// before is what the service was.
	before string
}

func (p planStep) releases() bool { return p.action == actionSleep || p.action == actionStop }

// plan is what a switch to a mode would do now.
type plan struct {
	mode  *catalogue.Mode
	steps []planStep
	// margin is what stays free on each GPU, in MiB.
	margin uint32
	// members are the mode's services with what they depend on, in the order in which they are started.
	members []*catalogue.Service
	// reason is why the mode cannot be switched to now, whatever memory there is; "" if it can.
	reason string
	// short is where the mode does not fit; nil if it does.
	short   *room.Short
	subject []byte
	digest  string
}

// of returns the services of the steps with one of the actions, in their order.
func (p *plan) of(actions ...executorv1.PlanAction) []*catalogue.Service {
	var out []*catalogue.Service
	for _, st := range p.steps {
		if slices.Contains(actions, st.action) {
			out = append(out, st.service)
		}
	}
	return out
}

// planSubject is what a human approves, in its RFC 8785 form. It holds no measurement: what is free now is checked again when
// the switch begins, and a GPU that became fuller or emptier makes no other plan.
type planSubject struct {
	Catalogue string        `json:"catalogue"`
	Mode      string        `json:"mode"`
	Steps     []subjectStep `json:"steps"`
}

type subjectStep struct {
	Action      string `json:"action"`
	EntrySHA256 string `json:"entry_sha256"`
	Service     string `json:"service"`
}

// plan makes the plan for a mode from what is seen now. An error is a fault: the mode is not known, or the call's margin is too low.
func (s *Switcher) plan(ctx context.Context, id string, override *uint32, h gpu.Host) (*plan, error) {
	margin, err := s.margin(override)
	if err != nil {
		return nil, err
	}
	c := s.cfg.Catalogue()
	m, err := find(c, id)
	if err != nil {
		return nil, err
	}
	p := &plan{mode: m, margin: margin, members: members(c, m)}
	views := map[string]service.View{}
	for _, one := range c.Services {
		views[one.ID] = s.cfg.Services.Look(one)
	}
	f := forces{margin: margin, h: h}
	s.weigh(c, p, views, &f)
	p.short = f.settle()
	p.steps = f.steps(c)
	for i := range p.steps {
		if err := s.seal(ctx, p, &p.steps[i]); err != nil {
			return nil, err
		}
	}
	subject := planSubject{Catalogue: c.Digest, Mode: m.ID, Steps: []subjectStep{}}
	for _, st := range p.steps {
		subject.Steps = append(subject.Steps, subjectStep{ActionName(st.action), st.entry, st.service.ID})
	}
	if p.subject, err = canonical.Marshal(subject); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(p.subject)
	p.digest = hex.EncodeToString(sum[:])
	return p, nil
}

// seal notes the digest of a step's entry. A program that cannot be read can be stopped, and not started.
func (s *Switcher) seal(ctx context.Context, p *plan, st *planStep) error {
	definition, err := s.cfg.Services.Definition(ctx, st.service)
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "what a service runs has no digest", "service_id", st.service.ID, "error", err)
		if !st.releases() && p.reason == "" {
			p.reason = st.service.ID + " cannot be started: what it runs is missing or cannot be read"
		}
		definition = catalogue.Unreadable
	}
	st.entry, err = entryDigest(st.service, definition)
	return err
}

func entryDigest(s *catalogue.Service, definition string) (string, error) {
	entry, err := s.Subject(definition)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(entry)
	return hex.EncodeToString(sum[:]), nil
}

// weigh decides of every service whether it goes, comes, or stays as it is.
func (s *Switcher) weigh(c *catalogue.Catalogue, p *plan, views map[string]service.View, f *forces) {
	no := func(sentence string) {
		if p.reason == "" {
			p.reason = sentence
		}
	}
	for _, one := range p.members {
		switch v := views[one.ID]; v.State {
		case executorv1.ServiceState_SERVICE_STATE_RUNNING:
		case executorv1.ServiceState_SERVICE_STATE_SLEEPING:
			f.waking = append(f.waking, one)
		case executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
			if v.Cause == driver.CauseStillHeld { // it sleeps, and keeps its memory
				f.waking = append(f.waking, one)
				continue
			}
			f.restarting = append(f.restarting, one)
		case executorv1.ServiceState_SERVICE_STATE_STOPPED, executorv1.ServiceState_SERVICE_STATE_FAILED:
			f.starting = append(f.starting, one)
		default:
			no(unsettled(one, v))
		}
	}
	f.members = p.members
	keeps := kept(c, p.members, views)
	for _, one := range c.Services {
		if keeps[one.ID] {
			continue
		}
		switch v := views[one.ID]; v.State {
		case executorv1.ServiceState_SERVICE_STATE_RUNNING:
			stays := time.Duration(one.MinResidenceS) * time.Second
			if left := stays - s.ran(one.ID, v.Since); !v.Since.IsZero() && left > 0 {
				no(fmt.Sprintf("%s may not be stopped yet: it stays %d s once it runs (min_residence_s)", one.ID, one.MinResidenceS))
			}
			if sleeps(one) {
				f.sleeping = append(f.sleeping, one)
			} else {
				f.stopping = append(f.stopping, one)
			}
		case executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
			f.stopping = append(f.stopping, one)
		case executorv1.ServiceState_SERVICE_STATE_SLEEPING:
			f.asleep = append(f.asleep, one)
		case executorv1.ServiceState_SERVICE_STATE_STOPPED, executorv1.ServiceState_SERVICE_STATE_FAILED:
		default:
			no(unsettled(one, v))
		}
	}
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
func sleeps(s *catalogue.Service) bool { return s.Sleep != "" && s.Sleep != catalogue.SleepNone }

// unsettled is why nothing can be planned with a service that is neither here nor there.
func unsettled(s *catalogue.Service, v service.View) string {
	if v.State == executorv1.ServiceState_SERVICE_STATE_UNKNOWN {
		return "nobody can tell whether " + s.ID + " runs: its manager does not answer"
	}
	return s.ID + " is in the middle of another change"
}

// members are a mode's services, each after those that it depends on, otherwise in the mode's order.
func members(c *catalogue.Catalogue, m *catalogue.Mode) []*catalogue.Service {
	var listed []*catalogue.Service
	for _, id := range m.Services {
		if one, ok := c.Lookup(id); ok {
			listed = append(listed, one)
		}
	}
	return supported(c, listed)
}

// supported returns the services and all that they depend on, each after what it depends on.
func supported(c *catalogue.Catalogue, listed []*catalogue.Service) []*catalogue.Service {
	var out []*catalogue.Service
	seen := map[string]bool{}
	var visit func(one *catalogue.Service)
	visit = func(one *catalogue.Service) {
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

// kept are the services that a switch leaves alone: the mode's own, and those that run and are pinned, with what they depend on.
func kept(c *catalogue.Catalogue, members []*catalogue.Service, views map[string]service.View) map[string]bool {
	var pinned []*catalogue.Service
	for _, one := range c.Services {
		if one.Pin && views[one.ID].Holds() {
			pinned = append(pinned, one)
		}
	}
	out := map[string]bool{}
	for _, one := range append(supported(c, pinned), members...) {
		out[one.ID] = true
	}
	return out
}

// forces are the services that a switch moves, by what becomes of them.
type forces struct {
	h       gpu.Host
	margin  uint32
	members []*catalogue.Service
	// waking, starting and restarting are members: asleep, not running, and running without answering.
	waking, starting, restarting []*catalogue.Service
	// sleeping are put to sleep, asleep are left so, stopping are stopped; ending sleep now, and are stopped for their memory.
	sleeping, asleep, stopping, ending []*catalogue.Service
}

// incoming are the members that take memory, in the order in which they do.
func (f *forces) incoming() []*catalogue.Service {
	var out []*catalogue.Service
	for _, one := range f.members {
		if slices.Contains(f.waking, one) || slices.Contains(f.starting, one) || slices.Contains(f.restarting, one) {
			out = append(out, one)
		}
	}
	return out
}

func (f *forces) short() *room.Short {
	released := room.Released(f.h, append(slices.Clone(f.stopping), f.ending...), f.sleeping)
	return room.Fits(f.h, f.incoming(), released, f.margin)
}

// settle decides which services that can sleep are stopped instead, because the mode does not fit beside what they keep. It
// returns where the mode does not fit even so, and then no sleeper is stopped for it.
func (f *forces) settle() *room.Short {
	sleeping, asleep, stopping := slices.Clone(f.sleeping), slices.Clone(f.asleep), slices.Clone(f.stopping)
	for {
		short := f.short()
		if short == nil {
			return nil
		}
		if short.Problem != "" || !f.stopOne(short.GPU) {
			f.sleeping, f.asleep, f.stopping, f.ending = sleeping, asleep, stopping, nil
			return short
		}
	}
}

// stopOne makes that service stop which would keep the most of the GPU in its sleep, and reports whether there is one.
func (f *forces) stopOne(index uint32) bool {
	var most uint32
	var chosen *catalogue.Service
	for _, one := range append(slices.Clone(f.sleeping), f.asleep...) {
		if !slices.Contains(one.GPUs, index) {
			continue
		}
		residue := catalogue.Share(one.SleepMiB, len(one.GPUs))
		if slices.Contains(f.asleep, one) {
			residue = max(residue, room.Held(f.h, one)[index])
		}
		if residue > most {
			most, chosen = residue, one
		}
	}
	if chosen == nil {
		return false
	}
	is := func(one *catalogue.Service) bool { return one == chosen }
	if slices.Contains(f.asleep, chosen) {
		f.asleep, f.ending = slices.DeleteFunc(f.asleep, is), append(f.ending, chosen)
	} else {
		f.sleeping, f.stopping = slices.DeleteFunc(f.sleeping, is), append(f.stopping, chosen)
	}
	return true
}

// steps puts everything in order: sleeps, then stops, each before what it depends on, and then the members' wakes and starts.
func (f *forces) steps(c *catalogue.Catalogue) []planStep {
	var out []planStep
	add := func(action executorv1.PlanAction, one *catalogue.Service, before string) {
		out = append(out, planStep{action: action, service: one, before: before})
	}
	order := supported(c, c.Services)
	slices.Reverse(order)
	for _, one := range order {
		if slices.Contains(f.sleeping, one) {
			add(actionSleep, one, wasRunning)
		}
	}
	for _, one := range order {
		switch {
		case slices.Contains(f.stopping, one), slices.Contains(f.restarting, one):
			add(actionStop, one, wasRunning)
		case slices.Contains(f.ending, one):
			add(actionStop, one, wasSleeping)
		}
	}
	for _, one := range f.incoming() {
		switch {
		case slices.Contains(f.waking, one):
			add(actionWake, one, wasSleeping)
		case slices.Contains(f.restarting, one):
			add(actionStart, one, wasRunning)
		default:
			add(actionStart, one, wasStopped)
		}
	}
	return out
}

// Subject returns what a call of switch_mode acts on, as it is now: the plan. Its SHA-256 is the plan's digest. Errors are faults:
// CODE_NOT_FOUND, CODE_CONFLICT for a mode that cannot be switched to now, CODE_PLAN_CHANGED where the request names another plan.
func (s *Switcher) Subject(ctx context.Context, r *executorv1.SwitchModeRequest) (*callv1.Subject, error) {
	p, err := s.asked(ctx, r.GetModeId(), r.GetPlanDigest(), r.MarginMibOverride, s.cfg.GPUs.Last())
	if err != nil {
		return nil, err
	}
	return &callv1.Subject{Label: "mode " + p.mode.ID, Entry: p.subject}, nil
}

// asked returns the plan for a mode if it is the one of the digest.
func (s *Switcher) asked(ctx context.Context, id, digest string, override *uint32, h gpu.Host) (*plan, error) {
	p, err := s.plan(ctx, id, override, h)
	switch {
	case err != nil:
		return nil, err
	case p.reason != "":
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the host cannot be switched to "+id+" now: "+p.reason)
	case p.digest != digest && planRequired():
		return nil, fault.New(callv1.Code_CODE_PLAN_CHANGED,
			"the plan is not what it was when it was simulated; nothing was done. Call simulate_mode again", fault.WithField("plan_digest"))
	}
	return p, nil
}
