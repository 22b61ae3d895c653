package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/capability"
	"durward.internal/services/vault/internal/disclosure"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/token"
)

const person = "maria.gonzalez@example.org"

// refers returns a reference of the session for what a log says, or for what the agent says.
func (v *vault) refers(session string, origin token.Origin, text string) string {
	v.t.Helper()
	result, err := v.server.Tokens.Tokenise(v.t.Context(), session, origin, []string{text})
	v.must(err)
	if !strings.HasPrefix(result.Texts[0], "[[PII:") {
		v.t.Fatalf("%q became %q", text, result.Texts[0])
	}
	return result.Texts[0]
}

// runs is a call of the executor's with this argument, which a human approved and the executor has redeemed.
func (v *vault) runs(opened *vaultv1.OpenSessionResponse, argument string, change ...func(*store.Operation)) (*store.Operation, *callv1.SignedGrant) {
	v.t.Helper()
	tool, _ := contract.Lookup("start_service")
	arguments := fmt.Appendf(nil, `{"service_id":%q}`, argument)
	digest := contract.Digest(arguments)
	now := v.clock.Now()
	o := &store.Operation{
		ID: grant.NewID(), State: vaultv1.OperationState_OPERATION_STATE_APPROVED, Principal: opened.GetPrincipal(), Session: opened.GetSession(),
		Channel: opened.GetChannel(), ToolName: tool.Name, ToolSource: "native", Arguments: arguments, ArgumentsDigest: digest[:],
		Audience: v.ID(executor, "local").String(), Epoch: 1, AskedAt: now, DecidedAt: now, ExpiresAt: now.Add(time.Hour), Authority: store.ByApproval,
	}
	for _, f := range change {
		f(o)
	}
	v.must(v.store.Insert(v.t.Context(), o))
	g := &callv1.Grant{
		Version: 1, Id: grant.NewID(), OperationId: o.ID, Use: 1, Principal: o.Principal, Session: o.Session, Channel: o.Channel, Tool: tool.Ref(),
		ArgumentsDigest: digest[:], PolicyDigest: make([]byte, 32), Audience: o.Audience, Epoch: 1,
		IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Minute)),
	}
	signed, err := grant.Sign(v.GrantKey, g)
	v.must(err)
	v.must(v.store.Spend(v.t.Context(), store.Spend{OperationID: o.ID, Use: 1, GrantID: g.GetId(), Audience: o.Audience, At: now}))
	return o, signed
}

func (v *vault) discloses() vaultv1.DisclosureServiceClient {
	return vaultv1.NewDisclosureServiceClient(v.as(executor, "local"))
}

func (v *vault) deliver(g *callv1.SignedGrant) ([]*vaultv1.Capability, error) {
	resp, err := v.discloses().Deliver(v.t.Context(), &vaultv1.DeliverRequest{Grant: g})
	return resp.GetCapabilities(), err
}

func (v *vault) resolve(g *callv1.SignedGrant, list ...*vaultv1.Capability) ([]*vaultv1.Disclosed, error) {
	resp, err := v.discloses().Resolve(v.t.Context(), &vaultv1.ResolveRequest{Grant: g, Capabilities: list})
	return resp.GetValues(), err
}

var emailRule = disclosure.Rule{Types: []string{"EMAIL"}, Sink: "executor", Tool: "start_service", Arguments: []string{"/service_id"}}

func newDisclosing(t *testing.T, rules ...disclosure.Rule) *vault {
	t.Helper()
	return newVault(t, func(c *Config, queue *operation.Config) { c.Disclosure = disclosure.New(rules, queue.Store, c.Now) })
}

