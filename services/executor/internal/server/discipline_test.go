package server_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/sink/unattended"
	"durward.internal/services/platform/statement"
)

const (
	denied  = callv1.Code_CODE_DENIED
	expired = callv1.Code_CODE_EXPIRED
)

// TestChangesAreRefused calls the sink as a hostile gateway, with the gateway's own certificate. No case may have an effect,
// each is recorded with its true cause, and every denial reads alike.
func TestChangesAreRefused(t *testing.T) {
	stranger := func(t *testing.T) ssh.Signer {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ssh.NewSignerFromKey(key)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	restate := func(tk *ticket, change func(s *statement.Statement)) { change(tk.statement) }
	tests := []struct {
		name string
		// bend changes a genuine ticket for start_service alpha before it is signed.
		bend func(t *testing.T, w *world, tk *ticket)
		// after changes what travels, or the world.
		after func(t *testing.T, w *world, signed *callv1.SignedGrant)
		// attach replaces what the call carries.
		attach func(w *world, ctx context.Context, signed *callv1.SignedGrant) context.Context
		code   callv1.Code
		cause  string
		// spends: the refusal comes after the redemption.
		spends bool
	}{
		{name: "no grant", attach: func(_ *world, ctx context.Context, _ *callv1.SignedGrant) context.Context { return ctx }, code: denied, cause: "without a grant"},
		{name: "two grants", attach: func(_ *world, ctx context.Context, s *callv1.SignedGrant) context.Context {
			return with(ctx, rpc.MetadataGrant, s, s)
		}, code: denied, cause: "more than once"},
		{name: "a grant in the permit's place", attach: func(_ *world, ctx context.Context, s *callv1.SignedGrant) context.Context {
			return with(ctx, rpc.MetadataPermit, s)
		}, code: denied, cause: "without a grant"},
		{name: "garbage", attach: func(_ *world, ctx context.Context, _ *callv1.SignedGrant) context.Context {
			return metadata.AppendToOutgoingContext(ctx, rpc.MetadataGrant, "\xff\xff\xff")
		}, code: denied, cause: "not a message"},
		{name: "another's grant", attach: func(w *world, ctx context.Context, s *callv1.SignedGrant) context.Context {
			w.gateway = executorv1.NewToolServiceClient(w.dial(optionsv1.Role_ROLE_TOOL, "reporter"))
			return with(ctx, rpc.MetadataGrant, s)
		}, code: denied, cause: "the grant is another's"},
		{name: "unknown field beside the payload", attach: func(_ *world, ctx context.Context, s *callv1.SignedGrant) context.Context {
			s.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01})
			return with(ctx, rpc.MetadataGrant, s)
		}, code: denied, cause: "unknown fields"},
		{name: "signed by another key with the same kid", bend: func(t *testing.T, w *world, tk *ticket) {
			key, err := grant.GenerateKey(w.kit.GrantKey.KID)
			w.must(err)
			tk.key = key
		}, code: denied, cause: "signature"},
		{name: "unknown kid", after: func(_ *testing.T, _ *world, s *callv1.SignedGrant) { s.Kid = "other" }, code: denied, cause: "not trusted"},
		{name: "tampered payload", after: func(t *testing.T, w *world, s *callv1.SignedGrant) {
			g := &callv1.Grant{}
			w.must(proto.Unmarshal(s.GetPayload(), g))
			g.Principal = "somebody"
			var err error
			s.Payload, err = proto.Marshal(g)
			w.must(err)
		}, code: denied, cause: "signature"},
		{name: "a permit's payload signed as permit", after: func(t *testing.T, w *world, s *callv1.SignedGrant) {
			p, err := grant.SignPermit(w.kit.GrantKey, w.permit("start_service"))
			w.must(err)
			s.Payload, s.Signature = p.GetPayload(), p.GetSignature()
		}, code: denied, cause: "signature"},
		{name: "another sink's grant", bend: func(_ *testing.T, w *world, tk *ticket) {
			tk.grant.Audience = w.kit.ID(optionsv1.Role_ROLE_EXECUTOR, "other").String()
		}, code: denied, cause: "another sink"},
		{name: "older epoch", after: func(_ *testing.T, w *world, _ *callv1.SignedGrant) {
			_, err := w.control.Halt(t.Context(), &executorv1.HaltRequest{})
			w.must(err)
			w.resume(3)
		}, code: denied, cause: "older epoch"},
		{name: "halted", after: func(_ *testing.T, w *world, _ *callv1.SignedGrant) {
			_, err := w.control.Halt(t.Context(), &executorv1.HaltRequest{})
			w.must(err)
		}, code: callv1.Code_CODE_HALTED, cause: "halted"},
		{name: "not valid yet", bend: func(_ *testing.T, _ *world, tk *ticket) {
			later := time.Now().Add(6 * time.Minute)
			tk.grant.IssuedAt, tk.grant.NotBefore, tk.grant.ExpiresAt = timestamppb.New(later), timestamppb.New(later), timestamppb.New(later.Add(time.Minute))
		}, code: denied, cause: "not valid yet"},
		{name: "another tool", bend: func(_ *testing.T, _ *world, tk *ticket) {
			other, _ := contract.Lookup("stop_service")
			tk.grant.Tool = other.Ref()
		}, code: denied, cause: "another tool"},
		{name: "another definition of the tool", bend: func(_ *testing.T, _ *world, tk *ticket) {
			tk.grant.Tool = proto.CloneOf(tk.grant.GetTool())
			tk.grant.Tool.DefinitionDigest = make([]byte, 32)
		}, code: denied, cause: "another definition"},
		{name: "other arguments", bend: func(_ *testing.T, w *world, tk *ticket) {
			*tk = *w.ticket("beta")
		}, code: denied, cause: "other arguments"},
		{name: "another subject", bend: func(_ *testing.T, _ *world, tk *ticket) {
			tk.grant.SubjectDigest = make([]byte, 32)
		}, code: callv1.Code_CODE_CONFLICT, cause: "subject"},
		{name: "no subject", bend: func(_ *testing.T, _ *world, tk *ticket) {
			tk.grant.SubjectDigest = nil
		}, code: callv1.Code_CODE_CONFLICT, cause: "subject"},
		{name: "the catalogue was edited after the approval", after: func(_ *testing.T, w *world, _ *callv1.SignedGrant) {
			w.write(strings.Replace(catalogText, "name: Alpha", "name: Alpha two", 1))
			w.must(w.source.Reload())
		}, code: callv1.Code_CODE_CONFLICT, cause: "subject"},
		{name: "no human", bend: func(_ *testing.T, _ *world, tk *ticket) { tk.statement = nil }, code: denied, cause: "no human"},
		{name: "a stranger's statement", bend: func(t *testing.T, _ *world, tk *ticket) { tk.signer = stranger(t) }, code: denied, cause: "not an operator"},
		{name: "a genuine and a stranger's statement", bend: func(t *testing.T, w *world, tk *ticket) {
			other := *tk.statement
			other.ID = grant.NewID()
			h, err := statement.Sign(&other, stranger(t))
			w.must(err)
			tk.grant.Statements = append(tk.grant.Statements, h)
		}, code: denied, cause: "not an operator"},
		{name: "tampered statement", bend: func(_ *testing.T, w *world, tk *ticket) {
			h, err := statement.Sign(tk.statement, tk.signer)
			w.must(err)
			h.Statement = []byte(strings.Replace(string(h.GetStatement()), `"uses":1`, `"uses":9`, 1))
			tk.grant.Statements, tk.statement = []*callv1.HumanStatement{h}, nil
		}, code: denied, cause: "signature"},
		{name: "statement for another operation", bend: func(_ *testing.T, _ *world, tk *ticket) {
			restate(tk, func(s *statement.Statement) { s.Operation = grant.NewID() })
		}, code: denied, cause: "operation"},
		{name: "second use of a single approval", bend: func(_ *testing.T, _ *world, tk *ticket) { tk.grant.Use = 2 }, code: denied, cause: "operation"},
		{name: "statement for another session", bend: func(_ *testing.T, _ *world, tk *ticket) {
			restate(tk, func(s *statement.Statement) { s.Session = "s-other" })
		}, code: denied, cause: "session"},
		{name: "statement for another principal", bend: func(_ *testing.T, _ *world, tk *ticket) {
			restate(tk, func(s *statement.Statement) { s.Principal = "other" })
		}, code: denied, cause: "principal"},
		{name: "statement for another sink", bend: func(_ *testing.T, _ *world, tk *ticket) {
			restate(tk, func(s *statement.Statement) { s.Audience = "spiffe://durward.local/executor/other" })
		}, code: denied, cause: "audience"},
		{name: "statement for another subject", bend: func(_ *testing.T, _ *world, tk *ticket) {
			restate(tk, func(s *statement.Statement) { s.SubjectDigest = canonical.FormatDigest(make([]byte, 32)) })
		}, code: denied, cause: "subject"},
		{name: "statement that has ended", bend: func(_ *testing.T, _ *world, tk *ticket) {
			restate(tk, func(s *statement.Statement) {
				s.IssuedAt = statement.FormatTime(time.Now().Add(-time.Hour))
				s.NotBefore, s.ExpiresAt = s.IssuedAt, statement.FormatTime(time.Now().Add(-6*time.Minute))
			})
		}, code: expired, cause: "time"},
		{name: "the vault refuses", after: func(_ *testing.T, w *world, _ *callv1.SignedGrant) {
			w.vault.set(func(v *vault) { v.refuse = fault.New(denied, "no") })
		}, code: denied, cause: "did not redeem"},
		{name: "the vault says expired", after: func(_ *testing.T, w *world, _ *callv1.SignedGrant) {
			w.vault.set(func(v *vault) { v.refuse = fault.New(expired, "too late") })
		}, code: expired, cause: "did not redeem"},
		{name: "the vault is away", after: func(_ *testing.T, w *world, _ *callv1.SignedGrant) {
			w.vault.set(func(v *vault) { v.refuse = fault.New(callv1.Code_CODE_UNAVAILABLE, "away") })
		}, code: callv1.Code_CODE_UNAVAILABLE, cause: "did not redeem"},
		{name: "audit is down", after: func(_ *testing.T, w *world, _ *callv1.SignedGrant) {
			w.log.set(func(l *log) { l.down = true })
		}, code: callv1.Code_CODE_AUDIT_UNAVAILABLE, cause: "spent but not acted", spends: true},
	}
	alike := map[callv1.Code]string{}
	var comparing sync.Mutex
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // each waits for its own disk
			w := newWorld(t)
			tk := w.ticket("alpha")
			if tc.bend != nil {
				tc.bend(t, w, tk)
			}
			signed := w.sign(tk)
			if tc.after != nil {
				tc.after(t, w, signed)
			}
			ctx := with(t.Context(), rpc.MetadataGrant, signed)
			if tc.attach != nil {
				ctx = tc.attach(w, t.Context(), signed)
			}
			_, err := w.gateway.StartService(ctx, start("alpha"))
			f := wantCode(t, err, tc.code)
			comparing.Lock()
			if said, ok := alike[tc.code]; ok && said != f.Message {
				t.Errorf("the caller can tell refusals apart: %q and %q", said, f.Message)
			}
			alike[tc.code] = f.Message
			comparing.Unlock()
			if n := w.driver.count(); n != 0 {
				t.Errorf("%d effects, want 0", n)
			}
			if spent := w.vault.redemptions() > 0; spent != tc.spends {
				t.Errorf("spent at the vault: %v, want %v", spent, tc.spends)
			}
			w.authority.Wait(t.Context())
			last := w.log.last()
			if last.GetKind() != auditv1.Kind_KIND_SINK_REFUSED || !strings.Contains(last.GetBody().GetReason(), tc.cause) {
				t.Errorf("last record is %s %q, want a refusal because of %q", last.GetKind(), last.GetBody().GetReason(), tc.cause)
			}
			if last.GetRequestId() == "" {
				t.Error("the refusal's record has no request id")
			}
		})
	}
}

