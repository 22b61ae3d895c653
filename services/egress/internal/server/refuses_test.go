package server

import (
	"errors"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/destination"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/sink/control"
)

// TestToolsOfOthersAreRefused: egress previews no tool but its own, in the definition that it has, and no call that leads nowhere.
func TestToolsOfOthersAreRefused(t *testing.T) {
	start, ok := contract.Lookup("start_service")
	if !ok {
		t.Fatal("there is no start_service")
	}
	mine, ok := contract.Lookup("fetch_url")
	if !ok {
		t.Fatal("there is no fetch_url")
	}
	older := mine.Ref()
	older.DefinitionDigest = start.Ref().GetDefinitionDigest()
	self, err := identity.New(identity.DefaultTrustDomain, optionsv1.Role_ROLE_EGRESS, "local")
	must(t, err)
	egress := NewControl(ControlConfig{Sink: control.New(control.Config{Self: self})})
	for name, ref := range map[string]*callv1.ToolRef{"the executor's": start.Ref(), "another definition": older, "none": nil} {
		answer, err := egress.PreviewCall(t.Context(), &executorv1.PreviewCallRequest{Tool: ref, Arguments: []byte(`{"service_id":"llm"}`)})
		if !fault.Is(err, callv1.Code_CODE_NOT_FOUND) {
			t.Errorf("%s: %v, %v", name, answer, err)
		}
	}
	request, err := start.Decode([]byte(`{"service_id":"llm"}`))
	must(t, err)
	if subject, err := (Subjects{}).Subject(t.Context(), start, request); !fault.Is(err, callv1.Code_CODE_INTERNAL) {
		t.Errorf("it leads to %v, %v", subject, err)
	}
	// What acts on another's server names it and its program, wherever the arguments lead.
	foreign := contract.Tool{Foreign: &contract.Foreign{Server: "notes", Program: [32]byte{7}}}
	if subject, err := (Subjects{}).Subject(t.Context(), foreign, request); err != nil || subject.GetLabel() != "MCP server notes" {
		t.Errorf("a server's tool: %v, %v", subject, err)
	}
}

// TestExplained: a rule is named where one was broken, and nowhere else.
func TestExplained(t *testing.T) {
	other := errors.New("something else")
	if err := explained(t.Context(), other); !errors.Is(err, other) {
		t.Errorf("%v", err)
	}
	err := explained(t.Context(), &destination.Error{Why: "the server does not answer"})
	if !fault.Is(err, callv1.Code_CODE_FAILED) || fault.From(err).Message != "the server does not answer" {
		t.Errorf("%v", err)
	}
}
