// Package disclosure says which personal data may leave the vault, to which sink, in which argument of which tool, and how much. It runs in
// the vault. Nothing may that a human's file does not name.
package disclosure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/identity"
	"durward.internal/services/platform/reference"
	"durward.internal/services/platform/statement"
	"durward.internal/services/vault/internal/store"
)

// Rule lets values of types go into arguments of one tool.
type Rule struct {
	// Types are types of personal data, as references name them.
	Types []string `yaml:"types"`
	// Sink is executor or egress.
	Sink string `yaml:"sink"`
	// Tool is the tool's name.
	Tool string `yaml:"tool"`
	// Arguments are JSON pointers (RFC 6901), each whole: there is no wildcard.
	Arguments []string `yaml:"arguments"`
}

// Validate reports what is wrong with a rule.
func (r Rule) Validate() error {
	role, err := identity.ParseRole(r.Sink)
	tool, known := contract.Lookup(r.Tool)
	switch {
	case len(r.Types) == 0:
		return errors.New("types: at least one is required")
	case slices.ContainsFunc(r.Types, func(t string) bool { return !reference.ValidType(t) }):
		return errors.New("types: each is capitals, digits and _, a capital first")
	case err != nil || r.Sink != "executor" && r.Sink != "egress":
		return errors.New("sink: must be executor or egress")
	case !known || tool.Sink != role:
		return fmt.Errorf("tool: %q is no tool of %s", r.Tool, r.Sink)
	case len(r.Arguments) == 0:
		return errors.New("arguments: at least one is required")
	}
	for _, pointer := range r.Arguments {
		if !strings.HasPrefix(pointer, "/") || strings.ContainsAny(pointer, "*?") {
			return fmt.Errorf("arguments: %q is to be a JSON pointer such as /body, without a wildcard", pointer)
		}
	}
	return nil
}

// Limits beyond those of one call (statement.MaxDisclosures and MaxDisclosed), on one day.
const (
	perSession   = 10
	perPrincipal = 20
)

// What is counted, as a store names it: no tool has such a name.
const (
	countValues = "disclosed:values"
	countBytes  = "disclosed:bytes"
)

// Store counts, durably; package store's Store is one.
type Store interface {
	Uses(ctx context.Context, client, tool string) ([]store.Use, error)
	ChangeUse(ctx context.Context, client, tool, day string, change func(*store.Use)) error
}

// Policy is the rules and what was disclosed by them. It is safe for concurrent use.
type Policy struct {
	rules []Rule
	store Store
	now   func() time.Time
	mu    sync.Mutex
}

// New makes a Policy of valid rules. Days are of now's location.
func New(rules []Rule, counts Store, now func() time.Time) *Policy {
	return &Policy{rules: rules, store: counts, now: now}
}

// Rules are the rules.
func (p *Policy) Rules() []Rule { return p.rules }

// Allows reports whether a rule lets a value of the type go there.
func (p *Policy) Allows(kind, sink, tool, pointer string) bool {
	return slices.ContainsFunc(p.rules, func(r Rule) bool {
		return r.Sink == sink && r.Tool == tool && slices.Contains(r.Types, kind) && slices.Contains(r.Arguments, pointer)
	})
}

// ErrLimit says that more would be disclosed than may be.
var ErrLimit = errors.New("more would be disclosed than the limits let: of one call 50 values and 8,192 bytes, of a session and a client so many times that in a day")

// Take counts what one call discloses, all or nothing; ErrLimit. It is counted before anything leaves: a crash in between leaves what was
// counted and not disclosed, never the other way round.
func (p *Policy) Take(ctx context.Context, session, principal string, values, bytes int) error {
	if values > statement.MaxDisclosures || bytes > statement.MaxDisclosed {
		return ErrLimit
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	day := p.now().Format(time.DateOnly)
	type count struct {
		who, what  string
		more, most int
	}
	counts := []count{
		{"session " + session, countValues, values, perSession * statement.MaxDisclosures},
		{"session " + session, countBytes, bytes, perSession * statement.MaxDisclosed},
		{"client " + principal, countValues, values, perPrincipal * statement.MaxDisclosures},
		{"client " + principal, countBytes, bytes, perPrincipal * statement.MaxDisclosed},
	}
	for _, c := range counts {
		days, err := p.store.Uses(ctx, c.who, c.what)
		if err != nil {
			return err
		}
		for _, u := range days {
			if u.Day == day && int(u.Calls)+c.more > c.most {
				return ErrLimit
			}
		}
	}
	for _, c := range counts {
		err := p.store.ChangeUse(ctx, c.who, c.what, day, func(u *store.Use) {
			u.Calls, u.Last = u.Calls+uint32(c.more), p.now().UnixNano() // #nosec G115 -- bounded above
		})
		if err != nil {
			return err
		}
	}
	return nil
}
