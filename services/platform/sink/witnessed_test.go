package sink

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/fault"
)

// TestChangesWaitForWitnesses: where a human has changes wait for witnesses of the log, none begins while no quorum is fresh, and its
// grant is not spent; what takes load off the host, a halt and its end go on. Without that demand nothing waits.
func TestChangesWaitForWitnesses(t *testing.T) {
	var stale error
	demand := func(c *Config) { c.Witnessed = func() error { return stale } }
	start := func(s *stand) error {
		request := &executorv1.StartServiceRequest{ServiceId: proto.String("alpha")}
		return s.call(s.approved("start_service", request), request)
	}
	stop := func(s *stand) error {
		request := &executorv1.StopServiceRequest{ServiceId: proto.String("alpha")}
		return s.call(s.approved("stop_service", request), request)
	}
	s := newStand(t, demand)
	if err := start(s); err != nil || s.effects != 1 {
		t.Fatalf("with a fresh quorum: %v, %d effects", err, s.effects)
	}
	stale = errors.New("a quorum of witnesses cosigned the log last 1h ago")
	request := &executorv1.StartServiceRequest{ServiceId: proto.String("alpha")}
	p := s.approved("start_service", request)
	err := s.call(p, request)
	if !fault.Is(err, callv1.Code_CODE_AUDIT_UNAVAILABLE) || fault.From(err).Message != sayUnwitnessed || s.effects != 1 {
		t.Errorf("without a fresh one: %v, %d effects", err, s.effects)
	}
	if reason := s.last().GetBody().GetReason(); reason != stale.Error() {
		t.Errorf("the refusal is recorded as %q", reason)
	}
	if err := stop(s); err != nil || s.effects != 2 {
		t.Errorf("a stop waits: %v, %d effects", err, s.effects)
	}
	if _, err := s.Halt(t.Context(), "an accident", 0); err != nil {
		t.Errorf("a halt waits: %v", err)
	}
	if !s.Control().Halted {
		t.Error("it is not halted")
	}
	// The same grant, once witnesses are back.
	s = newStand(t, demand)
	p = s.approved("start_service", request)
	if err := s.call(p, request); err == nil || s.effects != 0 {
		t.Fatalf("without a fresh one: %v", err)
	}
	stale, p.statement = nil, nil // it is signed already
	if err := s.call(p, request); err != nil || s.effects != 1 {
		t.Errorf("the grant was spent by the refusal: %v, %d effects", err, s.effects)
	}
	// The negative control: the demand is what refuses.
	stale = errors.New("no quorum")
	s = newStand(t)
	if err := start(s); err != nil || s.effects != 1 {
		t.Errorf("where nobody demands witnesses: %v, %d effects", err, s.effects)
	}
}
