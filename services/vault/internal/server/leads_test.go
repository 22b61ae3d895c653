package server

import (
	"context"
	"testing"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
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

// A halt that could not be written down is in the log, from which the next process has it, and ends what any other ends.
func TestAHaltThatIsNotDurableIsRecorded(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	v.dangerous(opened.GetSession())
	session, ok := v.server.Sessions.Live(opened.GetSession())
	if !ok {
		t.Fatal("no session")
	}
	click, _ := contract.Lookup("start_service")
	click.Tags = []string{"desktop:click"}
	if _, err := v.server.Desktop.Judge(session.Ref, click, callv1.Channel_CHANNEL_CLI, true); err != nil {
		t.Fatal(err)
	}
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
	if n := len(v.audit.of(auditv1.Kind_KIND_STANDING_ENDED)); n != 1 {
		t.Errorf("%d ends recorded when the halt returned", n)
	}
	v.clock.advance(time.Second)
	_, err := v.server.Desktop.Judge(session.Ref, click, callv1.Channel_CHANNEL_CLI, true)
	wantCode(t, err, callv1.Code_CODE_DENIED)
}
