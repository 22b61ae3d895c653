package standing_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"buf.build/go/protovalidate"
	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/canonical"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/grant"
	"durward.internal/services/platform/logproof"
	"durward.internal/services/platform/platformtest"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/standing"
	"durward.internal/services/vault/internal/store"
)

// recorder keeps what it is given, if audit would take it from a vault, and can be down.
type recorder struct {
	t       testing.TB
	mu      sync.Mutex
	records []*auditv1.Record
	down    bool
	// meanwhile happens while something is recorded that a human let be; nil: nothing.
	meanwhile func()
}

func (r *recorder) Record(ctx context.Context, record *auditv1.Record) (*callv1.Receipt, error) {
	return &callv1.Receipt{}, r.Spool(ctx, record)
}

func (r *recorder) Spool(_ context.Context, record *auditv1.Record) error {
	if r.meanwhile != nil && record.GetKind() == auditv1.Kind_KIND_STANDING_GRANTED {
		r.meanwhile()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return errors.New("audit is down")
	}
	record = proto.CloneOf(record)
	record.Sequence = uint64(len(r.records)) + 1
	if err := protovalidate.Validate(record); err != nil {
		r.t.Errorf("audit would refuse this record of %s: %v", record.GetKind(), err)
	}
	body := record.GetBody()
	if body.GetStatement() != nil && !logproof.CarriesStatement(optionsv1.Role_ROLE_VAULT, record.GetKind()) ||
		(body.GetConfirmed() || body.GetDangerous()) && !logproof.CarriesConsent(optionsv1.Role_ROLE_VAULT, record.GetKind()) {
		r.t.Errorf("a record of %s may not speak of a human's consent", record.GetKind())
	}
	r.records = append(r.records, record)
	return nil
}

func (r *recorder) Reachable() bool { return !r.down }

// of returns the records of a kind that have one of the actions, or any.
func (r *recorder) of(kind auditv1.Kind, actions ...string) []*auditv1.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*auditv1.Record
	for _, record := range r.records {
		if record.GetKind() == kind && (len(actions) == 0 || slices.Contains(actions, record.GetBody().GetAction())) {
			out = append(out, record)
		}
	}
	return out
}

// Clients of the world.
const (
	bound  = "bound"
	other  = "other"
	bearer = "bearer"
	chat   = "chat"
)

// world is a vault's inside without its server.
type world struct {
	*platformtest.Kit
	t        testing.TB
	mu       sync.Mutex
	now      time.Time
	store    *store.Store
	audit    *recorder
	halt     *halt.Switch
	sessions *session.Table
	book     *standing.Approvals
	queue    *operation.Queue
	issuer   *issuer.Issuer
	clients  map[string]*clients.Client
	keys     map[string]ed25519.PrivateKey
	limits   standing.Limits
	fourEyes bool
	sink     string
	// judged counts the signatures that were looked at.
	judged int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{
		Kit: platformtest.New(t), t: t, now: time.Now().Truncate(time.Second), audit: &recorder{t: t},
		clients: map[string]*clients.Client{}, keys: map[string]ed25519.PrivateKey{},
		limits: standing.Limits{ScopeMax: 8 * time.Hour, DangerousMax: 8 * time.Hour, ScopeMaxUses: 1000, DangerousAllowed: true},
	}
	w.sink = w.ID(optionsv1.Role_ROLE_EXECUTOR, "local").String()
	for _, id := range []string{bound, other, bearer, chat} {
		c := &clients.Client{ID: id, Channel: callv1.Channel_CHANNEL_CLI, Ceiling: optionsv1.Tier_TIER_DESTRUCTIVE, Sessions: 100, Pending: 50, User: "bob"}
		if id != bearer {
			_, key, err := ed25519.GenerateKey(rand.Reader)
			w.must(err)
			w.keys[id], c.Key = key, key.Public().(ed25519.PublicKey)
		}
		if id == chat {
			c.Channel = callv1.Channel_CHANNEL_MESSAGING
		}
		w.clients[id] = c
	}
	w.start()
	t.Cleanup(func() { _ = w.store.Close() })
	return w
}

