package policy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cedar-policy/cedar-go/types"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/eval"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"durward.internal/services/platform/clean"
	"durward.internal/services/platform/config"
	"durward.internal/services/platform/contract"
	"durward.internal/services/platform/pattern"
)

// maxAlike bounds how many of a rule's problems are told: a mistake in a rule about every tool is one for each tool.
const maxAlike = 3

// types checks every rule against the contract, and finds those that can never match. One that forbids nothing is no mere warning:
// somebody relies on it.
func (c *compiler) types() {
	s := c.schema()
	validators := validators{schema: s, one: map[types.EntityUID]*validate.Validator{}}
	for _, r := range c.rules {
		// What is built in is checked by a test, and so is what a tools.yaml compiles to.
		if r.Layer == BuiltIn || strings.HasPrefix(r.ID, generated) {
			continue
		}
		if text := c.never(r, s); text != "" {
			c.problems = append(c.problems, r.problem(" can never match: "+text, !r.Forbids))
			continue
		}
		if text := constant(r.ast()); text != "" {
			c.problems = append(c.problems, r.problem(" can never match: "+text, true))
		}
		if text := uncounted(r); text != "" {
			c.problems = append(c.problems, r.problem(": "+text, false))
		}
		p := r.ast()
		if foreign(p) && r.uses&usesArguments != 0 {
			c.problems = append(c.problems, r.problem(" looks at the arguments of a tool that is not ours: its conditions are not checked", true))
			p = &ast.Policy{Effect: p.Effect, Principal: p.Principal, Action: p.Action, Resource: p.Resource}
		}
		c.problems = append(c.problems, typed(r, validators.check(p, r.uses))...)
	}
}

// validators keeps one for each action: the library goes through all actions for each policy, and most policies name one.
type validators struct {
	schema *resolved.Schema
	one    map[types.EntityUID]*validate.Validator
}

// anyAction stands for every action.
var anyAction = types.NewEntityUID(actionType, "*")

// check type-checks a policy that looks at these parts of a call.
func (v validators) check(p *ast.Policy, u uses) error {
	actions := v.schema.Actions
	var action types.EntityUID
	if only, ok := p.Action.(ast.ScopeTypeEq); ok {
		action = only.Entity
		actions = map[types.EntityUID]resolved.Action{action: actions[action]}
	} else if u&usesArguments == 0 {
		// The actions differ in nothing else but what they are about: one that is about everything stands for all of them.
		action = anyAction
		applies := *actions[types.NewEntityUID(actionType, groupCall+":"+types.String(contract.Tools()[0].Name))].AppliesTo
		applies.Resources = append(resourceKinds(), hostType)
		actions = map[types.EntityUID]resolved.Action{action: {Entity: types.Entity{UID: action}, AppliesTo: &applies}}
		all := *p
		all.Action, p = ast.ScopeTypeAll{}, &all
	}
	if v.one[action] == nil {
		v.one[action] = validate.New(&resolved.Schema{Entities: v.schema.Entities, Actions: actions})
	}
	return v.one[action].Policy("", p)
}

// schema is the contract's, with the actions of other sources' tools that rules name.
func (c *compiler) schema() *resolved.Schema {
	base := schema()
	var actions map[types.EntityUID]resolved.Action
	for _, r := range c.rules {
		for _, a := range scopeActions(r.ast()) {
			if name := toolOf(a); foreignTool().MatchString(name) {
				if actions == nil {
					actions = maps.Clone(base.Actions)
				}
				addActions(actions, name, hostType, resolved.RecordType{})
			}
		}
	}
	if actions == nil {
		return base
	}
	return &resolved.Schema{Entities: base.Entities, Actions: actions}
}

func foreign(p *ast.Policy) bool {
	return slices.ContainsFunc(scopeActions(p), func(a types.EntityUID) bool { return foreignTool().MatchString(toolOf(a)) })
}

