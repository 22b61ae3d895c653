package sink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/outside"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// censor is a Tokeniser that knows one secret.
type censor struct {
	requests []*vaultv1.TokeniseRequest
	err      error
	// busy is how often it says first that it has no time.
	busy int
	// drop answers with one text too few.
	drop bool
}

const secret, standIn = "hunter2", "[[SECRET:TEST:aaaa]]"

func (c *censor) Tokenise(_ context.Context, in *vaultv1.TokeniseRequest, _ ...grpc.CallOption) (*vaultv1.TokeniseResponse, error) {
	c.requests = append(c.requests, in)
	if c.err != nil {
		return nil, c.err
	}
	if len(c.requests) <= c.busy {
		return nil, fault.New(callv1.Code_CODE_UNAVAILABLE, "there is too much to look through now; ask again")
	}
	out := &vaultv1.TokeniseResponse{}
	for _, text := range in.GetTexts() {
		out.Texts = append(out.Texts, strings.ReplaceAll(text, secret, standIn))
		out.Replaced += uint32(strings.Count(text, secret))
	}
	if c.drop {
		out.Texts = out.Texts[1:]
	}
	return out, nil
}

// tokened signs a grant of a tool at the kit's executor, with these statements.
func tokened(t testing.TB, kit *platformtest.Kit, tool contract.Tool, request proto.Message, change func(*callv1.Grant)) *callv1.SignedGrant {
	t.Helper()
	arguments, err := contract.Canonical(request)
	must(t, err)
	digest := contract.Digest(arguments)
	now := time.Now()
	g := &callv1.Grant{
		Version: grant.Version, Id: grant.NewID(), OperationId: grant.NewID(), Use: 1, Principal: "claude", Session: "s-test",
		Channel: callv1.Channel_CHANNEL_API, Tool: tool.Ref(), ArgumentsDigest: digest[:], PolicyDigest: make([]byte, 32),
		Audience: kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local").String(), Epoch: 1,
		IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Minute)),
	}
	if change != nil {
		change(g)
	}
	signed, err := grant.Sign(kit.GrantKey, g)
	must(t, err)
	return signed
}

func carrying(t testing.TB, ctx context.Context, key string, m proto.Message) context.Context {
	t.Helper()
	raw, err := proto.Marshal(m)
	must(t, err)
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.NewIncomingContext(ctx, metadata.Join(md, metadata.Pairs(key, string(raw))))
}

func mustTool(t testing.TB, name string) contract.Tool {
	t.Helper()
	tool, ok := contract.Lookup(name)
	if !ok {
		t.Fatalf("no %s", name)
	}
	return tool
}

func logs(context.Context, any) (any, error) {
	return &executorv1.ServiceLogsResponse{ServiceId: secret, Log: "password is " + secret, Cursor: "c"}, nil
}

