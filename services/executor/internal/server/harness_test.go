package server_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	executorv1 "durward.internal/proto/gen/durward/executor/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/executor/internal/capacity"
	"durward.internal/services/executor/internal/driver"
	"durward.internal/services/executor/internal/gpu"
	"durward.internal/services/executor/internal/lease"
	"durward.internal/services/executor/internal/memreq"
	"durward.internal/services/executor/internal/mode"
	"durward.internal/services/executor/internal/progress"
	"durward.internal/services/executor/internal/server"
	"durward.internal/services/executor/internal/service"
	"durward.internal/services/executor/internal/store"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/catalog"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/sink"
	"durward.internal/services/platform/sink/control"
	"durward.internal/services/platform/statement"
)

const catalogText = `
version: 1
gpus: [{index: 0, name: Test GPU, memory_mib: 24576, simulated: true}]
models: [{id: demo/one, served_name: demo-one}]
services:
  - {id: alpha, name: Alpha, driver: "null", model: demo/one, gpus: [0], vram_mib: 6144}
  - {id: beta, name: Beta, driver: "null"}
  - {id: program, name: Program, driver: process, argv: [/usr/bin/env, --flag, "two words"], port: 17450, gpus: [0], vram_mib: 1024}
`

// effects is a driver that only counts.
type effects struct {
	mu             sync.Mutex
	running        map[string]bool
	unknown        bool // nothing that does not run is known to be stopped
	starts, stops  int
	entered, leave chan struct{} // if set, Start tells and waits
	fail           error
	failOnce       error
	programs       catalog.Programs
	lines          []string
}

func (e *effects) Status(s *catalog.Service) driver.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running[s.ID] {
		return driver.Status{State: driver.Running, Since: time.Unix(1, 0)}
	}
	if e.unknown {
		return driver.Status{State: driver.Unknown}
	}
	return driver.Status{State: driver.Stopped}
}

func (e *effects) Start(_ context.Context, s *catalog.Service, _ string, begin driver.Begin) error {
	return begin(func() error { return e.start(s) })
}

func (e *effects) start(s *catalog.Service) error {
	if e.entered != nil {
		e.entered <- struct{}{}
		<-e.leave
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := cmp.Or(e.failOnce, e.fail); err != nil {
		e.failOnce = nil
		return err
	}
	e.starts++
	e.running[s.ID] = true
	return nil
}

func (e *effects) Stop(_ context.Context, s *catalog.Service) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.running[s.ID]
	delete(e.running, s.ID)
	if was {
		e.stops++
	}
	return was, nil
}

func (e *effects) Definition(_ context.Context, s *catalog.Service) (string, error) {
	if s.Program() == "" {
		return "", nil
	}
	return e.programs.Digest(s.Program())
}

func (e *effects) Logs(_ context.Context, _ *catalog.Service, _ string, lines int) (driver.Page, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	begin := max(len(e.lines)-lines, 0)
	return driver.Page{Lines: e.lines[begin:], Before: e.lines[:begin], Cursor: "end"}, nil
}

func (e *effects) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.starts + e.stops
}

// healthy is a Checker that is always content.
type healthy struct{}

func (healthy) Check(context.Context, netip.AddrPort, *catalog.Health) (string, error) {
	return "", nil
}

// log is an audit log in memory, which can be told to fail.
type log struct {
	mu      sync.Mutex
	records []*auditv1.Record
	down    bool
	full    bool
	// fails names kinds that cannot be recorded.
	fails []auditv1.Kind
	// grew has a value when there is another record; it is the log's first.
	grew chan struct{}
}

var errDown = errors.New("audit is down")

func (l *log) Record(_ context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down || slices.Contains(l.fails, r.GetKind()) {
		return nil, errDown
	}
	l.records = append(l.records, r)
	select {
	case l.grew <- struct{}{}:
	default:
	}
	return &callv1.Receipt{Index: uint64(len(l.records))}, nil
}

func (l *log) Report(ctx context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	receipt, err := l.Record(ctx, r)
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.records = append(l.records, r)
		return nil, nil
	}
	return receipt, nil
}

func (l *log) Spool(_ context.Context, r *auditv1.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full {
		return errDown
	}
	l.records = append(l.records, r)
	return nil
}

func (l *log) Reachable() bool    { return !l.down }
func (l *log) Depth() int         { return 0 }
func (l *log) Checkpoint() []byte { return []byte("checkpoint") }