// permit returns a genuine one.
func (w *world) permit(tools ...string) *callv1.Permit {
	now := time.Now()
	return &callv1.Permit{
		Version: grant.Version, Id: grant.NewID(), Principal: "claude", Session: "s-test", Channel: callv1.Channel_CHANNEL_API,
		Tools: tools, Audience: w.self.String(), Epoch: w.authority.Control().Epoch,
		IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Minute)),
	}
}

// resume wakes a halted executor.
func (w *world) resume(epoch uint64) {
	w.t.Helper()
	h, err := statement.Sign(w.resumption(epoch), w.kit.OperatorSigner)
	w.must(err)
	_, err = w.control.Resume(w.t.Context(), &executorv1.ResumeRequest{Statement: h})
	w.must(err)
}

func (w *world) resumption(epoch uint64) *statement.Statement {
	now := time.Now()
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindResume, ID: grant.NewID(), Operator: "alice",
		IssuedAt: statement.FormatTime(now), NotBefore: statement.FormatTime(now), ExpiresAt: statement.FormatTime(now.Add(5 * time.Minute)),
		Epoch: epoch, Audience: w.self.String(),
	}
}

func TestAnApprovedChangeHappensOnceAndIsReplayed(t *testing.T) {
	w := newWorld(t)
	signed := w.sign(w.ticket("alpha"))
	ctx := with(t.Context(), rpc.MetadataGrant, signed)
	var trailer metadata.MD
	first, err := w.gateway.StartService(ctx, start("alpha"), grpc.Trailer(&trailer))
	w.must(err)
	if !first.GetChanged() || first.GetService().GetState() != executorv1.ServiceState_SERVICE_STATE_RUNNING {
		t.Errorf("the service was not started: %v", first)
	}
	o := outcome(t, trailer)
	if o.GetReplayed() || o.GetReceipt().GetIndex() != 2 || o.GetSummary() != "alpha is running" || o.GetOperationId() == "" {
		t.Errorf("outcome is %v", o)
	}
	if diff := cmp.Diff([]auditv1.Kind{auditv1.Kind_KIND_INTENT, auditv1.Kind_KIND_OUTCOME}, w.log.kinds()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	body := w.log.last().GetBody()
	form, err := contract.Canonical(first)
	w.must(err)
	digest := contract.Digest(form)
	if !cmp.Equal(body.GetResultDigest(), digest[:]) || !body.GetConfirmed() || body.GetArguments() != `{"service_id":"alpha"}` ||
		body.GetParentRequestId() != "r-asked" {
		t.Errorf("the outcome's record is %v", body)
	}
	if ok, told := w.vault.settled[o.GetOperationId()]; !told || !ok {
		t.Error("the vault was not told before the reply")
	}

	// The same key again: the recorded answer, no vault, no effect, even though the service was stopped meanwhile.
	stop := w.ticketFor("stop_service", &executorv1.StopServiceRequest{ServiceId: proto.String("alpha")})
	_, err = w.gateway.StopService(with(t.Context(), rpc.MetadataGrant, w.sign(stop)), &executorv1.StopServiceRequest{ServiceId: proto.String("alpha")})
	w.must(err)
	redeemed, effects := w.vault.redemptions(), w.driver.count()
	second, err := w.gateway.StartService(ctx, start("alpha"), grpc.Trailer(&trailer))
	w.must(err)
	if diff := cmp.Diff(first, second, protocmp.Transform()); diff != "" {
		t.Errorf("the replay differs (-first +second):\n%s", diff)
	}
	if o := outcome(t, trailer); !o.GetReplayed() || o.GetReceipt().GetIndex() != 2 {
		t.Errorf("the replay's outcome is %v", o)
	}
	if w.vault.redemptions() != redeemed || w.driver.count() != effects {
		t.Error("a replay redeemed or acted")
	}

	// Equal arguments under a new approval are a new act.
	again, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha"))), start("alpha"))
	w.must(err)
	if !again.GetChanged() || w.driver.starts != 2 {
		t.Errorf("start, stop, start was not three acts: %d starts", w.driver.starts)
	}
}

// TestAReplayNeedsNoPresent: what was done is told although the catalog was edited and the statement would be refused now.
func TestAReplayNeedsNoPresent(t *testing.T) {
	w := newWorld(t)
	ctx := with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha")))
	_, err := w.gateway.StartService(ctx, start("alpha"))
	w.must(err)
	w.write(strings.Replace(catalogText, "name: Alpha", "name: Alpha two", 1))
	w.must(w.source.Reload())
	if _, err := w.gateway.StartService(ctx, start("alpha")); err != nil {
		t.Errorf("the recorded outcome was not replayed: %v", err)
	}
}

func TestTwoCallsAtOnceActOnce(t *testing.T) {
	w := newWorld(t)
	w.driver.entered, w.driver.leave = make(chan struct{}, 9), make(chan struct{})
	ctx := with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha")))
	var replayed [2]bool
	var calls sync.WaitGroup
	for i := range replayed {
		calls.Go(func() {
			var trailer metadata.MD
			if _, err := w.gateway.StartService(ctx, start("alpha"), grpc.Trailer(&trailer)); err != nil {
				t.Error(err)
				return
			}
			replayed[i] = outcome(t, trailer).GetReplayed()
		})
	}
	<-w.driver.entered
	close(w.driver.leave)
	calls.Wait()
	if w.driver.starts != 1 || w.vault.redemptions() != 1 || replayed[0] == replayed[1] {
		t.Errorf("%d starts, %d redemptions, replayed %v", w.driver.starts, w.vault.redemptions(), replayed)
	}
}

func TestHangingUpDetachesTheWaiter(t *testing.T) {
	w := newWorld(t)
	w.driver.entered, w.driver.leave = make(chan struct{}), make(chan struct{})
	signed := w.sign(w.ticket("alpha"))
	ctx, hangUp := context.WithCancel(with(t.Context(), rpc.MetadataGrant, signed))
	ended := make(chan error, 1)
	go func() {
		_, err := w.gateway.StartService(ctx, start("alpha"))
		ended <- err
	}()
	<-w.driver.entered
	hangUp()
	if err := <-ended; err == nil {
		t.Fatal("the call went on for its caller")
	}
	w.driver.leave <- struct{}{}
	w.authority.Wait(t.Context())
	if w.driver.starts != 1 || w.log.last().GetKind() != auditv1.Kind_KIND_OUTCOME {
		t.Fatalf("%d starts, last record %s: the act was not finished", w.driver.starts, w.log.last().GetKind())
	}
	var trailer metadata.MD
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, signed), start("alpha"), grpc.Trailer(&trailer))
	w.must(err)
	if !outcome(t, trailer).GetReplayed() {
		t.Error("the outcome was not kept for who comes back")
	}
}

