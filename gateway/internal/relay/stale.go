package relay

import (
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// Stale looks at the plan that a switch names, and returns CODE_PLAN_CHANGED if it is none of those that there are now: the executor
// would refuse it, and a human would be asked in vain. It is a hint: nil where nobody can tell, and for every other request.
func (r *Relay) Stale(ctx context.Context, s *Session, by Caller, request proto.Message) error {
	named, ok := request.(*executorv1.SwitchModeRequest)
	simulate, known := contract.Lookup("simulate_mode")
	if !ok || !known || !s.May("switch_mode") {
		return nil
	}
	if covered, err := r.Covers(ctx, s, by, simulate); err != nil || !covered {
		return nil
	}
	reply, err := r.Read(ctx, s, by, simulate, &executorv1.SimulateModeRequest{
		ModeId: named.ModeId, MarginMibOverride: named.MarginMibOverride, Alternatives: proto.Uint32(contract.MostAlternatives),
	})
	if err != nil {
		return nil //nolint:nilerr // the executor decides
	}
	now, _ := reply.Response.(*executorv1.SimulateModeResponse)
	digest := named.GetPlanDigest()
	if now.GetPlanDigest() == "" || now.GetPlanDigest() == digest || now.GetCutOff() || // a plan that does not fit has a digest too, which is not told
		slices.ContainsFunc(now.GetAlternatives(), func(a *executorv1.Alternative) bool { return a.GetPlanDigest() == digest }) {
		return nil
	}
	return fault.New(callv1.Code_CODE_PLAN_CHANGED,
		"the plan is not what it was when it was simulated; nothing was done. Call simulate_mode again", fault.WithField("plan_digest"))
}
