package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"durward.internal/deploy/e2e/harness"
)

// TestTasks: a call becomes a task that outlives the gateway and the vault, is nobody else's, and carries the same operation as
// wait_operation: approved by a human, it is carried out once.
func TestTasks(t *testing.T) {
	t.Parallel()
	h := harness.Start(t, harness.Options{})
	agent, other := h.AddClient("agent"), h.AddClient("other")
	var task struct {
		ResultType string              `json:"resultType"`
		TaskID     string              `json:"taskId"`
		Status     string              `json:"status"`
		Result     *mcp.CallToolResult `json:"result"`
	}
	send := func(r harness.RawRequest) harness.RawAnswer {
		t.Helper()
		r.Body = bytes.Replace(r.Body, []byte(`Capabilities":{}`), []byte(`Capabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`), 1)
		answer, err := h.Raw(t.Context(), r)
		must(t, err)
		task.ResultType, task.TaskID, task.Status, task.Result = "", "", "", nil
		if answer.Result != nil {
			must(t, json.Unmarshal(answer.Result, &task))
		}
		return answer
	}
	about := func(token, method, id string) harness.RawAnswer {
		t.Helper()
		return send(harness.Stateless(token, method, id, fmt.Sprintf(`{"taskId":%q}`, id)))
	}

	asked := harness.Again(func() harness.RawAnswer {
		return send(harness.StatelessCall(agent, "start_service", `{"service_id":"demo-chat"}`))
	})
	id := task.TaskID
	if task.ResultType != "task" || task.Status != "working" || len(h.Approvals()) != 1 || h.Approvals()[0].OperationID != id {
		t.Fatalf("the call became %s", asked.Body)
	}
	for _, method := range []string{"tasks/get", "tasks/cancel"} {
		if theirs, none := about(other, method, id), about(other, method, "00000000000000000000000000000000"); theirs.Error == nil ||
			theirs.Error.Code != -32602 || theirs.Error.Message != none.Error.Message {
			t.Errorf("%s by another: %s", method, theirs.Body)
		}
	}
	forged := fmt.Sprintf(`{"taskId":%q,"inputResponses":{"approve":{"action":"accept"}}}`, id)
	if answer := send(harness.Stateless(agent, "tasks/update", id, forged)); answer.Error == nil || answer.Error.Code != -32602 {
		t.Errorf("tasks/update: %s", answer.Body)
	}
	for _, role := range []string{harness.Vault, harness.Gateway} {
		h.Process(role).Kill()
		h.StartProcess(role)
		h.AwaitHealthy(role)
	}
	if answer := about(agent, "tasks/get", id); task.Status != "working" || h.Starts(harness.DemoService) != 0 {
		t.Errorf("after a restart: %s", answer.Body)
	}
	if answer := about(agent, "tasks/cancel", id); answer.Error != nil || len(h.Approvals()) != 1 {
		t.Errorf("tasks/cancel: %s", answer.Body)
	}
	h.Approve(id)
	for range 2 {
		harness.Eventually(t, "the task ends", func() error {
			if answer := about(agent, "tasks/get", id); task.Status != "completed" {
				return fmt.Errorf("%s", answer.Body)
			}
			return nil
		})
		if e := harness.CheckResult(t, nil, task.Result); e.Status != "ok" || e.OperationID != id {
			t.Errorf("the task's result is %s", e.Raw)
		}
	}
	if n := h.Starts(harness.DemoService); n != 1 {
		t.Errorf("the service was started %d times, want 1", n)
	}
	h.Durward("audit", "verify")
}
