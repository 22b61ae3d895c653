package server

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"golang.org/x/crypto/ssh"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/desktop"
	"durward.internal/services/platform/detect"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/proof"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/changelog"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/disclosure"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/safe"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/standing"
	"durward.internal/services/vault/internal/store"
	"durward.internal/services/vault/internal/token"
	"durward.internal/services/vault/internal/usage"
)

// fakeAudit is a recorder that keeps what it is given, if the contract allows it, and can be down or hung.
type fakeAudit struct {
	t       *testing.T
	mu      sync.Mutex
	records []*auditv1.Record
	down    bool          // refuses at once and says so
	hung    bool          // looks reachable and never answers
	full    bool          // and the spool is full
	gate    chan struct{} // answers when it is closed; entered is told of each that waits
	entered chan struct{}
}

func (f *fakeAudit) Record(ctx context.Context, r *auditv1.Record) (*callv1.Receipt, error) {
	f.mu.Lock()
	hung, down, gate, entered := f.hung, f.down, f.gate, f.entered
	f.mu.Unlock()
	if gate != nil {
		entered <- struct{}{}
		<-gate
	}
	if hung {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if down {
		return nil, errors.New("audit is down")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keep(r)
	return &callv1.Receipt{Index: uint64(len(f.records))}, nil
}

func (f *fakeAudit) Spool(_ context.Context, r *auditv1.Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full {
		return errors.New("the spool is full")
	}
	f.keep(r)
	return nil
}

func (f *fakeAudit) keep(r *auditv1.Record) {
	r = proto.CloneOf(r)
	r.Sequence = uint64(len(f.records)) + 1
	if err := protovalidate.Validate(r); err != nil {
		f.t.Errorf("audit would refuse this record of %s: %v", r.GetKind(), err)
	}
	f.records = append(f.records, r)
}

func (f *fakeAudit) Reachable() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.down
}

func (f *fakeAudit) Depth() int         { return 0 }
func (f *fakeAudit) Checkpoint() []byte { return []byte("checkpoint") }

func (f *fakeAudit) set(change func(*fakeAudit)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// of returns the records of a kind.
func (f *fakeAudit) of(kind auditv1.Kind) []*auditv1.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*auditv1.Record
	for _, r := range f.records {
		if r.GetKind() == kind {
			out = append(out, r)
		}
	}
	return out
}

// clock stands still unless it is moved.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Clients of the test vault: a bearer client, another one, one that may only read, one that is key-bound, one with small
// limits.
const (
	bearer   = "bearer"
	other    = "other"
	reader   = "reader"
	bound    = "bound"
	small    = "small"
	gateway  = optionsv1.Role_ROLE_GATEWAY
	executor = optionsv1.Role_ROLE_EXECUTOR
	egress   = optionsv1.Role_ROLE_EGRESS
	operator = optionsv1.Role_ROLE_OPERATOR
)

func tokenOf(client string) string { return "token-of-" + client }

func tokenDigest(client string) string {
	sum := sha256.Sum256([]byte(tokenOf(client)))
	return hex.EncodeToString(sum[:])
}

// vault is a running vault with everything that a test wants to reach around it.
type vault struct {
	*platformtest.Kit
	t         *testing.T
	clock     *clock
	audit     *fakeAudit
	server    *Server
	addr      string
	self      identity.ID
	clientKey ed25519.PrivateKey
	clients   string // path
	security  string // path of the folder
	stop      func()
	connsMu   sync.Mutex
	conns     map[string]*grpc.ClientConn // by the server's address and the caller
	// Of the standing authority: the store, whether four eyes are needed, and the limits, nil for the widest.
	store    *store.Store
	fourEyes bool
	limits   func(client, user string) standing.Limits
}

// newVault starts one. It keeps its connections in memory, so that a test that waits may run it in a synctest bubble.
func newVault(t *testing.T, options ...func(*Config, *operation.Config)) *vault {
	t.Helper()
	v := &vault{Kit: platformtest.New(t, platformtest.InMemory()), t: t, conns: map[string]*grpc.ClientConn{}, clock: &clock{now: time.Now().Truncate(time.Second)}, audit: &fakeAudit{t: t}}
	v.Deadline = time.Minute // the disk may be busy
	v.self = v.ID(optionsv1.Role_ROLE_VAULT, "main")
	_, key, err := ed25519.GenerateKey(rand.Reader)
	v.must(err)
	v.clientKey = key
	public, err := ssh.NewPublicKey(key.Public())
	v.must(err)
	var b strings.Builder
	b.WriteString("clients:\n")
	for _, c := range []struct{ id, ceiling, extra string }{
		{bearer, "WRITE", ""}, {other, "WRITE", ""}, {reader, "READ", ""},
		{bound, "WRITE", "    key: " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public))) + "\n"},
		{small, "WRITE", "    limits: {sessions: 2, pending: 1}\n"},
	} {
		fmt.Fprintf(&b, "  - id: %s\n    token_sha256: %s\n    channel: cli\n    tier_ceiling: %s\n%s", c.id, tokenDigest(c.id), c.ceiling, c.extra)
	}
	v.clients = filepath.Join(v.Dir, "clients.yaml")
	v.must(os.WriteFile(v.clients, []byte(b.String()), 0o600))
	v.security = filepath.Join(v.Dir, "security")
	v.must(os.MkdirAll(filepath.Join(v.security, "policy"), 0o700))
	v.start(options...)
	return v
}

