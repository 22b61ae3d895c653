package mcpserver_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"durward.internal/gateway/internal/cors"
	"durward.internal/gateway/internal/httpfront"
	"durward.internal/gateway/internal/mcpserver"
	"durward.internal/gateway/internal/metrics"
	"durward.internal/gateway/internal/refusal"
	"durward.internal/gateway/internal/relay"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	egressv1 "durward.internal/proto/gen/durward/egress/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
)

// Tokens of the test's clients.
const (
	tokenAgent  = "agent-token"
	tokenOther  = "other-token"
	tokenSigner = "signer-token"
	tokenSecond = "signer-second-token" // of a client that signs too
	tokenChat   = "chat-token"
)

// patience is how long a test waits for an event before it fails.
const patience = 30 * time.Second

// longestHold is longer than patience: a call that is held so long and ends before was let go.
const longestHold = mcpserver.LongestHold

// news wakes those who wait for something to become true.
type news struct{ clock.Signal }

// await waits until done reports true, which it asks again whenever something was told.
func (n *news) await(t testing.TB, what string, done func() bool) {
	t.Helper()
	late := time.After(patience)
	for {
		next := n.Wait()
		if done() {
			return
		}
		select {
		case <-next:
		case <-late:
			t.Fatalf("never: %s", what)
		}
	}
}

// poll asks again and again until done reports true. It is for what the gateway takes up by itself and shows in its answers
// alone, so that there is no event to wait for.
func poll(t testing.TB, what string, done func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !done(); time.Sleep(5 * time.Millisecond) { // no event: see above
		if time.Now().After(late) {
			t.Fatalf("never: %s", what)
		}
	}
}

// fakeVault opens sessions for known tokens, issues real signed permits, and decides as the test says.
type fakeVault struct {
	vaultv1.UnimplementedSessionServiceServer
	vaultv1.UnimplementedAuthorityServiceServer
	vaultv1.UnimplementedToolServiceServer
	vaultv1.UnimplementedOperationServiceServer

	kit *platformtest.Kit
	// decide answers Authorise; nil: pending.
	decide func(*vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error)
	// permitLife is how long permits last; 0: a minute.
	permitLife time.Duration

	mu         sync.Mutex
	principals map[string]string // token -> principal
	sessions   map[string]string // handle -> principal
	operations map[string]*fakeOperation
	asked      []*vaultv1.AuthoriseRequest
	opened     int
	renewed    int
	closed     int
	full       bool // as many sessions as the client may have
	hang       chan struct{}
	// uncovered are READ tools that permits are not for.
	uncovered map[string]bool
	// denied are tools that the client may not call.
	denied map[string]bool
	// overrides is what an override of security_config says that it changed.
	overrides []string
	// said are words about sessions, for the stream of them.
	said chan *vaultv1.WatchSessionsResponse
	// deaf: nobody can watch sessions, and who does is cut off. watches counts those who do.
	deaf    bool
	watches int
	// unsigned counts openings of key-bound clients without a proof.
	unsigned int
	// unwilling is what whoever waits for an operation is answered.
	unwilling *fault.Error
	waiting   int
	news      news
}

type fakeOperation struct {
	state     vaultv1.OperationState
	tool      *callv1.ToolRef
	arguments []byte
	reason    string
	halted    bool
	// ungranted: what let it run is over, and it gets no grant any more.
	ungranted bool
	principal string
	changed   clock.Signal
}

func newFakeVault(kit *platformtest.Kit) *fakeVault {
	return &fakeVault{
		kit:        kit,
		principals: map[string]string{tokenAgent: "agent", tokenOther: "other", tokenSigner: "signer", tokenSecond: "signer-second", tokenChat: "chat"},
		sessions:   map[string]string{}, operations: map[string]*fakeOperation{}, uncovered: map[string]bool{},
		said: make(chan *vaultv1.WatchSessionsResponse, 10),
	}
}

// signs reports whether a client is key-bound.
func signs(principal string) bool { return strings.HasPrefix(principal, "signer") }

func hexID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