func TestAFailureIsRecordedAndReplayed(t *testing.T) {
	w := newWorld(t)
	w.driver.fail = driver.ErrProgramMissing
	ctx := with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha")))
	var trailer metadata.MD
	_, err := w.gateway.StartService(ctx, start("alpha"), grpc.Trailer(&trailer))
	f := wantCode(t, err, callv1.Code_CODE_FAILED)
	if f.Message != "alpha did not start: the program file is missing" || outcome(t, trailer).GetReceipt() == nil {
		t.Errorf("failure is %q, outcome %v", f.Message, outcome(t, trailer))
	}
	if r := w.log.last(); r.GetStatus() != auditv1.Status_STATUS_ERROR || r.GetKind() != auditv1.Kind_KIND_OUTCOME {
		t.Errorf("last record is %s %s", r.GetKind(), r.GetStatus())
	}
	w.driver.fail = nil
	_, err = w.gateway.StartService(ctx, start("alpha"), grpc.Trailer(&trailer))
	if again := wantCode(t, err, callv1.Code_CODE_FAILED); again.Message != f.Message || !outcome(t, trailer).GetReplayed() {
		t.Errorf("the replay says %q", again.Message)
	}
	if w.driver.count() != 0 {
		t.Error("a replayed failure acted")
	}
}