// tokens is how the vault keeps personal data, as its program has it.
func (v *vault) tokens(state *store.Store, sessions *session.Table) token.Config {
	v.t.Helper()
	detector, err := detect.New(detect.Config{})
	v.must(err)
	return token.Config{Detector: detector, Dir: filepath.Join(v.Dir, token.Folder), Store: state, Owner: sessions.Owner, Now: v.clock.Now, Logger: platformtest.Logger()}
}

// start builds the vault on the state that is there; restart stops it first.
func (v *vault) start(options ...func(*Config, *operation.Config)) {
	v.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	registry, err := clients.Open(clients.Config{Path: v.clients, Now: v.clock.Now})
	v.must(err)
	issue, err := issuer.New(issuer.Config{Key: v.GrantKey, Keys: v.Trust, Now: v.clock.Now, User: registry.User})
	v.must(err)
	state, err := store.Open(ctx, v.Dir, nil)
	v.must(err)
	control, err := halt.New(ctx, state)
	v.must(err)
	log := journal.New(v.audit, v.clock.Now, platformtest.Logger())
	operators := func() *trust.AllowedSigners { return v.Trust.Current().AllowedSigners }
	changes, err := changelog.New(ctx, changelog.Config{Store: state, Journal: log, Now: v.clock.Now, Logger: platformtest.Logger()})
	v.must(err)
	rules, err := security.Open(security.Options{
		Dir: v.security, Also: map[string]string{"clients.yaml": v.clients}, OnChange: changes.Changed, Logger: platformtest.Logger(),
	})
	v.must(err)
	changes.Complete(rules.Current().Files)
	people := Humans{Security: rules}
	limits := v.limits
	if limits == nil {
		limits = people.Limits
	}
	judge := consent.New(consent.Config{
		Operators: operators, Now: v.clock.Now, Clients: consent.Of(registry, func(client, user string) bool { return v.fourEyes || people.FourEyes(client, user) }),
	})
	sessions := session.New(v.clock.Now, 0)
	book, err := standing.New(ctx, standing.Config{
		Store: state, Journal: log, Halt: control, Sessions: sessions, Consent: judge, Operators: operators, Client: registry.Lookup,
		Audiences: []string{v.ID(executor, "local").String(), v.ID(egress, "local").String()}, Limits: limits, Now: v.clock.Now, Logger: platformtest.Logger(),
	})
	v.must(err)
	v.store = state
	ring, err := keyring.Open(ctx, keyring.Config{
		Store: state, Source: keyring.SourceFile, File: filepath.Join(v.Dir, keyring.File), Now: v.clock.Now, Logger: platformtest.Logger(),
	})
	v.must(err)
	queue := operation.Config{
		Store: state, Journal: log, Issuer: issue, Halt: control, Consent: judge, Standing: book, LetIn: registry.LetIn,
		Now: v.clock.Now, Logger: platformtest.Logger(),
	}
	values := token.New(v.tokens(state, sessions))
	config := Config{
		Self: v.self, Sinks: []identity.ID{v.ID(executor, "local")}, Clients: registry, Security: rules, Usage: usage.New(state, v.clock.Now),
		Changes: changes, Desktop: desktop.New(v.clock.Now), Issuer: issue,
		Sessions: sessions, Standing: book, Consent: judge, Halt: control, Journal: log, Tokens: values, Disclosure: disclosure.New(nil, state, v.clock.Now), Safe: safe.New(state, ring, values.Release, v.clock.Now), Audit: v.audit, Digest: state.Digest,
		Now: v.clock.Now, Logger: platformtest.Logger(), Version: "test",
	}
	for _, option := range options {
		option(&config, &queue)
	}
	config.Queue, err = operation.New(ctx, queue)
	v.must(err)
	v.server, err = New(config)
	v.must(err)
	grpcServer := rpc.NewServer(rpc.ServerConfig{
		Identity: v.Identity(optionsv1.Role_ROLE_VAULT, "main"), Logger: platformtest.Logger(), OnRefused: v.server.Refused,
	})
	v.server.Register(grpcServer)
	listener, addr := v.Listen(v.t)
	v.addr = addr
	served := make(chan error, 1)
	go func() { served <- grpcServer.Serve(ctx, listener) }()
	v.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			v.t.Errorf("serve: %v", err)
		}
		rules.Close()
		registry.Close()
		if err := state.Close(); err != nil {
			v.t.Errorf("close: %v", err)
		}
	})
	v.t.Cleanup(v.stop)
}

