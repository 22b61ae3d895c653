package sink

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink/unattended"
	"durward.internal/services/platform/statement"
)

// entries is a Subjects whose one entry can change.
type entries struct {
	mu    sync.Mutex
	entry string
}

func (e *entries) Subject(context.Context, contract.Tool, proto.Message) (*callv1.Subject, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &callv1.Subject{Label: "service alpha", Entry: []byte(e.entry)}, nil
}

func (e *entries) set(entry string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.entry = entry
}

// clerk is a Redeemer that notes what it is told.
type clerk struct {
	willing
	mu      sync.Mutex
	settled map[string]bool
	// checked counts how often it was asked whether a grant stands, and answer is what it says to that.
	checked int
	answer  error
}

func (c *clerk) CheckGrant(context.Context, *vaultv1.CheckGrantRequest, ...grpc.CallOption) (*vaultv1.CheckGrantResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checked++
	return &vaultv1.CheckGrantResponse{}, c.answer
}

func (c *clerk) CheckPermit(context.Context, *vaultv1.CheckPermitRequest, ...grpc.CallOption) (*vaultv1.CheckPermitResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checked++
	return &vaultv1.CheckPermitResponse{}, c.answer
}

func (c *clerk) Settle(_ context.Context, r *vaultv1.SettleRequest, _ ...grpc.CallOption) (*vaultv1.SettleResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settled[r.GetOperationId()] = r.GetOk()
	return &vaultv1.SettleResponse{}, nil
}

// stand is a sink with one service, and everything that signs for it.
type stand struct {
	*Authority
	t       testing.TB
	kit     *platformtest.Kit
	log     *notebook
	subject *entries
	clerk   *clerk
	effects int
	// handle is what the tool's handler does before it confirms.
	handle func(ctx context.Context)
	// late: the handler confirms first, and its effect begins when handle has returned.
	late bool
}

func newStand(t testing.TB, configure ...func(*Config)) *stand {
	t.Helper()
	s := &stand{t: t, kit: platformtest.New(t), subject: &entries{entry: `{"id":"alpha"}`}, clerk: &clerk{settled: map[string]bool{}}}
	configure = append(configure, func(c *Config) { c.Vault = s.clerk })
	s.Authority, _, s.log = newAuthority(t, s.kit, configure...)
	return s
}

// paper is a grant and its statement before they are signed.
type paper struct {
	grant     *callv1.Grant
	statement *statement.Statement
	// confirm makes the second statement of dangerous mode of the first; nil: there is none.
	confirm func(first *statement.Statement, signed []byte) *statement.Statement
}

func digestText(text string) string {
	d := sha256.Sum256([]byte(text))
	return canonical.FormatDigest(d[:])
}

// party begins a statement for the paper's session.
func (p *paper) party(kind statement.Kind) *statement.Statement {
	now := time.Now()
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: kind, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(now.Add(-time.Second)), NotBefore: statement.FormatTime(now.Add(-time.Second)),
		ExpiresAt: statement.FormatTime(now.Add(10 * time.Minute)), Epoch: p.grant.GetEpoch(), Audience: p.grant.GetAudience(),
		Principal: p.grant.GetPrincipal(), Session: p.grant.GetSession(), Channel: statement.ChannelName(p.grant.GetChannel()),
	}
}

// grantFor returns a genuine grant that names no subject and has no statement.
func (s *stand) grantFor(name string, request proto.Message) *paper {
	s.t.Helper()
	tool, ok := contract.Lookup(name)
	if !ok {
		s.t.Fatalf("no tool %s", name)
	}
	return s.grantForTool(tool, request)
}

func (s *stand) grantForTool(tool contract.Tool, request proto.Message) *paper {
	s.t.Helper()
	arguments, err := contract.Canonical(request)
	must(s.t, err)
	digest := contract.Digest(arguments)
	now := time.Now()
	return &paper{grant: &callv1.Grant{
		Version: grant.Version, Id: grant.NewID(), OperationId: grant.NewID(), Use: 1, Principal: "claude", Session: "s-test",
		Channel: callv1.Channel_CHANNEL_CLI, Tool: tool.Ref(), ArgumentsDigest: digest[:], Audience: s.self, PolicyDigest: make([]byte, 32),
		Epoch: s.Control().Epoch, IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Minute)),
	}}
}

