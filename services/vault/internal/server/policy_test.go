package server

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/policy"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/vault/internal/decision"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/usage"
)

// rule writes a file of the security configuration, and has it read at once.
func (v *vault) rule(name, text string) {
	v.t.Helper()
	v.plant(name, text)
	v.server.Security.Reload()
	v.must(v.server.Security.Err())
}

func (v *vault) plant(name, text string) {
	v.t.Helper()
	path := filepath.Join(v.security, name)
	v.must(os.MkdirAll(filepath.Dir(path), 0o700))
	v.must(os.WriteFile(path, []byte(text), 0o600))
}

// openBound opens a session of the key-bound client.
func (v *vault) openBound(counter uint64) *vaultv1.OpenSessionResponse {
	v.t.Helper()
	resp, err := v.sessions().OpenSession(v.t.Context(), &vaultv1.OpenSessionRequest{
		Credential: tokenOf(bound), Proof: v.openProof(counter, v.clock.Now()),
	})
	v.must(err)
	return resp
}

// proved is the key-bound client's own request.
func (v *vault) proved(opened *vaultv1.OpenSessionResponse, counter uint64, tool string, arguments []byte) *vaultv1.AuthoriseRequest {
	v.t.Helper()
	p, err := proof.Sign(v.clientKey, proof.Claim{
		Purpose: callv1.Proof_PURPOSE_CALL, Client: bound, Session: opened.GetSession(), Tool: tool,
		ArgumentsDigest: operationDigest(arguments), Counter: counter, Time: v.clock.Now().Unix(),
	})
	v.must(err)
	return &vaultv1.AuthoriseRequest{SessionId: opened.GetSessionId(), Tool: toolRef(tool), Arguments: arguments, Proof: p}
}

func (v *vault) permitted(permits []*vaultv1.AddressedPermit) map[string]bool {
	v.t.Helper()
	out := map[string]bool{}
	for _, addressed := range permits {
		p, err := grant.VerifyPermit(addressed.GetPermit(), v.Trust, v.clock.Now())
		v.must(err)
		for _, tool := range p.GetTools() {
			out[tool] = true
		}
	}
	return out
}

// What does not exist, what is denied, and what is denied with arguments that are none, get the same answer (ACL-3).
func TestDeniedLooksLikeAbsent(t *testing.T) {
	v := newVault(t)
	v.rule("tools.yaml", "tools:\n  stop_service: {tier: DENIED}\n  gpu_status: {tier: DENIED}\n")
	opened := v.open(bearer)
	absent := toolRef("start_service")
	absent.Name = "format_disk"
	answer := func(ref *callv1.ToolRef, arguments string) *vaultv1.AuthoriseResponse {
		resp, err := v.authority().Authorise(t.Context(), &vaultv1.AuthoriseRequest{
			SessionId: opened.GetSessionId(), Tool: ref, Arguments: []byte(arguments),
		})
		v.must(err)
		resp.Rule = ""
		return resp
	}
	want := answer(absent, `{"service_id":"a"}`)
	if want.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED {
		t.Fatalf("%v", want)
	}
	for name, got := range map[string]*vaultv1.AuthoriseResponse{
		"denied":                         answer(toolRef("stop_service"), `{"service_id":"a"}`),
		"denied, with strange arguments": answer(toolRef("stop_service"), `{"force":true}`),
		"denied, and only looks":         answer(toolRef("gpu_status"), `{}`),
	} {
		if !proto.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if v.permitted(opened.GetPermits())["gpu_status"] {
		t.Error("a permit names a tool that is denied")
	}
	recorded := map[string]int{}
	for _, r := range v.audit.of(auditv1.Kind_KIND_DENIED) {
		recorded[r.GetBody().GetDecisionSource()]++
	}
	if diff := cmp.Diff(map[string]int{
		"unknown-tool": 1, "tools/stop_service/tier (tools.yaml:2)": 2, "tools/gpu_status/tier (tools.yaml:3)": 1,
	}, recorded); diff != "" {
		t.Errorf("the records name (-want +got):\n%s", diff)
	}
}

const startUnasked = `@id("start-runs") permit (principal in Client::"bound", action == Action::"callWithoutApproval:start_service", resource);
@id("start-runs-for-all") permit (principal, action == Action::"callWithoutApproval:start_service", resource);
`

// What a rule denies by arguments or time is said with the rule's words; what a silent rule denies, and a tool that is denied whatever
// its arguments, look like what is not there.
func TestADenialSaysWhichRuleUnlessItIsSilent(t *testing.T) {
	v := newVault(t)
	const about = `forbid (principal, action == Action::"call:start_service", resource) when { context.arguments.service_id == "`
	v.rule("policy/site.cedar", `@id("not-the-big-one") @because("the big model is the night shift's") `+about+`big" };
		@id("honeypot") @silent("") `+about+`trap" };
		`+about+`plain" };`)
	v.rule("tools.yaml", "tools:\n  stop_service: {tier: DENIED}\n")
	opened := v.open(bearer)
	for service, want := range map[string]string{
		"big": "the big model is the night shift's (not-the-big-one)", "trap": "", "plain": "a rule without a name forbids it",
	} {
		resp, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "start_service", service))
		v.must(err)
		if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED || resp.GetReason() != want {
			t.Errorf("%s: told %q, want %q", service, resp.GetReason(), want)
		}
	}
	resp, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "stop_service", "big"))
	v.must(err)
	if resp.GetReason() != "" {
		t.Errorf("of a tool that it may not see it is told %q", resp.GetReason())
	}
	if !slices.Contains(opened.GetTools(), "start_service") || slices.Contains(opened.GetTools(), "stop_service") || !slices.Contains(opened.GetTools(), "wait_operation") {
		t.Errorf("its tools are %v", opened.GetTools())
	}
	v.rule("tools.yaml", "tools:\n  start_service: {tier: DENIED}\n")
	renewed, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId()})
	v.must(err)
	if slices.Contains(renewed.GetTools(), "start_service") || !slices.Contains(renewed.GetTools(), "stop_service") {
		t.Errorf("after a change its tools are %v", renewed.GetTools())
	}
}

