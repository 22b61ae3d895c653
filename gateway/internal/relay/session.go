package relay

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/protobuf/proto"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
)

// renewBefore is how much life a permit must have left to be used without renewing it first.
const renewBefore = 15 * time.Second

// Caller is what one request of a client brought with it. It is not kept beyond the request.
type Caller struct {
	// Credential is the bearer token as the client sent it. Without one, what the vault knows no more stays lost.
	Credential string
	// ClientName and ClientVersion are what the client calls itself: untrusted.
	ClientName, ClientVersion string
	// Proof is a key-bound client's signature, or nil.
	Proof *callv1.Proof
	// Agent is which of the client's own agents asks; empty: none in particular. Sender is for whom a messaging client speaks. The
	// vault judges both when a session opens, and they are the session's from then on.
	Agent  string
	Sender Sender
	// Remote: the client says that its program runs on another machine. It may do less then, so that its word is enough.
	Remote bool
}

// Sender is a person on a messaging platform, as the client tells; the zero value is nobody.
type Sender struct{ User, Room string }

func (s Sender) proto() *vaultv1.Sender {
	if s == (Sender{}) {
		return nil
	}
	return &vaultv1.Sender{User: s.User, Room: s.Room}
}

// proof returns the caller's proof if it serves that purpose: the vault would count any other one as spent.
func (c Caller) proof(purpose callv1.Proof_Purpose) *callv1.Proof {
	if c.Proof.GetPurpose() != purpose {
		return nil
	}
	return c.Proof
}

// Session is a principal's session at the vault, kept in memory for as long as the client's own session lasts.
type Session struct {
	principal                 string
	clientName, clientVersion string
	agent                     string
	sender                    Sender
	remote                    bool
	ctx                       context.Context
	end                       context.CancelFunc
	state                     atomic.Pointer[state]
	flight                    singleflight.Group
	// renewed is raised with each renewal, relisted with one after which the client's lists are others.
	renewed, relisted clock.Signal
}

// state is one consistent view of a session; it is replaced, never changed. What the vault says of the client is part of it:
// the operator may have changed that by the time a lost session is opened again.
type state struct {
	handle   string
	ref      string
	keyBound bool
	channel  callv1.Channel
	ceiling  optionsv1.Tier
	permits  map[optionsv1.Role]permit
	// tools are the names of the tools that the client may call at all.
	tools   []string
	expires time.Time
	idle    time.Duration
}

type permit struct {
	// signed is the serialised SignedPermit, as it goes into call metadata.
	signed string
	// got is when the vault was asked for it: what changed afterwards may not be in it.
	got     time.Time
	expires time.Time
	// dangerous: it says that the session is in dangerous mode.
	dangerous bool
	// tools are the names of the READ tools that it is for.
	tools []string
}

// Agent and Sender are what the client said when it opened the session, and the vault accepted.
func (s *Session) Agent() string { return s.agent }

// Sender is for whom the session is; the zero value but for messaging clients.
func (s *Session) Sender() Sender { return s.sender }

// Principal is who the vault says the client is.
func (s *Session) Principal() string { return s.principal }

// KeyBound reports whether the client must sign what it asks for.
func (s *Session) KeyBound() bool { return s.state.Load().keyBound }

// Channel is how the client reaches this gateway, as the vault said last.
func (s *Session) Channel() callv1.Channel { return s.state.Load().channel }

// Ref is the session's public reference, "s-…". It changes when the vault lost the session and it was opened again.
func (s *Session) Ref() string { return s.state.Load().ref }

// About is what the vault said of a session when it opened it last.
type About struct {
	Principal, Ref string
	Channel        callv1.Channel
	// Ceiling is the highest tier that the client may ask for.
	Ceiling  optionsv1.Tier
	KeyBound bool
	// ExpiresAt is when the session ends however busy it is, Idle after how long it ends when nobody uses it.
	ExpiresAt time.Time
	Idle      time.Duration
	// Tools are the names of the tools that the client may call.
	Tools []string
}

// About returns what the vault said of the session.
func (s *Session) About() About {
	now := s.state.Load()
	return About{
		Principal: s.principal, Ref: now.ref, Channel: now.channel, Ceiling: now.ceiling, KeyBound: now.keyBound,
		ExpiresAt: now.expires, Idle: now.idle, Tools: s.Tools(),
	}
}

// Lower takes note that the session's ceiling is lower than it was: the vault said so in answer to an override. The next renewal tells it anew.
func (s *Session) Lower(ceiling optionsv1.Tier) {
	for {
		before := s.state.Load()
		if ceiling == optionsv1.Tier_TIER_UNSPECIFIED || ceiling >= before.ceiling {
			return
		}
		lowered := *before
		lowered.ceiling = ceiling
		if s.state.CompareAndSwap(before, &lowered) {
			return
		}
	}
}

