package approval

import (
	"slices"
	"testing"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	"durward.internal/services/platform/contract"
)

// TestPreviewOfAServersTool: what is shown and signed of a server's tool is this program's own word, and egress' is named as egress'.
func TestPreviewOfAServersTool(t *testing.T) {
	t.Parallel()
	foreign := &contract.Foreign{Server: "web", Name: "open", Program: [32]byte{1}, Reach: []string{"it has no network"}, Check: func([]byte) error { return nil }}
	tool := contract.Tool{Name: "web__open", Foreign: foreign, Resource: contract.KindDomain, ResourceArgument: "url"}
	said := &executorv1.PreviewCallResponse{
		Epoch: 3, Audience: "spiffe://durward.local/egress/main", Plan: []string{"it does nothing"}, Subject: &callv1.Subject{Label: "a friend", Entry: []byte(`{}`)},
	}
	own := []string{"call the tool open of the MCP server web, as it was accepted", "it has no network"}
	for arguments, want := range map[string][]string{
		`{}`:                              own,
		`{"url":"https://example.com/a"}`: append(slices.Clone(own), "its URL leads to example.com:443", "egress says: it does nothing"),
	} {
		got, err := Preview(tool, []byte(arguments), said)
		must(t, err)
		if !slices.Equal(got.GetPlan(), want) {
			t.Errorf("%s: the plan is %q, want %q", arguments, got.GetPlan(), want)
		}
		subject, _ := foreign.Subject()
		if s := got.GetSubject(); s.GetLabel() != "MCP server web" || string(s.GetEntry()) != string(subject.GetEntry()) || got.GetEpoch() != 3 || got.GetAudience() != said.GetAudience() {
			t.Errorf("%s: %v", arguments, got)
		}
	}
	answers := contract.Tool{Name: "web__answer_question", Foreign: &contract.Foreign{Server: "web", Name: "answer_question", Check: foreign.Check}}
	if got, err := Preview(answers, []byte(`{}`), said); err != nil || got.GetPlan()[len(got.GetPlan())-1] != "egress says: it does nothing" {
		t.Errorf("of an answer: %v, %v", got, err)
	}
	if _, err := Preview(tool, []byte(`{"url":"ftp://x"}`), said); err == nil {
		t.Error("a URL that leads nowhere is previewed")
	}
	if got, err := Preview(contract.Tool{}, nil, said); err != nil || got != said {
		t.Errorf("of a tool of Durward's own its sink is believed: %v, %v", got, err)
	}
}
