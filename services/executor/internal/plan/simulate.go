package plan

import (
	"context"
	"math"
	"slices"
	"time"

	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/vram"
)

// Simulation is what a request would do now. Sizes are MiB.
type Simulation struct {
	// Mode is "" where none was asked for.
	Mode string
	Fits bool
	// Reason is why it does not fit or cannot be done: one plain sentence; "" if it can.
	Reason string
	// Blocked: something other than memory stands in the way, and Reason names it.
	Blocked bool
	Steps   []Step
	GPUs    []Forecast
	// Digest is what Switch takes, in hex; "" where the mode cannot be switched to, or no mode is asked for as it is.
	Digest string
	// Needs are of each service that is to run.
	Needs []Need
	// Alternatives are other ways that fit, the least disruptive first; CutOff: not everything was looked at.
	Alternatives []Alternative
	CutOff       bool
	// Next is the call that does this, or the first of them; nil where there is none.
	Next *Call
	// HostMiB is what sleepers and the largest loader take of the host's memory, HostAvailable what there is; 0: not known.
	HostMiB, HostAvailable uint32
}

// Step is one step of a plan or of a switch.
type Step struct {
	Action  executorv1.PlanAction
	Service string
	// Expected is how long it took before on this host; 0: not known.
	Expected time.Duration
}

// Forecast is what would be used of one GPU, and where the numbers come from: the weakest source of them all, package vram's words.
type Forecast struct {
	capacity.Forecast
	Source string
}

// Need is what a service needs that is to run, in MiB on all its GPUs. Context is in tokens, KVTokens how many fit in its KV cache; 0:
// not known.
type Need struct {
	Service  string
	MiB      uint32
	Source   string
	Context  uint32
	KVTokens uint64
}

// Change is one thing that an alternative does otherwise. From and To are what the catalog would say, where it is the catalog's.
type Change struct {
	Kind     executorv1.ChangeKind
	Service  string
	From, To string
}

// Alternative is another way that fits; nothing in it can be left out. Sizes are MiB.
type Alternative struct {
	Changes []Change
	GPUs    []Forecast
	// Digest is what Switch takes for it; "" where a human would have to change the catalog, or no mode is asked for as it is.
	Digest string
	// HostMiB is what would sleep in the host's memory that is awake now.
	HostMiB uint32
	// Expected is how long it takes to be there; 0: not known.
	Expected time.Duration
}

// Call is a call of a tool that can be made as it stands.
type Call struct {
	Tool      string
	Arguments map[string]string
}

// Simulate makes the plan for a request and changes nothing. An error is a fault: CODE_NOT_FOUND for a mode or service that is not
// known, CODE_INVALID_ARGUMENT for a request that contradicts itself, a context of what has none, or a margin below what a human
// allows.
func (pl *Planner) Simulate(ctx context.Context, r Request, h gpu.Host) (*Simulation, error) {
	p, err := pl.Plan(ctx, r, h)
	if err != nil {
		return nil, err
	}
	return pl.simulation(ctx, p, r.Alternatives)
}

// simulation is what a plan would do, and so many other ways.
func (pl *Planner) simulation(ctx context.Context, p *Plan, alternatives int) (*Simulation, error) {
	out := &Simulation{Mode: p.request.Mode, Reason: p.Why(), Steps: pl.expectations(ctx, p), GPUs: p.forecasts(), Needs: p.needs()}
	unfit := p.Unfit()
	out.Fits, out.Blocked = unfit == "", out.Reason != ""
	if !out.Blocked && !out.Fits {
		out.Reason = "it does not fit: " + unfit
	}
	if out.Reason == "" {
		out.Digest = p.Digest
		out.Next = p.next()
	}
	sleepers, loader := p.movements.host()
	out.HostMiB = mib(sleepers + loader)
	if p.movements.tells {
		out.HostAvailable = p.movements.available
	}
	if alternatives <= 0 {
		return out, nil
	}
	// As many are looked for as can be asked for, so that the best are the same however many somebody wants to see.
	found, cut, err := pl.alternatives(ctx, p)
	if err != nil {
		return nil, err
	}
	out.CutOff = cut
	for _, other := range found[:min(len(found), alternatives)] {
		one := Alternative{Changes: other.changes, GPUs: other.forecasts(), Digest: other.Digest}
		sleepers, _ := other.movements.host()
		one.HostMiB = mib(sleepers)
		for _, st := range pl.expectations(ctx, other.Plan) {
			one.Expected += st.Expected
		}
		out.Alternatives = append(out.Alternatives, one)
	}
	return out, nil
}

