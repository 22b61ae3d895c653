// Package credential serves stored credentials: to operators' programs, which change and list them, and to sinks, which get them
// encrypted to a launcher's or egress' key. What changes or gives a value away is recorded before; no answer to a program holds one.
package credential

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/handover"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/keyring"
	"durward.internal/services/vault/internal/operation"
	"durward.internal/services/vault/internal/safe"
	"durward.internal/services/vault/internal/store"
)

// Config is what a Service needs.
type Config struct {
	Self identity.ID
	// Sinks may be granted credentials.
	Sinks   []identity.ID
	Safe    *safe.Safe
	Consent *consent.Judge
	Issuer  *issuer.Issuer
	Queue   *operation.Queue
	Clients *clients.Registry
	Halt    *halt.Switch
	Journal *journal.Journal
	// Now is the vault's clock.
	Now func() time.Time
}

// Service serves both. It is safe for concurrent use.
type Service struct {
	Config
	// changing is held while a change is judged, recorded and made: of two at once the second is judged by what the first made.
	changing sync.Mutex
}

// New returns a Service.
func New(c Config) *Service { return &Service{Config: c} }

// Register adds it to a gRPC server.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	vaultv1.RegisterCredentialServiceServer(r, &operators{Service: s})
	vaultv1.RegisterReleaseServiceServer(r, &sinks{Service: s})
}

// operators is the service for operators' programs.
type operators struct {
	vaultv1.UnimplementedCredentialServiceServer
	*Service
}

// ChangeCredential does what a signed statement says. It is recorded before.
func (s *operators) ChangeCredential(ctx context.Context, req *vaultv1.ChangeCredentialRequest) (*vaultv1.ChangeCredentialResponse, error) {
	defer clear(req.GetValue())
	v, err := s.Consent.Verify(req.GetStatement(), "")
	if err == nil && (v.Kind != statement.KindCredential || !s.Self.AddressedBy(v.Audience) || v.Epoch != s.Halt.Now().Epoch) {
		err = fmt.Errorf("%w: it is of kind %s for %s, epoch %d", statement.ErrCover, v.Kind, v.Audience, v.Epoch)
	}
	if err == nil && v.Credential.Action == statement.CredentialGrant {
		err = s.keeps(&v.Credential.CredentialGrants)
	}
	if err != nil {
		s.noteRefused(ctx, "", "", err)
		return nil, fault.New(callv1.Code_CODE_DENIED, "the statement does not change a credential here", fault.WithCause(err))
	}
	c := v.Credential
	s.changing.Lock()
	defer s.changing.Unlock()
	// Before it is recorded, so that a replay does not look like a change. The store is what makes it none.
	switch used, err := s.Queue.Store.StatementUsed(ctx, v.Digest[:]); {
	case err != nil:
		return nil, err
	case used:
		s.noteRefused(ctx, c.Name, "", store.ErrStatementUsed)
		return nil, asFault(c.Name, store.ErrStatementUsed)
	}
	if err := s.Safe.MayChange(ctx, c, req.GetValue(), req.GetSalt()); err != nil {
		return nil, asFault(c.Name, err)
	}
	r := record(c.Action, c.Name, v.Operator)
	r.Body.Principal, r.Body.Channel = statement.CommandPrincipal(v.Operator), callv1.Channel_CHANNEL_CLI
	r.Body.Statement, r.Body.Confirmed, r.Body.Persistent = req.GetStatement(), true, true
	if c.Version > 0 {
		r.Body.Details["version"] = strconv.Itoa(c.Version)
	}
	for key, value := range map[string]string{
		"services": strings.Join(c.Services, " "), "origins": strings.Join(c.Origins, " "), "place": c.Place,
		"agents": strings.Join(c.Agents, " "), "until": c.Until,
	} {
		if value != "" {
			r.Body.Details[key] = clean.Line(value, 500)
		}
	}
	if c.Unattended {
		r.Body.Details["unattended"] = "yes"
	}
	if err := s.Journal.Must(ctx, r); err != nil {
		return nil, err
	}
	err = s.Safe.Change(context.WithoutCancel(ctx), c, req.GetValue(), req.GetSalt(), store.UsedStatement{
		Digest: v.Digest[:], Kind: string(v.Kind), Operator: v.Operator, UsedAt: s.Now(),
	})
	if err != nil {
		s.noteRefused(ctx, c.Name, "", err) // it is recorded as made
		return nil, asFault(c.Name, err)
	}
	list, err := s.ListCredentials(ctx, &vaultv1.ListCredentialsRequest{})
	for _, one := range list.GetCredentials() {
		if one.GetName() == c.Name {
			return &vaultv1.ChangeCredentialResponse{Credential: one}, nil
		}
	}
	return &vaultv1.ChangeCredentialResponse{}, err
}

