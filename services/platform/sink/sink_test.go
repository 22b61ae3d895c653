package sink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

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
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/recorder"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink/unattended"
)

// memory is a Store that forgets when the test ends.
type memory struct {
	control  Control
	entries  map[string]*Entry
	uses     map[[32]byte]int
	finished int
	// unsettled are what the vault was not told of.
	unsettled []*Entry
	// full fails Finish.
	full  error
	state recorder.State
}

func (m *memory) Lookup(_ context.Context, key string) (*Entry, error) { return m.entries[key], nil }
func (m *memory) Spend(_ context.Context, s *Spend) error {
	if s.Statement != nil {
		if m.uses == nil {
			m.uses = map[[32]byte]int{}
		}
		if m.uses[s.Statement.Digest] >= s.Statement.Limit {
			return ErrUsedUp
		}
		m.uses[s.Statement.Digest]++
	}
	m.entries[s.Key] = &Entry{Spend: *s, Result: Result{State: StateSpent}}
	return nil
}
func (m *memory) EndStatement(_ context.Context, digest [32]byte, _ time.Time) error {
	if m.uses == nil {
		m.uses = map[[32]byte]int{}
	}
	m.uses[digest] = 1 << 30
	return nil
}
func (m *memory) State(context.Context) (recorder.State, error) { return m.state, nil }
func (m *memory) Knows(_ context.Context, operation string) (bool, error) {
	for _, e := range m.entries {
		if e.Operation == operation {
			return true, nil
		}
	}
	return false, nil
}
func (m *memory) Finish(_ context.Context, key string, r *Result) error {
	if m.full != nil {
		return m.full
	}
	m.finished++
	m.entries[key].Result = *r
	return nil
}
func (m *memory) Interrupted(context.Context) ([]*Entry, error) {
	var out []*Entry
	for _, e := range m.entries {
		if e.State == StateSpent {
			out = append(out, e)
		}
	}
	return out, nil
}
func (m *memory) Unsettled(context.Context) ([]*Entry, error)   { return m.unsettled, nil }
func (m *memory) Settled(context.Context, []string) error       { return nil }
func (m *memory) Purge(context.Context, time.Time) error        { return nil }
func (m *memory) Control(context.Context) (Control, error)      { return m.control, nil }
func (m *memory) SetControl(_ context.Context, c Control) error { m.control = c; return nil }

// notebook is a Recorder.
type notebook struct {
	mu      sync.Mutex
	records []*auditv1.Record
	full    bool
}

func (n *notebook) Record(_ context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records = append(n.records, r)
	return &callv1.Receipt{}, nil
}
func (n *notebook) Report(ctx context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	return n.Record(ctx, r)
}
func (n *notebook) Spool(_ context.Context, r *auditv1.Record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.full {
		return errors.New("full")
	}
	n.records = append(n.records, r)
	return nil
}

// willing is a Redeemer.
type willing struct{ settle error }

func (willing) Redeem(context.Context, *vaultv1.RedeemRequest, ...grpc.CallOption) (*vaultv1.RedeemResponse, error) {
	return &vaultv1.RedeemResponse{}, nil
}
func (willing) CheckPermit(context.Context, *vaultv1.CheckPermitRequest, ...grpc.CallOption) (*vaultv1.CheckPermitResponse, error) {
	return &vaultv1.CheckPermitResponse{}, nil
}
func (willing) CheckGrant(context.Context, *vaultv1.CheckGrantRequest, ...grpc.CallOption) (*vaultv1.CheckGrantResponse, error) {
	return &vaultv1.CheckGrantResponse{}, nil
}
func (w willing) Settle(context.Context, *vaultv1.SettleRequest, ...grpc.CallOption) (*vaultv1.SettleResponse, error) {
	return &vaultv1.SettleResponse{}, w.settle
}

// plain is a Subjects and a Finder.
type plain struct{}

func (plain) Subject(context.Context, contract.Tool, proto.Message) (*callv1.Subject, error) {
	return &callv1.Subject{Entry: []byte("{}")}, nil
}
func (plain) Found(context.Context, string, string, []byte) string { return "stopped" }

func newAuthority(t testing.TB, kit *platformtest.Kit, configure ...func(*Config)) (*Authority, *memory, *notebook) {
	t.Helper()
	store, log := &memory{control: Control{Epoch: 1}, entries: map[string]*Entry{}}, &notebook{}
	cfg := Config{
		Self: kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local"), Trust: kit.Trust, Store: store, Recorder: log, Vault: willing{},
		Tokeniser: &censor{}, Logger: platformtest.Logger(),
	}
	for _, c := range configure {
		c(&cfg)
	}
	a, err := New(context.Background(), cfg)
	must(t, err)
	return a, store, log
}

