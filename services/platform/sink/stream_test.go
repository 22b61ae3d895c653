package sink

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
)

// wire is the transport's side of one stream.
type wire struct {
	grpc.ServerStream
	ctx  context.Context
	sent int
}

func (w *wire) Context() context.Context { return w.ctx }
func (w *wire) RecvMsg(any) error        { return nil }
func (w *wire) SendMsg(any) error        { w.sent++; return nil }

// watching is a stream's handler, as generated code and a service make one: it sends until its context ends.
func watching(seen func()) grpc.StreamHandler {
	return func(_ any, ss grpc.ServerStream) error {
		if err := ss.RecvMsg(&executorv1.WatchServicesRequest{}); err != nil {
			return err
		}
		if err := Streaming(ss.Context()); err != nil {
			return err
		}
		if err := ss.SendMsg(&executorv1.WatchServicesResponse{}); err != nil {
			return err
		}
		seen()
		<-ss.Context().Done()
		if err := ss.SendMsg(&executorv1.WatchServicesResponse{}); err == nil {
			return errors.New("a message went out after the end")
		}
		return ss.Context().Err()
	}
}

var watchInfo = &grpc.StreamServerInfo{FullMethod: executorv1.EventService_WatchServices_FullMethodName, IsServerStream: true}

func streamPermit(t testing.TB, kit *platformtest.Kit, change func(*callv1.Permit)) *callv1.SignedPermit {
	t.Helper()
	now := time.Now()
	p := &callv1.Permit{
		Version: grant.Version, Id: grant.NewID(), Principal: "claude", Session: "s-test", Channel: callv1.Channel_CHANNEL_API,
		Tools: []string{"list_services"}, Audience: kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local").String(), Epoch: 1,
		IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Minute)),
	}
	change(p)
	signed, err := grant.SignPermit(kit.GrantKey, p)
	must(t, err)
	return signed
}

func streamContext(t testing.TB, kit *platformtest.Kit, permits ...*callv1.SignedPermit) context.Context {
	t.Helper()
	md := metadata.MD{}
	for _, p := range permits {
		raw, err := proto.Marshal(p)
		must(t, err)
		md.Append(rpc.MetadataPermit, string(raw))
	}
	ctx := rpc.WithCaller(rpc.WithRequestID(t.Context(), "r-watch"), kit.ID(optionsv1.Role_ROLE_GATEWAY, "main"))
	return metadata.NewIncomingContext(ctx, md)
}

func TestStreamsAreRefused(t *testing.T) {
	kit := platformtest.New(t)
	good := func(*callv1.Permit) {}
	past := func(p *callv1.Permit) {
		old := time.Now().Add(-2 * time.Minute)
		p.IssuedAt, p.NotBefore, p.ExpiresAt = timestamppb.New(old), timestamppb.New(old), timestamppb.New(old.Add(time.Minute))
	}
	for name, c := range map[string]struct {
		info    *grpc.StreamServerInfo
		permits []*callv1.SignedPermit
		epoch   uint64 // the sink's; 0 is 1
		full    bool
		code    callv1.Code
		cause   string
	}{
		"none":            {code: callv1.Code_CODE_DENIED, cause: "without a permit"},
		"two":             {permits: []*callv1.SignedPermit{streamPermit(t, kit, good), streamPermit(t, kit, good)}, code: callv1.Code_CODE_DENIED, cause: "more than once"},
		"another tool":    {permits: []*callv1.SignedPermit{streamPermit(t, kit, func(p *callv1.Permit) { p.Tools = []string{"gpu_status"} })}, code: callv1.Code_CODE_DENIED, cause: "name the tool"},
		"another sink":    {permits: []*callv1.SignedPermit{streamPermit(t, kit, func(p *callv1.Permit) { p.Audience = "spiffe://durward.local/executor/other" })}, code: callv1.Code_CODE_DENIED, cause: "another sink"},
		"older epoch":     {permits: []*callv1.SignedPermit{streamPermit(t, kit, good)}, epoch: 2, code: callv1.Code_CODE_DENIED, cause: "epoch"},
		"over":            {permits: []*callv1.SignedPermit{streamPermit(t, kit, past)}, code: callv1.Code_CODE_DENIED, cause: "time"},
		"unknown stream":  {info: &grpc.StreamServerInfo{FullMethod: "/durward.executor.v1.EventService/WatchSecrets"}, permits: []*callv1.SignedPermit{streamPermit(t, kit, good)}, code: callv1.Code_CODE_DENIED, cause: "under no permit"},
		"an operator's":   {info: &grpc.StreamServerInfo{FullMethod: executorv1.ControlService_FollowLogs_FullMethodName}, permits: []*callv1.SignedPermit{streamPermit(t, kit, good)}, code: callv1.Code_CODE_DENIED, cause: "operators alone"},
		"cannot be noted": {permits: []*callv1.SignedPermit{streamPermit(t, kit, good)}, full: true, code: callv1.Code_CODE_AUDIT_UNAVAILABLE},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, log := newAuthority(t, kit)
			log.full = c.full
			if c.epoch > 0 {
				a.control.Store(&Control{Epoch: c.epoch})
			}
			info := c.info
			if info == nil {
				info = watchInfo
			}
			w := &wire{ctx: streamContext(t, kit, c.permits...)}
			err := a.Stream()(nil, w, info, watching(func() { t.Error("it was served") }))
			if !fault.Is(err, c.code) || w.sent != 0 {
				t.Errorf("%v after %d messages, want %s", err, w.sent, c.code)
			}
			if c.full {
				return
			}
			if len(log.records) != 1 || log.records[0].GetKind() != auditv1.Kind_KIND_SINK_REFUSED ||
				!strings.Contains(log.records[0].GetBody().GetReason(), c.cause) || log.records[0].GetRequestId() != "r-watch" {
				t.Errorf("recorded as %v", log.records)
			}
		})
	}
	t.Run("a handler that nothing admitted", func(t *testing.T) {
		w := &wire{ctx: streamContext(t, kit)}
		if err := watching(func() { t.Error("it was served") })(nil, w); !fault.Is(err, callv1.Code_CODE_INTERNAL) || w.sent != 0 {
			t.Errorf("%v after %d messages", err, w.sent)
		}
	})
	t.Run("an answer before the request", func(t *testing.T) {
		a, _, _ := newAuthority(t, kit)
		w := &wire{ctx: streamContext(t, kit, streamPermit(t, kit, good))}
		err := a.Stream()(nil, w, watchInfo, func(_ any, ss grpc.ServerStream) error { return ss.SendMsg(&executorv1.WatchServicesResponse{}) })
		if err == nil || w.sent != 0 {
			t.Errorf("%v after %d messages", err, w.sent)
		}
	})
}

