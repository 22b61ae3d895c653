package policy

import (
	"slices"
	"strconv"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
)

// Decide says whether a call runs, asks or is denied, and by which rule: of those that decide, the first by layer, file and line.
//
// Where a tools.yaml raises a tool's tier, the call is judged at the contract's tier, at the raised one and at those between, and
// the strictest answer counts: whatever rules say about tiers, raising one lets nothing more happen.
func (s *Set) Decide(c Call) Decision {
	t := newSubject(s, &c)
	top := s.tier(t.name, &c)
	d := s.decideAt(t, top)
	for tier := top - 1; tier >= c.Tool.Tier; tier-- {
		if other := s.decideAt(t, tier); stricter(other, d) {
			d = other
		}
	}
	d.Tier = top
	return d
}

// stricter reports whether a leaves less than b: of two denials the one that waiting does not end.
func stricter(a, b Decision) bool {
	if a.Verdict != b.Verdict {
		return a.Verdict.freedom() < b.Verdict.freedom()
	}
	return a.Verdict == Deny && a.RetryAfter == 0 && b.RetryAfter > 0
}

// decideAt judges a call as if its tool were of the tier.
func (s *Set) decideAt(t *subject, tier optionsv1.Tier) Decision {
	call := s.question(t, groupCall, tier)
	forbids, ok := call.forbids(s)
	if !ok {
		return unreadable()
	}
	if len(forbids) > 0 {
		return denied(forbids, t.call)
	}
	permit, failed := call.permit(s)
	switch {
	case permit == nil && failed != nil:
		return Decision{Rule: failed.as(true), Reason: "the rule that could allow it cannot be evaluated on this call"}
	case permit == nil:
		return Decision{Rule: Rule{ID: NoRule, Layer: BuiltIn}, Reason: "no rule allows it"}
	}
	run := s.question(t, groupRun, tier)
	unasked, failed := run.permit(s)
	if unasked == nil {
		d := Decision{Verdict: Ask, Rule: permit.as(false), Reason: permit.says("allows it to be asked for")}
		if failed != nil {
			d.Rule, d.Reason = failed.as(true), "the rule that could let it run cannot be evaluated on this call"
		}
		return d
	}
	against, ok := run.forbids(s)
	if !ok {
		return Decision{Verdict: Ask, Rule: unreadable().Rule, Reason: unreadable().Reason}
	}
	if len(against) > 0 {
		r := against[0]
		return Decision{Verdict: Ask, Rule: r.Rule, Reason: r.says("wants a human to be asked")}
	}
	return Decision{Verdict: Run, Rule: unasked.as(false), Reason: unasked.says("lets it run")}
}

func unreadable() Decision {
	return Decision{Rule: Rule{ID: Unreadable, Layer: BuiltIn, Forbids: true}, Reason: "a rule looks at the arguments, which are larger than rules may look at"}
}

// matched is a rule that matched, or could not be evaluated and counts.
type matched struct {
	*rule
	Rule
}

func (r *rule) as(failed bool) Rule {
	out := r.Rule
	out.Failed = failed
	return out
}

// says is the rule's own @because, or what it does.
func (r *rule) says(does string) string {
	if r.because != "" {
		return r.because
	}
	return "the rule " + r.ID + " " + does
}

func (m matched) says(does string) string {
	if m.Failed {
		return "the rule " + m.ID + " cannot be evaluated on this call, and forbids it therefore"
	}
	return m.rule.says(does)
}

// denied tells the first of the rules that forbid; if all of them are limits, it tells when they are past.
func denied(forbids []matched, c *Call) Decision {
	d := Decision{Rule: forbids[0].Rule, Reason: forbids[0].says("forbids it")}
	var rest time.Duration
	for _, m := range forbids {
		if m.limit == nil || m.Failed {
			// What waiting does not end is told before what it does.
			d.Rule, d.Reason, d.Silent = m.Rule, m.says("forbids it"), m.silent
			return d
		}
		rest = max(rest, m.limit.rest(c))
	}
	d.RetryAfter = rest
	return d
}

// question is one of the two that are asked of a call.
type question struct {
	t     *subject
	group types.String
	tier  optionsv1.Tier
	// resource is looked up in the index: the zero value where no rule names any.
	resource types.EntityUID
	failed   bool
	request  cedar.Request
	has      uses
	made     bool
}

func (s *Set) question(t *subject, group types.String, tier optionsv1.Tier) *question {
	q := &question{t: t, group: group, tier: tier}
	if s.index.resources {
		var err error
		q.resource, err = t.resource()
		q.failed = err != nil
	}
	return q
}

func (q *question) candidates(from map[scope][]*rule) []*rule {
	resource := q.resource
	if q.failed {
		resource = whatever
	}
	return find(from, q.group, q.group+":"+types.String(q.t.name), q.t.lineage, resource, q.t.call)
}

// needs are the parts of a call that rules look at.
func needs(rules []*rule) uses {
	var u uses
	for _, r := range rules {
		u |= r.uses
		if r.scoped() {
			u |= usesResource
		}
	}
	return u
}

// ask has the engine evaluate rules. It reports false where they look at arguments that cannot be read.
func (q *question) ask(rules []*rule) (cedar.Diagnostic, bool) {
	if len(rules) == 0 {
		return cedar.Diagnostic{}, true
	}
	if u := needs(rules) | q.has; !q.made || u != q.has {
		request, err := q.t.request(q.group, q.tier, u)
		if err != nil {
			return cedar.Diagnostic{}, false
		}
		q.request, q.made, q.has = request, true, u
	}
	q.t.entities.group = q.group
	_, diagnostic := cedar.Authorize(batch{rules: rules}, q.t.entities, q.request)
	return diagnostic, true
}

// forbids returns the rules that forbid, the first first. It reports false where nothing can be told.
func (q *question) forbids(s *Set) ([]matched, bool) {
	if !forbidWins() {
		return nil, true
	}
	found, ok := q.ask(q.candidates(s.index.forbids))
	if !ok {
		return nil, false
	}
	var out []matched
	for _, reason := range found.Reasons {
		out = add(out, s.byID(reason.PolicyID), false)
	}
	for _, failure := range found.Errors {
		if failedForbidCounts() {
			out = add(out, s.byID(failure.PolicyID), true)
		}
	}
	return out, true
}

// add keeps the order of places; there are few.
func add(list []matched, r *rule, failed bool) []matched {
	m := matched{rule: r, Rule: r.as(failed)}
	i := len(list)
	for i > 0 && list[i-1].place > r.place {
		i--
	}
	return slices.Insert(list, i, m)
}

// permit returns the first rule that permits, or, if there is none, the first that could not be evaluated.
func (q *question) permit(s *Set) (permit, failed *rule) {
	rules := q.candidates(s.index.permits)
	found, ok := q.ask(rules)
	if !ok {
		// Arguments that cannot be read take away what depends on them, and nothing else.
		readable := rules[:0:0]
		for _, r := range rules {
			if needs([]*rule{r})&(usesArguments|usesResource) == 0 {
				readable = append(readable, r)
			} else {
				failed = first(failed, r)
			}
		}
		found, _ = q.ask(readable)
	}
	for _, reason := range found.Reasons {
		permit = first(permit, s.byID(reason.PolicyID))
	}
	for _, failure := range found.Errors {
		failed = first(failed, s.byID(failure.PolicyID))
	}
	return permit, failed
}

// byID finds a rule by the number that the engine knows it by.
func (s *Set) byID(id cedar.PolicyID) *rule {
	n, _ := strconv.Atoi(string(id)) // as number made it
	return s.rules[n]
}