func TestSpentButNotActedStaysSo(t *testing.T) {
	w := newWorld(t)
	w.log.set(func(l *log) { l.fails = []auditv1.Kind{auditv1.Kind_KIND_INTENT} })
	ctx := with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha")))
	_, err := w.gateway.StartService(ctx, start("alpha"))
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	w.log.set(func(l *log) { l.fails = nil })
	_, err = w.gateway.StartService(ctx, start("alpha"))
	wantCode(t, err, callv1.Code_CODE_ALREADY_SPENT)
	if w.driver.count() != 0 {
		t.Error("it acted")
	}
}

func TestAnOutcomeIsNotLostWithAudit(t *testing.T) {
	w := newWorld(t)
	w.log.set(func(l *log) { l.fails = []auditv1.Kind{auditv1.Kind_KIND_OUTCOME} })
	var trailer metadata.MD
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha"))), start("alpha"), grpc.Trailer(&trailer))
	w.must(err)
	o := outcome(t, trailer)
	if len(o.GetWarnings()) != 1 || o.GetReceipt().GetIndex() != 1 {
		t.Errorf("outcome is %v, want a warning and the intent's receipt", o)
	}
	if w.log.last().GetKind() != auditv1.Kind_KIND_OUTCOME {
		t.Error("the outcome was not left for later")
	}
}