func (v *fakeVault) blocked(ctx context.Context) error {
	v.mu.Lock()
	hang := v.hang
	v.mu.Unlock()
	if hang == nil {
		return nil
	}
	select {
	case <-hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (v *fakeVault) permits(principal string) ([]*vaultv1.AddressedPermit, error) {
	life := v.permitLife
	if life == 0 {
		life = time.Minute
	}
	now := time.Now().Truncate(time.Second)
	var out []*vaultv1.AddressedPermit
	covered := map[optionsv1.Role][]string{}
	for _, tool := range contract.All() {
		if tool.ByPermit() && !v.uncovered[tool.Name] {
			covered[tool.Sink] = append(covered[tool.Sink], tool.Name)
		}
	}
	for role, tools := range covered {
		p := &callv1.Permit{
			Version: 1, Id: hexID(), Principal: principal, Session: "s-" + principal, Channel: callv1.Channel_CHANNEL_CLI, Tools: tools,
			Audience: v.kit.ID(role, "main").String(), Epoch: 1,
			IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(life)),
		}
		signed, err := grant.SignPermit(v.kit.GrantKey, p)
		if err != nil {
			return nil, err
		}
		out = append(out, &vaultv1.AddressedPermit{Role: role, Audience: p.Audience, Permit: signed, ExpiresAt: p.ExpiresAt})
	}
	return out, nil
}

func (v *fakeVault) callable() (names []string) {
	for _, tool := range contract.All() {
		if !v.denied[tool.Name] {
			names = append(names, tool.Name)
		}
	}
	return names
}

func (v *fakeVault) OpenSession(ctx context.Context, req *vaultv1.OpenSessionRequest) (*vaultv1.OpenSessionResponse, error) {
	if err := v.blocked(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	principal, ok := v.principals[req.GetCredential()]
	if !ok {
		return nil, fault.New(callv1.Code_CODE_UNAUTHENTICATED, "not allowed")
	}
	keyBound := signs(principal)
	if keyBound && req.GetProof() == nil {
		v.unsigned++
		v.news.Raise()
		return nil, fault.New(callv1.Code_CODE_PROOF_REQUIRED, "the client must sign this request")
	}
	if v.full {
		return nil, fault.New(callv1.Code_CODE_RATE_LIMITED, "too many sessions", fault.WithRetry(time.Second))
	}
	if (principal == "chat") != (req.GetSender() != nil) {
		return nil, fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "whom the client speaks for", fault.WithField("sender"))
	}
	if sender := req.GetSender(); sender != nil && sender.GetUser() != "chat" {
		principal += "." + sender.GetUser() // the fake keeps people apart by what it calls the session
	}
	v.opened++
	handle := hexID()
	v.sessions[handle] = principal
	permits, err := v.permits(principal)
	if err != nil {
		return nil, err
	}
	channel := callv1.Channel_CHANNEL_CLI
	if req.GetSender() != nil {
		channel = callv1.Channel_CHANNEL_MESSAGING
	}
	return &vaultv1.OpenSessionResponse{
		SessionId: handle, Session: "s-" + principal, Principal: v.principals[req.GetCredential()], Channel: channel,
		TierCeiling: optionsv1.Tier_TIER_DESTRUCTIVE, KeyBound: keyBound, Permits: permits, Tools: v.callable(),
		ExpiresAt: timestamppb.New(time.Now().Add(8 * time.Hour)), IdleTimeoutS: 1800,
	}, nil
}

func (v *fakeVault) RenewPermits(ctx context.Context, req *vaultv1.RenewPermitsRequest) (*vaultv1.RenewPermitsResponse, error) {
	if err := v.blocked(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	principal, ok := v.sessions[req.GetSessionId()]
	if !ok {
		return nil, fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; open another")
	}
	if signs(principal) && req.GetProof() == nil {
		return nil, fault.New(callv1.Code_CODE_PROOF_REQUIRED, "the client must sign this request")
	}
	v.renewed++
	permits, err := v.permits(principal)
	if err != nil {
		return nil, err
	}
	return &vaultv1.RenewPermitsResponse{Permits: permits, Tools: v.callable()}, nil
}

func (v *fakeVault) CloseSession(_ context.Context, req *vaultv1.CloseSessionRequest) (*vaultv1.CloseSessionResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.sessions, req.GetSessionId())
	v.closed++
	v.news.Raise()
	return &vaultv1.CloseSessionResponse{}, nil
}

func (v *fakeVault) Authorise(ctx context.Context, req *vaultv1.AuthoriseRequest) (*vaultv1.AuthoriseResponse, error) {
	if err := v.blocked(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	principal, ok := v.sessions[req.GetSessionId()]
	if !ok {
		return nil, fault.New(callv1.Code_CODE_UNAUTHENTICATED, "the session has ended; open another")
	}
	if signs(principal) && req.GetProof() == nil {
		return nil, fault.New(callv1.Code_CODE_PROOF_REQUIRED, "the client must sign this request")
	}
	v.asked = append(v.asked, req)
	if v.decide != nil {
		return v.decide(req)
	}
	id := hexID()
	v.operations[id] = &fakeOperation{
		state: vaultv1.OperationState_OPERATION_STATE_PENDING, tool: req.GetTool(), arguments: req.GetArguments(),
		principal: principal,
	}
	v.news.Raise()
	return &vaultv1.AuthoriseResponse{
		Decision: vaultv1.AuthoriseResponse_DECISION_PENDING, OperationId: id,
		ExpiresAt: timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
	}, nil
}

// set moves an operation on and wakes whoever waits for it.
func (v *fakeVault) set(id string, state vaultv1.OperationState, reason string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o := v.operations[id]
	o.state, o.reason = state, reason
	o.changed.Raise()
}

// pending returns the id of the one operation that waits, once there is one.
func (v *fakeVault) pending(t *testing.T) (pending string) {
	t.Helper()
	v.news.await(t, "something is asked for", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		for id, o := range v.operations {
			if o.state == vaultv1.OperationState_OPERATION_STATE_PENDING {
				pending = id
			}
		}
		return pending != ""
	})
	return pending
}

// wait counts who waits for operations.
func (v *fakeVault) wait(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.waiting += n
	v.news.Raise()
}

func (v *fakeVault) WaitOperation(ctx context.Context, req *vaultv1.WaitOperationRequest) (*vaultv1.WaitOperationResponse, error) {
	if err := v.blocked(ctx); err != nil {
		return nil, err
	}
	v.mu.Lock()
	unwilling := v.unwilling
	v.mu.Unlock()
	if unwilling != nil {
		return nil, unwilling
	}
	v.wait(1)
	defer v.wait(-1)
	md, _ := metadata.FromIncomingContext(ctx)
	principal, err := permitHolder(v.kit, md)
	if err != nil {
		return nil, err
	}
	for {
		v.mu.Lock()
		o, ok := v.operations[req.GetOperationId()]
		if !ok || o.principal != principal {
			v.mu.Unlock()
			return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such operation")
		}
		out := &vaultv1.WaitOperationResponse{
			State: o.state, Tool: o.tool, Arguments: o.arguments, Reason: o.reason, Halted: o.halted,
			ExpiresAt: timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
		}
		changed := o.changed.Wait()
		v.mu.Unlock()
		switch out.State {
		case vaultv1.OperationState_OPERATION_STATE_PENDING:
		case vaultv1.OperationState_OPERATION_STATE_APPROVED, vaultv1.OperationState_OPERATION_STATE_RUNNING, vaultv1.OperationState_OPERATION_STATE_DONE:
			if !o.ungranted {
				out.Grant = &callv1.SignedGrant{Payload: []byte(req.GetOperationId()), Kid: "test", Signature: make([]byte, 64)}
			}
			return out, nil
		default:
			return out, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
			return out, nil
		}
	}
}

// WatchSessions passes on what the test says.
func (v *fakeVault) WatchSessions(_ *vaultv1.WatchSessionsRequest, to grpc.ServerStreamingServer[vaultv1.WatchSessionsResponse]) error {
	watching := func(n int) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.watches += n
		v.news.Raise()
	}
	watching(1)
	defer watching(-1)
	for begun := false; ; {
		v.mu.Lock()
		deaf, news := v.deaf, v.news.Wait()
		v.mu.Unlock()
		if deaf {
			return fault.New(callv1.Code_CODE_UNAVAILABLE, "the watch broke off")
		}
		if !begun {
			if err := to.SendHeader(nil); err != nil {
				return err
			}
			begun = true
		}
		select {
		case m := <-v.said:
			if err := to.Send(m); err != nil {
				return err
			}
		case <-news:
		case <-to.Context().Done():
			return nil
		}
	}
}