// What a human's file lets run unasked runs for a client that signs; a bearer client asks all the same, whatever the file says.
func TestUnattendedIsForKeyBoundClients(t *testing.T) {
	v := newVault(t)
	v.rule("policy/allow.cedar", startUnasked)
	opened := v.openBound(1)
	resp, err := v.authority().Authorise(t.Context(), v.proved(opened, 10, "start_service", arguments("a")))
	v.must(err)
	if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_GRANTED {
		t.Fatalf("the key-bound client: %v", resp)
	}
	g, err := grant.Verify(resp.GetGrant(), v.Trust, v.clock.Now())
	v.must(err)
	digest := v.server.rules().Digest()
	if len(g.GetStatements()) != 0 || len(g.GetSubjectDigest()) != 0 || g.GetDangerous() || string(g.GetPolicyDigest()) != string(digest[:]) {
		t.Errorf("grant %v", g)
	}
	if o := v.operation(resp.GetOperationId()); o.GetRule() != "start-runs (policy/allow.cedar:1)" {
		t.Errorf("the operation's rule is %q", o.GetRule())
	}
	v.must(v.redeem(resp.GetGrant()))
	wantCode(t, v.redeem(resp.GetGrant()), callv1.Code_CODE_ALREADY_SPENT)

	asked := v.ask(v.open(bearer).GetSessionId(), "a")
	if asked.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING || asked.GetGrant() != nil {
		t.Errorf("the bearer client: %v", asked)
	}
	// The guard behind the policy's own: a verdict that lets a bearer client's change run would still be asked about.
	bearerSession, ok := v.server.Sessions.Live(v.open(other).GetSession())
	if !ok || unattended(bearerSession) {
		t.Error("a bearer session may run unattended")
	}
}

// A change of the rules binds open sessions at once: the next permit, and the next call.
func TestRulesAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVault(t)
		opened := v.open(bearer)
		renew := func() map[string]bool {
			resp, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId()})
			v.must(err)
			return v.permitted(resp.GetPermits())
		}
		if !renew()["list_modes"] {
			t.Fatal("list_modes is not permitted to begin with")
		}
		v.plant("policy/less.cedar", `@id("no-modes") forbid (principal, action in [Action::"call:list_modes", Action::"call:start_service"], resource);`)
		time.Sleep(time.Second)
		synctest.Wait()
		if renew()["list_modes"] {
			t.Error("still permitted after a second")
		}
		if resp := v.ask(opened.GetSessionId(), "a"); resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED || resp.GetRule() != "no-modes (policy/less.cedar:1)" {
			t.Errorf("%v", resp)
		}
		before := v.server.rules().Digest()
		// A file that is broken changes nothing, and is told.
		v.plant("policy/less.cedar", `permit (principal, action, resource`)
		v.server.Security.Reload()
		if err := v.server.Security.Err(); err == nil || !strings.Contains(err.Error(), "policy/less.cedar") {
			t.Errorf("health says %v", err)
		}
		if v.server.rules().Digest() != before || renew()["list_modes"] {
			t.Error("a broken file lifted a rule")
		}
		if n := len(v.audit.of(auditv1.Kind_KIND_CONFIG_REFUSED)); n != 1 {
			t.Errorf("%d refusals recorded, want 1", n)
		}
	})
}