func TestAScopeIsCountedAcrossGrantsAndRestarts(t *testing.T) {
	w := newWorld(t)
	tk := w.ticket("alpha")
	tk.statement = &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindScope, ID: grant.NewID(), Operator: "alice",
		IssuedAt: tk.statement.IssuedAt, NotBefore: tk.statement.NotBefore, ExpiresAt: tk.statement.ExpiresAt,
		Epoch: tk.statement.Epoch, Audience: tk.statement.Audience, Principal: tk.statement.Principal, Session: tk.statement.Session,
		Channel: tk.statement.Channel, Tools: []statement.Tool{*tk.statement.Tool}, SubjectDigests: []string{tk.statement.SubjectDigest},
		Pinned: []statement.Pin{{Pointer: "/service_id", Value: []byte(`"alpha"`)}}, Uses: 2,
	}
	scope, err := statement.Sign(tk.statement, tk.signer)
	w.must(err)
	for n, want := range []callv1.Code{0, 0, callv1.Code_CODE_ALREADY_SPENT} {
		next := w.ticket("alpha")
		next.statement, next.grant.Statements = nil, []*callv1.HumanStatement{scope}
		_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(next)), start("alpha"))
		if want == 0 {
			w.must(err)
			continue
		}
		wantCode(t, err, want)
		if w.log.last().GetBody().GetReason() != sink.ErrUsedUp.Error() {
			t.Errorf("use %d: the cause is %q", n+1, w.log.last().GetBody().GetReason())
		}
	}
	// Another service is not pinned.
	beta := w.ticket("beta")
	beta.statement, beta.grant.Statements = nil, []*callv1.HumanStatement{scope}
	_, err = w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(beta)), start("beta"))
	wantCode(t, err, denied)
}

func TestUnattendedToolsNeedTheSinksOwnWord(t *testing.T) {
	w := newWorld(t, func(c *sink.Config) { c.Unattended = []unattended.Entry{{Tool: "stop_service"}} })
	w.driver.running["alpha"] = true
	tk := w.ticketFor("stop_service", &executorv1.StopServiceRequest{ServiceId: proto.String("alpha")})
	tk.statement, tk.grant.SubjectDigest = nil, nil
	_, err := w.gateway.StopService(with(t.Context(), rpc.MetadataGrant, w.sign(tk)), &executorv1.StopServiceRequest{ServiceId: proto.String("alpha")})
	w.must(err)
	if w.driver.stops != 1 || w.log.last().GetBody().GetConfirmed() {
		t.Errorf("%d stops, recorded as confirmed: %v", w.driver.stops, w.log.last().GetBody().GetConfirmed())
	}
	started := w.ticket("alpha")
	started.statement = nil
	_, err = w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(started)), start("alpha"))
	wantCode(t, err, denied)
}

func TestUnknownServiceIsNotFoundWithSuggestions(t *testing.T) {
	w := newWorld(t)
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpah"))), start("alpah"))
	f := wantCode(t, err, callv1.Code_CODE_NOT_FOUND)
	if diff := cmp.Diff([]string{"alpha"}, f.DidYouMean); diff != "" || f.Field != "service_id" {
		t.Errorf("suggestions (-want +got):\n%s field %q", diff, f.Field)
	}
	if w.vault.redemptions() != 0 {
		t.Error("an approval was spent on a service that does not exist")
	}
}

func TestEpochIsAdoptedFromAGrantAndFromTheVault(t *testing.T) {
	w := newWorld(t)
	tk := w.ticket("alpha")
	tk.grant.Epoch, tk.statement.Epoch = 7, 7
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(tk)), start("alpha"))
	w.must(err)
	if now := w.authority.Control(); now.Epoch != 7 {
		t.Errorf("epoch %d after the grant, want 7", now.Epoch)
	}
	// The vault raised it while it answered: what was granted before no longer holds.
	w.vault.set(func(v *vault) { v.epoch = 9 })
	_, err = w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("beta"))), start("beta"))
	wantCode(t, err, expired)
	status, err := w.control.GetStatus(t.Context(), &executorv1.GetStatusRequest{})
	w.must(err)
	if status.GetEpoch() != 9 || status.GetServicesRunning() != 1 || status.GetGpuSource() != "simulated" {
		t.Errorf("status is %v", status)
	}
	durable, err := w.store.Control(t.Context())
	w.must(err)
	if durable.Epoch != 9 {
		t.Errorf("epoch %d is on disk, want 9", durable.Epoch)
	}
}