// typed turns the validator's errors into problems.
func typed(r *rule, err error) Problems {
	if err == nil {
		return nil
	}
	var texts []string
	for _, one := range flatten(err) {
		text := plain(r, one.Error())
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	slices.Sort(texts)
	var out Problems
	for i, text := range texts {
		if i == maxAlike {
			out = append(out, r.problem(fmt.Sprintf(": %d more like it", len(texts)-i), false))
			break
		}
		out = append(out, r.problem(": "+text, false))
	}
	return out
}

func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, one := range joined.Unwrap() {
		out = append(out, flatten(one)...)
	}
	return out
}

var (
	notFound = pattern.New("^attribute `([^`]*)` (?:in context for|on entity type) (.*) not found")
	unsafe   = pattern.New("^unable to guarantee safety of access to optional attribute `([^`]*)`")
)

// plain says the validator's message to somebody who does not know its terms.
func plain(r *rule, text string) string {
	text = clean.Line(text, 300)
	if m := notFound().FindStringSubmatch(text); m != nil {
		if name := strings.TrimPrefix(m[1], "arguments."); asksFor(r, name) {
			return fmt.Sprintf(`%s is no argument of %s; write "context.arguments has %s &&" before it`, name, toolWord(m[2]), name)
		}
		if argument := keyed(r, m[1]); argument != "" {
			return fmt.Sprintf(`%s need not have the key %s; write "context.arguments.%s has %s &&" before it`, argument, m[1], argument, cedarKey(m[1]))
		}
		return fmt.Sprintf("the context of %s has no %s", toolWord(m[2]), m[1])
	}
	if m := unsafe().FindStringSubmatch(text); m != nil {
		name := strings.TrimPrefix(m[1], "arguments.")
		return fmt.Sprintf(`a call need not have the argument %s; write "context.arguments has %s &&" before it`, name, name)
	}
	return text
}

// keyed names the argument that is a map and of which a rule looks at that key, or nothing.
func keyed(r *rule, key string) string {
	for _, t := range contract.Tools() {
		fields := t.Method.Input().Fields()
		for i := range fields.Len() {
			if name := string(fields.Get(i).Name()); fields.Get(i).IsMap() && asksFor(r, name+"."+key) {
				return name
			}
		}
	}
	return ""
}

var cedarWord = pattern.New(`\A[A-Za-z_][A-Za-z0-9_]*\z`)

// cedarKey writes a record's key as rules do: qwen, "qwen3-32b".
func cedarKey(key string) string {
	if cedarWord().MatchString(key) {
		return key
	}
	return strconv.Quote(key)
}

// asksFor reports whether a rule looks at the argument.
func asksFor(r *rule, name string) bool {
	found := false
	for _, c := range r.ast().Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			found = found || path(n) == "arguments."+name
			return !found
		})
	}
	return found
}

// toolWord names the tool of an action as the validator writes it.
func toolWord(action string) string {
	if action == anyAction.String() {
		return "a call"
	}
	quoted := strings.TrimSuffix(strings.TrimPrefix(action, `Action::"`), `"`)
	if name := toolOf(types.NewEntityUID(actionType, types.String(quoted))); name != "" {
		return name
	}
	return action
}

// never says why a rule's scope can match no call; empty: it can.
func (c *compiler) never(r *rule, s *resolved.Schema) string {
	p := r.ast()
	if text := neverPrincipal(p); text != "" {
		return text
	}
	actions := scopeActions(p)
	var kinds []types.EntityType
	for _, a := range actions {
		if text := neverAction(a, p, s); text != "" {
			return text
		}
		for uid, action := range s.Actions {
			if action.AppliesTo != nil && (uid == a || action.Entity.Parents.Contains(a)) {
				kinds = append(kinds, action.AppliesTo.Resources...)
			}
		}
	}
	entity, kind := scopeResource(p)
	switch {
	case kind == "":
	case s.Entities[kind].Name == "" || !slices.Contains(append(resourceKinds(), hostType), kind):
		return fmt.Sprintf("no call is about a %s; there are %s", clean.Line(string(kind), 64), words(append(resourceKinds(), hostType)))
	case entity != types.EntityUID{} && entity.Type != kind:
		return fmt.Sprintf("nothing is a %s and a %s", kind, clean.Line(string(entity.Type), 64))
	case len(actions) > 0 && !slices.Contains(kinds, kind):
		return fmt.Sprintf("these tools are about a %s, not a %s", words(kinds), kind)
	case kind == hostType && entity != types.EntityUID{} && entity != host:
		return `the host is Host::"this"`
	}
	return ""
}

