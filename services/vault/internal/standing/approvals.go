// Package standing is what humans let sessions do without being asked each time (scopes, APR-2, and dangerous mode, DNG-1), and
// whom they do not want to be asked by.
//
// It is in the vault's memory alone: evidence is written, nothing is read back into force. What is in force ends with its
// session, its time, its uses, a halt, the process, the operator's key, the client's credential, a mute, and whenever a human
// says so. It trusts its caller, the server, to let operators alone grant and end; it checks by itself everything that a human's
// statement says, when it is granted and again at each use. A sink verifies the same statement again.
//
// Order of a grant: recorded, then durable as evidence, then in force. An end is in force first.
package standing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/rpc"
	"durward.internal/services/platform/statement"
	"durward.internal/services/platform/trust"
	"durward.internal/services/vault/internal/clients"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/session"
	"durward.internal/services/vault/internal/store"
)

// Bounds.
const (
	// ConfirmAfter and ConfirmWithin are when a proposed dangerous mode may be confirmed.
	ConfirmAfter  = statement.ConfirmAfter
	ConfirmWithin = time.Minute
	// PerSession and InAll are how much may be in force.
	PerSession = 16
	InAll      = 256
	// MaxBytes is how long all of it may be together, in bytes: it is shown, and its end told, in one message.
	MaxBytes = rpc.MaxMessageBytes / 2
)

// Limits bound what a human may grant: settings of the security configuration.
type Limits struct {
	// ScopeMax and DangerousMax are the longest that a scope and dangerous mode may last, from when they are granted.
	ScopeMax, DangerousMax time.Duration
	ScopeMaxUses           uint32
	DangerousAllowed       bool
}

// Config is what a Approvals needs; everything is required but for Limits.
type Config struct {
	Store    *store.Store
	Journal  *journal.Journal
	Halt     *halt.Switch
	Sessions *session.Table
	Consent  *consent.Judge
	// Operators are the keys that consent goes by, as they are now; another file means that everything is judged again.
	Operators func() *trust.AllowedSigners
	// Client finds a client that is let in now.
	Client func(id string) (*clients.Client, bool)
	// Audiences are the sinks that a statement may name.
	Audiences []string
	// Limits bound what may be granted to a client of a user; nil means the longest that a statement may stand.
	Limits func(client, user string) Limits
	// Lists returns a channel that is closed when what clients may call may have changed next; nil: that does not change.
	Lists func() <-chan struct{}
	// Now is the vault's clock.
	Now    func() time.Time
	Logger *slog.Logger
}

// Approvals holds what is in force. It is safe for concurrent use, and never calls back into a queue.
type Approvals struct {
	Config

	mu        sync.Mutex
	held      map[string]*entry    // by the statement's id
	proposals map[string]*proposal // by session
	mutes     map[string]*vaultv1.Mute
	watchers  map[*watcher]struct{}
	operators *trust.AllowedSigners // as of the last sweep

	revoked atomic.Uint64 // counts revocations
}

// entry is one scope or dangerous mode. Everything but left, used and over stays as it is.
type entry struct {
	*statement.Verified
	human *callv1.HumanStatement
	// confirmation is the second statement of dangerous mode; nil for a scope.
	confirmation *callv1.HumanStatement

	session *session.Session
	granted time.Time
	until   time.Time
	left    uint32
	used    uint32
	// spent: its end is recorded, and it holds for what it covered already, and for nothing more.
	spent bool
	last  time.Time
}

// New begins with nothing in force. What was in force when the process before this one ended is written down as ended.
func New(ctx context.Context, c Config) (*Approvals, error) {
	if c.Limits == nil {
		c.Limits = func(string, string) Limits {
			return Limits{ScopeMax: 8 * time.Hour, DangerousMax: 8 * time.Hour, ScopeMaxUses: 1000, DangerousAllowed: true}
		}
	}
	if c.Lists == nil {
		c.Lists = func() <-chan struct{} { return nil }
	}
	b := &Approvals{
		Config: c, held: map[string]*entry{}, proposals: map[string]*proposal{}, mutes: map[string]*vaultv1.Mute{},
		watchers: map[*watcher]struct{}{}, operators: c.Operators(),
	}
	before, err := c.Store.OpenStanding(ctx)
	if err != nil {
		return nil, fmt.Errorf("standing: %w", err)
	}
	for _, g := range before {
		r := journal.Session(auditv1.Kind_KIND_STANDING_ENDED, auditv1.Status_STATUS_OK, g.Principal, g.Session, 0)
		r.Body.Action, r.Body.Reason = "standing-ended", whyRestart
		r.Body.Details = map[string]string{"statement": g.ID, "kind": g.Kind}
		c.Journal.Note(ctx, r)
		if err := c.Store.EndStanding(ctx, g.ID, g.Used, whyRestart, c.Now()); err != nil {
			return nil, fmt.Errorf("standing: %w", err)
		}
	}
	return b, nil
}

