// Package operation is the vault's queue of asked-for mutations, from request to outcome: who may have how many waiting,
// which identical requests are one, what a human decided, which grant may leave, and that a spend key is redeemed once.
//
// It is the heart of the vault. It trusts its caller, the server, to have authenticated whoever asks and validated what is
// asked; it checks by itself everything that a human's statement says. It is not trusted alone: the sink verifies the same
// statement again.
//
// Life of an operation:
//
//	PENDING ──approve──▶ APPROVED ──redeem──▶ RUNNING ──settle──▶ DONE
//	   ├─deny─▶ DENIED      └──────────┐
//	   ├─the agent took it back─▶ WITHDRAWN
//	   └─30 min after it was asked─────┴─▶ EXPIRED
//
// A deny takes back what is APPROVED, too, as long as nobody has come for it. What runs by standing authority, or unattended by a human's
// file, begins APPROVED, has 60 s to be redeemed, and ends with what lets it run.
//
// The 30 minutes cover both waiting and use: an approval that no live call came for by then is void. A resume after a halt
// voids whatever was asked for before the halt. What a client waits for that is not let in any more expires at once.
//
// Order of a change: recorded where it gives power, then durable, then visible. What is live is kept in memory beside the
// store, so that a waiting call costs no query.
package operation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clock"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/pattern"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/consent"
	"durward.internal/services/vault/internal/halt"
	"durward.internal/services/vault/internal/issuer"
	"durward.internal/services/vault/internal/journal"
	"durward.internal/services/vault/internal/store"
)

// Times of an operation.
const (
	// Life is how long an operation may wait for a human and then for a live call, from when it was asked for.
	Life = 30 * time.Minute
	// JoinRunning is how long a redeemed operation that nobody settled is still joined by identical requests.
	JoinRunning = 10 * time.Minute
	// DefaultPendingCap is how many operations may wait in all.
	DefaultPendingCap = 50
	// maxLive bounds what is read back after a restart.
	maxLive = 10000
)

// Short names for the states.
const (
	pending  = vaultv1.OperationState_OPERATION_STATE_PENDING
	approved = vaultv1.OperationState_OPERATION_STATE_APPROVED
	running  = vaultv1.OperationState_OPERATION_STATE_RUNNING
	done     = vaultv1.OperationState_OPERATION_STATE_DONE
	denied   = vaultv1.OperationState_OPERATION_STATE_DENIED
	expired  = vaultv1.OperationState_OPERATION_STATE_EXPIRED

	withdrawn = vaultv1.OperationState_OPERATION_STATE_WITHDRAWN
)

// Config is what a Queue needs.
type Config struct {
	Store   *store.Store
	Journal *journal.Journal
	Issuer  *issuer.Issuer
	Halt    *halt.Switch
	// Consent judges what humans sign.
	Consent *consent.Judge
	// Standing is what humans let sessions do without being asked, and whom they do not want to be asked by. nil: nothing runs
	// by it, and nobody is muted.
	Standing Standing
	// LetIn reports whether the client is still let in, by its name.
	LetIn func(client string) bool
	// Now is the vault's clock.
	Now    func() time.Time
	Logger *slog.Logger
	// PendingCap is how many operations may wait in all; 0 means DefaultPendingCap.
	PendingCap int
}

// Standing is what a Queue asks about standing authority. It must not call the queue.
type Standing interface {
	// Holds returns the statements by which a human let the operation's session do it, or why they are in force no more: what is
	// used up still holds for the calls that it covered.
	Holds(o *store.Operation) ([]*callv1.HumanStatement, error)
	// Muted reports until when an operator does not want to be asked by the principal.
	Muted(principal string) (until time.Time, ok bool)
}

// Queue holds the operations. It is safe for concurrent use.
type Queue struct {
	Config

	mu   sync.Mutex
	live map[string]*entry
	// busy holds what one call works on while others must wait: a request being recorded, a spend key being redeemed. Its
	// channel is closed when that ends.
	busy map[string]busy
	// watchers are operators' programs, notifiers those that only tell of what waits.
	watchers, notifiers map[*watcher]struct{}
	// closing is closed by Close.
	closing chan struct{}
	once    sync.Once
}

type busy struct {
	principal string // of a request that will be pending; empty otherwise
	runs      string // the principal of one that will run without an approval of its own; empty otherwise
	done      chan struct{}
}

