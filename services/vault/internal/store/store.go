// Package store keeps what the vault must not forget: operations with their arguments, the statements that were used,
// the spend keys that were redeemed, the epoch and the halt. Sessions are not here: they end with the process.
//
// It is the innermost part of the vault. It trusts its callers to have judged what they write, and enforces alone what
// a race could break: a statement works once, a spend key is redeemed once, a state changes only from the state that the
// caller saw. Every write is durable when it returns. Safe for concurrent use.
package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/reserve"
)

// What a caller can do something about.
var (
	ErrNotFound = errors.New("no such row")
	// ErrSpent: the spend key was redeemed before.
	ErrSpent = errors.New("the spend key was redeemed before")
	// ErrStatementUsed: the statement was used before.
	ErrStatementUsed = errors.New("the statement was used before")
	// ErrState: the row is no longer in the state that the change starts from.
	ErrState = errors.New("the row is in another state")
)

// Operation is one asked-for mutation. Digests are raw SHA-256; a zero time is "not yet".
type Operation struct {
	ID              string
	State           vaultv1.OperationState
	Principal       string
	Session         string
	Channel         callv1.Channel
	ClientName      string
	KeyBound        bool
	ToolName        string
	ToolSource      string
	ToolDigest      []byte
	Tier            optionsv1.Tier
	Arguments       []byte
	ArgumentsDigest []byte
	AgentReason     string
	Audience        string
	Epoch           uint64
	PolicyDigest    []byte
	RequestID       string
	AskedAt         time.Time
	ExpiresAt       time.Time
	DecidedAt       time.Time
	DecidedBy       string
	DecisionReason  string
	SubjectDigest   []byte
	Statement       []byte
	Signature       []byte
	RedeemedAt      time.Time
	SettledAt       time.Time
	SettledOK       bool
	Joined          uint32
	// Authority is in whose name it runs: one of the Authority words, or empty while nobody has decided.
	Authority string
	// Dangerous: its session was in dangerous mode (DNG-1).
	Dangerous bool
	// PolicyTier is the tier as policy sees it where that is above Tier; Rule is the rule that decided.
	PolicyTier optionsv1.Tier
	Rule       string
	// Agent is which of the principal's agents asked, or empty: policy decides by it, and no other takes the operation up.
	Agent string
}

// In whose name an operation runs: a statement's kind, or a human's file alone.
const (
	ByApproval   = "approve"
	ByCommand    = "command"
	ByScope      = "scope"
	ByDangerous  = "dangerous"
	ByUnattended = "unattended"
)

// Standing reports whether the operation runs by what a human let its session do, and not by its own approval.
func (o *Operation) Standing() bool { return o.Authority == ByScope || o.Authority == ByDangerous }

// HumanStatement returns the statement that approved the operation, or nil.
func (o *Operation) HumanStatement() *callv1.HumanStatement {
	if len(o.Statement) == 0 {
		return nil
	}
	return &callv1.HumanStatement{Statement: o.Statement, Signature: o.Signature}
}

// ToolRef names the operation's tool.
func (o *Operation) ToolRef() *callv1.ToolRef {
	return &callv1.ToolRef{Name: o.ToolName, Source: o.ToolSource, DefinitionDigest: o.ToolDigest}
}

// UsedStatement is a statement as it is remembered.
type UsedStatement struct {
	Digest      []byte
	OperationID string
	Kind        string
	Operator    string
	UsedAt      time.Time
}

// Spend is one redemption.
type Spend struct {
	OperationID string
	Use         uint32
	GrantID     string
	Audience    string
	At          time.Time
}

// Control is the epoch and the halt.
type Control struct {
	Epoch     uint64
	Halted    bool
	Reason    string
	ChangedBy string
	ChangedAt time.Time
}

// Store is the vault's database.
type Store struct {
	engine engine
	kept   *reserve.Reserve // nil: there is none
}

// Close closes the database.
func (s *Store) Close() error { return s.engine.close() }

// Hold keeps this process's lead until it is lost (ErrFollows: what the process keeps in memory may be old) or ctx ends.
func (s *Store) Hold(ctx context.Context) error { return s.engine.hold(ctx) }

// Leads reports whether no other vault can lead now.
func (s *Store) Leads() bool { return s.engine.lasts() }

// Probe returns an error while the database cannot be written. It changes nothing.
func (s *Store) Probe(ctx context.Context) error { return s.engine.probe(ctx) }

// Digest is a keyed digest of values, for what is told apart and not told (database.Seals.Digest).
func (s *Store) Digest(purpose string, values ...string) string {
	return s.engine.digest(purpose, values...)
}

