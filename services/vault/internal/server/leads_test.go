package server

import (
	"context"
	"testing"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
)

// A vault that may lead no more answers nobody, in a sentence, and what it is asked for can be tried again.
func TestWhileItLeads(t *testing.T) {
	leads := true
	refuse := (&Server{}).WhileItLeads(func() bool { return leads })
	answer := func(context.Context, any) (any, error) { return "an answer", nil }
	if got, err := refuse(t.Context(), nil, nil, answer); err != nil || got != "an answer" {
		t.Errorf("while it leads: %v, %v", got, err)
	}
	leads = false
	got, err := refuse(t.Context(), nil, nil, answer)
	if f := fault.From(err); got != nil || f.Code != callv1.Code_CODE_UNAVAILABLE || !f.Retryable || f.Message == "" {
		t.Errorf("when it leads no more: %v, %v", got, err)
	}
}

// A halt that could not be written down is in the log, from which the next process has it.
func TestAHaltThatIsNotDurableIsRecorded(t *testing.T) {
	v := newVault(t)
	v.must(v.store.Close())
	if _, err := v.control().Halt(t.Context(), &vaultv1.HaltRequest{Reason: "fire"}); err == nil {
		t.Error("it is said to be durable")
	}
	recorded := v.audit.of(auditv1.Kind_KIND_HALTED)
	if len(recorded) != 1 || recorded[0].GetBody().GetDetails()["epoch"] != "2" {
		t.Errorf("it recorded %v", recorded)
	}
	if now := v.server.Halt.Now(); !now.Halted || now.Epoch != 2 {
		t.Errorf("it is %+v", now)
	}
}