// approved is grantFor with an approval of the one call.
func (s *stand) approved(name string, request proto.Message) *paper {
	s.t.Helper()
	p := s.grantFor(name, request)
	tool, _ := contract.Lookup(name)
	arguments, err := contract.Canonical(request)
	must(s.t, err)
	subject := sha256.Sum256([]byte(s.subject.entry))
	p.grant.SubjectDigest = subject[:]
	ref := statement.ToolOf(p.grant.GetTool())
	p.statement = p.party(statement.KindApprove)
	p.statement.Operation, p.statement.Tool, p.statement.Tier, p.statement.Uses = p.grant.GetOperationId(), &ref, contract.TierName(tool.Tier), 1
	p.statement.Arguments, p.statement.ArgumentsDigest = arguments, canonical.FormatDigest(p.grant.GetArgumentsDigest())
	p.statement.Target, p.statement.SubjectDigest = "service alpha", canonical.FormatDigest(subject[:])
	return p
}

// scoped is grantFor under a scope for the service alpha as it is now.
func (s *stand) scoped(name string, request proto.Message, uses int) *paper {
	s.t.Helper()
	p := s.grantFor(name, request)
	p.statement = p.party(statement.KindScope)
	p.statement.Tools, p.statement.Uses = []statement.Tool{statement.ToolOf(p.grant.GetTool())}, uses
	p.statement.Pinned = []statement.Pin{{Pointer: "/service_id", Value: json.RawMessage(`"alpha"`)}}
	p.statement.SubjectDigests = []string{digestText(s.subject.entry)}
	return p
}

// dangerous is grantFor in dangerous mode.
func (s *stand) dangerous(name string, request proto.Message) *paper {
	s.t.Helper()
	p := s.grantFor(name, request)
	p.grant.Dangerous, p.statement = true, p.mode()
	p.confirm = confirmation
	return p
}

// mode is the first statement of dangerous mode, for 20 changes.
func (p *paper) mode() *statement.Statement {
	st := p.party(statement.KindDangerous)
	st.Version, st.Uses = statement.VersionConfirmed, 20
	return st
}

// confirmation is made as soon after the first statement as may be.
func confirmation(first *statement.Statement, signed []byte) *statement.Statement {
	made, err := time.Parse(time.RFC3339, first.IssuedAt)
	if err != nil {
		panic(err)
	}
	return statement.Confirmation(first, signed, grant.NewID(), made.Add(statement.ConfirmAfter))
}

// call signs the paper and calls the tool with it.
func (s *stand) call(p *paper, request proto.Message) error {
	s.t.Helper()
	if p.statement != nil {
		h, err := statement.Sign(p.statement, s.kit.OperatorSigner)
		must(s.t, err)
		p.grant.Statements = append(p.grant.Statements, h)
		if p.confirm != nil {
			second, err := statement.Sign(p.confirm(p.statement, h.GetStatement()), s.kit.OperatorSigner)
			must(s.t, err)
			p.grant.Statements = append(p.grant.Statements, second)
		}
	}
	signed, err := grant.Sign(s.kit.GrantKey, p.grant)
	must(s.t, err)
	raw, err := proto.Marshal(signed)
	must(s.t, err)
	var method string
	for full, t := range s.tools {
		if t.Name == p.grant.GetTool().GetName() {
			method = full
		}
	}
	ctx := metadata.NewIncomingContext(rpc.WithCaller(s.t.Context(), s.kit.ID(optionsv1.Role_ROLE_GATEWAY, "main")), metadata.Pairs(rpc.MetadataGrant, string(raw)))
	tool := s.tools[method]
	_, err = s.Unary(s.subject)(ctx, request, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
		confirm := Confirm
		if s.late {
			if err := Confirm(ctx, func() {}); err != nil {
				return nil, err
			}
			confirm = Late
		}
		if s.handle != nil {
			s.handle(ctx)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if tool.Tier == optionsv1.Tier_TIER_READ {
			s.effects++
			return tool.NewResponse(), nil
		}
		if err := confirm(ctx, func() { s.effects++ }); err != nil {
			return nil, err
		}
		return tool.NewResponse(), nil
	})
	s.Wait(s.t.Context())
	return err
}