// Tools returns the names of the tools that the client may call, sorted, as the vault said last: what an answer may name.
func (s *Session) Tools() []string {
	var names []string
	for _, t := range s.may() {
		if t.IsTool() {
			names = append(names, t.Name)
		}
	}
	return names
}

// Beside returns what stands beside the tools of other people's servers, and the client may read or get.
func (s *Session) Beside() []contract.Tool {
	return slices.DeleteFunc(s.may(), contract.Tool.IsTool)
}

// may is everything that the client may call, read or get.
func (s *Session) may() (all []contract.Tool) {
	now := s.state.Load()
	for _, name := range now.tools {
		if t, ok := contract.Lookup(name); ok && t.Tier <= now.ceiling { // it may have been lowered meanwhile
			all = append(all, t)
		}
	}
	return all
}

// May reports whether the client may call a tool, as far as it is known here.
func (s *Session) May(tool string) bool { return slices.Contains(s.Tools(), tool) }

// Done is closed when the session ends at the gateway.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// OnEnd has f called when the session ends at the gateway, unless stop is called before.
func (s *Session) OnEnd(f func()) (stop func()) {
	unlink := context.AfterFunc(s.ctx, f)
	return func() { unlink() }
}

// Open asks the vault for a session. A wrong credential is CODE_UNAUTHENTICATED.
func (r *Relay) Open(ctx context.Context, by Caller) (*Session, error) {
	by.ClientName, by.ClientVersion = clean.Line(by.ClientName, 128), clean.Line(by.ClientVersion, 64)
	ctx, cancel := context.WithTimeout(ctx, r.conf.DecideTimeout)
	defer cancel()
	out, st, err := r.open(ctx, by, "")
	if err != nil {
		return nil, err
	}
	s := &Session{
		principal: out.GetPrincipal(), clientName: by.ClientName, clientVersion: by.ClientVersion, agent: by.Agent, sender: by.Sender, remote: by.Remote,
	}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.state.Store(st)
	return s, nil
}

// open opens a session, in the place of the one with the handle replaces where the vault lost that.
func (r *Relay) open(ctx context.Context, by Caller, replaces string) (*vaultv1.OpenSessionResponse, *state, error) {
	asked := time.Now()
	out, err := r.sessions.OpenSession(ctx, &vaultv1.OpenSessionRequest{
		Credential: by.Credential, ClientName: by.ClientName, ClientVersion: by.ClientVersion,
		Proof: by.proof(callv1.Proof_PURPOSE_OPEN), Agent: by.Agent, Sender: by.Sender.proto(), Remote: by.Remote,
		Replaces: replaces,
	})
	if err != nil {
		return nil, nil, fault.From(late(ctx, err))
	}
	permits, err := addressed(out.GetPermits(), asked)
	if err != nil {
		return nil, nil, err
	}
	return out, &state{
		handle: out.GetSessionId(), ref: out.GetSession(), permits: permits,
		tools:    r.own(out.GetTools()),
		keyBound: out.GetKeyBound(), channel: out.GetChannel(), ceiling: out.GetTierCeiling(),
		expires: out.GetExpiresAt().AsTime(), idle: time.Duration(out.GetIdleTimeoutS()) * time.Second,
	}, nil
}

func addressed(list []*vaultv1.AddressedPermit, asked time.Time) (map[optionsv1.Role]permit, error) {
	out := make(map[optionsv1.Role]permit, len(list))
	for _, p := range list {
		raw, err := proto.Marshal(p.GetPermit())
		if err != nil {
			return nil, fault.New(callv1.Code_CODE_INTERNAL, fault.Internal, fault.WithCause(err))
		}
		said := new(callv1.Permit)
		if proto.Unmarshal(p.GetPermit().GetPayload(), said) != nil {
			said = nil // whether it is good is the sink's to judge; as far as we can read it, it is for nothing
		}
		out[p.GetRole()] = permit{signed: string(raw), got: asked, expires: p.GetExpiresAt().AsTime(), tools: said.GetTools(),
			dangerous: said.GetDangerousUntil().AsTime().After(time.Now())}
	}
	return out, nil
}

// Close ends a session here and at the vault. The vault forgets it by itself if it cannot be told.
func (r *Relay) Close(ctx context.Context, s *Session) {
	if s.ctx.Err() != nil {
		return
	}
	s.end()
	r.tellEnded(ctx, s.state.Load().handle)
}

func (r *Relay) tellEnded(ctx context.Context, handle string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.conf.DecideTimeout)
	defer cancel()
	if _, err := r.sessions.CloseSession(ctx, &vaultv1.CloseSessionRequest{SessionId: handle}); err != nil {
		r.conf.Logger.DebugContext(ctx, "the vault was not told that a session ended", "error", fault.From(err))
	}
}