// entry is an operation that is pending, approved or running.
type entry struct {
	op      store.Operation
	changed clock.Signal
	waiters uint32
	// claimed: one call is changing it; nobody else may.
	claimed bool
	// askers are the sessions that asked for it, and whether each still does; none while it is being withdrawn.
	askers map[string]bool
}

// newEntry is an operation that its own session asks for.
func newEntry(o store.Operation) *entry {
	return &entry{op: o, askers: map[string]bool{o.Session: true}}
}

var idPattern = pattern.New(`^[0-9a-f]{32}$`)

// IsID reports whether s can be an operation's id: 128 bits in hex.
func IsID(s string) bool { return idPattern().MatchString(s) }

// New reads the live operations back: they survive a restart.
func New(ctx context.Context, c Config) (*Queue, error) {
	c.PendingCap = cmp.Or(c.PendingCap, DefaultPendingCap)
	q := &Queue{Config: c, live: map[string]*entry{}, busy: map[string]busy{}, watchers: map[*watcher]struct{}{}, notifiers: map[*watcher]struct{}{},
		closing: make(chan struct{})}
	ops, _, err := c.Store.Operations(ctx, store.Page{Limit: maxLive}, pending, approved, running)
	if err != nil {
		return nil, fmt.Errorf("operations: %w", err)
	}
	for _, o := range ops {
		if o.State != running || c.Now().Sub(o.RedeemedAt) < JoinRunning {
			q.live[o.ID] = newEntry(*o)
		}
	}
	return q, nil
}

// Close sends every waiting call home with the operation as it is, so that a process that stops need not wait for them.
func (q *Queue) Close() { q.once.Do(func() { close(q.closing) }) }

// PendingCount returns how many operations wait for a human.
func (q *Queue) PendingCount() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, _ := q.pendingLocked("")
	return n
}

// pendingLocked counts what waits, in all and of one principal, with what is about to.
func (q *Queue) pendingLocked(principal string) (all, own int) {
	count := func(p string) {
		all++
		if p == principal {
			own++
		}
	}
	for _, e := range q.live {
		if e.op.State == pending {
			count(e.op.Principal)
		}
	}
	for _, b := range q.busy {
		if b.principal != "" {
			count(b.principal)
		}
	}
	return all, own
}

// publishLocked makes a change of a live operation visible, and drops it from memory when it is over.
func (q *Queue) publishLocked(e *entry) {
	switch e.op.State {
	case pending, approved, running:
		q.live[e.op.ID] = e
	default:
		delete(q.live, e.op.ID)
	}
	e.changed.Raise()
	for _, all := range []map[*watcher]struct{}{q.watchers, q.notifiers} {
		for w := range all {
			w.touch(e.op, e.waiters)
		}
	}
}

// Lookup returns an operation with the number of calls that wait for it; CODE_NOT_FOUND.
func (q *Queue) Lookup(ctx context.Context, id string) (*store.Operation, uint32, error) {
	q.mu.Lock()
	if e, ok := q.live[id]; ok {
		defer q.mu.Unlock()
		o := e.op
		return &o, e.waiters, nil
	}
	q.mu.Unlock()
	o, err := q.Store.Operation(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, 0, errNotFound()
	}
	return o, 0, err
}

// List returns a page of the operations in those states (none named: those that wait), newest first, and whether within its limit
// there are more; CODE_NOT_FOUND.
func (q *Queue) List(ctx context.Context, page store.Page, states ...vaultv1.OperationState) (list []*vaultv1.Operation, more bool, err error) {
	if len(states) == 0 {
		states = []vaultv1.OperationState{pending}
	}
	ops, more, err := q.Store.Operations(ctx, page, states...)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, false, errNotFound()
	case err != nil:
		return nil, false, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	out := make([]*vaultv1.Operation, 0, len(ops))
	for _, o := range ops {
		var waiters uint32
		if e, ok := q.live[o.ID]; ok && e.op.State == o.State {
			o.Joined, waiters = e.op.Joined, e.waiters
		}
		out = append(out, Proto(o, waiters))
	}
	return out, more, nil
}

// Wait returns the operation as soon as it no longer waits for a human, or when hold is over or the epoch changes, or the
// caller goes away (then ctx's error). An operation of another principal is CODE_NOT_FOUND, exactly as one that never was. Operators are shown how
// many calls wait: whoever waits here could carry the operation out.
func (q *Queue) Wait(ctx context.Context, id, principal string, hold time.Duration) (*store.Operation, error) {
	return q.await(ctx, id, principal, hold, 1, func(state vaultv1.OperationState) bool {
		return state != pending || mayRun(state)
	})
}

