package mcpserver_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"durward.internal/gateway/internal/mcpserver"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/fault"
)

// TestWhatDoesNotFitIsToBeSimulated: the answer names simulate_mode with its arguments, to clients that may call it alone.
func TestWhatDoesNotFitIsToBeSimulated(t *testing.T) {
	unfit := fault.New(callv1.Code_CODE_DOES_NOT_FIT, "demo-chat does not fit: GPU 0 has 10 MiB free for it")
	id := proto.String("demo-chat")
	for name, c := range map[string]struct {
		fail    *fault.Error
		request proto.Message
		want    map[string]any
	}{
		"a start":             {unfit, &executorv1.StartServiceRequest{ServiceId: id}, map[string]any{"start": []string{"demo-chat"}}},
		"a wake":              {unfit, &executorv1.WakeServiceRequest{ServiceId: id}, map[string]any{"start": []string{"demo-chat"}}},
		"a switch":            {unfit, &executorv1.SwitchModeRequest{ModeId: proto.String("night")}, map[string]any{"mode_id": "night"}},
		"it releases memory":  {unfit, &executorv1.StopServiceRequest{ServiceId: id}, nil},
		"it fails for itself": {fault.New(callv1.Code_CODE_CONFLICT, "it is being stopped"), &executorv1.StartServiceRequest{ServiceId: id}, nil},
	} {
		next := mcpserver.NextAfter(c.fail, c.request)
		switch {
		case c.want == nil:
			if next != nil {
				t.Errorf("%s: next is %+v", name, next)
			}
		case next == nil || next.Tool != "simulate_mode":
			t.Errorf("%s: next is %+v", name, next)
		default:
			if diff := cmp.Diff(c.want, next.Arguments); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
	for _, may := range []bool{true, false} {
		e := newEdge(t, edgeOptions{})
		e.vault.decide, e.executor.fail = granting, unfit
		e.vault.denied = map[string]bool{"simulate_mode": !may}
		a := e.call(t, e.connect(t, tokenAgent), "start_service", `{"service_id":"demo-chat"}`)
		if a.Error == nil || a.Error.Code != "DOES_NOT_FIT" || a.OperationID == "" || (a.Next != nil) != may {
			t.Fatalf("may simulate: %v: answered with %s", may, a.tool.Structured)
		}
		if may && (a.Next.Tool != "simulate_mode" || !cmp.Equal(a.Next.Arguments["start"], []any{"demo-chat"})) {
			t.Errorf("answered with %s", a.tool.Structured)
		}
	}
}