// SecurityConfig lowers a session's ceiling as far as it is asked to.
func (v *fakeVault) SecurityConfig(ctx context.Context, req *vaultv1.SecurityConfigRequest) (*vaultv1.SecurityConfigResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if _, err := permitHolder(v.kit, md); err != nil {
		return nil, err
	}
	out := &vaultv1.SecurityConfigResponse{TierCeiling: optionsv1.Tier_TIER_DESTRUCTIVE, Boundary: "Only a human changes this."}
	if req.TierCeilingOverride == nil {
		return out, nil
	}
	out.TierCeiling = req.GetTierCeilingOverride()
	outcome, err := proto.Marshal(&callv1.Outcome{Overrides: v.overrides, Warnings: []string{"The ceiling is lower until the session ends."}})
	if err != nil {
		return nil, err
	}
	return out, grpc.SetTrailer(ctx, metadata.Pairs(rpc.TrailerOutcome, string(outcome)))
}

// deserted waits until nobody waits for an operation.
func (v *fakeVault) deserted(t *testing.T) {
	t.Helper()
	v.news.await(t, "nobody waits", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.waiting == 0
	})
}

func permitHolder(kit *platformtest.Kit, md metadata.MD) (string, error) {
	values := md.Get(rpc.MetadataPermit)
	if len(values) != 1 {
		return "", fault.New(callv1.Code_CODE_UNAUTHENTICATED, "no permit")
	}
	signed := new(callv1.SignedPermit)
	if err := proto.Unmarshal([]byte(values[0]), signed); err != nil {
		return "", fault.New(callv1.Code_CODE_UNAUTHENTICATED, "no permit")
	}
	p, err := grant.VerifyPermit(signed, kit.Trust.Current(), time.Now())
	if err != nil {
		return "", fault.New(callv1.Code_CODE_UNAUTHENTICATED, "no permit", fault.WithCause(err))
	}
	return p.GetPrincipal(), nil
}