// RevokeCredential takes a credential away; that is recorded, and done whether or not it can be.
func (s *operators) RevokeCredential(ctx context.Context, req *vaultv1.RevokeCredentialRequest) (*vaultv1.RevokeCredentialResponse, error) {
	ctx = context.WithoutCancel(ctx)
	was, err := s.Safe.Revoke(ctx, req.GetName(), req.GetService())
	if err != nil {
		return nil, asFault(req.GetName(), err)
	}
	r := record("revoke", req.GetName(), caller(ctx))
	from := []string{req.GetService()}
	if req.GetService() == "" {
		from = nil
		for _, g := range was.Grants {
			from = append(append(from, g.Services...), g.Origins...)
		}
	}
	r.Body.Details["from"] = clean.Line(strings.Join(from, " "), 500)
	s.Journal.Note(ctx, r)
	resp := &vaultv1.RevokeCredentialResponse{Credential: shown(was)}
	for _, u := range resp.GetCredential().GetUses() {
		if req.GetService() == "" || req.GetService() == u.GetService() {
			resp.Held = append(resp.Held, u)
		}
	}
	return resp, nil
}

// RemoveCredential forgets one.
func (s *operators) RemoveCredential(ctx context.Context, req *vaultv1.RemoveCredentialRequest) (*vaultv1.RemoveCredentialResponse, error) {
	ctx = context.WithoutCancel(ctx)
	was, err := s.Safe.Remove(ctx, req.GetName(), req.GetVersion())
	if err != nil {
		return nil, asFault(req.GetName(), err)
	}
	r := record("remove", req.GetName(), caller(ctx))
	if req.GetVersion() > 0 {
		r.Body.Details["version"] = strconv.FormatUint(uint64(req.GetVersion()), 10)
	}
	s.Journal.Note(ctx, r)
	return &vaultv1.RemoveCredentialResponse{Held: shown(was).GetUses()}, nil
}

// ListCredentials shows what is known beside the values.
func (s *operators) ListCredentials(ctx context.Context, _ *vaultv1.ListCredentialsRequest) (*vaultv1.ListCredentialsResponse, error) {
	all, err := s.Safe.List(ctx)
	if err != nil {
		return nil, err
	}
	keys := s.Safe.Keys()
	resp := &vaultv1.ListCredentialsResponse{Sealed: keys.Sealed(ctx), KeySource: keys.Source(), PassphraseSet: keys.Source() == keyring.SourcePassphrase && keys.Made(ctx)}
	for _, c := range all {
		resp.Credentials = append(resp.Credentials, shown(c))
	}
	return resp, nil
}

// Unseal takes the passphrase. Guessing is slow: each try costs a third of a second, and they come one after the other.
func (s *operators) Unseal(ctx context.Context, req *vaultv1.UnsealRequest) (*vaultv1.UnsealResponse, error) {
	if err := s.Safe.Unseal(ctx, req.GetPassphrase()); err != nil {
		s.noteRefused(ctx, "", "unseal", err)
		return nil, asFault("", err)
	}
	s.Journal.Note(ctx, record("unseal", "", caller(ctx)))
	return &vaultv1.UnsealResponse{}, nil
}

// RotateKeys makes a new data key, and as asked a new key above it.
func (s *operators) RotateKeys(ctx context.Context, req *vaultv1.RotateKeysRequest) (*vaultv1.RotateKeysResponse, error) {
	n, err := s.Safe.Rotate(context.WithoutCancel(ctx), keyring.Rotation{
		Passphrase: req.GetPassphrase(), Upper: req.GetUpper(), Next: req.GetNextPassphrase(),
	})
	if err != nil {
		return nil, asFault("", err)
	}
	r := record("rotate-keys", "", caller(ctx))
	if req.GetUpper() {
		r.Body.Details["upper"] = "yes"
	}
	s.Journal.Note(ctx, r)
	return &vaultv1.RotateKeysResponse{Values: uint32(max(n, 0))}, nil
}