// TestNobodyRaisesTheEpochToItsEnd: else no statement could name an epoch above it, and the sink could never be woken.
func TestNobodyRaisesTheEpochToItsEnd(t *testing.T) {
	const step = 1_000_000
	w := newWorld(t)
	far := w.ticket("alpha")
	far.grant.Epoch, far.statement.Epoch = 2+step, 2+step
	_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(far)), start("alpha"))
	wantCode(t, err, denied)
	for _, epoch := range []uint64{2 + step, grant.MaxEpoch, grant.MaxEpoch + 1, 1 << 63} {
		w.vault.set(func(v *vault) { v.epoch = epoch })
		_, err := w.gateway.StartService(with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha"))), start("alpha"))
		wantCode(t, err, denied)
	}
	if now := w.authority.Control(); now.Epoch != 1 || w.driver.count() != 0 {
		t.Errorf("epoch %d, %d effects", now.Epoch, w.driver.count())
	}
	_, err = w.control.Halt(t.Context(), &executorv1.HaltRequest{Epoch: grant.MaxEpoch + 1})
	wantCode(t, err, callv1.Code_CODE_INVALID_ARGUMENT)
	halted, err := w.control.Halt(t.Context(), &executorv1.HaltRequest{Epoch: grant.MaxEpoch})
	w.must(err)
	if halted.GetEpoch() != 1+step {
		t.Errorf("a halt raised the epoch to %d", halted.GetEpoch())
	}
	h, err := statement.Sign(w.resumption(grant.MaxEpoch+1), w.kit.OperatorSigner)
	w.must(err)
	_, err = w.control.Resume(t.Context(), &executorv1.ResumeRequest{Statement: h})
	wantCode(t, err, denied)
	w.resume(2 + step)
}