// Why something ended, as it is recorded.
const (
	whyRestart = "the vault was restarted"
	whyTime    = "its time is over"
	whyUses    = "it was used up"
	whyHalt    = "everything was halted"
	whySession = "its session ended"
	whyClient  = "its client is not let in any more"
	whySigner  = "the key that signed it is no operator's any more"
	whyMute    = "an operator muted its client"
	whyReplace = "another took its place"
	whyLimits  = "the security configuration does not allow it any more"
	whyRevoked = "an operator ended what is in force, or some of it, while this was being granted"
)

// errOver is a reason why something is not in force; for records.
func errOver(why string) error { return errors.New("not in force: " + why) }

// Dangerous reports until when a session is in dangerous mode.
func (b *Approvals) Dangerous(sessionRef string) (until time.Time, ok bool) {
	for _, e := range b.of(sessionRef) {
		if e.Kind == statement.KindDangerous && b.hasUses(e) && b.judge(e, true) == "" {
			return e.until, true
		}
	}
	return time.Time{}, false
}

func (b *Approvals) hasUses(e *entry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return usesLeft(e.left)
}

// Use takes one use of a scope that covers the operation, which is complete but for its id. giveBack, called at most once, undoes
// it: for a call that came to nothing.
func (b *Approvals) Use(o *store.Operation) (h *callv1.HumanStatement, giveBack func(), ok bool) {
	return b.use(statement.KindScope, "", o)
}

// UseOf is Use of one scope, by its id.
func (b *Approvals) UseOf(id string, o *store.Operation) (h *callv1.HumanStatement, giveBack func(), ok bool) {
	return b.use(statement.KindScope, id, o)
}

// UseDangerous is Use of dangerous mode, which is for Durward's own tools: the sink refuses every other.
func (b *Approvals) UseDangerous(o *store.Operation) (h *callv1.HumanStatement, giveBack func(), ok bool) {
	if o.ToolSource != contract.SourceNative {
		return nil, nil, false
	}
	return b.use(statement.KindDangerous, "", o)
}

func (b *Approvals) use(kind statement.Kind, id string, o *store.Operation) (h *callv1.HumanStatement, giveBack func(), ok bool) {
	asked := *o
	asked.Dangerous = kind == statement.KindDangerous
	for _, e := range b.of(o.Session) {
		if id != "" && e.ID != id || e.Kind != kind || b.judge(e, true) != "" || covers(e.Verified, &asked) != nil {
			continue
		}
		uses := uint32(statement.MaxUses)
		if kind == statement.KindScope {
			uses = b.Limits(e.Principal, e.session.Client.User).ScopeMaxUses // as it is now
		}
		b.mu.Lock()
		taken := b.held[e.ID] == e && !e.spent && usesLeft(e.left) && e.used < uses
		if taken {
			e.left, e.used, e.last = e.left-min(e.left, 1), e.used+1, b.Now()
		}
		b.mu.Unlock()
		if taken {
			return e.human, sync.OnceFunc(func() { b.giveBack(e) }), true
		}
	}
	return nil, nil, false
}

func (b *Approvals) giveBack(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[e.ID] == e && !e.spent {
		e.left, e.used = e.left+1, e.used-1
	}
}

// Holds implements operation.Standing: the statements that an operation runs by, or why they are in force no more. What is used up
// holds for what it covered.
func (b *Approvals) Holds(o *store.Operation) ([]*callv1.HumanStatement, error) {
	for _, e := range b.of(o.Session) {
		if string(e.human.GetStatement()) == string(o.Statement) {
			if why := b.judge(e, true); why != "" {
				return nil, errOver(why)
			}
			if e.confirmation != nil {
				return []*callv1.HumanStatement{e.human, e.confirmation}, nil
			}
			return []*callv1.HumanStatement{e.human}, nil
		}
	}
	return nil, errOver("nothing like it is in force for the session")
}