// sinks is the service that gives values to services that start, and to egress.
type sinks struct {
	vaultv1.UnimplementedReleaseServiceServer
	*Service
}

// starts are the tools by which services start; where one names its service, that one alone starts.
var starts = map[string]bool{"start_service": true, "switch_mode": true}

// ReleaseCredentials gives a service's launcher what the service is granted, within a redeemed call that still runs, or what it may have
// unattended. Each is recorded before.
func (s *sinks) ReleaseCredentials(ctx context.Context, req *vaultv1.ReleaseCredentialsRequest) (*vaultv1.ReleaseCredentialsResponse, error) {
	ask := safe.Ask{Sink: caller(ctx), Service: req.GetService(), Names: req.GetNames()}
	may := s.startsNow
	if req.GetGrant() == nil {
		may = nil
	}
	sealed, err := s.release(ctx, req.GetGrant(), ask, may, req.GetPublicKey(), ask.Service)
	return &vaultv1.ReleaseCredentialsResponse{Sealed: sealed}, err
}

// ReleaseForRequest gives egress what it puts into one place of one call's requests to one origin. It is recorded before.
func (s *sinks) ReleaseForRequest(ctx context.Context, req *vaultv1.ReleaseForRequestRequest) (*vaultv1.ReleaseForRequestResponse, error) {
	ask := safe.Ask{Sink: caller(ctx), Origin: req.GetOrigin(), Place: statement.Place(req.GetPlace()), Names: []string{req.GetName()}}
	sealed, err := s.release(ctx, req.GetGrant(), ask, s.sendsNow, req.GetPublicKey(), handover.ForRequest(ask.Origin, ask.Place))
	return &vaultv1.ReleaseForRequestResponse{Sealed: sealed}, err
}

// Known reports why a credential that was released would not be found in a text: after a start its value is sealed, until the key is there.
func (s *Service) Known(ctx context.Context) error {
	err := s.Safe.Recall(ctx)
	if errors.Is(err, keyring.ErrSealed) {
		return fault.New(callv1.Code_CODE_SEALED, "what programs say may hold a stored credential, and those are sealed: an operator must unseal the vault", fault.WithCause(err))
	}
	return err
}

// release encrypts what is asked for to a key. may judges the call that it is for; nil: there is none.
func (s *Service) release(ctx context.Context, signed *callv1.SignedGrant, ask safe.Ask, may func(*store.Operation, safe.Ask) error,
	public []byte, to string) ([]byte, error) {
	epoch, grant := s.Halt.Now().Epoch, &callv1.Grant{}
	note := func(err error) {
		s.noteRefused(ctx, strings.Join(ask.Names, " "), cmp.Or(ask.Service, ask.Origin), err)
	}
	ended := func(err error) error {
		if note(err); fault.Is(err, callv1.Code_CODE_HALTED) {
			return err
		}
		return fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed, fault.WithCause(err))
	}
	if may != nil {
		var err error
		if grant, err = s.Issuer.KnownGrant(signed); err == nil {
			epoch, ask.Operation, ask.Principal = grant.GetEpoch(), grant.GetOperationId(), grant.GetPrincipal()
			err = s.runsNow(ctx, grant, &ask, may)
		}
		if err != nil {
			return nil, ended(err)
		}
	}
	uses, err := s.Safe.MayRelease(ctx, ask)
	if err != nil {
		note(err)
		return nil, asFault("", err)
	}
	for _, u := range uses {
		r := record("use", u.Name, ask.Sink)
		r.Kind, r.OperationId, r.Tool = auditv1.Kind_KIND_CREDENTIAL_USED, u.OperationID, grant.GetTool().GetName()
		r.Body.Principal, r.Body.Session, r.Body.Channel = grant.GetPrincipal(), grant.GetSession(), grant.GetChannel()
		if r.Body.Details["domain"], r.Body.Details["service"] = "service", u.Service; ask.Origin != "" {
			delete(r.Body.Details, "service")
			r.Body.Details["domain"], r.Body.Details["origin"], r.Body.Details["place"] = "request", ask.Origin, ask.Place
		}
		if may == nil {
			r.Body.Details["unattended"] = "yes"
		}
		r.Body.Details["version"] = strconv.FormatUint(uint64(u.Version), 10)
		if err := s.Journal.Must(ctx, r); err != nil {
			note(err) // those before it are recorded as used
			return nil, err
		}
	}
	if may != nil { // again: audit was waited for, and what a human ended meanwhile has ended
		if err := s.runsNow(ctx, grant, &ask, may); err != nil {
			return nil, ended(err)
		}
	}
	var sealed []byte
	err = s.Halt.Within(epoch, func() error {
		return s.Safe.Release(context.WithoutCancel(ctx), ask, func(values []handover.Value) (err error) {
			sealed, err = handover.Seal(public, to, values)
			return err
		})
	})
	if err != nil {
		note(err) // it is recorded as used
		return nil, asFault("", err)
	}
	return sealed, nil
}