// A READ tool that a rule makes ask waits for a human like any other, and its grant is spent once.
func TestReadThatAsks(t *testing.T) {
	v := newVault(t)
	v.rule("policy/ask.cedar", `@id("look-first") forbid (principal, action == Action::"callWithoutApproval:service_info", resource);`)
	opened := v.open(reader)
	if v.permitted(opened.GetPermits())["service_info"] {
		t.Error("a permit names it")
	}
	resp, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", "a"))
	v.must(err)
	if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING {
		t.Fatalf("%v", resp)
	}
	v.approve(resp.GetOperationId())
	waited, err := v.wait(opened, resp.GetOperationId(), time.Second)
	v.must(err)
	v.must(v.redeem(waited.GetGrant()))
	wantCode(t, v.redeem(waited.GetGrant()), callv1.Code_CODE_ALREADY_SPENT)
}

// What depends on arguments is decided call by call, for READ as well.
func TestRulesThatLookAtArguments(t *testing.T) {
	v := newVault(t)
	v.rule("policy/one.cedar", `@id("not-secret") forbid (principal, action == Action::"call:service_info", resource == Service::"secret");`)
	opened := v.open(reader)
	if v.permitted(opened.GetPermits())["service_info"] {
		t.Error("a permit covers what depends on arguments")
	}
	for service, want := range map[string]vaultv1.AuthoriseResponse_Decision{
		"secret": vaultv1.AuthoriseResponse_DECISION_DENIED, "open": vaultv1.AuthoriseResponse_DECISION_GRANTED,
	} {
		resp, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", service))
		v.must(err)
		if resp.GetDecision() != want {
			t.Errorf("%s: %v", service, resp)
		}
	}
}