func (l *log) set(change func(*log)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

func (l *log) kinds() []auditv1.Kind {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []auditv1.Kind
	for _, r := range l.records {
		out = append(out, r.GetKind())
	}
	return out
}

func (l *log) last() *auditv1.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.records) == 0 {
		return nil
	}
	return l.records[len(l.records)-1]
}

// vault is a RedeemService that spends each key once.
type vault struct {
	vaultv1.UnimplementedRedeemServiceServer
	vaultv1.UnimplementedCheckServiceServer
	mu       sync.Mutex
	spent    map[string]bool
	settled  map[string]bool
	told     chan string // operations, as they are settled
	redeemed int
	refuse   *fault.Error
	// revoked: what grants rest on does not stand any more.
	revoked bool
	epoch   uint64
}

func (v *vault) Redeem(_ context.Context, r *vaultv1.RedeemRequest) (*vaultv1.RedeemResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refuse != nil {
		return nil, v.refuse
	}
	g := &callv1.Grant{}
	if err := proto.Unmarshal(r.GetGrant().GetPayload(), g); err != nil {
		return nil, err
	}
	if v.spent[grant.SpendKey(g)] {
		return nil, fault.New(callv1.Code_CODE_ALREADY_SPENT, "the grant was spent already")
	}
	v.spent[grant.SpendKey(g)] = true
	v.redeemed++
	return &vaultv1.RedeemResponse{RedeemedAt: timestamppb.Now(), Epoch: max(v.epoch, g.GetEpoch())}, nil
}

func (v *vault) CheckGrant(context.Context, *vaultv1.CheckGrantRequest) (*vaultv1.CheckGrantResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.revoked {
		return nil, fault.New(callv1.Code_CODE_EXPIRED, "what the grant rests on has ended")
	}
	return &vaultv1.CheckGrantResponse{}, nil
}

func (v *vault) Settle(_ context.Context, r *vaultv1.SettleRequest) (*vaultv1.SettleResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.settled[r.GetOperationId()] = r.GetOk()
	select {
	case v.told <- r.GetOperationId():
	default: // nobody wants to know
	}
	return &vaultv1.SettleResponse{}, nil
}

func (v *vault) set(change func(*vault)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change(v)
}

func (v *vault) redemptions() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.redeemed
}

// references is a tokeniser that knows one secret.
type references struct{}

const secret, reference = "hunter2-hunter2", "[[SECRET:TEST:1]]"

func (references) Tokenise(_ context.Context, r *vaultv1.TokeniseRequest, _ ...grpc.CallOption) (*vaultv1.TokeniseResponse, error) {
	out := &vaultv1.TokeniseResponse{}
	for _, text := range r.GetTexts() {
		out.Texts = append(out.Texts, strings.ReplaceAll(text, secret, reference))
	}
	return out, nil
}

// world is an executor with everything around it.
type world struct {
	leases    *lease.Leases
	t         *testing.T
	kit       *platformtest.Kit
	self      identity.ID
	file      string
	source    *catalog.Source
	driver    *effects
	log       *log
	vault     *vault
	store     *store.Store
	gpus      *gpu.Monitor
	book      *memreq.Tracker
	services  *service.Manager
	modes     *mode.Switcher
	hub       progress.Hub
	authority *sink.Authority
	gateway   executorv1.ToolServiceClient
	operator  executorv1.ToolServiceClient
	control   executorv1.ControlServiceClient
	addr      string
	refused   chan *fault.Error
}

func newWorld(t *testing.T, configure ...func(*sink.Config)) *world {
	t.Helper()
	return newWorldWith(t, nil, configure...)
}

