package mode

import (
	"context"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/fault"
)

// Find returns a mode of the catalog, or a fault that offers the nearest ids.
func (s *Switcher) Find(id string) (*catalog.Mode, error) { return plan.Find(s.cfg.Catalog(), id) }

// Simulate makes the plan for a request and changes nothing. An error is a fault: CODE_NOT_FOUND for a mode or service that is not
// known, CODE_INVALID_ARGUMENT for a request that contradicts itself, a context of what has none, or a margin below what a human
// allows.
func (s *Switcher) Simulate(ctx context.Context, r plan.Request) (*plan.Simulation, error) {
	return s.planner.Simulate(ctx, r, s.cfg.GPUs.Read(ctx))
}

// Subject returns what a call of switch_mode acts on, as it is now: the plan, or the alternative that the request names. Its SHA-256
// is the digest. Errors are faults: CODE_NOT_FOUND, CODE_CONFLICT for a mode that cannot be switched to now, CODE_PLAN_CHANGED where
// the request names another plan.
func (s *Switcher) Subject(ctx context.Context, r *executorv1.SwitchModeRequest) (*callv1.Subject, error) {
	p, err := s.asked(ctx, r.GetModeId(), r.GetPlanDigest(), r.MarginMibOverride, s.cfg.GPUs.Last())
	if err != nil {
		return nil, err
	}
	return p.Subject(), nil
}

// Preview plans a switch and carries nothing out. Errors are faults, as those of Subject; CODE_PLAN_CHANGED also where what a service
// runs changed meanwhile.
func (s *Switcher) Preview(ctx context.Context, r *executorv1.SwitchModeRequest) (*plan.Preview, error) {
	p, err := s.asked(ctx, r.GetModeId(), r.GetPlanDigest(), r.MarginMibOverride, s.cfg.GPUs.Last())
	if err != nil {
		return nil, err
	}
	return s.planner.Preview(ctx, p)
}

// asked returns the plan for a mode, or that alternative to it, which has the digest.
func (s *Switcher) asked(ctx context.Context, id, digest string, override *uint32, h gpu.Host) (*plan.Plan, error) {
	if _, err := s.Find(id); err != nil { // "" is no mode here
		return nil, err
	}
	p, err := s.planner.Named(ctx, plan.Request{Mode: id, Margin: override}, digest, h)
	switch {
	case err != nil:
		return nil, err
	case p.Why() != "":
		return nil, fault.New(callv1.Code_CODE_CONFLICT, "the host cannot be switched to "+id+" now: "+p.Why())
	case p.Digest != digest && planRequired():
		return nil, fault.New(callv1.Code_CODE_PLAN_CHANGED,
			"the plan is not what it was when it was simulated; nothing was done. Call simulate_mode again", fault.WithField("plan_digest"))
	}
	return p, nil
}
