// Package changelog tells the log which files of the security configuration came into force, and whose change each was: announced
// beforehand by a human's signed statement, or found. It runs inside the vault and reads no file: package security does, and says
// what changed. It remembers across restarts what was in force last, so that what changed while no vault ran is found too.
//
// It gives nothing and stops nothing. A file counts because a human owns it; a statement only says who changed it.
package changelog

import (
	"context"
	"log/slog"
	"sync"
	"time"

	auditv1 "durward.internal/proto/gen/durward/audit/v1"
	callv1 "durward.internal/proto/gen/durward/call/v1"
	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/fault"
	"durward.internal/services/platform/security"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/journal"
)

// How long an announcement waits for its change, and how many may.
const (
	Patience = 10 * time.Minute
	most     = 256
)

// Store remembers what is in force; package store's Store is one.
type Store interface {
	// InForce returns the files' digests, by name.
	InForce(ctx context.Context) (map[string]string, error)
	// SetInForce writes one down, durably; without a digest the file is there no more.
	SetInForce(ctx context.Context, file, layer, digest string, when time.Time) error
}

// Config is what a Ledger needs.
type Config struct {
	Store   Store
	Journal *journal.Journal
	Now     func() time.Time
	Logger  *slog.Logger
}

// Ledger knows what is in force and what was announced. It is safe for concurrent use.
type Ledger struct {
	Config

	mu      sync.Mutex
	inForce map[string]string
	// first: when it began it knew of no file in force; until Complete, what it finds is no change of anything.
	first     bool
	announced map[[32]byte]announcement
}

type announcement struct {
	change   statement.Change
	id       string
	operator string
	at       time.Time
	met      bool
}

// New reads what was in force last.
func New(ctx context.Context, c Config) (*Ledger, error) {
	inForce, err := c.Store.InForce(ctx)
	if err != nil {
		return nil, err
	}
	return &Ledger{Config: c, inForce: inForce, first: len(inForce) == 0, announced: map[[32]byte]announcement{}}, nil
}

// Announce keeps a verified statement of kind config until the change that it tells of is seen, and records it. A statement is
// announced once: CODE_ALREADY_SPENT. Others: CODE_RATE_LIMITED, CODE_AUDIT_UNAVAILABLE.
func (l *Ledger) Announce(ctx context.Context, h *callv1.HumanStatement, v *statement.Verified, caller string) error {
	l.mu.Lock()
	now := l.Now()
	for digest, a := range l.announced {
		// As long as the statement itself could be brought again.
		if now.Sub(a.at) > Patience+2*statement.Skew {
			delete(l.announced, digest)
		}
	}
	if _, twice := l.announced[v.Digest]; twice {
		l.mu.Unlock()
		return fault.New(callv1.Code_CODE_ALREADY_SPENT, "this statement was used before; sign another")
	}
	if len(l.announced) >= most {
		l.mu.Unlock()
		return fault.New(callv1.Code_CODE_RATE_LIMITED, "Rate limit exceeded: too many changes are announced", fault.WithRetry(time.Minute))
	}
	l.announced[v.Digest] = announcement{change: *v.Change, id: v.ID, operator: v.Operator, at: now}
	l.mu.Unlock()
	r := record(auditv1.Kind_KIND_CONFIG_ADOPTED, auditv1.Status_STATUS_PENDING, "config-announced", security.Change{
		File: v.Change.File, Before: v.Change.Before, After: v.Change.After,
	})
	r.Body.Summary = "a human announced a change of the rules"
	r.Body.Statement, r.Body.Confirmed, r.Body.DecisionSource = h, true, v.Operator
	r.Body.Details["caller"], r.Body.Details["statement"] = caller, v.ID
	if err := l.Journal.Must(ctx, r); err != nil {
		l.mu.Lock()
		delete(l.announced, v.Digest)
		l.mu.Unlock()
		return err
	}
	return nil
}

// Changed is security.Options.OnChange.
func (l *Ledger) Changed(c security.Change) {
	ctx := context.Background()
	if c.Problem != "" {
		r := record(auditv1.Kind_KIND_CONFIG_REFUSED, auditv1.Status_STATUS_ERROR, "config-refused", c)
		r.Body.Summary, r.Body.Reason = "a file of the rules was refused; what was in force stays", c.Problem
		l.Journal.Note(ctx, r)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changedLocked(ctx, c)
}

// Complete is called once, when package security has told of every file that there is: what was in force last and is there no more
// was taken away while nobody looked.
func (l *Ledger) Complete(files []security.File) {
	there := map[string]bool{}
	for _, f := range files {
		there[f.Name] = f.Digest != ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for name := range l.inForce {
		if !there[name] {
			l.changedLocked(context.Background(), security.Change{File: name})
		}
	}
	l.first = false
}

func (l *Ledger) changedLocked(ctx context.Context, c security.Change) {
	c.Before = l.inForce[c.File] // across restarts
	if c.Before == c.After {
		return
	}
	r := record(auditv1.Kind_KIND_CONFIG_FOUND, auditv1.Status_STATUS_OK, "config-found", c)
	r.Body.Summary = "a change of the rules that nobody announced was found, and is in force"
	r.Body.Reason = "nobody announced it"
	if l.first {
		r.Body.Summary, r.Body.Reason = "a file of the rules is in force as it was first seen", "no rules were known before"
	}
	if a, ok := l.meetLocked(c); ok {
		r = record(auditv1.Kind_KIND_CONFIG_ADOPTED, auditv1.Status_STATUS_OK, "config-adopted", c)
		r.Body.Summary = "a change of the rules that a human announced is in force"
		r.Body.Confirmed, r.Body.DecisionSource = true, a.operator
		r.Body.Details["statement"] = a.id
	}
	if l.inForce[c.File] = c.After; c.After == "" {
		delete(l.inForce, c.File)
	}
	// Recorded before it is written down: a change that is not recorded, since the spool is full, is found again by the next start.
	err := l.Journal.Follow(ctx, r)
	if err == nil {
		err = l.Store.SetInForce(ctx, c.File, c.Layer, c.After, l.Now())
	}
	if err != nil {
		l.Logger.ErrorContext(ctx, "a change of the rules could not be recorded, or not written down: it is in force, and found again at the next start",
			"file", c.File, "error", err)
	}
}

// meetLocked finds the announcement of exactly this change. It is met once.
func (l *Ledger) meetLocked(c security.Change) (announcement, bool) {
	now := l.Now()
	for digest, a := range l.announced {
		if !a.met && now.Sub(a.at) <= Patience && tellsOf(a.change, c) {
			a.met = true
			l.announced[digest] = a
			return a, true
		}
	}
	return announcement{}, false
}

func record(kind auditv1.Kind, status auditv1.Status, action string, c security.Change) *auditv1.Record {
	r := journal.Session(kind, status, "", "", 0)
	r.Body.Action, r.Body.Persistent = action, true
	r.Body.Details = map[string]string{"file": clean.Line(c.File, 256), "before": c.Before, "after": c.After}
	if c.Layer != "" {
		r.Body.Details["layer"] = c.Layer
	}
	return r
}
