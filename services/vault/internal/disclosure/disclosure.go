// Package disclosure says which personal data may leave the vault, to which sink, in which argument of which tool, and how much. It runs in
// the vault. Nothing may that a human's file does not name.
package disclosure

import (
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

// Limits beyond those of one call (statement.MaxDisclosures and MaxDisclosed), within a day.
const (
	perSession, perSessionBytes     = 10 * statement.MaxDisclosures, 10 * statement.MaxDisclosed
	perPrincipal, perPrincipalBytes = 20 * statement.MaxDisclosures, 20 * statement.MaxDisclosed
	day                             = 24 * time.Hour
)

// Policy is the rules and what was disclosed by them. It is safe for concurrent use.
type Policy struct {
	rules []Rule
	now   func() time.Time

	mu   sync.Mutex
	used map[string]*used
}

type used struct {
	values, bytes int
	since         time.Time
}

// New makes a Policy of valid rules.
func New(rules []Rule, now func() time.Time) *Policy {
	return &Policy{rules: rules, now: now, used: map[string]*used{}}
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

// Take counts what one call discloses, all or nothing; ErrLimit.
func (p *Policy) Take(session, principal string, values, bytes int) error {
	if values > statement.MaxDisclosures || bytes > statement.MaxDisclosed {
		return ErrLimit
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	for key, u := range p.used {
		if now.Sub(u.since) >= day {
			delete(p.used, key)
		}
	}
	s, c := p.of("session\x00"+session, now), p.of("principal\x00"+principal, now)
	if s.values+values > perSession || s.bytes+bytes > perSessionBytes || c.values+values > perPrincipal || c.bytes+bytes > perPrincipalBytes {
		return ErrLimit
	}
	for _, u := range []*used{s, c} {
		u.values, u.bytes = u.values+values, u.bytes+bytes
	}
	return nil
}

func (p *Policy) of(key string, now time.Time) *used {
	if p.used[key] == nil {
		p.used[key] = &used{since: now}
	}
	return p.used[key]
}
