package server

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/vault/internal/disclosure"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/token"
)

// privacy is what an operator is shown by a vault with these rules.
func newPrivacy(t *testing.T, rules ...disclosure.Rule) (*vault, vaultv1.PrivacyServiceClient) {
	t.Helper()
	v := newVault(t, func(c *Config, queue *operation.Config) {
		c.Disclosure, c.PrivacyTypes = disclosure.New(rules, queue.Store, c.Now), []string{"EMAIL", "PHONE"}
	})
	return v, vaultv1.NewPrivacyServiceClient(v.as(operator, "alice"))
}

func TestPrivacyOfNoSession(t *testing.T) {
	other := disclosure.Rule{Types: []string{"PHONE"}, Sink: "executor", Tool: "start_service", Arguments: []string{"/reason"}}
	elsewhere := disclosure.Rule{Types: []string{"PHONE"}, Sink: "egress", Tool: "start_service", Arguments: []string{"/service_id"}}
	v, asks := newPrivacy(t, other, emailRule, elsewhere)
	for _, c := range []struct{ tool, argument string }{{"start_service", ""}, {"", "/service_id"}, {"no_such_tool", "/service_id"}} {
		_, err := asks.TestPrivacy(t.Context(), &vaultv1.TestPrivacyRequest{Text: person, Tool: c.tool, Argument: c.argument})
		if !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
			t.Errorf("%q of %q: %v", c.argument, c.tool, err)
		}
	}
	resp, err := asks.TestPrivacy(t.Context(), &vaultv1.TestPrivacyRequest{
		Text: "to " + person + ", call +49 30 901820; password=hunter2-hunter2", Tool: "start_service", Argument: "/service_id",
	})
	v.must(err)
	for _, value := range []string{person, "901820", "hunter2"} {
		if strings.Contains(resp.GetText(), value) {
			t.Errorf("%s stands in %q", value, resp.GetText())
		}
	}
	want := []*vaultv1.DisclosureVerdict{
		{Type: "EMAIL", Allowed: true, Why: "privacy.disclose[1] names EMAIL for /service_id of start_service"},
		{Type: "PHONE", Why: "privacy.disclose[1] lets EMAIL go to /service_id of start_service, and not PHONE"},
		{Type: "SETTING", Why: "a credential is disclosed by no rule"},
	}
	if diff := cmp.Diff(want, resp.GetVerdicts(), protocmp.Transform()); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	// Nothing of it is kept, and its references stand for nothing in a session.
	if held := v.server.Tokens.Sessions(); len(held) != 0 {
		t.Errorf("held: %v", held)
	}
	opened := v.open(bearer)
	o, _ := v.runs(opened, strings.Fields(resp.GetText())[1])
	if _, err := v.server.disclosures(t.Context(), o); err == nil {
		t.Error("a reference of a trial stands for a value in a session")
	}
}

func TestPrivacyIsShown(t *testing.T) {
	v, asks := newPrivacy(t, emailRule)
	opened := v.open(bearer)
	v.refers(opened.GetSession(), token.OriginSink, person)
	v.refers(opened.GetSession(), token.OriginAgent, "+49 30 901820")
	list, err := asks.ListPrivacySessions(t.Context(), &vaultv1.ListPrivacySessionsRequest{})
	v.must(err)
	want := &vaultv1.ListPrivacySessionsResponse{Sessions: []*vaultv1.PrivacySession{
		{Session: opened.GetSession(), Principal: opened.GetPrincipal(), Types: map[string]uint32{"PII:EMAIL": 1, "PII:PHONE": 1}},
	}}
	if diff := cmp.Diff(want, list, protocmp.Transform()); diff != "" {
		t.Errorf("sessions (-want +got):\n%s", diff)
	}
	policy, err := asks.GetPrivacyPolicy(t.Context(), &vaultv1.GetPrivacyPolicyRequest{})
	v.must(err)
	wantPolicy := &vaultv1.GetPrivacyPolicyResponse{Types: []string{"EMAIL", "PHONE"}, Values: 50, Bytes: 8192, Rules: []*vaultv1.DisclosureRule{
		{Types: emailRule.Types, Sink: "executor", Tool: "start_service", Arguments: []string{"/service_id"}},
	}}
	if diff := cmp.Diff(wantPolicy, policy, protocmp.Transform()); diff != "" {
		t.Errorf("policy (-want +got):\n%s", diff)
	}
}