// TestWhatWaitedForItsTurnIsCheckedAgain: one start is on its way and fails in the end, a second waits for it. What
// happens meanwhile keeps the second from its effect, and the log says that it did nothing.
func TestWhatWaitedForItsTurnIsCheckedAgain(t *testing.T) {
	tests := []struct {
		name      string
		meanwhile func(w *world, later func(time.Duration))
		code      callv1.Code
		cause     string
	}{
		{"nothing", func(*world, func(time.Duration)) {}, 0, ""},
		{"a halt", func(w *world, _ func(time.Duration)) { w.haltWhileBusy() }, callv1.Code_CODE_HALTED, "halted while"},
		{"a halt that was ended again", func(w *world, _ func(time.Duration)) {
			w.haltWhileBusy()
			w.resume(3)
		}, expired, "epoch was raised"},
		{"a higher epoch", func(w *world, _ func(time.Duration)) {
			tk := w.ticket("alpha")
			tk.grant.Epoch, tk.statement = 2, nil
			_, err := w.gateway.StartService(with(w.t.Context(), rpc.MetadataGrant, w.sign(tk)), start("alpha"))
			wantCode(w.t, err, denied)
		}, expired, "epoch was raised"},
		{"the catalogue was edited", func(w *world, _ func(time.Duration)) {
			w.write(strings.Replace(catalogText, "name: Alpha", "name: Alpha two", 1))
			w.must(w.source.Reload())
		}, callv1.Code_CODE_CONFLICT, "subject changed"},
		{"the service is gone from the catalogue", func(w *world, _ func(time.Duration)) {
			w.source.Veto(func(*catalog.Catalog) error { return nil })
			w.write(strings.Replace(catalogText, "id: alpha", "id: gamma", 1))
			w.must(w.source.Reload())
		}, callv1.Code_CODE_CONFLICT, "subject is gone"},
		{"the statement ended", func(_ *world, later func(time.Duration)) { later(16 * time.Minute) }, expired, "time"},
		{"the operator is one no more", func(w *world, _ func(time.Duration)) {
			w.kit.WriteTrust("allowed_signers", []byte("# nobody\n"))
			w.must(w.kit.Trust.Reload())
		}, denied, "not an operator"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			var ahead atomic.Int64
			w := newWorld(t, func(c *sink.Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
			w.driver.entered, w.driver.leave, w.driver.failOnce = make(chan struct{}, 9), make(chan struct{}), driver.ErrNotStarted
			call := func() <-chan error {
				ended := make(chan error, 1)
				ctx := with(t.Context(), rpc.MetadataGrant, w.sign(w.ticket("alpha")))
				go func() {
					_, err := w.gateway.StartService(ctx, start("alpha"))
					ended <- err
				}()
				return ended
			}
			first := call()
			<-w.driver.entered
			second := call()
			for late := time.After(30 * time.Second); len(w.log.kinds()) < 2; {
				select {
				case <-w.log.grew:
				case <-late:
					t.Fatal("the second call has no intent")
				}
			}
			time.Sleep(100 * time.Millisecond) // no event: from its intent to the queue it waits for nothing, and where it stands in the queue shows nowhere
			tc.meanwhile(w, func(d time.Duration) { ahead.Store(int64(d)) })
			close(w.driver.leave)
			wantCode(t, <-first, callv1.Code_CODE_FAILED)
			err := <-second
			w.authority.Wait(t.Context())
			if tc.code == 0 {
				w.must(err)
				if w.driver.count() != 1 {
					t.Errorf("%d effects, want 1", w.driver.count())
				}
				return
			}
			wantCode(t, err, tc.code)
			if w.driver.count() != 0 {
				t.Errorf("%d effects, want 0", w.driver.count())
			}
			w.log.mu.Lock()
			defer w.log.mu.Unlock()
			said := slices.ContainsFunc(w.log.records, func(r *auditv1.Record) bool {
				return r.GetKind() == auditv1.Kind_KIND_SINK_REFUSED && strings.HasPrefix(r.GetBody().GetReason(), "spent but not acted: ") &&
					strings.Contains(r.GetBody().GetReason(), tc.cause)
			})
			if !said {
				t.Errorf("the log does not say that nothing was done because of %q: %v", tc.cause, w.log.records)
			}
		})
	}
}

// haltWhileBusy halts while the driver is in the middle of a start. The halt is in force at once, though it answers only
// when the start has begun.
func (w *world) haltWhileBusy() {
	w.t.Helper()
	go func() {
		if _, err := w.authority.Halt(w.t.Context(), "panic", 0); err != nil && w.t.Context().Err() == nil {
			w.t.Error(err)
		}
	}()
	for deadline := time.Now().Add(30 * time.Second); !w.authority.Control().Halted; time.Sleep(time.Millisecond) { // no event: Halt answers later
		if time.Now().After(deadline) {
			w.t.Fatal("not halted")
		}
	}
}

func TestResumeIsRecordedFirst(t *testing.T) {
	w := newWorld(t)
	_, err := w.control.Halt(t.Context(), &executorv1.HaltRequest{})
	w.must(err)
	w.log.set(func(l *log) { l.down = true })
	h, err := statement.Sign(w.resumption(3), w.kit.OperatorSigner)
	w.must(err)
	_, err = w.control.Resume(t.Context(), &executorv1.ResumeRequest{Statement: h})
	wantCode(t, err, callv1.Code_CODE_AUDIT_UNAVAILABLE)
	if now := w.authority.Control(); !now.Halted || now.Epoch != 2 {
		t.Errorf("an unrecorded resume is in force: %v", now)
	}
	w.log.set(func(l *log) { l.down = false })
	w.resume(3)
	if r := w.log.last(); r.GetKind() != auditv1.Kind_KIND_RESUMED || r.GetBody().GetStatement() == nil {
		t.Errorf("last record is %v", r)
	}
}

func TestHaltAndResume(t *testing.T) {
	w := newWorld(t)
	w.driver.running["alpha"] = true
	w.log.set(func(l *log) { l.down = true })
	began := time.Now()
	halted, err := w.control.Halt(t.Context(), &executorv1.HaltRequest{Reason: "drill", Epoch: 5})
	w.must(err)
	if took := time.Since(began); took > time.Second || halted.GetEpoch() != 5 {
		t.Errorf("halt took %s and gave epoch %d", took, halted.GetEpoch())
	}
	if durable, err := w.store.Control(t.Context()); err != nil || !durable.Halted || durable.Epoch != 5 {
		t.Errorf("on disk: %v, %v", durable, err)
	}
	if !w.driver.running["alpha"] {
		t.Error("a halt stopped a service")
	}
	w.log.set(func(l *log) { l.down = false })
	if again, err := w.control.Halt(t.Context(), &executorv1.HaltRequest{}); err != nil || again.GetEpoch() != 6 {
		t.Errorf("a second halt: %v, %v", again, err)
	}
	for name, bend := range map[string]func(s *statement.Statement){
		"an old epoch":    func(s *statement.Statement) { s.Epoch = 6 },
		"another process": func(s *statement.Statement) { s.Audience = "spiffe://durward.local/vault/main" },
	} {
		s := w.resumption(7)
		bend(s)
		h, err := statement.Sign(s, w.kit.OperatorSigner)
		w.must(err)
		_, err = w.control.Resume(t.Context(), &executorv1.ResumeRequest{Statement: h})
		wantCode(t, err, denied)
		if !w.authority.Control().Halted {
			t.Fatalf("%s woke the executor", name)
		}
	}
	w.resume(7)
	if now := w.authority.Control(); now.Halted || now.Epoch != 7 {
		t.Errorf("after the resume: %v", now)
	}
}

func TestReads(t *testing.T) {
	tests := []struct {
		name   string
		permit func(w *world, p *callv1.Permit)
		after  func(w *world, s *callv1.SignedPermit)
		none   bool
		code   callv1.Code // 0: it is answered
		cause  string
	}{
		{name: "genuine"},
		{name: "none", none: true, code: denied, cause: "without permit"},
		{name: "another sink", permit: func(_ *world, p *callv1.Permit) { p.Audience = "spiffe://durward.local/executor/other" }, code: denied, cause: "another sink"},
		{name: "another tool", permit: func(_ *world, p *callv1.Permit) { p.Tools = []string{"list_services"} }, code: denied, cause: "name the tool"},
		{name: "expired", permit: func(_ *world, p *callv1.Permit) {
			old := time.Now().Add(-2 * time.Minute)
			p.IssuedAt, p.NotBefore, p.ExpiresAt = timestamppb.New(old), timestamppb.New(old), timestamppb.New(old.Add(time.Minute))
		}, code: denied, cause: "time"},
		{name: "not yet", permit: func(_ *world, p *callv1.Permit) {
			later := time.Now().Add(2 * time.Minute)
			p.IssuedAt, p.NotBefore, p.ExpiresAt = timestamppb.New(later), timestamppb.New(later), timestamppb.New(later.Add(time.Minute))
		}, code: denied, cause: "time"},
		{name: "older epoch", after: func(w *world, _ *callv1.SignedPermit) {
			_, err := w.control.Halt(w.t.Context(), &executorv1.HaltRequest{})
			w.must(err)
		}, code: denied, cause: "older epoch"},
		{name: "forged", after: func(_ *world, s *callv1.SignedPermit) { s.Signature[0] ^= 1 }, code: denied, cause: "signature"},
		{name: "spool full", after: func(w *world, _ *callv1.SignedPermit) { w.log.set(func(l *log) { l.full = true }) }, code: callv1.Code_CODE_AUDIT_UNAVAILABLE},
		{name: "audit down, spool has room", after: func(w *world, _ *callv1.SignedPermit) { w.log.set(func(l *log) { l.down = true }) }},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			p := w.permit("gpu_status", "service_info")
			if tc.permit != nil {
				tc.permit(w, p)
			}
			signed, err := grant.SignPermit(w.kit.GrantKey, p)
			w.must(err)
			if tc.after != nil {
				tc.after(w, signed)
			}
			ctx := t.Context()
			if !tc.none {
				ctx = with(ctx, rpc.MetadataPermit, signed)
			}
			// Twice, since the second time a permit is remembered.
			for range 2 {
				got, err := w.gateway.GpuStatus(ctx, &executorv1.GpuStatusRequest{})
				if tc.code != 0 {
					wantCode(t, err, tc.code)
					if tc.cause != "" && !strings.Contains(w.log.last().GetBody().GetReason(), tc.cause) {
						t.Errorf("cause is %q, want %q", w.log.last().GetBody().GetReason(), tc.cause)
					}
					continue
				}
				w.must(err)
				if len(got.GetGpus()) != 1 || !got.GetGpus()[0].GetSimulated() || got.GetSource() != "simulated" {
					t.Errorf("answer is %v", got)
				}
				if r := w.log.last(); r.GetKind() != auditv1.Kind_KIND_READ || r.GetBody().GetSession() != "s-test" || r.GetBody().GetPrincipal() != "claude" {
					t.Errorf("record is %v", r)
				}
			}
			if w.vault.redemptions() != 0 {
				t.Error("a read under a permit went to the vault")
			}
		})
	}
}

