package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/outside"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/token"
)

const secretLine = "login with password=hunter2-hunter2 failed"

// logsGrant asks for one read of a service's log, as a gateway does.
func (v *vault) logsGrant(client string) (*vaultv1.OpenSessionResponse, *callv1.SignedGrant) {
	v.t.Helper()
	opened := v.open(client)
	answer, err := v.authority().Authorise(v.t.Context(), request(opened.GetSessionId(), "service_logs", "alpha"))
	v.must(err)
	if answer.GetDecision() != vaultv1.AuthoriseResponse_DECISION_GRANTED || answer.GetGrant() == nil {
		v.t.Fatalf("the read is answered with %v", answer)
	}
	return opened, answer.GetGrant()
}

func (v *vault) tokenise(request *vaultv1.TokeniseRequest) (*vaultv1.TokeniseResponse, error) {
	return vaultv1.NewTokeniseServiceClient(v.as(executor, "local")).Tokenise(v.t.Context(), request)
}

func byGrant(g *callv1.SignedGrant, texts ...string) *vaultv1.TokeniseRequest {
	return &vaultv1.TokeniseRequest{Under: &vaultv1.TokeniseRequest_Grant{Grant: g}, Texts: texts}
}

func byPermit(p *callv1.SignedPermit, texts ...string) *vaultv1.TokeniseRequest {
	return &vaultv1.TokeniseRequest{Under: &vaultv1.TokeniseRequest_Permit{Permit: p}, Texts: texts}
}

// A read whose calls the vault sees one by one takes a grant each time, without a human, for that sink, once; no permit names it.
func TestAReadByOneCallGrant(t *testing.T) {
	v := newVault(t)
	opened, g := v.logsGrant(reader)
	for _, p := range opened.GetPermits() {
		if permit, err := v.server.Issuer.OpenPermit(p.GetPermit()); err != nil || strings.Contains(strings.Join(permit.GetTools(), " "), "service_logs") {
			t.Errorf("the permit for %s names %v, %v", p.GetAudience(), permit.GetTools(), err)
		}
	}
	granted, err := v.server.Issuer.OpenGrant(g)
	v.must(err)
	digest := contract.Digest(arguments("alpha"))
	if string(granted.GetArgumentsDigest()) != string(digest[:]) || len(granted.GetStatements()) != 0 || len(granted.GetSubjectDigest()) != 0 {
		t.Errorf("the grant is %v", granted)
	}
	v.must(v.redeem(g))
	wantCode(t, v.redeem(g), callv1.Code_CODE_ALREADY_SPENT)
	if n := len(v.audit.of(auditv1.Kind_KIND_ASKED)); n != 0 {
		t.Errorf("a human was asked %d times", n)
	}
}

func TestTokenise(t *testing.T) {
	v := newVault(t)
	opened, g := v.logsGrant(bearer)
	v.must(v.redeem(g))
	answer, err := v.tokenise(byGrant(g, "nothing here", secretLine))
	v.must(err)
	texts := answer.GetTexts()
	if len(texts) != 2 || texts[0] != "nothing here" || strings.Contains(texts[1], "hunter2") || answer.GetReplaced() != 1 {
		t.Fatalf("answered with %v", answer)
	}
	// A sink asks about a text whole, as long as it may be.
	long := strings.Repeat("x", outside.MaxText-len(secretLine)-1) + " " + secretLine
	whole, err := v.tokenise(byGrant(g, long))
	v.must(err)
	if got := whole.GetTexts()[0]; strings.Contains(got, "hunter2") || len(got) < len(long)-len(secretLine) {
		t.Errorf("a long text leaves as %d bytes", len(got))
	}
	// The same session finds it again, whatever it asks with: the grant when its time is over, another call's, a permit.
	v.clock.advance(5 * time.Minute)
	again, err := v.tokenise(byGrant(g, "hunter2-hunter2"))
	v.must(err)
	v.clock.advance(-5 * time.Minute)
	permitted, err := v.tokenise(byPermit(permitFor(executor, opened.GetPermits()), "hunter2-hunter2"))
	v.must(err)
	if !strings.Contains(texts[1], again.GetTexts()[0]) || again.GetTexts()[0] != permitted.GetTexts()[0] || again.GetTexts()[0] == "hunter2-hunter2" {
		t.Errorf("%q, and then %q and %q", texts[1], again.GetTexts(), permitted.GetTexts())
	}
	// Another session does not.
	_, foreign := v.logsGrant(other)
	v.must(v.redeem(foreign))
	elsewhere, err := v.tokenise(byGrant(foreign, "hunter2-hunter2"))
	v.must(err)
	if elsewhere.GetTexts()[0] != "hunter2-hunter2" {
		t.Errorf("another session finds %q", elsewhere.GetTexts())
	}
	// With the session ends what it held.
	v.clock.advance(session.IdleTimeout)
	v.must(v.server.Sweep(t.Context()))
	if n := len(v.server.Tokens.Sessions()); n != 0 {
		t.Errorf("%d sessions hold something", n)
	}
}