// findOperations reads operations, each of which must bear its seal.
func (s *Store) findOperations(ctx context.Context, rest string, args ...any) (out []*Operation, err error) {
	err = s.eachOperation(ctx, func(o *Operation) bool {
		out = append(out, o)
		return true
	}, rest, args...)
	return out, err
}

// eachOperation reads operations, each of which must bear its seal, until row returns false.
func (s *Store) eachOperation(ctx context.Context, row func(*Operation) bool, rest string, args ...any) error {
	err := s.engine.find(ctx, operations, rest, args, func(scan scanner) (bool, error) {
		var (
			o                                            Operation
			epoch                                        int64
			asked, expires, decided, redeemed, settledAt int64
		)
		sound, err := scan(&o.ID, &o.State, &o.Principal, &o.Session, &o.Channel, &o.ClientName, &o.KeyBound, &o.ToolName,
			&o.ToolSource, &o.ToolDigest, &o.Tier, &o.Arguments, &o.ArgumentsDigest, &o.AgentReason, &o.Audience, &epoch,
			&o.PolicyDigest, &o.RequestID, &asked, &expires, &decided, &o.DecidedBy, &o.DecisionReason, &o.SubjectDigest,
			&o.Statement, &o.Signature, &redeemed, &settledAt, &o.SettledOK, &o.Joined,
			&o.Authority, &o.Dangerous, &o.PolicyTier, &o.Rule, &o.Agent)
		if err != nil {
			return false, err
		}
		if !sound {
			return false, fmt.Errorf("the operation %s does not bear its seal: %w", clean.Line(o.ID, 100), database.ErrDamaged)
		}
		o.Epoch = uint64(epoch)
		o.AskedAt, o.ExpiresAt, o.DecidedAt = at(asked), at(expires), at(decided)
		o.RedeemedAt, o.SettledAt = at(redeemed), at(settledAt)
		return row(&o), nil
	})
	if err != nil {
		return fmt.Errorf("read operations: %w", err)
	}
	return nil
}

func at(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// blob keeps NOT NULL columns satisfied: a nil slice would be NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func insert(ctx context.Context, w writer, o *Operation) error {
	added, err := w.insert(ctx, operations,
		o.ID, o.State, o.Principal, o.Session, o.Channel, o.ClientName, o.KeyBound, o.ToolName, o.ToolSource,
		blob(o.ToolDigest), o.Tier, blob(o.Arguments), blob(o.ArgumentsDigest), o.AgentReason, o.Audience,
		int64(o.Epoch),
		blob(o.PolicyDigest), o.RequestID, nanos(o.AskedAt), nanos(o.ExpiresAt), nanos(o.DecidedAt), o.DecidedBy,
		o.DecisionReason, blob(o.SubjectDigest), blob(o.Statement), blob(o.Signature), nanos(o.RedeemedAt),
		nanos(o.SettledAt), o.SettledOK, o.Joined, o.Authority, o.Dangerous, o.PolicyTier, o.Rule, o.Agent)
	if err == nil && !added {
		err = errors.New("there is one of that id")
	}
	if err != nil {
		return fmt.Errorf("insert operation: %w", err)
	}
	return nil
}

func use(ctx context.Context, w writer, s UsedStatement) error {
	added, err := w.insert(ctx, statements, s.Digest, s.OperationID, s.Kind, s.Operator, nanos(s.UsedAt))
	if err != nil {
		return fmt.Errorf("insert statement: %w", err)
	}
	if !added {
		return ErrStatementUsed
	}
	return nil
}

// whereID finds an operation, whereState one in a state, and whereSpent a spend key.
const (
	whereID    = "WHERE operation_id = ?"
	whereState = "operation_id = ? AND state = ?"
	whereSpent = "WHERE operation_id = ? AND use = ?"
)

// move sets columns of an operation that is in the state from; ErrState when it is not.
func move(ctx context.Context, w writer, id string, from vaultv1.OperationState, set []column) error {
	n, err := w.update(ctx, operations, set, whereState, id, from)
	if err == nil && n == 0 {
		return ErrState
	}
	return err
}

// Insert adds a new operation.
func (s *Store) Insert(ctx context.Context, o *Operation) error {
	return s.write(ctx, relieves(o), func(w writer) error { return insert(ctx, w, o) })
}

// InsertCommand adds an operation that a human's own statement made, and uses up the statement; ErrStatementUsed.
func (s *Store) InsertCommand(ctx context.Context, o *Operation, used UsedStatement) error {
	return s.write(ctx, relieves(o), func(w writer) error {
		if err := use(ctx, w, used); err != nil {
			return err
		}
		return insert(ctx, w, o)
	})
}