// Observe returns the operation as soon as its state is another than known, or as Wait does otherwise. Nobody is counted as
// waiting. A state that is final is returned at once.
func (q *Queue) Observe(ctx context.Context, id, principal string, known vaultv1.OperationState, hold time.Duration) (*store.Operation, error) {
	return q.await(ctx, id, principal, hold, 0, func(state vaultv1.OperationState) bool { return state != known })
}

// await waits for a state that is enough, and counts the caller as so many waiters meanwhile.
func (q *Queue) await(ctx context.Context, id, principal string, hold time.Duration, waiters uint32, enough func(vaultv1.OperationState) bool) (*store.Operation, error) {
	moved := q.Halt.Moved()
	o, _, err := q.Lookup(ctx, id)
	if err != nil {
		return nil, err
	}
	if !ownedBy(o, principal) {
		return nil, errNotFound()
	}
	timer := time.NewTimer(hold)
	defer timer.Stop()
	for over := false; ; {
		q.mu.Lock()
		e, ok := q.live[id]
		var changed <-chan struct{} // nil: what runs for so long that it is not kept in memory tells nobody of a change
		if ok {
			o := e.op
			if enough(o.State) || over || q.judged(&o).State != e.op.State {
				q.mu.Unlock()
				return q.judged(&o), nil
			}
			e.waiters += waiters
			changed = e.changed.Wait()
		}
		q.mu.Unlock()
		if !ok {
			o, _, err := q.Lookup(ctx, id)
			if err != nil || over || o.State != running || enough(o.State) {
				return o, err
			}
		}
		var gone error
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-moved:
			over = true
		case <-q.closing:
			over = true
		case <-ctx.Done():
			gone = ctx.Err()
		}
		if ok {
			q.mu.Lock()
			e.waiters -= waiters
			q.mu.Unlock()
		}
		if gone != nil {
			return nil, gone
		}
	}
}

// judged shows an operation that is past its end, or of before a halt, as expired, in the second before Sweep makes it so.
func (q *Queue) judged(o *store.Operation) *store.Operation {
	switch {
	case o.State != pending && o.State != approved:
	case q.Halt.Over(o.Epoch):
		o.State, o.DecisionReason = expired, reasonHalted
	case q.over(o):
		o.State = expired
	}
	return o
}

// MayRun reports whether a grant may be issued for the operation.
func MayRun(o *store.Operation) bool { return mayRun(o.State) }

// Issue signs the grant of an operation that a human approved, for the live call that asks. The issue is recorded in the
// spool, in order before the redemption that it allows: a grant is worth nothing before that. Errors: CODE_HALTED,
// CODE_AUDIT_UNAVAILABLE, CODE_EXPIRED, CODE_CONFLICT, CODE_DENIED for a client that is gone.
func (q *Queue) Issue(ctx context.Context, o *store.Operation) (*callv1.SignedGrant, error) {
	if !mayRun(o.State) {
		return nil, q.notAs(o, fault.New(callv1.Code_CODE_CONFLICT, "nobody has approved this operation"))
	}
	if o.State == approved && q.over(o) {
		return nil, errExpired()
	}
	return q.issue(ctx, o, o.Dangerous)
}

// IssueRead signs a one-call grant for a READ tool: no human, no stored operation.
func (q *Queue) IssueRead(ctx context.Context, r Request) (*callv1.SignedGrant, error) {
	return q.issue(ctx, &r.Operation, r.InDangerous)
}

func (q *Queue) issue(ctx context.Context, o *store.Operation, dangerous bool) (*callv1.SignedGrant, error) {
	if !q.letIn(o.Principal) {
		return nil, fault.New(callv1.Code_CODE_DENIED, reasonGone, fault.WithCause(errGone))
	}
	statements, err := q.holds(o)
	if err != nil {
		return nil, err
	}
	if err := q.Journal.Check(); err != nil {
		return nil, err
	}
	var signed *callv1.SignedGrant
	var g *callv1.Grant
	err = q.Halt.Within(o.Epoch, func() (err error) {
		signed, g, err = q.Issuer.Grant(o, 1, statements)
		return err
	})
	if err != nil {
		return nil, err
	}
	r := journal.Operation(auditv1.Kind_KIND_GRANTED, auditv1.Status_STATUS_OK, o)
	r.Body.Details["grant"] = g.GetId()
	r.Body.Confirmed = len(g.GetStatements()) > 0
	r.Body.Action = "grant"
	authority(r, o)
	r.Body.Dangerous = dangerous
	if err := q.Journal.Follow(ctx, r); err != nil {
		return nil, err
	}
	return signed, nil
}