func TestUnattendedNamesOwnToolsAlone(t *testing.T) {
	kit := platformtest.New(t)
	for _, name := range []string{"no_such_tool", "wait_operation", ""} {
		_, err := New(t.Context(), Config{Self: kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local"), Store: &memory{}, Unattended: []unattended.Entry{{Tool: name}}})
		if err == nil {
			t.Errorf("%q may run unattended", name)
		}
	}
}

func TestPermitsAreRememberedWithinBounds(t *testing.T) {
	kit := platformtest.New(t)
	var cache permitCache
	verified := 0
	verify := func([]byte) (*admitted, error) { verified++; return &admitted{}, nil }
	for i := range 3 * permitCacheSize {
		hot := []byte("hot")
		if _, err := cache.verified(hot, kit.Trust, verify); err != nil {
			t.Fatal(err)
		}
		if _, err := cache.verified(fmt.Append(nil, i), kit.Trust, verify); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(cache.young) + len(cache.old); n > permitCacheSize {
		t.Errorf("%d are remembered", n)
	}
	if verified != 3*permitCacheSize+1 {
		t.Errorf("%d verifications, want one for the hot permit", verified)
	}
	bad := errors.New("bad")
	if _, err := cache.verified([]byte("bad"), kit.Trust, func([]byte) (*admitted, error) { return nil, bad }); !errors.Is(err, bad) {
		t.Errorf("error is %v", err)
	}
	if cache.young[sha256.Sum256([]byte("bad"))] != nil {
		t.Error("a permit that did not verify is remembered")
	}
}

func TestMetadataIsTakenOnce(t *testing.T) {
	in := func(values ...string) context.Context {
		md := metadata.MD{}
		md.Append(rpc.MetadataGrant, values...)
		return metadata.NewIncomingContext(t.Context(), md)
	}
	if raw, err := header(t.Context(), rpc.MetadataGrant); raw != nil || err != nil {
		t.Errorf("none: %q, %v", raw, err)
	}
	if raw, err := header(in("one"), rpc.MetadataGrant); string(raw) != "one" || err != nil {
		t.Errorf("one: %q, %v", raw, err)
	}
	if _, err := header(in("one", "one"), rpc.MetadataGrant); err == nil {
		t.Error("two were taken")
	}
}

func TestSentencesGiveNothingAway(t *testing.T) {
	for number := range callv1.Code_name {
		code := callv1.Code(number)
		f := newFault(code, errors.New("open /etc/secret: no such file"))
		if f.Message == "" || strings.Contains(f.Message, "/") || f.Cause == nil {
			t.Errorf("%s says %q", code, f.Message)
		}
	}
}

func TestARefusalInFrontIsRecorded(t *testing.T) {
	a, _, log := newAuthority(t, platformtest.New(t))
	a.OnRefused(rpc.WithRequestID(t.Context(), "r-1"), "/durward.executor.v1.ToolService/StartService", identity.ID{},
		fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(errors.New("no certificate"))))
	r := log.records[0]
	if r.GetKind() != auditv1.Kind_KIND_SINK_REFUSED || r.GetTool() != "start_service" || r.GetRequestId() != "r-1" || r.GetBody().GetReason() != "no certificate" {
		t.Errorf("record is %v", r)
	}
}

// Calls that the chain refuses are recorded singly at first, and then counted: none is left out of the sum.
func TestAFloodInFrontIsCounted(t *testing.T) {
	a, _, log := newAuthority(t, platformtest.New(t))
	const flood = 10_000
	for i := range flood {
		a.OnRefused(t.Context(), fmt.Sprint("/durward.executor.v1.ToolService/Erase", i%(flood/2)), identity.ID{}, fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.Run(ctx)
	records, sum := 0, 0
	for _, r := range log.records {
		if r.GetKind() != auditv1.Kind_KIND_SINK_REFUSED {
			continue
		}
		records++
		n := 1
		if more := r.GetBody().GetDetails()["suppressed"]; more != "" {
			var err error
			if n, err = strconv.Atoi(more); err != nil {
				t.Error(err)
			}
		}
		sum += n
	}
	if records > 100 || sum != flood {
		t.Errorf("%d records of %d refused calls", records, sum)
	}
}

func TestAnInterruptedCallIsKeptUntilItIsRecorded(t *testing.T) {
	a, store, log := newAuthority(t, platformtest.New(t))
	must(t, store.Spend(t.Context(), &Spend{Key: "op/1", Operation: "op", Use: 1, Tool: "start_service"}))
	log.full = true
	if err := a.Recover(t.Context(), plain{}); err != nil || store.finished != 0 {
		t.Errorf("recovered without a record: %v", err)
	}
	log.full = false
	if err := a.Recover(t.Context(), plain{}); err != nil || store.entries["op/1"].State != StateUnknown || store.entries["op/1"].Found != "stopped" {
		t.Errorf("recovery: %v, %v", err, store.entries["op/1"].Result)
	}
	if body := log.records[0].GetBody(); body.GetSummary() != "unknown: found stopped" {
		t.Errorf("record is %v", body)
	}
}

// TestAnOutcomeThatWasNotKeptIsNotSettled: a restart finds the call only while its key is open.
func TestAnOutcomeThatWasNotKeptIsNotSettled(t *testing.T) {
	for _, full := range []error{nil, errors.New("disk full")} {
		a, store, _ := newAuthority(t, platformtest.New(t))
		store.full = full
		must(t, store.Spend(t.Context(), &Spend{Key: "op/1", Operation: "op", Use: 1, Tool: "start_service"}))
		a.complete(t.Context(), &call{key: "op/1", tool: mustTool(t, "start_service")}, &Result{State: StateDone}, &callv1.Outcome{})
		if settled := len(a.settled) > 0; settled != (full == nil) {
			t.Errorf("keeping it ended with %v: settled %v", full, settled)
		}
	}
}

// notYet is a Finder that knows nothing yet.
type notYet struct{ plain }

func (notYet) Found(context.Context, string, string, []byte) string { return "" }

func TestACallThatNobodyKnowsYetStaysOpen(t *testing.T) {
	a, store, log := newAuthority(t, platformtest.New(t))
	for _, operation := range []string{"one", "two"} {
		err := store.Spend(t.Context(), &Spend{Key: operation + "/1", Operation: operation, Use: 1, Tool: "start_service"})
		must(t, err)
	}
	if err := a.Recover(t.Context(), notYet{}); err != nil || store.finished != 0 || len(log.records) != 0 {
		t.Errorf("recovered: %v, %v", err, log.records)
	}
	if err := a.Settle(t.Context(), "two", plain{}); err != nil || store.entries["two/1"].State != StateUnknown || store.entries["two/1"].Found != "stopped" {
		t.Errorf("settled: %v, %v", err, store.entries["two/1"].Result)
	}
	if store.entries["one/1"].State != StateSpent || store.finished != 1 {
		t.Error("another call was settled too")
	}
}

func TestAPanicInAHandlerIsAnOutcome(t *testing.T) {
	a, _, _ := newAuthority(t, platformtest.New(t))
	_, err := a.run(t.Context(), &call{}, nil, func(context.Context, any) (any, error) { panic("/secret") })
	if !fault.Is(err, callv1.Code_CODE_INTERNAL) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error is %v", err)
	}
	if _, err := a.run(t.Context(), &call{}, nil, func(context.Context, any) (any, error) { return "text", nil }); err == nil {
		t.Error("a response that is no message passed")
	}
}

// breaks is a host whose look at what a call acts on panics.
type breaks struct{ plain }

func (breaks) Subject(context.Context, contract.Tool, proto.Message) (*callv1.Subject, error) {
	panic("/secret")
}

// TestAPanicBeforeTheHandlerRefuses: nothing was spent, and the process goes on.
func TestAPanicBeforeTheHandlerRefuses(t *testing.T) {
	a, store, _ := newAuthority(t, platformtest.New(t))
	ended := a.execute(t.Context(), t.Context(), &call{subjects: breaks{}, grant: &callv1.Grant{}}, nil)
	if !fault.Is(ended.err, callv1.Code_CODE_INTERNAL) || strings.Contains(ended.err.Error(), "secret") || len(store.entries) != 0 {
		t.Errorf("ended with %v; spent is %v", ended.err, store.entries)
	}
}

// TestHowACallEndedIsRecorded: one that did not end in its time is told from one that failed. A reason that is longer than a record may hold
// is cut, since a record that audit refuses is none.
func TestHowACallEndedIsRecorded(t *testing.T) {
	kit := platformtest.New(t)
	tool := mustTool(t, "list_services")
	for ended, want := range map[error]auditv1.Status{
		context.DeadlineExceeded: auditv1.Status_STATUS_TIMEOUT,
		errors.New("it broke"):   auditv1.Status_STATUS_ERROR,
		fault.New(callv1.Code_CODE_FAILED, strings.Repeat("it broke\n", 100)): auditv1.Status_STATUS_ERROR,
	} {
		a, _, log := newAuthority(t, kit)
		_, err := a.Unary(plain{})(streamContext(t, kit, streamPermit(t, kit, func(*callv1.Permit) {})), tool.NewRequest(),
			&grpc.UnaryServerInfo{FullMethod: tool.FullMethod}, func(context.Context, any) (any, error) { return nil, ended })
		if err == nil || len(log.records) != 1 || log.records[0].GetStatus() != want {
			t.Errorf("%v: %v, recorded as %v", ended, err, log.records)
		} else if said := log.records[0].GetBody().GetSummary(); utf8.RuneCountInString(said) > 500 || strings.Contains(said, "\n") {
			t.Errorf("recorded as %q", said)
		}
	}
}

func TestAVaultThatDoesNotKnowTheKeyIsNotAskedForever(t *testing.T) {
	kit := platformtest.New(t)
	for code, waits := range map[callv1.Code]bool{callv1.Code_CODE_NOT_FOUND: false, callv1.Code_CODE_UNAVAILABLE: true} {
		a, _, _ := newAuthority(t, kit, func(c *Config) { c.Vault = willing{settle: fault.New(code, "no")} })
		if err := a.settle(t.Context(), "op", 1, true); (err != nil) != waits {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// partial is a vault that settles everything but one operation.
type partial struct {
	willing
	problem error
	told    []string
}

func (p *partial) Settle(_ context.Context, r *vaultv1.SettleRequest, _ ...grpc.CallOption) (*vaultv1.SettleResponse, error) {
	p.told = append(p.told, r.GetOperationId())
	if r.GetOperationId() == "broken" {
		return nil, p.problem
	}
	return &vaultv1.SettleResponse{}, nil
}

// An operation that the vault cannot settle keeps none from being settled that wait behind it; a vault that does not answer is asked once.
func TestWhatCannotBeSettledHoldsUpNothing(t *testing.T) {
	kit := platformtest.New(t)
	for name, c := range map[string]struct {
		problem error
		told    []string
	}{
		"the vault says so":         {fault.From(fault.New(callv1.Code_CODE_INTERNAL, fault.Internal).GRPCStatus("").Err()), []string{"broken", "one", "two"}},
		"the vault does not answer": {fault.From(status.Error(codes.Unavailable, "connection refused")), []string{"broken"}},
	} {
		vault := &partial{problem: c.problem}
		a, store, _ := newAuthority(t, kit, func(cfg *Config) { cfg.Vault = vault })
		for _, operation := range []string{"broken", "one", "two"} {
			store.unsettled = append(store.unsettled, &Entry{Spend: Spend{Key: operation + "/1", Operation: operation, Use: 1}})
		}
		a.settleAll(t.Context())
		if !slices.Equal(vault.told, c.told) {
			t.Errorf("%s: it was told of %q, want %q", name, vault.told, c.told)
		}
	}
}

// FuzzGrant: no bytes that the vault did not sign are ever a grant, and none make the sink panic.
func FuzzGrant(f *testing.F) {
	kit := platformtest.New(f)
	a, _, _ := newAuthority(f, kit)
	tool, ok := contract.Lookup("start_service")
	if !ok {
		f.Fatal("no start_service")
	}
	f.Add([]byte{})
	f.Add([]byte("\x0a\x02\x08\x01\x12\x04test\x1a\x40" + strings.Repeat("\x00", 64)))
	f.Add(bytes.Repeat([]byte{0x0a, 0x00}, 100))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c := &call{tool: tool, request: tool.NewRequest()}
		if err := a.acceptGrant(context.Background(), c, raw); err == nil || c.grant != nil {
			signed := &callv1.SignedGrant{}
			if malformed := proto.Unmarshal(raw, signed); malformed != nil {
				t.Fatalf("accepted %x: %v", raw, malformed)
			}
			if _, verr := grant.Verify(signed, kit.Trust, time.Now()); verr != nil {
				t.Errorf("accepted %x", raw)
			}
		}
	})
}

// BenchmarkRead is what the discipline adds to a hot read, without the log's own cost.
func BenchmarkRead(b *testing.B) {
	kit := platformtest.New(b)
	a, _, log := newAuthority(b, kit)
	now := time.Now()
	signed, err := grant.SignPermit(kit.GrantKey, &callv1.Permit{
		Version: grant.Version, Id: grant.NewID(), Principal: "claude", Session: "s-test", Channel: callv1.Channel_CHANNEL_API,
		Tools: []string{"gpu_status"}, Audience: a.self, Epoch: 1,
		IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Minute)),
	})
	if err != nil {
		b.Fatal(err)
	}
	raw, err := proto.Marshal(signed)
	if err != nil {
		b.Fatal(err)
	}
	ctx := metadata.NewIncomingContext(rpc.WithCaller(b.Context(), kit.ID(optionsv1.Role_ROLE_GATEWAY, "main")), metadata.Pairs(rpc.MetadataPermit, string(raw)))
	intercept := a.Unary(plain{})
	info := &grpc.UnaryServerInfo{FullMethod: "/durward.executor.v1.ToolService/GpuStatus"}
	b.ReportAllocs()
	for b.Loop() {
		log.records = log.records[:0]
		if _, err := intercept(ctx, &executorv1.GpuStatusRequest{}, info, func(context.Context, any) (any, error) { return &executorv1.GpuStatusResponse{}, nil }); err != nil {
			b.Fatal(err)
		}
	}
}