func TestTokeniseIsRefused(t *testing.T) {
	v := newVault(t)
	opened, unspent := v.logsGrant(bearer)
	_, spent := v.logsGrant(bearer)
	v.must(v.redeem(spent))
	forged := proto.CloneOf(spent)
	forged.Signature[0] ^= 1
	permit := permitFor(executor, opened.GetPermits())
	for name, c := range map[string]struct {
		request *vaultv1.TokeniseRequest
		code    callv1.Code
	}{
		"a grant that nobody spent":        {byGrant(unspent, secretLine), callv1.Code_CODE_DENIED},
		"a forged grant":                   {byGrant(forged, secretLine), callv1.Code_CODE_DENIED},
		"another sink's permit":            {byPermit(permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits()), secretLine), callv1.Code_CODE_DENIED},
		"neither":                          {&vaultv1.TokeniseRequest{Texts: []string{secretLine}}, callv1.Code_CODE_INVALID_ARGUMENT},
		"no texts":                         {byGrant(spent), callv1.Code_CODE_INVALID_ARGUMENT},
		"a text that is too long":          {byGrant(spent, strings.Repeat("x", outside.MaxText+1)), callv1.Code_CODE_INVALID_ARGUMENT},
		"too much":                         {byGrant(spent, strings.Split(strings.Repeat(strings.Repeat("x", 1<<18)+",", 9), ",")...), callv1.Code_CODE_TOO_LARGE},
		"a permit of a session that ended": {byPermit(permit, secretLine), callv1.Code_CODE_EXPIRED},
	} {
		t.Run(name, func(t *testing.T) {
			if c.code == callv1.Code_CODE_EXPIRED {
				_, err := v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
				v.must(err)
			}
			got, err := v.tokenise(c.request)
			wantCode(t, err, c.code)
			if got != nil {
				t.Errorf("answered with %v", got)
			}
		})
	}
	// The grant's own sink alone.
	if _, err := vaultv1.NewTokeniseServiceClient(v.as(egress, "local")).Tokenise(t.Context(), byGrant(spent, secretLine)); err == nil {
		t.Error("another sink uses the grant")
	}
}

// What an agent says for itself is kept without the credentials in it.
func TestAnAgentsWordsAreTokenised(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	ask := request(opened.GetSessionId(), "start_service", "alpha")
	ask.Reason = "the user said: " + secretLine
	answer, err := v.authority().Authorise(t.Context(), ask)
	v.must(err)
	if reason := v.operation(answer.GetOperationId()).GetAgentReason(); strings.Contains(reason, "hunter2") || !strings.Contains(reason, "the user said") {
		t.Errorf("the reason is kept as %q", reason)
	}
	if r := v.audit.of(auditv1.Kind_KIND_ASKED)[0]; strings.Contains(r.String(), "hunter2") {
		t.Errorf("recorded as %v", r)
	}
}

func (v *vault) tokenize(opened *vaultv1.OpenSessionResponse, text string) (*vaultv1.TokenizeResponse, error) {
	return v.tools().Tokenize(withPermit(v.t.Context(), permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())), &vaultv1.TokenizeRequest{Text: &text})
}