func TestARememberedPermitEndsWithItsKey(t *testing.T) {
	w := newWorld(t)
	signed, err := grant.SignPermit(w.kit.GrantKey, w.permit("gpu_status"))
	w.must(err)
	ctx := with(t.Context(), rpc.MetadataPermit, signed)
	_, err = w.gateway.GpuStatus(ctx, &executorv1.GpuStatusRequest{})
	w.must(err)
	other, err := grant.GenerateKey("other")
	w.must(err)
	w.kit.WriteTrust("grant_signers.yaml", fmt.Appendf(nil, "signers:\n  - {kid: other, key: %q, not_before: \"2020-01-01T00:00:00Z\", not_after: \"2100-01-01T00:00:00Z\"}\n",
		publicKey(other)))
	w.must(w.kit.Trust.Reload())
	_, err = w.gateway.GpuStatus(ctx, &executorv1.GpuStatusRequest{})
	wantCode(t, err, denied)
}

func TestAReadUnderAGrantIsSpentAtTheVault(t *testing.T) {
	w := newWorld(t)
	tk := w.ticketFor("gpu_status", &executorv1.GpuStatusRequest{})
	tk.statement, tk.grant.SubjectDigest = nil, nil
	ctx := with(t.Context(), rpc.MetadataGrant, w.sign(tk))
	_, err := w.gateway.GpuStatus(ctx, &executorv1.GpuStatusRequest{})
	w.must(err)
	_, err = w.gateway.GpuStatus(ctx, &executorv1.GpuStatusRequest{})
	wantCode(t, err, callv1.Code_CODE_ALREADY_SPENT)
}

func TestAnOperatorLooksWithoutAPermitAndActsOnlyWithAGrant(t *testing.T) {
	w := newWorld(t)
	list, err := w.operator.ListServices(t.Context(), &executorv1.ListServicesRequest{})
	w.must(err)
	if len(list.GetServices()) != 3 || w.log.last().GetBody().GetPrincipal() != "operator:alice" {
		t.Errorf("list is %v, principal %q", list, w.log.last().GetBody().GetPrincipal())
	}
	_, err = w.operator.StartService(t.Context(), start("alpha"))
	wantCode(t, err, denied)
	if w.driver.count() != 0 {
		t.Error("an operator's certificate alone started a service")
	}
}
