package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	optionsv1 "durward.internal/proto/gen/durward/options/v1"
	"durward.internal/services/platform/contract"
)

// What rules say and nobody obeys: policy alone decides neither what the vault answers by permit nor what a sink lets run.

// answered reports whether the vault answers the tool's calls on a session's permit, without deciding on each.
func answered(t contract.Tool) bool { return t.Sink == optionsv1.Role_ROLE_VAULT && t.ByPermit() }

// uncounted finds a rule about single calls of a tool that the vault answers by permit: it would be believed and would do nothing.
func uncounted(r *rule) (text string) {
	if r.uses&(usesArguments|usesCalls) == 0 {
		return ""
	}
	for _, a := range scopeActions(r.ast()) {
		if t, ok := contract.Native(toolOf(a)); ok && answered(t) {
			return fmt.Sprintf("the vault answers %s on a session's permit, whatever the arguments and however often: a rule about these does nothing there", t.Name)
		}
	}
	return ""
}

// unasked finds a rule that lets something run without a human which a sink does not let run by the vault's word alone.
func unasked(r *rule, known Known) (text string) {
	p := r.ast()
	if r.Forbids || looks(p, "dangerous") {
		return "" // in dangerous mode there is a human's statement
	}
	actions := scopeActions(p)
	if len(actions) == 0 {
		actions = []types.EntityUID{types.NewEntityUID(actionType, groupRun)}
	}
	_, kind := scopeResource(p)
	// A rule about tiers in general is understood to be about READ, as the built-in one is.
	lookers := looks(p, "tier") || looks(p, "contract_tier")
	names := map[optionsv1.Role][]string{}
	for _, t := range contract.All() {
		named := slices.Contains(actions, types.NewEntityUID(actionType, groupRun+":"+types.String(ActionName(t))))
		all := slices.Contains(actions, types.NewEntityUID(actionType, groupRun)) && !lookers
		about := kind == "" || string(kind) == t.Resource || kind == hostType && t.Resource == ""
		if t.Tier > optionsv1.Tier_TIER_READ && (named || all) && about && !slices.Contains(known.Unattended, t.Name) {
			names[t.Sink] = append(names[t.Sink], t.Name)
		}
	}
	var out []string
	for _, s := range []struct {
		role       optionsv1.Role
		whose, who string
	}{{optionsv1.Role_ROLE_EXECUTOR, "the executor's", "the executor"}, {optionsv1.Role_ROLE_EGRESS, "egress'", "egress"}} {
		if list := names[s.role]; len(list) > 0 {
			out = append(out, fmt.Sprintf("what lets %s run without asking also needs an entry in %s file (unattended); without one %s refuses the call",
				some(list, 3), s.whose, s.who))
		}
	}
	return strings.Join(out, "; ")
}

// some are the first names of a list.
func some(names []string, n int) string {
	if len(names) <= n {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:n], ", "), len(names)-n)
}

// looks reports whether a policy's conditions look at an attribute of the context.
func looks(p *ast.Policy, attribute string) bool {
	found := false
	for _, c := range p.Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			found = found || path(n) == attribute
			return !found
		})
	}
	return found
}