// start begins a vault's life on what is on disk.
func (w *world) start() {
	w.t.Helper()
	ctx := context.Background()
	var err error
	if w.store != nil {
		w.must(w.store.Close())
	}
	w.store, err = store.Open(ctx, w.Dir, nil)
	w.must(err)
	w.halt, err = halt.New(ctx, w.store)
	w.must(err)
	log := journal.New(w.audit, w.Now, platformtest.Logger())
	operators := func() *trust.AllowedSigners { return w.Trust.Current().AllowedSigners }
	judge := consent.New(consent.Config{Operators: operators, Now: w.Now, Clients: w})
	w.sessions = session.New(w.Now, 0)
	w.book, err = standing.New(ctx, standing.Config{
		Store: w.store, Journal: log, Halt: w.halt, Sessions: w.sessions, Consent: judge, Operators: operators, Client: w.client,
		Audiences: []string{w.sink}, Limits: func(string, string) standing.Limits { return w.limits }, Now: w.Now, Logger: platformtest.Logger(),
	})
	w.must(err)
	w.issuer, err = issuer.New(issuer.Config{Key: w.GrantKey, Keys: w.Trust, Now: w.Now})
	w.must(err)
	w.queue, err = operation.New(ctx, operation.Config{
		Store: w.store, Journal: log, Issuer: w.issuer, Halt: w.halt, Consent: judge, Standing: w.book, Now: w.Now, Logger: platformtest.Logger(),
		LetIn: func(id string) bool { _, ok := w.client(id); return ok },
	})
	w.must(err)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) Now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) advance(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) client(id string) (*clients.Client, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, ok := w.clients[id]
	return c, ok && !c.Revoked
}

// change replaces a client's entry, as a new clients.yaml does.
func (w *world) change(id string, change func(*clients.Client)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := *w.clients[id]
	change(&c)
	w.clients[id] = &c
}

// Keys and FourEyes implement consent.Clients.
func (w *world) Keys() []ed25519.PublicKey {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judged++
	var out []ed25519.PublicKey
	for _, c := range w.clients {
		if c.Key != nil {
			out = append(out, c.Key)
		}
	}
	return out
}

func (w *world) FourEyes(id string) (string, bool) {
	c, _ := w.client(id)
	if c == nil {
		return "", false
	}
	return c.User, w.fourEyes
}

func (w *world) open(id string) *session.Session {
	w.t.Helper()
	_, s := w.openHandle(id)
	return s
}

func (w *world) openHandle(id string) (string, *session.Session) {
	w.t.Helper()
	c, _ := w.client(id)
	handle, s, _, err := w.sessions.Open(session.Opening{Client: c, Name: "test", User: c.User})
	w.must(err)
	return handle, s
}

func toolOf(name string) contract.Tool {
	tool, ok := contract.Lookup(name)
	if !ok {
		panic("no tool " + name)
	}
	return tool
}

var subject = func() string {
	d := canonical.Digest([]byte("the catalogue entry"))
	return canonical.FormatDigest(d[:])
}()

func (w *world) base(kind statement.Kind, s *session.Session, length time.Duration) *statement.Statement {
	return &statement.Statement{
		Type: statement.Type, Version: statement.Version, Kind: kind, ID: grant.NewID(), Operator: platformtest.Operator,
		IssuedAt: statement.FormatTime(w.Now()), NotBefore: statement.FormatTime(w.Now()), ExpiresAt: statement.FormatTime(w.Now().Add(length)),
		Epoch: w.halt.Now().Epoch, Audience: w.sink, Principal: s.Principal, Session: s.Ref, Channel: statement.ChannelName(s.Client.Channel),
	}
}

// scope allows start_service of any service, so often, for two hours.
func (w *world) scope(s *session.Session, uses int) *statement.Statement {
	out := w.base(statement.KindScope, s, 2*time.Hour)
	out.Tools, out.Free = []statement.Tool{statement.ToolOf(toolOf("start_service").Ref())}, []string{"/service_id"}
	out.SubjectDigests, out.Uses = []string{subject}, uses
	return out
}

// dangerous is dangerous mode for 20 changes.
func (w *world) dangerous(s *session.Session) *statement.Statement {
	out := w.base(statement.KindDangerous, s, 2*time.Hour)
	out.Version, out.Uses = statement.VersionConfirmed, 20
	return out
}