// covers holds an operation to a statement, as the sink will; what the call may act on the sink judges, which alone knows it.
func covers(v *statement.Verified, o *store.Operation) error {
	return v.Covers(&callv1.Grant{
		OperationId: o.ID, Use: 1, Principal: o.Principal, Session: o.Session, Channel: o.Channel, Tool: o.ToolRef(),
		ArgumentsDigest: o.ArgumentsDigest, Audience: o.Audience, Epoch: o.Epoch, Dangerous: o.Dangerous,
	}, o.ToolRef(), o.Tier, o.Arguments, nil)
}

// of returns a session's entries, oldest first.
func (b *Approvals) of(sessionRef string) []*entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sortedLocked(func(e *entry) bool { return e.Session == sessionRef })
}

func (b *Approvals) sortedLocked(which func(*entry) bool) []*entry {
	var out []*entry
	for _, e := range b.held {
		if which(e) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b *entry) int { return cmp.Or(a.granted.Compare(b.granted), strings.Compare(a.ID, b.ID)) })
	return out
}

// judge says why an entry is in force no more, or "". The signature is verified again if signed says so.
func (b *Approvals) judge(e *entry, signed bool) string {
	if !epochHolds(e.Epoch, b.Halt.Now()) {
		return whyHalt
	}
	if !b.Now().Before(e.until) {
		return whyTime
	}
	live, ok := b.Sessions.Live(e.Session)
	if !ok || live != e.session {
		return whySession
	}
	client, ok := b.Client(e.Principal)
	if !ok || !stillIn(client, live) || !boundEnough(live.Client.KeyBound()) {
		return whyClient
	}
	if b.isMuted(e.Principal) {
		return whyMute
	}
	if !within(b.Limits(e.Principal, live.Client.User), e, b.Now()) {
		return whyLimits
	}
	if signed {
		if _, err := b.Consent.Verify(e.human, e.Principal); err != nil {
			return whySigner
		}
	}
	return ""
}

// within reports whether the limits, as they are now, still allow what was granted under others: a human who lowers them means what
// is in force too.
func within(limits Limits, e *entry, now time.Time) bool {
	longest := limits.ScopeMax
	if e.Kind == statement.KindDangerous {
		if longest = limits.DangerousMax; !limits.DangerousAllowed {
			return false
		}
	}
	return now.Before(e.granted.Add(longest))
}

// stillIn reports whether a client as it is now still has the session: its credential, and the agent that it speaks for. Whether
// the session is key-bound is its own credential's to say, which a rotation may have replaced.
func stillIn(client *clients.Client, live *session.Session) bool {
	return client.SameCredential(live.Client) && client.HasAgent(live.Agent)
}

// end takes entries out of force, and then records it, once each. why returns "" for what stays.
func (b *Approvals) end(ctx context.Context, by string, why func(*entry) string) []*vaultv1.Standing {
	type ending struct {
		e    *entry
		why  string
		told bool
	}
	var endings []ending
	b.mu.Lock()
	for _, e := range b.sortedLocked(func(*entry) bool { return true }) {
		if w := why(e); w != "" {
			delete(b.held, e.ID)
			endings = append(endings, ending{e, w, e.spent})
			if e.Kind == statement.KindDangerous {
				b.tellLocked(&vaultv1.WatchSessionsResponse{Session: e.Session})
			}
		}
	}
	b.mu.Unlock()
	var out []*vaultv1.Standing
	for _, x := range endings {
		if x.told {
			continue // when it was used up
		}
		out = append(out, shown(x.e))
		b.recordEnd(ctx, x.e, x.why, by)
	}
	return out
}

func (b *Approvals) recordEnd(ctx context.Context, e *entry, why, by string) {
	r := journal.Session(auditv1.Kind_KIND_STANDING_ENDED, auditv1.Status_STATUS_OK, e.Principal, e.Session, e.session.Client.Channel)
	r.Body.Action, r.Body.Reason, r.Body.DecisionSource = "standing-ended", why, by
	r.Body.Dangerous = e.Kind == statement.KindDangerous
	r.Body.Details = map[string]string{"statement": e.ID, "kind": string(e.Kind), "used": fmt.Sprint(e.used)}
	b.Journal.Note(ctx, r)
	if err := b.Store.EndStanding(context.WithoutCancel(ctx), e.ID, e.used, why, b.Now()); err != nil {
		b.Logger.ErrorContext(ctx, "the end of standing authority could not be kept; it has ended", "error", err)
	}
}

// settle is how long a use may take to be given back.
const settle = 3 * time.Second