// fakeExecutor answers reads that come with a permit, and counts effects of calls that come with a grant.
type fakeExecutor struct {
	executorv1.UnimplementedToolServiceServer
	executorv1.UnimplementedEventServiceServer
	egressv1.UnimplementedServerServiceServer
	fakeEvents
	kit     *platformtest.Kit
	permits sync.Map

	mu         sync.Mutex
	effects    int
	reads      int
	granted    int // reads with a grant of their own
	requestIDs []string
	// slow delays effects until it is closed.
	slow chan struct{}
	// told delays a switch until its steps were told.
	told chan struct{}
	// cancelled counts reads whose caller went away.
	cancelled int
	news      news
	// fail is what changes end with; failed: their grant is spent by it.
	fail   *fault.Error
	failed bool
	// simulated is what a simulation says; nil: it fails.
	simulated *executorv1.SimulateModeResponse
	// refuse is what the next reads answer.
	refuse []*fault.Error
	name   string
	spent  map[string]bool
}

func (e *fakeExecutor) GpuStatus(ctx context.Context, _ *executorv1.GpuStatusRequest) (*executorv1.GpuStatusResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	permit := strings.Join(md.Get(rpc.MetadataPermit), "")
	if grants := md.Get(rpc.MetadataGrant); permit == "" && len(grants) == 1 {
		e.mu.Lock()
		e.granted++
		e.mu.Unlock()
	} else if _, known := e.permits.Load(permit); !known { // like a sink, which verifies a permit once
		if _, err := permitHolder(e.kit, md); err != nil {
			return nil, err
		}
		e.permits.Store(permit, true)
	}
	e.mu.Lock()
	if len(e.refuse) > 0 {
		refuse := e.refuse[0]
		e.refuse = e.refuse[1:]
		e.mu.Unlock()
		return nil, refuse
	}
	e.reads++
	e.requestIDs = append(e.requestIDs, rpc.RequestID(ctx))
	name, slow := e.name, e.slow
	e.news.Raise()
	e.mu.Unlock()
	if slow != nil {
		select {
		case <-slow:
		case <-ctx.Done():
			if until, bounded := ctx.Deadline(); !bounded || time.Until(until) > time.Second { // else it ran out of time
				e.mu.Lock()
				e.cancelled++
				e.news.Raise()
				e.mu.Unlock()
			}
			return nil, ctx.Err()
		}
	}
	return &executorv1.GpuStatusResponse{
		Gpus:   []*executorv1.Gpu{{Index: 0, Uuid: "GPU-0", Name: name, Simulated: true, MemoryTotalMib: 24576, Services: []string{"demo-chat"}}},
		Source: "simulated",
	}, nil
}

