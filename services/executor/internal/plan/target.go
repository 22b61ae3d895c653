package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/engine"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/vram"
)

// Request is what is to be simulated.
type Request struct {
	// Mode is the id of a mode; "": what runs now.
	Mode string
	// Start are ids of services that run as well, with what they depend on; Stop of services that do not run.
	Start, Stop []string
	// Contexts are what-if context lengths, in tokens, by service id.
	Contexts map[string]uint32
	// Margin, if it is not nil, is what stays free on each GPU instead of what the configuration says, in MiB.
	Margin *uint32
	// Alternatives is how many are looked for, at most contract.MostAlternatives.
	Alternatives int
}

// plain reports whether it asks for a mode as the catalog has it: then it can be switched to.
func (r Request) plain() bool {
	return r.Mode != "" && len(r.Start) == 0 && len(r.Stop) == 0 && len(r.Contexts) == 0
}

// target is what a request wants to run.
type target struct {
	// mode is nil where what runs now is to go on.
	mode *catalog.Mode
	// members are to run, each after what it depends on: the mode's services and those to start.
	members []*catalog.Service
	// staying run now and go on without being members; there are none with a mode.
	staying []*catalog.Service
	// stop are not to run, whether or not they do.
	stop map[*catalog.Service]bool
}

// runs reports whether a service is to run.
func (t *target) runs(s *catalog.Service) bool {
	return slices.Contains(t.members, s) || slices.Contains(t.staying, s)
}

// rival is a member that has the port of another service; nil: none has.
func (t *target) rival(s *catalog.Service) *catalog.Service {
	if i := slices.IndexFunc(t.members, s.SharesPort); i >= 0 {
		return t.members[i]
	}
	return nil
}

// resolve finds out what a request wants. Errors are faults: CODE_NOT_FOUND, and CODE_INVALID_ARGUMENT for what contradicts itself.
func resolve(c *catalog.Catalog, r Request, views map[*catalog.Service]service.View) (*target, error) {
	t := &target{stop: map[*catalog.Service]bool{}}
	var listed []*catalog.Service
	if r.Mode != "" {
		m, err := Find(c, r.Mode)
		if err != nil {
			return nil, err
		}
		t.mode = m
		listed = Members(c, m)
	}
	start, err := lookup(c, r.Start, "start")
	if err != nil {
		return nil, err
	}
	stop, err := lookup(c, r.Stop, "stop")
	if err != nil {
		return nil, err
	}
	for _, one := range stop {
		if slices.Contains(start, one) {
			return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, one.ID+" cannot be both started and stopped", fault.WithField("stop"))
		}
		t.stop[one] = true
	}
	for _, one := range supported(c, append(listed, start...)) {
		if !t.stop[one] {
			t.members = append(t.members, one)
		}
	}
	// What depends on one that stops is to run, or runs on for its pin.
	remain := slices.Clone(t.members)
	for _, one := range c.Services {
		if t.stop[one] || slices.Contains(t.members, one) {
			continue
		}
		switch {
		case t.mode == nil && views[one].Alive():
			t.staying = append(t.staying, one)
			remain = append(remain, one)
		case one.Pin && views[one].Holds():
			remain = append(remain, one)
		}
	}
	for _, one := range remain {
		for _, other := range supported(c, []*catalog.Service{one}) {
			if t.stop[other] {
				return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT,
					fmt.Sprintf("%s cannot be stopped: %s runs and depends on it", other.ID, one.ID), fault.WithField("stop"))
			}
		}
	}
	return t, nil
}

// Find returns a mode of the catalog, or a fault that offers the nearest ids.
func Find(c *catalog.Catalog, id string) (*catalog.Mode, error) {
	if m, ok := c.Mode(id); ok {
		return m, nil
	}
	if c.WhyDisabled("mode", id) != "" {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, id+" is disabled: its entry in the catalogue is wrong, or that of a service of it; the operator sees why with durward catalog check",
			fault.WithField("mode_id"))
	}
	ids := make([]string, 0, len(c.Modes))
	for _, m := range c.Modes {
		ids = append(ids, m.ID)
	}
	slices.Sort(ids)
	return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "no mode has that id", fault.WithField("mode_id"),
		fault.WithSuggestions(config.Suggest(id, ids)...))
}

// lookup finds services by id.
func lookup(c *catalog.Catalog, ids []string, field string) ([]*catalog.Service, error) {
	var out []*catalog.Service
	for _, id := range ids {
		one, ok := c.Lookup(id)
		if !ok {
			return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "no service has that id", fault.WithField(field),
				fault.WithSuggestions(c.Suggest(id)...))
		}
		out = append(out, one)
	}
	return out, nil
}