// Sweep ends what is over. It is to be called every second, and at once after a halt.
func (b *Approvals) Sweep(ctx context.Context) {
	now := b.Now()
	operators := b.Operators()
	b.mu.Lock()
	all := b.sortedLocked(func(*entry) bool { return true })
	signed := operators != b.operators
	b.operators = operators
	b.mu.Unlock()
	over := map[*entry]string{}
	for _, e := range all {
		if why := b.judge(e, signed); why != "" {
			over[e] = why
		}
	}
	b.end(ctx, "", func(e *entry) string { return over[e] })
	var used []*entry
	b.mu.Lock()
	for _, e := range b.held {
		if e.left == 0 && !e.spent && now.Sub(e.last) >= settle {
			e.spent = true
			used = append(used, e)
			if e.Kind == statement.KindDangerous {
				b.tellLocked(&vaultv1.WatchSessionsResponse{Session: e.Session})
			}
		}
	}
	maps.DeleteFunc(b.proposals, func(_ string, p *proposal) bool { return now.After(p.notAfter) })
	b.mu.Unlock()
	for _, e := range used {
		b.recordEnd(ctx, e, whyUses, "")
	}
	b.sweepMutes(ctx, now)
}

// SessionEnded ends what a session had. The server calls it when a session is closed, expires, or its client is shut out.
func (b *Approvals) SessionEnded(ctx context.Context, sessionRef string) {
	b.end(ctx, "", func(e *entry) string {
		if e.Session == sessionRef {
			return whySession
		}
		return ""
	})
	b.mu.Lock()
	delete(b.proposals, sessionRef)
	b.tellLocked(&vaultv1.WatchSessionsResponse{Session: sessionRef, Ended: true})
	b.mu.Unlock()
}

// Revoke ends one, all of a session, or (neither named) all there are, at once, proposals included. by is the identity that asks.
// CODE_NOT_FOUND for one that is neither in force nor proposed.
func (b *Approvals) Revoke(ctx context.Context, id, sessionRef, reason, by string) ([]*vaultv1.Standing, error) {
	why := "an operator ended it"
	if reason != "" {
		why += ": " + reason
	}
	withdrawn := b.withdraw(ctx, why, by, func(p *proposal) bool {
		return (id == "" || p.ID == id) && (sessionRef == "" || p.Session == sessionRef)
	})
	// What is being put into force is no proposal any more, and may not be held yet: it looks at this right before it is.
	b.revoked.Add(1)
	out := b.end(ctx, by, func(e *entry) string {
		if (id == "" || e.ID == id) && (sessionRef == "" || e.Session == sessionRef) {
			return why
		}
		return ""
	})
	out = append(out, withdrawn...)
	if id != "" && len(out) == 0 {
		return nil, fault.New(callv1.Code_CODE_NOT_FOUND, "nothing of that id is in force")
	}
	return out, nil
}

// List shows what is in force, oldest first, and who is muted.
func (b *Approvals) List() ([]*vaultv1.Standing, []*vaultv1.Mute) {
	return b.inForce(func(*entry) bool { return true }), b.muted()
}

// Of shows what is in force for a session, oldest first: what the session's own agent may be told.
func (b *Approvals) Of(sessionRef string) []*vaultv1.Standing {
	return b.inForce(func(e *entry) bool { return e.Session == sessionRef })
}

func (b *Approvals) inForce(which func(*entry) bool) (out []*vaultv1.Standing) {
	b.mu.Lock()
	all := b.sortedLocked(func(e *entry) bool { return !e.spent && which(e) })
	b.mu.Unlock()
	for _, e := range all {
		if b.judge(e, true) == "" {
			b.mu.Lock()
			out = append(out, shown(e))
			b.mu.Unlock()
		}
	}
	return out
}

// Count is how much is in force, and how many clients are muted.
func (b *Approvals) Count() (scopes, dangerous, muted int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.held {
		switch {
		case e.spent:
		case e.Kind == statement.KindDangerous:
			dangerous++
		default:
			scopes++
		}
	}
	return scopes, dangerous, len(b.mutes)
}

func shown(e *entry) *vaultv1.Standing {
	return &vaultv1.Standing{
		StandingId: e.ID, Kind: string(e.Kind), Operator: e.Operator, Principal: e.Principal, Session: e.Session,
		ClientName: e.session.ClientName, GrantedAt: timestamppb.New(e.granted), ExpiresAt: timestamppb.New(e.until),
		Uses: uint32(e.Uses), UsesLeft: e.left, Statement: e.human, Confirmation: e.confirmation,
	}
}