// A human's tier above the contract's is what the operator sees, and counts against the ceiling.
func TestPolicyTier(t *testing.T) {
	v := newVault(t)
	v.rule("tools.yaml", "tools:\n  service_info: {tier: WRITE}\n  start_service: {tier: DESTRUCTIVE}\n")
	resp, err := v.authority().Authorise(t.Context(), request(v.open(bearer).GetSessionId(), "service_info", "a"))
	v.must(err)
	if o := v.operation(resp.GetOperationId()); o.GetPolicyTier() != optionsv1.Tier_TIER_WRITE || o.GetTier() != optionsv1.Tier_TIER_READ {
		t.Errorf("%v", o)
	}
	if got := v.ask(v.open(bearer).GetSessionId(), "a"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED {
		t.Errorf("above the ceiling: %v", got)
	}
}

// A hundred different calls at once at a budget of ten: ten come to something. The eleventh has to wait until tomorrow.
func TestBudgetUnderLoad(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: bearer\n", "id: bearer\n    limits: {pending: 50}\n")
	v.rule("tools.yaml", "tools:\n  start_service: {budget: {day: 10}}\n")
	opened := v.open(bearer)
	client := v.authority()
	var asked, limitedCalls atomic.Int32
	var wg sync.WaitGroup
	atOnce := make(chan struct{}, 20) // as many as are answered in time, also under the race detector
	for i := range 100 {
		wg.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			_, err := client.Authorise(context.Background(), request(opened.GetSessionId(), "start_service", "s"+string(rune('a'+i/10))+string(rune('a'+i%10))))
			switch {
			case err == nil:
				asked.Add(1)
			case fault.Is(err, callv1.Code_CODE_RATE_LIMITED):
				limitedCalls.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if asked.Load() != 10 || limitedCalls.Load() != 90 || v.server.Queue.PendingCount() != 10 {
		t.Errorf("%d asked, %d limited, %d wait", asked.Load(), limitedCalls.Load(), v.server.Queue.PendingCount())
	}
	_, err := client.Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "zz"))
	f := wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	if !strings.HasPrefix(f.Message, "Rate limit exceeded") || f.RetryAfter <= 0 || f.RetryAfter > 25*time.Hour {
		t.Errorf("%+v", f)
	}
	// Whoever was let wait may come back for the answer, and is not counted again.
	var joined int
	for i := range 100 {
		resp, err := client.Authorise(t.Context(), request(opened.GetSessionId(), "start_service", "s"+string(rune('a'+i/10))+string(rune('a'+i%10))))
		if err == nil && resp.GetJoined() {
			joined++
		}
	}
	if joined != 10 || v.server.Queue.PendingCount() != 10 {
		t.Errorf("%d joined, %d wait", joined, v.server.Queue.PendingCount())
	}
	// Another client has a budget of its own, and a restart forgets none.
	if got := v.ask(v.open(other).GetSessionId(), "a"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING {
		t.Errorf("another client: %v", got)
	}
	v.restart()
	_, err = v.authority().Authorise(t.Context(), request(v.open(bearer).GetSessionId(), "start_service", "zz"))
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	v.clock.advance(24 * time.Hour)
	if got := v.ask(v.open(bearer).GetSessionId(), "zz"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING {
		t.Errorf("tomorrow: %v", got)
	}
}

func TestMinimumInterval(t *testing.T) {
	v := newVault(t)
	v.rule("tools.yaml", "tools:\n  service_info: {min_interval_s: 30}\n")
	opened := v.open(bearer)
	call := func() error {
		_, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", "a"))
		return err
	}
	v.must(call())
	v.clock.advance(29 * time.Second)
	if f := wantCode(t, call(), callv1.Code_CODE_RATE_LIMITED); f.RetryAfter != time.Second {
		t.Errorf("retry after %s", f.RetryAfter)
	}
	v.clock.advance(time.Second)
	v.must(call()) // what was refused did not count
}

// messenger adds a messaging client.
func (v *vault) messenger() {
	v.t.Helper()
	v.rewrite("clients:\n", "clients:\n  - id: chat\n    token_sha256: "+tokenDigest("chat")+"\n    channel: messaging:signal\n    tier_ceiling: DESTRUCTIVE\n")
}

func (v *vault) openAs(user, room string) (*vaultv1.OpenSessionResponse, error) {
	return v.sessions().OpenSession(v.t.Context(), &vaultv1.OpenSessionRequest{
		Credential: tokenOf("chat"), Sender: &vaultv1.Sender{User: user, Room: room},
	})
}

func TestSenders(t *testing.T) {
	v := newVault(t)
	v.messenger()
	for name, req := range map[string]*vaultv1.OpenSessionRequest{
		"a messaging client without a sender": {Credential: tokenOf("chat")},
		"a sender of another client":          {Credential: tokenOf(bearer), Sender: &vaultv1.Sender{User: "u", Room: "r"}},
		"a sender who is not what is shown":   {Credential: tokenOf("chat"), Sender: &vaultv1.Sender{User: "al\u200bice", Room: "r"}},
		"a room with an escape":               {Credential: tokenOf("chat"), Sender: &vaultv1.Sender{User: "alice", Room: "\x1b[2Jr"}},
		"a sender without a room":             {Credential: tokenOf("chat"), Sender: &vaultv1.Sender{User: "alice"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := v.sessions().OpenSession(t.Context(), req)
			wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT)
		})
	}
	_, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf("chat")})
	if f := fault.From(err); !strings.Contains(f.Message, "for whom") {
		t.Errorf("without a sender: %v", err)
	}
	alice, err := v.openAs("alice", "kitchen")
	v.must(err)
	bob, err := v.openAs("bob", "kitchen")
	v.must(err)
	if alice.GetSession() == bob.GetSession() || alice.GetIdleTimeoutS() != 86400 || alice.GetExpiresAt().AsTime().Sub(v.clock.Now()) != 24*time.Hour {
		t.Errorf("sessions %v and %v", alice, bob)
	}
	// They look, and change nothing, whatever the client's own ceiling.
	if got := v.ask(alice.GetSessionId(), "a"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED || got.GetRule() != "messaging-only-reads" {
		t.Errorf("%v", got)
	}
	// One session a sender: the one before ends.
	again, err := v.openAs("alice", "kitchen")
	v.must(err)
	_, err = v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: alice.GetSessionId()})
	wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
	for _, live := range []*vaultv1.OpenSessionResponse{again, bob} {
		_, err = v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: live.GetSessionId()})
		v.must(err)
	}
	v.rule("security.yaml", "messaging: {ttl_s: 600}\n")
	short, err := v.openAs("carol", "kitchen")
	v.must(err)
	v.clock.advance(10 * time.Minute)
	_, err = v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: short.GetSessionId()})
	wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
}

func TestSendersLimits(t *testing.T) {
	v := newVault(t)
	v.messenger()
	v.rule("security.yaml", "messaging: {per_user_per_minute: 2, per_room_per_minute: 3, per_minute: 5}\n")
	limit := func(err error) { t.Helper(); wantCode(t, err, callv1.Code_CODE_RATE_LIMITED) }
	alice, err := v.openAs("alice", "kitchen")
	v.must(err)
	read := func(opened *vaultv1.OpenSessionResponse) error {
		_, err := v.authority().Authorise(t.Context(), request(opened.GetSessionId(), "service_info", "a"))
		return err
	}
	v.must(read(alice))
	limit(read(alice)) // the user, wherever
	_, err = v.openAs("alice", "garden")
	limit(err)
	_, err = v.openAs("bob", "kitchen")
	v.must(err)
	_, err = v.openAs("carol", "kitchen")
	limit(err) // the room
	_, err = v.openAs("carol", "garden")
	v.must(err)
	_, err = v.openAs("dave", "cellar")
	v.must(err)
	_, err = v.openAs("erin", "attic")
	limit(err) // all
	v.open(bearer)
	v.clock.advance(time.Minute)
	v.must(read(alice))
}