func neverPrincipal(p *ast.Policy) string {
	var is types.EntityType
	exact := types.EntityUID{}
	in := types.EntityUID{}
	switch s := p.Principal.(type) {
	case ast.ScopeTypeEq:
		exact = s.Entity
	case ast.ScopeTypeIn:
		in = s.Entity
	case ast.ScopeTypeIs:
		is = s.Type
	case ast.ScopeTypeIsIn:
		is, in = s.Type, s.Entity
	}
	switch exact.Type {
	case "", agentType:
	case clientType:
		if p.Effect == ast.EffectForbid {
			return fmt.Sprintf(`== does not mean the client's agents, and a client chooses its agent; write principal in %s`, clean.Line(exact.String(), 120))
		}
	case userType, channelType:
		return fmt.Sprintf(`no call comes from a %s itself; write principal in %s`, exact.Type, clean.Line(exact.String(), 120))
	default:
		return fmt.Sprintf("no call comes from a %s; there are Client, Agent, User and Channel", clean.Line(string(exact.Type), 64))
	}
	if is != "" && is != clientType && is != agentType {
		return fmt.Sprintf("no call comes from a %s; there are Client and Agent", clean.Line(string(is), 64))
	}
	if is == clientType && in.Type == agentType {
		return "a client is in no agent"
	}
	switch in.Type {
	case "", clientType, agentType, userType, channelType:
		return ""
	}
	return fmt.Sprintf("no call comes from a %s; there are Client, Agent, User and Channel", clean.Line(string(in.Type), 64))
}

func neverAction(a types.EntityUID, p *ast.Policy, s *resolved.Schema) string {
	if _, exact := p.Action.(ast.ScopeTypeEq); exact && (a.ID == groupCall || a.ID == groupRun) && a.Type == actionType {
		return fmt.Sprintf(`%s stands for a group; write action in %s`, a, a)
	}
	if _, ok := s.Actions[a]; ok {
		return ""
	}
	name := toolOf(a)
	if name == "" {
		return fmt.Sprintf(`%s is no action; there are Action::"call:TOOL" and Action::"callWithoutApproval:TOOL"`, clean.Line(a.String(), 120))
	}
	return fmt.Sprintf("there is no tool %s%s", clean.Line(name, 80), meant(name))
}

// constant says which condition of a policy is never met.
func constant(p *ast.Policy) string {
	wants := map[string]types.Value{}
	for _, c := range conjuncts(p.Conditions) {
		if !variable(c.Body) {
			v, err := eval.Eval(c.Body, eval.Env{Entities: types.EntityMap{}})
			if met, ok := v.(types.Boolean); err == nil && ok && bool(met) != bool(c.Condition) {
				return fmt.Sprintf("a condition is always %t", bool(met))
			}
			continue
		}
		if c.Condition == ast.ConditionUnless {
			continue
		}
		name, value := equality(c.Body)
		if name == "" {
			continue
		}
		if known := vocabulary[name]; known != nil {
			if word, ok := value.(types.String); ok && !slices.Contains(known, string(word)) {
				return fmt.Sprintf("context.%s is one of %s", name, strings.Join(known, ", "))
			}
		}
		if other, ok := wants[name]; ok && !other.Equal(value) {
			return fmt.Sprintf("context.%s cannot be two things at once", name)
		}
		wants[name] = value
	}
	return ""
}

// vocabulary is what some texts of the context can be.
var vocabulary = map[string][]string{
	"tier":          {"READ", "WRITE", "DESTRUCTIVE"},
	"contract_tier": {"READ", "WRITE", "DESTRUCTIVE"},
	"channel":       {"cli", "desktop_ui", "api", "messaging"},
}

