package server

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/identity"
	"durward.internal/services/vault/internal/operation"
)

// asksFor is a call of http_request with this body.
func asksFor(session, body string) *vaultv1.AuthoriseRequest {
	quoted, _ := json.Marshal(body) //nolint:errchkjson // a string
	arguments := fmt.Appendf(nil, `{"body":%s,"method":"POST","url":"https://api.example.org/mail"}`, quoted)
	return &vaultv1.AuthoriseRequest{SessionId: session, Tool: toolRef("http_request"), Arguments: arguments}
}

func newReferring(t *testing.T) *vault {
	t.Helper()
	return newVault(t, func(c *Config, _ *operation.Config) {
		id, err := identity.New(c.Self.TrustDomain(), egress, "local")
		if err != nil {
			t.Fatal(err)
		}
		c.Sinks = append(c.Sinks, id)
	})
}

// TestOwnPersonalDataIsReferredTo: what an agent wrote is personal data no longer where it is shown, signed and recorded, and the human
// decides on exactly what the call is carried out with.
func TestOwnPersonalDataIsReferredTo(t *testing.T) {
	v := newReferring(t)
	opened := v.open(bearer)
	resp, err := v.authority().Authorise(t.Context(), asksFor(opened.GetSessionId(), "to="+person))
	v.must(err)
	if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING || resp.GetArguments() != nil {
		t.Fatalf("%v", resp)
	}
	o := v.operation(resp.GetOperationId())
	if !bytes.Contains(o.GetArguments(), []byte(`"to=[[PII:EMAIL:tkn_`)) {
		t.Errorf("the human is shown %s", o.GetArguments())
	}
	if shown := o.GetDisclosures(); len(shown) != 1 || shown[0].GetPointer() != "/body" || shown[0].GetHint() != "m•••@example.org" {
		t.Errorf("disclosed: %v", shown)
	}
	// The same again joins it; approved, its grant is for the arguments that come with it.
	v.approve(o.GetOperationId())
	again, err := v.authority().Authorise(t.Context(), asksFor(opened.GetSessionId(), "to="+person))
	v.must(err)
	granted, digest := &callv1.Grant{}, contract.Digest(o.GetArguments())
	v.must(proto.Unmarshal(again.GetGrant().GetPayload(), granted))
	if !again.GetJoined() || again.GetOperationId() != o.GetOperationId() || !bytes.Equal(again.GetArguments(), o.GetArguments()) || !bytes.Equal(granted.GetArgumentsDigest(), digest[:]) {
		t.Errorf("again: %v, %v", again, granted)
	}
	plain, err := v.authority().Authorise(t.Context(), asksFor(opened.GetSessionId(), `{"n":1}`))
	v.must(err)
	if got := v.operation(plain.GetOperationId()); string(got.GetArguments()) != string(asksFor("", `{"n":1}`).GetArguments()) || len(got.GetDisclosures()) != 0 {
		t.Errorf("without personal data: %v", got)
	}
	for kind := range auditv1.Kind_name {
		for _, r := range v.audit.of(auditv1.Kind(kind)) {
			if strings.Contains(r.String(), "gonzalez") {
				t.Errorf("recorded: %v", r)
			}
		}
	}
}

// TestWhatDisclosesAsksInAnyMode: in dangerous mode a call runs unasked, but for one that gives personal data to a sink.
func TestWhatDisclosesAsksInAnyMode(t *testing.T) {
	v := newReferring(t)
	v.rule("domains.yaml", "allow:\n  - domain: api.example.org\n")
	opened := v.openBound(1)
	mode := v.mode(opened.GetSession(), bound)
	mode.Audience = v.ID(egress, "local").String()
	v.confirmed(mode)
	for i, c := range []struct {
		body string
		want vaultv1.AuthoriseResponse_Decision
	}{
		{`{"n":1}`, vaultv1.AuthoriseResponse_DECISION_GRANTED},
		{"to=" + person, vaultv1.AuthoriseResponse_DECISION_PENDING},
	} {
		resp, err := v.authority().Authorise(t.Context(), v.proved(opened, uint64(10+i), "http_request", asksFor("", c.body).GetArguments()))
		if v.must(err); resp.GetDecision() != c.want {
			t.Errorf("%s: %v", c.body, resp)
		}
	}
}

func TestWhatCouldNotBeGivenBackIsRefused(t *testing.T) {
	v := newReferring(t)
	opened := v.open(bearer)
	many := ""
	for i := range 1100 {
		many += fmt.Sprintf("p%d@example.org ", i)
	}
	for body, want := range map[string]callv1.Code{
		"to=[[PII:EMAIL:tkn_" + strings.Repeat("a", 26) + "]]":     callv1.Code_CODE_INVALID_ARGUMENT,
		"key: cGFzc3dvcmQ9aHVudGVyMi1odW50ZXIy":                    callv1.Code_CODE_INVALID_ARGUMENT,
		strings.Repeat("x", 32750) + " " + person[len(person)-17:]: callv1.Code_CODE_TOO_LARGE,
		many: callv1.Code_CODE_TOO_LARGE,
		// One reference takes its place, which would fit.
		"data: " + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("plain words ", 400)+person)): callv1.Code_CODE_TOO_LARGE,
	} {
		resp, err := v.authority().Authorise(t.Context(), asksFor(opened.GetSessionId(), body))
		if !fault.Is(err, want) || strings.Contains(err.Error(), "example.org") || strings.Contains(err.Error(), "aHVudGVy") {
			t.Errorf("%.40q: %v, %v", body, resp, err)
		}
	}
}