func (e *fakeExecutor) ServiceInfo(_ context.Context, req *executorv1.ServiceInfoRequest) (*executorv1.ServiceInfoResponse, error) {
	if req.GetServiceId() != "demo-chat" {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such service", fault.WithField("service_id"), fault.WithSuggestions("demo-chat"))
	}
	return &executorv1.ServiceInfoResponse{Service: &executorv1.ServiceDetail{ServiceId: "demo-chat"}}, nil
}

func (e *fakeExecutor) StartService(ctx context.Context, req *executorv1.StartServiceRequest) (*executorv1.StartServiceResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(rpc.MetadataGrant)
	if len(values) != 1 {
		return nil, fault.New(callv1.Code_CODE_DENIED, "not allowed")
	}
	signed := new(callv1.SignedGrant)
	if err := proto.Unmarshal([]byte(values[0]), signed); err != nil {
		return nil, err
	}
	e.mu.Lock()
	slow, fail, failed, name := e.slow, e.fail, e.failed, e.name
	key := string(signed.GetPayload())
	replayed := e.spent[key]
	if fail == nil && !replayed {
		e.effects++
		if e.spent == nil {
			e.spent = map[string]bool{}
		}
		e.spent[key] = true
		e.news.Raise()
	}
	e.mu.Unlock()
	if slow != nil {
		<-slow
	}
	if fail != nil {
		if failed {
			rpc.SetOutcome(ctx, &callv1.Outcome{OperationId: key, Summary: fail.Message})
		}
		return nil, fail
	}
	outcome, err := proto.Marshal(&callv1.Outcome{
		Replayed: replayed, Summary: "Started " + req.GetServiceId() + ".", Warnings: []string{"slow disk\x1b[31m"},
		Receipt:     &callv1.Receipt{Index: 7, Checkpoint: []byte("durward.local/audit/main\n8\nhash\n\n— sig\n"), LeafHash: []byte("leaf"), Inclusion: [][]byte{[]byte("path")}},
		OperationId: key,
	})
	if err != nil {
		return nil, err
	}
	if err := grpc.SetTrailer(ctx, metadata.Pairs(rpc.TrailerOutcome, string(outcome))); err != nil {
		return nil, err
	}
	return &executorv1.StartServiceResponse{
		Service: &executorv1.ServiceDetail{ServiceId: req.GetServiceId(), Name: name, State: executorv1.ServiceState_SERVICE_STATE_RUNNING}, Changed: true,
	}, nil
}

func (e *fakeExecutor) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.effects
}

// carriedOut waits until something has an effect.
func (e *fakeExecutor) carriedOut(t testing.TB) {
	t.Helper()
	e.news.await(t, "an effect", func() bool { return e.count() > 0 })
}

// readOf waits until something reads.
func (e *fakeExecutor) readOf(t testing.TB) {
	t.Helper()
	e.news.await(t, "a read", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.reads > 0
	})
}

// cancels waits until a read is cancelled.
func (e *fakeExecutor) cancels(t testing.TB) {
	t.Helper()
	e.news.await(t, "the executor is told that its caller left", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.cancelled == 1
	})
}

// fakeSpool keeps what was recorded.
type fakeSpool struct {
	mu      sync.Mutex
	records []*auditv1.Record
}

func (s *fakeSpool) Spool(_ context.Context, r *auditv1.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records = append(s.records, r)
	return nil
}

func (s *fakeSpool) find(requestID string) *auditv1.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.records {
		if r.GetRequestId() == requestID {
			return r
		}
	}
	return nil
}

// recorded returns how many refusals the records account for, by code: those of one kind stand for each other.
func (e *edge) recorded(t testing.TB) map[string]int {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	e.refusals.Run(ctx, time.Second)
	e.spool.mu.Lock()
	defer e.spool.mu.Unlock()
	out := map[string]int{}
	for _, r := range e.spool.records {
		code, _, found := strings.Cut(strings.TrimPrefix(r.GetBody().GetReason(), "CODE_"), ": ")
		n := 1
		if many := r.GetBody().GetDetails()["count"]; many != "" {
			var err error
			n, err = strconv.Atoi(many)
			must(t, err)
		}
		if !found || r.GetRequestId() == "" {
			t.Errorf("a record is %v", r)
		}
		out[code] += n
	}
	return out
}