func TestAgents(t *testing.T) {
	v := newVault(t)
	v.rewrite("id: bearer\n", "id: bearer\n    agents: [planner, coder]\n")
	v.rule("policy/agents.cedar", `@id("not-the-planner") forbid (principal == Agent::"bearer/planner", action == Action::"call:start_service", resource);`)
	open := func(agent string) (*vaultv1.OpenSessionResponse, error) {
		return v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bearer), Agent: agent})
	}
	for _, name := range []string{"stranger", "Planner", "bearer"} {
		_, err := open(name)
		if f := wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED); f.Message != "not authenticated" {
			t.Errorf("%s: the answer tells them apart: %+v", name, f)
		}
	}
	decisions := map[string]vaultv1.AuthoriseResponse_Decision{}
	var planner *vaultv1.OpenSessionResponse
	for _, name := range []string{"", "planner", "coder"} {
		opened, err := open(name)
		v.must(err)
		if name == "planner" {
			planner = opened
		}
		decisions[name] = v.ask(opened.GetSessionId(), "a").GetDecision()
	}
	if diff := cmp.Diff(map[string]vaultv1.AuthoriseResponse_Decision{
		"":        vaultv1.AuthoriseResponse_DECISION_PENDING,
		"planner": vaultv1.AuthoriseResponse_DECISION_DENIED,
		"coder":   vaultv1.AuthoriseResponse_DECISION_PENDING,
	}, decisions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	v.rewrite("agents: [planner, coder]", "agents: [coder]")
	_, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: planner.GetSessionId()})
	wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
}

// A rotation with an overlap: sessions of the old credential go on, and end with it.
func TestRotationEndsSessions(t *testing.T) {
	v := newVault(t)
	old := v.open(bearer)
	v.rewrite("token_sha256: "+tokenDigest(bearer)+"\n", "token_sha256: "+tokenDigest("rotated")+"\n    previous: {token_sha256: "+tokenDigest(bearer)+
		", until: "+v.clock.Now().Add(10*time.Minute).UTC().Format(time.RFC3339)+"}\n")
	renew := func(opened *vaultv1.OpenSessionResponse) error {
		_, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: opened.GetSessionId()})
		return err
	}
	newer, again := v.open("rotated"), v.open(bearer)
	v.clock.advance(10*time.Minute - time.Second)
	for _, opened := range []*vaultv1.OpenSessionResponse{old, newer, again} {
		v.must(renew(opened))
	}
	v.clock.advance(time.Second)
	for _, opened := range []*vaultv1.OpenSessionResponse{old, again} {
		wantCode(t, renew(opened), callv1.Code_CODE_UNAUTHENTICATED)
	}
	v.must(renew(newer))
	_, err := v.sessions().OpenSession(t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bearer)})
	wantCode(t, err, callv1.Code_CODE_UNAUTHENTICATED)
}

// showConfig calls security_config.
func (v *vault) showConfig(opened *vaultv1.OpenSessionResponse, lower optionsv1.Tier) (*vaultv1.SecurityConfigResponse, *callv1.Outcome, error) {
	v.t.Helper()
	req := &vaultv1.SecurityConfigRequest{}
	if lower != 0 {
		req.TierCeilingOverride = &lower
	}
	var trailer metadata.MD
	resp, err := v.tools().SecurityConfig(withPermit(v.t.Context(), permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())), req, grpc.Trailer(&trailer))
	outcome := &callv1.Outcome{}
	if raw := trailer.Get(rpc.TrailerOutcome); len(raw) == 1 {
		v.must(proto.Unmarshal([]byte(raw[0]), outcome))
	}
	return resp, outcome, err
}

// A client that is let in no more is shown nothing, though its permit and its session last a moment longer.
func TestSecurityConfigOfAClientThatIsGone(t *testing.T) {
	v := newVault(t)
	opened := v.open(reader)
	v.revoke(reader)
	_, _, err := v.showConfig(opened, 0)
	wantCode(t, err, callv1.Code_CODE_DENIED)
}