func (s *stand) last() *auditv1.Record {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.log.records[len(s.log.records)-1]
}

// refused expects that the call had no effect, was refused so, and is in the log with its cause.
func (s *stand) refused(err error, code callv1.Code, cause string) {
	s.t.Helper()
	if !fault.Is(err, code) {
		s.t.Errorf("error is %v, want %s", err, code)
	}
	if s.effects != 0 {
		s.t.Errorf("%d effects, want none", s.effects)
	}
	if r := s.last(); r.GetKind() != auditv1.Kind_KIND_SINK_REFUSED || !strings.Contains(r.GetBody().GetReason(), cause) {
		s.t.Errorf("last record is %s %q, want a refusal because of %q", r.GetKind(), r.GetBody().GetReason(), cause)
	}
}

func startAlpha() proto.Message {
	return &executorv1.StartServiceRequest{ServiceId: proto.String("alpha")}
}

// TestStandingStatementsGoNoFurther: what a hostile vault or gateway could make of a human's standing statement.
func TestStandingStatementsGoNoFurther(t *testing.T) {
	for _, tc := range []struct {
		name  string
		paper func(s *stand) *paper
		// before changes the world after the paper was made.
		before  func(s *stand)
		request proto.Message
		code    callv1.Code
		cause   string
	}{
		{name: "scope, another definition", paper: func(s *stand) *paper { return s.scoped("start_service", startAlpha(), 5) },
			before: func(s *stand) { s.subject.set(`{"id":"alpha","argv":["rm"]}`) }, code: callv1.Code_CODE_CONFLICT, cause: "subject"},
		{name: "scope, the grant names another subject", paper: func(s *stand) *paper {
			p := s.scoped("start_service", startAlpha(), 5)
			p.grant.SubjectDigest = make([]byte, 32)
			return p
		}, code: callv1.Code_CODE_CONFLICT, cause: "subject"},
		{name: "scope, another argument", paper: func(s *stand) *paper {
			return s.scoped("start_service", &executorv1.StartServiceRequest{ServiceId: proto.String("beta")}, 5)
		}, request: &executorv1.StartServiceRequest{ServiceId: proto.String("beta")}, code: callv1.Code_CODE_DENIED, cause: "pinned"},
		{name: "scope, another tool", paper: func(s *stand) *paper {
			p := s.scoped("start_service", startAlpha(), 5)
			other, _ := contract.Lookup("stop_service")
			p.statement.Tools = []statement.Tool{statement.ToolOf(other.Ref())}
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "tool"},
		{name: "scope, another session", paper: func(s *stand) *paper {
			p := s.scoped("start_service", startAlpha(), 5)
			p.statement.Session = "s-other"
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "session"},
		{name: "scope of an older epoch", paper: func(s *stand) *paper {
			p := s.scoped("start_service", startAlpha(), 5)
			p.grant.Epoch++
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "epoch"},
		{name: "scope, the grant says dangerous", paper: func(s *stand) *paper {
			p := s.scoped("start_service", startAlpha(), 5)
			p.grant.Dangerous = true
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "dangerous mode"},
		{name: "approval without a subject", paper: func(s *stand) *paper {
			p := s.approved("start_service", startAlpha())
			p.grant.SubjectDigest = nil
			return p
		}, code: callv1.Code_CODE_CONFLICT, cause: "subject"},
		{name: "approval, the grant says dangerous", paper: func(s *stand) *paper {
			p := s.approved("start_service", startAlpha())
			p.grant.Dangerous = true
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "dangerous mode"},
		{name: "dangerous mode, and the grant does not say so", paper: func(s *stand) *paper {
			p := s.dangerous("start_service", startAlpha())
			p.grant.Dangerous = false
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "mode"},
		{name: "dangerous mode over messaging", paper: func(s *stand) *paper {
			p := s.dangerous("start_service", startAlpha()) // no statement can be made for that channel
			p.grant.Channel = callv1.Channel_CHANNEL_MESSAGING
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "channel"},
		{name: "dangerous without a statement", paper: func(s *stand) *paper {
			p := s.dangerous("start_service", startAlpha())
			p.statement = nil
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "no human"},
		{name: "dangerous mode of another session", paper: func(s *stand) *paper {
			p := s.dangerous("start_service", startAlpha())
			p.statement.Session = "s-other"
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "session"},
		{name: "dangerous mode of another sink", paper: func(s *stand) *paper {
			p := s.dangerous("start_service", startAlpha())
			p.statement.Audience = "spiffe://durward.local/egress/main"
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "audience"},
		{name: "dangerous mode of a messaging client", paper: func(s *stand) *paper {
			p := s.dangerous("start_service", startAlpha())
			p.grant.Channel = callv1.Channel_CHANNEL_MESSAGING
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "channel"},
		{name: "dangerous mode that has ended", paper: func(s *stand) *paper {
			p := s.dangerous("start_service", startAlpha())
			p.statement.IssuedAt = statement.FormatTime(time.Now().Add(-time.Hour))
			p.statement.NotBefore, p.statement.ExpiresAt = p.statement.IssuedAt, statement.FormatTime(time.Now().Add(-6*time.Minute))
			return p
		}, code: callv1.Code_CODE_EXPIRED, cause: "time"},
		{name: "dangerous mode for a READ", paper: func(s *stand) *paper {
			return s.dangerous("service_logs", &executorv1.ServiceLogsRequest{ServiceId: proto.String("alpha")})
		}, request: &executorv1.ServiceLogsRequest{ServiceId: proto.String("alpha")}, code: callv1.Code_CODE_DENIED, cause: "dangerous mode"},
		{name: "unattended, the grant says dangerous", paper: func(s *stand) *paper {
			must(s.t, s.SetUnattended([]unattended.Entry{{Tool: "start_service"}}))
			p := s.grantFor("start_service", startAlpha())
			p.grant.Dangerous = true
			return p
		}, code: callv1.Code_CODE_DENIED, cause: "dangerous mode"},
		{name: "a read that a human approved for another service", paper: func(s *stand) *paper {
			p := s.approved("service_logs", &executorv1.ServiceLogsRequest{ServiceId: proto.String("alpha")})
			p.statement.Operation = grant.NewID()
			return p
		}, request: &executorv1.ServiceLogsRequest{ServiceId: proto.String("alpha")}, code: callv1.Code_CODE_DENIED, cause: "operation"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStand(t)
			p := tc.paper(s)
			if tc.before != nil {
				tc.before(s)
			}
			request := tc.request
			if request == nil {
				request = startAlpha()
			}
			s.refused(s.call(p, request), tc.code, tc.cause)
		})
	}
}

// TestDangerousModeStopsShortOfTheDesktopAndTheUnknown: neither can be reached with the contract's own tools, so they are made here.
func TestDangerousModeStopsShortOfTheDesktopAndTheUnknown(t *testing.T) {
	for name, spoil := range map[string]func(*contract.Tool){
		"desktop control": func(t *contract.Tool) { t.Tags = []string{"desktop:click"} },
		"a strange tool":  func(t *contract.Tool) { t.Source = "mcp:files" },
		"no tier":         func(t *contract.Tool) { t.Tier = optionsv1.Tier_TIER_UNSPECIFIED },
	} {
		s := newStand(t)
		tool, _ := contract.Lookup("start_service")
		spoil(&tool)
		s.tools[tool.FullMethod] = tool
		p := s.grantForTool(tool, startAlpha())
		p.grant.Dangerous, p.statement, p.confirm = true, p.mode(), confirmation
		s.refused(s.call(p, startAlpha()), callv1.Code_CODE_DENIED, errBeyond.Error())
		must(t, s.SetUnattended([]unattended.Entry{{Tool: "start_service"}}))
		if c := (&call{tool: tool}); desktop.Controls(tool) && s.unattended(c, []byte("{}")) {
			t.Errorf("%s runs unattended", name)
		}
	}
}

// TestDesktopControlIsJudgedAtTheSink: with a tool made for it, since none is native. The gate's own rules are tested in its package.
func TestDesktopControlIsJudgedAtTheSink(t *testing.T) {
	on := func(c *Config) { c.DesktopAllowed = func() bool { return true } }
	tagged := func(s *stand, tag string) contract.Tool {
		tool, _ := contract.Lookup("start_service")
		tool.Tags = []string{tag}
		s.tools[tool.FullMethod] = tool
		return tool
	}
	t.Run("off", func(t *testing.T) {
		s := newStand(t)
		tagged(s, "desktop:click")
		s.refused(s.call(s.approved("start_service", startAlpha()), startAlpha()), callv1.Code_CODE_DENIED, "off")
	})
	t.Run("a click under a scope", func(t *testing.T) {
		s := newStand(t, on)
		tagged(s, "desktop:click")
		s.refused(s.call(s.scoped("start_service", startAlpha(), 5), startAlpha()), callv1.Code_CODE_DENIED, errEach.Error())
	})
	t.Run("two clicks at once", func(t *testing.T) {
		s := newStand(t, on)
		tagged(s, "desktop:click")
		if err := s.call(s.approved("start_service", startAlpha()), startAlpha()); err != nil || s.effects != 1 {
			t.Fatalf("an approved click: %v, %d effects", err, s.effects)
		}
		if err := s.call(s.approved("start_service", startAlpha()), startAlpha()); !fault.Is(err, callv1.Code_CODE_RATE_LIMITED) || s.effects != 1 {
			t.Errorf("the second click: %v, %d effects", err, s.effects)
		}
	})
	t.Run("after a halt", func(t *testing.T) {
		s := newStand(t, on)
		tagged(s, "desktop:pointer")
		must(t, s.call(s.approved("start_service", startAlpha()), startAlpha()))
		if _, err := s.Halt(t.Context(), "panic", 0); err != nil {
			t.Fatal(err)
		}
		s.control.Store(&Control{Epoch: s.Control().Epoch})
		if err := s.call(s.approved("start_service", startAlpha()), startAlpha()); !fault.Is(err, callv1.Code_CODE_DENIED) || s.effects != 1 {
			t.Errorf("the pointer after a halt: %v, %d effects", err, s.effects)
		}
	})
	t.Run("a read by permit", func(t *testing.T) {
		s := newStand(t, on)
		c := &call{tool: tagged(s, "desktop:screenshot"), who: who{session: "s-test", channel: callv1.Channel_CHANNEL_CLI}}
		s.refused(s.judgeDesktop(t.Context(), c), callv1.Code_CODE_DENIED, errEach.Error())
	})
}

func TestAScopeIsUsedAsOftenAsItSays(t *testing.T) {
	s := newStand(t)
	first := s.scoped("start_service", startAlpha(), 2)
	evidence := first.statement
	for use := range 3 {
		p := s.grantFor("start_service", startAlpha())
		p.statement = evidence
		err := s.call(p, startAlpha())
		if (err != nil) != (use == 2) {
			t.Errorf("use %d: %v", use+1, err)
		}
		if use == 2 && !fault.Is(err, callv1.Code_CODE_ALREADY_SPENT) {
			t.Errorf("the third of two uses: %v", err)
		}
	}
	if s.effects != 2 {
		t.Errorf("%d effects, want 2", s.effects)
	}
}

// TestStandingCallsAreTold: what a session may do is in the records by the statement's id and kind, dangerous or not.
func TestStandingCallsAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		paper     func(s *stand) *paper
		kind      string
		dangerous bool
	}{
		"scope": {func(s *stand) *paper { return s.scoped("start_service", startAlpha(), 5) }, "scope", false},
		"scope for whatever the catalogue has": {func(s *stand) *paper {
			p := s.scoped("start_service", startAlpha(), 5)
			p.statement.SubjectDigests, p.statement.AnySubject = nil, true
			return p
		}, "scope", false},
		"dangerous mode": {func(s *stand) *paper { return s.dangerous("start_service", startAlpha()) }, "dangerous", true},
		"approval":       {func(s *stand) *paper { return s.approved("start_service", startAlpha()) }, "approve", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			p := tc.paper(s)
			want := sha256.Sum256([]byte(s.subject.entry))
			s.handle = func(ctx context.Context) {
				if got := Subject(ctx); !cmp.Equal(got, want[:]) {
					t.Errorf("the handler is told of subject %x, want %x", got, want)
				}
			}
			must(t, s.call(p, startAlpha()))
			for _, r := range s.log.records {
				b := r.GetBody()
				if b.GetDangerous() != tc.dangerous || b.GetDetails()["statement_kind"] != tc.kind || b.GetDetails()["statement_id"] != p.statement.ID || !b.GetConfirmed() {
					t.Errorf("%s is recorded as %v", r.GetKind(), b)
				}
			}
			if len(s.log.records) != 2 || s.effects != 1 {
				t.Errorf("%d records, %d effects", len(s.log.records), s.effects)
			}
		})
	}
}

// TestStandingAuthorityIsLookedAtAgain: what was right when the call came is not enough when it acts.
func TestStandingAuthorityIsLookedAtAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		paper     func(s *stand) *paper
		meanwhile func(s *stand)
		code      callv1.Code
	}{
		"the service changed": {func(s *stand) *paper { return s.scoped("start_service", startAlpha(), 5) },
			func(s *stand) { s.subject.set(`{"id":"other"}`) }, callv1.Code_CODE_CONFLICT},
		"the operator's key is gone": {func(s *stand) *paper { return s.dangerous("start_service", startAlpha()) },
			func(s *stand) {
				s.kit.WriteTrust("allowed_signers", []byte("# nobody\n"))
				if err := s.kit.Trust.Reload(); err != nil {
					s.t.Error(err)
				}
			}, callv1.Code_CODE_DENIED},
		"halted": {func(s *stand) *paper { return s.dangerous("start_service", startAlpha()) },
			func(s *stand) {
				if _, err := s.Halt(s.t.Context(), "panic", 0); err != nil {
					s.t.Error(err)
				}
			}, callv1.Code_CODE_HALTED},
		"no longer unattended": {func(s *stand) *paper {
			must(s.t, s.SetUnattended([]unattended.Entry{{Tool: "start_service"}}))
			return s.grantFor("start_service", startAlpha())
		}, func(s *stand) {
			if err := s.SetUnattended(nil); err != nil {
				s.t.Error(err)
			}
		}, callv1.Code_CODE_DENIED},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			p := tc.paper(s)
			s.handle = func(context.Context) { tc.meanwhile(s) }
			if err := s.call(p, startAlpha()); !fault.Is(err, tc.code) || s.effects != 0 {
				t.Errorf("%v, %d effects", err, s.effects)
			}
		})
	}
}

// TestACallThatWaitedIsAskedAbout: what a human revoked, or took out, while a call without an approval of its own waited for its
// turn has no effect any more, nor has it where the vault does not answer; the vault hears that it was not done.
func TestACallThatWaitedIsAskedAbout(t *testing.T) {
	revoked := fault.New(callv1.Code_CODE_EXPIRED, "it was revoked")
	listed := func(s *stand) *paper {
		must(s.t, s.SetUnattended([]unattended.Entry{{Tool: "start_service"}}))
		return s.grantFor("start_service", startAlpha())
	}
	mode := func(s *stand) *paper { return s.dangerous("start_service", startAlpha()) }
	scope := func(s *stand) *paper { return s.scoped("start_service", startAlpha(), 5) }
	once := func(s *stand) *paper { return s.approved("start_service", startAlpha()) }
	for name, tc := range map[string]struct {
		paper  func(s *stand) *paper
		waited time.Duration
		answer error
		code   callv1.Code // 0: it has its effect
		asked  int
	}{
		"dangerous mode, revoked":      {mode, 2 * time.Second, revoked, callv1.Code_CODE_EXPIRED, 1},
		"a scope, revoked":             {scope, 2 * time.Second, revoked, callv1.Code_CODE_EXPIRED, 1},
		"unattended, the client gone":  {listed, 2 * time.Second, revoked, callv1.Code_CODE_EXPIRED, 1},
		"halted":                       {mode, 2 * time.Second, fault.New(callv1.Code_CODE_HALTED, "halted"), callv1.Code_CODE_HALTED, 1},
		"another sink's":               {mode, 2 * time.Second, fault.New(callv1.Code_CODE_DENIED, "not yours"), callv1.Code_CODE_DENIED, 1},
		"no answer":                    {mode, 2 * time.Second, context.DeadlineExceeded, callv1.Code_CODE_UNAVAILABLE, 1},
		"a vault that cannot be asked": {scope, 2 * time.Second, status.Error(codes.Unimplemented, "unknown service"), callv1.Code_CODE_UNAVAILABLE, 1},
		"a vault in trouble":           {listed, 2 * time.Second, fault.New(callv1.Code_CODE_INTERNAL, "x"), callv1.Code_CODE_UNAVAILABLE, 1},
		"a clock that went back":       {mode, -time.Second, revoked, callv1.Code_CODE_EXPIRED, 1},
		"it stands":                    {mode, 2 * time.Second, nil, 0, 1},
		"hardly a wait":                {mode, time.Second, revoked, 0, 0},
		"a human approved this call":   {once, time.Minute, revoked, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var s *stand
			var waited time.Duration
			began := time.Now()
			s = newStand(t, func(c *Config) { c.Now = func() time.Time { return began.Add(waited) } })
			s.clerk.answer = tc.answer
			p := tc.paper(s)
			s.handle = func(context.Context) { waited = tc.waited }
			err := s.call(p, startAlpha())
			s.clerk.mu.Lock()
			checked := s.clerk.checked
			s.clerk.mu.Unlock()
			if checked != tc.asked {
				t.Errorf("asked %d times", checked)
			}
			if tc.code == 0 {
				if err != nil || s.effects != 1 {
					t.Errorf("%v, %d effects", err, s.effects)
				}
				return
			}
			s.refused(err, tc.code, "waited for its turn")
			entry := s.cfg.Store.(*memory).entries[spendKey(p.grant)]
			if entry == nil || entry.State != StateNotActed || entry.OK {
				t.Errorf("kept as %v: the vault would not hear that nothing was done", entry)
			}
			select {
			case <-s.nudge:
			default:
				t.Error("nobody is told to tell the vault")
			}
		})
	}
}

// TestAnEntryEndsWhileACallWaits: what waits past the end of its entry is not done.
func TestAnEntryEndsWhileACallWaits(t *testing.T) {
	var waited time.Duration
	began := time.Now()
	s := newStand(t, func(c *Config) {
		c.Now = func() time.Time { return began.Add(waited) }
		c.Unattended = []unattended.Entry{{Tool: "start_service", Until: began.Add(10 * time.Second)}}
	})
	s.handle = func(context.Context) { waited = 10 * time.Second }
	s.refused(s.call(s.grantFor("start_service", startAlpha()), startAlpha()), callv1.Code_CODE_DENIED, "unattended changed or ended")
}

// TestAnApprovedReadIsSettled: where policy has a human asked for a READ, the vault keeps an operation of it, and hears how it ended.
func TestAnApprovedReadIsSettled(t *testing.T) {
	s := newStand(t)
	request := &executorv1.ServiceLogsRequest{ServiceId: proto.String("alpha")}
	p := s.approved("service_logs", request)
	must(t, s.call(p, request))
	if ok, told := s.clerk.settled[p.grant.GetOperationId()]; !ok || !told {
		t.Error("the vault was not told")
	}
	if b := s.last().GetBody(); !b.GetConfirmed() || b.GetDetails()["statement_kind"] != "approve" {
		t.Errorf("recorded as %v", b)
	}
	plain := s.grantFor("service_logs", request)
	must(t, s.call(plain, request))
	if _, told := s.clerk.settled[plain.grant.GetOperationId()]; told {
		t.Error("the vault was told of a read that it does not keep")
	}
}

func TestOverridesAreTold(t *testing.T) {
	s := newStand(t)
	s.handle = func(ctx context.Context) { Override(ctx, "margin_mib", "256") }
	must(t, s.call(s.approved("start_service", startAlpha()), startAlpha()))
	if got := s.last().GetBody().GetDetails()["overrides"]; got != "margin_mib=256" {
		t.Errorf("the record says %q", got)
	}
	var n notes
	Override(context.WithValue(t.Context(), notesKey{}, &n), "margin_mib", "256\x1b[2J")
	if diff := cmp.Diff([]string{"margin_mib=256"}, n.overrides); diff != "" || len(n.warnings) != 1 {
		t.Errorf("overrides (-want +got):\n%s\nwarnings %q", diff, n.warnings)
	}
	Override(t.Context(), "margin_mib", "256")
}

var errAny = errors.New("any")

// TestUnattendedCallsMeetTheirEntry: a statementless grant runs where one entry of the sink's file is met in all, and nowhere else.
func TestUnattendedCallsMeetTheirEntry(t *testing.T) {
	switchTo := func(mode string) *executorv1.SwitchModeRequest {
		return &executorv1.SwitchModeRequest{ModeId: proto.String(mode), PlanDigest: proto.String(strings.Repeat("0", 64)), MarginMibOverride: proto.Uint32(256)}
	}
	listed := func(items ...any) []unattended.Entry {
		entries, err := unattended.Parse(items)
		must(t, err)
		return entries
	}
	chat := map[string]any{"tool": "switch_mode", "clients": []any{"claude", "cursor"}, "arguments": map[string]any{"mode_id": []any{"chat", "coding"}}}
	margin := map[string]any{"tool": "switch_mode", "arguments": map[string]any{"mode_id": []any{"chat"}, "margin_mib_override": []any{uint64(512)}}}
	until := func(d time.Duration) map[string]any {
		return map[string]any{"tool": "switch_mode", "until": time.Now().Add(d).UTC().Truncate(time.Second).Format(time.RFC3339)}
	}
	for _, tc := range []struct {
		name    string
		entries []unattended.Entry
		mode    string
		want    error
	}{
		{"an entry that has ended", listed(until(0)), "chat", errAny},
		{"long ago", listed(until(-time.Hour), map[string]any{"tool": "switch_mode", "until": "2026-01-31T18:00:00+02:00"}), "chat", errAny},
		{"one has ended, one not", listed(until(-time.Hour), until(time.Minute)), "chat", nil},
		{"nothing is listed", nil, "chat", errAny},
		{"another tool", listed("start_service"), "chat", errAny},
		{"another client", listed(map[string]any{"tool": "switch_mode", "clients": []any{"cursor"}}), "chat", errAny},
		{"another value", listed(chat), "train", errAny},
		{"a value's beginning", listed(chat), "cha", errAny},
		{"one of two arguments", listed(margin), "chat", errAny},
		{"no entry is met in all", listed(chat, margin), "train", errAny},
		{"the tool alone", listed("switch_mode"), "train", nil},
		{"one of the values", listed(chat), "coding", nil},
		{"the second entry", listed(margin, chat), "chat", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStand(t, func(c *Config) { c.Unattended = tc.entries })
			err := s.call(s.grantFor("switch_mode", switchTo(tc.mode)), switchTo(tc.mode))
			if tc.want != nil {
				s.refused(err, callv1.Code_CODE_DENIED, "no human")
				return
			}
			if err != nil || s.effects != 1 {
				t.Fatalf("%v, %d effects", err, s.effects)
			}
			if b := s.last().GetBody(); b.GetConfirmed() || b.GetDetails()["unattended"] != "yes" {
				t.Errorf("recorded as %v", b)
			}
		})
	}
}

func TestABrokenListIsNotTakenOver(t *testing.T) {
	s := newStand(t)
	good := []unattended.Entry{{Tool: "start_service"}}
	must(t, s.SetUnattended(good))
	if err := s.SetUnattended([]unattended.Entry{{Tool: "no_such_tool"}}); err == nil || len(*s.unattendedList.Load()) != 1 {
		t.Errorf("a broken list was taken over: %v", err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