// expectations are the plan's steps with how long each is expected to take.
func (pl *Planner) expectations(ctx context.Context, p *Plan) []Step {
	var out []Step
	for _, st := range p.Steps {
		out = append(out, Step{st.Action, st.Service.ID, pl.Expected(ctx, st.Action, st.Service.ID)})
	}
	return out
}

// forecasts says of each GPU what would be used when the plan is done, and how far to trust that.
func (p *Plan) forecasts() []Forecast {
	f := &p.movements
	incoming, leaves := f.incoming(), f.leaves()
	all := capacity.Forecasts(f.z, f.h, leaves, f.sleeping, incoming)
	out := make([]Forecast, 0, len(all))
	for i, one := range all {
		g := f.h.GPUs[i]
		source := vram.Declared
		switch {
		case one.Measured:
			source = vram.Measured
		case g.Problem != "":
			source = vram.Unknown
		}
		for _, s := range incoming {
			if n := f.z.running(s); n.PerGPU[g.Index] > 0 || n.Source == vram.Unknown && slices.Contains(s.GPUs, g.Index) {
				source = weaker(source, n.Source)
			}
		}
		for _, s := range f.sleeping {
			if slices.Contains(s.GPUs, g.Index) && capacity.Held(f.h, s)[g.Index] > 0 {
				source = weaker(source, f.z.asleep(s).Source)
			}
		}
		if g.Simulated {
			source = weaker(source, f.standing(g, incoming, leaves))
		}
		out = append(out, Forecast{one, source})
	}
	return out
}

// standing is the weakest source of what is left alone on a simulated GPU: what is used of it is what services are said to need.
func (f *movements) standing(g gpu.Device, incoming, leaves []*catalog.Service) string {
	source := vram.Declared
	for s, v := range f.views {
		if !v.Holds() || !slices.Contains(s.GPUs, g.Index) || slices.Contains(incoming, s) || slices.Contains(leaves, s) ||
			slices.Contains(f.sleeping, s) {
			continue
		}
		if v.Asleep() {
			source = weaker(source, f.z.asleep(s).Source)
		} else {
			source = weaker(source, f.z.running(s).Source)
		}
	}
	return source
}

// needs are of each service that is to run, those that a mode names or that are started first.
func (p *Plan) needs() []Need {
	var out []Need
	for _, list := range [][]*catalog.Service{p.target.members, p.target.staying} {
		for _, one := range list {
			n := p.movements.z.running(one)
			source := n.Source
			if len(one.GPUs) == 0 && source == vram.Unknown {
				source = vram.Declared // it is said to use no GPU
			}
			out = append(out, Need{Service: one.ID, MiB: n.MiB(), Source: source, Context: n.Context, KVTokens: n.KVTokens})
		}
	}
	return out
}

// next is the call that does what the plan says, or the first of them; nil where a human has to change the catalog first, or no
// call says it: a margin of its own is a number, and the arguments of a ready call are words.
func (p *Plan) next() *Call {
	r := p.request
	switch {
	case len(r.Contexts) > 0 || r.Margin != nil:
		return nil
	case r.plain():
		return &Call{Tool: "switch_mode", Arguments: map[string]string{"mode_id": r.Mode, "plan_digest": p.Digest}}
	case r.Mode != "" || len(p.Steps) == 0:
		return nil
	}
	first := p.Steps[0]
	return &Call{Tool: ActionName(first.Action) + "_service", Arguments: map[string]string{"service_id": first.Service.ID}}
}

func mib(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// newest is how many earlier runs an expectation is made of, and weight how much a newer one counts against those before it.
const (
	newest = 10
	weight = 0.3
)

// Expected is how long a step of that kind takes on this host, by the newest that went well; 0 where there was none. Newer ones
// count more: a model that grew, or a disk that became slower, shows soon.
func (pl *Planner) Expected(ctx context.Context, action executorv1.PlanAction, id string) time.Duration {
	took, err := pl.Took(ctx, action, id, newest)
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