// runsNow reports why a grant's call does not run at this moment for what is asked for, and says whose agent asks.
func (s *Service) runsNow(ctx context.Context, g *callv1.Grant, ask *safe.Ask, may func(*store.Operation, safe.Ask) error) error {
	o, err := s.Queue.Check(ctx, g, ask.Sink)
	switch {
	case err != nil:
		return err
	case o == nil || o.State != vaultv1.OperationState_OPERATION_STATE_RUNNING:
		return errors.New("its operation does not run now")
	}
	ask.Agent = o.Agent
	return asked(may(o, *ask))
}

// startsNow reports why a call does not start that service.
func (s *Service) startsNow(o *store.Operation, ask safe.Ask) error {
	if !starts[o.ToolName] {
		return errors.New(o.ToolName + " starts no service")
	}
	var named struct {
		Service string `json:"service_id"`
	}
	if err := json.Unmarshal(o.Arguments, &named); err != nil {
		return err
	}
	if named.Service != "" && named.Service != ask.Service || o.ToolName == "start_service" && named.Service == "" {
		return errors.New("the call starts another service")
	}
	return nil
}

// sendsNow reports why a call sends no such credential to that origin: its arguments do not refer to it, its url is of another origin, or
// its client's line does not name it.
func (s *Service) sendsNow(o *store.Operation, ask safe.Ask) error {
	tool, ok := contract.Lookup(o.ToolName)
	if !ok {
		return errors.New("its tool is not known")
	}
	arguments, err := tool.Decode(o.Arguments)
	if err != nil {
		return err
	}
	if err := refers(o.Arguments, contract.References(arguments), ask); err != nil {
		return err
	}
	client, ok := s.Clients.Lookup(o.Principal)
	if !ok || !slices.Contains(client.Credentials, ask.Names[0]) {
		return errors.New("the client's line in clients.yaml does not name " + ask.Names[0])
	}
	return nil
}

// refers reports why arguments, which refer to those credentials, send none of that name to that origin.
func refers(arguments []byte, names []string, ask safe.Ask) error {
	if !slices.Contains(names, ask.Names[0]) {
		return errors.New("the call's arguments do not refer to " + ask.Names[0])
	}
	var sent struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(arguments, &sent); err != nil {
		return err
	}
	origin, err := statement.Origin(sent.URL)
	if err != nil || origin != ask.Origin {
		return errors.New("the call's url is not of that origin")
	}
	return nil
}

// HeldBy is what an agent is told whose arguments hold a credential: people would see it, and sign for it, and the log would keep it.
func (s *Service) HeldBy(ctx context.Context, arguments string) error {
	name, err := s.Safe.Holding(ctx, arguments)
	if err != nil || name == "" {
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "an argument holds what looks like a credential; ask your human to store it (durward credential add NAME) "+
			`and pass {"$credential":"NAME"} where the tool takes one`, fault.WithCause(err))
	}
	return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, "an argument holds a stored credential; pass "+`{"$credential":"`+name+`"} where the tool takes one`)
}

// keeps reports why a grant is none that a sink here keeps to.
func (s *Service) keeps(g *statement.CredentialGrants) error {
	at := slices.IndexFunc(s.Sinks, func(sink identity.ID) bool { return sink.String() == g.Sink })
	switch {
	case at < 0:
		return fmt.Errorf("%w: %s is no sink here", statement.ErrCover, g.Sink)
	case s.Sinks[at].Role() == optionsv1.Role_ROLE_EGRESS && len(g.Services) > 0 && len(g.Agents) > 0:
		return fmt.Errorf("%w: an MCP server has a credential for every client that calls it", statement.ErrCover)
	}
	return nil
}

// caller is the identity on the connection; the chain lets nobody in without.
func caller(ctx context.Context) string {
	id, _ := rpc.Caller(ctx)
	return id.String()
}