// newWorldWith is newWorld whose services' engine is one that sleeps.
func newWorldWith(t *testing.T, e service.Engine, configure ...func(*sink.Config)) *world {
	t.Helper()
	w := &world{
		t: t, kit: platformtest.New(t), driver: &effects{running: map[string]bool{}}, log: &log{grew: make(chan struct{}, 1)},
		vault:   &vault{spent: map[string]bool{}, settled: map[string]bool{}, told: make(chan string, 100)},
		refused: make(chan *fault.Error, 100),
	}
	w.self = w.kit.ID(optionsv1.Role_ROLE_EXECUTOR, "local")
	w.file = filepath.Join(t.TempDir(), "catalogue.yaml")
	w.write(catalogText)
	var err error
	w.source, err = catalog.Open(w.file, catalog.Options{Development: true}, platformtest.Logger())
	w.must(err)
	t.Cleanup(w.source.Close)
	w.store, err = store.Open(t.Context(), t.TempDir())
	w.must(err)
	t.Cleanup(func() { w.must(w.store.Close()) })
	w.gpus = gpu.New(gpu.Config{Catalog: w.source.Current, Logger: platformtest.Logger()})
	w.book, err = memreq.New(t.Context(), memreq.Config{
		Catalog: w.source.Current, GPUs: w.gpus, Memory: w.store, Logger: platformtest.Logger(),
		Definition: w.driver.Definition,
	})
	w.must(err)
	leases := &lease.Leases{}
	w.leases = leases
	w.services = service.New(service.Config{
		Catalog: w.source.Current,
		Drivers: map[string]func() service.Driver{
			catalog.DriverNull: service.Is(w.driver), catalog.DriverProcess: service.Is(w.driver), catalog.DriverSystemd: service.Is(w.driver), catalog.DriverDocker: service.Is(w.driver),
		},
		Health: healthy{},
		Engine: e,
		GPUs:   w.gpus,
		Sizes:  w.book.Sizes(),
		Leases: leases,
		Admit: func(ctx context.Context, s *catalog.Service) error {
			return capacity.Admit(w.book.Sizes(), w.gpus.Read(ctx), s, capacity.DefaultMargin)
		},
		Confirm: sink.Confirm,
		Logger:  platformtest.Logger(),
	})
	w.gpus.Claimed(w.services.Claims)
	w.modes = mode.New(mode.Config{
		Catalog: w.source.Current, Services: w.services, GPUs: w.gpus, Requirements: w.book, Leases: leases, Journal: w.store, Margin: capacity.DefaultMargin, LeastMargin: proto.Uint32(128),
		Hub: &w.hub, Proceed: func(begin func()) error { return w.authority.Proceed(begin) }, Logger: platformtest.Logger(),
	})
	w.source.Veto(w.services.Accept)

	vaultID := w.kit.ID(optionsv1.Role_ROLE_VAULT, "main")
	vaultAddr := w.kit.Serve(t, optionsv1.Role_ROLE_VAULT, "main", func(r grpc.ServiceRegistrar) {
		vaultv1.RegisterRedeemServiceServer(r, w.vault)
		vaultv1.RegisterCheckServiceServer(r, w.vault)
	})
	cfg := sink.Config{
		Self: w.self, Trust: w.kit.Trust, Store: w.store, Recorder: w.log, Logger: platformtest.Logger(),
		Tokeniser: references{},
		Vault:     sink.NewRedeemer(w.kit.Dial(t, w.self, vaultAddr, vaultID)),
	}
	for _, c := range configure {
		c(&cfg)
	}
	w.authority, err = sink.New(t.Context(), cfg)
	w.must(err)
	w.addr = w.kit.Serve(t, optionsv1.Role_ROLE_EXECUTOR, "local", func(r grpc.ServiceRegistrar) {
		executorv1.RegisterToolServiceServer(r, server.NewTools(server.ToolsConfig{Services: w.services, GPUs: w.gpus, Modes: w.modes, Progress: &w.hub}))
		executorv1.RegisterEventServiceServer(r, server.NewEvents(w.services, &w.hub))
		executorv1.RegisterControlServiceServer(r, server.NewControl(server.ControlConfig{
			Sink: w.sink(), Services: w.services, GPUs: w.gpus, Modes: w.modes,
		}))
	}, func(cfg *rpc.ServerConfig) {
		cfg.Unary = []grpc.UnaryServerInterceptor{w.authority.Unary(server.Subjects{Services: w.services, Modes: w.modes})}
		cfg.Stream = []grpc.StreamServerInterceptor{w.authority.Stream()}
		cfg.OnRefused = func(ctx context.Context, method string, caller identity.ID, f *fault.Error) {
			w.authority.OnRefused(ctx, method, caller, f)
			w.refused <- f
		}
	})
	w.gateway = executorv1.NewToolServiceClient(w.dial(optionsv1.Role_ROLE_GATEWAY, "main"))
	operator := w.dial(optionsv1.Role_ROLE_OPERATOR, platformtest.Operator)
	w.operator, w.control = executorv1.NewToolServiceClient(operator), executorv1.NewControlServiceClient(operator)
	return w
}

func (w *world) dial(role optionsv1.Role, instance string) *grpc.ClientConn {
	return w.kit.Dial(w.t, w.kit.ID(role, instance), w.addr, w.self)
}