// What a service wrote leaves through the vault, under the very grant that the call came with; what the catalog holds does
// not need to.
func TestAReadOfTextFromOutside(t *testing.T) {
	kit := platformtest.New(t)
	tool := mustTool(t, "service_logs")
	request := &executorv1.ServiceLogsRequest{ServiceId: proto.String("chat")}
	gateway := kit.ID(optionsv1.Role_ROLE_GATEWAY, "main")
	permitted := func(ctx context.Context) context.Context {
		return carrying(t, ctx, rpc.MetadataPermit, streamPermit(t, kit, func(p *callv1.Permit) { p.Tools = []string{"service_logs"} }))
	}
	granted := func(ctx context.Context) context.Context {
		return carrying(t, ctx, rpc.MetadataGrant, tokened(t, kit, tool, request, nil))
	}
	for name, c := range map[string]struct {
		caller   func(context.Context) context.Context
		operator bool
		censor   censor
		code     callv1.Code // none: it is answered
		asked    int
		want     string
	}{
		"nothing":  {caller: func(ctx context.Context) context.Context { return ctx }, code: callv1.Code_CODE_DENIED},
		"a permit": {caller: permitted, code: callv1.Code_CODE_DENIED},
		"another's grant": {caller: func(ctx context.Context) context.Context {
			return carrying(t, ctx, rpc.MetadataGrant, tokened(t, kit, mustTool(t, "gpu_status"), request, nil))
		}, code: callv1.Code_CODE_DENIED},
		"other arguments": {caller: func(ctx context.Context) context.Context {
			return carrying(t, ctx, rpc.MetadataGrant, tokened(t, kit, tool, &executorv1.ServiceLogsRequest{}, nil))
		}, code: callv1.Code_CODE_DENIED},
		"the vault is away": {caller: granted, censor: censor{err: errors.New("gone")}, code: callv1.Code_CODE_UNAVAILABLE, asked: 1},
		"the vault is sealed": {
			caller: granted, censor: censor{err: fault.New(callv1.Code_CODE_SEALED, "unseal it")}, code: callv1.Code_CODE_SEALED, asked: 1,
		},
		"too few texts": {caller: granted, censor: censor{drop: true}, code: callv1.Code_CODE_UNAVAILABLE, asked: 1},
		"its grant":     {caller: granted, asked: 1, want: "password is " + standIn},
		"an operator":   {caller: func(ctx context.Context) context.Context { return ctx }, operator: true, want: "password is " + secret},
	} {
		t.Run(name, func(t *testing.T) {
			a, store, log := newAuthority(t, kit, func(cfg *Config) { cfg.Tokeniser = &c.censor })
			from := gateway
			if c.operator {
				from = kit.ID(optionsv1.Role_ROLE_OPERATOR, platformtest.Operator)
			}
			ctx := c.caller(rpc.WithCaller(rpc.WithRequestID(t.Context(), "r-logs"), from))
			got, err := a.Unary(plain{})(ctx, request, &grpc.UnaryServerInfo{FullMethod: tool.FullMethod}, logs)
			if len(c.censor.requests) != c.asked {
				t.Errorf("the vault was asked %d times, want %d", len(c.censor.requests), c.asked)
			}
			last := log.records[len(log.records)-1]
			if len(store.entries) != 0 || len(log.records) != 1 {
				t.Errorf("a read left %d spent keys and %d records", len(store.entries), len(log.records))
			}
			if c.code != 0 {
				if !fault.Is(err, c.code) || got != nil || strings.Contains(fault.From(err).Message, secret) {
					t.Errorf("got %v, %v, want %s", got, err, c.code)
				}
				if last.GetStatus() == auditv1.Status_STATUS_OK {
					t.Errorf("recorded as %v", last)
				}
				return
			}
			want := &executorv1.ServiceLogsResponse{ServiceId: secret, Log: c.want, Cursor: "c"}
			if diff := cmp.Diff(want, got, protocmp.Transform()); err != nil || diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			if last.GetKind() != auditv1.Kind_KIND_READ || last.GetTool() != "service_logs" || last.GetBody().GetDetails()["replaced"] != strings.Repeat("1", c.asked) || strings.Contains(last.String(), secret) {
				t.Errorf("recorded as %v", last)
			}
		})
	}
}

// What lies around the text of an answer is looked through with it, and neither leaves nor is counted.
func TestWhatLiesAroundTheText(t *testing.T) {
	kit, tool, request := platformtest.New(t), mustTool(t, "service_logs"), &executorv1.ServiceLogsRequest{ServiceId: proto.String("chat")}
	for _, around := range []string{secret + " before\n" + secret, strings.Repeat("é", outside.MaxText)} {
		censor := &censor{}
		a, _, log := newAuthority(t, kit, func(cfg *Config) { cfg.Tokeniser = censor })
		ctx := carrying(t, rpc.WithCaller(t.Context(), kit.ID(optionsv1.Role_ROLE_GATEWAY, "main")), rpc.MetadataGrant, tokened(t, kit, tool, request, nil))
		got, err := a.Unary(plain{})(ctx, request, &grpc.UnaryServerInfo{FullMethod: tool.FullMethod}, func(ctx context.Context, _ any) (any, error) {
			Around(ctx, around)
			return logs(ctx, nil)
		})
		if err != nil || len(censor.requests) != 1 || got.(*executorv1.ServiceLogsResponse).GetLog() != "password is "+standIn {
			t.Fatalf("%v, %v, %d requests", got, err, len(censor.requests))
		}
		asked := censor.requests[0].GetTexts()
		if len(asked) != 2 || !strings.HasPrefix(around, asked[1]) || len(asked[1]) > outside.MaxText {
			t.Errorf("%d texts were asked about", len(asked))
		}
		if n := log.records[len(log.records)-1].GetBody().GetDetails()["replaced"]; n != "1" {
			t.Errorf("%q are recorded", n)
		}
	}
}