// Approve moves a pending operation to approved and uses up the statement, where used is not nil: a scope's is used up by its
// grant. Errors: ErrStatementUsed, ErrState.
func (s *Store) Approve(ctx context.Context, o *Operation, used *UsedStatement) error {
	return s.write(ctx, relieves(o), func(w writer) error {
		if used != nil {
			if err := use(ctx, w, *used); err != nil {
				return err
			}
		}
		return move(ctx, w, o.ID, vaultv1.OperationState_OPERATION_STATE_PENDING, allow(o))
	})
}

func allow(o *Operation) []column {
	return []column{
		{"state", vaultv1.OperationState_OPERATION_STATE_APPROVED}, {"decided_at", nanos(o.DecidedAt)}, {"decided_by", o.DecidedBy},
		{"subject_digest", blob(o.SubjectDigest)}, {"statement", blob(o.Statement)}, {"signature", blob(o.Signature)},
		{"joined", o.Joined}, {"expires_at", nanos(o.ExpiresAt)}, {"authority", o.Authority},
	}
}

// End moves operations to a state in which nothing runs any more (denied, expired), from the state from; ErrState when
// one of them is elsewhere, and then none is moved.
func (s *Store) End(ctx context.Context, from vaultv1.OperationState, ended ...*Operation) error {
	return s.write(ctx, always, func(w writer) error {
		for _, o := range ended {
			if err := move(ctx, w, o.ID, from, []column{
				{"state", o.State}, {"decided_at", nanos(o.DecidedAt)}, {"decided_by", o.DecidedBy},
				{"decision_reason", o.DecisionReason}, {"joined", o.Joined},
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Spend redeems a spend key and moves its operation, if it has one, from approved to running; ErrSpent.
func (s *Store) Spend(ctx context.Context, spend Spend) error {
	return s.write(ctx, s.relievesOf(ctx, spend.OperationID), func(w writer) error {
		added, err := w.insert(ctx, spent, spend.OperationID, spend.Use, spend.GrantID, spend.Audience, nanos(spend.At))
		if err != nil {
			return fmt.Errorf("spend: %w", err)
		}
		if !added {
			return ErrSpent
		}
		err = move(ctx, w, spend.OperationID, vaultv1.OperationState_OPERATION_STATE_APPROVED, run(spend))
		if err != nil && !errors.Is(err, ErrState) {
			return fmt.Errorf("spend: %w", err)
		}
		return nil
	})
}

func run(spend Spend) []column {
	return []column{{"state", vaultv1.OperationState_OPERATION_STATE_RUNNING}, {"redeemed_at", nanos(spend.At)}}
}

// Spent returns the redemption of a spend key, or ErrNotFound.
func (s *Store) Spent(ctx context.Context, operationID string, useNumber uint32) (spend Spend, err error) {
	err = ErrNotFound
	if failed := s.engine.find(ctx, spent, whereSpent, []any{operationID, useNumber}, func(scan scanner) (bool, error) {
		var when int64
		_, err = scan(&spend.OperationID, &spend.Use, &spend.GrantID, &spend.Audience, &when)
		spend.At = at(when)
		return false, err
	}); failed != nil {
		return Spend{}, fmt.Errorf("read spend key: %w", failed)
	}
	return spend, err
}

// Settle moves a running operation to done; ErrState when it is not running.
func (s *Store) Settle(ctx context.Context, operationID string, ok bool, when time.Time) error {
	err := s.write(ctx, s.relievesOf(ctx, operationID), func(w writer) error {
		return move(ctx, w, operationID, vaultv1.OperationState_OPERATION_STATE_RUNNING, settled(ok, nanos(when)))
	})
	if err != nil {
		return fmt.Errorf("settle operation: %w", err)
	}
	return nil
}

func settled(ok bool, when int64) []column {
	return []column{{"state", vaultv1.OperationState_OPERATION_STATE_DONE}, {"settled_at", when}, {"settled_ok", ok}}
}

// Operation returns one operation, or ErrNotFound.
func (s *Store) Operation(ctx context.Context, id string) (*Operation, error) {
	ops, err := s.findOperations(ctx, whereID, id)
	if err == nil && len(ops) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return ops[0], nil
}

// Page is a part of a list of operations.
type Page struct {
	// Limit is how many operations it has at most. Bytes is about how long they may be together, but for a first one; 0: any length.
	Limit, Bytes int
	// After is the operation behind which it begins; empty: it begins with the newest.
	After string
}

// Operations returns a page of the operations in those states, newest first, and whether p.Bytes leaves out some that p.Limit does
// not; ErrNotFound for a p.After that is not known.
func (s *Store) Operations(ctx context.Context, p Page, states ...vaultv1.OperationState) (out []*Operation, more bool, err error) {
	if len(states) == 0 {
		return nil, false, nil
	}
	args, behind := make([]any, 0, len(states)+4), ""
	for _, state := range states {
		args = append(args, state)
	}
	if p.After != "" {
		after, err := s.Operation(ctx, p.After)
		if err != nil {
			return nil, false, err
		}
		behind = " AND (asked_at < ? OR asked_at = ? AND operation_id > ?)"
		args = append(args, nanos(after.AskedAt), nanos(after.AskedAt), after.ID)
	}
	size := 0
	err = s.eachOperation(ctx, func(o *Operation) bool {
		size += o.size()
		if more = p.Bytes > 0 && size > p.Bytes && len(out) > 0; !more {
			out = append(out, o)
		}
		return !more
	}, "WHERE state IN ("+marks(len(states))+")"+behind+" ORDER BY asked_at DESC, operation_id LIMIT ?", append(args, p.Limit)...)
	return out, more, err
}

// size is about how many bytes a message takes for the operation.
func (o *Operation) size() int {
	const short = 2 << 10 // what of it cannot be long
	return len(o.Arguments) + len(o.Statement) + len(o.Signature) + short
}

// SessionOperations returns the newest operations that a session asked for, in those states (none named: in any), newest first, at most limit.
func (s *Store) SessionOperations(ctx context.Context, session string, limit int, states ...vaultv1.OperationState) ([]*Operation, error) {
	args, among := []any{session}, ""
	if len(states) > 0 {
		among = " AND state IN (" + marks(len(states)) + ")"
	}
	for _, state := range states {
		args = append(args, state)
	}
	return s.findOperations(ctx, "WHERE session = ?"+among+" ORDER BY asked_at DESC, operation_id LIMIT ?", append(args, limit)...)
}

// Control returns the epoch and the halt.
func (s *Store) Control(ctx context.Context) (Control, error) {
	c, _, err := findControl(ctx, s.engine)
	return c, err
}

func findControl(ctx context.Context, from reader) (c Control, sound bool, err error) {
	err = ErrNotFound
	if failed := from.find(ctx, control, "WHERE id = 1", nil, func(scan scanner) (bool, error) {
		var id, epoch, when int64
		sound, err = scan(&id, &epoch, &c.Halted, &c.Reason, &c.ChangedBy, &when)
		c.Epoch, c.ChangedAt = uint64(epoch), at(when)
		return false, err
	}); failed != nil {
		err = failed
	}
	if err != nil {
		return Control{}, false, fmt.Errorf("read epoch: %w", err)
	}
	return c, sound, nil
}

// SetControl writes the epoch and the halt. The epoch never falls: ErrState. A resume hands in the statement that it
// used up: ErrStatementUsed.
func (s *Store) SetControl(ctx context.Context, c Control, used *UsedStatement) error {
	return s.write(ctx, always, func(w writer) error {
		if used != nil {
			if err := use(ctx, w, *used); err != nil {
				return err
			}
		}
		epoch := int64(c.Epoch)
		n, err := w.update(ctx, control, []column{
			{"epoch", epoch}, {"halted", c.Halted}, {"reason", c.Reason}, {"changed_by", c.ChangedBy}, {"changed_at", nanos(c.ChangedAt)},
		}, "id = 1 AND epoch < ?", epoch)
		if err != nil {
			return fmt.Errorf("write epoch: %w", err)
		}
		if n == 0 {
			return ErrState
		}
		return nil
	})
}

// Prune forgets what was asked for before the time: operations, and the spend keys and statements whose operation
// is gone. What it forgets cannot come back: a grant or a statement of that age expired long before.
func (s *Store) Prune(ctx context.Context, before time.Time) error {
	return s.write(ctx, always, func(w writer) error {
		for _, old := range []struct {
			of    *table
			where string
		}{
			{operations, "asked_at < ?"},
			{spent, "redeemed_at < ? AND operation_id NOT IN (SELECT operation_id FROM operations)"},
			{standing, "ended_at > 0 AND ended_at < ?"},
			{statements, "used_at < ? AND operation_id NOT IN (SELECT operation_id FROM operations)"},
		} {
			if err := w.remove(ctx, old.of, old.where, nanos(before)); err != nil {
				return fmt.Errorf("prune: %w", err)
			}
		}
		return nil
	})
}