func TestSecurityConfig(t *testing.T) {
	v := newVault(t)
	v.rule("tools.yaml", "tools:\n  stop_service: {tier: DENIED}\n  start_service: {budget: {day: 3}}\n")
	v.rule("policy/private.cedar", `@id("a-rule-of-ours") @because("nobody's business") forbid (principal in Client::"other", action, resource);`)
	opened, another := v.open(bearer), v.open(bearer)
	resp, outcome, err := v.showConfig(opened, 0)
	v.must(err)
	decisions := map[string]string{}
	for _, rule := range resp.GetTools() {
		decisions[rule.GetTool()] = rule.GetDecision()
	}
	for tool, want := range map[string]string{"gpu_status": "runs", "switch_mode": "denied", "sleep_service": "asks", "stop_service": "denied", "start_service": "depends"} {
		if decisions[tool] != want {
			t.Errorf("%s %s, want %s", tool, decisions[tool], want)
		}
	}
	for _, tool := range contract.Tools() {
		if _, told := decisions[tool.Name]; told == (tool.Sink == optionsv1.Role_ROLE_EGRESS) {
			t.Errorf("%s of a host without egress: told %t", tool.Name, told)
		}
	}
	if resp.GetTierCeiling() != optionsv1.Tier_TIER_WRITE || resp.GetChannel() != "cli" ||
		!strings.Contains(resp.GetBoundary(), "Only a human changes these rules") || len(outcome.GetOverrides()) != 0 {
		t.Errorf("%v, %v", resp, outcome)
	}
	for _, secret := range []string{"a-rule-of-ours", "nobody's business", "other", v.security, "private.cedar", "sha256"} {
		if strings.Contains(resp.String(), secret) {
			t.Errorf("it shows %q: %v", secret, resp)
		}
	}
	// It can be lowered, and never raised again; another session of the client is as it was.
	_, _, err = v.showConfig(opened, optionsv1.Tier_TIER_DESTRUCTIVE)
	wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT)
	resp, outcome, err = v.showConfig(opened, optionsv1.Tier_TIER_READ)
	v.must(err)
	if resp.GetTierCeiling() != optionsv1.Tier_TIER_READ || len(outcome.GetWarnings()) != 1 {
		t.Errorf("%v, %v", resp, outcome)
	}
	if diff := cmp.Diff([]string{"tier_ceiling=READ"}, outcome.GetOverrides()); diff != "" {
		t.Errorf("overrides (-want +got):\n%s", diff)
	}
	for _, setting := range resp.GetSettings() {
		if setting.GetName() == "tier_ceiling" && (setting.GetValue() != "READ" || setting.GetLayer() != "session") {
			t.Errorf("%v", setting)
		}
	}
	for session, want := range map[*vaultv1.OpenSessionResponse]optionsv1.Tier{opened: optionsv1.Tier_TIER_READ, another: optionsv1.Tier_TIER_WRITE} {
		renewed, err := v.sessions().RenewPermits(t.Context(), &vaultv1.RenewPermitsRequest{SessionId: session.GetSessionId()})
		if v.must(err); renewed.GetTierCeiling() != want {
			t.Errorf("a renewal tells %v, want %v", renewed.GetTierCeiling(), want)
		}
	}
	if got := v.ask(opened.GetSessionId(), "a"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED || got.GetRule() != "above-the-ceiling" {
		t.Errorf("above the lowered ceiling: %v", got)
	}
	_, _, err = v.showConfig(opened, optionsv1.Tier_TIER_WRITE)
	wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT)
	if got := v.ask(another.GetSessionId(), "a"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING {
		t.Errorf("another session: %v", got)
	}
	records := v.audit.of(auditv1.Kind_KIND_OVERRIDE)
	if len(records) != 1 || records[0].GetBody().GetDetails()["override"] != "tier_ceiling=READ" || records[0].GetBody().GetPersistent() {
		t.Errorf("recorded as %v", records)
	}
	_, _, err = v.showConfig(&vaultv1.OpenSessionResponse{}, 0)
	wantCode(t, err, callv1.Code_CODE_DENIED)
}

// A desktop's tools are judged by the gate and by a human, whatever stands. There is none in the contract yet.
func TestDesktopTools(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	session, ok := v.server.Sessions.Live(opened.GetSession())
	if !ok {
		t.Fatal("no session")
	}
	click, _ := contract.Lookup("start_service")
	click.Name, click.Tags = "click", []string{"desktop:click"}
	service := &authorityService{Server: v.server}
	ask := func() (*vaultv1.AuthoriseResponse, error) {
		client, ok := v.server.Clients.Lookup(bound)
		if !ok {
			t.Fatal("no client")
		}
		raw := []byte(`{"service_id":"a"}`)
		decoded, err := click.Decode(raw)
		v.must(err)
		digest := operationDigest(raw)
		return service.decide(t.Context(), &asked{
			op: store.Operation{
				ID: grant.NewID(), Principal: bound, Session: session.Ref, Channel: client.Channel, KeyBound: true, ToolName: "click", ToolSource: "native",
				ToolDigest: click.DefinitionDigest[:], Arguments: raw, ArgumentsDigest: digest, Audience: v.ID(executor, "local").String(), Epoch: 1, Tier: click.Tier,
			},
			tool: click, arguments: decoded, opened: session, client: client, judge: v.server.judge(session, client),
		})
	}
	resp, err := ask()
	v.must(err)
	if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED || resp.GetRule() != "desktop-is-off" {
		t.Errorf("while it is off: %v", resp)
	}
	v.rule("security.yaml", "desktop: {allowed: true}\n")
	v.rule("policy/all.cedar", `permit (principal, action, resource);`)
	resp, err = ask()
	v.must(err)
	if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING {
		t.Errorf("a human is not asked: %v", resp)
	}
	_, err = ask()
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED) // 500 ms between two
	v.server.Desktop.Kill("")
	v.clock.advance(time.Second)
	resp, err = ask()
	v.must(err)
	if resp.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED || resp.GetRule() != decision.DesktopGate {
		t.Errorf("after the kill switch: %v", resp)
	}
}

