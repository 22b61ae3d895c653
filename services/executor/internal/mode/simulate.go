package mode

import (
	"context"
	"slices"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/room"
	"durward.internal/services/platform/catalogue"
)

// Simulation is what a switch to a mode would do now. Sizes are MiB.
type Simulation struct {
	Mode string
	Fits bool
	// Reason is why it does not fit or cannot be done: one plain sentence; "" if it can.
	Reason string
	Steps  []Step
	GPUs   []room.Forecast
	// Digest is what Switch takes, in hex; "" where the mode cannot be switched to.
	Digest string
}

// Step is one step of a plan or of a switch.
type Step struct {
	Action  executorv1.PlanAction
	Service string
	// Expected is how long it took before on this host; 0: not known.
	Expected time.Duration
}

// Simulate makes the plan for a mode and changes nothing. override, if it is not nil, is what stays free on each GPU instead of what
// the configuration says. An error is a fault: the mode is not known, or the override is below what a human allows.
func (s *Switcher) Simulate(ctx context.Context, id string, override *uint32) (*Simulation, error) {
	h := s.cfg.GPUs.Read(ctx)
	p, err := s.plan(ctx, id, override, h)
	if err != nil {
		return nil, err
	}
	out := &Simulation{Mode: p.mode.ID, Fits: p.short == nil, Reason: p.reason}
	if out.Reason == "" && p.short != nil {
		out.Reason = "it does not fit: " + p.short.Sentence()
	}
	if out.Reason == "" {
		out.Digest = p.digest
	}
	for _, st := range p.steps {
		out.Steps = append(out.Steps, Step{st.action, st.service.ID, s.expected(ctx, st.action, st.service.ID)})
	}
	incoming := p.of(actionStart, actionWake)
	stopping := slices.DeleteFunc(p.of(actionStop), func(one *catalogue.Service) bool { return slices.Contains(incoming, one) })
	out.GPUs = room.Forecasts(h, stopping, p.of(actionSleep), incoming)
	return out, nil
}

// newest is how many earlier runs an expectation is made of, and weight how much a newer one counts against those before it.
const (
	newest = 10
	weight = 0.3
)

// expected is how long a step of that kind takes on this host, by the newest that went well; 0 where there was none. Newer ones
// count more: a model that grew, or a disk that became slower, shows soon.
func (s *Switcher) expected(ctx context.Context, action executorv1.PlanAction, id string) time.Duration {
	took, err := s.cfg.Journal.Took(ctx, action, id, newest)
	if err != nil || len(took) == 0 {
		return 0
	}
	mean := float64(took[0])
	for _, t := range took[1:] {
		mean += weight * (float64(t) - mean)
	}
	return time.Duration(mean)
}

// seconds is a duration in whole seconds, rounded up.
func seconds(d time.Duration) uint32 {
	return uint32(min(max((d+time.Second-1)/time.Second, 0), 1<<32-1))
}
