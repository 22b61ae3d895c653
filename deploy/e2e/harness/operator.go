package harness

import (
	"encoding/json"
	"fmt"
)

// Approval is an operation that waits for the operator, as `durward approvals --json` shows it.
type Approval struct {
	Number      string          `json:"number"`
	OperationID string          `json:"operation_id"`
	State       string          `json:"state"`
	Tier        string          `json:"tier"`
	Tool        string          `json:"tool"`
	Arguments   json.RawMessage `json:"arguments"`
	Target      string          `json:"target"`
	Plan        []string        `json:"plan"`
	Problem     string          `json:"problem"`
	Principal   string          `json:"principal"`
	KeyBound    bool            `json:"key_bound"`
	Session     string          `json:"session"`
	AgentReason string          `json:"agent_reason"`
	Waiters     int             `json:"waiters"`
	RequestID   string          `json:"request_id"`
}

// Approvals returns what waits for the operator.
func (h *Host) Approvals() []Approval {
	h.t.Helper()
	var list struct {
		Operations []Approval `json:"operations"`
	}
	h.DurwardJSON(&list, "approvals")
	return list.Operations
}

// AwaitApproval waits until an operation for a tool waits for the operator, and returns it.
func (h *Host) AwaitApproval(tool string) Approval {
	h.t.Helper()
	var found Approval
	Eventually(h.t, tool+" waits for approval", func() error {
		for _, a := range h.Approvals() {
			if a.Tool == tool {
				found = a
				return nil
			}
		}
		return fmt.Errorf("nothing of the kind waits")
	})
	return found
}

// Approve signs an operation by its id, with the operator's key.
func (h *Host) Approve(operationID string) string {
	h.t.Helper()
	return h.Durward("approve", operationID, "--yes")
}

// Deny refuses an operation by its id.
func (h *Host) Deny(operationID, reason string) {
	h.t.Helper()
	h.Durward("deny", operationID, "--reason", reason)
}
