package mode

import (
	"context"
	"time"

	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/plan"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/clock"
)

// shortage is room that did not come: too little memory, or programs that are still there.
type shortage struct {
	*capacity.Short
	// held: programs of services that were stopped still hold memory.
	held bool
}

func (s *shortage) Error() string {
	if s.held {
		return driver.CauseStillHeld
	}
	return s.Sentence()
}

// await waits until the services fit and the programs that were ended are gone, and returns what was missing when patience was
// over. It goes by what there is and not by what changed: memory may have been given back before anybody looked.
func (r *run) await(ctx context.Context, incoming []*catalog.Service) *shortage {
	z := plan.NewSizes(r.planner.Requirements)
	if len(capacity.Need(z, incoming...)) == 0 {
		return nil
	}
	for deadline := time.Now().Add(r.patience); ; {
		h := r.cfg.GPUs.Read(ctx)
		missing := &shortage{Short: capacity.Fits(z, h, incoming, nil, r.margin)}
		for _, g := range h.GPUs {
			for _, p := range g.Processes {
				missing.held = missing.held || r.gone[p.PID]
			}
		}
		if missing.Short == nil && !missing.held {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return missing
		}
		clock.Sleep(ctx, r.interval)
	}
}

// why is the cause behind missing room.
func (r *run) why(s *shortage) string {
	switch {
	case s.held || s.Short == nil:
		return driver.CauseStillHeld
	case s.Problem != "":
		return s.Problem
	case s.Foreign > r.foreign[s.GPU]:
		return CauseForeign
	}
	return driver.CauseStillHeld
}

// strangers is what programs that are no service hold now.
func (r *run) strangers() map[uint32]uint32 {
	out := map[uint32]uint32{}
	for _, g := range r.cfg.GPUs.Last().GPUs {
		out[g.Index] = g.Foreign
	}
	return out
}

// programs are the service's own on real GPUs.
func (r *run) programs(s *catalog.Service) []int {
	var out []int
	for _, g := range r.cfg.GPUs.Last().GPUs {
		for _, p := range g.Processes {
			if p.Service == s.ID && p.PID > 0 {
				out = append(out, p.PID)
			}
		}
	}
	return out
}
