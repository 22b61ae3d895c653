package policy

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/cedar-policy/cedar-go"
	public "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// rule is a Cedar policy and what is known of it without a call.
type rule struct {
	Rule
	column  int
	because string
	// silent: an agent is not told that it was this rule.
	silent bool
	// user and clients say whom a rule of the layers User and Project binds.
	user    string
	clients []string
	limit   *limit

	policy *cedar.Policy
	// prefix is the policy without its resource and without everything from the first condition on that looks at arguments, time or
	// counts: if it does not match, neither does the policy.
	prefix *cedar.Policy
	uses   uses
	// place is the rule's number in the order, and id the same for the engine.
	place int
	id    cedar.PolicyID
}

// uses say which parts of a call beside its tool and session a rule's conditions look at.
type uses uint8

const (
	usesArguments uses = 1 << iota
	usesTime
	usesCalls
	usesResource
)

// limit is what a rule of a tools.yaml stands for, where waiting helps.
type limit struct {
	kind     limitKind
	interval time.Duration
}

type limitKind int

const (
	perInterval limitKind = iota
	perSession
	perDay
	perMonth
)

// sessionAtMost is how long a session can go on.
const sessionAtMost = 8 * time.Hour

// rest is how long until the limit is no longer in the way, at least a second.
func (l *limit) rest(c *Call) time.Duration {
	var d time.Duration
	year, month, day := c.Now.Date()
	switch l.kind {
	case perInterval:
		d = l.interval - c.Now.Sub(c.Counts.Last) // where the clock was set back, until it is there again and that long
	case perSession:
		d = sessionAtMost
	case perDay:
		d = time.Date(year, month, day+1, 0, 0, 0, 0, c.Now.Location()).Sub(c.Now)
	case perMonth:
		d = time.Date(year, month+1, 1, 0, 0, 0, 0, c.Now.Location()).Sub(c.Now)
	}
	return max(d, time.Second)
}

// about reports whether the rule's layer binds a client.
func (r *rule) about(client, user string) bool {
	switch r.Layer {
	case User:
		return r.user != "" && r.user == user
	case Project:
		return len(r.clients) == 0 || slices.Contains(r.clients, client)
	default:
		return true
	}
}

// newRule compiles a policy. The policy is not changed afterwards.
func newRule(p *ast.Policy, s Source) *rule {
	r := &rule{user: s.User, clients: s.Clients, column: p.Position.Column}
	r.Rule = Rule{Layer: s.Layer, File: s.Name, Line: p.Position.Line, Forbids: p.Effect == ast.EffectForbid}
	r.policy = compiled(p)
	prefix := &ast.Policy{Effect: p.Effect, Principal: p.Principal, Action: p.Action, Resource: ast.ScopeTypeAll{}, Position: p.Position}
	for _, c := range conjuncts(p.Conditions) {
		u := lookedAt(c.Body)
		if r.uses |= u; r.uses == 0 {
			prefix.Conditions = append(prefix.Conditions, c)
		}
	}
	r.prefix = compiled(prefix)
	return r
}

func compiled(p *ast.Policy) *cedar.Policy { return cedar.NewPolicyFromAST((*public.Policy)(p)) }

// conjuncts are a policy's conditions in the order in which they are evaluated, with each "&&" of a "when" taken apart.
func conjuncts(conditions []ast.ConditionType) []ast.ConditionType {
	var out []ast.ConditionType
	var split func(n ast.IsNode)
	split = func(n ast.IsNode) {
		if and, ok := n.(ast.NodeTypeAnd); ok {
			split(and.Left)
			split(and.Right)
			return
		}
		out = append(out, ast.ConditionType{Condition: ast.ConditionWhen, Body: n})
	}
	for _, c := range conditions {
		if c.Condition == ast.ConditionWhen {
			split(c.Body)
		} else {
			out = append(out, c)
		}
	}
	return out
}