// confirmation is the second statement of h, made 5 s after it at the earliest.
func (w *world) confirmation(h *callv1.HumanStatement) *statement.Statement {
	w.t.Helper()
	first, err := statement.Parse(h.GetStatement())
	w.must(err)
	return statement.Confirmation(first, h.GetStatement(), grant.NewID(), w.Now())
}

// confirm puts the proposal of h into force, or says why not.
func (w *world) confirm(h *callv1.HumanStatement) (*vaultv1.Standing, error) {
	w.t.Helper()
	return w.book.ConfirmDangerous(context.Background(), w.sign(w.confirmation(h)), "operator")
}

func (w *world) sign(s *statement.Statement) *callv1.HumanStatement {
	w.t.Helper()
	h, err := statement.Sign(s, w.OperatorSigner)
	w.must(err)
	return h
}

// granted puts a scope into force.
func (w *world) granted(s *session.Session, uses int) string {
	w.t.Helper()
	g, err := w.book.GrantScope(context.Background(), w.sign(w.scope(s, uses)), nil, "operator")
	w.must(err)
	return g.GetStandingId()
}

// enable puts a session into dangerous mode.
func (w *world) enable(s *session.Session) string {
	w.t.Helper()
	h := w.sign(w.dangerous(s))
	id, _, _, err := w.book.ProposeDangerous(context.Background(), h, "operator")
	w.must(err)
	w.advance(standing.ConfirmAfter)
	_, err = w.confirm(h)
	w.must(err)
	return id
}

// request is a call of a session's, as the server hands it to the queue.
func (w *world) request(s *session.Session, name, service string) operation.Request {
	w.t.Helper()
	tool := toolOf(name)
	raw := []byte(`{"service_id":"` + service + `"}`)
	arguments, err := tool.Decode(raw)
	w.must(err)
	digest := contract.Digest(raw)
	return operation.Request{Operation: store.Operation{
		Principal: s.Principal, Session: s.Ref, Channel: s.Client.Channel, KeyBound: s.Client.KeyBound(), ToolName: tool.Name, ToolSource: tool.Source,
		ToolDigest: tool.DefinitionDigest[:], Tier: tool.Tier, Arguments: raw, ArgumentsDigest: digest[:], Audience: w.sink,
		Epoch: w.halt.Now().Epoch, PolicyDigest: digest[:], RequestID: "r",
	}, Arguments: arguments, PendingLimit: 50, Rule: "rule"}
}

// call does what the server does with a call that policy asks about: by a scope if one covers it, else by the queue.
func (w *world) call(s *session.Session, name, service string) (*store.Operation, error) {
	r := w.request(s, name, service)
	h, giveBack, ok := w.book.Use(&r.Operation)
	if !ok {
		o, _, err := w.queue.Ask(context.Background(), r)
		return o, err
	}
	o, joined, err := w.queue.Run(context.Background(), r, h, false)
	if joined || err != nil {
		giveBack()
	}
	return o, err
}

// redeem fetches the operation's grant and spends it, as a sink does.
func (w *world) redeem(o *store.Operation) error {
	signed, err := w.queue.Issue(context.Background(), o)
	if err != nil {
		return err
	}
	_, err = w.queue.Redeem(context.Background(), signed, w.sink)
	return err
}

func (w *world) usesLeft(id string) int {
	all, _ := w.book.List()
	for _, s := range all {
		if s.GetStandingId() == id {
			return int(s.GetUsesLeft())
		}
	}
	return -1
}

func (w *world) ends(why string) int {
	n := 0
	for _, r := range w.audit.of(auditv1.Kind_KIND_STANDING_ENDED) {
		if r.GetBody().GetReason() == why {
			n++
		}
	}
	return n
}

func wantCode(t testing.TB, err error, code callv1.Code) {
	t.Helper()
	if code == callv1.Code_CODE_UNSPECIFIED && err != nil || code != callv1.Code_CODE_UNSPECIFIED && !fault.Is(err, code) {
		t.Fatalf("error %v, want %s", err, code)
	}
}