// override lets services need what they would with another context length. It returns those, and one sentence where one of them would
// not even start with it. An error is a fault: one is not to run, or nobody knows what it would need.
func (t *target) override(c *catalog.Catalog, r Request, z *Sizes) (changed map[*catalog.Service]bool, cannot string, err error) {
	changed = map[*catalog.Service]bool{}
	for _, id := range slices.Sorted(maps.Keys(r.Contexts)) {
		found, err := lookup(c, []string{id}, "context_overrides")
		if err != nil {
			return nil, "", err
		}
		one, tokens := found[0], r.Contexts[id]
		if !t.runs(one) {
			return nil, "", fault.New(callv1.Code_CODE_INVALID_ARGUMENT, id+" is not among what would run, so it has no context to change",
				fault.WithField("context_overrides"))
		}
		now := z.running(one)
		then, err := z.requirements.AwakeAt(one, tokens)
		if err != nil {
			why := "nothing can be estimated from what is known of it"
			switch {
			case errors.Is(err, vram.ErrNoCard):
				why = "its model has no card"
			case errors.Is(err, vram.ErrNoEngine):
				why = "its entry does not say which engine runs it"
			case errors.Is(err, vram.ErrPlace):
				why = vram.ErrPlace.Error()
			case errors.Is(err, vram.ErrConfigFile):
				why = vram.ErrConfigFile.Error()
			}
			return nil, "", fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "what "+id+" would need with another context cannot be told: "+why,
				fault.WithField("context_overrides"), fault.WithCause(err))
		}
		if now.Context == tokens {
			continue
		}
		then.Context = tokens
		switch {
		case cannot != "":
		case then.KVTokens > 0 && then.KVTokens < uint64(tokens):
			cannot = fmt.Sprintf("%s would not start with a context of %d tokens: by the estimate its KV cache has room for %d",
				id, tokens, then.KVTokens)
		case then.NoStart:
			cannot = fmt.Sprintf("%s would not start with a context of %d tokens: by the estimate its engine does not get what its model needs",
				id, tokens)
		}
		z.want(one, then, loadingOf(z, one, now, then.PerGPU))
		changed[one] = true
	}
	return changed, cannot, nil
}

// loadingOf is what a service takes while it loads when awake takes that on each GPU: as much more as it takes now, shared by those
// GPUs of which it then takes any.
func loadingOf(z *Sizes, s *catalog.Service, now memreq.Need, awake map[uint32]uint32) map[uint32]uint32 {
	var more uint64
	for index, mib := range z.Loading(s) {
		more += uint64(mib - min(mib, now.PerGPU[index]))
	}
	if more == 0 || len(awake) == 0 {
		return awake
	}
	taken := maps.Clone(awake)
	maps.DeleteFunc(taken, func(_, mib uint32) bool { return mib == 0 }) // CUDA_VISIBLE_DEVICES hides it
	if len(taken) == 0 {
		taken = awake
	}
	each := (more + uint64(len(taken)) - 1) / uint64(len(taken))
	out := maps.Clone(awake)
	for index, mib := range taken {
		out[index] = uint32(min(uint64(mib)+each, 1<<32-1))
	}
	return out
}

// classify decides of every service whether it goes, comes, or stays as it is.
func (pl *Planner) classify(c *catalog.Catalog, p *Plan, views map[*catalog.Service]service.View, changed map[*catalog.Service]bool) {
	f := &p.movements
	no := func(sentence string) {
		p.reason = cmp.Or(p.reason, sentence)
	}
	f.members = p.target.members
	f.views = views
	for _, one := range append(slices.Clone(p.target.members), p.target.staying...) {
		v := views[one]
		if changed[one] && (v.Alive() || v.Asleep() || v.Cause == driver.CauseStillHeld) {
			// Another context takes a restart.
			if v.Alive() {
				f.restarting = append(f.restarting, one)
			} else {
				f.reloading = append(f.reloading, one)
			}
			if !slices.Contains(f.members, one) {
				f.members = append(slices.Clip(f.members), one)
			}
			continue
		}
		if slices.Contains(p.target.staying, one) {
			continue
		}
		switch v.State {
		case executorv1.ServiceState_SERVICE_STATE_RUNNING:
		case executorv1.ServiceState_SERVICE_STATE_SLEEPING:
			f.waking = append(f.waking, one)
		case executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
			switch {
			case v.Cause == driver.CauseStillHeld: // it sleeps, and keeps its memory
				f.waking = append(f.waking, one)
			case p.target.mode != nil: // a single call starts nothing that runs, whether or not it answers
				f.restarting = append(f.restarting, one)
			}
		case executorv1.ServiceState_SERVICE_STATE_STOPPED, executorv1.ServiceState_SERVICE_STATE_FAILED:
			f.starting = append(f.starting, one)
		default:
			no(unsettled(one, v))
		}
	}
	if len(changed) > 0 {
		f.members = supported(c, f.members)
		f.members = slices.DeleteFunc(f.members, func(one *catalog.Service) bool { return !p.target.runs(one) })
	}
	p.kept = kept(c, p.target.members, views)
	for _, one := range c.Services {
		v := views[one]
		if rival := p.target.rival(one); rival != nil && (slices.Contains(p.target.members, one) || v.Holds() && !p.target.stop[one]) {
			if p.kept[one] || p.target.mode == nil {
				no(fmt.Sprintf("%s and %s cannot run together: both have port %d", rival.ID, one.ID, one.Port))
			} else if p.target.stop[one] = true; pl.stays(one, v) {
				no(notYet(one))
			}
		}
		switch {
		case p.target.stop[one]:
			switch {
			case v.Asleep() || v.Cause == driver.CauseStillHeld && v.State == executorv1.ServiceState_SERVICE_STATE_UNHEALTHY:
				f.requestedStops = append(f.requestedStops, leaving{one, WasSleeping})
			case v.Alive():
				f.requestedStops = append(f.requestedStops, leaving{one, WasRunning})
			case v.Holds():
				no(unsettled(one, v))
			}
			continue
		case p.kept[one], p.target.mode == nil:
			continue
		}
		switch v.State {
		case executorv1.ServiceState_SERVICE_STATE_RUNNING:
			if pl.stays(one, v) && p.stays == "" {
				p.stays = notYet(one)
			}
			if engine.Sleeps(one) {
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

func notYet(s *catalog.Service) string {
	return fmt.Sprintf("%s may not be stopped yet: it stays %d s once it runs (min_residence_s)", s.ID, s.MinResidenceS)
}