func (w *world) write(text string) {
	w.t.Helper()
	w.must(os.WriteFile(w.file, []byte(text), 0o600))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func start(id string) *executorv1.StartServiceRequest {
	return &executorv1.StartServiceRequest{ServiceId: proto.String(id)}
}

// ticket is everything that a genuine call needs, to be bent by a test before it is signed.
type ticket struct {
	grant     *callv1.Grant
	statement *statement.Statement
	signer    ssh.Signer
	key       grant.Key
}

// ticket returns a genuine one for start_service with the id.
func (w *world) ticket(id string) *ticket {
	w.t.Helper()
	return w.ticketFor("start_service", start(id))
}

func (w *world) ticketFor(name string, request proto.Message) *ticket {
	w.t.Helper()
	tool, ok := contract.Lookup(name)
	if !ok {
		w.t.Fatalf("no tool %s", name)
	}
	arguments, err := contract.Canonical(request)
	w.must(err)
	digest := contract.Digest(arguments)
	var subject [32]byte
	if s, err := w.services.Subject(w.t.Context(), tool, request); err == nil {
		subject = sha256.Sum256(s.GetEntry())
	}
	now := time.Now()
	epoch := w.authority.Control().Epoch
	g := &callv1.Grant{
		Version: grant.Version, Id: grant.NewID(), OperationId: grant.NewID(), Use: 1, Principal: "claude", Session: "s-test",
		Channel: callv1.Channel_CHANNEL_API, Tool: tool.Ref(), ArgumentsDigest: digest[:], SubjectDigest: subject[:],
		Audience: w.self.String(), PolicyDigest: make([]byte, 32), Epoch: epoch,
		IssuedAt: timestamppb.New(now), NotBefore: timestamppb.New(now), ExpiresAt: timestamppb.New(now.Add(time.Minute)),
		RequestId: "r-asked",
	}
	ref := statement.ToolOf(tool.Ref())
	return &ticket{grant: g, key: w.kit.GrantKey, signer: w.kit.OperatorSigner, statement: &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindApprove, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(now.Add(-time.Second)), NotBefore: statement.FormatTime(now.Add(-time.Second)),
		ExpiresAt: statement.FormatTime(now.Add(10 * time.Minute)), Epoch: epoch, Audience: g.GetAudience(),
		Principal: g.GetPrincipal(), Session: g.GetSession(), Channel: statement.ChannelName(g.GetChannel()), Operation: g.GetOperationId(),
		Tool: &ref, Tier: contract.TierName(tool.Tier), Arguments: arguments, ArgumentsDigest: canonical.FormatDigest(digest[:]),
		Target: "service", SubjectDigest: canonical.FormatDigest(subject[:]), Uses: 1,
	}}
}

// sign makes what travels of a ticket.
func (w *world) sign(t *ticket) *callv1.SignedGrant {
	w.t.Helper()
	if t.statement != nil {
		h, err := statement.Sign(t.statement, t.signer)
		w.must(err)
		t.grant.Statements = append(t.grant.Statements, h)
		if t.statement.Kind == statement.KindDangerous {
			second, err := statement.Sign(statement.Confirmation(t.statement, h.GetStatement(), grant.NewID(), time.Now().Add(statement.ConfirmAfter)), t.signer)
			w.must(err)
			t.grant.Statements = append(t.grant.Statements, second)
		}
	}
	signed, err := grant.Sign(t.key, t.grant)
	w.must(err)
	return signed
}

// with attaches messages to a call.
func with(ctx context.Context, key string, messages ...proto.Message) context.Context {
	for _, m := range messages {
		raw, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		ctx = metadata.AppendToOutgoingContext(ctx, key, string(raw))
	}
	return ctx
}

// outcome reads the trailer.
func outcome(t *testing.T, trailer metadata.MD) *callv1.Outcome {
	t.Helper()
	values := trailer.Get(rpc.TrailerOutcome)
	if len(values) != 1 {
		t.Fatalf("%d outcomes in the trailer, want 1", len(values))
	}
	o := &callv1.Outcome{}
	if err := proto.Unmarshal([]byte(values[0]), o); err != nil {
		t.Fatal(err)
	}
	return o
}

func wantCode(t *testing.T, err error, code callv1.Code) *fault.Error {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) {
		t.Fatalf("error is %v, want a fault %s", err, code)
	}
	if f.Code != code {
		t.Fatalf("code is %s (%s), want %s", f.Code, f.Message, code)
	}
	return f
}

// sink is the side of the control service that every sink has.
func (w *world) sink() *control.Sink {
	return control.New(control.Config{Self: w.self, Authority: w.authority, Log: w.log, VaultReachable: func() bool { return true }, Version: "test"})
}