func (v *vault) restart(options ...func(*Config, *operation.Config)) {
	v.t.Helper()
	v.stop()
	v.start(options...)
}

func (v *vault) must(err error) {
	v.t.Helper()
	if err != nil {
		v.t.Fatal(err)
	}
}

func (v *vault) as(role optionsv1.Role, instance string) *grpc.ClientConn {
	v.t.Helper()
	id := v.ID(role, instance)
	key := v.addr + " " + id.String()
	v.connsMu.Lock()
	defer v.connsMu.Unlock()
	if v.conns[key] == nil {
		v.conns[key] = v.Dial(v.t, id, v.addr, v.self)
	}
	return v.conns[key]
}

func (v *vault) sessions() vaultv1.SessionServiceClient {
	return vaultv1.NewSessionServiceClient(v.as(gateway, "main"))
}
func (v *vault) authority() vaultv1.AuthorityServiceClient {
	return vaultv1.NewAuthorityServiceClient(v.as(gateway, "main"))
}
func (v *vault) tools() vaultv1.ToolServiceClient {
	return vaultv1.NewToolServiceClient(v.as(gateway, "main"))
}
func (v *vault) operations() vaultv1.OperationServiceClient {
	return vaultv1.NewOperationServiceClient(v.as(gateway, "main"))
}
func (v *vault) sink() vaultv1.RedeemServiceClient {
	return vaultv1.NewRedeemServiceClient(v.as(executor, "local"))
}
func (v *vault) approvals() vaultv1.ApprovalServiceClient {
	return vaultv1.NewApprovalServiceClient(v.as(operator, platformtest.Operator))
}
func (v *vault) control() vaultv1.ControlServiceClient {
	return vaultv1.NewControlServiceClient(v.as(operator, platformtest.Operator))
}

// revoke and changeToken change a client's entry in clients.yaml, at once.
func (v *vault) revoke(client string) {
	v.t.Helper()
	v.rewrite("id: "+client+"\n", "id: "+client+"\n    revoked: true\n")
}