// equality takes "context.a.b == constant" apart.
func equality(n ast.IsNode) (string, types.Value) {
	e, ok := n.(ast.NodeTypeEquals)
	if !ok {
		return "", nil
	}
	left, right := e.Left, e.Right
	if _, ok := left.(ast.NodeValue); ok {
		left, right = right, left
	}
	value, ok := right.(ast.NodeValue)
	if !ok {
		return "", nil
	}
	return path(left), value.Value
}

// path is the dotted name of an attribute of the context.
func path(n ast.IsNode) string {
	access, ok := n.(ast.NodeTypeAccess)
	if !ok {
		return ""
	}
	if v, ok := access.Arg.(ast.NodeTypeVariable); ok {
		if v.Name == "context" {
			return string(access.Value)
		}
		return ""
	}
	if above := path(access.Arg); above != "" {
		return above + "." + string(access.Value)
	}
	return ""
}

func variable(n ast.IsNode) bool {
	found := false
	ast.Inspect(ast.NewNode(n), func(n ast.IsNode) bool {
		_, is := n.(ast.NodeTypeVariable)
		found = found || is
		return !found
	})
	return found
}

func words[T ~string](list []T) string {
	var out []string
	for _, one := range slices.Compact(slices.Sorted(slices.Values(list))) {
		out = append(out, string(one))
	}
	return strings.Join(out, ", ")
}

var (
	agentPattern    = pattern.New(`^([a-z0-9][a-z0-9_-]{0,63})/[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)
	channelPattern  = pattern.New(`^(cli|desktop_ui|api|messaging|messaging:[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63})$`)
	resourcePattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_\-./]{0,127}$`)
)

// strangers warns of things that a rule names and that are not there, or that nothing could be called.
func strangers(r *rule, known Known) Problems {
	p := r.ast()
	var named []types.EntityUID
	resource, _ := scopeResource(p)
	for _, uid := range []types.EntityUID{scopePrincipal(p), resource} {
		if uid != (types.EntityUID{}) {
			named = append(named, uid)
		}
	}
	for _, c := range p.Conditions {
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			if v, ok := n.(ast.NodeValue); ok {
				if uid, ok := v.Value.(types.EntityUID); ok {
					named = append(named, uid)
				}
			}
			return true
		})
	}
	var out Problems
	for _, uid := range named {
		if text := stranger(uid, known); text != "" {
			out = append(out, r.problem(": "+text, true))
		}
	}
	return out
}

func stranger(uid types.EntityUID, known Known) string {
	id, shown := string(uid.ID), clean.Line(uid.String(), 160)
	switch uid.Type {
	case clientType:
		return absent(id, shown, clientPattern(), known.Clients, "client")
	case agentType:
		m := agentPattern().FindStringSubmatch(id)
		if m == nil {
			return shown + ` is no agent: agents are written Agent::"CLIENT/NAME"`
		}
		return absent(m[1], shown, clientPattern(), known.Clients, "client")
	case userType:
		return absent(id, shown, nil, known.Users, "user")
	case channelType:
		if !channelPattern().MatchString(id) {
			return shown + " is no channel; there are cli, desktop_ui, api, messaging and messaging:NAME"
		}
	default:
		if slices.Contains(resourceKinds(), uid.Type) && !resourcePattern().MatchString(id) {
			return shown + " is nothing's id"
		}
	}
	return ""
}

func absent(id, shown string, pattern *regexp.Regexp, known []string, what string) string {
	switch {
	case pattern != nil && !pattern.MatchString(id):
		return shown + " is no " + what + "'s id"
	case known != nil && !slices.Contains(known, id):
		return fmt.Sprintf("no %s is called %s%s", what, clean.Line(id, 80), config.DidYouMean(id, known))
	}
	return ""
}

// nativeTools are the names of our tools.
func nativeTools() []string {
	var names []string
	for _, t := range contract.Tools() {
		names = append(names, t.Name)
	}
	return names
}