// LetGo ends a session here alone: the vault keeps it for as long as it lasts there.
func (r *Relay) LetGo(s *Session) { s.end() }

// stale reports whether a fresh permit could change a sink's answer to a call that used this one: the sink found it too
// old, or refuses it for a reason that it keeps to itself, as after a halt, whose epoch makes older permits void.
func (r *Relay) stale(s *Session, role optionsv1.Role, used string, err error) bool {
	switch {
	case fault.Is(err, callv1.Code_CODE_EXPIRED), fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED):
		return true
	case fault.Is(err, callv1.Code_CODE_DENIED):
		p := s.state.Load().permits[role]
		return p.signed != used || time.Since(p.got) > r.conf.Fresh
	default:
		return false
	}
}

// permit returns the session's permit for a sink, renewed if it has little life left or is the stale one. Concurrent
// callers share one renewal, which none of them can cancel for the others.
func (r *Relay) permit(ctx context.Context, s *Session, by Caller, role optionsv1.Role, stale string) (string, error) {
	current := s.state.Load().permits[role]
	left := time.Until(current.expires)
	usable := func(p permit) bool {
		return p.signed != stale && time.Until(p.expires) > renewBefore && !r.dangers.changed(s.Ref(), p)
	}
	if usable(current) {
		return current.signed, nil
	}
	// A client that signs does so for a new one in time. Until then this one is good for its calls, and the vault, which would record
	// that it refused a renewal, is not asked for what nobody signed.
	good := current.signed != "" && current.signed != stale && left > time.Second
	if good && s.KeyBound() && by.proof(callv1.Proof_PURPOSE_RENEW) == nil && !r.dangers.changed(s.Ref(), current) {
		return current.signed, nil
	}
	// Who brings no credential could not open a lost session again, and who brings no proof hears that one is needed: neither must
	// make those fail who bring it.
	trip := fmt.Sprintf("permits, credential %t, proof %t", by.Credential != "", by.proof(callv1.Proof_PURPOSE_RENEW) != nil)
	renewed := s.flight.DoChan(trip, func() (any, error) {
		if usable(s.state.Load().permits[role]) {
			return nil, nil // somebody renewed it between our look and our turn
		}
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.conf.DecideTimeout)
		defer cancel()
		return nil, r.renew(detached, s, by)
	})
	var err error
	select {
	case result := <-renewed:
		err = result.Err
	case <-ctx.Done():
		err = fault.From(ctx.Err())
	}
	if err != nil {
		// Still good for this call; the sink judges it. A client that can sign for a new one is asked to where it would say another mode.
		mode := fault.Is(err, callv1.Code_CODE_PROOF_REQUIRED) && r.dangers.changed(s.Ref(), current)
		if good && !mode {
			return current.signed, nil
		}
		return "", err
	}
	fresh := s.state.Load().permits[role]
	if fresh.signed == "" {
		// The vault gives permits for the sinks that this client may read at.
		return "", fault.New(callv1.Code_CODE_DENIED, fault.NotAllowed)
	}
	return fresh.signed, nil
}

// Covers reports whether the session's permit is for a READ tool: without that, the vault decides on each call. A permit that has
// little life left is renewed first. It costs no hop otherwise.
func (r *Relay) Covers(ctx context.Context, s *Session, by Caller, tool contract.Tool) (bool, error) {
	_, err := r.permit(ctx, s, by, tool.Sink, "")
	if fault.Is(err, callv1.Code_CODE_DENIED) {
		return false, nil // there is no permit for that sink
	}
	return err == nil && slices.Contains(s.state.Load().permits[tool.Sink].tools, tool.Name), err
}

// withPermit calls fn with the session's permit for a sink, and once more with a fresh one if that could change the answer.
func (r *Relay) withPermit(ctx context.Context, s *Session, by Caller, role optionsv1.Role, fn func(permit string) error) error {
	stale := ""
	for {
		permit, err := r.permit(ctx, s, by, role, stale)
		if err != nil {
			return err
		}
		if err = fn(permit); err == nil {
			return nil
		}
		if stale != "" || !r.stale(s, role, permit, err) {
			return fault.From(err)
		}
		stale = permit
	}
}

// Renew makes sure that the session has a permit for a sink, and renews its permits if they have little life left, for what
// goes on under them between requests. CODE_DENIED if the client may read nothing there.
func (r *Relay) Renew(ctx context.Context, s *Session, by Caller, role optionsv1.Role) error {
	_, err := r.permit(ctx, s, by, role, "")
	return err
}

