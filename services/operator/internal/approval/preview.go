package approval

import (
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/contract"
)

// Preview is what a call acts on and does: as its sink says, but of a tool of another's server as this program's own copy of what the
// operator accepted says. There a sink adds what it knows of where a URL leads, or of what is answered, and is named as the one that says so.
func Preview(tool contract.Tool, arguments []byte, said *executorv1.PreviewCallResponse) (*executorv1.PreviewCallResponse, error) {
	if tool.Foreign == nil {
		return said, nil
	}
	subject, err := tool.Foreign.Subject()
	if err != nil {
		return nil, err
	}
	out := &executorv1.PreviewCallResponse{Epoch: said.GetEpoch(), Audience: said.GetAudience(), Subject: subject, Plan: tool.Foreign.Plan()}
	request, err := tool.Decode(arguments)
	if err != nil {
		return nil, err
	}
	to, leads, err := tool.Destination(request)
	if err != nil {
		return nil, err
	}
	if leads {
		out.Plan = append(out.Plan, "its URL leads to "+to.String())
	}
	if leads || tool.Answers() {
		for _, line := range said.GetPlan() {
			out.Plan = append(out.Plan, "egress says: "+line)
		}
	}
	return own(out, said), nil
}