// An agent gets a text of its own with references in it: they are others than a sink's, its next call is carried out with their values, and
// a text with them in it is what it was.
func TestAnAgentsOwnTextOnRequest(t *testing.T) {
	v := newReferring(t)
	opened := v.open(bearer)
	held := v.refers(opened.GetSession(), token.OriginSink, person)
	answer, err := v.tokenize(opened, "to "+person+", password=hunter2-hunter2")
	v.must(err)
	text := answer.GetText()
	if answer.GetReplaced() != 2 || !strings.HasPrefix(text, "to [[PII:EMAIL:tkn_") || strings.Contains(text, held) || strings.Contains(text, "hunter2") {
		t.Fatalf("%v", answer)
	}
	if again, err := v.tokenize(opened, text); err != nil || again.GetText() != text || again.GetReplaced() != 0 {
		t.Errorf("again: %v, %v", again, err)
	}
	theirs, err := v.tokenize(v.open(other), "to "+person+", "+strings.TrimPrefix(text, "to "))
	if v.must(err); strings.Contains(theirs.GetText(), text[3:30]) || strings.Count(theirs.GetText(), "[[PII:") != 1 {
		t.Errorf("another client is shown %v", theirs)
	}
	ref := text[3 : strings.Index(text, "]]")+2]
	asked, err := v.authority().Authorise(t.Context(), asksFor(opened.GetSessionId(), ref))
	v.must(err)
	if shown := v.operation(asked.GetOperationId()).GetDisclosures(); len(shown) != 1 || shown[0].GetHint() != "m•••@example.org" {
		t.Errorf("the human is shown %v", shown)
	}
	var many strings.Builder
	for i := range token.MaxValues + 10 {
		fmt.Fprintf(&many, "p%d@example.org ", i)
	}
	answer, err = v.tokenize(opened, many.String())
	if v.must(err); !strings.HasSuffix(answer.GetText(), "[PII REDACTED] ") || strings.Contains(answer.GetText(), "@") {
		t.Errorf("beyond the session's bounds: %.200q", answer.GetText())
	}
	for kind := range auditv1.Kind_name {
		for _, r := range v.audit.of(auditv1.Kind(kind)) {
			if strings.Contains(r.String(), "gonzalez") || strings.Contains(r.String(), "hunter2") || strings.Contains(r.String(), "@example") {
				t.Errorf("recorded: %v", r)
			}
		}
	}
	reads := v.audit.of(auditv1.Kind_KIND_READ)
	if r := reads[0]; r.GetTool() != "tokenize" || !strings.Contains(r.GetBody().GetArguments(), `{"text":"to [[PII:EMAIL:tkn_`) {
		t.Errorf("recorded: %v", r)
	}
	if _, err := v.tools().Tokenize(t.Context(), &vaultv1.TokenizeRequest{Text: &text}); err == nil {
		t.Error("without a permit it answers")
	}
	long := strings.Repeat("x", 32769)
	if _, err := v.tokenize(opened, long); !fault.Is(err, callv1.Code_CODE_INVALID_ARGUMENT) {
		t.Errorf("%d bytes: %v", len(long), err)
	}
}

// Others read along on a messaging channel: personal data is not even referred to there (OUT-4).
func TestMessagingChannelsGetNoPersonalData(t *testing.T) {
	v := newVault(t)
	v.messenger()
	chat, err := v.openAs("alice", "kitchen")
	v.must(err)
	const text = "from maria.gonzalez@example.org, password=hunter2-hunter2"
	for name, c := range map[string]struct {
		opened *vaultv1.OpenSessionResponse
		want   string
	}{"a messaging client": {chat, "from [PII REDACTED], password=[[SECRET:"}, "another": {v.open(bearer), "from [[PII:EMAIL:"}} {
		answer, err := v.tokenise(byPermit(permitFor(executor, c.opened.GetPermits()), text))
		v.must(err)
		own, err := v.tokenize(c.opened, text)
		v.must(err)
		for _, got := range []string{answer.GetTexts()[0], own.GetText()} {
			if !strings.HasPrefix(got, c.want) || strings.Contains(got, "gonzalez") || answer.GetReplaced() != 2 {
				t.Errorf("%s gets %q", name, got)
			}
		}
	}
}

// A vault that restarts knows no sessions; what one held is its client's again in the session that takes its place, and nobody else's.
func TestReferencesOutliveTheVaultsProcess(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: bearer\n", "id: bearer\n    agents: [lead]\n")
	opened := v.open(bearer)
	const text = "from maria.gonzalez@example.org"
	before, err := v.tokenise(byPermit(permitFor(executor, opened.GetPermits()), text))
	v.must(err)
	v.restart()
	again := func(client, replaces string, agent ...string) string {
		now, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(client), Replaces: replaces, Agent: strings.Join(agent, "")})
		v.must(err)
		answer, err := v.tokenise(byPermit(permitFor(executor, now.GetPermits()), before.GetTexts()[0]))
		v.must(err)
		return answer.GetTexts()[0]
	}
	for name, got := range map[string]string{
		"another client": again(other, opened.GetSessionId()), "another agent": again(bearer, opened.GetSessionId(), "lead"),
		"who names none": again(bearer, ""), "a guess": again(bearer, strings.Repeat("0", 32)),
	} {
		if strings.Contains(got, "[[PII:") {
			t.Errorf("%s takes it up: %q", name, got)
		}
	}
	// One that cannot be recorded takes nothing up: its gateway tries again.
	v.audit.set(func(f *fakeAudit) { f.full = true })
	_, err = v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bearer), Replaces: opened.GetSessionId()})
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	v.audit.set(func(f *fakeAudit) { f.full = false })
	if got := again(bearer, opened.GetSessionId()); got != before.GetTexts()[0] {
		t.Errorf("its own reference became %q", got)
	}
	if got := again(bearer, opened.GetSessionId()); strings.Contains(got, "[[PII:") {
		t.Errorf("a second session takes it up: %q", got)
	}
	found := 0
	for _, r := range v.audit.of(auditv1.Kind_KIND_SESSION_OPENED) {
		if r.GetBody().GetDetails()["replaces"] == opened.GetSession() {
			found++
		}
	}
	if found != 1 {
		t.Errorf("%d records say whose place a session takes", found)
	}
}