// Refresh asks the vault again what the client may call where it said so before lists changed last, or longer ago than Config.Fresh: a
// session outlives what humans pin and the rules that they write, and lists are made of it. A key-bound client brings a proof for that. It is not
// asked to: the bridge signs one early renewal for a gateway's word, and a list that it would not sign for would be refused. Without one, what
// the vault said last stays until the next renewal (Relisted); so it does while the vault cannot answer.
func (r *Relay) Refresh(ctx context.Context, s *Session, by Caller) {
	const role = optionsv1.Role_ROLE_VAULT
	said := s.state.Load().permits[role]
	known := r.lists.knows(said) && time.Since(said.got) <= r.conf.Fresh
	if known || s.KeyBound() && by.proof(callv1.Proof_PURPOSE_RENEW) == nil {
		return
	}
	if _, err := r.permit(ctx, s, by, role, said.signed); err != nil {
		r.conf.Logger.DebugContext(ctx, "a list is of what the vault said before", "session", s.Ref(), "fault", fault.From(err))
	}
}

func (r *Relay) renew(ctx context.Context, s *Session, by Caller) error {
	before := s.state.Load()
	return r.withSession(ctx, s, by, func(handle string) error {
		if s.state.Load().handle != before.handle {
			return nil // opened again, with fresh permits
		}
		asked := time.Now()
		out, err := r.sessions.RenewPermits(ctx, &vaultv1.RenewPermitsRequest{
			SessionId: handle, Proof: by.proof(callv1.Proof_PURPOSE_RENEW),
		})
		if err != nil {
			return late(ctx, err)
		}
		permits, err := addressed(out.GetPermits(), asked)
		if err != nil {
			return err
		}
		for now := s.state.Load(); now.handle == before.handle; now = s.state.Load() {
			renewed := *now
			renewed.permits, renewed.tools = permits, r.own(out.GetTools())
			// A ceiling that was lowered meanwhile is newer than this answer. A vault of before says none.
			if told := out.GetTierCeiling(); told != optionsv1.Tier_TIER_UNSPECIFIED && now.ceiling == before.ceiling {
				renewed.ceiling = told
			}
			if s.state.CompareAndSwap(now, &renewed) {
				r.raise(s, now)
				break
			}
		}
		return nil
	})
}

// withSession calls fn with the session's handle. A vault that restarted knows the session no more: it is then opened
// again with the credential of the current request, and fn called once more. A key-bound client has to prove that opening
// too; without the proof the answer is CODE_PROOF_REQUIRED.
func (r *Relay) withSession(ctx context.Context, s *Session, by Caller, fn func(handle string) error) error {
	lost := s.state.Load()
	err := fault.From(fn(lost.handle))
	if err == nil {
		return nil
	}
	if err.Code != callv1.Code_CODE_UNAUTHENTICATED && err.Code != callv1.Code_CODE_NOT_FOUND {
		return err
	}
	if by.Credential == "" {
		return err
	}
	opened := <-s.flight.DoChan("open", func() (any, error) {
		if s.state.Load().handle != lost.handle {
			return nil, nil
		}
		if lost.keyBound && by.proof(callv1.Proof_PURPOSE_OPEN) == nil {
			return nil, proofRequired(callv1.Proof_PURPOSE_OPEN)
		}
		return nil, r.reopen(ctx, s, by, lost)
	})
	if opened.Err != nil {
		return opened.Err
	}
	if again := fn(s.state.Load().handle); again != nil {
		return fault.From(again)
	}
	return nil
}

// reopen opens a session again in the place of the lost one.
func (r *Relay) reopen(ctx context.Context, s *Session, by Caller, lost *state) error {
	if s.ctx.Err() != nil {
		return ended()
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.conf.DecideTimeout)
	defer cancel()
	by.ClientName, by.ClientVersion, by.Agent, by.Sender = s.clientName, s.clientVersion, s.agent, s.sender
	by.Remote = s.remote
	out, st, err := r.open(detached, by, lost.handle)
	if fault.Is(err, callv1.Code_CODE_PROOF_REQUIRED) {
		return proofRequired(callv1.Proof_PURPOSE_OPEN) // nobody signed, or not for this vault
	}
	if fault.Is(err, callv1.Code_CODE_UNAUTHENTICATED) {
		// As at the door: the vault's own sentence tells nobody what to do.
		return fault.New(callv1.Code_CODE_UNAUTHENTICATED, SentenceWrong, fault.WithCause(err))
	}
	if err != nil {
		return err
	}
	if out.GetPrincipal() != s.principal {
		// The credential names somebody else now: this session is not theirs, and what was opened is nobody's.
		r.tellEnded(detached, st.handle)
		return ended()
	}
	s.state.Store(st)
	if s.ctx.Err() != nil {
		r.tellEnded(detached, st.handle) // who ended it meanwhile may have told of the lost one alone
		return ended()
	}
	r.raise(s, lost)
	r.conf.Logger.InfoContext(ctx, "session opened again at the vault", "principal", s.principal, "session", st.ref)
	return nil
}
