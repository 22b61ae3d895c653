// Package store keeps what the vault must not forget: operations with their arguments, the statements that were used,
// the spend keys that were redeemed, the epoch and the halt. Sessions are not here: they end with the process.
//
// It is the innermost part of the vault. It trusts its callers to have judged what they write, and enforces alone what
// a race could break: a statement works once, a spend key is redeemed once, a state changes only from the state that the
// caller saw. Every write is durable when it returns. Safe for concurrent use.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	callv1 "durward.internal/proto/gen/durward/call/v1"
	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	vaultv1 "durward.internal/proto/gen/durward/vault/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/database"
	"durward.internal/services/platform/reserve"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations are the schema's steps, for database.Open.
func Migrations() fs.FS {
	sub, err := fs.Sub(files, "migrations")
	if err != nil {
		panic("store: the migrations are not embedded: " + err.Error())
	}
	return sub
}

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
	db    *sql.DB
	kept  *reserve.Reserve // nil: there is none
	seals *database.Seals  // nil: rows have none

	spend, run, spent, settle *sql.Stmt
}

// New takes a database whose schema is Migrations'. The caller closes it.
func New(ctx context.Context, db *sql.DB, opts ...Option) (*Store, error) {
	s := &Store{db: db}
	for _, opt := range opts {
		opt(s)
	}
	if err := s.distrust(ctx); err != nil {
		return nil, err
	}
	// What every redemption runs.
	if err := database.Prepare(ctx, db, map[**sql.Stmt]string{
		&s.spend: `INSERT INTO spent (operation_id, use, grant_id, audience, redeemed_at) VALUES (?, ?, ?, ?, ?)
			ON CONFLICT DO NOTHING`,
		&s.run:    `UPDATE operations SET state = ?, redeemed_at = ? WHERE operation_id = ? AND state = ?`,
		&s.spent:  `SELECT grant_id, audience, redeemed_at FROM spent WHERE operation_id = ? AND use = ?`,
		&s.settle: `UPDATE operations SET state = ?, settled_at = ?, settled_ok = ? WHERE operation_id = ? AND state = ?`,
	}); err != nil {
		return nil, err
	}
	return s, nil
}

const columns = `operation_id, state, principal, session, channel, client_name, key_bound, tool_name, tool_source,
	tool_digest, tier, arguments, arguments_digest, agent_reason, audience, epoch, policy_digest, request_id, asked_at,
	expires_at, decided_at, decided_by, decision_reason, subject_digest, statement, signature, redeemed_at, settled_at,
	settled_ok, joined, authority, dangerous, policy_tier, rule, agent`

// selectOperations reads what scan takes.
func (s *Store) selectOperations() string {
	return `SELECT ` + columns + `, ` + s.seals.Sound("operations") + ` FROM operations `
}

func scan(row interface{ Scan(...any) error }) (*Operation, error) {
	var (
		o                                            Operation
		epoch                                        int64
		asked, expires, decided, redeemed, settledAt int64
		sound                                        bool
	)
	err := row.Scan(&o.ID, &o.State, &o.Principal, &o.Session, &o.Channel, &o.ClientName, &o.KeyBound, &o.ToolName,
		&o.ToolSource, &o.ToolDigest, &o.Tier, &o.Arguments, &o.ArgumentsDigest, &o.AgentReason, &o.Audience, &epoch,
		&o.PolicyDigest, &o.RequestID, &asked, &expires, &decided, &o.DecidedBy, &o.DecisionReason, &o.SubjectDigest,
		&o.Statement, &o.Signature, &redeemed, &settledAt, &o.SettledOK, &o.Joined,
		&o.Authority, &o.Dangerous, &o.PolicyTier, &o.Rule, &o.Agent, &sound)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("read operation: %w", err)
	}
	if !sound {
		return nil, fmt.Errorf("the operation %s does not bear its seal: %w", clean.Line(o.ID, 100), database.ErrDamaged)
	}
	o.Epoch = uint64(epoch)
	o.AskedAt, o.ExpiresAt, o.DecidedAt = at(asked), at(expires), at(decided)
	o.RedeemedAt, o.SettledAt = at(redeemed), at(settledAt)
	return &o, nil
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

type execer interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}