// edge is a whole gateway over real HTTP, with fake peers behind real mutual TLS.
type edge struct {
	url      string
	vault    *fakeVault
	executor *fakeExecutor
	spool    *fakeSpool
	refusals *refusal.Recorder
	front    *httpfront.Front
	server   *mcpserver.Server
	peers    *relay.Relay
	drain    func()
	// joined gets a value for each caller that joins an operation under way.
	joined chan struct{}
}

type edgeOptions struct {
	hold         time.Duration
	vaultDown    bool
	executorDown bool
	sessions     int
	calls        int
	decide       time.Duration
	idle         time.Duration
	telling      time.Duration
	fresh        time.Duration
	// permits is how long permits last; 0: a minute.
	permits time.Duration
	// silence is how long a stream is silent; 0: as in the program.
	silence time.Duration
	// throughSDK has the SDK serve every message.
	throughSDK bool
	// pages are the principals whose tools/list has pages.
	pages []string
	// metrics counts; nil: nobody does.
	metrics *metrics.Metrics
	// wrap is around the connections to the peers; nil leaves them as they are.
	wrap func(grpc.ClientConnInterface) grpc.ClientConnInterface
}

// direct is the front's Direct, as the program's configuration has it.
func direct(s *mcpserver.Server, throughSDK bool) httpfront.Direct {
	if throughSDK {
		return nil
	}
	return s.Direct
}