// lookedAt finds what an expression depends on beside tool and session.
func lookedAt(body ast.IsNode) uses {
	var u uses
	attribute := func(on ast.IsNode, name types.String) bool {
		if v, ok := on.(ast.NodeTypeVariable); !ok || v.Name != "context" {
			return true
		}
		switch name {
		case "arguments":
			u |= usesArguments
		case "time":
			u |= usesTime
		case "calls":
			u |= usesCalls
		}
		return false
	}
	ast.Inspect(ast.NewNode(body), func(n ast.IsNode) bool {
		switch n := n.(type) {
		case ast.NodeTypeAccess:
			return attribute(n.Arg, n.Value)
		case ast.NodeTypeHas:
			return attribute(n.Arg, n.Value)
		case ast.NodeTypeVariable:
			switch n.Name {
			case "context":
				u |= usesArguments | usesTime | usesCalls
			case "resource":
				u |= usesResource
			}
		}
		return true
	})
	return u
}

// scopeResource returns the entity and type that a policy's resource scope names; empty where it names none.
func scopeResource(p *ast.Policy) (types.EntityUID, types.EntityType) {
	switch s := p.Resource.(type) {
	case ast.ScopeTypeEq:
		return s.Entity, s.Entity.Type
	case ast.ScopeTypeIn:
		return s.Entity, s.Entity.Type
	case ast.ScopeTypeIs:
		return types.EntityUID{}, s.Type
	case ast.ScopeTypeIsIn:
		return s.Entity, s.Type
	}
	return types.EntityUID{}, ""
}

// scopePrincipal returns the entity that a call's principal must be or be in; empty where it may be any.
func scopePrincipal(p *ast.Policy) types.EntityUID {
	switch s := p.Principal.(type) {
	case ast.ScopeTypeEq:
		return s.Entity
	case ast.ScopeTypeIn:
		return s.Entity
	case ast.ScopeTypeIsIn:
		return s.Entity
	}
	return types.EntityUID{}
}

// scopeActions returns the actions and groups of actions that a policy names; nil where it may be any.
func scopeActions(p *ast.Policy) []types.EntityUID {
	switch s := p.Action.(type) {
	case ast.ScopeTypeEq:
		return []types.EntityUID{s.Entity}
	case ast.ScopeTypeIn:
		return []types.EntityUID{s.Entity}
	case ast.ScopeTypeInSet:
		return s.Entities
	}
	return nil
}

func (r *rule) ast() *ast.Policy { return (*ast.Policy)(r.policy.AST()) }

// scoped reports whether the rule names a resource in its scope.
func (r *rule) scoped() bool {
	_, kind := scopeResource(r.ast())
	return kind != ""
}

// depends reports whether whether the rule matches can differ between calls of one tool in one session.
func (r *rule) depends(t *subject) bool {
	u := r.uses
	if t.kind == hostType {
		u &^= usesResource
	}
	return u != 0 || t.kind != hostType && r.scoped()
}

// byPlace is the order of rules: layer, file, line.
func byPlace(a, b *rule) int {
	return cmp.Or(cmp.Compare(a.Layer.rank(), b.Layer.rank()), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.column, b.column), cmp.Compare(a.ID, b.ID), cmp.Compare(a.user, b.user))
}

// number gives rules the ids by which the engine tells of them: their places in the order.
func number(rules []*rule) {
	for i, r := range rules {
		r.place, r.id = i, cedar.PolicyID(strconv.Itoa(i))
	}
}

// batch is what the engine is asked to evaluate: rules, with prefix as far as they are the same for every call.
type batch struct {
	rules  []*rule
	prefix bool
}

// All implements cedar.PolicyIterator.
func (b batch) All() iter.Seq2[cedar.PolicyID, *cedar.Policy] {
	return func(yield func(cedar.PolicyID, *cedar.Policy) bool) {
		for _, r := range b.rules {
			policy := r.policy
			if b.prefix {
				policy = r.prefix
			}
			if !yield(r.id, policy) {
				return
			}
		}
	}
}