// A tool that no human has named is never run unasked: not by a permit for everything, not in dangerous mode.
func TestUnknownToolsNeverRun(t *testing.T) {
	v := newVault(t)
	v.rule("policy/all.cedar", `permit (principal, action, resource);`)
	client, _ := v.server.Clients.Lookup(bound)
	j := v.server.judgeClient(client)
	j.Call.Dangerous = true
	for _, tier := range []optionsv1.Tier{optionsv1.Tier_TIER_READ, optionsv1.Tier_TIER_WRITE} {
		tool, _ := contract.Lookup("start_service")
		tool.Name, tool.Source, tool.Tier = "x", "mcp:y", tier
		if d := j.Decide(tool, []byte("{}"), usage.Counts{}); d.Verdict != policy.Ask {
			t.Errorf("%s: %v by %v", tier, d.Verdict, d.Rule)
		}
	}
	v.rule("tools.yaml", "tools:\n  mcp:y:x: {tier: WRITE}\n")
	j = v.server.judgeClient(client)
	tool, _ := contract.Lookup("start_service")
	tool.Name, tool.Source = "x", "mcp:y"
	if d := j.Decide(tool, []byte("{}"), usage.Counts{}); d.Verdict != policy.Run || d.Rule.File != "policy/all.cedar" {
		t.Errorf("named by a human: %v by %v", d.Verdict, d.Rule)
	}
}

// TestDangerousModeIsNotForServers: what another's server does asks in dangerous mode as it does outside, since its sink refuses it under
// one; the mode keeps its uses. What a human's file lets run unasked runs all the same, by that file.
func TestDangerousModeIsNotForServers(t *testing.T) {
	t.Cleanup(func() { _ = contract.Pin(nil) }) // no tools are always taken
	if err := contract.Pin([]contract.Definition{{
		Foreign: contract.Foreign{Server: "files", Name: "write_file", Check: func([]byte) error { return nil }}, Tier: optionsv1.Tier_TIER_WRITE,
	}}); err != nil {
		t.Fatal(err)
	}
	v := newReferring(t)
	opened := v.openBound(1)
	mode := v.mode(opened.GetSession(), bound)
	mode.Audience = v.ID(egress, "local").String()
	v.confirmed(mode)
	write := func(counter uint64) *vaultv1.AuthoriseResponse {
		resp, err := v.authority().Authorise(t.Context(), v.proved(opened, counter, "files__write_file", []byte("{}")))
		v.must(err)
		return resp
	}
	if got := write(10); got.GetDecision() != waits || got.GetGrant() != nil || got.GetDangerousUntil() == nil {
		t.Errorf("in dangerous mode: %v", got)
	}
	list, err := v.standing().ListStanding(t.Context(), &vaultv1.ListStandingRequest{})
	v.must(err)
	if all := list.GetStanding(); len(all) != 1 || all[0].GetUsesLeft() != 20 {
		t.Errorf("of the mode there is left %v", all)
	}
	explained, err := v.policies().ExplainCall(t.Context(), &vaultv1.ExplainCallRequest{Client: bound, Tool: "files__write_file", Dangerous: true})
	v.must(err)
	if explained.GetDecision() != "asks" {
		t.Errorf("explained as %v", explained)
	}
	v.rule("policy/files.cedar", `permit (principal, action == Action::"callWithoutApproval:mcp:files:write_file", resource);`)
	got := write(11)
	if got.GetDecision() != granted {
		t.Fatalf("let run by a file: %v", got)
	}
	g, err := grant.Verify(got.GetGrant(), v.Trust, v.clock.Now())
	v.must(err)
	if g.GetDangerous() || len(g.GetStatements()) != 0 {
		t.Errorf("its grant is %v", g)
	}
}