func insert(ctx context.Context, on execer, o *Operation) error {
	marks := strings.TrimSuffix(strings.Repeat("?, ", 35), ", ")
	_, err := on.ExecContext(ctx, `INSERT INTO operations (`+columns+`) VALUES (`+marks+`)`, // #nosec G202 -- constants
		o.ID, o.State, o.Principal, o.Session, o.Channel, o.ClientName, o.KeyBound, o.ToolName, o.ToolSource,
		blob(o.ToolDigest), o.Tier, blob(o.Arguments), blob(o.ArgumentsDigest), o.AgentReason, o.Audience,
		int64(o.Epoch),
		blob(o.PolicyDigest), o.RequestID, nanos(o.AskedAt), nanos(o.ExpiresAt), nanos(o.DecidedAt), o.DecidedBy,
		o.DecisionReason, blob(o.SubjectDigest), blob(o.Statement), blob(o.Signature), nanos(o.RedeemedAt),
		nanos(o.SettledAt), o.SettledOK, o.Joined, o.Authority, o.Dangerous, o.PolicyTier, o.Rule, o.Agent)
	if err != nil {
		return fmt.Errorf("insert operation: %w", err)
	}
	return nil
}

func use(ctx context.Context, on execer, s UsedStatement) error {
	n, err := affected(on.ExecContext(ctx,
		`INSERT INTO statements (digest, operation_id, kind, operator, used_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		s.Digest, s.OperationID, s.Kind, s.Operator, nanos(s.UsedAt)))
	if err != nil {
		return fmt.Errorf("insert statement: %w", err)
	}
	if n == 0 {
		return ErrStatementUsed
	}
	return nil
}

func affected(r sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

func (s *Store) transact(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Insert adds a new operation.
func (s *Store) Insert(ctx context.Context, o *Operation) error {
	return s.keeping(relieves(o), func() error { return insert(ctx, s.db, o) })
}

// InsertCommand adds an operation that a human's own statement made, and uses up the statement; ErrStatementUsed.
func (s *Store) InsertCommand(ctx context.Context, o *Operation, used UsedStatement) error {
	return s.transactKept(ctx, relieves(o), func(tx *sql.Tx) error {
		if err := use(ctx, tx, used); err != nil {
			return err
		}
		return insert(ctx, tx, o)
	})
}

// Approve moves a pending operation to approved and uses up the statement, where used is not nil: a scope's is used up by its
// grant. Errors: ErrStatementUsed, ErrState.
func (s *Store) Approve(ctx context.Context, o *Operation, used *UsedStatement) error {
	return s.transactKept(ctx, relieves(o), func(tx *sql.Tx) error {
		if used != nil {
			if err := use(ctx, tx, *used); err != nil {
				return err
			}
		}
		n, err := affected(tx.ExecContext(ctx, `UPDATE operations SET state = ?, decided_at = ?, decided_by = ?,
			subject_digest = ?, statement = ?, signature = ?, joined = ?, expires_at = ?, authority = ? WHERE operation_id = ? AND state = ?`,
			vaultv1.OperationState_OPERATION_STATE_APPROVED, nanos(o.DecidedAt), o.DecidedBy, blob(o.SubjectDigest),
			blob(o.Statement), blob(o.Signature), o.Joined, nanos(o.ExpiresAt), o.Authority, o.ID,
			vaultv1.OperationState_OPERATION_STATE_PENDING))
		if err != nil {
			return fmt.Errorf("approve operation: %w", err)
		}
		if n == 0 {
			return ErrState
		}
		return nil
	})
}

// End moves operations to a state in which nothing runs any more (denied, expired), from the state from; ErrState when
// one of them is elsewhere, and then none is moved.
func (s *Store) End(ctx context.Context, from vaultv1.OperationState, ended ...*Operation) error {
	return s.transactKept(ctx, always, func(tx *sql.Tx) error {
		for _, o := range ended {
			n, err := affected(tx.ExecContext(ctx, `UPDATE operations SET state = ?, decided_at = ?, decided_by = ?,
				decision_reason = ?, joined = ? WHERE operation_id = ? AND state = ?`,
				o.State, nanos(o.DecidedAt), o.DecidedBy, o.DecisionReason, o.Joined, o.ID, from))
			if err != nil {
				return fmt.Errorf("end operation: %w", err)
			}
			if n == 0 {
				return ErrState
			}
		}
		return nil
	})
}

// Spend redeems a spend key and moves its operation, if it has one, from approved to running; ErrSpent.
func (s *Store) Spend(ctx context.Context, spend Spend) error {
	return s.transactKept(ctx, s.relievesOf(ctx, spend.OperationID), func(tx *sql.Tx) error {
		// The transaction's end closes the statements that are made for it.
		n, err := affected(tx.StmtContext(ctx, s.spend).ExecContext(ctx,
			spend.OperationID, spend.Use, spend.GrantID, spend.Audience, nanos(spend.At)))
		if err != nil {
			return fmt.Errorf("spend: %w", err)
		}
		if n == 0 {
			return ErrSpent
		}
		_, err = tx.StmtContext(ctx, s.run).ExecContext(ctx,
			vaultv1.OperationState_OPERATION_STATE_RUNNING, nanos(spend.At), spend.OperationID,
			vaultv1.OperationState_OPERATION_STATE_APPROVED)
		if err != nil {
			return fmt.Errorf("spend: %w", err)
		}
		return nil
	})
}

// Spent returns the redemption of a spend key, or ErrNotFound.
func (s *Store) Spent(ctx context.Context, operationID string, useNumber uint32) (Spend, error) {
	spend := Spend{OperationID: operationID, Use: useNumber}
	var when int64
	err := s.spent.QueryRowContext(ctx, operationID, useNumber).Scan(&spend.GrantID, &spend.Audience, &when)
	if errors.Is(err, sql.ErrNoRows) {
		return Spend{}, ErrNotFound
	}
	if err != nil {
		return Spend{}, fmt.Errorf("read spend key: %w", err)
	}
	spend.At = at(when)
	return spend, nil
}

// Settle moves a running operation to done; ErrState when it is not running.
func (s *Store) Settle(ctx context.Context, operationID string, ok bool, when time.Time) error {
	var n int64
	err := s.keeping(s.relievesOf(ctx, operationID), func() (err error) {
		n, err = affected(s.settle.ExecContext(ctx, vaultv1.OperationState_OPERATION_STATE_DONE, nanos(when), ok, operationID,
			vaultv1.OperationState_OPERATION_STATE_RUNNING))
		return err
	})
	if err != nil {
		return fmt.Errorf("settle operation: %w", err)
	}
	if n == 0 {
		return ErrState
	}
	return nil
}

// Operation returns one operation, or ErrNotFound.
func (s *Store) Operation(ctx context.Context, id string) (*Operation, error) {
	return scan(s.db.QueryRowContext(ctx, s.selectOperations()+`WHERE operation_id = ?`, id))
}

// Operations returns the newest operations in those states, newest first, at most limit.
func (s *Store) Operations(ctx context.Context, limit int, states ...vaultv1.OperationState) ([]*Operation, error) {
	if len(states) == 0 {
		return nil, nil
	}
	args := make([]any, 0, len(states)+1)
	for _, state := range states {
		args = append(args, state)
	}
	marks := strings.TrimSuffix(strings.Repeat("?, ", len(states)), ", ")
	rows, err := s.db.QueryContext(ctx, s.selectOperations()+`WHERE state IN (`+marks+ // #nosec G202 -- marks only
		`) ORDER BY asked_at DESC, operation_id LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("read operations: %w", err)
	}
	defer rows.Close()
	var out []*Operation
	for rows.Next() {
		o, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, o)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read operations: %w", err)
	}
	return out, nil
}

