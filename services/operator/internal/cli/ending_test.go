package cli

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/fault"
)

// sink hears of an end when it was told so often.
type sink struct {
	peers.SinkControl
	hears, told int
	ended       []*callv1.HumanStatement
}

func (s *sink) EndStanding(_ context.Context, r *executorv1.EndStandingRequest, _ ...grpc.CallOption) (*executorv1.EndStandingResponse, error) {
	if s.told++; s.told < s.hears {
		return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "it is away")
	}
	s.ended = r.GetStatements()
	return &executorv1.EndStandingResponse{}, nil
}

// Every sink is told of an end, again where it does not answer, and each that has not heard is named.
func TestEverySinkIsToldOfAnEnd(t *testing.T) {
	const never = endTries + 1
	for name, c := range map[string]struct {
		executor, egress int
		named            []string
	}{
		"both hear":            {1, 1, nil},
		"at the last try":      {endTries, endTries, nil},
		"the executor is deaf": {never, 1, []string{"the executor has not learnt"}},
		"both are deaf":        {never, never, []string{"the executor has not learnt", "egress has not learnt"}},
	} {
		executor, egress := &sink{hears: c.executor}, &sink{hears: c.egress}
		s := &Session{Peers: &peers.Peers{Sinks: []peers.Sink{{SinkControl: executor, Name: "executor"}, {SinkControl: egress, Name: "egress"}}}}
		err := s.EndAtSinks(t.Context(), nil, &callv1.HumanStatement{})
		if (err == nil) != (c.named == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for _, sentence := range c.named {
			if !strings.Contains(err.Error(), sentence) {
				t.Errorf("%s: %q is not in %v", name, sentence, err)
			}
		}
		for _, one := range []*sink{executor, egress} {
			if heard := one.hears <= endTries; one.told != min(one.hears, endTries) || heard != (len(one.ended) == 1) {
				t.Errorf("%s: told %d times of %d, heard %d statements", name, one.told, one.hears, len(one.ended))
			}
		}
	}
}