// An operator watches without a permit, counted and recorded all the same; what is for operators alone is nobody else's.
func TestAnOperatorsStream(t *testing.T) {
	kit := platformtest.New(t)
	operator, gateway := kit.ID(optionsv1.Role_ROLE_OPERATOR, platformtest.Operator), kit.ID(optionsv1.Role_ROLE_GATEWAY, "main")
	const logs = executorv1.ControlService_FollowLogs_FullMethodName
	permit := streamPermit(t, kit, func(*callv1.Permit) {})
	for name, c := range map[string]struct {
		method string
		as     identity.ID
		full   bool
		code   callv1.Code // none: it is served
		tool   string
	}{
		"a gateway follows logs":        {method: logs, as: gateway, code: callv1.Code_CODE_DENIED},
		"an operator, not recorded":     {method: logs, as: operator, full: true, code: callv1.Code_CODE_AUDIT_UNAVAILABLE},
		"an operator follows logs":      {method: logs, as: operator},
		"an operator watches services":  {method: watchInfo.FullMethod, as: operator, tool: "list_services"},
		"an operator and no such thing": {method: "/durward.executor.v1.ControlService/WatchSecrets", as: operator, code: callv1.Code_CODE_DENIED},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, log := newAuthority(t, kit)
			log.full = c.full
			ctx, cancel := context.WithCancel(rpc.WithCaller(streamContext(t, kit, permit), c.as))
			defer cancel()
			w := &wire{ctx: ctx}
			served := false
			err := a.Stream()(nil, w, &grpc.StreamServerInfo{FullMethod: c.method, IsServerStream: true}, watching(func() { served = true; cancel() }))
			if c.code != 0 {
				if !fault.Is(err, c.code) || served || w.sent != 0 {
					t.Errorf("%v after %d messages, want %s", err, w.sent, c.code)
				}
				return
			}
			if !served || w.sent != 1 || !errors.Is(err, context.Canceled) {
				t.Errorf("%v after %d messages", err, w.sent)
			}
			r := log.records[0]
			if len(log.records) != 1 || r.GetKind() != auditv1.Kind_KIND_READ || r.GetTool() != c.tool || r.GetBody().GetDetails()["method"] != c.method ||
				r.GetBody().GetPrincipal() != statement.CommandPrincipal(platformtest.Operator) {
				t.Errorf("recorded as %v", log.records)
			}
			if a.streams.Held() != 0 {
				t.Error("its place was not given back")
			}
		})
	}
}