func newEdge(t testing.TB, opts edgeOptions) *edge {
	t.Helper()
	kit := platformtest.New(t)
	e := &edge{vault: newFakeVault(kit), executor: &fakeExecutor{kit: kit, name: "Simulated GPU"}, spool: &fakeSpool{}, joined: make(chan struct{}, 100)}
	e.vault.permitLife = opts.permits
	gateway := kit.ID(optionsv1.Role_ROLE_GATEWAY, "main")
	dead := "127.0.0.1:1"
	vaultAddr, executorAddr := dead, dead
	if !opts.vaultDown {
		vaultAddr = kit.Serve(t, optionsv1.Role_ROLE_VAULT, "main", func(r grpc.ServiceRegistrar) {
			vaultv1.RegisterSessionServiceServer(r, e.vault)
			vaultv1.RegisterAuthorityServiceServer(r, e.vault)
			vaultv1.RegisterToolServiceServer(r, e.vault)
			vaultv1.RegisterOperationServiceServer(r, e.vault)
		})
	}
	if !opts.executorDown {
		executorAddr = kit.Serve(t, optionsv1.Role_ROLE_EXECUTOR, "local", func(r grpc.ServiceRegistrar) {
			executorv1.RegisterToolServiceServer(r, e.executor)
			executorv1.RegisterEventServiceServer(r, e.executor)
			egressv1.RegisterServerServiceServer(r, e.executor)
		})
	}
	logger := platformtest.Logger()
	refusals, err := refusal.New(e.spool, logger)
	must(t, err)
	e.refusals = refusals
	wrap := opts.wrap
	if wrap == nil {
		wrap = func(conn grpc.ClientConnInterface) grpc.ClientConnInterface { return conn }
	}
	peers, err := relay.New(relay.Config{
		Vault:         wrap(kit.Dial(t, gateway, vaultAddr, kit.ID(optionsv1.Role_ROLE_VAULT, "main"))),
		Waits:         wrap(kit.Dial(t, gateway, vaultAddr, kit.ID(optionsv1.Role_ROLE_VAULT, "main"))),
		Executor:      wrap(kit.Dial(t, gateway, executorAddr, kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local"))),
		Egress:        wrap(kit.Dial(t, gateway, executorAddr, kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local"))), // its tools are listed, and none is called
		Logger:        logger,
		DecideTimeout: opts.decide,
		Fresh:         opts.fresh,
		Joined:        func() { e.joined <- struct{}{} },
	})
	must(t, err)
	e.peers = peers
	beside := func(run func(context.Context)) {
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); run(ctx) }()
		t.Cleanup(func() { stop(); <-ended })
	}
	beside(peers.WatchSessions)
	draining := make(chan struct{})
	e.drain = sync.OnceFunc(func() { close(draining) })
	server, err := mcpserver.New(mcpserver.Config{
		Relay: peers, Refusals: refusals, Metrics: opts.metrics, Logger: logger, Version: "test", Hold: orDefault(opts.hold, time.Second),
		SessionTimeout: orDefault(opts.idle, time.Minute), Draining: draining, Pages: opts.pages,
	}.TellingEvery(opts.telling))
	must(t, err)
	e.server = server
	beside(server.TellLists)
	limits := lifted()
	limits.CallsPerPrincipal = orDefault(opts.calls, 8)
	edge, err := httpfront.New(httpfront.Config{
		Sessions: peers, Stateful: server.Handler(httpfront.Stateful), Stateless: server.Handler(httpfront.Stateless),
		Direct: direct(server, opts.throughSDK), Metrics: opts.metrics, Refusals: refusals, Logger: logger, Hosts: []string{"gateway.example"}, Origins: cors.NewOrigins("https://console.example"),
		SessionsPerPrincipal: orDefault(opts.sessions, 8), SessionIdle: orDefault(opts.idle, time.Minute),
		Limits: limits, Silence: opts.silence,
	})
	must(t, err)
	e.front = edge
	web := httptest.NewServer(edge)
	t.Cleanup(func() {
		e.drain()
		edge.Close(context.Background())
		web.Close()
	})
	e.url = web.URL + httpfront.Path
	return e
}

func orDefault[T comparable](v, standard T) T {
	var zero T
	if v == zero {
		return standard
	}
	return v
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// reply is what came back over HTTP.
type reply struct {
	status  int
	header  http.Header
	message struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
			Data    struct {
				Code      string   `json:"code"`
				RequestID string   `json:"request_id"`
				Supported []string `json:"supported"`
			} `json:"data"`
		} `json:"error"`
	}
	raw string
}

// request is one HTTP request of a test; the zero value is an authenticated POST.
type request struct {
	method  string
	body    string
	session string
	token   string
	host    string
	query   string
	header  map[string]string
	// follow gets the answer as it comes; nil: nobody.
	follow io.Writer
}

func (e *edge) send(t testing.TB, r request) reply {
	t.Helper()
	out, err := e.try(context.Background(), r)
	must(t, err)
	return out
}

func (e *edge) try(ctx context.Context, r request) (reply, error) {
	req, err := http.NewRequestWithContext(ctx, orDefault(r.method, http.MethodPost), e.url+r.query, strings.NewReader(r.body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if token := orDefault(r.token, tokenAgent); token != "-" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if r.session != "" {
		req.Header.Set("Mcp-Session-Id", r.session)
		req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	req.Host = r.host
	for k, v := range r.header {
		req.Header.Set(k, v)
		if v == "" {
			req.Header.Del(k)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.TeeReader(resp.Body, orDefault(r.follow, io.Discard)))
	if err != nil {
		return reply{}, err
	}
	out := reply{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	data := raw
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		// The answer is the last event; notifications come before it.
		for line := range bytes.Lines(raw) {
			if rest, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				data = rest
			}
		}
	}
	if len(bytes.TrimSpace(data)) > 0 {
		if err := json.Unmarshal(data, &out.message); err != nil {
			return out, errors.New("not a JSON-RPC message: " + string(data))
		}
	}
	return out, nil
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{}},"clientInfo":{"name":"test","version":"1"}}}`

// connect opens a session and returns its id.
func (e *edge) connect(t testing.TB, token string) string {
	t.Helper()
	hello := initialize
	if token == tokenChat {
		hello = speaking(hello, "chat")
	}
	r := e.send(t, request{body: hello, token: token})
	if r.status != 200 || r.message.Error != nil {
		t.Fatalf("initialize: %d %s", r.status, r.raw)
	}
	id := r.header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatal("initialize gave no session id")
	}
	note := e.send(t, request{body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`, token: token, session: id})
	if note.status != http.StatusAccepted {
		t.Fatalf("initialized: %d %s", note.status, note.raw)
	}
	return id
}

