package cli

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/operator/internal/peers"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
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

// accepting takes what fits into one message of a sink.
type accepting struct {
	peers.SinkControl
	ended int
}

func (s *accepting) EndStanding(_ context.Context, r *executorv1.EndStandingRequest, _ ...grpc.CallOption) (*executorv1.EndStandingResponse, error) {
	if proto.Size(r) > rpc.DefaultMessageBytes {
		return nil, fault.New(callv1.Code_CODE_TOO_LARGE, "the message is too large")
	}
	s.ended += len(r.GetStatements())
	return &executorv1.EndStandingResponse{}, nil
}

// What stands may be more than one message holds: as many statements as there may be, each as long as one may be.
func TestALotEndsInSeveralMessages(t *testing.T) {
	long := make([]*callv1.HumanStatement, 256)
	for i := range long {
		long[i] = &callv1.HumanStatement{Statement: make([]byte, 64<<10)}
	}
	executor := &accepting{}
	s := &Session{Peers: &peers.Peers{Sinks: []peers.Sink{{SinkControl: executor, Name: "executor"}}}}
	if err := s.EndAtSinks(t.Context(), long...); err != nil || executor.ended != len(long) {
		t.Errorf("%d of %d ended: %v", executor.ended, len(long), err)
	}
}