// An answer is cut when it was looked through: half of a value looks like none.
func TestAnswersAreCutAfterwards(t *testing.T) {
	kit, tool, request := platformtest.New(t), mustTool(t, "service_logs"), &executorv1.ServiceLogsRequest{ServiceId: proto.String("chat")}
	short := func(ctx context.Context, _ any) (any, error) {
		Cut(ctx, func(out *executorv1.ServiceLogsResponse) { out.Log = out.GetLog()[:len("password is hunt")] })
		return logs(ctx, nil)
	}
	a, _, _ := newAuthority(t, kit, func(cfg *Config) { cfg.Tokeniser = &censor{} })
	ctx := carrying(t, rpc.WithCaller(t.Context(), kit.ID(optionsv1.Role_ROLE_GATEWAY, "main")), rpc.MetadataGrant, tokened(t, kit, tool, request, nil))
	got, err := a.Unary(plain{})(ctx, request, &grpc.UnaryServerInfo{FullMethod: tool.FullMethod}, short)
	if err != nil || got.(*executorv1.ServiceLogsResponse).GetLog() != "password is "+standIn[:4] {
		t.Errorf("%v, %v", got, err)
	}
	// An operator's answer is as short.
	ctx = rpc.WithCaller(t.Context(), kit.ID(optionsv1.Role_ROLE_OPERATOR, platformtest.Operator))
	got, err = a.Unary(plain{})(ctx, request, &grpc.UnaryServerInfo{FullMethod: tool.FullMethod}, short)
	if err != nil || got.(*executorv1.ServiceLogsResponse).GetLog() != "password is hunt" {
		t.Errorf("an operator: %v, %v", got, err)
	}
	// So is one that nobody could look through.
	n := &notes{cut: func(m proto.Message) { m.(*executorv1.SwitchModeResponse).Log = "cut" }}
	a, _, _ = newAuthority(t, kit, func(cfg *Config) { cfg.Tokeniser = &censor{err: errors.New("gone")} })
	out := a.tokeniseDone(t.Context(), &call{tool: mustTool(t, "switch_mode"), signedGrant: &callv1.SignedGrant{}}, n, &executorv1.SwitchModeResponse{Log: secret})
	if log := out.(*executorv1.SwitchModeResponse).GetLog(); log != "cut" {
		t.Errorf("withheld as %q", log)
	}
}

// What a handler says of a failure passes the vault too, unless it is plain words.
func TestFailuresAreTokenised(t *testing.T) {
	kit, tool, request := platformtest.New(t), mustTool(t, "service_logs"), &executorv1.ServiceLogsRequest{ServiceId: proto.String("chat")}
	for name, c := range map[string]struct {
		says, hears string
		away        bool
		busy, asked int
	}{
		"plain words":       {says: "there is no such service, and 3 others", hears: "there is no such service, and 3 others"},
		"plain, vault away": {says: "the log of chat cannot be read", hears: "the log of chat cannot be read", away: true},
		"a value":           {says: "the service said: " + secret + "@example", hears: "the service said: " + standIn + "@example", asked: 1},
		"parted":            {says: "the service said: hun\u200bter\x1b[31m2@example", hears: "the service said: " + standIn + "@example", asked: 1},
		"a capital":         {says: "the service said: Maria", hears: "the service said: Maria", asked: 1},
		"a number":          {says: "call 2025550123", hears: "call 2025550123", asked: 1},
		"withheld":          {says: "the service said: Maria " + secret, hears: sayFaultWithheld + sayAskAgain, away: true, asked: 1},
		"busy":              {says: "the service said: Maria " + secret, hears: sayFaultWithheld + sayAskAgain, busy: 1, asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			censor := censor{busy: c.busy}
			if c.away {
				censor.err = errors.New("gone")
			}
			a, _, log := newAuthority(t, kit, func(cfg *Config) { cfg.Tokeniser = &censor })
			ctx := carrying(t, rpc.WithCaller(t.Context(), kit.ID(optionsv1.Role_ROLE_GATEWAY, "main")), rpc.MetadataGrant, tokened(t, kit, tool, request, nil))
			got, err := a.Unary(plain{})(ctx, request, &grpc.UnaryServerInfo{FullMethod: tool.FullMethod}, func(context.Context, any) (any, error) {
				return nil, fault.New(callv1.Code_CODE_FAILED, c.says, fault.WithSuggestions("chat", secret))
			})
			f := fault.From(err)
			if c.asked == 0 {
				f.DidYouMean = nil
			}
			if got != nil || f.Code != callv1.Code_CODE_FAILED || f.Message != c.hears || strings.Contains(strings.Join(f.DidYouMean, " "), secret) || len(censor.requests) != c.asked {
				t.Errorf("%v: %q, %q, the vault was asked %d times", got, f.Message, f.DidYouMean, len(censor.requests))
			}
			if last := log.records[len(log.records)-1]; strings.Contains(last.String(), secret) {
				t.Errorf("recorded as %v", last)
			}
		})
	}
}