// speaking makes a request of the stateful era one that a messaging client makes for somebody.
func speaking(body, user string) string {
	return strings.Replace(body, `"params":{`, `"params":{"_meta":{"durward/sender":{"user":"`+user+`","room":"general"}},`, 1)
}

// toolResult is a tools/call result as clients see it.
type toolResult struct {
	Meta    map[string]any `json:"_meta"`
	Content []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"content"`
	Structured json.RawMessage `json:"structuredContent"`
	IsError    bool            `json:"isError"`
}

// answer is an envelope as clients see it.
type answer struct {
	Status      string `json:"status"`
	Summary     string `json:"summary"`
	RequestID   string `json:"request_id"`
	OperationID string `json:"operation_id"`
	ExpiresAt   string `json:"expires_at"`
	TellUser    string `json:"tell_user"`
	Next        *struct {
		Tool      string         `json:"tool"`
		Arguments map[string]any `json:"arguments"`
	} `json:"next"`
	Result   json.RawMessage `json:"result"`
	Reason   string          `json:"reason"`
	Replayed bool            `json:"replayed"`
	Warnings []string        `json:"warnings"`
	Audit    *struct {
		SessionOverrides []string `json:"session_overrides"`
		Persistent       bool     `json:"persistent"`
		OverrideSource   string   `json:"override_source"`
	} `json:"audit"`
	Error *struct {
		Code       string   `json:"code"`
		Message    string   `json:"message"`
		Field      string   `json:"field"`
		Retryable  bool     `json:"retryable"`
		RetryAfter uint32   `json:"retry_after_s"`
		DidYouMean []string `json:"did_you_mean"`
	} `json:"error"`
	tool toolResult
}

// repeats tells whether the answer holds the text, elsewhere than in the request's id, which is drawn at random.
func (a answer) repeats(text string) bool {
	return strings.Contains(strings.ReplaceAll(string(a.tool.Structured), a.RequestID, ""), text)
}

// call calls a tool and checks what holds for every answer.
func (e *edge) call(t testing.TB, session, name, arguments string) answer {
	t.Helper()
	r := e.send(t, request{session: session, body: toolCall(7, name, arguments)})
	return decodeAnswer(t, r)
}

func toolCall(id int, name, arguments string) string {
	n, _ := json.Marshal(name)
	i, _ := json.Marshal(id)
	return `{"jsonrpc":"2.0","id":` + string(i) + `,"method":"tools/call","params":{"name":` + string(n) + `,"arguments":` + arguments + `}}`
}

func decodeAnswer(t testing.TB, r reply) answer {
	t.Helper()
	if r.status != 200 || r.message.Error != nil {
		t.Fatalf("tools/call: %d %s", r.status, r.raw)
	}
	var a answer
	must(t, json.Unmarshal(r.message.Result, &a.tool))
	must(t, json.Unmarshal(a.tool.Structured, &a))
	if len(a.tool.Content) != 1 || a.tool.Content[0].Type != "text" {
		t.Fatalf("content is not one text: %s", r.raw)
	}
	var text, structured any
	must(t, json.Unmarshal([]byte(a.tool.Content[0].Text), &text))
	must(t, json.Unmarshal(a.tool.Structured, &structured))
	if a, b := mustJSON(t, text), mustJSON(t, structured); a != b {
		t.Errorf("text and structured content differ:\n%s\n%s", a, b)
	}
	if want := slices.Contains([]string{"denied", "error"}, a.Status); a.tool.IsError != want {
		t.Errorf("status %s has isError %t", a.Status, a.tool.IsError)
	}
	if !strings.HasPrefix(a.RequestID, "r-") || a.tool.Meta["durward/request_id"] != a.RequestID || r.header.Get("Durward-Request-Id") != a.RequestID {
		t.Errorf("the request id is not one: %q, %v, %q", a.RequestID, a.tool.Meta["durward/request_id"], r.header.Get("Durward-Request-Id"))
	}
	return a
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	must(t, err)
	return string(b)
}

// closedAtTheVault waits until the vault was told of n sessions' ends.
func (e *edge) closedAtTheVault(t testing.TB, n int) {
	t.Helper()
	e.vault.news.await(t, fmt.Sprintf("the vault is told of %d sessions' ends", n), func() bool {
		e.vault.mu.Lock()
		defer e.vault.mu.Unlock()
		return e.vault.closed == n
	})
}