// Dangerous mode lifts the question and nothing else: what is denied stays denied, a limit stays a limit, and looking is looking.
func TestDangerousModeLiftsTheQuestionAlone(t *testing.T) {
	v := newVault(t)
	v.rule("tools.yaml", "tools:\n  stop_service: {tier: DENIED}\n  sleep_service: {session_limit: 1}\n")
	opened := v.openBound(1)
	watched := make(chan *vaultv1.WatchSessionsResponse, 8)
	stream, err := v.sessions().WatchSessions(t.Context(), &vaultv1.WatchSessionsRequest{})
	v.must(err)
	go func() {
		for {
			change, err := stream.Recv()
			if err != nil {
				close(watched)
				return
			}
			watched <- change
		}
	}()
	if got := v.call(opened, 10, "start_service", "a"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_PENDING || got.GetDangerousUntil() != nil {
		t.Fatalf("before: %v", got)
	}
	mode := v.dangerous(opened.GetSession())
	if change := <-watched; change.GetSession() != opened.GetSession() || !change.GetDangerousUntil().AsTime().Equal(mode.GetExpiresAt().AsTime()) {
		t.Errorf("the gateway is told %v", change)
	}
	for i, c := range []struct {
		tool      string
		decision  vaultv1.AuthoriseResponse_Decision
		dangerous bool
	}{
		{"stop_service", vaultv1.AuthoriseResponse_DECISION_DENIED, false},
		{"service_info", vaultv1.AuthoriseResponse_DECISION_GRANTED, false},
		{"sleep_service", vaultv1.AuthoriseResponse_DECISION_GRANTED, true},
	} {
		got := v.call(opened, uint64(20+i), c.tool, "b")
		if got.GetDecision() != c.decision || !got.GetDangerousUntil().AsTime().Equal(mode.GetExpiresAt().AsTime()) {
			t.Errorf("%s: %v", c.tool, got)
		}
		if got.GetGrant() == nil {
			continue
		}
		g, err := grant.Verify(got.GetGrant(), v.Trust, v.clock.Now())
		v.must(err)
		if g.GetDangerous() != c.dangerous || (len(g.GetStatements()) == 2) != c.dangerous {
			t.Errorf("%s: grant %v", c.tool, g)
		}
	}
	_, err = v.authority().Authorise(t.Context(), v.proved(opened, 30, "sleep_service", arguments("c")))
	wantCode(t, err, callv1.Code_CODE_RATE_LIMITED)
	shown, _, err := v.showConfig(opened, 0)
	v.must(err)
	if int64(shown.GetDangerousUntil()) != mode.GetExpiresAt().GetSeconds() {
		t.Errorf("its session is shown %d", shown.GetDangerousUntil())
	}
	denied := v.audit.of(auditv1.Kind_KIND_DENIED)
	if r := denied[0]; r.GetTool() != "stop_service" || !r.GetBody().GetDangerous() {
		t.Errorf("a denial in dangerous mode is recorded as %v", r)
	}
	_, err = v.sessions().CloseSession(t.Context(), &vaultv1.CloseSessionRequest{SessionId: opened.GetSessionId()})
	v.must(err)
	deadline := time.After(5 * time.Second)
	for ended := false; !ended; {
		select {
		case change := <-watched:
			ended = change.GetEnded()
		case <-deadline:
			t.Fatal("the gateway is not told of the end")
		}
	}
}

// What a human may grant is bounded by the files that humans own, as they are now.
func TestGrantsAreBoundedByTheConfiguration(t *testing.T) {
	v := newVault(t)
	opened := v.openBound(1)
	v.rule("security.yaml", "dangerous: {allowed: false}\napprovals: {scope_max_uses: 2}\n")
	_, err := v.standing().ProposeDangerous(t.Context(), &vaultv1.ProposeDangerousRequest{
		Statement: v.sign(v.mode(opened.GetSession(), bound)),
	})
	wantCode(t, err, callv1.Code_CODE_DENIED)
	for uses, code := range map[int]callv1.Code{2: callv1.Code_CODE_UNSPECIFIED, 3: callv1.Code_CODE_DENIED} {
		_, err := v.standing().GrantScope(t.Context(), &vaultv1.GrantScopeRequest{Statement: v.sign(v.scope(opened.GetSession(), bound, uses))})
		wantCode(t, err, code)
	}
	shown, _, err := v.showConfig(opened, 0)
	v.must(err)
	if len(shown.GetAllowances()) != 1 || shown.GetAllowances()[0].GetUsesLeft() != 2 {
		t.Errorf("its session is shown %v", shown.GetAllowances())
	}
}

// A human approved it, and then a human denied the tool in a file: the later word counts, for what has not begun.
func TestApprovedAndThenDenied(t *testing.T) {
	v := newVault(t)
	opened := v.open(bearer)
	first, second := v.ask(opened.GetSessionId(), "a").GetOperationId(), v.ask(opened.GetSessionId(), "b").GetOperationId()
	v.approve(first)
	v.approve(second)
	begun, err := v.wait(opened, first, time.Second)
	v.must(err)
	v.must(v.redeem(begun.GetGrant()))
	v.rule("tools.yaml", "tools:\n  start_service: {tier: DENIED}\n")
	_, err = v.wait(opened, second, time.Second)
	wantCode(t, err, callv1.Code_CODE_DENIED)
	if again, err := v.wait(opened, first, time.Second); err != nil || again.GetGrant() == nil {
		t.Errorf("what has begun: %v, %v", again, err)
	}
	if got := v.ask(opened.GetSessionId(), "b"); got.GetDecision() != vaultv1.AuthoriseResponse_DECISION_DENIED {
		t.Errorf("asked again: %v", got)
	}
}