// A change is told of though nobody can look through what the services wrote about it; that alone is withheld.
func TestTextFromOutsideAboutAChange(t *testing.T) {
	kit := platformtest.New(t)
	for name, c := range map[string]struct {
		censor   censor
		log      string
		warnings int
	}{
		"tokenised":           {log: "failed: " + standIn},
		"the vault is away":   {censor: censor{err: errors.New("gone")}, log: withheld, warnings: 1},
		"the vault is sealed": {censor: censor{err: fault.New(callv1.Code_CODE_SEALED, "unseal it")}, log: withheld, warnings: 1},
		// What is kept is asked about again.
		"the vault is busy":          {censor: censor{busy: 2}, log: "failed: " + standIn},
		"the vault is busy for long": {censor: censor{busy: 3}, log: withheld, warnings: 1},
	} {
		t.Run(name, func(t *testing.T) {
			a, store, log := newAuthority(t, kit, func(cfg *Config) { cfg.Tokeniser = &c.censor })
			call := spent(t, store)
			call.tool, call.signedGrant = mustTool(t, "switch_mode"), &callv1.SignedGrant{Kid: "k"}
			got := a.act(t.Context(), call, func(ctx context.Context, _ any) (any, error) {
				Fail(ctx, "chat did not come up")
				return &executorv1.SwitchModeResponse{
					ModeId: "day", Outcome: executorv1.SwitchOutcome_SWITCH_OUTCOME_ROLLED_BACK, Log: "failed: " + secret,
				}, Confirm(ctx, func() {})
			})
			if got.err != nil {
				t.Fatal(got.err)
			}
			response := got.response.(*executorv1.SwitchModeResponse)
			if response.GetLog() != c.log || response.GetModeId() != "day" || len(got.outcome.GetWarnings()) != c.warnings || !got.outcome.GetFailed() {
				t.Errorf("the answer is %v, %v", response, got.outcome)
			}
			// What is replayed, and what the record's digest is of, is what was given.
			kept := &executorv1.SwitchModeResponse{}
			if err := proto.Unmarshal(store.entries[call.key].Response, kept); err != nil || kept.GetLog() != c.log {
				t.Errorf("kept as %v, %v", kept, err)
			}
			last := log.records[len(log.records)-1]
			if want, _ := a.digest(t.Context(), call, response); last.GetStatus() != auditv1.Status_STATUS_ERROR || !cmp.Equal(last.GetBody().GetResultDigest(), want) {
				t.Errorf("recorded as %v", last)
			}
			if store.entries[call.key].OK {
				t.Error("a failed change counts as done well")
			}
		})
	}
}