func TestDeliver(t *testing.T) {
	v := newDisclosing(t, emailRule)
	opened := v.open(bearer)
	ref := v.refers(opened.GetSession(), token.OriginSink, person)
	o, g := v.runs(opened, "to "+ref+", again "+ref)
	list, err := v.deliver(g)
	v.must(err)
	values, err := v.resolve(g, list...)
	v.must(err)
	if len(values) != 1 || values[0].GetValue() != person || values[0].GetPointer() != "/service_id" || values[0].GetType() != "EMAIL" {
		t.Fatalf("disclosed: %v", values)
	}
	// What the approver was shown commits to this value.
	waiting := &vaultv1.Operation{
		State: vaultv1.OperationState_OPERATION_STATE_PENDING, OperationId: o.ID, Session: o.Session, Arguments: o.Arguments, Audience: o.Audience, Tool: o.ToolRef(),
	}
	shown := v.server.shown(t.Context(), waiting).GetDisclosures()
	if len(shown) != 1 || shown[0].GetHint() != "m•••@example.org" ||
		shown[0].GetCommitment() != statement.DisclosureCommitment(values[0].GetSalt(), "/service_id", values[0].GetRef(), "EMAIL", person) {
		t.Errorf("shown: %v", shown)
	}
	for _, kind := range []auditv1.Kind{auditv1.Kind_KIND_DELIVERED, auditv1.Kind_KIND_RESOLVED} {
		records := v.audit.of(kind)
		if len(records) != 1 || records[0].GetOperationId() != o.ID || records[0].GetBody().GetDetails()["EMAIL"] != "1" {
			t.Errorf("%s: %v", kind, records)
		}
	}
	// What an agent sent itself needs no rule; a secret of its session is never disclosed.
	_, own := v.runs(opened, v.refers(opened.GetSession(), token.OriginAgent, "+49 30 901820"))
	list, err = v.deliver(own)
	v.must(err)
	if values, err = v.resolve(own, list...); err != nil || len(values) != 1 || values[0].GetValue() != "+49 30 901820" {
		t.Errorf("the agent's own: %v, %v", values, err)
	}
	result, err := v.server.Tokens.Tokenise(t.Context(), opened.GetSession(), token.OriginSink, []string{"password=hunter2-hunter2"})
	v.must(err)
	_, hidden := v.runs(opened, strings.TrimPrefix(result.Texts[0], "password="))
	if list, err = v.deliver(hidden); err != nil || len(list) != 0 {
		t.Errorf("a secret: %v, %v", list, err)
	}
	for kind := range auditv1.Kind_name {
		for _, r := range v.audit.of(auditv1.Kind(kind)) {
			if strings.Contains(r.String(), "gonzalez") || strings.Contains(r.String(), "901820") || strings.Contains(r.String(), "hunter2") {
				t.Errorf("recorded: %v", r)
			}
		}
	}
}

// What ends while audit is waited for gets no values.
func TestNothingIsResolvedAfterAHalt(t *testing.T) {
	v := newDisclosing(t, emailRule)
	opened := v.open(bearer)
	_, g := v.runs(opened, v.refers(opened.GetSession(), token.OriginSink, person))
	list, err := v.deliver(g)
	v.must(err)
	gate, entered := make(chan struct{}), make(chan struct{}, 1)
	v.audit.set(func(f *fakeAudit) { f.gate, f.entered = gate, entered })
	ended := make(chan error, 1)
	go func() {
		values, err := v.resolve(g, list...)
		if len(values) > 0 {
			t.Errorf("disclosed after the halt: %v", values)
		}
		ended <- err
	}()
	<-entered
	_, err = v.control().Halt(t.Context(), &vaultv1.HaltRequest{})
	v.must(err)
	close(gate)
	wantCode(t, <-ended, callv1.Code_CODE_HALTED)
	if n := len(v.audit.of(auditv1.Kind_KIND_DISCLOSURE_DENIED)); n != 1 {
		t.Errorf("%d refusals are recorded", n)
	}
}

// Whoever holds a capability that is not for this use gets nothing.
func TestCapabilitiesGoNoFurther(t *testing.T) {
	v := newDisclosing(t, emailRule)
	opened, foreign := v.open(bearer), v.open(other)
	ref := v.refers(opened.GetSession(), token.OriginSink, person)
	_, g := v.runs(opened, ref)
	_, again := v.runs(opened, ref)
	_, theirs := v.runs(foreign, "x")
	fresh := func() *vaultv1.Capability {
		list, err := v.deliver(g)
		v.must(err)
		return list[0]
	}
	used := fresh()
	if _, err := v.resolve(g, used); err != nil {
		t.Fatal("its own use is refused: this test proves nothing", err)
	}
	at := func(pointer string) *vaultv1.Capability {
		c := fresh()
		c.Pointer = pointer
		return c
	}
	edited := fresh()
	edited.Token[len(edited.Token)-40] ^= 1
	late := fresh()
	for name, c := range map[string]struct {
		g    *callv1.SignedGrant
		with []*vaultv1.Capability
	}{
		"a second time": {g, []*vaultv1.Capability{used}}, "another call": {again, []*vaultv1.Capability{fresh()}},
		"another session's call": {theirs, []*vaultv1.Capability{fresh()}}, "another argument": {g, []*vaultv1.Capability{at("/other")}},
		"a wildcard": {g, []*vaultv1.Capability{at("*")}}, "an edited one": {g, []*vaultv1.Capability{edited}},
		"a good one twice": {g, func() []*vaultv1.Capability { c := fresh(); return []*vaultv1.Capability{c, c} }()},
	} {
		if got, err := v.resolve(c.g, c.with...); !fault.Is(err, callv1.Code_CODE_DENIED) || got != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_CAPABILITY_INVALID)); n != 7 {
		t.Errorf("%d are recorded", n)
	}
	if _, err := vaultv1.NewDisclosureServiceClient(v.as(egress, "local")).Resolve(t.Context(), &vaultv1.ResolveRequest{Grant: g, Capabilities: []*vaultv1.Capability{fresh()}}); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("another sink: %v", err)
	}
	if _, err := vaultv1.NewDisclosureServiceClient(v.as(gateway, "local")).Deliver(t.Context(), &vaultv1.DeliverRequest{Grant: g}); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("the gateway: %v", err)
	}
	forged := proto.CloneOf(g)
	forged.Signature[0] ^= 1
	if _, err := v.deliver(forged); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("a forged grant: %v", err)
	}
	v.clock.advance(capability.Life)
	if _, err := v.resolve(g, late); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("at its end: %v", err)
	}
}