// letIn reports whether a principal may still have something done: an operator's statement says so itself, a client's
// place in the configuration does.
func (q *Queue) letIn(principal string) bool {
	return strings.HasPrefix(principal, statement.CommandPrincipal("")) || q.LetIn(principal)
}

// holds returns what a human signed for the operation; CODE_EXPIRED for one that runs by what a human let its session do, once that
// is over.
func (q *Queue) holds(o *store.Operation) ([]*callv1.HumanStatement, error) {
	if !o.Standing() {
		if h := o.HumanStatement(); h != nil {
			return []*callv1.HumanStatement{h}, nil
		}
		return nil, nil
	}
	statements, err := []*callv1.HumanStatement(nil), errNoStanding
	if q.Standing != nil {
		statements, err = q.Standing.Holds(o)
	}
	if err != nil {
		return nil, errStandingEnded(err)
	}
	return statements, nil
}

// reasonHalted is why what was asked for before a halt does not run.
const reasonHalted = "everything was halted, and nothing was done; ask again when that is over"

// Halted reports whether it was a halt that ended the operation.
func Halted(o *store.Operation) bool { return o.State == expired && o.DecisionReason == reasonHalted }

// reasonEnded is why an operation by standing authority does not run.
const reasonEnded = "what a human let this session do has ended"

func errStandingEnded(cause error) error {
	return fault.New(callv1.Code_CODE_EXPIRED, reasonEnded+"; ask again", fault.WithCause(cause))
}

// Ended returns CODE_EXPIRED for an operation by standing authority that ended with it: the same before and after it was swept away.
func Ended(o *store.Operation) error {
	if o.State == expired && o.DecisionReason == reasonEnded {
		return errStandingEnded(nil)
	}
	return nil
}

var errNoStanding = errors.New("there is no standing authority here")

const reasonGone = "the client that asked for it is not let in any more"

var errGone = errors.New(reasonGone)

func errNotFound() error {
	return fault.New(callv1.Code_CODE_NOT_FOUND, "there is no such operation")
}

func errExpired() error {
	return fault.New(callv1.Code_CODE_EXPIRED, "the operation expired before anybody came for it; ask again")
}

// inState is why an operation cannot be decided on any more.
func inState(state vaultv1.OperationState) error {
	sentence := map[vaultv1.OperationState]string{
		pending:  "somebody else is deciding on this operation at this moment",
		approved: "this operation is approved already",
		running:  "this operation is running already",
		done:     "this operation is done already",
		denied:   "this operation was denied already",
		expired:  "this operation has expired",

		withdrawn: "the agent took this request back",
	}[state]
	return fault.New(callv1.Code_CODE_CONFLICT, sentence)
}

// Census is what the queue holds at one moment.
type Census struct {
	// States counts the operations that are waiting, approved or running.
	States map[vaultv1.OperationState]int
	// Oldest is how long the longest-waiting operation has waited for a human; 0 when none waits.
	Oldest time.Duration
	// Waiters is how many calls wait for an operation.
	Waiters int
	// PendingCap is how many operations may wait for a human.
	PendingCap int
}

// Census counts what is live. It costs a walk over it and no query.
func (q *Queue) Census() Census {
	now := q.Now()
	c := Census{PendingCap: q.PendingCap, States: map[vaultv1.OperationState]int{pending: 0, approved: 0, running: 0}}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.live {
		c.States[e.op.State]++
		c.Waiters += int(e.waiters)
		if e.op.State == pending {
			c.Oldest = max(c.Oldest, now.Sub(e.op.AskedAt))
		}
	}
	return c
}

// Joins reports whether a request for the operation would join one that a human was asked about, now: nothing new would come of it.
func (q *Queue) Joins(o *store.Operation) bool {
	epoch := q.Halt.Now().Epoch
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.identicalLocked(o, epoch)
	return e != nil && !alone(&e.op)
}