func (v *vault) changeToken(client string) {
	v.t.Helper()
	v.rewrite(tokenDigest(client), tokenDigest("new"))
}

func (v *vault) rewrite(before, after string) {
	v.t.Helper()
	b, err := os.ReadFile(v.clients)
	v.must(err)
	if !strings.Contains(string(b), before) {
		v.t.Fatalf("clients.yaml has no %q", before)
	}
	v.must(os.WriteFile(v.clients, []byte(strings.Replace(string(b), before, after, 1)), 0o600))
	v.must(v.server.Clients.Reload())
}

// open opens a bearer client's session.
func (v *vault) open(client string) *vaultv1.OpenSessionResponse {
	v.t.Helper()
	resp, err := v.sessions().OpenSession(v.t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(client), ClientName: "test"})
	v.must(err)
	return resp
}

// openProof is a key-bound client's opening.
func (v *vault) openProof(counter uint64, at time.Time) *callv1.Proof {
	v.t.Helper()
	p, err := proof.Sign(v.clientKey, proof.Claim{Purpose: callv1.Proof_PURPOSE_OPEN, Client: bound, Counter: counter, Time: at.Unix()})
	v.must(err)
	return p
}

// opensBy opens a session of the key-bound client's.
func (v *vault) opensBy(p *callv1.Proof) error {
	v.t.Helper()
	_, err := v.sessions().OpenSession(v.t.Context(), &vaultv1.OpenSessionRequest{Credential: tokenOf(bound), ClientName: "test", Proof: p})
	return err
}

func arguments(service string) []byte { return []byte(`{"service_id":"` + service + `"}`) }

func toolRef(name string) *callv1.ToolRef {
	tool, ok := contract.Lookup(name)
	if !ok {
		panic("no tool " + name)
	}
	return tool.Ref()
}

func request(sessionID, tool, service string) *vaultv1.AuthoriseRequest {
	return &vaultv1.AuthoriseRequest{SessionId: sessionID, Tool: toolRef(tool), Arguments: arguments(service)}
}

// ask asks for a start and returns the answer.
func (v *vault) ask(sessionID, service string) *vaultv1.AuthoriseResponse {
	v.t.Helper()
	resp, err := v.authority().Authorise(v.t.Context(), request(sessionID, "start_service", service))
	v.must(err)
	return resp
}

// operation shows an operation as operators see it.
func (v *vault) operation(id string) *vaultv1.Operation {
	v.t.Helper()
	resp, err := v.approvals().ListOperations(v.t.Context(), &vaultv1.ListOperationsRequest{
		States: []vaultv1.OperationState{1, 2, 3, 4, 5, 6}, Limit: 1000,
	})
	v.must(err)
	for _, o := range resp.GetOperations() {
		if o.GetOperationId() == id {
			return o
		}
	}
	v.t.Fatalf("operation %s is not listed", id)
	return nil
}

// subject stands for what the operator's program fetched from the executor.
var subject = func() string {
	d := canonical.Digest([]byte("the catalogue entry"))
	return canonical.FormatDigest(d[:])
}()

// statementFor is what an honest operator's program makes of an operation.
func (v *vault) statementFor(o *vaultv1.Operation) *statement.Statement {
	tool := statement.ToolOf(o.GetTool())
	digest := canonical.Digest(o.GetArguments())
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: statement.KindApprove, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(v.clock.Now()), NotBefore: statement.FormatTime(v.clock.Now()),
		ExpiresAt: statement.FormatTime(o.GetExpiresAt().AsTime()), Epoch: o.GetEpoch(), Audience: o.GetAudience(),
		Principal: o.GetPrincipal(), Session: o.GetSession(), Channel: statement.ChannelName(o.GetChannel()),
		Operation: o.GetOperationId(), Tool: &tool, Tier: contract.TierName(o.GetTier()), Arguments: o.GetArguments(),
		ArgumentsDigest: canonical.FormatDigest(digest[:]), Target: "service", SubjectDigest: subject, Uses: 1,
	}
}