// Control returns the epoch and the halt.
func (s *Store) Control(ctx context.Context) (Control, error) {
	var (
		c     Control
		epoch int64
		when  int64
	)
	err := s.db.QueryRowContext(ctx, `SELECT epoch, halted, reason, changed_by, changed_at FROM control WHERE id = 1`).
		Scan(&epoch, &c.Halted, &c.Reason, &c.ChangedBy, &when)
	if err != nil {
		return Control{}, fmt.Errorf("read epoch: %w", err)
	}
	c.Epoch, c.ChangedAt = uint64(epoch), at(when)
	return c, nil
}

// SetControl writes the epoch and the halt. The epoch never falls: ErrState. A resume hands in the statement that it
// used up: ErrStatementUsed.
func (s *Store) SetControl(ctx context.Context, c Control, used *UsedStatement) error {
	return s.transactKept(ctx, always, func(tx *sql.Tx) error {
		if used != nil {
			if err := use(ctx, tx, *used); err != nil {
				return err
			}
		}
		epoch := int64(c.Epoch)
		n, err := affected(tx.ExecContext(ctx, `UPDATE control SET epoch = ?, halted = ?, reason = ?, changed_by = ?,
			changed_at = ? WHERE id = 1 AND epoch < ?`, epoch, c.Halted, c.Reason, c.ChangedBy, nanos(c.ChangedAt), epoch))
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
	return s.transactKept(ctx, always, func(tx *sql.Tx) error {
		cut := nanos(before)
		for _, q := range []string{
			`DELETE FROM operations WHERE asked_at < ?`,
			`DELETE FROM spent WHERE redeemed_at < ? AND operation_id NOT IN (SELECT operation_id FROM operations)`,
			`DELETE FROM standing WHERE ended_at > 0 AND ended_at < ?`,
			`DELETE FROM statements WHERE used_at < ? AND operation_id NOT IN (SELECT operation_id FROM operations)`,
		} {
			if _, err := tx.ExecContext(ctx, q, cut); err != nil {
				return fmt.Errorf("prune: %w", err)
			}
		}
		return nil
	})
}