// Strings, list items, keys and values of maps are found however deep, and nothing else is touched.
func TestEveryTextIsFound(t *testing.T) {
	message := &auditv1.Record{
		Tool: "a " + secret, OperationId: secret, Time: timestamppb.New(time.Unix(1, 0)), Tier: optionsv1.Tier_TIER_READ,
		Body: &auditv1.Body{Summary: "deep " + secret, Details: map[string]string{secret: "x " + secret, "b": "y"}},
	}
	a, _, _ := newAuthority(t, platformtest.New(t))
	got, err := a.tokenise(t.Context(), &call{signedGrant: &callv1.SignedGrant{}}, &notes{}, message)
	must(t, err)
	want := &auditv1.Record{
		Tool: "a " + standIn, OperationId: standIn, Time: timestamppb.New(time.Unix(1, 0)), Tier: optionsv1.Tier_TIER_READ,
		Body: &auditv1.Body{Summary: "deep " + standIn, Details: map[string]string{standIn: "x " + standIn, "b": "y"}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if message.GetTool() != "a "+secret {
		t.Error("the handler's own message was changed")
	}
	both := &auditv1.Body{Details: map[string]string{secret: "1", standIn: "2"}}
	if _, err := a.tokenise(t.Context(), &call{signedGrant: &callv1.SignedGrant{}}, &notes{}, both); err == nil {
		t.Error("two keys became one, and a value was lost")
	}
}

func TestManyTextsGoInBatches(t *testing.T) {
	var c censor
	a, _, _ := newAuthority(t, platformtest.New(t), func(cfg *Config) { cfg.Tokeniser = &c })
	body := &auditv1.Body{Details: map[string]string{}}
	for i := range 400 {
		body.Details[fmt.Sprintf("key-%03d", i)] = strings.Repeat("x", 16<<10) + secret
	}
	body.Summary = strings.Repeat("é", outside.MaxText/2)
	got, err := a.tokenise(t.Context(), &call{signedPermit: &callv1.SignedPermit{}}, &notes{}, body)
	must(t, err)
	texts := 0
	for _, r := range c.requests {
		size := 0
		for _, text := range r.GetTexts() {
			size += len(text)
			if len(text) > outside.MaxText {
				t.Errorf("a text of %d bytes", len(text))
			}
		}
		if texts += len(r.GetTexts()); len(r.GetTexts()) > outside.MaxTexts || size > outside.MaxBatch {
			t.Errorf("a request of %d texts, %d bytes", len(r.GetTexts()), size)
		}
	}
	if texts != 801 || len(c.requests) < 4 {
		t.Errorf("%d texts in %d requests", texts, len(c.requests))
	}
	if out := got.(*auditv1.Body); out.GetSummary() != strings.Repeat("é", outside.MaxText/2) || strings.Contains(out.String(), secret) || len(out.GetDetails()) != 400 {
		t.Errorf("%d bytes, %d details", len(out.GetSummary()), len(out.GetDetails()))
	}
}

func TestATextFromOutsideIsNotServedUntokenised(t *testing.T) {
	kit := platformtest.New(t)
	_, err := New(t.Context(), Config{Self: kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local"), Store: &memory{}})
	if err == nil || !strings.Contains(err.Error(), "log") {
		t.Errorf("a sink without a tokeniser serves text from outside: %v", err)
	}
	a, _, _ := newAuthority(t, kit)
	logs := mustTool(t, "service_logs").Method
	if err := a.checkOrigins("a stream", logs, true); err == nil {
		t.Error("a stream tells what is from outside")
	}
	// Grants and other bytes are nothing that a tool returns.
	method := vaultv1.File_durward_vault_v1_session_proto.Services().ByName("SessionService").Methods().ByName("OpenSession")
	if err := a.checkOrigins("open_session", method, false); err == nil || !strings.Contains(err.Error(), "look through") {
		t.Errorf("bytes are served: %v", err)
	}
}

// TestGpumodD13: gpumod's switch ran on the agent's word. Here nothing reaches its handler but a grant with a human's statement
// over these very arguments and this very plan.
func TestGpumodD13SwitchWithoutApprovalHasNoEffect(t *testing.T) {
	kit := platformtest.New(t)
	tool := mustTool(t, "switch_mode")
	arguments := func(plan byte) *executorv1.SwitchModeRequest {
		return &executorv1.SwitchModeRequest{ModeId: proto.String("night"), PlanDigest: proto.String(strings.Repeat(string(plan), 64))}
	}
	request := arguments('a')
	subject := contract.Digest([]byte("{}"))
	signed := func(of *executorv1.SwitchModeRequest, change func(*statement.Statement)) func(*callv1.Grant) {
		return func(g *callv1.Grant) {
			raw, err := contract.Canonical(of)
			must(t, err)
			digest := contract.Digest(raw)
			now := time.Now()
			s := &statement.Statement{
				Type: statement.Type, Version: statement.Version, Kind: statement.KindApprove, ID: grant.NewID(), Operator: platformtest.Operator,
				IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(30 * time.Minute)),
				Epoch: 1, Audience: g.GetAudience(), Principal: g.GetPrincipal(), Session: g.GetSession(), Channel: statement.ChannelName(g.GetChannel()),
				Operation: g.GetOperationId(), Tool: new(statement.Tool), Tier: contract.TierName(tool.Tier), Arguments: raw,
				ArgumentsDigest: fmt.Sprintf("sha256:%x", digest), SubjectDigest: fmt.Sprintf("sha256:%x", subject), Uses: 1,
			}
			*s.Tool = statement.ToolOf(tool.Ref())
			if change != nil {
				change(s)
			}
			h, err := statement.Sign(s, kit.OperatorSigner)
			must(t, err)
			g.SubjectDigest, g.Statements = subject[:], []*callv1.HumanStatement{h}
		}
	}
	for name, c := range map[string]struct {
		grant  func(*callv1.Grant) // nil: none
		permit bool
		acts   bool
	}{
		"nothing":                       {},
		"a permit":                      {permit: true},
		"a grant without a statement":   {grant: func(g *callv1.Grant) { g.SubjectDigest = subject[:] }},
		"a statement over another plan": {grant: signed(arguments('b'), nil)},
		"another operation's statement": {grant: signed(request, func(s *statement.Statement) { s.Operation = grant.NewID() })},
		"another session's statement":   {grant: signed(request, func(s *statement.Statement) { s.Session = "s-other" })},
		"a lower tier's statement":      {grant: signed(request, func(s *statement.Statement) { s.Tier = "WRITE" })},
		"its statement":                 {grant: signed(request, nil), acts: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, log := newAuthority(t, kit)
			ctx := rpc.WithCaller(rpc.WithRequestID(t.Context(), "r-d13"), kit.ID(optionsv1.Role_ROLE_GATEWAY, "main"))
			if c.permit {
				ctx = carrying(t, ctx, rpc.MetadataPermit, streamPermit(t, kit, func(p *callv1.Permit) { p.Tools = []string{"switch_mode"} }))
			}
			if c.grant != nil {
				ctx = carrying(t, ctx, rpc.MetadataGrant, tokened(t, kit, tool, request, c.grant))
			}
			effects := 0
			_, err := a.Unary(plain{})(ctx, request, &grpc.UnaryServerInfo{FullMethod: tool.FullMethod}, func(ctx context.Context, _ any) (any, error) {
				return &executorv1.SwitchModeResponse{}, Confirm(ctx, func() { effects++ })
			})
			a.Wait(t.Context())
			if c.acts {
				if err != nil || effects != 1 {
					t.Errorf("%v, %d effects", err, effects)
				}
				return
			}
			if !fault.Is(err, callv1.Code_CODE_DENIED) || effects != 0 || log.records[len(log.records)-1].GetKind() != auditv1.Kind_KIND_SINK_REFUSED {
				t.Errorf("%v, %d effects, recorded as %v", err, effects, log.records)
			}
		})
	}
}

// A picture is in the digest of what was returned, and not in what is kept to answer again.
func TestPicturesAreNotKept(t *testing.T) {
	a, _, _ := newAuthority(t, platformtest.New(t))
	response := func(data string) *egressv1.CallServerToolResponse {
		return &egressv1.CallServerToolResponse{Content: []*egressv1.ServerContent{
			{Kind: "text", Text: "made"}, {Kind: "image", Text: "a picture", MediaType: "image/png", Data: []byte(data)},
		}}
	}
	one, kept := a.digest(t.Context(), &call{}, response("one picture"))
	other, _ := a.digest(t.Context(), &call{}, response("two picture"))
	if len(one) == 0 || bytes.Equal(one, other) {
		t.Errorf("the digests are %x and %x", one, other)
	}
	want := response("")
	want.Content[1].Text += ", which is not kept"
	got := &egressv1.CallServerToolResponse{}
	if err := proto.Unmarshal(kept, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("kept is %v, %v", got, err)
	}
	plain := response("")
	whole, err := proto.Marshal(plain)
	if _, kept := a.digest(t.Context(), &call{}, plain); err != nil || !bytes.Equal(kept, whole) {
		t.Errorf("without a picture something else is kept: %q, %v", kept, err)
	}
}