func record(action, name, by string) *auditv1.Record {
	r := &auditv1.Record{Kind: auditv1.Kind_KIND_CREDENTIAL_CHANGED, Status: auditv1.Status_STATUS_OK, Body: &auditv1.Body{
		Action: "credential-" + action, DecisionSource: by, Details: map[string]string{},
	}}
	if name != "" {
		r.Body.Details["name"] = name
	}
	return r
}

func (s *Service) noteRefused(ctx context.Context, names, service string, cause error) {
	r := &auditv1.Record{Kind: auditv1.Kind_KIND_DENIED, Status: auditv1.Status_STATUS_DENIED, Body: &auditv1.Body{
		Action: "credential-refused", Reason: cause.Error(), DecisionSource: caller(ctx), Details: map[string]string{},
	}}
	for key, value := range map[string]string{"names": names, "service": service} {
		if value != "" {
			r.Body.Details[key] = value
		}
	}
	s.Journal.Note(ctx, r)
}

// asFault is what callers see.
func asFault(name string, err error) error {
	cause := fault.WithCause(err)
	switch {
	case errors.Is(err, keyring.ErrSealed):
		return fault.New(callv1.Code_CODE_SEALED, "the stored credentials are sealed: an operator must unseal the vault", cause)
	case errors.Is(err, keyring.ErrPassphrase):
		return fault.New(callv1.Code_CODE_DENIED, keyring.ErrPassphrase.Error(), cause)
	case errors.Is(err, keyring.ErrNoNext):
		return fault.New(callv1.Code_CODE_CONFLICT, keyring.ErrNoNext.Error(), cause)
	case errors.Is(err, keyring.ErrNoPassphrase):
		return fault.New(callv1.Code_CODE_CONFLICT, keyring.ErrNoPassphrase.Error(), cause)
	case errors.Is(err, safe.ErrUnknown), errors.Is(err, safe.ErrNotGranted):
		return fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such credential, or it is not granted", cause)
	case errors.Is(err, safe.ErrExists):
		return fault.New(callv1.Code_CODE_CONFLICT, "there is a credential "+name+" already; its value is replaced with durward credential rotate "+name, cause)
	case errors.Is(err, safe.ErrNewest):
		return fault.New(callv1.Code_CODE_CONFLICT, safe.ErrNewest.Error(), cause)
	case errors.Is(err, safe.ErrVersion), errors.Is(err, store.ErrState):
		return fault.New(callv1.Code_CODE_CONFLICT, name+" changed meanwhile, or has no such version; look at it and try again", cause)
	case errors.Is(err, safe.ErrCommitment):
		return fault.New(callv1.Code_CODE_INVALID_ARGUMENT, safe.ErrCommitment.Error(), cause)
	case errors.Is(err, store.ErrStatementUsed):
		return fault.New(callv1.Code_CODE_CONFLICT, "the statement was used before", cause)
	}
	return err
}

// shown is a credential without its values.
func shown(c *store.Credential) *vaultv1.Credential {
	out := &vaultv1.Credential{Name: c.Name, Variable: c.Variable, Delivery: vaultv1.Delivery_DELIVERY_ENVIRONMENT}
	for _, g := range c.Grants {
		one := &vaultv1.CredentialGrant{
			Sink: g.Sink, Services: g.Services, Origins: g.Origins, Place: g.Place, Scheme: g.Scheme, Agents: g.Agents, Unattended: g.Unattended,
		}
		if !g.EndsAt.IsZero() {
			one.EndsAt = timestamppb.New(g.EndsAt)
		}
		if out.Grants = append(out.Grants, one); out.GetSink() == "" && len(g.Services) > 0 {
			out.Sink, out.Services = g.Sink, g.Services
		}
	}
	if c.Delivery == statement.DeliveryFile {
		out.Delivery = vaultv1.Delivery_DELIVERY_FILE
	}
	for _, v := range c.Versions {
		out.Versions = append(out.Versions, &vaultv1.CredentialVersion{Version: v.Version, AddedAt: timestamppb.New(v.AddedAt), AddedBy: v.AddedBy})
	}
	for _, u := range c.Uses {
		out.Uses = append(out.Uses, &vaultv1.Use{Service: u.Service, Version: u.Version, UsedAt: timestamppb.New(u.UsedAt), OperationId: u.OperationID})
	}
	return out
}