func TestDeliverRefuses(t *testing.T) {
	v := newDisclosing(t, emailRule)
	opened, foreign := v.open(bearer), v.open(other)
	mail, phone := v.refers(opened.GetSession(), token.OriginSink, person), v.refers(opened.GetSession(), token.OriginSink, "+49 30 901820")
	guess := reference.Reference{Class: reference.PII, Type: "EMAIL", ID: reference.NewID()}
	for name, c := range map[string]struct {
		of       *vaultv1.OpenSessionResponse
		argument string
		change   func(*store.Operation)
		code     callv1.Code
	}{
		"no rule for the type":     {opened, phone, nil, callv1.Code_CODE_DENIED},
		"one of two":               {opened, mail + phone, nil, callv1.Code_CODE_DENIED},
		"another client's session": {foreign, mail, nil, callv1.Code_CODE_INVALID_ARGUMENT},
		"a guess":                  {opened, guess.Marshal(), nil, callv1.Code_CODE_INVALID_ARGUMENT},
		"another type":             {opened, strings.Replace(mail, "EMAIL", "PHONE", 1), nil, callv1.Code_CODE_INVALID_ARGUMENT},
		"by a scope":               {opened, mail, func(o *store.Operation) { o.Authority = store.ByScope }, callv1.Code_CODE_DENIED},
		"by dangerous mode":        {opened, mail, func(o *store.Operation) { o.Authority = store.ByDangerous }, callv1.Code_CODE_DENIED},
		"unattended":               {opened, mail, func(o *store.Operation) { o.Authority = store.ByUnattended }, callv1.Code_CODE_DENIED},
	} {
		_, g := v.runs(c.of, c.argument, func(o *store.Operation) {
			if c.change != nil {
				c.change(o)
			}
		})
		list, err := v.deliver(g)
		if code := fault.From(err).Code; err == nil || list != nil || code != c.code && code != callv1.Code_CODE_DENIED && code != callv1.Code_CODE_EXPIRED {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	// What was asked for when it had run is too late, and so it is after the session.
	o, g := v.runs(opened, mail)
	v.must(v.store.Settle(t.Context(), o.ID, true, v.clock.Now()))
	if _, err := v.deliver(g); !fault.Is(err, callv1.Code_CODE_DENIED) {
		t.Errorf("when it had run: %v", err)
	}
	_, g = v.runs(opened, mail)
	list, err := v.deliver(g)
	v.must(err)
	_, err = v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
	v.must(err)
	v.must(v.server.Sweep(t.Context()))
	if got, err := v.resolve(g, list...); err == nil {
		t.Errorf("after the session: %v", got)
	}
	// That everything stands still is said.
	next := v.open(bearer)
	_, g = v.runs(next, v.refers(next.GetSession(), token.OriginSink, person))
	_, err = v.control().Halt(t.Context(), &vaultv1.HaltRequest{Reason: "test"})
	v.must(err)
	if list, err := v.deliver(g); !fault.Is(err, callv1.Code_CODE_HALTED) || list != nil {
		t.Errorf("during a halt: %v, %v", list, err)
	}
}

// TestWhatIsTooMuchIsNotAskedFor: no human is asked about a call that would disclose more than one may.
func TestWhatIsTooMuchIsNotAskedFor(t *testing.T) {
	v := newDisclosing(t, emailRule)
	opened := v.open(bearer)
	may := func(list []string) error {
		_, err := v.server.mayDisclose(t.Context(), &store.Operation{
			ID: grant.NewID(), Principal: opened.GetPrincipal(), Session: opened.GetSession(), ToolName: "start_service", Audience: v.ID(executor, "local").String(),
			Arguments: fmt.Appendf(nil, `{"service_id":%q}`, strings.Join(list, " ")),
		})
		return err
	}
	var short, long []string
	for i := range statement.MaxDisclosures + 1 {
		short = append(short, v.refers(opened.GetSession(), token.OriginSink, fmt.Sprintf("m%d@example.org", i)))
		if len(long)*200 <= statement.MaxDisclosed {
			long = append(long, v.refers(opened.GetSession(), token.OriginSink, fmt.Sprintf("m%d@%s.example.org", i, strings.Repeat(strings.Repeat("x", 45)+".", 4)+"x")))
		}
	}
	for name, list := range map[string][]string{"the most values": short[1:], "few long ones": long[:10]} {
		if err := may(list); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, list := range map[string][]string{"one value too many": short, "values that are too long together": long} {
		if err := may(list); !fault.Is(err, callv1.Code_CODE_RATE_LIMITED) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(v.audit.of(auditv1.Kind_KIND_DISCLOSURE_DENIED)); n != 2 {
		t.Errorf("%d refusals are recorded", n)
	}
}