func (v *vault) sign(s *statement.Statement) *callv1.HumanStatement {
	v.t.Helper()
	h, err := statement.Sign(s, v.OperatorSigner)
	v.must(err)
	return h
}

func (v *vault) approve(id string) *vaultv1.Operation {
	v.t.Helper()
	resp, err := v.approvals().ApproveOperation(v.t.Context(), &vaultv1.ApproveOperationRequest{
		OperationId: id, Statement: v.sign(v.statementFor(v.operation(id))),
	})
	v.must(err)
	return resp.GetOperation()
}

// permitFor picks the permit for a role out of a session's.
func permitFor(role optionsv1.Role, permits []*vaultv1.AddressedPermit) *callv1.SignedPermit {
	for _, p := range permits {
		if p.GetRole() == role {
			return p.GetPermit()
		}
	}
	return nil
}

func withPermit(ctx context.Context, p *callv1.SignedPermit) context.Context {
	raw, err := proto.Marshal(p)
	if err != nil {
		panic(err)
	}
	return metadata.AppendToOutgoingContext(ctx, rpc.MetadataPermit, string(raw))
}

// wait calls wait_operation for at most hold.
func (v *vault) wait(opened *vaultv1.OpenSessionResponse, id string, hold time.Duration) (*vaultv1.WaitOperationResponse, error) {
	ctx, cancel := context.WithTimeout(v.t.Context(), hold+holdSpare)
	defer cancel()
	return v.tools().WaitOperation(withPermit(ctx, permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())),
		&vaultv1.WaitOperationRequest{OperationId: &id})
}

// withdraw takes an operation back.
func (v *vault) withdraw(opened *vaultv1.OpenSessionResponse, id string) (*vaultv1.WithdrawOperationResponse, error) {
	return v.tools().WithdrawOperation(withPermit(v.t.Context(), permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())),
		&vaultv1.WithdrawOperationRequest{OperationId: &id})
}

// look asks where an operation stands, at once or when it leaves one of the known states.
func (v *vault) look(opened *vaultv1.OpenSessionResponse, id string, known ...vaultv1.OperationState) (*vaultv1.GetOperationResponse, error) {
	ctx, cancel := context.WithTimeout(v.t.Context(), time.Minute)
	defer cancel()
	req := &vaultv1.GetOperationRequest{OperationId: &id}
	if len(known) > 0 {
		req.KnownState, req.WaitS = &known[0], proto.Uint32(45)
	}
	return v.operations().GetOperation(withPermit(ctx, permitFor(optionsv1.Role_ROLE_VAULT, opened.GetPermits())), req)
}

// granted asks, approves and fetches the grant of one start.
func (v *vault) granted(client, service string) (*vaultv1.OpenSessionResponse, string, *callv1.SignedGrant) {
	v.t.Helper()
	opened := v.open(client)
	id := v.ask(opened.GetSessionId(), service).GetOperationId()
	v.approve(id)
	resp, err := v.wait(opened, id, time.Second)
	v.must(err)
	if resp.GetGrant() == nil {
		v.t.Fatalf("no grant in state %s", resp.GetState())
	}
	return opened, id, resp.GetGrant()
}

func (v *vault) redeem(g *callv1.SignedGrant) error {
	_, err := v.sink().Redeem(v.t.Context(), &vaultv1.RedeemRequest{Grant: g})
	return err
}

// wantCode fails unless err is a fault of that code (CODE_UNSPECIFIED: no error), and returns the fault.
func wantCode(t *testing.T, err error, code callv1.Code) *fault.Error {
	t.Helper()
	if code == callv1.Code_CODE_UNSPECIFIED {
		if err != nil {
			t.Fatalf("error %v (%v)", err, fault.From(err).Code)
		}
		return nil
	}
	if !fault.Is(err, code) {
		t.Fatalf("error %v, want %s", err, code)
	}
	return fault.From(err)
}