// A unary RPC under a permit is let in as the tool's own calls are, by the permit alone, and recorded.
func TestUnaryUnderAPermit(t *testing.T) {
	kit := platformtest.New(t)
	info := &grpc.UnaryServerInfo{FullMethod: "/durward.executor.v1.LookService/Look"}
	permit := func(change func(*callv1.Permit)) *callv1.SignedPermit { return streamPermit(t, kit, change) }
	good := permit(func(*callv1.Permit) {})
	withGrant := func(ctx context.Context) context.Context {
		md, _ := metadata.FromIncomingContext(ctx)
		return metadata.NewIncomingContext(ctx, metadata.Join(md, metadata.Pairs(rpc.MetadataGrant, "x")))
	}
	for name, c := range map[string]struct {
		permits []*callv1.SignedPermit
		change  func(context.Context) context.Context
		full    bool
		code    callv1.Code // none: it is served
		cause   string
	}{
		"none":         {code: callv1.Code_CODE_DENIED, cause: "without permit"},
		"two":          {permits: []*callv1.SignedPermit{good, good}, code: callv1.Code_CODE_DENIED, cause: "more than once"},
		"another tool": {permits: []*callv1.SignedPermit{permit(func(p *callv1.Permit) { p.Tools = []string{"gpu_status"} })}, code: callv1.Code_CODE_DENIED, cause: "name the tool"},
		"another sink": {permits: []*callv1.SignedPermit{permit(func(p *callv1.Permit) { p.Audience = "spiffe://durward.local/executor/other" })}, code: callv1.Code_CODE_DENIED, cause: "another sink"},
		"a grant":      {change: withGrant, code: callv1.Code_CODE_DENIED, cause: "a grant for what takes a permit"},
		"both":         {permits: []*callv1.SignedPermit{good}, change: withGrant, code: callv1.Code_CODE_DENIED, cause: "a grant for what takes a permit"},
		"not recorded": {permits: []*callv1.SignedPermit{good}, full: true, code: callv1.Code_CODE_AUDIT_UNAVAILABLE},
		"its permit":   {permits: []*callv1.SignedPermit{good}},
		"an operator's": {change: func(ctx context.Context) context.Context {
			return rpc.WithCaller(ctx, kit.ID(optionsv1.Role_ROLE_OPERATOR, platformtest.Operator))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, log := newAuthority(t, kit)
			a.under[info.FullMethod] = a.under[executorv1.EventService_WatchServices_FullMethodName]
			log.full = c.full
			ctx := streamContext(t, kit, c.permits...)
			if c.change != nil {
				ctx = c.change(ctx)
			}
			served := false
			got, err := a.Unary(plain{})(ctx, &executorv1.WatchServicesRequest{}, info, func(context.Context, any) (any, error) {
				served = true
				return &executorv1.WatchServicesResponse{}, nil
			})
			if c.code != callv1.Code_CODE_UNSPECIFIED {
				if !fault.Is(err, c.code) || got != nil || served && !c.full {
					t.Errorf("got %v, %v, want %s; served: %t", got, err, c.code, served)
				}
				if c.full {
					return
				}
			} else if err != nil || !served {
				t.Errorf("got %v; served: %t", err, served)
			}
			kind := auditv1.Kind_KIND_READ
			if err != nil {
				kind = auditv1.Kind_KIND_SINK_REFUSED
			}
			if len(log.records) != 1 || log.records[0].GetKind() != kind || log.records[0].GetTool() != "list_services" ||
				log.records[0].GetBody().GetDetails()["method"] != info.FullMethod || !strings.Contains(log.records[0].GetBody().GetReason(), c.cause) {
				t.Errorf("recorded as %v", log.records)
			}
		})
	}
}

