package policy

import (
	"slices"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// answer is what can be said of a question without knowing arguments, time and counts.
type answer int

const (
	no answer = iota
	maybe
	yes
)

// Always returns the verdict on every call of the tool in such a session, if it is the same whatever the arguments, the time and
// how often the tool was called; false: it depends, or that cannot be told.
func (s *Set) Always(c Call) (Verdict, bool) {
	t := newSubject(s, &c)
	top := s.tier(t.name, &c)
	verdict, sure := s.alwaysAt(t, top)
	for tier := top - 1; tier >= c.Tool.Tier; tier-- {
		v, ok := s.alwaysAt(t, tier)
		switch {
		case sure && verdict == Deny, ok && v == Deny:
			verdict, sure = Deny, true
		case !ok:
			sure = false
		case v.freedom() < verdict.freedom():
			verdict = v
		}
	}
	return verdict, sure
}

func (s *Set) alwaysAt(t *subject, tier optionsv1.Tier) (Verdict, bool) {
	switch s.answer(t, groupCall, tier) {
	case no:
		return Deny, true
	case maybe:
		return Deny, false
	}
	switch s.answer(t, groupRun, tier) {
	case yes:
		return Run, true
	case no:
		return Ask, true
	}
	return Deny, false
}

// answer says whether a question is always, sometimes or never answered with yes.
func (s *Set) answer(t *subject, group types.String, tier optionsv1.Tier) answer {
	permitted := s.some(t, group, tier, s.index.permits, false)
	if permitted == no || !forbidWins() {
		return permitted
	}
	switch s.some(t, group, tier, s.index.forbids, failedForbidCounts()) {
	case yes:
		return no
	case maybe:
		return maybe
	}
	return permitted
}

// some says whether any of the rules matches. What fails to be evaluated matches if failing says so.
func (s *Set) some(t *subject, group types.String, tier optionsv1.Tier, from map[scope][]*rule, failing bool) answer {
	rules := find(from, group, group+":"+types.String(t.name), t.lineage, whatever, t.call)
	var fixed, open []*rule
	for _, r := range rules {
		switch {
		case !r.depends(t):
			fixed = append(fixed, r)
		case r.fits(t):
			open = append(open, r)
		}
	}
	request, err := t.request(group, tier, 0)
	if err != nil {
		return maybe
	}
	t.entities.group = group
	_, found := cedar.Authorize(batch{rules: fixed}, t.entities, request)
	if len(found.Reasons) > 0 || failing && len(found.Errors) > 0 {
		return yes
	}
	_, found = cedar.Authorize(batch{rules: open, prefix: true}, t.entities, request)
	if failing && len(found.Errors) > 0 && slices.ContainsFunc(found.Errors, func(e cedar.DiagnosticError) bool { return !s.byID(e.PolicyID).scoped() }) {
		return yes
	}
	if len(found.Reasons) > 0 || failing && len(found.Errors) > 0 {
		return maybe
	}
	return no
}

// fits reports whether the rule's resource can be what calls of the tool are about.
func (r *rule) fits(t *subject) bool {
	entity, kind := scopeResource(r.ast())
	if kind != "" && kind != t.kind {
		return false
	}
	// Nothing is in anything else: a resource is in itself alone.
	return entity == types.EntityUID{} || entity.Type == t.kind
}

// Counted reports whether some rule about the tool may look at how often the client called it: whether calls are to be counted.
func (s *Set) Counted(client, tool string) bool {
	return slices.ContainsFunc(s.rules, func(r *rule) bool { return r.uses&usesCalls != 0 && r.aboutTool(tool) && r.mayMean(client) })
}

// aboutTool reports whether the rule's scope takes in an action of the tool.
func (r *rule) aboutTool(tool string) bool {
	if _, all := r.ast().Action.(ast.ScopeTypeAll); all {
		return true
	}
	return slices.ContainsFunc(scopeActions(r.ast()), func(a types.EntityUID) bool {
		return a.ID == groupCall || a.ID == groupRun || a.ID == groupCall+":"+types.String(tool) || a.ID == groupRun+":"+types.String(tool)
	})
}

// mayMean reports whether the rule's layer and scope can take in a client, whoever its user and whatever its channel.
func (r *rule) mayMean(client string) bool {
	if r.Layer == Project && !r.about(client, "") {
		return false
	}
	p := scopePrincipal(r.ast())
	switch p.Type {
	case clientType:
		return string(p.ID) == client
	case agentType:
		return len(p.ID) > len(client) && string(p.ID[:len(client)+1]) == client+"/"
	}
	return true
}
