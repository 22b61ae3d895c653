package mcpserver

import (
	"google.golang.org/protobuf/proto"

	"durward.internal/gateway/internal/envelope"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/fault"
)

// nextAfter is the call to make after one that failed: what does not fit is simulated, which names other ways. nil where none helps.
func nextAfter(f *fault.Error, request proto.Message) *envelope.Next {
	if f.Code != callv1.Code_CODE_DOES_NOT_FIT {
		return nil
	}
	arguments := map[string]any{}
	switch r := request.(type) {
	case *executorv1.SwitchModeRequest:
		arguments["mode_id"] = r.GetModeId()
	case *executorv1.StartServiceRequest:
		arguments["start"] = []string{r.GetServiceId()}
	case *executorv1.WakeServiceRequest:
		arguments["start"] = []string{r.GetServiceId()}
	default:
		return nil
	}
	return &envelope.Next{Tool: "simulate_mode", Arguments: arguments}
}