// A stream is recorded once and lasts as long as what let it in: the permit's own time, and its epoch.
func TestAStreamEndsWithItsPermit(t *testing.T) {
	kit := platformtest.New(t)
	permit := streamPermit(t, kit, func(p *callv1.Permit) { p.Epoch = 5 })
	for name, c := range map[string]struct {
		then  func(t *testing.T, a *Authority)
		lives bool
		left  time.Duration
	}{
		"its time is over": {then: func(*testing.T, *Authority) { time.Sleep(2 * time.Minute) }},               // in a bubble of synctest, which takes no time
		"almost over":      {then: func(*testing.T, *Authority) { time.Sleep(50 * time.Second) }, lives: true}, // in a bubble of synctest, which takes no time
		"a halt raises the epoch beyond": {then: func(t *testing.T, a *Authority) {
			if _, err := a.Halt(t.Context(), "drill", 6); err != nil {
				t.Error(err)
			}
		}},
		"a halt raises the epoch up to the permit's": {then: func(t *testing.T, a *Authority) {
			if _, err := a.Halt(t.Context(), "drill", 5); err != nil {
				t.Error(err)
			}
		}, lives: true},
		"a grant brings a higher epoch": {then: func(t *testing.T, a *Authority) {
			if err := a.adoptEpoch(t.Context(), &call{}, 7); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, log := newAuthority(t, kit, func(c *Config) {
				began := time.Now() // of the world outside, in which the permit was signed
				c.Now = func() time.Time { return began }
			})
			synctest.Test(t, func(t *testing.T) {
				start, outside := time.Now(), a.cfg.Now()
				a.cfg.Now = func() time.Time { return outside.Add(time.Since(start)) }
				w := &wire{ctx: streamContext(t, kit, permit)}
				began, ended := make(chan struct{}), make(chan error, 1)
				go func() { ended <- a.Stream()(nil, w, watchInfo, watching(func() { close(began) })) }()
				<-began
				c.then(t, a)
				synctest.Wait()
				if c.lives {
					select {
					case err := <-ended:
						t.Errorf("it ended: %v", err)
					default:
						time.Sleep(2 * time.Minute)
					}
				}
				if err := <-ended; !fault.Is(err, callv1.Code_CODE_EXPIRED) || w.sent != 1 {
					t.Errorf("%v after %d messages", err, w.sent)
				}
				var reads []*auditv1.Record
				for _, r := range log.records {
					if r.GetKind() == auditv1.Kind_KIND_READ {
						reads = append(reads, r)
					}
				}
				if len(reads) != 1 || reads[0].GetTool() != "list_services" || reads[0].GetBody().GetPrincipal() != "claude" ||
					reads[0].GetBody().GetDetails()["method"] != watchInfo.FullMethod {
					t.Errorf("recorded as %v", reads)
				}
			})
		})
	}
}

// The permit of an internal program is put to the vault at each read, and again while its stream is quiet; a gateway's is not.
func TestProgramsPermitIsAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStand(t)
		program := s.kit.ID(optionsv1.Role_ROLE_TOOL, "reporter")
		own := streamContext(t, s.kit, streamPermit(t, s.kit, func(p *callv1.Permit) { p.Principal = "reporter" }))
		theirs := streamContext(t, s.kit, streamPermit(t, s.kit, func(*callv1.Permit) {}))
		list := &grpc.UnaryServerInfo{FullMethod: executorv1.ToolService_ListServices_FullMethodName}
		read := func(ctx context.Context) error {
			_, err := s.Unary(plain{})(ctx, &executorv1.ListServicesRequest{}, list, func(context.Context, any) (any, error) {
				return &executorv1.ListServicesResponse{}, nil
			})
			return err
		}
		watch := func(ctx context.Context) chan error {
			ended := make(chan error, 1)
			go func() { ended <- s.Stream()(nil, &wire{ctx: ctx}, watchInfo, watching(func() {})) }()
			synctest.Wait()
			return ended
		}
		own = rpc.WithCaller(own, program)
		if err := read(own); err != nil || s.clerk.checked != 1 {
			t.Errorf("%v, asked %d times", err, s.clerk.checked)
		}
		if err := read(theirs); err != nil || s.clerk.checked != 1 {
			t.Errorf("a gateway's: %v, asked %d times", err, s.clerk.checked)
		}
		if err := read(rpc.WithCaller(theirs, program)); !fault.Is(err, callv1.Code_CODE_DENIED) || s.clerk.checked != 1 {
			t.Errorf("another's permit: %v, asked %d times", err, s.clerk.checked)
		}
		answer := func(with error) {
			s.clerk.mu.Lock()
			defer s.clerk.mu.Unlock()
			s.clerk.answer = with
		}
		gateways := watch(theirs)
		for refusal, code := range map[error]callv1.Code{
			fault.New(callv1.Code_CODE_DENIED, "gone"):      callv1.Code_CODE_DENIED,
			fault.New(callv1.Code_CODE_EXPIRED, "over"):     callv1.Code_CODE_EXPIRED,
			fault.New(callv1.Code_CODE_INTERNAL, "strange"): callv1.Code_CODE_UNAVAILABLE,
			errors.New("nobody answers"):                    callv1.Code_CODE_UNAVAILABLE,
		} {
			answer(nil)
			open := watch(own)
			answer(refusal)
			began := time.Now()
			for what, err := range map[string]error{"a stream": <-open, "a read": read(own), "another stream": <-watch(own)} {
				if !fault.Is(err, code) {
					t.Errorf("%v: %s: %v", refusal, what, err)
				}
			}
			if took := time.Since(began); took > permitInterval {
				t.Errorf("%v: the stream went on for %s", refusal, took)
			}
			if err := read(theirs); err != nil {
				t.Errorf("%v: a gateway's: %v", refusal, err)
			}
		}
		time.Sleep(2 * time.Minute) // its minute
		if err := <-gateways; !fault.Is(err, callv1.Code_CODE_EXPIRED) {
			t.Errorf("a gateway's stream: %v", err)
		}
	})
}
